//! Load reports that responses carry: ORCA (Open Request Cost Aggregation) headers.
//!
//! A response's header says how its pod is loaded now, for free and fresher than any scrape. Engines send it only
//! where the request asks (`endpoint-load-metrics-format`), and vLLM only with answers that are not streamed.
//!
//! Forms, all read here: `endpoint-load-metrics: TEXT named_metrics.a=1, named_metrics.b=2`, the same without the
//! word and with colons (Envoy's older native form), `JSON {"named_metrics":{"a":1}}`, `BIN` and base64, and
//! `endpoint-load-metrics-bin` with the base64 alone, of an `xds.data.orca.v3.OrcaLoadReport`. Sources: Envoy's
//! `source/common/orca/orca_parser.cc`, the xDS repository's `xds/data/orca/v3/orca_load_report.proto`, vLLM's
//! `orca_metrics.py`, Triton's `src/orca_http.cc`.
//!
//! What it is not: a store of every metric that a report may hold. Of those only the engines' own are used.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use prost::Message;
use serde_json::Value;

use super::gather::Gathered;

/// Response header with a report as text, as JSON or, after the word BIN, in binary.
pub const REPORT_HEADER: &str = "endpoint-load-metrics";

/// Response header with a report in binary.
pub const REPORT_HEADER_BINARY: &str = "endpoint-load-metrics-bin";

/// Request header that asks an engine for reports; its value is the form (`TEXT`).
pub const FORMAT_HEADER: &str = "endpoint-load-metrics-format";

/// A longer report is not read. Engines' are some 100 bytes.
const MAX_REPORT_BYTES: usize = 8 << 10;

/// What a response said of its pod's load. NaN is unknown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadReport {
    /// Requests in the engine's queue.
    pub waiting_requests: f32,
    /// Requests running.
    pub running_requests: f32,
    /// Share of the KV cache in use, 0..1.
    pub kv_usage: f32,
}

impl Default for LoadReport {
    fn default() -> Self {
        Self { waiting_requests: f32::NAN, running_requests: f32::NAN, kv_usage: f32::NAN }
    }
}

/// Reads the value of [`REPORT_HEADER`]; `None` when it tells nothing of an engine's load.
#[must_use]
pub fn read_report(value: &[u8]) -> Option<LoadReport> {
    if value.len() > MAX_REPORT_BYTES {
        return None;
    }
    let value = value.trim_ascii();
    let mut metrics = Metrics::default();
    if let Some(base64) = strip_word(value, b"BIN") {
        return read_report_binary(base64);
    } else if let Some(json) = strip_word(value, b"JSON").or_else(|| value.starts_with(b"{").then_some(value))
    {
        metrics.take_json(json)?;
    } else {
        metrics.take_text(strip_word(value, b"TEXT").unwrap_or(value));
    }
    metrics.report()
}

/// Reads the value of [`REPORT_HEADER_BINARY`]; `None` when it tells nothing of an engine's load.
#[must_use]
pub fn read_report_binary(value: &[u8]) -> Option<LoadReport> {
    if value.len() > MAX_REPORT_BYTES {
        return None;
    }
    // gRPC's libraries leave the padding out.
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let bytes = GeneralPurpose::new(&STANDARD, config).decode(value.trim_ascii()).ok()?;
    let report = Report::decode(bytes.as_slice()).ok()?;
    let mut metrics = Metrics::default();
    for entry in &report.named_metrics {
        metrics.take(entry.name.as_bytes(), entry.value);
    }
    metrics.report()
}

/// The value after a word and a space, in any case.
fn strip_word<'a>(value: &'a [u8], word: &[u8]) -> Option<&'a [u8]> {
    let (head, rest) = value.split_at_checked(word.len())?;
    (head.eq_ignore_ascii_case(word) && rest.first().is_some_and(u8::is_ascii_whitespace))
        .then(|| rest.trim_ascii())
}

/// The part of `xds.data.orca.v3.OrcaLoadReport` that is read; everything else is skipped.
#[derive(Clone, PartialEq, Message)]
struct Report {
    /// A map travels as a list of its entries.
    #[prost(message, repeated, tag = "8")]
    named_metrics: Vec<NamedMetric>,
}

#[derive(Clone, PartialEq, Message)]
struct NamedMetric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(double, tag = "2")]
    value: f64,
}

/// What has been read so far. A vLLM with several data-parallel ranks writes a name once a rank.
#[derive(Debug, Default)]
struct Metrics {
    waiting: Gathered,
    running: Gathered,
    usage: Gathered,
}

impl Metrics {
    fn take(&mut self, name: &[u8], value: f64) {
        match name {
            b"num_requests_waiting" => self.waiting.add(value),
            b"num_requests_running" => self.running.add(value),
            // vLLM's name and Triton's.
            b"kv_cache_usage_perc" | b"kv_cache_utilization" => self.usage.raise(value),
            _ => {}
        }
    }

    fn take_text(&mut self, text: &[u8]) {
        for entry in text.split(|byte| *byte == b',') {
            let Some(at) = entry.iter().position(|byte| matches!(byte, b'=' | b':')) else { continue };
            let Some((name, value)) = entry.split_at_checked(at) else { continue };
            let Some(name) = name.trim_ascii().strip_prefix(b"named_metrics.") else { continue };
            let value = value.get(1..).unwrap_or_default().trim_ascii();
            if let Some(value) = core::str::from_utf8(value).ok().and_then(|text| text.parse().ok()) {
                self.take(name, value);
            }
        }
    }

