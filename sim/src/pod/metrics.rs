//! The pod's `/metrics` page in vLLM's dialect: its series names, its labels, its Prometheus text.
//!
//! Only series that routers and dashboards read. Counters and histograms carry vLLM's `_created` gauges
//! too, because a reader that matches name prefixes instead of names must be caught here and not in
//! production.

use std::fmt::Write;

use super::Shared;
use super::board::{Board, Histogram};

/// Content type of the page.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

/// Renders the page.
pub(super) fn page(shared: &Shared) -> String {
    let board = shared.board().clone();
    let mut page = Page { out: String::with_capacity(16 << 10), shared };
    gauges(&mut page, &board);
    counters(&mut page, &board);
    page.histogram(
        "time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
        &board.ttft,
    );
    page.histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", &board.itl);
    page.histogram("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", &board.e2e);
    cache_config(&mut page);
    page.out
}

fn gauges(page: &mut Page<'_>, board: &Board) {
    let engine = &board.engine;
    page.head("num_requests_running", "gauge", "Number of requests in model execution batches.");
    page.sample("num_requests_running", &[], f64::from(engine.running));
    page.head("num_requests_waiting", "gauge", "Number of requests waiting to be processed.");
    page.sample("num_requests_waiting", &[], f64::from(engine.waiting));
    page.head(
        "num_requests_waiting_by_reason",
        "gauge",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' \
         = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals \
         vllm:num_requests_waiting.",
    );
    page.sample("num_requests_waiting_by_reason", &[("reason", "capacity")], f64::from(engine.waiting));
    page.sample("num_requests_waiting_by_reason", &[("reason", "deferred")], 0.0);
    page.head("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.");
    let blocks = f64::from(page.shared.options.profile.kv_blocks);
    page.sample("kv_cache_usage_perc", &[], f64::from(engine.kv_held_blocks) / blocks);
}

fn counters(page: &mut Page<'_>, board: &Board) {
    let engine = &board.engine;
    page.counter(
        "prefix_cache_queries",
        "Prefix cache queries, in terms of number of queried tokens.",
        &[(&[], engine.prefix_query_tokens)],
    );
    page.counter(
        "prefix_cache_hits",
        "Prefix cache hits, in terms of number of cached tokens.",
        &[(&[], engine.prefix_hit_tokens)],
    );
    page.counter(
        "num_preemptions",
        "Cumulative number of preemption from the engine.",
        &[(&[], engine.preemptions)],
    );
    page.counter("prompt_tokens", "Number of prefill tokens processed.", &[(&[], board.prompt_tokens)]);
    page.counter(
        "prompt_tokens_by_source",
        "Number of prompt tokens by source.",
        &[
            (&[("source", "local_compute")], board.prompt_tokens - board.cached_tokens),
            (&[("source", "local_cache_hit")], board.cached_tokens),
            (&[("source", "external_kv_transfer")], 0),
        ],
    );
    page.counter(
        "generation_tokens",
        "Number of generation tokens processed.",
        &[(&[], engine.generated_tokens)],
    );
    page.counter(
        "request_success",
        "Count of successfully processed requests.",
        &[
            (&[("finished_reason", "stop")], 0),
            (&[("finished_reason", "length")], engine.finished),
            (&[("finished_reason", "abort")], engine.aborted),
            (&[("finished_reason", "error")], 0),
            (&[("finished_reason", "repetition")], 0),
        ],
    );
}

