//! The engines that are not vLLM and that nobody captured a page of: pages written after their sources.

use super::*;

/// Two data-parallel ranks of two tensor-parallel processes each, with priority scheduling and a host tier.
pub(super) const SGLANG: &str = r#"# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",pp_rank="0",priority="",tp_rank="0"} 5.0
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",pp_rank="0",priority="",tp_rank="1"} 5.0
sglang:num_running_reqs{dp_rank="1",engine_type="unified",model_name="m",pp_rank="0",priority="",tp_rank="2"} 3.0
sglang:num_running_reqs{dp_rank="1",engine_type="unified",model_name="m",pp_rank="0",priority="7",tp_rank="2"} 99.0
sglang:num_queue_reqs{dp_rank="0",model_name="m",priority="",tp_rank="0"} 2.0
sglang:num_queue_reqs{dp_rank="0",model_name="m",priority="",tp_rank="1"} 2.0
sglang:num_queue_reqs{dp_rank="1",model_name="m",priority="",tp_rank="2"} 4.0 1700000000000
sglang:num_queue_reqs_total{dp_rank="0",tp_rank="0"} 1000.0
sglang:num_grammar_queue_reqs{dp_rank="0",model_name="m",tp_rank="0"} 1.0
sglang:token_usage{dp_rank="0",model_name="m",tp_rank="0"} 0.25
sglang:token_usage{dp_rank="1",model_name="m",tp_rank="2"} 0.75
sglang:max_total_num_tokens{dp_rank="0",model_name="m",tp_rank="0"} 400000.0
sglang:max_total_num_tokens{dp_rank="0",model_name="m",tp_rank="1"} 400000.0
sglang:max_total_num_tokens{dp_rank="1",model_name="m",tp_rank="2"} 400000.0
sglang:page_size{dp_rank="0",model_name="m",tp_rank="0"} 64.0
sglang:hicache_host_used_tokens{dp_rank="0",model_name="m",tp_rank="0"} 100000.0
sglang:hicache_host_total_tokens{dp_rank="0",model_name="m",tp_rank="0"} 1e+06
sglang:hicache_host_used_tokens{dp_rank="1",model_name="m",tp_rank="2"} 300000.0
sglang:hicache_host_total_tokens{dp_rank="1",model_name="m",tp_rank="2"} 1e+06
sglang:num_retracted_requests_total{dp_rank="0",model_name="m",tp_rank="0"} 6.0
sglang:num_retracted_reqs{dp_rank="0",model_name="m",tp_rank="0"} 1.0
sglang:lora_pool_slots_used{dp_rank="0",model_name="m",tp_rank="0"} 2.0
sglang:lora_pool_slots_total{dp_rank="0",model_name="m",tp_rank="0"} 8.0
sglang:prefill_effective_tokens_total{dp_rank="0",mode="input",model_name="m",tp_rank="0"} 1000.0
sglang:prefill_effective_tokens_total{dp_rank="0",mode="input",model_name="m",tp_rank="1"} 1000.0
sglang:prefill_effective_tokens_total{dp_rank="0",mode="device_hit",model_name="m",tp_rank="0"} 500.0
sglang:prefill_effective_tokens_total{dp_rank="0",mode="host_hit",model_name="m",tp_rank="0"} 80.0
sglang:prefill_effective_tokens_total{dp_rank="0",mode="storage_hit",model_name="m",tp_rank="0"} 20.0
sglang:prefill_effective_tokens_created{dp_rank="0",mode="input",model_name="m",tp_rank="0"} 1.7e+09
sglang:realtime_tokens_total{dp_rank="0",mode="prefill_compute",model_name="m",tp_rank="0"} 990.0
sglang:realtime_tokens_total{dp_rank="0",mode="prefill_cache",model_name="m",tp_rank="0"} 590.0
sglang:realtime_tokens_total{dp_rank="0",mode="decode",model_name="m",tp_rank="0"} 70.0
sglang:prompt_tokens_total{model_name="m"} 1500.0
sglang:generation_tokens_total{is_streaming="true",model_name="m"} 40.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 480.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 90.0
sglang:cache_hit_rate{dp_rank="0",model_name="m",tp_rank="0"} 0.33
"#;