    fn take_json(&mut self, json: &[u8]) -> Option<()> {
        let report: Value = serde_json::from_slice(json).ok()?;
        for (name, value) in report.get("named_metrics")?.as_object()? {
            self.take(name.as_bytes(), value.as_f64().unwrap_or(f64::NAN));
        }
        Some(())
    }

    fn report(&self) -> Option<LoadReport> {
        if self.waiting.is_unknown() && self.running.is_unknown() && self.usage.is_unknown() {
            return None;
        }
        Some(LoadReport {
            waiting_requests: self.waiting.count(),
            running_requests: self.running.count(),
            kv_usage: self.usage.share(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn told(value: &str) -> Option<(f32, f32)> {
        read_report(value.as_bytes()).map(|report| (report.waiting_requests, report.kv_usage))
    }

    /// Fields 1, 4 and 6 of the message besides the named metrics: all to be passed over.
    fn binary(named: &[(&str, f64)]) -> Vec<u8> {
        let mut bytes = vec![9];
        bytes.extend(0.5_f64.to_le_bytes());
        bytes.extend([0x22, 3, 0x0a, 1, b'c']);
        bytes.push(0x31);
        bytes.extend(10.0_f64.to_le_bytes());
        let named_metrics = named
            .iter()
            .map(|(name, value)| NamedMetric { name: (*name).to_owned(), value: *value })
            .collect();
        Report { named_metrics }.encode(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn every_form_of_the_header_tells_the_same() {
        let expected = Some((7.0, 0.25));
        for value in [
            "TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=7.0",
            "text named_metrics.kv_cache_usage_perc=0.25,named_metrics.num_requests_waiting=7",
            "named_metrics.kv_cache_usage_perc=0.25,named_metrics.num_requests_waiting=7",
            "cpu_utilization:0.7,named_metrics.kv_cache_usage_perc:0.25,eps:2,named_metrics.num_requests_waiting:7",
            r#"JSON {"named_metrics": {"kv_cache_usage_perc": 0.25, "num_requests_waiting": 7.0}}"#,
            r#"{"cpu_utilization":0.5,"named_metrics":{"kv_cache_usage_perc":0.25,"num_requests_waiting":7}}"#,
        ] {
            assert_eq!(told(value), expected, "{value}");
        }
        let bytes = binary(&[("kv_cache_usage_perc", 0.25), ("other", 9.0), ("num_requests_waiting", 7.0)]);
        let base64 = base64::engine::general_purpose::STANDARD.encode(&bytes);
        assert_eq!(told(&format!("BIN {base64}")), expected);
        for base64 in [base64.as_str(), base64.trim_end_matches('=')] {
            let report = read_report_binary(base64.as_bytes()).unwrap();
            assert_eq!((report.waiting_requests, report.kv_usage), (7.0, 0.25));
            assert!(report.running_requests.is_nan());
        }
    }

    #[test]
    fn tritons_names_are_known_and_several_ranks_make_one_pod() {
        let triton =
            "TEXT named_metrics.kv_cache_utilization=0.980000, named_metrics.max_token_capacity=1024";
        let report = read_report(triton.as_bytes()).unwrap();
        assert_eq!(report.kv_usage, 0.98);
        assert!(report.waiting_requests.is_nan());
        let ranks = "TEXT named_metrics.kv_cache_usage_perc=0.5, named_metrics.num_requests_waiting=2, \
            named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=3, named_metrics.num_requests_running=4";
        let report = read_report(ranks.as_bytes()).unwrap();
        assert_eq!((report.waiting_requests, report.running_requests, report.kv_usage), (5.0, 4.0, 0.5));
    }

    #[test]
    fn a_report_that_tells_nothing_of_the_engine_is_none() {
        for value in [
            "",
            "TEXT",
            "TEXT ",
            "TEXT cpu_utilization=0.3, mem_utilization=0.8",
            "TEXT named_metrics.kv_cache_usage_perc=full",
            "TEXT named_metrics.kv_cache_usage_perc",
            "JSON",
            "JSON {",
            "JSON []",
            r#"JSON {"named_metrics":[]}"#,
            r#"JSON {"named_metrics":{"kv_cache_usage_perc":"0.5"}}"#,
            "BIN ",
            "BIN !!!",
            "BIN CZqZ",
        ] {
            assert_eq!(read_report(value.as_bytes()), None, "{value}");
        }
        let long = format!("TEXT named_metrics.num_requests_waiting=1{}", ",a=1".repeat(4000));
        assert_eq!(read_report(long.as_bytes()), None);
    }

    proptest! {
        #[test]
        fn any_header_is_read_without_harm_and_in_range(
            word in "(TEXT |JSON |BIN |)", bytes in proptest::collection::vec(any::<u8>(), 0..200), waiting in any::<f64>(), usage in any::<f64>(),
        ) {
            let mut value = word.into_bytes();
            value.extend(&bytes);
            let text = format!("named_metrics.num_requests_waiting={waiting},named_metrics.kv_cache_usage_perc={usage}");
            for report in [read_report(&value), read_report_binary(&bytes), read_report(text.as_bytes())].into_iter().flatten() {
                prop_assert!(report.waiting_requests.is_nan() || report.waiting_requests >= 0.0);
                prop_assert!(report.kv_usage.is_nan() || (0.0..=1.0).contains(&report.kv_usage));
            }
        }

        #[test]
        fn a_binary_report_cut_or_damaged_anywhere_is_read_without_harm(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = binary(&[("kv_cache_usage_perc", 0.25), ("num_requests_waiting", 7.0)]);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let engine = base64::engine::general_purpose::STANDARD;
            let _ = read_report_binary(engine.encode(&bytes).as_bytes());
            let _ = read_report_binary(engine.encode(&bytes[..at]).as_bytes());
        }
    }
}
