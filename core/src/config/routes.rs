//! Settings of single routes, and the settings that hold for one request.
//!
//! proxy-wasm filters have no `typed_per_filter_config`, so what differs by route stands in the filter's own
//! configuration, under the route's name: checked with the rest when it is read, not when a request meets it. A
//! route is named by its `name` or by the text under `route` in its metadata `foretoken` (for controllers that
//! make up names); a key that ends in `*` stands for all names that begin so, the longest such key for each.

use serde::{Deserialize, Serialize};

use super::{BodyMode, Config, ConfigError, SloPolicy, SloQuantile, Trust};
use crate::slo::Targets;

/// Routes with settings of their own.
pub const MAX_ROUTES: usize = 256;

/// Longest name of a route.
pub const MAX_ROUTE_NAME_BYTES: usize = 256;

/// Longest target: an hour.
pub const MAX_TARGET_MS: f32 = 3_600_000.0;

/// What one route does otherwise. What is not set is as everywhere.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouteConfig {
    /// Whether the filter picks pods; else Envoy's own policy does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Whether bodies are read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<BodyMode>,
    /// Target of requests that bring none: TTFT in ms, 0 for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<f32>,
    /// Target of requests that bring none: TPOT in ms, 0 for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpot_ms: Option<f32>,
    /// Which prediction must meet a target for a request to be in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantile: Option<SloQuantile>,
    /// What counts beside the chance of a miss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<SloPolicy>,
    /// Whose targets and priorities in headers are obeyed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust: Option<Trust>,
    /// Priority of requests that bring none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// `shed.ttft_ms` of this route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shed_ttft_ms: Option<f32>,
}

/// The settings that hold on a route.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouteSettings {
    /// Whether the filter picks pods.
    pub enabled: bool,
    /// Whether bodies are read.
    pub body: BodyMode,
    /// Targets of requests that bring none.
    pub targets: Targets,
    /// Which prediction must meet a target for a request to be in time.
    pub quantile: SloQuantile,
    /// What counts beside the chance of a miss.
    pub policy: SloPolicy,
    /// Price of a miss, ms.
    pub miss_ms: f32,
    /// Whose targets and priorities in headers are obeyed.
    pub trust: Trust,
    /// Priority of requests that bring none.
    pub priority: i32,
    /// What a sheddable request without a TTFT target is shed by, in ms.
    pub shed_ttft_ms: f32,
}

impl Config {
    /// The settings of a route, by its name; of no route in particular by `None`.
    #[must_use]
    pub fn route(&self, name: Option<&str>) -> RouteSettings {
        let own = name.and_then(|name| self.route_named(name));
        let slo = &self.slo;
        RouteSettings {
            enabled: own.and_then(|own| own.enabled).unwrap_or(true),
            body: own.and_then(|own| own.body).unwrap_or(self.request.body),
            targets: Targets::new(
                own.and_then(|own| own.ttft_ms).unwrap_or(slo.ttft_ms),
                own.and_then(|own| own.tpot_ms).unwrap_or(slo.tpot_ms),
            ),
            quantile: own.and_then(|own| own.quantile).unwrap_or(slo.quantile),
            policy: own.and_then(|own| own.policy).unwrap_or(slo.policy),
            miss_ms: slo.miss_ms,
            trust: own.and_then(|own| own.trust).unwrap_or(slo.trust),
            priority: own.and_then(|own| own.priority).unwrap_or(self.priority.default),
            shed_ttft_ms: own.and_then(|own| own.shed_ttft_ms).unwrap_or(self.shed.ttft_ms),
        }
    }

    fn route_named(&self, name: &str) -> Option<&RouteConfig> {
        self.routes.get(name).or_else(|| {
            let fits = |key: &str| key.strip_suffix('*').is_some_and(|start| name.starts_with(start));
            let fitting = self.routes.iter().filter(|(key, _)| fits(key));
            fitting.max_by_key(|(key, _)| key.len()).map(|(_, own)| own)
        })
    }