/// The cached tokens' histogram shares the counter's beginning.
pub(super) const TRTLLM: &str = r#"trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 12.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 3.0
trtllm_num_requests_completed_total{engine_type="trtllm",model_name="m"} 100.0
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.4
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="m"} 5000.0
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="m"} 32.0
trtllm_kv_cache_host_utilization{engine_type="trtllm",model_name="m"} 0.1
trtllm_prompt_tokens_total{engine_type="trtllm",model_name="m"} 9000.0
trtllm_prompt_cached_tokens_total{engine_type="trtllm",model_name="m"} 3000.0
trtllm_prompt_cached_tokens_per_request_sum{engine_type="trtllm",model_name="m"} 3000.0
trtllm_prompt_cache_hit_tokens_total{cache_level="0",cache_tier="gpu",model_name="m"} 2000.0
trtllm_prompt_cache_hit_tokens_total{cache_level="1",cache_tier="host",model_name="m"} 1000.0
trtllm_generation_tokens_total{engine_type="trtllm",model_name="m"} 500.0
process_start_time_seconds 1.79e+09
"#;

pub(super) const TRITON: &str = r#"nv_inference_request_success{model="tensorrt_llm",version="1"} 5
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 3
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 4
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 7
nv_trt_llm_runtime_memory_metrics{memory_type="gpu",model="tensorrt_llm",version="1"} 1610236
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.6
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 60
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="free",model="tensorrt_llm",version="1"} 40
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 100
"#;

pub(super) const TGI: &str = "# TYPE tgi_queue_size gauge\ntgi_queue_size 5\n\
# TYPE tgi_batch_current_size gauge\ntgi_batch_current_size 8\n\
tgi_batch_current_max_tokens 2048\ntgi_request_count 17\n\
tgi_batch_inference_count{method=\"prefill\"} 9\n";

fn without(page: &str, names: &[&str]) -> Scrape {
    let kept: Vec<&str> =
        page.lines().filter(|line| !names.iter().any(|name| line.starts_with(name))).collect();
    read(&kept.join("\n"))
}

#[test]
fn sglang_takes_the_largest_of_tensor_ranks_and_the_sum_of_data_ranks() {
    let scrape = read(SGLANG);
    assert_eq!((scrape.running_requests, scrape.waiting_requests), (8.0, 7.0));
    assert_eq!((scrape.kv_usage, scrape.kv_capacity_tokens, scrape.block_tokens), (0.75, 800_000.0, 64.0));
    assert_eq!((scrape.host_kv_capacity_tokens, scrape.host_kv_usage), (2e6, 0.2));
    assert_eq!((scrape.preemptions, scrape.running_adapters, scrape.max_adapters), (6.0, 2.0, 8.0));
}

#[test]
fn sglang_without_ranks_in_its_labels_is_one_queue() {
    let scrape = read(
        "sglang:num_running_reqs{model_name=\"m\"} 2\nsglang:num_queue_reqs{model_name=\"m\"} 1\nsglang:token_usage{model_name=\"m\"} 0.5\n",
    );
    assert_eq!((scrape.running_requests, scrape.waiting_requests, scrape.kv_usage), (2.0, 1.0, 0.5));
    assert!(scrape.kv_capacity_tokens.is_nan() && scrape.computed_tokens_total.is_nan());
    assert_eq!(
        missing(&scrape),
        ["sglang:max_total_num_tokens", "sglang:prefill_effective_tokens_total"],
        "it works, so its counters should have begun"
    );
    let renamed = read("sglang_num_running_reqs 2\nsglang_num_queue_reqs 0\n");
    assert_eq!((renamed.dialect, renamed.running_requests), (Dialect::Sglang, 2.0));
    let idle = read("sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\nsglang:token_usage 0\n");
    assert_eq!(missing(&idle), ["sglang:max_total_num_tokens"]);
}

