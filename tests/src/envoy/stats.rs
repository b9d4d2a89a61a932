//! Envoy's statistics page as figures.
//!
//! Envoy prefixes a wasm filter's metrics with `wasmcustom.`; the filter writes labels into names, as
//! `foretoken_picks_total;rung=model`.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use serde_json::Value;

/// What a wasm filter's metrics are prefixed with.
const WASM: &str = "wasmcustom.";

/// One reading of the statistics.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    values: BTreeMap<String, u64>,
    histograms: BTreeMap<String, Vec<(f64, f64)>>,
}

impl Stats {
    /// Reads `/stats?format=json`.
    ///
    /// # Errors
    /// When it is not that page.
    pub fn from_json(page: &Value) -> Result<Self> {
        let entries = page["stats"].as_array().ok_or_else(|| anyhow!("no statistics in {page}"))?;
        let mut stats = Self::default();
        for entry in entries {
            if let (Some(name), Some(value)) = (entry["name"].as_str(), entry["value"].as_u64()) {
                stats.values.insert(strip(name), value);
            }
            let quantiles: Vec<f64> = entry["histograms"]["supported_quantiles"]
                .as_array()
                .map(|quantiles| quantiles.iter().filter_map(Value::as_f64).collect())
                .unwrap_or_default();
            for histogram in entry["histograms"]["computed_quantiles"].as_array().into_iter().flatten() {
                let name = histogram["name"].as_str().unwrap_or_default();
                let values = histogram["values"].as_array().map(Vec::as_slice).unwrap_or_default();
                // A quantile without observations is null, and left out.
                let known = quantiles
                    .iter()
                    .zip(values)
                    .filter_map(|(q, value)| Some((*q, value["cumulative"].as_f64()?)));
                stats.histograms.insert(strip(name), known.collect());
            }
        }
        Ok(stats)
    }

    /// A counter or gauge; zero when it has not been touched yet, which is when Envoy leaves it out.
    #[must_use]
    pub fn value(&self, name: &str) -> u64 {
        self.values.get(name).copied().unwrap_or(0)
    }

    /// A counter or gauge with one label: `labelled("foretoken_picks_total", "rung", "model")`.
    #[must_use]
    pub fn labelled(&self, name: &str, label: &str, value: &str) -> u64 {
        self.value(&format!("{name};{label}={value}"))
    }

    /// All values of a metric by the value of one label.
    #[must_use]
    pub fn by_label(&self, name: &str, label: &str) -> BTreeMap<String, u64> {
        let prefix = format!("{name};{label}=");
        self.values
            .iter()
            .filter_map(|(key, value)| Some((key.strip_prefix(&prefix)?.to_owned(), *value)))
            .collect()
    }

    /// A histogram's quantile (0.5, 0.99, …) over the process's life, in the metric's unit.
    #[must_use]
    pub fn quantile(&self, name: &str, quantile: f64) -> Option<f64> {
        // Envoy reports percent.
        let wanted = quantile * 100.0;
        self.histograms
            .get(name)?
            .iter()
            .find(|(percent, _)| (percent - wanted).abs() < 1e-6)
            .map(|(_, value)| *value)
    }
}

fn strip(name: &str) -> String {
    name.strip_prefix(WASM).unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn counters_labels_and_quantiles_are_read_from_the_page() {
        let page = json!({"stats": [
            {"name": "wasmcustom.foretoken_picks_total;rung=model", "value": 7},
            {"name": "wasmcustom.foretoken_picks_total;rung=prior", "value": 2},
            {"histograms": {
                "supported_quantiles": [0.0, 50.0, 99.0],
                "computed_quantiles": [{"name": "wasmcustom.foretoken_decision_us", "values": [
                    {"interval": null, "cumulative": 3.0}, {"interval": null, "cumulative": 12.5}, {"interval": null, "cumulative": null},
                ]}],
            }},
        ]});
        let stats = Stats::from_json(&page).unwrap();
        assert_eq!(stats.labelled("foretoken_picks_total", "rung", "model"), 7);
        assert_eq!(stats.by_label("foretoken_picks_total", "rung").len(), 2);
        assert_eq!(stats.quantile("foretoken_decision_us", 0.5), Some(12.5));
        assert_eq!(stats.quantile("foretoken_decision_us", 0.99), None);
        assert_eq!(stats.value("foretoken_requests_total"), 0);
    }
}
