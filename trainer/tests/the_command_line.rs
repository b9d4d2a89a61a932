//! The binary: fit, inspect, convert, serve, and how they fail.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use foretoken_core::features::COUNT;
use foretoken_trainer::dataset::example;
use foretoken_trainer::{synthetic, xgb};
use serde_json::Value;

fn trainer(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken-trainer"));
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(xgb::LIBRARY_IN_REPOSITORY);
    if std::env::var_os(xgb::LIBRARY_VARIABLE).is_none() {
        command.env(xgb::LIBRARY_VARIABLE, library);
    }
    command.args(args);
    command
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_model_is_fitted_from_a_file_and_inspected() {
    if xgb::for_tests().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (samples, out) = (dir.path().join("samples.ndjson"), dir.path().join("model.onnx"));
    let mut text: String = synthetic::samples(4, 600)
        .iter()
        .map(|sample| serde_json::to_string(sample).unwrap() + "\n")
        .collect();
    text.push_str("not a sample\n");
    std::fs::write(&samples, text).unwrap();
    let (samples, out) = (samples.to_str().unwrap(), out.to_str().unwrap());
    let fitted = json(&trainer(&["fit", "--samples", samples, "--out", out, "--json"]).output().unwrap());
    assert_eq!((&fitted["samples"], &fitted["rejected"]), (&600.into(), &1.into()));
    assert!(fitted["parity"]["rows"].as_u64().unwrap() > 1000);
    let inspected = json(&trainer(&["inspect", out, "--json"]).output().unwrap());
    assert_eq!(inspected["model_id"], fitted["model_id"]);
    assert_eq!(inspected["default_filter"], true);
    assert_eq!(inspected["outputs"].as_array().unwrap().len(), 4);
    let plots = dir.path().join("plots");
    let evaluated =
        trainer(&["eval", out, "--samples", samples, "--json", "--plots"]).arg(&plots).output().unwrap();
    let evaluated = json(&evaluated);
    assert_eq!((&evaluated["samples"], &evaluated["model_id"]), (&600.into(), &fitted["model_id"]));
    let error = |of: &str| evaluated[of]["ttft"]["ape_median"].as_f64().unwrap();
    assert!(error("model") < 0.5 * error("prior"), "{evaluated}");
    for name in ["ttft-predicted", "ttft-error", "tpot-coverage"] {
        let svg = std::fs::read_to_string(plots.join(format!("{name}.svg"))).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("</svg>"), "{name}");
    }
    let text = trainer(&["inspect", out]).output().unwrap();
    assert!(String::from_utf8(text.stdout).unwrap().contains("runs in both flavours"));
}

