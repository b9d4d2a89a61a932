//! The metrics that the filter has Envoy count: one table of names, kinds, labels and meanings.
//!
//! Envoy shows them as `wasmcustom.<name>` and to Prometheus as `<name>`; all VMs add into the same ones. A
//! label is written into the name (`;reason=no_model`) and taken apart again by `stats_tags` in the bootstrap.
//! Envoy never forgets a metric, so labels have few values and no pod is among them. A metric is made when it
//! is first used: making one takes Envoy some 10 µs, adding to it 0.1 µs.
//!
//! `docs/metrics.md` shows the same table; a test compares them.

use core::cell::RefCell;

use foretoken_core::fallback::{Reason, Refusal, Rung};
use hashbrown::HashMap;

use crate::host::{Host, MetricKind};

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Name, without Envoy's prefix.
    pub name: &'static str,
    /// Kind.
    pub kind: MetricKind,
    /// Name of its label; empty when it has none.
    pub label: &'static str,
    /// What it counts, as the documentation says it.
    pub doc: &'static str,
}

macro_rules! metrics {
    ($($variant:ident $(($label_type:ty))? $kind:ident $name:literal $label:literal $doc:literal;)+) => {
        /// One metric with its label's value.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Metric { $(#[doc = $doc] $variant $(($label_type))?,)+ }

        /// All metrics, in the order of the documentation.
        pub const TABLE: &[Row] = &[
            $(Row { name: $name, kind: MetricKind::$kind, label: $label, doc: $doc },)+
        ];

        impl Metric {
            fn kind(self) -> MetricKind {
                match self { $(metrics!(@pattern $variant $($label_type)?) => MetricKind::$kind,)+ }
            }

            /// The name that Envoy is given, label included.
            #[must_use]
            pub fn name(self) -> String {
                match self { $(metrics!(@bind $variant label $($label_type)?) => metrics!(@name $name $label label $($label_type)?),)+ }
            }
        }
    };
    (@pattern $variant:ident $label_type:ty) => { Self::$variant(_) };
    (@pattern $variant:ident) => { Self::$variant };
    (@bind $variant:ident $value:ident $label_type:ty) => { Self::$variant($value) };
    (@bind $variant:ident $value:ident) => { Self::$variant };
    (@name $name:literal $label:literal $value:ident $label_type:ty) => {
        format!(concat!($name, ";", $label, "={}"), $value.label())
    };
    (@name $name:literal $label:literal $value:ident) => { $name.to_owned() };
}

metrics! {
    Requests Counter "foretoken_requests_total" "" "Requests that reached the filter.";
    Picks(Rung) Counter "foretoken_picks_total" "rung" "Requests for which the filter named the pods, by what decided.";
    Fallback(Reason) Counter "foretoken_fallback_total" "reason" "Requests that no model routed, or that were not routed among the pods that they should be, by reason; see fallbacks.md.";
    Refused(Refusal) Counter "foretoken_refused_total" "reason" "Requests that the filter answered itself, with 429 or 400, by reason; see fallbacks.md.";
    Malformed(Refusal) Counter "foretoken_malformed_total" "reason" "Requests with a target or a priority that could not be read, by reason: refused, or routed without it (slo.malformed).";
    TargetsMet(Target) Counter "foretoken_targets_met_total" "target" "Streamed answers that met their latency target.";
    TargetsMissed(Target) Counter "foretoken_targets_missed_total" "target" "Streamed answers that missed their latency target, and requests with one that failed.";
    Ejections Counter "foretoken_ejections_total" "" "Pods left alone for a while, for failing requests in a row.";
    SamplesSent Counter "foretoken_samples_sent_total" "" "Samples that the trainer has taken.";
    SamplesDropped Counter "foretoken_samples_dropped_total" "" "Samples given up: the buffer was full, or the trainer refused them.";
    ModelsApplied Counter "foretoken_models_applied_total" "" "Models put to use; every VM counts its own.";
    ModelsRefused Counter "foretoken_models_refused_total" "" "Configurations refused for their model.";
    Scrapes Counter "foretoken_scrapes_total" "" "Metrics pages of pods that were read.";
    ScrapeFailures Counter "foretoken_scrape_failures_total" "" "Scrapes that gave no usable page.";
    TelemetryMissing(Series) Counter "foretoken_telemetry_missing_total" "series" "Pods whose metrics page lacks a series that it should have, by series; Envoy's log has pod and fix.";
    LoadReports Counter "foretoken_load_reports_total" "" "Responses that told their pod's load (ORCA).";
    ListingFailures Counter "foretoken_listing_failures_total" "" "Admin listings and name resolutions that gave no usable list of pods; the last one stays in use.";
    ModelListFailures Counter "foretoken_model_list_failures_total" "" "Questions for a pod's list of models that gave none.";
    DecisionUs Histogram "foretoken_decision_us" "" "Microseconds from a request that has been read to its pick: the other workers' news, features, predictions, costs.";
    BodyUs Histogram "foretoken_body_us" "" "Microseconds to take and read a request's body.";
    TtftMs Histogram "foretoken_ttft_ms" "" "Milliseconds from a request's headers to the first event with a token, streamed answers with status 200.";
    TpotMs Histogram "foretoken_tpot_ms" "" "Milliseconds per output token after the first, streamed answers with status 200.";
    TokenEstimateErrorPermille Histogram "foretoken_token_estimate_error_permille" "" "How far the estimate of a prompt's tokens was off, in thousandths of the number that the engine then reported.";
    ModelGeneration(Slot) Gauge "foretoken_model_generation" "worker" "Generation of the model in use, one value per VM: each worker thread and the main thread. 0: no model, or the VM is gone.";
    Pods Gauge "foretoken_pods" "" "Candidate pods known, healthy or not.";
}

