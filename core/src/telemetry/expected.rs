//! Which series a page of each engine should have, and what to do when one is missing.
//!
//! A page can be read without them, and what they would say is unknown then. But a router that silently
//! goes without its inputs is worse than one that says so: the reader notes what was missing, and whoever
//! scrapes says it once per pod.

use super::Dialect;

/// A series that a page should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// Its name, as the newest version of the engine writes it.
    pub series: &'static str,
    /// What to do about its absence.
    pub fix: &'static str,
}

const fn expect(series: &'static str, fix: &'static str) -> Expected {
    Expected { series, fix }
}

const VLLM_STATS: &str = "start vLLM without --disable-log-stats";
const VLLM_CAPACITY: &str =
    "use a vLLM that tells num_gpu_blocks and block_size there, or set prefix.default_capacity_tokens";

/// vLLM's, in the order of [`super::vllm`]'s reading.
pub(super) const VLLM: [Expected; 6] = [
    expect("vllm:num_requests_running", VLLM_STATS),
    expect("vllm:num_requests_waiting", VLLM_STATS),
    expect("vllm:kv_cache_usage_perc", VLLM_STATS),
    expect("vllm:cache_config_info", VLLM_CAPACITY),
    expect("vllm:prefix_cache_queries_total", VLLM_STATS),
    expect("vllm:generation_tokens_total", VLLM_STATS),
];

const SGLANG_METRICS: &str = "start SGLang with --enable-metrics";

/// SGLang's.
pub(super) const SGLANG: [Expected; 5] = [
    expect("sglang:num_running_reqs", SGLANG_METRICS),
    expect("sglang:num_queue_reqs", SGLANG_METRICS),
    expect("sglang:token_usage", SGLANG_METRICS),
    expect(
        "sglang:max_total_num_tokens",
        "use an SGLang that tells its KV cache's size, or set prefix.default_capacity_tokens",
    ),
    expect(
        "sglang:prefill_effective_tokens_total",
        "use an SGLang that counts prefilled, cached and decoded tokens",
    ),
];

/// Text Generation Inference's.
pub(super) const TGI: [Expected; 2] = [
    expect("tgi_queue_size", "set telemetry.path to the router's page"),
    expect("tgi_batch_current_size", "set telemetry.path to the router's page"),
];

const TRTLLM_ITERATIONS: &str = "set enable_iter_perf_stats: true in trtllm-serve's configuration";

/// trtllm-serve's.
pub(super) const TRTLLM_SERVE: [Expected; 6] = [
    expect("trtllm_num_requests_running", TRTLLM_ITERATIONS),
    expect("trtllm_num_requests_waiting", TRTLLM_ITERATIONS),
    expect("trtllm_kv_cache_utilization", TRTLLM_ITERATIONS),
    expect("trtllm_kv_cache_max_blocks", TRTLLM_ITERATIONS),
    expect("trtllm_kv_cache_tokens_per_block", TRTLLM_ITERATIONS),
    expect(
        "trtllm_prompt_cached_tokens_total",
        "set return_perf_metrics: true in trtllm-serve's configuration, and use a version that counts cached tokens",
    ),
];

const TRITON_VERSION: &str = "use a TensorRT-LLM backend that tells it";

/// Triton's, with the TensorRT-LLM backend.
pub(super) const TRITON_TRTLLM: [Expected; 4] = [
    expect("nv_trt_llm_request_metrics{request_type=scheduled}", TRITON_VERSION),
    expect("nv_trt_llm_request_metrics{request_type=waiting}", TRITON_VERSION),
    expect("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}", TRITON_VERSION),
    expect("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}", TRITON_VERSION),
];

/// llama.cpp's.
pub(super) const LLAMA_CPP: [Expected; 4] = [
    expect("llamacpp:requests_processing", "start llama-server with --metrics"),
    expect("llamacpp:requests_deferred", "use a llama-server that counts deferred requests"),
    expect("llamacpp:prompt_tokens_cached_total", "use a llama-server that counts cached prompt tokens"),
    expect("llamacpp:tokens_predicted_total", "start llama-server with --metrics"),
];

/// Series that a page of a dialect should have.
#[must_use]
pub fn expected(dialect: Dialect) -> &'static [Expected] {
    match dialect {
        Dialect::Vllm => &VLLM,
        Dialect::Sglang => &SGLANG,
        Dialect::Tgi => &TGI,
        Dialect::TrtllmServe => &TRTLLM_SERVE,
        Dialect::TritonTrtllm => &TRITON_TRTLLM,
        Dialect::LlamaCpp => &LLAMA_CPP,
    }
}

/// Which of [`expected`] were missing: a bit each, in the order of the list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Missing(u16);

impl Missing {
    /// From what is unknown, in the order of the list.
    pub(super) fn of(absent: &[bool]) -> Self {
        Self(absent.iter().rev().fold(0, |bits, absent| bits << 1 | u16::from(*absent)))
    }

    /// Whether nothing was missing.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// What is missing here and not in `known`.
    #[must_use]
    pub fn without(self, known: Self) -> Self {
        Self(self.0 & !known.0)
    }

    /// What is missing in either.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The series, for the dialect that the scrape was of.
    pub fn series(self, dialect: Dialect) -> impl Iterator<Item = &'static Expected> {
        expected(dialect).iter().enumerate().filter(move |(at, _)| self.0 >> at & 1 == 1).map(|(_, one)| one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_by_name() {
        let missing = Missing::of(&[false, true, false, true]);
        let names: Vec<&str> = missing.series(Dialect::Vllm).map(|one| one.series).collect();
        assert_eq!(names, ["vllm:num_requests_waiting", "vllm:cache_config_info"]);
        assert_eq!(missing.without(Missing::of(&[false, true])), Missing::of(&[false, false, false, true]));
        assert_eq!(Missing::of(&[false, true]).or(Missing::of(&[false, false, false, true])), missing);
        assert!(Missing::of(&[false; 6]).is_empty() && missing.without(missing).is_empty());
    }

    #[test]
    fn every_dialect_has_its_list_and_a_bit_for_each() {
        for dialect in Dialect::ALL {
            let list = expected(dialect);
            assert!((1..=16).contains(&list.len()), "{dialect:?}");
            assert!(list.iter().all(|one| !one.series.is_empty() && !one.fix.is_empty()));
        }
    }
}
