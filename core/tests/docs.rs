//! The documentation's tables against the code: a row for every field and reason, with the right default.

#![cfg(not(target_family = "wasm"))]

use std::collections::BTreeMap;

use foretoken_core::config::{Config, ModelConfig, RouteConfig};
use foretoken_core::fallback::{Reason, Refusal};
use foretoken_core::request::Api;
use foretoken_core::telemetry::Dialect;
use serde_json::Value;

/// Cells of the rows of a page's first table.
fn rows(page: &str) -> Vec<Vec<String>> {
    page.lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect())
        .collect()
}

/// Every value of a JSON object by its path, dots between the levels.
fn leaves(value: &Value, path: &str, out: &mut BTreeMap<String, Value>) {
    match value {
        // A table without entries is a value like any other.
        Value::Object(fields) if !fields.is_empty() => {
            for (name, field) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                leaves(field, &path, out);
            }
        }
        leaf => {
            out.insert(path.to_owned(), leaf.clone());
        }
    }
}

fn fields(config: &Config) -> BTreeMap<String, Value> {
    let mut out = BTreeMap::new();
    leaves(&serde_json::to_value(config).unwrap(), "", &mut out);
    out
}

#[test]
fn every_setting_is_documented_with_its_default() {
    let smallest = br#"{"cluster":"pods","endpoints":{"admin_cluster":"admin"}}"#;
    let mut defaults = Config::from_json(smallest).unwrap();
    defaults.endpoints.admin_cluster = String::new();
    let mut all = defaults.clone();
    all.endpoints.dns = Some("pods:8000".to_owned());
    all.telemetry.dialect = Some(Dialect::Vllm);
    all.telemetry.cluster = Some("scrape".to_owned());
    all.telemetry.port = Some(8002);
    all.model = Some(ModelConfig { generation: 1, onnx_deflate_base64: String::new() });

    let defaults = fields(&defaults);
    let expected: BTreeMap<String, String> = fields(&all)
        .into_keys()
        .map(|path| {
            let default = match (path.as_str(), defaults.get(&path)) {
                ("cluster", _) => "required".to_owned(),
                (_, None) => "none".to_owned(),
                // 0.01 is stored as the nearest 32-bit float.
                (_, Some(Value::Number(number))) if number.is_f64() => {
                    format!("`{:?}`", number.as_f64().unwrap() as f32)
                }
                (_, Some(value)) => format!("`{value}`"),
            };
            (path, default)
        })
        .collect();
    let table = rows(include_str!("../../docs/configuration.md"));
    let documented: BTreeMap<String, String> =
        table.iter().map(|cells| (cells[0].trim_matches('`').to_owned(), cells[1].clone())).collect();
    assert_eq!(documented, expected, "docs/configuration.md (left) and core/src/config.rs differ");
    assert_eq!(table.len(), documented.len(), "a field is documented twice");
    assert!(table.iter().all(|cells| cells.len() == 4 && !cells[2].is_empty() && !cells[3].is_empty()));
}

#[test]
fn every_documented_range_is_the_one_that_is_checked() {
    let text = |field: &str, value: &str| {
        let (section, name) = field.split_once('.').unwrap();
        let endpoints = if section == "endpoints" { "" } else { r#""endpoints":{"admin_cluster":"admin"},"# };
        let extra = if section == "endpoints" { r#""admin_cluster":"admin","# } else { "" };
        format!(r#"{{"cluster":"pods",{endpoints}"{section}":{{{extra}"{name}":{value}}}}}"#)
    };
    let mut checked = 0;
    for cells in rows(include_str!("../../docs/configuration.md")) {
        let field = cells[0].trim_matches('`');
        let Some((low, high)) = cells[2].split_once(" to ") else { continue };
        for value in [low, high] {
            Config::from_json(text(field, value).as_bytes())
                .unwrap_or_else(|error| panic!("{field} = {value}: {error}"));
        }
        let (low, high): (f64, f64) = (low.parse().unwrap(), high.parse().unwrap());
        let step = if high < 1.0 { 0.01 } else { 1.0 };
        for value in [low - step, high + step] {
            assert!(
                Config::from_json(text(field, &value.to_string()).as_bytes()).is_err(),
                "{field} = {value}"
            );
        }
        checked += 1;
    }
    assert!(checked >= 14, "only {checked} ranges were found in the table");
}

#[test]
fn every_fallback_is_documented_in_order() {
    let table = rows(include_str!("../../docs/fallbacks.md"));
    let documented: Vec<&str> = table.iter().map(|cells| cells[0].trim_matches('`')).collect();
    let refusals = Refusal::ALL.iter().map(|refusal| refusal.name());
    let names: Vec<&str> = Reason::ALL.iter().map(|reason| reason.name()).chain(refusals).collect();
    assert_eq!(documented, names, "docs/fallbacks.md (left) and core/src/fallback.rs differ");
    for (reason, cells) in Reason::ALL.iter().zip(&table) {
        let expected = match reason {
            Reason::NoModel | Reason::ModelOutput => "prior",
            Reason::PriorOutput => "fewest tokens",
            Reason::NoneHealthy | Reason::ModelNotServed => "all pods",
            _ => "Envoy",
        };
        assert_eq!((cells.len(), cells[1].as_str()), (4, expected), "{}", reason.name());
    }
    for (refusal, cells) in Refusal::ALL.iter().zip(&table[Reason::ALL.len()..]) {
        let expected = refusal.status().to_string();
        assert_eq!((cells.len(), &cells[1]), (4, &expected), "{}", refusal.name());
    }
}

#[test]
fn every_setting_of_a_route_is_documented() {
    let text = r#"{"enabled":true,"body":"read","ttft_ms":1,"tpot_ms":1,"quantile":"p50","policy":"pack",
        "trust":"own","priority":1,"shed_ttft_ms":1}"#;
    let route: RouteConfig = serde_json::from_str(text).unwrap();
    let Value::Object(fields) = serde_json::to_value(&route).unwrap() else { panic!("no object") };
    let table = rows(include_str!("../../docs/targets.md"));
    let mut documented: Vec<String> = table.iter().map(|cells| cells[0].replace('`', "")).collect();
    documented.sort();
    let mut expected: Vec<String> = fields.into_iter().map(|(name, _)| name).collect();
    expected.sort();
    assert_eq!(documented, expected, "docs/targets.md (left) and core/src/config/routes.rs differ");
    assert!(table.iter().all(|cells| cells.len() == 3 && !cells[1].is_empty()));
}

#[test]
fn every_api_is_documented_by_its_path() {
    let paths: Vec<String> =
        rows(include_str!("../../docs/apis.md")).iter().map(|row| row[0].replace('`', "")).collect();
    assert_eq!(paths, Api::ALL.map(Api::path));
    let fallbacks = rows(include_str!("../../docs/fallbacks.md"));
    let unknown = fallbacks.iter().find(|row| row[0] == "`unknown_path`").expect("its row");
    for api in Api::ALL {
        assert!(unknown[2].contains(&format!("`{}`", api.path())), "{}", api.path());
    }
}
