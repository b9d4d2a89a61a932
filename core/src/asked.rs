//! What a request's headers ask for: latency targets and a priority.
//!
//! | header | value |
//! | --- | --- |
//! | `x-llm-d-slo-ttft-ms`, `x-slo-ttft-ms` | a time in ms, above 0 and up to an hour, decimal |
//! | `x-llm-d-slo-tpot-ms`, `x-slo-tpot-ms` | likewise |
//! | `x-foretoken-priority` | a whole number; below 0 may be shed |
//! | `x-llm-d-inference-objective`, `x-gateway-inference-objective` | a name under `priority.objectives` |
//!
//! As in llm-d, the first name of a pair counts where both are there. `x-foretoken-priority` counts before an
//! objective. An objective without an entry says nothing, as in the Gateway API's inference extension.
//!
//! Whom to believe is the route's business ([`Trust`]): [`Asked::terms`] applies it.

use std::collections::BTreeMap;

use crate::config::routes::MAX_TARGET_MS;
use crate::config::{RouteSettings, Trust};
use crate::fallback::Refusal;
use crate::slo::{Targets, Terms};

/// Longest value that is read; longer ones are malformed.
const MAX_VALUE_BYTES: usize = 24;

/// Longest name of an objective that is read.
const MAX_OBJECTIVE_BYTES: usize = 256;

/// A header that is read here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Ttft,
    TtftAlias,
    Tpot,
    TpotAlias,
    Priority,
    Objective,
    ObjectiveAlias,
}

/// Every header that is read here.
const NAMES: [(&str, Name); 7] = [
    ("x-llm-d-slo-ttft-ms", Name::Ttft),
    ("x-slo-ttft-ms", Name::TtftAlias),
    ("x-llm-d-slo-tpot-ms", Name::Tpot),
    ("x-slo-tpot-ms", Name::TpotAlias),
    ("x-foretoken-priority", Name::Priority),
    ("x-llm-d-inference-objective", Name::Objective),
    ("x-gateway-inference-objective", Name::ObjectiveAlias),
];

fn known(name: &[u8]) -> Option<(&'static str, Name)> {
    // All begin so, and most headers do not.
    name.strip_prefix(b"x-")?;
    NAMES.iter().find(|(known, _)| known.as_bytes() == name).copied()
}

/// One header's value, whatever number of times it came.
#[derive(Debug, Clone, PartialEq, Default)]
enum Said<T> {
    #[default]
    Nothing,
    Value(T),
    /// Unreadable, or two that differ.
    Nonsense(&'static str),
}

impl<T: PartialEq> Said<T> {
    fn take(&mut self, value: Option<T>, header: &'static str) {
        *self = match (&*self, value) {
            (Self::Nothing, Some(value)) => Self::Value(value),
            (Self::Value(before), Some(value)) if *before == value => Self::Value(value),
            _ => Self::Nonsense(header),
        };
    }

    /// The value, or what could not be read and what that is counted as.
    fn read(self, refusal: Refusal) -> (Option<T>, Option<Unreadable>) {
        match self {
            Self::Nothing => (None, None),
            Self::Value(value) => (Some(value), None),
            Self::Nonsense(header) => (None, Some(Unreadable { header, refusal })),
        }
    }

    /// This, unless nothing was said.
    fn or(self, other: Self) -> Self {
        if self == Self::Nothing { other } else { self }
    }
}

/// What a request's headers ask for.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Asked {
    ttft: [Said<f32>; 2],
    tpot: [Said<f32>; 2],
    priority: Said<i32>,
    objective: [Said<String>; 2],
}

/// A header that could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable {
    /// Its name.
    pub header: &'static str,
    /// What it is counted as.
    pub refusal: Refusal,
}

/// A decimal number of ms. No exponents, signs or names: what is not plainly a time is a mistake.
fn read_ms(value: &[u8]) -> Option<f32> {
    let text = core::str::from_utf8(value).ok()?.trim();
    let plain = !text.is_empty()
        && text.len() <= MAX_VALUE_BYTES
        && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let ms: f32 = plain.then(|| text.parse().ok()).flatten()?;
    (ms.is_finite() && ms > 0.0 && ms <= MAX_TARGET_MS).then_some(ms)
}

fn read_priority(value: &[u8]) -> Option<i32> {
    let text = core::str::from_utf8(value).ok()?.trim();
    if text.len() > MAX_VALUE_BYTES { None } else { text.parse().ok() }
}

fn read_objective(value: &[u8]) -> Option<String> {
    let text = core::str::from_utf8(value).ok()?.trim();
    (text.len() <= MAX_OBJECTIVE_BYTES).then(|| text.to_owned())
}

