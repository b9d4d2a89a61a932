//! The trainer's own metrics, for Prometheus.
//!
//! One table makes the metrics, their help texts and the rows of `docs/trainer-metrics.md`; a test fails when
//! the page and the table differ.

use prometheus::{
    Encoder, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

/// Kind of a metric, as Prometheus calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Counts by size.
    Histogram,
}

impl Kind {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Name, kind, labels and meaning of every metric.
pub const TABLE: &[(&str, Kind, &[&str], &str)] = &[
    (
        "foretoken_trainer_samples_total",
        Kind::Counter,
        &["result"],
        "Lines received, by what became of them: accepted, quarantined (not believed), duplicate, rejected.",
    ),
    ("foretoken_trainer_rejected_total", Kind::Counter, &["reason"], "Rejected lines by reason."),
    (
        "foretoken_trainer_unclean_samples",
        Kind::Gauge,
        &["reason"],
        "Samples that teach nothing, by reason, those read at the start included.",
    ),
    (
        "foretoken_trainer_throttled_total",
        Kind::Counter,
        &[],
        "Batches refused with 429: too many samples a second, or too many bytes at a time.",
    ),
    ("foretoken_trainer_store_bytes", Kind::Gauge, &[], "Bytes of samples on disk."),
    ("foretoken_trainer_unauthorized_total", Kind::Counter, &[], "Requests without the right token."),
    (
        "foretoken_trainer_window_samples",
        Kind::Gauge,
        &[],
        "Clean samples in memory, from which the next fit learns.",
    ),
    (
        "foretoken_trainer_fits_total",
        Kind::Counter,
        &["result"],
        "Fits by result: published, held, waiting (for the publish interval), refused (by the gate), failed.",
    ),
    (
        "foretoken_trainer_fit_seconds",
        Kind::Histogram,
        &[],
        "Duration of a fit with its parity proof, seconds.",
    ),
    (
        "foretoken_trainer_generation",
        Kind::Gauge,
        &[],
        "Generation that is published; 0 before the first model.",
    ),
    ("foretoken_trainer_model_bytes", Kind::Gauge, &[], "Size of the published ONNX file, bytes."),
    ("foretoken_trainer_held", Kind::Gauge, &[], "1 while nothing is published."),
    (
        "foretoken_trainer_holdout_ape_median",
        Kind::Gauge,
        &["target", "of"],
        "Median absolute percentage error (0.1 is 10 %) on the newest fit's hold-out, of the model and of the prior.",
    ),
    (
        "foretoken_trainer_live_ape_median",
        Kind::Gauge,
        &["target", "rung"],
        "Median absolute percentage error of the predictions that routed the newest 500 clean samples.",
    ),
    (
        "foretoken_trainer_drifted",
        Kind::Gauge,
        &[],
        "1 while the newest samples differ from those that the published model learned from.",
    ),
    (
        "foretoken_trainer_rollbacks_total",
        Kind::Counter,
        &[],
        "Times that the trainer went back to an older version by itself.",
    ),
    ("foretoken_trainer_xds_streams", Kind::Gauge, &[], "Open discovery streams of Envoys."),
    ("foretoken_trainer_xds_acks_total", Kind::Counter, &[], "Publications that an Envoy has accepted."),
    ("foretoken_trainer_xds_nacks_total", Kind::Counter, &[], "Publications that an Envoy has refused."),
    (
        "foretoken_trainer_kubernetes_applies_total",
        Kind::Counter,
        &["result"],
        "Attempts to apply an object in Kubernetes, by result: applied, conflict, throttled, server_error, connection, forbidden, invalid, missing, too_large.",
    ),
];

/// The metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// By result.
    pub samples: IntCounterVec,
    /// By reason.
    pub rejected: IntCounterVec,
    /// By reason.
    pub unclean: IntGaugeVec,
    /// Batches refused.
    pub throttled: IntCounter,
    /// Bytes on disk.
    pub store_bytes: IntGauge,
    /// Wrong tokens.
    pub unauthorized: IntCounter,
    /// Clean samples in memory.
    pub window: IntGauge,
    /// By result.
    pub fits: IntCounterVec,
    /// Seconds.
    pub fit_seconds: Histogram,
    /// Published generation.
    pub generation: IntGauge,
    /// ONNX bytes.
    pub model_bytes: IntGauge,
    /// 1 while held.
    pub held: IntGauge,
    /// By target and predictor.
    pub holdout: GaugeVec,
    /// By target and rung.
    pub live: GaugeVec,
    /// 1 while there is drift.
    pub drifted: IntGauge,
    /// Automatic rollbacks.
    pub rollbacks: IntCounter,
    /// Open streams.
    pub streams: IntGauge,
    /// Accepted publications.
    pub acks: IntCounter,
    /// Refused publications.
    pub nacks: IntCounter,
    /// By result.
    pub kubernetes_applies: IntCounterVec,
}