/// A VM's seat number, as a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot(pub u8);

/// A latency target, as a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// Time to first token.
    Ttft,
    /// Time per output token.
    Tpot,
}

/// A series of an engine, as a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Series(pub &'static str);

/// A label's value as text.
trait Label {
    fn label(self) -> String;
}

impl Label for Rung {
    fn label(self) -> String {
        self.name().to_owned()
    }
}

impl Label for Reason {
    fn label(self) -> String {
        self.name().to_owned()
    }
}

impl Label for Refusal {
    fn label(self) -> String {
        self.name().to_owned()
    }
}

impl Label for Target {
    fn label(self) -> String {
        match self {
            Self::Ttft => "ttft".to_owned(),
            Self::Tpot => "tpot".to_owned(),
        }
    }
}

impl Label for Series {
    fn label(self) -> String {
        // What a series' own labels are written with would end this one.
        self.0.replace(['{', '='], "_").replace('}', "")
    }
}

impl Label for Slot {
    fn label(self) -> String {
        self.0.to_string()
    }
}

/// Envoy's numbers for the metrics that this VM has used.
#[derive(Debug, Default)]
pub struct Metrics {
    ids: RefCell<HashMap<Metric, u32>>,
}

impl Metrics {
    /// Envoy's number of a metric. `None` when Envoy does not give one: then nothing is counted.
    fn id(&self, host: &dyn Host, metric: Metric) -> Option<u32> {
        let mut ids = self.ids.try_borrow_mut().ok()?;
        if let Some(id) = ids.get(&metric) {
            return Some(*id);
        }
        let id = host.define_metric(metric.kind(), &metric.name()).ok()?;
        ids.insert(metric, id);
        Some(id)
    }

    /// Adds to a counter.
    pub fn add(&self, host: &dyn Host, metric: Metric, amount: usize) {
        let amount = u32::try_from(amount).unwrap_or(u32::MAX);
        if let Some(id) = self.id(host, metric).filter(|_| amount > 0) {
            // A count that is lost has no place to be reported in.
            let _ = host.add_to_metric(id, amount);
        }
    }

    /// Sets a gauge, or enters a value into a histogram.
    pub fn record(&self, host: &dyn Host, metric: Metric, value: u64) {
        if let Some(id) = self.id(host, metric) {
            let _ = host.record_metric(id, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::mock::MockHost;

    #[test]
    fn a_label_is_written_into_the_name() {
        assert_eq!(Metric::Picks(Rung::LeastTokens).name(), "foretoken_picks_total;rung=least_tokens");
        assert_eq!(Metric::Fallback(Reason::NoModel).name(), "foretoken_fallback_total;reason=no_model");
        assert_eq!(Metric::ModelGeneration(Slot(3)).name(), "foretoken_model_generation;worker=3");
        assert_eq!(Metric::Requests.name(), "foretoken_requests_total");
        assert_eq!(
            Metric::TelemetryMissing(Series("a:b{kind=waiting}")).name(),
            "foretoken_telemetry_missing_total;series=a:b_kind_waiting"
        );
    }

    #[test]
    fn a_metric_is_defined_once_and_counts() {
        let host = MockHost::default();
        let metrics = Metrics::default();
        metrics.add(&host, Metric::Requests, 1);
        metrics.add(&host, Metric::Requests, 2);
        metrics.record(&host, Metric::TtftMs, 17);
        assert_eq!(host.metric("foretoken_requests_total"), [3]);
        assert_eq!(host.metric("foretoken_ttft_ms"), [17]);
        assert_eq!(host.count("proxy_define_metric"), 2);
    }

    #[test]
    fn a_host_that_refuses_metrics_harms_nothing() {
        let host = MockHost::default();
        host.fail("proxy_define_metric");
        let metrics = Metrics::default();
        metrics.add(&host, Metric::Requests, 1);
        metrics.record(&host, Metric::Pods, 1);
        assert!(host.metric("foretoken_requests_total").is_empty());
    }

    #[test]
    fn the_documentation_has_the_table() {
        let page = include_str!("../../docs/metrics.md");
        let rows: Vec<Vec<String>> = page
            .lines()
            .filter(|line| line.starts_with("| `foretoken_"))
            .map(|line| {
                line.trim_matches('|').split(" | ").map(|cell| cell.trim().replace('`', "")).collect()
            })
            .collect();
        let expected: Vec<Vec<String>> = TABLE
            .iter()
            .map(|row| {
                [row.name, row.kind.name(), row.label, row.doc]
                    .iter()
                    .map(|cell| (*cell).to_owned())
                    .collect()
            })
            .collect();
        assert_eq!(rows, expected, "docs/metrics.md and filter/src/metrics.rs differ");
    }
}
