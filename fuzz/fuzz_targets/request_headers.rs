//! Headers that ask for targets and priorities, a `name: value` a line: no panic, targets that are times, a priority that
//! is no higher than its route allows.

#![no_main]

use foretoken_core::asked::Asked;
use foretoken_core::config::{Config, Trust};
use libfuzzer_sys::fuzz_target;

const CONFIG: &str = r#"{"cluster":"pods","endpoints":{"admin_cluster":"admin"},
    "priority":{"objectives":{"batch":-5,"vip":9}}}"#;

fuzz_target!(|headers: &[u8]| {
    let config = Config::from_json(CONFIG.as_bytes()).expect("the configuration is good");
    let mut asked = Asked::default();
    for line in headers.split(|byte| *byte == b'\n') {
        let at = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (name, value) = line.split_at(at);
        asked.take(name, value.get(1..).unwrap_or_default());
    }
    for trust in [Trust::None, Trust::Own, Trust::All] {
        let mut route = config.route(None);
        route.trust = trust;
        let (terms, unreadable) = asked.clone().terms(&route, &config.priority.objectives);
        for ms in [terms.targets.ttft_ms, terms.targets.tpot_ms].into_iter().flatten() {
            assert!(ms.is_finite() && ms > 0.0);
        }
        assert!(trust == Trust::All || terms.priority <= route.priority);
        assert!(trust != Trust::None || unreadable.is_none());
    }
});
