//! The traces beside the repository, where they are.

use std::path::PathBuf;

use foretoken_sim::workloads::{TraceOptions, arrivals, read_file};

fn traces() -> Option<PathBuf> {
    let shared = std::env::var_os("FORETOKEN_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared")), PathBuf::from);
    let traces = shared.join("traces");
    if !traces.is_dir() {
        println!("skipped: no traces at {}; set FORETOKEN_SHARED", traces.display());
        return None;
    }
    Some(traces)
}

#[test]
fn azures_and_mooncakes_traces_become_requests() {
    let Some(traces) = traces() else { return };
    for (name, scale, requests, prompt_tokens) in [
        ("azure-llm-2023-code.csv.gz", 1, 8819, 2047),
        ("azure-llm-2023-conv.csv.gz", 1, 19_366, 1154),
        ("mooncake-fast25-conversation.csv.gz", 8, 12_031, 1504),
    ] {
        let rows = read_file(&traces.join(name)).unwrap();
        let arrivals = arrivals(&rows, &TraceOptions { scale, ..TraceOptions::default() });
        assert_eq!(arrivals.len(), requests, "{name}");
        let total: u64 = arrivals.iter().map(|arrival| u64::from(arrival.request.prompt_tokens)).sum();
        assert_eq!(total / arrivals.len() as u64, prompt_tokens, "{name}");
    }
}

#[test]
fn mooncakes_arrivals_do_not_come_in_lumps() {
    let Some(traces) = traces() else { return };
    let rows = read_file(&traces.join("mooncake-fast25-conversation.csv.gz")).unwrap();
    let arrivals = arrivals(&rows, &TraceOptions { scale: 8, ..TraceOptions::default() });
    let distinct: std::collections::HashSet<u64> = arrivals.iter().map(|arrival| arrival.at_us).collect();
    assert!(distinct.len() > 11_900, "{}", distinct.len());
    let first = arrivals[0].request.prompt_blocks()[0];
    assert!(
        arrivals
            .iter()
            .all(|arrival| { arrival.request.prompt_blocks().first().is_none_or(|block| *block == first) })
    );
}
