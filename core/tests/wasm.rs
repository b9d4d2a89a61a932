//! What the filter reads inside Envoy is what the trainer and the simulator read natively.
//!
//! One set of cases with fixed expected values, run twice: as ordinary tests, and on
//! `wasm32-unknown-unknown` by wasm-bindgen's runner. Both passing proves the two builds equal where a
//! difference would be silent: hashes are shared between workers and kept over module updates, and
//! `usize` has 32 bits in wasm.
//!
//! ```text
//! CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER=wasm-bindgen-test-runner \
//!     cargo test -p foretoken-core --target wasm32-unknown-unknown --test wasm
//! ```

use foretoken_core::hash;
use foretoken_core::request::{Api, BlockOptions, TokenEstimator, api_of_path, model_key, read_request};
use foretoken_core::response::{BodyForm, ResponseReader, Usage};
use foretoken_core::sample::TokenSource;
use foretoken_core::telemetry::{Dialect, read_metrics};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

const BLOCKS: BlockOptions = BlockOptions { block_bytes: 16, max_blocks: 1000 };

#[test]
fn hashes_have_their_fixed_values() {
    assert_eq!(hash::chain(0, b""), 0xcd7e_e197_5db5_ea09);
    assert_eq!(hash::chain(1, b"the quick brown fox"), 0xa064_0034_fec2_bdfa);
    assert_eq!(hash::chain(u64::MAX, &[0xff; 64]), 0x1da4_9e81_8658_3aed);
    assert_eq!(hash::pod_key("127.0.0.1:8000"), 0xc6f7_520c_e835_1d4c);
    assert_eq!(model_key("tiny"), 0x3884_236d_52b9_5280);
}

#[test]
fn a_chat_body_gives_its_fixed_blocks() {
    let body = r#"{"messages":[{"role":"system","content":"You are a helpful assistant."},
        {"role":"user","content":[{"type":"text","text":"Caf\u00e9,\n\u4e2d\u6587?"},
        {"type":"image_url","image_url":{"url":"https://example.com/a.png"}}]}],
        "tools":[{"type":"function","function":{"name":"f"}}],"model":"tiny","max_tokens":7,"stream":true}"#;
    let request = read_request(Api::Chat, body.as_bytes(), BLOCKS).unwrap();
    assert_eq!(request.prompt.text_bytes, 111);
    assert_eq!(
        request.prompt.blocks,
        [
            0x5d77_472d_9498_0f23,
            0x7b8f_cf0d_4a5d_0275,
            0x2ec1_15d2_b5dc_bf25,
            0xb79f_f647_decc_d728,
            0xfa7e_43b8_b95c_181a,
            0x2291_eece_9949_d48c,
        ]
    );
    assert_eq!((request.max_tokens, request.stream, request.include_usage), (Some(7), true, false));
}

#[test]
fn a_completions_body_gives_its_fixed_blocks() {
    assert_eq!(api_of_path("/gateway/v1/completions/?a=b"), Some(Api::Completions));
    let body = br#"{"model":"tiny","prompt":[1,2,3,4,5,6,7,4294967295]}"#;
    let request = read_request(Api::Completions, body, BLOCKS).unwrap();
    assert_eq!((request.prompt.exact_tokens, request.prompt.text_bytes), (Some(8), 32));
    assert_eq!(request.prompt.blocks, [0x83ed_5591_6171_95ff, 0xa0c4_2152_ce63_dc97,]);
    let error = read_request(Api::Completions, br#"{"prompt":{}}"#, BLOCKS).unwrap_err().to_string();
    assert!(error.contains("`prompt` at line 1 column 12"), "{error}");
}

#[test]
fn a_body_nested_too_deep_is_refused_within_the_stack() {
    let deep = format!("{{\"messages\":[{{\"content\":{}", "[{\"image_url\":".repeat(50_000));
    assert!(read_request(Api::Chat, deep.as_bytes(), BLOCKS).is_err());
}

#[test]
fn tokens_of_a_text_are_learned_to_the_same_value() {
    let body = r#"{"messages":[{"role":"user","content":"fn f(x: u32) -> u32 {\n    x + 1 // \u4e2d\u6587 twelve\n}"}]}"#;
    let prompt = read_request(Api::Chat, body.as_bytes(), BLOCKS).unwrap().prompt;
    let mut estimator = TokenEstimator::new();
    for tokens in [100, 30, 25, 40] {
        estimator.observe(1, prompt.text_bytes, &prompt.shape, tokens);
    }
    assert_eq!(estimator.bytes_per_token(1).to_bits(), 0x4019_93dd);
    assert_eq!(estimator.estimate(1, &prompt).to_bits(), 0x4200_af2f);
}

#[test]
fn a_stream_is_read_to_its_fixed_summary_wherever_it_is_split() {
    let stream = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\r\n\r\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"\u{4e2d}\"}}]}\r\n\r\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\r\n\r\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\
        \"prompt_tokens_details\":{\"cached_tokens\":8}}}\r\n\r\ndata: [DONE]\r\n\r\n";
    for at in 0..=stream.len() {
        let (head, tail) = stream.as_bytes().split_at(at);
        let mut reader = ResponseReader::new(BodyForm::Sse);
        reader.push(head, 5);
        assert_eq!(reader.push(tail, 5).tokens, 3, "split at {at}");
        let summary = reader.finish(9);
        assert_eq!((summary.first_token_us, summary.last_token_us), (Some(5), Some(5)));
        assert_eq!((summary.output_tokens, summary.tokens_from), (3, TokenSource::Usage));
        let usage = Usage { prompt_tokens: Some(9), completion_tokens: Some(3), cached_tokens: Some(8) };
        assert_eq!(summary.usage, usage);
        assert!(summary.complete && !summary.error);
    }
}

#[test]
fn a_metrics_page_is_read_to_its_fixed_values() {
    let page = "# TYPE vllm:num_requests_running gauge\n\
        vllm:num_requests_running{engine=\"0\",model_name=\"a \\\"}\\\" b\"} 1.2e+01\n\
        vllm:num_requests_waiting{engine=\"0\"} 3 1700000000000\n\
        vllm:kv_cache_usage_perc{engine=\"0\"} 0.026490874687175703\n\
        vllm:prefix_cache_queries_total 8.128902e+06\nvllm:prefix_cache_hits_total 1e15\n\
        vllm:cache_config_info{block_size=\"32\",num_gpu_blocks=\"16384\"} 1.0\n";
    let scrape = read_metrics(page.as_bytes(), None).unwrap();
    assert_eq!(scrape.dialect, Dialect::Vllm);
    assert_eq!((scrape.running_requests, scrape.waiting_requests), (12.0, 3.0));
    assert_eq!(scrape.kv_usage.to_bits(), 0x3cd9_0364);
    assert_eq!((scrape.prefix_query_tokens, scrape.prefix_hit_tokens), (8_128_902.0, 1e15));
    assert_eq!(scrape.kv_capacity_tokens, 524_288.0);
    assert!(scrape.preemptions.is_nan());
}