impl Metrics {
    /// Registers all metrics.
    ///
    /// # Errors
    /// Never, unless the table names one twice or not at all.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let find = |name: &str| {
            let entry = TABLE.iter().find(|(entry, ..)| *entry == name);
            entry.copied().ok_or_else(|| prometheus::Error::Msg(format!("{name} is not in the table")))
        };
        macro_rules! register {
            ($metric:expr) => {{
                let metric = $metric?;
                registry.register(Box::new(metric.clone()))?;
                metric
            }};
        }
        let opts = |name: &str| find(name).map(|(name, _, _, help)| Opts::new(name, help));
        let labels = |name: &str| find(name).map(|(_, _, labels, _)| labels);
        macro_rules! plain {
            ($kind:ident, $name:literal) => {
                register!($kind::with_opts(opts($name)?))
            };
        }
        macro_rules! labelled {
            ($kind:ident, $name:literal) => {
                register!($kind::new(opts($name)?, labels($name)?))
            };
        }
        let (name, _, _, help) = find("foretoken_trainer_fit_seconds")?;
        let buckets = vec![0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
        Ok(Self {
            samples: labelled!(IntCounterVec, "foretoken_trainer_samples_total"),
            rejected: labelled!(IntCounterVec, "foretoken_trainer_rejected_total"),
            unclean: labelled!(IntGaugeVec, "foretoken_trainer_unclean_samples"),
            throttled: plain!(IntCounter, "foretoken_trainer_throttled_total"),
            store_bytes: plain!(IntGauge, "foretoken_trainer_store_bytes"),
            unauthorized: plain!(IntCounter, "foretoken_trainer_unauthorized_total"),
            window: plain!(IntGauge, "foretoken_trainer_window_samples"),
            fits: labelled!(IntCounterVec, "foretoken_trainer_fits_total"),
            fit_seconds: register!(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))),
            generation: plain!(IntGauge, "foretoken_trainer_generation"),
            model_bytes: plain!(IntGauge, "foretoken_trainer_model_bytes"),
            held: plain!(IntGauge, "foretoken_trainer_held"),
            holdout: labelled!(GaugeVec, "foretoken_trainer_holdout_ape_median"),
            live: labelled!(GaugeVec, "foretoken_trainer_live_ape_median"),
            drifted: plain!(IntGauge, "foretoken_trainer_drifted"),
            rollbacks: plain!(IntCounter, "foretoken_trainer_rollbacks_total"),
            streams: plain!(IntGauge, "foretoken_trainer_xds_streams"),
            acks: plain!(IntCounter, "foretoken_trainer_xds_acks_total"),
            nacks: plain!(IntCounter, "foretoken_trainer_xds_nacks_total"),
            kubernetes_applies: labelled!(IntCounterVec, "foretoken_trainer_kubernetes_applies_total"),
            registry,
        })
    }

    /// The page for Prometheus.
    #[must_use]
    pub fn page(&self) -> String {
        let mut page = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut page) {
            tracing::error!(%error, "cannot write the metrics page");
        }
        String::from_utf8_lossy(&page).into_owned()
    }

    /// Sets a gauge to a value, or removes it when there is none: a stale number is worse than none.
    pub fn set(gauges: &GaugeVec, labels: &[&str], value: Option<f64>) {
        match value {
            Some(value) => gauges.with_label_values(labels).set(value),
            // Not there is what was wanted.
            None => drop(gauges.remove_label_values(labels)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_of_the_table_is_registered_and_no_other() {
        let metrics = Metrics::new().unwrap();
        // Vectors show only with a value.
        metrics.samples.with_label_values(&["accepted"]).inc();
        metrics.rejected.with_label_values(&["schema"]).inc();
        metrics.unclean.with_label_values(&["retried"]).set(1);
        metrics.fits.with_label_values(&["published"]).inc();
        metrics.kubernetes_applies.with_label_values(&["applied"]).inc();
        metrics.holdout.with_label_values(&["ttft", "model"]).set(0.1);
        metrics.live.with_label_values(&["ttft", "model"]).set(0.1);
        let mut registered: Vec<String> =
            metrics.registry.gather().iter().map(|family| family.name().to_owned()).collect();
        let mut table: Vec<String> = TABLE.iter().map(|(name, ..)| (*name).to_owned()).collect();
        registered.sort();
        table.sort();
        assert_eq!(registered, table);
        assert!(metrics.page().contains("# TYPE foretoken_trainer_fit_seconds histogram"));
    }

    #[test]
    fn a_value_that_is_gone_is_removed_from_the_page() {
        let metrics = Metrics::new().unwrap();
        Metrics::set(&metrics.live, &["ttft", "model"], Some(0.25));
        assert!(metrics.page().contains("rung=\"model\""));
        Metrics::set(&metrics.live, &["ttft", "model"], None);
        assert!(!metrics.page().contains("rung=\"model\""));
    }

    #[test]
    fn the_page_in_docs_has_exactly_these_rows() {
        let expected: String = TABLE
            .iter()
            .map(|(name, kind, labels, help)| {
                let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
                format!("| `{name}` | {} | {} | {help} |\n", kind.name(), labels.join(", "))
            })
            .collect();
        let docs = include_str!("../../docs/trainer-metrics.md");
        let rows: String =
            docs.lines().filter(|line| line.starts_with("| `")).map(|line| format!("{line}\n")).collect();
        assert_eq!(rows, expected, "write these rows into docs/trainer-metrics.md:\n{expected}");
    }
}
