//! The bench's traffic: by name, at any rate, from a trace where there is one and from its generator otherwise.

use std::path::Path;
use std::sync::Arc;

use crate::virtual_time::Workload;
use crate::virtual_time::workload::Listed;
use crate::workloads::{SHAPES, Shape, Synthetic, TraceError, TraceOptions, TraceRow, arrivals, read_file};

/// Where requests come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// A generator.
    Synthetic(Shape),
    /// A trace, its lengths divided.
    Trace {
        /// Its rows, in order of arrival.
        rows: Arc<Vec<TraceRow>>,
        /// Divisor of token counts.
        scale: u32,
    },
}

/// Traffic with the pods that it is meant for.
#[derive(Debug, Clone)]
pub struct Traffic {
    /// Name in reports.
    pub name: String,
    /// Where requests come from.
    pub source: Source,
    /// Tokens that a pod's KV cache holds.
    pub kv_tokens: u32,
    /// Token budget of a pod's step.
    pub max_batched_tokens: u32,
    /// Requests for each pod in a cell of the full matrix.
    pub requests_per_pod: usize,
    /// A rate that one pod of the equal pool sustains, about: where the search begins.
    pub pod_rate: f64,
}

/// Traces that are looked for, with the generator that stands in.
const TRACES: [(&str, &str, u32, Shape); 3] = [
    ("mooncake", "mooncake-fast25-conversation.csv.gz", 8, Shape::MooncakeLike),
    ("azure-code", "azure-llm-2023-code.csv.gz", 1, Shape::CodeLike),
    ("azure-conv", "azure-llm-2023-conv.csv.gz", 1, Shape::ChatLike),
];

/// All traffic of the matrix. Without `traces` (a folder), or where a file is not in it, generators stand in and
/// the name ends in `-like`.
///
/// # Errors
/// [`TraceError`] when a trace is there and cannot be read.
pub fn all(traces: Option<&Path>) -> Result<Vec<Traffic>, TraceError> {
    let mut all = vec![synthetic(Shape::Churn), synthetic(Shape::MultiTurn)];
    for (name, file, scale, shape) in TRACES {
        let path = traces.map(|folder| folder.join(file)).filter(|path| path.is_file());
        all.push(match path {
            Some(path) => Traffic {
                name: name.to_owned(),
                source: Source::Trace { rows: Arc::new(read_file(&path)?), scale },
                ..synthetic(shape)
            },
            None => synthetic(shape),
        });
    }
    all.extend([synthetic(Shape::DocumentBurst), synthetic(Shape::SloMix)]);
    Ok(all)
}

/// A generator's traffic, with the pods that it is meant for.
#[must_use]
pub fn synthetic(shape: Shape) -> Traffic {
    let (kv_tokens, requests_per_pod, pod_rate) = match shape {
        Shape::Churn => (400_000, 600, 1.05),
        Shape::MultiTurn => (1_400_000, 1500, 0.17),
        Shape::MooncakeLike => (128_000, 1500, 10.0),
        Shape::CodeLike => (400_000, 1000, 1.9),
        Shape::ChatLike => (400_000, 1200, 5.1),
        Shape::DocumentBurst => (400_000, 1000, 4.5),
        Shape::SloMix => (400_000, 1000, 3.0),
    };
    let trace = TRACES.iter().find(|(.., of)| *of == shape).map(|(name, ..)| format!("{name}-like"));
    let own = || SHAPES.iter().find(|(_, of)| *of == shape).map(|(name, _)| (*name).to_owned());
    Traffic {
        name: trace.or_else(own).unwrap_or_default(),
        source: Source::Synthetic(shape),
        kv_tokens,
        max_batched_tokens: if shape == Shape::MultiTurn { 8192 } else { 2048 },
        requests_per_pod,
        pod_rate,
    }
}

impl Traffic {
    /// `count` requests at `rate` a second.
    #[must_use]
    pub fn requests(&self, rate: f64, count: usize, seed: u64) -> Box<dyn Workload> {
        match &self.source {
            Source::Synthetic(shape) => Box::new(Synthetic::new(*shape, rate, count, seed)),
            Source::Trace { rows, scale } => {
                // Another seed is another stretch of the trace, and another draw within a coarse clock's steps.
                let count = count.min(rows.len());
                let spare = rows.len() - count;
                let from = (seed as usize).wrapping_mul(7_919) % (spare + 1);
                let part = &rows[from..from + count];
                let at_us = |row: Option<&TraceRow>| row.map_or(0, |row| row.arrival_us);
                let span_us = at_us(part.last()).saturating_sub(at_us(part.first()));
                let native = count as f64 / (span_us as f64 / 1e6).max(1e-9);
                let options =
                    TraceOptions { scale: *scale, speed: rate / native, seed, ..TraceOptions::default() };
                Box::new(Listed::new(arrivals(part, &options)))
            }
        }
    }
}
