//! The command line of the bench, the replay and the calibration.

use std::process::{Command, Output};

fn sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_foretoken-sim"))
        .args(arguments)
        .env_remove("FORETOKEN_TRAINER")
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn scratch(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("foretoken-cli-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}

#[test]
fn a_bench_writes_cells_a_summary_and_a_page_without_links() {
    let (json, html) = (scratch("bench.json"), scratch("bench.html"));
    let arguments = "bench --workload azure-code-like --pods 2 --load 0.8 --rate-per-pod 1.5 --requests 0.1 --seed 1 \
                     --policy foretoken --policy gie-default --policy oracle-social";
    let mut arguments: Vec<&str> = arguments.split_whitespace().collect();
    arguments.extend(["--json", json.to_str().unwrap(), "--html", html.to_str().unwrap()]);
    let printed = text(&sim(&arguments));
    assert!(printed.contains("gie-default") && printed.contains("goal"), "{printed}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    // Two pools, three policies.
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 6);
    for cell in cells {
        for field in ["ttft_ms", "tpot_ms", "e2e_ms"] {
            assert!(cell[field]["mean"].as_f64().unwrap() > 0.0, "{cell}");
        }
    }
    assert!(report["summary"]["vs_queue_kv"]["ttft_equal"].is_null(), "queue-kv was not run");
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("<svg") && !page.contains("src=") && !page.contains("href="));
}

#[test]
fn a_replay_says_who_would_have_served_best() {
    let trace = scratch("trace.csv");
    let mut rows = String::from("arrival_ms,input_tokens,output_tokens\n");
    for at in 0..300 {
        rows.push_str(&format!("{},{},{}\n", at * 90, 500 + at % 7 * 400, 20 + at % 11 * 10));
    }
    std::fs::write(&trace, rows).unwrap();
    let printed = text(&sim(&[
        "replay",
        trace.to_str().unwrap(),
        "--pods",
        "2",
        "--policy",
        "round-robin",
        "--policy",
        "foretoken-untrained",
    ]));
    assert!(printed.contains("least mean time to the last token: "), "{printed}");
}

/// A replay of these rows, its cells without the trace's name.
fn replayed(name: &str, rows: &[String], more: &[&str]) -> serde_json::Value {
    let (trace, json) = (scratch(&format!("{name}.csv")), scratch(&format!("{name}.json")));
    std::fs::write(&trace, format!("arrival_ms,input_tokens,output_tokens\n{}", rows.concat())).unwrap();
    let mut arguments = vec!["replay", trace.to_str().unwrap(), "--pods", "2", "--policy", "round-robin"];
    arguments.extend(["--json", json.to_str().unwrap()].iter().chain(more));
    text(&sim(&arguments));
    let mut cells: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    cells[0]["workload"].take();
    cells
}

#[test]
fn a_trace_is_replayed_in_order_of_time_whatever_the_order_of_its_lines() {
    let rows: Vec<String> = (0..300).map(|at| format!("{},{},30\n", at * 90, 400 + at)).collect();
    let sorted = replayed("sorted", &rows, &[]);
    let mut turned = rows.clone();
    turned.reverse();
    assert_eq!(sorted, replayed("turned", &turned, &[]));
    let mut one_off = rows;
    one_off.rotate_right(1);
    assert_eq!(sorted, replayed("one-off", &one_off, &[]));
}

#[test]
fn a_limit_takes_the_beginning_of_the_trace_at_its_own_rate() {
    let slow = (0..100).map(|at| format!("{},500,20\n", at * 1000));
    let fast = (0..400).map(|at| format!("{},500,20\n", 100_000 + at * 10));
    let rows: Vec<String> = slow.chain(fast).collect();
    let cells = replayed("limit", &rows, &["--limit", "100"]);
    assert!((cells[0]["rate"].as_f64().unwrap() - 100.0 / 99.0).abs() < 1e-6, "{cells}");
}

#[test]
fn nobody_who_reads_on_is_no_failure_and_the_file_is_written_all_the_same() {
    let (trace, json) = (scratch("unread.csv"), scratch("unread.json"));
    std::fs::write(&trace, "arrival_ms,input_tokens,output_tokens\n0,300,5\n900,300,5\n").unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_foretoken-sim"))
        .args([
            "replay",
            trace.to_str().unwrap(),
            "--policy",
            "round-robin",
            "--json",
            json.to_str().unwrap(),
        ])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(std::fs::metadata(&json).unwrap().len() > 100);
}

#[test]
fn wrong_input_is_told_with_the_fix() {
    let trace = scratch("wrong.csv");
    std::fs::write(&trace, "arrival_ms,input_tokens,output_tokens\n1,2,x\n").unwrap();
    let table = scratch("table.csv");
    std::fs::write(
        &table,
        "model,hardware,tensor_parallel,prompt_size,batch_size,token_size,prompt_time_ms,token_time_ms\n\
         m,h,2,512,1,128,196.2,NaN\n",
    )
    .unwrap();
    for (arguments, expected) in [
        (vec!["calibrate", "--splitwise", table.to_str().unwrap()], "line 2: `token_time_ms` is \"NaN\""),
        (vec!["replay", trace.to_str().unwrap()], "trace line 2: `output_tokens`"),
        (vec!["bench", "--workload", "no-such"], "bench --list"),
        (
            vec!["bench", "--workload", "churn", "--policy", "no-such", "--rate-per-pod", "1"],
            "no policy `no-such`",
        ),
        (vec!["bench", "--config", "{", "--workload", "churn"], "--config"),
        (vec!["calibrate"], "--splitwise"),
        (vec!["bench", "--quick", "--load=nan"], "--load"),
        (vec!["bench", "--quick", "--pods=0"], "--pods"),
        (vec!["bench", "--quick", "--requests=0"], "--requests"),
        (vec!["bench", "--quick", "--rate-per-pod=inf"], "--rate-per-pod"),
        (vec!["bench", "--quick", "--threads=0"], "--threads"),
        (vec!["bench", "--quick", "--traces", "/no/such"], "--traces /no/such: there is no such folder"),
        (vec!["bench", "--quick", "--json", "/no/such/file"], "there is no folder /no/such"),
        (vec!["bench", "--quick", "--json", "same", "--html", "same"], "another option writes there"),
        (vec!["bench", "--quick", "--policy", "no-such"], "no policy `no-such`"),
        (vec!["bench", "--quick", "--config", r#"{"policy":{"no-such":1}}"#], "--config"),
        (vec!["bench", "--quick", "--trainer", "/no/such"], "--trainer /no/such: there is no such file"),
        (vec!["replay", trace.to_str().unwrap(), "--limit", "0"], "--limit"),
        (vec!["replay", trace.to_str().unwrap(), "--pods", "0"], "--pods"),
        (vec!["replay", trace.to_str().unwrap(), "--rate", "0"], "--rate"),
        (vec!["replay", "/no/such"], "cannot read trace /no/such"),
    ] {
        let output = sim(&arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(expected), "{arguments:?}: {error}");
    }
}

#[test]
fn published_measurements_are_met_by_the_built_in_profiles() {
    let shared = std::env::var_os("FORETOKEN_SHARED").map_or_else(
        || std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared")),
        std::path::PathBuf::from,
    );
    let table = shared.join("traces/splitwise-perf-model.csv.gz");
    if !table.is_file() {
        println!("skipped: no {}; set FORETOKEN_SHARED", table.display());
        return;
    }
    let printed = text(&sim(&["calibrate", "--splitwise", table.to_str().unwrap(), "--json"]));
    let fits: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let built_in = fits["built_in"].as_array().unwrap();
    assert_eq!(built_in.len(), 2);
    for profile in built_in {
        for field in ["first_error", "token_error"] {
            let error = profile[field].as_f64().unwrap();
            assert!(error < 0.10, "{profile}");
        }
    }
}