    pub(super) fn check_slo(&self) -> Result<(), ConfigError> {
        let fail = |field, value: String, fix| Err(ConfigError::Value { field, value, fix });
        let target = "use a time in ms from 0 (no target) to 3600000 (an hour)";
        let bound = "use a time in ms from 1 to 3600000 (an hour)";
        for (field, value, low, high, fix) in [
            ("slo.ttft_ms", self.slo.ttft_ms, 0.0, MAX_TARGET_MS, target),
            ("slo.tpot_ms", self.slo.tpot_ms, 0.0, MAX_TARGET_MS, target),
            (
                "slo.miss_ms",
                self.slo.miss_ms,
                0.0,
                MAX_TARGET_MS,
                "use a time in ms from 0 (targets count for nothing) to 3600000",
            ),
            ("shed.ttft_ms", self.shed.ttft_ms, 1.0, MAX_TARGET_MS, bound),
            ("priority.weight", self.priority.weight, 1.0, 100.0, "use 1 (all alike) to 100"),
        ] {
            if !(low..=high).contains(&value) {
                return fail(field, value.to_string(), fix);
            }
        }
        if !(1..=3600).contains(&self.shed.max_retry_after_s) {
            return fail("shed.max_retry_after_s", self.shed.max_retry_after_s.to_string(), "use 1 to 3600");
        }
        let objectives = &self.priority.objectives;
        if let Some(name) = objectives.keys().find(|name| name.is_empty() || name.len() > 256) {
            return fail("priority.objectives", format!("{name:?}"), "name each in 1 to 256 bytes");
        }
        if objectives.len() > 1024 || self.routes.len() > MAX_ROUTES {
            let (field, count) = if objectives.len() > 1024 {
                ("priority.objectives", objectives.len())
            } else {
                ("routes", self.routes.len())
            };
            return fail(field, format!("a table of {count}"), "name at most 1024 objectives and 256 routes");
        }
        for (name, route) in &self.routes {
            let start = name.strip_suffix('*').unwrap_or(name);
            if name.is_empty() || name.len() > MAX_ROUTE_NAME_BYTES || start.contains('*') {
                return fail(
                    "routes",
                    format!("named {name:?}"),
                    "name a route of Envoy in 1 to 256 bytes, or all that begin alike by a name that ends in *",
                );
            }
            for (field, value, low, fix) in [
                ("routes.*.ttft_ms", route.ttft_ms, 0.0, target),
                ("routes.*.tpot_ms", route.tpot_ms, 0.0, target),
                ("routes.*.shed_ttft_ms", route.shed_ttft_ms, 1.0, bound),
            ] {
                if let Some(value) = value.filter(|value| !(low..=MAX_TARGET_MS).contains(value)) {
                    return fail(field, format!("{value} for route {name:?}"), fix);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(more: &str) -> Result<Config, ConfigError> {
        let text = format!(r#"{{"cluster":"pods","endpoints":{{"admin_cluster":"admin"}},{more}}}"#);
        Config::from_json(text.as_bytes())
    }

    #[test]
    fn a_route_keeps_what_it_does_not_set() {
        let config = read(
            r#""slo":{"ttft_ms":2000,"policy":"spread"},"priority":{"default":1},
               "routes":{"batch":{"priority":-1,"ttft_ms":0,"tpot_ms":400}}"#,
        )
        .unwrap();
        let everywhere = config.route(None);
        assert_eq!(everywhere.targets, Targets { ttft_ms: Some(2000.0), tpot_ms: None });
        assert_eq!((everywhere.priority, everywhere.policy), (1, SloPolicy::Spread));
        assert_eq!(config.route(Some("chat")), everywhere);
        let batch = config.route(Some("batch"));
        assert_eq!(batch.targets, Targets { ttft_ms: None, tpot_ms: Some(400.0) });
        assert_eq!((batch.priority, batch.policy, batch.enabled), (-1, SloPolicy::Spread, true));
    }

    #[test]
    fn the_whole_name_counts_before_its_beginnings_and_the_longest_of_those_first() {
        let config = read(
            r#""routes":{"*":{"priority":1},"team/*":{"priority":2},"team/a/*":{"priority":3},"team/a/x":{"priority":4}}"#,
        )
        .unwrap();
        let priority = |name| config.route(Some(name)).priority;
        assert_eq!(["other", "team/b", "team/a/y", "team/a/x", "team/a/xy"].map(priority), [1, 2, 3, 4, 3]);
        assert_eq!(config.route(None).priority, 0, "a route without a name has no settings of its own");
    }

    #[test]
    fn what_cannot_work_is_refused_by_field_with_the_fix() {
        for (more, field) in [
            (r#""slo":{"ttft_ms":-1}"#, "slo.ttft_ms"),
            (r#""slo":{"tpot_ms":1e9}"#, "slo.tpot_ms"),
            (r#""shed":{"ttft_ms":0}"#, "shed.ttft_ms"),
            (r#""shed":{"max_retry_after_s":0}"#, "shed.max_retry_after_s"),
            (r#""priority":{"weight":0.5}"#, "priority.weight"),
            (r#""priority":{"objectives":{"":1}}"#, "priority.objectives"),
            (r#""routes":{"":{}}"#, "routes"),
            (r#""routes":{"a*b":{}}"#, "a*b"),
            (r#""routes":{"a":{"tpot_ms":-3}}"#, "routes.*.tpot_ms"),
            (r#""routes":{"a":{"shed_ttft_ms":0.5}}"#, "\"a\""),
            (r#""routes":{"a":{"ttft":1}}"#, "ttft"),
            (r#""slo":{"policy":"fastest"}"#, "pack"),
        ] {
            let error = read(more).unwrap_err().to_string();
            assert!(error.contains(field), "{more}: {error}");
        }
        let many = (0..300).map(|i| format!(r#""r{i}":{{}}"#)).collect::<Vec<_>>().join(",");
        let error = read(&format!(r#""routes":{{{many}}}"#)).unwrap_err().to_string();
        assert!(error.contains("`routes`") && error.contains("256"), "{error}");
    }

    #[test]
    fn nothing_is_set_unless_it_is_configured() {
        let settings = read(r#""slo":{}"#).unwrap().route(Some("any"));
        assert_eq!((settings.targets, settings.priority), (Targets::default(), 0));
        assert_eq!((settings.enabled, settings.body), (true, BodyMode::Read));
    }
}
