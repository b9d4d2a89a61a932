"""Scores of the starter model on held-out hardware: one JSON file, and the table of models/README.md.

Called by scripts/starter-model with the folder of the results, the file to write and the names of the profiles. Fails
when the model is not better than the prior on one of them.
"""

import json
import pathlib
import sys

LOADS_WITH_QUEUE = ("heavy", "full")


def pooled(by_load, of, target, field):
    """Mean over the loads with a queue, by requests; medians of classes are averaged, so it is near the median."""
    parts = [by_load[load][of][target] for load in LOADS_WITH_QUEUE if load in by_load]
    parts = [part for part in parts if part]
    count = sum(part["n"] for part in parts)
    return count, (sum(part[field] * part["n"] for part in parts) / count if count else None)


def e2e(result):
    """Mean E2E over all requests of all runs that were answered."""
    runs = [run for run in result["runs"] if run["requests"] > run["lost"]]
    weights = [run["requests"] - run["lost"] for run in runs]
    return sum(run["e2e_ms"]["mean"] * weight for run, weight in zip(runs, weights)) / sum(weights)


def main():
    folder, out, names = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
    read = lambda name: json.loads((folder / name).read_text().strip().splitlines()[-1])
    scores, worse = {}, []
    for name in names:
        result = read(f"{name}.eval")
        by_load = result["by_load"]
        entry = {"samples": result["samples"]}
        for target in ("ttft", "tpot"):
            model, prior = result["model"][target], result["prior"][target]
            for field in ("ape_median", "pinball_p50", "pinball_p90"):
                if model[field] >= prior[field]:
                    worse.append(f"{name}: {field} of {target} is {model[field]:.4f}, the prior's {prior[field]:.4f}")
            entry[target] = {"model": model, "prior": prior}
            count, ours = pooled(by_load, "model", target, "pinball_p50")
            _, theirs = pooled(by_load, "prior", target, "pinball_p50")
            entry[target]["queued"] = {"n": count, "model_pinball_p50": ours, "prior_pinball_p50": theirs}
        entry["e2e_ms"] = {"model": e2e(read(f"{name}.model")), "prior": e2e(read(f"{name}.prior"))}
        scores[name] = entry
    out.write_text(json.dumps(scores, indent=1) + "\n")

    print("| hardware | TTFT error | TPOT error | TTFT loss | TPOT loss | TTFT loss in queues | TPOT loss in queues | mean E2E |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, entry in scores.items():
        cells = [f"{100 * entry[t]['model']['ape_median']:.1f} ({100 * entry[t]['prior']['ape_median']:.1f}) %" for t in ("ttft", "tpot")]
        cells += [f"{entry[t]['model']['pinball_p50']:.3f} ({entry[t]['prior']['pinball_p50']:.3f})" for t in ("ttft", "tpot")]
        for t in ("ttft", "tpot"):
            queued = entry[t]["queued"]
            cells.append(f"{queued['model_pinball_p50']:.3f} ({queued['prior_pinball_p50']:.3f})" if queued["n"] else "none")
        change = entry["e2e_ms"]["model"] / entry["e2e_ms"]["prior"] - 1
        cells.append(f"{100 * change:+.1f} %")
        print(f"| {name.replace('-', ' ')} | {' | '.join(cells)} |")
    for line in worse:
        print(f"worse than the prior: {line}", file=sys.stderr)
    sys.exit(1 if worse else 0)


main()