/// vLLM's whole label set, as routers read block size and block count from it.
fn cache_config(page: &mut Page<'_>) {
    let profile = &page.shared.options.profile;
    let block_size = profile.block_tokens.to_string();
    let blocks = profile.kv_blocks.to_string();
    let tokens = profile.kv_capacity_tokens().to_string();
    let concurrency =
        format!("{:?}", profile.kv_capacity_tokens() as f64 / f64::from(profile.max_model_len_tokens));
    page.head("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
    let labels: &[(&str, &str)] = &[
        ("_block_size_resolved", "True"),
        ("block_size", &block_size),
        ("cache_dtype", "auto"),
        ("cache_hit_alignment_tokens", "None"),
        ("effective_attention_block_size", &block_size),
        ("enable_mamba_shared_prefix_checkpoint", "False"),
        ("enable_prefix_caching", "True"),
        ("engine", "0"),
        ("gpu_memory_utilization", "0.92"),
        ("hash_block_size", "None"),
        ("is_attention_free", "False"),
        ("kv_cache_dtype_skip_layers", "[]"),
        ("kv_cache_layout", "None"),
        ("kv_cache_max_concurrency", &concurrency),
        ("kv_cache_memory_bytes", "None"),
        ("kv_cache_size_tokens", &tokens),
        ("kv_offloading_backend", "native"),
        ("kv_offloading_size", "None"),
        ("kv_sharing_fast_prefill", "False"),
        ("mamba_block_size", "None"),
        ("mamba_cache_dtype", "auto"),
        ("mamba_cache_mode", "none"),
        ("mamba_page_size_padded", "None"),
        ("mamba_ssm_cache_dtype", "float32"),
        ("num_cpu_blocks", "None"),
        ("num_gpu_blocks", &blocks),
        ("num_gpu_blocks_override", "None"),
        ("prefix_cache_retention_interval", "0"),
        ("prefix_caching_hash_algo", "sha256"),
        ("prefix_match_unit", "None"),
        ("replayssm_buffer_len", "16"),
        ("skip_page_size_padded", "None"),
        ("sliding_window", "None"),
        ("swa_bounded_replay", "True"),
        ("use_kda_recoverssm", "False"),
        ("use_replayssm", "False"),
        ("user_specified_block_size", "True"),
    ];
    page.out.push_str("vllm:cache_config_info{");
    page.labels(labels);
    page.out.push_str("} 1.0\n");
}

/// A page under construction.
struct Page<'a> {
    out: String,
    shared: &'a Shared,
}

impl Page<'_> {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = write!(self.out, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}\n");
    }

    /// One sample with the labels that every series has, and `extra` ones, in alphabetical order as the
    /// Prometheus client writes them.
    fn sample(&mut self, name: &str, extra: &[(&str, &str)], value: f64) {
        let _ = write!(self.out, "vllm:{name}{{");
        let mut labels = vec![("engine", "0"), ("model_name", self.shared.options.model.as_str())];
        labels.extend_from_slice(extra);
        labels.sort_unstable();
        self.labels(&labels);
        // `{:?}` writes 3 as 3.0 and large numbers in scientific notation, as Python does.
        let _ = writeln!(self.out, "}} {value:?}");
    }

    fn labels(&mut self, labels: &[(&str, &str)]) {
        for (at, (key, value)) in labels.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.out, "{comma}{key}=\"{value}\"");
        }
    }

    /// A counter family with its `_created` twin.
    fn counter(&mut self, name: &str, help: &str, samples: &[(&[(&str, &str)], u64)]) {
        self.head(&format!("{name}_total"), "counter", help);
        for (labels, value) in samples {
            self.sample(&format!("{name}_total"), labels, *value as f64);
        }
        self.head(&format!("{name}_created"), "gauge", help);
        for (labels, _) in samples {
            self.sample(&format!("{name}_created"), labels, self.shared.created_s);
        }
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let mut cumulative = 0;
        for (at, count) in histogram.counts.iter().enumerate() {
            cumulative += count;
            let bound =
                histogram.bounds.get(at).map_or_else(|| "+Inf".to_owned(), |bound| format!("{bound:?}"));
            self.sample(&format!("{name}_bucket"), &[("le", &bound)], cumulative as f64);
        }
        self.sample(&format!("{name}_count"), &[], cumulative as f64);
        self.sample(&format!("{name}_sum"), &[], histogram.sum);
        self.head(&format!("{name}_created"), "gauge", help);
        self.sample(&format!("{name}_created"), &[], self.shared.created_s);
    }
}