#[test]
fn sglang_tells_what_was_found_by_tier_or_by_what_was_computed_or_by_finished_requests() {
    let by_tier = read(SGLANG);
    assert_eq!(
        (by_tier.prefix_query_tokens, by_tier.prefix_hit_tokens, by_tier.host_hit_tokens),
        (1600.0, 500.0, 100.0)
    );
    // What comes from a tier behind is written to the device.
    assert_eq!(by_tier.computed_tokens_total, 1100.0 + 70.0);
    let by_computed = without(SGLANG, &["sglang:prefill_effective"]);
    assert_eq!((by_computed.prefix_query_tokens, by_computed.prefix_hit_tokens), (1580.0, 590.0));
    assert_eq!(by_computed.computed_tokens_total, 990.0 + 70.0);
    let by_request = without(SGLANG, &["sglang:prefill_effective", "sglang:realtime"]);
    assert_eq!(
        (by_request.prefix_query_tokens, by_request.prefix_hit_tokens, by_request.host_hit_tokens),
        (1500.0, 480.0, 90.0)
    );
    assert_eq!(by_request.computed_tokens_total, 1500.0 - 480.0 + 40.0);
    let older = read(
        "sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\nsglang:prompt_tokens_total 10\nsglang:generation_tokens_total 5\nsglang:cached_tokens_total 4\nsglang:cache_config_info{page_size=\"16\",num_pages=\"9\"} 1\n",
    );
    assert_eq!((older.prefix_hit_tokens, older.computed_tokens_total, older.block_tokens), (4.0, 11.0, 16.0));
}

#[test]
fn sglang_with_more_ranks_than_the_bound_is_read_up_to_it() {
    let page: String = (0..1000)
        .map(|rank| format!("sglang:num_running_reqs{{dp_rank=\"{rank}\"}} 1\nsglang:num_queue_reqs{{dp_rank=\"{rank}\"}} 0\n"))
        .collect();
    assert_eq!(read(&page).running_requests, 256.0);
}

#[test]
fn trtllm_serve_counts_its_cache_in_blocks() {
    let scrape = read(TRTLLM);
    assert_eq!((scrape.running_requests, scrape.waiting_requests, scrape.kv_usage), (12.0, 3.0, 0.4));
    assert_eq!(
        (scrape.kv_capacity_tokens, scrape.block_tokens, scrape.host_kv_usage),
        (160_000.0, 32.0, 0.1)
    );
    assert_eq!(
        (scrape.prefix_query_tokens, scrape.prefix_hit_tokens, scrape.host_hit_tokens),
        (9000.0, 2000.0, 1000.0)
    );
    assert_eq!((scrape.computed_tokens_total, scrape.start_time_s), (7500.0, 1.79e9));
    let old = read("trtllm_num_active_requests 4\ntrtllm_num_queued_requests 2\n");
    assert_eq!((old.running_requests, old.waiting_requests), (4.0, 2.0));
    assert!(old.computed_tokens_total.is_nan());
    assert!(
        !missing(&old).contains(&"trtllm_prompt_cached_tokens_total"),
        "its counters begin with the first request that finishes"
    );
    let uncounted = without(TRTLLM, &["trtllm_prompt_cached_tokens_total"]);
    assert!(uncounted.computed_tokens_total.is_nan());
    assert_eq!(missing(&uncounted), ["trtllm_prompt_cached_tokens_total"]);
}

#[test]
fn triton_tells_by_label_what_a_series_is_of() {
    let scrape = read(TRITON);
    assert_eq!((scrape.running_requests, scrape.waiting_requests, scrape.kv_usage), (4.0, 3.0, 0.6));
    assert_eq!((scrape.kv_capacity_tokens, scrape.block_tokens), (6400.0, 64.0));
    assert!(scrape.computed_tokens_total.is_nan() && scrape.prefix_hit_tokens.is_nan());
    let kept: Vec<&str> = TRITON
        .lines()
        .filter(|line| !line.contains("\"fraction\"") && !line.contains("\"waiting\""))
        .collect();
    let older = read(&kept.join("\n"));
    assert_eq!(older.kv_usage, 0.6);
    assert!(older.waiting_requests.is_nan());
    assert_eq!(missing(&older), ["nv_trt_llm_request_metrics{request_type=waiting}"]);
}

#[test]
fn tgi_tells_its_queue_and_its_batch_and_nothing_of_its_cache() {
    let scrape = read(TGI);
    assert_eq!((scrape.running_requests, scrape.waiting_requests), (8.0, 5.0));
    assert!(
        scrape.kv_usage.is_nan()
            && scrape.kv_capacity_tokens.is_nan()
            && scrape.computed_tokens_total.is_nan()
    );
}
