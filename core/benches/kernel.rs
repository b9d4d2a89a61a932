//! Time of one prediction batch: rows of candidates through four outputs of trees, as every request does.
//!
//! `cargo bench -p foretoken-core --bench kernel`; with `--features tract` also the same through tract.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use foretoken_core::features::{COUNT, Row, SCHEMA_ID};
use foretoken_core::model::Model;
use foretoken_core::model::contract::{self, Output};
use foretoken_core::model::ensemble::{Ensemble, Node};
use foretoken_core::model::onnx::write;
use rand::{Rng, SeedableRng, rngs::StdRng};

fn ensemble(random: &mut StdRng, trees: usize, depth: u32) -> Ensemble {
    let mut ensemble = Ensemble::new(COUNT);
    let inner = (1u32 << depth) - 1;
    for _ in 0..trees {
        let nodes: Vec<Node> = (0..2 * inner + 1)
            .map(|index| {
                if index < inner {
                    Node::Branch {
                        feature: random.random_range(0..COUNT as u32),
                        threshold: random.random(),
                        yes: 2 * index + 1,
                        no: 2 * index + 2,
                        missing_yes: random.random(),
                    }
                } else {
                    Node::Leaf { value: random.random() }
                }
            })
            .collect();
        ensemble.push(&nodes).expect("a perfect tree is a tree");
    }
    ensemble
}

fn model(random: &mut StdRng, trees: usize, depth: u32) -> Vec<u8> {
    let metadata = [
        (contract::KEY_SCHEMA, SCHEMA_ID.to_owned()),
        (contract::KEY_FEATURES, contract::feature_names()),
        (contract::KEY_MODEL_ID, "bench".to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value));
    let ensembles: Vec<_> =
        Output::ALL.into_iter().take(4).map(|o| (o, ensemble(random, trees, depth))).collect();
    let outputs: Vec<_> = ensembles.iter().map(|(output, trees)| (*output, trees)).collect();
    write::write(&metadata, &outputs)
}

fn bench(criterion: &mut Criterion) {
    let mut random = StdRng::seed_from_u64(1);
    let bytes = model(&mut random, 100, 6);
    let rows: Vec<Row> = (0..256)
        .map(|_| {
            Row(std::array::from_fn(|_| if random.random_ratio(1, 12) { f32::NAN } else { random.random() }))
        })
        .collect();
    #[allow(unused_mut)]
    let mut models = vec![("lean", Model::from_onnx_lean(&bytes).expect("a good model"))];
    #[cfg(feature = "tract")]
    models.push(("tract", Model::from_onnx_tract(&bytes).expect("a good model")));
    let mut out = Vec::new();
    for (name, model) in &models {
        let mut group = criterion.benchmark_group(format!("{name}, 4 outputs x 100 trees x depth 6"));
        for n in [1usize, 2, 3, 4, 5, 8, 32, 256] {
            group.throughput(Throughput::Elements(n as u64));
            group.bench_with_input(BenchmarkId::from_parameter(n), &rows[..n], |bencher, rows| {
                bencher.iter(|| model.predict(std::hint::black_box(rows), &mut out));
            });
        }
        group.finish();
    }
    criterion.bench_function("read 4 outputs x 100 trees x depth 6", |bencher| {
        bencher.iter(|| Model::from_onnx_lean(std::hint::black_box(&bytes)));
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
