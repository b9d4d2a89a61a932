//! Time to read a metrics page of the size of vLLM's.
//!
//! `cargo bench -p foretoken-core --bench telemetry`. The same in wasm under V8, as the filter runs it: the
//! example `page_cost`.

mod pages;

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use foretoken_core::telemetry::read_metrics;

fn page(criterion: &mut Criterion) {
    let page = pages::vllm_page();
    let mut group = criterion.benchmark_group("telemetry");
    group.throughput(Throughput::Bytes(page.len() as u64));
    group.bench_function("vllm_page", |bench| {
        bench.iter(|| read_metrics(black_box(page.as_bytes()), None));
    });
    group.finish();
}

criterion_group!(benches, page);
criterion_main!(benches);