impl Asked {
    /// Takes a request header and tells whether it is one that asks for anything. `name` is lower-case, as Envoy's
    /// are.
    pub fn take(&mut self, name: &[u8], value: &[u8]) -> bool {
        let Some((header, name)) = known(name) else { return false };
        match name {
            Name::Ttft => self.ttft[0].take(read_ms(value), header),
            Name::TtftAlias => self.ttft[1].take(read_ms(value), header),
            Name::Tpot => self.tpot[0].take(read_ms(value), header),
            Name::TpotAlias => self.tpot[1].take(read_ms(value), header),
            Name::Priority => self.priority.take(read_priority(value), header),
            Name::Objective => self.objective[0].take(read_objective(value), header),
            Name::ObjectiveAlias => self.objective[1].take(read_objective(value), header),
        }
        true
    }

    /// What holds for the request on this route. What could not be read is as if it had not been said, and is
    /// named, the first of it, beside the terms.
    #[must_use]
    pub fn terms(
        self,
        route: &RouteSettings,
        objectives: &BTreeMap<String, i32>,
    ) -> (Terms, Option<Unreadable>) {
        if route.trust == Trust::None {
            return (Terms::of_route(route), None);
        }
        let [canonical, alias] = self.ttft;
        let (ttft_ms, no_ttft) = canonical.or(alias).read(Refusal::MalformedTtftTarget);
        let [canonical, alias] = self.tpot;
        let (tpot_ms, no_tpot) = canonical.or(alias).read(Refusal::MalformedTpotTarget);
        let [canonical, alias] = self.objective;
        let (objective, no_objective) = canonical.or(alias).read(Refusal::MalformedPriority);
        let (own_priority, no_priority) = self.priority.read(Refusal::MalformedPriority);
        let unreadable = no_ttft.or(no_tpot).or(no_objective).or(no_priority);
        let asked_priority = match (own_priority, no_priority) {
            (None, None) => objective.and_then(|name| objectives.get(&name).copied()),
            (own, _) => own,
        };
        let believed = route.trust == Trust::All;
        let priority = asked_priority
            .map_or(route.priority, |asked| if believed { asked } else { asked.min(route.priority) });
        let targets = Targets {
            ttft_ms: ttft_ms.or(route.targets.ttft_ms),
            tpot_ms: tpot_ms.or(route.targets.tpot_ms),
        };
        let mut terms = Terms::new(route, targets, priority);
        if !believed && route.priority < 0 {
            // Who is sheddable by the route cannot talk itself out of it by asking for little.
            let by_route = Terms::of_route(route).shed_by;
            terms.shed_by = Targets {
                ttft_ms: tighter(terms.shed_by.ttft_ms, by_route.ttft_ms),
                tpot_ms: tighter(terms.shed_by.tpot_ms, by_route.tpot_ms),
            };
        }
        (terms, unreadable)
    }
}

