use super::*;
use crate::request::model_key;

/// A vLLM with the offloading connector and LoRA.
pub(super) const OFFLOAD: &str = r#"vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 400.0
vllm:external_prefix_cache_queries_total{engine="0",model_name="m"} 600.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 250.0
vllm:generation_tokens_total{engine="0",model_name="m"} 50.0
vllm:kv_offload_cpu_capacity_tokens{engine="0",model_name="m"} 4000000.0
vllm:kv_offload_cpu_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:cache_config_info{block_size="16",engine="0",num_cpu_blocks="None",num_gpu_blocks="1000"} 1.0
vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.7e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql,chat",waiting_lora_adapters="sql,math"} 1.79e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 1.78e+09
"#;

fn load(more: &str) -> Scrape {
    read(&format!("vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n{more}"))
}

#[test]
fn the_tier_in_host_memory_is_told_by_gauge_or_by_label_and_by_swapped_blocks_before_v1() {
    let scrape = read(OFFLOAD);
    assert_eq!((scrape.host_kv_capacity_tokens, scrape.host_kv_usage), (4_000_000.0, 0.25));
    assert_eq!(scrape.host_hit_tokens, 250.0);
    // What the connector brings is written to the cache as well.
    assert_eq!(scrape.computed_tokens_total, 600.0 + 50.0);
    let by_label =
        load("vllm:kv_offload_cpu_config_info{engine=\"0\",num_blocks=\"9\",capacity_tokens=\"1234\"} 1\n");
    assert_eq!(by_label.host_kv_capacity_tokens, 1234.0);
    let unknown = load("vllm:kv_offload_cpu_config_info{engine=\"0\",capacity_tokens=\"None\"} 1\n");
    assert!(unknown.host_kv_capacity_tokens.is_nan());
    let v0 = load(
        "vllm:cache_config_info{block_size=\"16\",num_cpu_blocks=\"100\",num_gpu_blocks=\"10\"} 1\nvllm:cpu_cache_usage_perc 0.5\n",
    );
    assert_eq!((v0.host_kv_capacity_tokens, v0.host_kv_usage), (1600.0, 0.5));
}

#[test]
fn of_the_series_about_adapters_the_newest_counts() {
    let scrape = read(OFFLOAD);
    assert_eq!((scrape.running_adapters, scrape.waiting_adapters, scrape.max_adapters), (2.0, 2.0, 4.0));
    assert_eq!(scrape.adapters.keys(), ["sql", "chat", "math"].map(model_key));
    let none = load("");
    assert!(none.running_adapters.is_nan() && none.max_adapters.is_nan() && none.adapters.keys().is_empty());
    let idle = load(
        "vllm:lora_requests_info{max_lora=\"1\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 1.7e9\n",
    );
    assert_eq!((idle.running_adapters, idle.max_adapters), (0.0, 1.0));
}

#[test]
fn the_waiting_by_reason_count_only_where_the_whole_is_missing() {
    let by_reason = "vllm:num_requests_running 1\n\
        vllm:num_requests_waiting_by_reason{reason=\"capacity\"} 3\n\
        vllm:num_requests_waiting_by_reason{reason=\"deferred\"} 2\n";
    assert_eq!(read(by_reason).waiting_requests, 5.0);
    assert_eq!(read(&format!("{by_reason}vllm:num_requests_waiting 3\n")).waiting_requests, 3.0);
}

#[test]
fn with_the_prefix_cache_off_every_prompt_token_is_computed() {
    let off = load(
        "vllm:prefix_cache_queries_total 0\nvllm:prefix_cache_hits_total 0\nvllm:prompt_tokens_total 700\nvllm:generation_tokens_total 30\n",
    );
    assert_eq!(off.computed_tokens_total, 730.0);
    // Prompt tokens count with the first token, look-ups already with the schedule.
    let on = load(
        "vllm:prefix_cache_queries_total 900\nvllm:prefix_cache_hits_total 200\nvllm:prompt_tokens_total 700\nvllm:generation_tokens_total 30\n",
    );
    assert_eq!(on.computed_tokens_total, 730.0);
    assert!(load("vllm:prompt_tokens_total 700\n").computed_tokens_total.is_nan());
    assert!(load("vllm:generation_tokens_total 30\n").computed_tokens_total.is_nan());
}

#[test]
fn the_newest_start_of_several_processes_counts() {
    let scrape = load("process_start_time_seconds 100\nprocess_start_time_seconds{pid=\"2\"} 250.5\n");
    assert_eq!(scrape.start_time_s, 250.5);
    assert!(load("").start_time_s.is_nan());
}

#[test]
fn every_series_that_a_bare_page_lacks_is_named_with_its_fix() {
    let scrape = load("");
    assert_eq!(
        missing(&scrape),
        [
            "vllm:kv_cache_usage_perc",
            "vllm:cache_config_info",
            "vllm:prefix_cache_queries_total",
            "vllm:generation_tokens_total"
        ]
    );
    assert!(scrape.missing.series(Dialect::Vllm).all(|one| one.fix.len() > 20));
}
