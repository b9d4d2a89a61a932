//! `envoy/local/envoy.yaml` as data, with what a test must change changed by name.
//!
//! A setter fails when the file no longer has what it sets, so the file and the tests cannot drift apart.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};

use crate::paths;

/// A route to put before the one that the file has.
#[derive(Debug, Clone, Default)]
pub struct RouteSpec {
    /// How its paths begin, with a slash at both ends.
    pub prefix: String,
    /// Its name.
    pub name: Option<String>,
    /// Its metadata under `foretoken`.
    pub metadata: Option<Value>,
}

/// A bootstrap configuration. Envoy reads JSON as well as YAML; comments are for people.
#[derive(Debug, Clone)]
pub struct Bootstrap(Value);

impl Bootstrap {
    /// The file of the repository.
    ///
    /// # Errors
    /// When it cannot be read as YAML.
    pub fn local() -> Result<Self> {
        let path = paths::root().join("envoy/local/envoy.yaml");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let value: Value = serde_saphyr::from_str(&text).with_context(|| path.display().to_string())?;
        Ok(Self(value))
    }

    /// The text that Envoy is started with.
    ///
    /// # Errors
    /// Never for a value read from a file.
    pub fn to_json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(&self.0)?)
    }

    /// Sets the id by which the trainer tells Envoys apart.
    ///
    /// # Errors
    /// When the file has no node.
    pub fn set_node_id(&mut self, id: &str) -> Result<()> {
        *self.at("/node/id")? = json!(id);
        Ok(())
    }

    /// Sets the admin interface's address.
    ///
    /// # Errors
    /// When the file has none.
    pub fn set_admin(&mut self, address: SocketAddr) -> Result<()> {
        *self.at("/admin/address/socket_address")? = socket_address(address);
        Ok(())
    }

    /// Sets a listener's address; port 0 takes a free one.
    ///
    /// # Errors
    /// When there is no such listener.
    pub fn set_listener(&mut self, name: &str, address: SocketAddr) -> Result<()> {
        self.named("listeners", name)?["address"]["socket_address"] = socket_address(address);
        Ok(())
    }

    /// Sets a cluster's endpoints.
    ///
    /// # Errors
    /// When there is no such cluster.
    pub fn set_cluster(&mut self, name: &str, addresses: &[SocketAddr]) -> Result<()> {
        self.named("clusters", name)?["load_assignment"]["endpoints"] = lb_endpoints(addresses);
        Ok(())
    }

    /// Has a cluster's endpoints come from a watched file.
    ///
    /// # Errors
    /// When there is no such cluster.
    pub fn set_endpoint_discovery(&mut self, cluster: &str, path: &Path) -> Result<()> {
        let cluster = self.named("clusters", cluster)?;
        cluster["type"] = json!("EDS");
        cluster["eds_cluster_config"] = json!({
            "eds_config": {"resource_api_version": "V3", "path_config_source": {"path": path}},
        });
        if let Some(fields) = cluster.as_object_mut() {
            fields.remove("load_assignment");
        }
        Ok(())
    }

    /// Has a cluster's endpoints be the addresses of a name, asked of this DNS server ten times a second.
    ///
    /// # Errors
    /// When there is no such cluster.
    pub fn set_dns(&mut self, cluster: &str, name: &str, port: u16, server: SocketAddr) -> Result<()> {
        let cluster = self.named("clusters", cluster)?;
        cluster["type"] = json!("STRICT_DNS");
        cluster["dns_lookup_family"] = json!("V4_ONLY");
        cluster["dns_refresh_rate"] = json!("0.1s");
        cluster["typed_dns_resolver_config"] = json!({
            "name": "envoy.network.dns_resolver.cares",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig",
                "resolvers": [{"socket_address": socket_address(server)}],
                "dns_resolver_options": {"no_default_search_domain": true},
            },
        });
        let address = json!({"socket_address": {"address": name, "port_value": port}});
        cluster["load_assignment"]["endpoints"] =
            json!([{"lb_endpoints": [{"endpoint": {"address": address}}]}]);
        Ok(())
    }

    /// Has a cluster open a connection for each request.
    ///
    /// # Errors
    /// When there is no such cluster, or it has no HTTP options.
    pub fn set_one_request_per_connection(&mut self, cluster: &str) -> Result<()> {
        const OPTIONS: &str = "/typed_extension_protocol_options/envoy.extensions.upstreams.http.v3.HttpProtocolOptions/common_http_protocol_options";
        let options = self.named("clusters", cluster)?.pointer_mut(OPTIONS);
        options.ok_or_else(|| anyhow!("envoy.yaml: cluster {cluster} has no HTTP options"))?["max_requests_per_connection"] =
            json!(1);
        Ok(())
    }

    /// Sets the wasm module that the default configuration loads.
    ///
    /// # Errors
    /// When the file's filter chain has another shape.
    pub fn set_module(&mut self, path: &Path) -> Result<()> {
        *self.plugin("/vm_config/code/local/filename")? = json!(path);
        Ok(())
    }

    /// Sets the filter's settings in the default configuration.
    ///
    /// # Errors
    /// When the file's filter chain has another shape.
    pub fn set_filter_config(&mut self, config: &Value) -> Result<()> {
        *self.plugin("/configuration/value")? = json!(config.to_string());
        Ok(())
    }

    /// The filter's settings in the default configuration, as text.
    ///
    /// # Errors
    /// When the file's filter chain has another shape.
    pub fn filter_config(&mut self) -> Result<String> {
        let value = self.plugin("/configuration/value")?;
        value
            .as_str()
            .map(ToOwned::to_owned)
            .ok_or_else(|| anyhow!("the filter's configuration is no text: {value}"))
    }

    /// Has the filter's configuration come from a watched file in place of the trainer.
    ///
    /// # Errors
    /// When the file's filter chain has another shape.
    pub fn set_ecds_file(&mut self, path: &Path) -> Result<()> {
        *self.filter("/config_discovery/config_source")? =
            json!({"resource_api_version": "V3", "path_config_source": {"path": path}});
        Ok(())
    }

    /// Puts routes before the one that is there, alike but for the path's beginning, a name, and what the metadata
    /// says of the route to the filter. The beginning is taken off the path, so that pods see what they know.
    ///
    /// # Errors
    /// When the file's listener has another shape.
    pub fn add_routes(&mut self, routes: &[RouteSpec]) -> Result<()> {
        const ROUTES: &str = "/filter_chains/0/filters/0/typed_config/route_config/virtual_hosts/0/routes";
        let all = self.named("listeners", "llm")?.pointer_mut(ROUTES).and_then(Value::as_array_mut);
        let all = all.ok_or_else(|| anyhow!("envoy.yaml: listener llm has no routes"))?;
        let base = all.first().cloned().ok_or_else(|| anyhow!("envoy.yaml: listener llm has no route"))?;
        for (at, spec) in routes.iter().enumerate() {
            let mut route = base.clone();
            route["match"] = json!({"prefix": spec.prefix});
            route["route"]["prefix_rewrite"] = json!("/");
            if let Some(name) = &spec.name {
                route["name"] = json!(name);
            }
            if let Some(metadata) = &spec.metadata {
                route["metadata"] = json!({"filter_metadata": {"foretoken": metadata}});
            }
            all.insert(at, route);
        }
        Ok(())
    }

    /// Takes away the flag without which Envoy holds the body with the headers.
    ///
    /// # Errors
    /// When the file's filter chain does not set it.
    pub fn remove_headers_stop_iteration(&mut self) -> Result<()> {
        let plugin = self.plugin("")?.as_object_mut();
        let flag = plugin.and_then(|plugin| plugin.remove("allow_on_headers_stop_iteration"));
        flag.map(|_| ()).ok_or_else(|| anyhow!("envoy.yaml does not set allow_on_headers_stop_iteration"))
    }

    /// Sets how often statistics are flushed.
    ///
    /// # Errors
    /// When the configuration is no object.
    pub fn set_stats_flush(&mut self, interval: &str) -> Result<()> {
        self.at("")?["stats_flush_interval"] = json!(interval);
        Ok(())
    }

    fn filter(&mut self, pointer: &str) -> Result<&mut Value> {
        const FILTER: &str = "/filter_chains/0/filters/0/typed_config/http_filters/0";
        let filter = self.named("listeners", "llm")?.pointer_mut(FILTER);
        filter
            .and_then(|filter| filter.pointer_mut(pointer))
            .ok_or_else(|| anyhow!("envoy.yaml: the first HTTP filter of listener llm has no {pointer}"))
    }

    fn plugin(&mut self, pointer: &str) -> Result<&mut Value> {
        self.filter(&format!("/config_discovery/default_config/config{pointer}"))
    }

    fn at(&mut self, pointer: &str) -> Result<&mut Value> {
        self.0.pointer_mut(pointer).ok_or_else(|| anyhow!("envoy.yaml has no {pointer}"))
    }

    fn named(&mut self, list: &str, name: &str) -> Result<&mut Value> {
        self.at(&format!("/static_resources/{list}"))?
            .as_array_mut()
            .and_then(|items| items.iter_mut().find(|item| item["name"] == name))
            .ok_or_else(|| anyhow!("envoy.yaml has no {name} in {list}"))
    }
}

