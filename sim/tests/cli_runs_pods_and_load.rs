//! The binary as a user runs it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

fn sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_foretoken-sim")).args(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn pods_announce_themselves_in_one_json_line_and_serve_load_until_stopped() {
    let mut pods = Command::new(env!("CARGO_BIN_EXE_foretoken-sim"))
        .args(["pods", "--profile", "fast", "--profile", "slow", "--count", "3", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(pods.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let announced: serde_json::Value = serde_json::from_str(&line).unwrap();
    let list = announced["pods"].as_array().unwrap();
    let profiles: Vec<&str> = list.iter().map(|pod| pod["profile"].as_str().unwrap()).collect();
    assert_eq!(profiles, ["fast", "slow", "fast"]);
    let url = format!("http://{}", list[0]["address"].as_str().unwrap());
    let output = sim(&[
        "load",
        "--target",
        &url,
        "--workload",
        "constant",
        "--pods",
        "2",
        "--seconds",
        "1",
        "--json",
        "-",
    ]);
    // An interrupt, as from a terminal.
    Command::new("kill").args(["-INT", &pods.id().to_string()]).status().unwrap();
    let status = pods.wait().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((report["requests"].as_u64(), report["failed"].as_u64()), (Some(4), Some(0)));
    assert_eq!(report["records"].as_array().unwrap().len(), 4);
    assert!(stderr(&output).is_empty(), "no progress bar off a terminal: {}", stderr(&output));
    assert_eq!(status.code(), Some(0));
}

#[test]
fn exit_codes_tell_failure_from_wrong_usage() {
    let nobody =
        sim(&["load", "--target", "http://127.0.0.1:9", "--workload", "constant", "--seconds", "0.2"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nobody.stdout).contains("failed 2 times: connect"));
    let unknown = sim(&["pods", "--profile", "warp"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(stderr(&unknown).contains("fast, slow, h100, a100"), "{}", stderr(&unknown));
    let mismatch = sim(&["pods", "--count", "3", "--ports", "0,0"]);
    assert!(stderr(&mismatch).contains("--count is 3"), "{}", stderr(&mismatch));
    assert_eq!(sim(&["load"]).status.code(), Some(2));
    assert_eq!(sim(&["fly"]).status.code(), Some(2));
}

#[test]
fn printed_profiles_and_workloads_read_back_as_files() {
    let output = sim(&["profiles", "--json"]);
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for profile in printed["profiles"].as_array().unwrap() {
        foretoken_sim::engine::profile::Profile::from_json("x", profile.to_string().as_bytes()).unwrap();
    }
    for workload in printed["workloads"].as_array().unwrap() {
        foretoken_sim::load::Workload::from_json("x", workload.to_string().as_bytes()).unwrap();
    }
    assert!(String::from_utf8(sim(&["profiles"]).stdout).unwrap().contains("slow"));
    for command in ["pods", "load", "profiles"] {
        assert!(
            String::from_utf8(sim(&[command, "--help"]).stdout).unwrap().contains("Examples:"),
            "{command}"
        );
    }
}
