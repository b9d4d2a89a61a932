//! Metrics pages to measure readers with: the shape of an engine's page, made up line by line.

use std::fmt::Write;

/// A page of the size and make-up of vLLM's: some 54 KB in 650 lines, 180 of them comments, most of the others
/// buckets of histograms, with the few series that are wanted spread among them.
#[must_use]
pub(crate) fn vllm_page() -> String {
    let labels = r#"engine="0",model_name="Llama-3.1-8B""#;
    let mut page = String::new();
    for generation in 0..3 {
        let _ = writeln!(page, "python_gc_objects_collected_total{{generation=\"{generation}\"}} 13939.0");
    }
    page.push_str(
        "process_virtual_memory_bytes 4.850434048e+09\nprocess_start_time_seconds 1.7959796899e+09\n",
    );
    let head = |page: &mut String, name: &str, kind: &str| {
        let _ = writeln!(page, "# HELP vllm:{name} What the metric of this name is about, in a sentence.");
        let _ = writeln!(page, "# TYPE vllm:{name} {kind}");
    };
    for name in ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "engine_sleep_state"]
    {
        head(&mut page, name, "gauge");
        let _ = writeln!(page, "vllm:{name}{{{labels}}} 0.026490874687175703");
    }
    for name in [
        "prefix_cache_queries",
        "prefix_cache_hits",
        "external_prefix_cache_queries",
        "external_prefix_cache_hits",
        "mm_cache_queries",
        "mm_cache_hits",
        "num_preemptions",
        "prompt_tokens",
        "prompt_tokens_cached",
        "generation_tokens",
        "request_success",
        "admission_rejections",
    ] {
        head(&mut page, &format!("{name}_total"), "counter");
        let _ = writeln!(page, "vllm:{name}_total{{{labels}}} 300502.0");
        head(&mut page, &format!("{name}_created"), "gauge");
        let _ = writeln!(page, "vllm:{name}_created{{{labels}}} 1.7959797641647668e+09");
    }
    for histogram in 0..21 {
        let name = format!("histogram_{histogram}_seconds");
        head(&mut page, &name, "histogram");
        for bucket in 0..20 {
            let _ = writeln!(
                page,
                "vllm:{name}_bucket{{engine=\"0\",le=\"{bucket}.0\",model_name=\"Llama-3.1-8B\"}} {}.0",
                bucket * 11
            );
        }
        let _ = writeln!(
            page,
            "vllm:{name}_count{{{labels}}} 219.0\nvllm:{name}_sum{{{labels}}} 171.41042590141296"
        );
        head(&mut page, &format!("{name}_created"), "gauge");
        let _ = writeln!(page, "vllm:{name}_created{{{labels}}} 1.795979764166866e+09");
    }
    let mut config = String::new();
    for setting in 0..30 {
        let _ = write!(config, "some_setting_of_the_cache_{setting}=\"None\",");
    }
    let _ = writeln!(
        page,
        "vllm:cache_config_info{{block_size=\"16\",{config}engine=\"0\",num_gpu_blocks=\"16384\"}} 1.0"
    );
    page
}