fn tighter(one: Option<f32>, other: Option<f32>) -> Option<f32> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use proptest::prelude::*;

    fn route(trust: &str, more: &str) -> (RouteSettings, BTreeMap<String, i32>) {
        let text = format!(
            r#"{{"cluster":"pods","endpoints":{{"admin_cluster":"admin"}},"slo":{{"trust":"{trust}"}},
                "priority":{{"objectives":{{"batch":-5,"vip":9}}}}{more}}}"#
        );
        let config = Config::from_json(text.as_bytes()).unwrap();
        (config.route(Some("r")), config.priority.objectives)
    }

    fn terms_on(
        headers: &[(&str, &str)],
        (route, objectives): &(RouteSettings, BTreeMap<String, i32>),
    ) -> (Terms, Option<Unreadable>) {
        let mut asked = Asked::default();
        for (name, value) in headers {
            asked.take(name.as_bytes(), value.as_bytes());
        }
        asked.terms(route, objectives)
    }

    #[test]
    fn targets_are_read_by_both_names_and_the_canonical_one_counts() {
        let all = route("all", "");
        let targets = |headers| terms_on(headers, &all).0.targets;
        assert_eq!(
            targets(&[("x-slo-ttft-ms", "1500"), ("x-slo-tpot-ms", " 40.5 ")]),
            Targets { ttft_ms: Some(1500.0), tpot_ms: Some(40.5) }
        );
        assert_eq!(
            targets(&[("x-slo-ttft-ms", "nonsense"), ("x-llm-d-slo-ttft-ms", "900")]).ttft_ms,
            Some(900.0)
        );
        assert_eq!(targets(&[("x-slo-ttft", "1500"), ("x-slo-ttft-ms2", "1")]), Targets::default());
    }

    #[test]
    fn what_is_not_plainly_a_time_is_named_and_not_obeyed() {
        let all = route("all", r#","routes":{"r":{"ttft_ms":700}}"#);
        for value in [
            "",
            "fast",
            "-5",
            "0",
            "0.0",
            "1e3",
            "inf",
            "NaN",
            "3600001",
            "1.2.3",
            "1000000000000000000000000",
            "5ms",
        ] {
            let (terms, unreadable) = terms_on(&[("x-slo-ttft-ms", value)], &all);
            assert_eq!(terms.targets.ttft_ms, Some(700.0), "{value}: the route's own holds");
            assert_eq!(
                unreadable,
                Some(Unreadable { header: "x-slo-ttft-ms", refusal: Refusal::MalformedTtftTarget }),
                "{value}"
            );
        }
        let twice = [("x-slo-tpot-ms", "10"), ("x-slo-tpot-ms", "20")];
        assert_eq!(terms_on(&twice, &all).1.unwrap().refusal, Refusal::MalformedTpotTarget);
        let same = [("x-slo-tpot-ms", "10"), ("x-slo-tpot-ms", "10.0")];
        assert_eq!(terms_on(&same, &all).0.targets.tpot_ms, Some(10.0));
        let priority = terms_on(&[("x-foretoken-priority", "high")], &all).1.unwrap();
        assert_eq!((priority.header, priority.refusal), ("x-foretoken-priority", Refusal::MalformedPriority));
    }

    #[test]
    fn a_priority_is_a_number_or_the_name_of_an_objective() {
        let all = route("all", "");
        let priority = |headers| terms_on(headers, &all).0.priority;
        assert_eq!(priority(&[("x-foretoken-priority", "-3")]), -3);
        assert_eq!(priority(&[("x-gateway-inference-objective", "batch")]), -5);
        assert_eq!(
            priority(&[("x-gateway-inference-objective", "batch"), ("x-llm-d-inference-objective", "vip")]),
            9
        );
        assert_eq!(priority(&[("x-llm-d-inference-objective", "vip"), ("x-foretoken-priority", "1")]), 1);
        assert_eq!(priority(&[("x-llm-d-inference-objective", "unheard-of")]), 0);
        assert!(terms_on(&[("x-llm-d-inference-objective", "unheard-of")], &all).1.is_none());
    }

    #[test]
    fn who_speaks_for_itself_lowers_its_priority_and_never_raises_it() {
        let own = route("own", "");
        let priority = |value| terms_on(&[("x-foretoken-priority", value)], &own).0.priority;
        assert_eq!((priority("5"), priority("-2"), priority("0")), (0, -2, 0));
        let none = route("none", r#","routes":{"r":{"priority":-1,"ttft_ms":800}}"#);
        let asked = [("x-foretoken-priority", "5"), ("x-slo-ttft-ms", "nonsense"), ("x-slo-tpot-ms", "9")];
        let (terms, unreadable) = terms_on(&asked, &none);
        assert_eq!((terms.priority, unreadable), (-1, None));
        assert_eq!(terms.targets, Targets { ttft_ms: Some(800.0), tpot_ms: None });
    }

    #[test]
    fn who_is_sheddable_by_its_route_cannot_talk_itself_out_of_it() {
        let more = r#","routes":{"r":{"priority":-1,"shed_ttft_ms":2000}}"#;
        let loose = [("x-slo-ttft-ms", "60000")];
        let (terms, _) = terms_on(&loose, &route("own", more));
        assert_eq!(terms.targets.ttft_ms, Some(60_000.0), "where it goes is its own affair");
        assert_eq!(terms.shed_by.ttft_ms, Some(2000.0));
        assert_eq!(terms_on(&[("x-slo-ttft-ms", "500")], &route("own", more)).0.shed_by.ttft_ms, Some(500.0));
        assert_eq!(terms_on(&loose, &route("all", more)).0.shed_by.ttft_ms, Some(60_000.0));
        // One that lowered its own priority said so of its own free will: it is shed by what it asked for.
        let mine = [("x-slo-ttft-ms", "60000"), ("x-foretoken-priority", "-1")];
        assert_eq!(terms_on(&mine, &route("own", "")).0.shed_by.ttft_ms, Some(60_000.0));
        assert_eq!(terms_on(&mine[1..], &route("own", "")).0.shed_by.ttft_ms, Some(10_000.0));
    }

    #[test]
    fn headers_that_ask_for_nothing_leave_the_routes_terms() {
        for trust in ["none", "own", "all"] {
            let here = route(trust, r#","routes":{"r":{"priority":2,"tpot_ms":30}}"#);
            assert_eq!(
                terms_on(&[("accept", "*/*"), ("x-request-id", "1")], &here),
                (Terms::of_route(&here.0), None)
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_give_times_in_range_or_none(
            values in prop::collection::vec((0..NAMES.len(), prop::collection::vec(any::<u8>(), 0..40)), 0..12),
        ) {
            let mut asked = Asked::default();
            for (at, value) in &values {
                asked.take(NAMES[*at].0.as_bytes(), value);
            }
            for trust in ["none", "own", "all"] {
                let (settings, objectives) = route(trust, "");
                let (terms, unreadable) = asked.clone().terms(&settings, &objectives);
                for ms in [terms.targets.ttft_ms, terms.targets.tpot_ms].into_iter().flatten() {
                    prop_assert!(ms > 0.0 && ms <= MAX_TARGET_MS);
                }
                prop_assert!(unreadable.is_none_or(|one| known(one.header.as_bytes()).is_some()));
            }
        }

        #[test]
        fn a_written_time_is_read_back(ms in 0.001_f32..MAX_TARGET_MS) {
            prop_assert_eq!(read_ms(ms.to_string().as_bytes()), Some(ms));
        }
    }
}
