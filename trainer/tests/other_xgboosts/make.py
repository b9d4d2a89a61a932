"""Small model files of the XGBoost that runs this, with what it predicts for rows.csv.

    python3 -m venv v && v/bin/pip install 'xgboost==1.7.6' 'numpy<2' 'scipy<1.13' && v/bin/python make.py
    python3 -m venv v && v/bin/pip install 'xgboost-cpu==2.1.4' 'numpy<2' 'scipy<1.13' && v/bin/python make.py
    python3.12 -m venv v && v/bin/pip install 'xgboost-cpu==3.4.1' && v/bin/python make.py

Writes <version>-<case>.json or .ubj, and <version>.csv: a line a case, the predictions row by row, outputs of a row
one after another. The test `models_of_other_xgboosts.rs` converts each and compares. What is made is committed: the
test needs neither Python nor an old XGBoost.
"""

import pathlib

import numpy as np
import xgboost as xgb

HERE = pathlib.Path(__file__).parent
# Names of the feature schema, not in its order. The last is whole numbers, for splits by category.
NAMES = ["kv_usage", "prompt_tokens", "prefill_tokens", "running_adapters"]
# Rows that are fitted to, and those of them that are committed with their predictions.
FITTED, SHOWN = 300, 32


def rows():
    random = np.random.default_rng(7)
    values = np.stack(
        [
            random.uniform(0, 1, FITTED).round(3),
            random.integers(1, 4000, FITTED),
            random.integers(0, 20000, FITTED),
            random.integers(0, 9, FITTED),
        ],
        axis=1,
    )
    values[random.uniform(size=values.shape) < 0.08] = np.nan
    return values.astype(np.float32)


def labels(values):
    known = np.nan_to_num(values, nan=1.0)
    kind = np.isin(known[:, 3], [1, 2, 5, 8])
    return (20 + known[:, 1] / 50 * (1 + kind) + known[:, 2] / 90 * (1 + known[:, 0])).astype(np.float32)


VERSION = xgb.__version__
MAJOR = int(VERSION.split(".")[0])
X = rows()
Y = labels(X)
BOTH = np.stack([Y, 5 + Y / 40], axis=1)
TREES = {"tree_method": "hist", "max_depth": 3, "eta": 0.5}

# Case: parameters, labels, file form, whether the last column is a category.
CASES = {
    "squared": (dict(TREES), Y, "json", False),
    "squared-ubj": (dict(TREES), Y, "ubj", False),
    "forest": (dict(TREES, num_parallel_tree=3, subsample=0.6), Y, "json", False),
    "dart": (dict(TREES, booster="dart", rate_drop=0.5, one_drop=1), Y, "json", False),
    "dart-ubj": (dict(TREES, booster="dart", rate_drop=0.5, one_drop=1), Y, "ubj", False),
    "absolute": (dict(TREES, objective="reg:absoluteerror"), Y, "ubj", False),
    "pseudo-huber": (dict(TREES, objective="reg:pseudohubererror", huber_slope=30), Y, "json", False),
    "squared-log": (dict(TREES, objective="reg:squaredlogerror", base_score=50), Y, "ubj", False),
    "gamma": (dict(TREES, objective="reg:gamma", base_score=80), Y, "json", False),
    "tweedie": (dict(TREES, objective="reg:tweedie"), Y, "ubj", False),
    "poisson": (dict(TREES, objective="count:poisson", base_score=80), Y, "json", False),
    "two-targets": (dict(TREES), BOTH, "json", False),
    "categories": (dict(TREES, max_cat_to_onehot=1), Y, "json", True),
    "one-hot-categories-ubj": (dict(TREES, max_cat_to_onehot=100), Y, "ubj", True),
    "linear": (dict(booster="gblinear"), Y, "json", False),
    "logistic": (dict(TREES, objective="reg:logistic"), Y / 1000, "json", False),
}
if MAJOR >= 2:
    vector = dict(TREES, multi_strategy="multi_output_tree")
    quantiles = dict(objective="reg:quantileerror", quantile_alpha=[0.5, 0.9])
    CASES = {
        "squared": CASES["squared"],
        "dart-ubj": CASES["dart-ubj"],
        "gamma": CASES["gamma"],
        "categories": CASES["categories"],
        "vector-leaf": (vector, BOTH, "json", False),
        "vector-leaf-ubj": (vector, BOTH, "ubj", False),
        "quantiles": (dict(TREES, **quantiles), Y, "json", False),
    }
if MAJOR >= 3:
    CASES = {
        "categories": CASES["categories"],
        "dart-of-vectors": (dict(vector, rate_drop=0.5, one_drop=1), BOTH, "ubj", False),
        "expectile": (dict(TREES, objective="reg:expectileerror", expectile_alpha=0.9), Y, "ubj", False),
        "stopped-late": (dict(TREES), Y, "json", False),
    }


def matrix(values, label, by_category):
    types = ["float", "float", "float", "c" if by_category else "float"]
    return xgb.DMatrix(values, label=label, feature_names=NAMES, feature_types=types, enable_categorical=True)


def main():
    lines = []
    for name, (parameters, label, form, by_category) in CASES.items():
        fitted = matrix(X, label, by_category)
        booster = xgb.train(dict(parameters, nthread=1, seed=1), fitted, 3 if "forest" in name else 5)
        if name == "stopped-late":
            # What early stopping leaves: the best round, and later ones that were no better.
            booster.set_attr(best_iteration="2")
        path = HERE / f"{VERSION}-{name}.{form}"
        path.write_bytes(bytes(booster.save_raw(form)))
        predicted = booster.predict(matrix(X[:SHOWN], None, by_category)).astype(np.float32)
        numbers = ",".join(str(value) for value in predicted.ravel())
        lines.append(f"{path.name},{numbers}\n")
    (HERE / f"{VERSION}.csv").write_text("".join(lines))
    text = [",".join(NAMES)]
    text += [",".join("" if np.isnan(value) else str(value) for value in row) for row in X[:SHOWN]]
    (HERE / "rows.csv").write_text("\n".join(text) + "\n")


main()