/// Endpoints as Envoy's clusters and endpoint discovery write them.
pub(super) fn lb_endpoints(addresses: &[SocketAddr]) -> Value {
    let endpoints: Vec<Value> = addresses
        .iter()
        .map(|address| json!({"endpoint": {"address": {"socket_address": socket_address(*address)}}}))
        .collect();
    json!([{"lb_endpoints": endpoints}])
}

fn socket_address(address: SocketAddr) -> Value {
    json!({"address": address.ip().to_string(), "port_value": address.port()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_in_envoy_yaml_are_those_of_foretoken_json() {
        let inline: Value =
            serde_json::from_str(&Bootstrap::local().unwrap().filter_config().unwrap()).unwrap();
        assert_eq!(inline, crate::envoy::filter_config().unwrap());
        let text = serde_json::to_vec(&inline).unwrap();
        foretoken_core::config::Config::from_json(&text).unwrap();
    }

    #[test]
    fn setting_what_the_file_does_not_have_is_an_error_that_names_it() {
        let mut bootstrap = Bootstrap::local().unwrap();
        let error = bootstrap.set_cluster("pod", &[]).unwrap_err().to_string();
        assert!(error.contains("no pod in clusters"), "{error}");
    }

    #[test]
    fn every_address_in_the_file_is_on_loopback() {
        fn visit(value: &Value) {
            if let Some(address) = value.get("socket_address") {
                assert_eq!(address["address"], "127.0.0.1");
            }
            match value {
                Value::Array(items) => items.iter().for_each(visit),
                Value::Object(fields) => fields.values().for_each(visit),
                _ => {}
            }
        }
        visit(&Bootstrap::local().unwrap().0);
    }
}