#[test]
fn boosters_from_elsewhere_are_converted_with_proof() {
    let Some(xgboost) = xgb::for_tests() else { return };
    let dir = tempfile::tempdir().unwrap();
    let examples: Vec<_> = synthetic::samples(4, 300).iter().filter_map(example).collect();
    let rows: Vec<f32> = examples.iter().flat_map(|example| example.row.0).collect();
    let labels: Vec<f32> = examples.iter().map(|example| example.ttft.unwrap().actual_ms).collect();
    let matrix = xgboost.matrix(&rows, COUNT).unwrap();
    let shares: Vec<f32> = labels.iter().map(|label| label / 1e6).collect();
    let fit = |objective: &str| {
        matrix.set_labels(if objective == "reg:logistic" { &shares } else { &labels }).unwrap();
        let booster = xgboost.booster(&matrix, [("objective", objective), ("nthread", "1")]).unwrap();
        for round in 0..10 {
            booster.update(round, &matrix).unwrap();
        }
        booster.to_json().unwrap()
    };
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (good, bad, out) = (path("good.json"), path("bad.json"), path("model.onnx"));
    std::fs::write(&good, fit("reg:squarederror")).unwrap();
    std::fs::write(&bad, fit("reg:logistic")).unwrap();
    let base = ["convert", "--unit", "ms", "--model-id", "mine-7", "--out", &out, "--json", "--tpot", &good];
    let converted = json(&trainer(&base).args(["--ttft", &good]).output().unwrap());
    assert_eq!(converted["model_id"], "mine-7");
    let refused = trainer(&base).args(["--ttft", &bad]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(message.contains("ttft") && message.contains("reg:logistic"), "{message}");
    for (not_a_model, why) in [("", "empty"), ("{\"learner\":{}}", "gradient_booster"), ("{L", "UBJSON")] {
        std::fs::write(&bad, not_a_model).unwrap();
        let refused = trainer(&base).args(["--ttft", &bad]).output().unwrap();
        assert_eq!(refused.status.code(), Some(1));
        let message = String::from_utf8(refused.stderr).unwrap();
        for part in [&bad, "not a model that XGBoost 3.4.1 can load", "save_model", why] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}

#[test]
fn outputs_and_rounds_of_a_booster_from_elsewhere_can_be_named() {
    if xgb::for_tests().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/other_xgboosts");
    let booster = |file: &str, outputs: &str| format!("{}={outputs}", folder.join(file).display());
    let out = dir.path().join("model.onnx").to_str().unwrap().to_owned();
    let convert = |args: &[&str]| trainer(&["convert", "--out", &out, "--json"]).args(args).output().unwrap();
    let both = booster("1.7.6-two-targets.json", "ttft_ms_p50,tpot_ms_p50");
    assert!(json(&convert(&["--booster", &both]))["parity"]["values"].as_u64().unwrap() > 2000);
    let inspected = json(&trainer(&["inspect", &out, "--json"]).output().unwrap());
    let names = [&inspected["outputs"][0]["name"], &inspected["outputs"][1]["name"]];
    assert_eq!(names, ["ttft_ms_p50", "tpot_ms_p50"]);
    // Two boosters of a gamma loss and of an early stop; the second needs a word.
    let gamma = booster("1.7.6-gamma.json", "ttft_ms_p50");
    let late = booster("3.4.1-stopped-late.json", "tpot_ms_p50");
    let doubtful = convert(&["--booster", &gamma, "--booster", &late]);
    assert_eq!(doubtful.status.code(), Some(1));
    assert!(String::from_utf8(doubtful.stderr).unwrap().contains("--rounds best"));
    let sizes = ["best", "all"].map(|rounds| {
        let converted = json(&convert(&["--booster", &gamma, "--booster", &late, "--rounds", rounds]));
        converted["onnx_bytes"].as_u64().unwrap()
    });
    assert!(sizes[0] < sizes[1], "{sizes:?}");
    let inspected = json(&trainer(&["inspect", &out, "--json"]).output().unwrap());
    assert_eq!(inspected["default_filter"], true);
    for (wrong, why) in [("f.json", "FILE=OUTPUT"), ("f.json=ttft", "ttft_ms_p50")] {
        let output = convert(&["--booster", wrong]);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8(output.stderr).unwrap().contains(why));
    }
    assert_eq!(convert(&["--ttft", "f.json"]).status.code(), Some(2));
}

#[test]
fn serve_prints_its_addresses_and_ends_on_a_signal() {
    if xgb::for_tests().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let filter = dir.path().join("filter.json");
    std::fs::write(&filter, r#"{"cluster":"pods","endpoints":{"admin_cluster":"admin"}}"#).unwrap();
    let data = dir.path().join("data");
    let args = ["serve", "--listen", "127.0.0.1:0", "--xds-listen", "127.0.0.1:0", "--module", "f.wasm"];
    let mut command = trainer(&args);
    command.arg("--filter-config").arg(&filter).arg("--data-dir").arg(&data);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    for key in ["listen", "xds"] {
        let address: std::net::SocketAddr = ready[key].as_str().unwrap().parse().unwrap();
        assert!(std::net::TcpStream::connect(address).is_ok());
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert!(child.wait().unwrap().success());
}

#[test]
fn wrong_usage_and_failures_have_their_exit_codes_and_say_what_to_do() {
    let output = trainer(&["serve", "--nonsense"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let missing = ["fit", "--samples", "none.ndjson", "--out", "m.onnx", "--xgboost-lib", "no/libxgboost.so"];
    let output = trainer(&missing).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("no/libxgboost.so") && message.contains("scripts/setup"), "{message}");
    assert_eq!(message.matches("No such file or directory").count(), 1, "{message}");
    let output = trainer(&["inspect", "Cargo.toml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("not an ONNX file"));
    let help = trainer(&["serve", "--help"]).output().unwrap();
    assert!(String::from_utf8(help.stdout).unwrap().contains("Examples:"));
}

#[test]
fn a_missing_folder_is_named_before_the_work() {
    if xgb::for_tests().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("missing").join("out.file");
    let filter = dir.path().join("filter.json");
    std::fs::write(&filter, r#"{"cluster":"pods","endpoints":{"admin_cluster":"admin"}}"#).unwrap();
    let (out, filter) = (out.to_str().unwrap(), filter.to_str().unwrap());
    let data = dir.path().join("data");
    // None of the other files exists: the folder is looked at first.
    let fit = trainer(&["fit", "--samples", "none.ndjson", "--out", out]).output().unwrap();
    let convert = ["convert", "--ttft", "none.json", "--tpot", "none.json", "--out", out];
    let convert = trainer(&convert).output().unwrap();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--xds-listen", "127.0.0.1:0", "--module", "f.wasm"];
    let serve = trainer(&serve)
        .args(["--filter-config", filter, "--ecds-file", out, "--data-dir", data.to_str().unwrap()])
        .output()
        .unwrap();
    for output in [fit, convert, serve] {
        assert_eq!(output.status.code(), Some(1));
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(&format!("cannot write {out}: there is no folder")), "{message}");
        assert!(!message.contains("none."), "{message}");
    }
    assert!(!data.exists());
}

#[test]
fn versions_of_a_folder_are_listed_compared_and_published_again() {
    use foretoken_core::features::COUNT;
    use foretoken_core::model::contract::Output;
    use foretoken_core::model::ensemble::Ensemble;
    use foretoken_core::model::onnx::write;
    use foretoken_trainer::export::Facts;
    use foretoken_trainer::registry::{Content, Registry, Version};
    let dir = tempfile::tempdir().unwrap();
    let models = dir.path().join("models");
    {
        let mut registry = Registry::open(&models).unwrap();
        for (id, parent) in [("first", 0), ("second", 1)] {
            let facts = Facts { model_id: id.to_owned(), ..Default::default() };
            let mut ensemble = Ensemble::new(COUNT);
            ensemble.push_constant(1.0).unwrap();
            let outputs: Vec<_> = Output::ALL.into_iter().take(4).map(|output| (output, &ensemble)).collect();
            let mut card = Version::new(id, (1, 5), 10, serde_json::json!({"n": parent}));
            card.parent = parent;
            let onnx = write::write(&facts.metadata(), &outputs);
            registry.add(Content { card, onnx, boosters: None }).unwrap();
        }
    }
    std::fs::create_dir_all(dir.path().join("samples")).unwrap();
    let data = dir.path().to_str().unwrap();
    let run = |args: &[&str]| trainer(args).args(["--data-dir", data]).output().unwrap();
    let listed = json(&run(&["versions", "--json"]));
    assert_eq!(listed.as_array().unwrap().len(), 2);
    let text = String::from_utf8(run(&["versions"]).stdout).unwrap();
    assert!(text.contains("second") && text.contains("fitted"), "{text}");
    let difference = json(&run(&["diff", "1", "2", "--json"]));
    assert_eq!(difference["scores.n"], serde_json::json!({"from": 0, "to": 1}));
    let back = json(&run(&["rollback", "--json"]));
    assert_eq!((&back["generation"], &back["model_id"]), (&3.into(), &"first".into()));
    assert!(dir.path().join("held").exists());
    let shown = json(&run(&["show", "3", "--json"]));
    assert_eq!((&shown["origin"], &shown["content_of"]), (&"rolled_back".into(), &1.into()));
    let missing = run(&["promote", "7"]);
    assert_eq!(missing.status.code(), Some(1));
    let lock = foretoken_trainer::store::lock(&dir.path().join("samples")).unwrap();
    let refused = run(&["promote", "2"]);
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(1) && message.contains("--server"), "{message}");
    drop(lock);
    assert_eq!(json(&run(&["promote", "2", "--json"]))["generation"], 4);
    assert_eq!(trainer(&["versions"]).output().unwrap().status.code(), Some(2));
}

#[test]
fn a_model_file_is_pushed_into_a_new_folder_and_what_is_none_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let push = |model: &Path, more: &[&str]| {
        trainer(&["push"]).arg(model).arg("--data-dir").arg(&data).args(more).output().unwrap()
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let golden = root.join("models/golden/quantiles-depth-6/model.onnx");
    let pushed = json(&push(&golden, &["--json"]));
    assert_eq!((&pushed["generation"], &pushed["parent"]), (&1.into(), &0.into()));
    assert_eq!((&pushed["origin"], &pushed["trained_through_ms"]), (&"pushed".into(), &0.into()));
    assert!(!data.join("held").exists(), "a fit may replace it");

    let bad = dir.path().join("bad.onnx");
    std::fs::write(&bad, "not a model").unwrap();
    let refused = push(&bad, &["--hold"]);
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(1) && message.contains("bad.onnx"), "{message}");
    assert!(!data.join("held").exists(), "nothing was pushed, so nothing is held");

    let again = json(&push(&root.join("models/golden/squared-ms-depth-4/model.onnx"), &["--json", "--hold"]));
    assert_eq!((&again["generation"], &again["parent"]), (&2.into(), &1.into()));
    assert!(data.join("held").exists());
    let registry = foretoken_trainer::registry::Registry::open(&data.join("models")).unwrap();
    let (version, onnx) = registry.current().unwrap();
    assert_eq!((version.generation, registry.before()), (2, Some(1)));
    assert_eq!(onnx, std::fs::read(root.join("models/golden/squared-ms-depth-4/model.onnx")).unwrap());
}

#[cfg(not(feature = "s3"))]
#[test]
fn a_store_that_this_build_has_not_is_named_with_the_way_to_build_it() {
    let dir = tempfile::tempdir().unwrap();
    let output = trainer(&["import", "--from", "s3://bucket/x.parquet", "--data-dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("s3://bucket/x.parquet") && message.contains("--features s3"), "{message}");
}

#[test]
fn samples_go_through_parquet_into_another_store_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let now_ms = foretoken_trainer::export::now_ms();
    let text: String = synthetic::samples(4, 300)
        .into_iter()
        .map(|mut sample| {
            sample.at_ms = now_ms - 1000;
            serde_json::to_string(&sample).unwrap() + "\n"
        })
        .collect();
    let (ndjson, parquet, csv) = (path("s.ndjson"), path("s.parquet"), path("s.csv"));
    let (one, two) = (path("one"), path("two"));
    std::fs::write(&ndjson, text + "not a sample\n").unwrap();
    let run = |args: &[&str]| json(&trainer(args).arg("--json").output().unwrap());
    let added = run(&["import", "--data-dir", &one, "--from", &ndjson]);
    assert_eq!((&added["accepted"], &added["rejected"]), (&300.into(), &1.into()));
    for file in [&parquet, &csv] {
        assert_eq!(run(&["export", "--data-dir", &one, "--to", file])["samples"], 300);
    }
    assert_eq!(run(&["import", "--data-dir", &two, "--from", &parquet])["accepted"], 300);
    let again = run(&["import", "--data-dir", &two, "--from", &csv]);
    assert_eq!((&again["accepted"], &again["duplicates"]), (&0.into(), &300.into()));
    if xgb::for_tests().is_some() {
        let fitted = run(&["fit", "--samples", &parquet, "--out", &path("model.onnx")]);
        assert_eq!(fitted["samples"], 300);
    }
}
