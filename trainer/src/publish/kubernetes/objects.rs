//! The two objects that the trainer applies, as JSON.
//!
//! A `WasmPlugin` gets `spec.pluginConfig` and nothing else: module, selector and phase stay whose they are. Istio hands
//! the filter this structure as JSON text, so the model travels in it as base64 text, like everywhere
//! (`model.onnx_deflate_base64`). An `EnvoyFilter` carries no model: it makes Envoys ask the trainer for the filter's
//! configuration, and is the same for every model.
//!
//! What it is not: a client. That is [`super::api`].

use std::collections::BTreeMap;

use foretoken_core::config::PickForm;
use serde_json::{Value, json};

use super::{Kind, Name, TooLarge};
use crate::publish::{Publication, Template};

/// Annotation with the generation of the model in the object.
pub const GENERATION_ANNOTATION: &str = "foretoken.dev/generation";

/// Envoy cluster through which the trainer is asked.
const TRAINER_CLUSTER: &str = "foretoken_trainer_xds";

/// Longest object that is applied, bytes of JSON. etcd takes requests of up to 1.5 MiB (`--max-request-bytes`, etcd's
/// documentation, "System limits"); 64 KiB of that are left for what the object holds besides.
pub const MAX_OBJECT_BYTES: usize = (3 << 19) - (64 << 10);

/// A `WasmPlugin` with the publication in it.
///
/// # Errors
/// [`TooLarge`] when the API server would refuse it for its size.
pub fn wasm_plugin(name: &Name, publication: &Publication) -> Result<Value, TooLarge> {
    let object = json!({
        "apiVersion": Kind::WasmPlugin.api_version(),
        "kind": Kind::WasmPlugin.name(),
        "metadata": {
            "namespace": name.namespace,
            "name": name.name,
            "annotations": {GENERATION_ANNOTATION: publication.version()},
        },
        "spec": {"pluginConfig": *publication.filter},
    });
    let bytes = object.to_string().len();
    if bytes > MAX_OBJECT_BYTES {
        return Err(TooLarge { bytes, limit: MAX_OBJECT_BYTES });
    }
    Ok(object)
}

/// Bytes of a model as it travels that fit into a `WasmPlugin` beside this configuration.
#[must_use]
pub fn largest_model(template: &Template) -> usize {
    let without = template.publication(u64::MAX, Some(b""));
    let name = Name { namespace: "n".repeat(63), name: "n".repeat(253) };
    match wasm_plugin(&name, &without) {
        Ok(object) => MAX_OBJECT_BYTES - object.to_string().len(),
        Err(_) => 0,
    }
}

/// Where Envoys reach the trainer, and which Envoys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gateway {
    /// Host of the trainer's discovery port, as Envoys resolve it.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Labels of the proxies' pods; all of the namespace without any.
    pub selector: BTreeMap<String, String>,
}

/// The whole `EnvoyFilter`.
#[must_use]
pub fn envoy_filter(name: &Name, gateway: &Gateway, template: &Template) -> Value {
    let mut patches = vec![
        cluster_patch(gateway),
        filter_patch(&json!({
            "name": template.extension_name,
            "config_discovery": {
                "config_source": {
                    "resource_api_version": "V3",
                    "api_config_source": {
                        "api_type": "GRPC",
                        "transport_api_version": "V3",
                        "grpc_services": [{"envoy_grpc": {"cluster_name": TRAINER_CLUSTER}}],
                    },
                    // How long a proxy waits for the trainer before it starts without.
                    "initial_fetch_timeout": "5s",
                },
                "type_urls": ["type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"],
            },
        })),
    ];
    patches.push(filter_patch(&reader_of_the_pick(template)));
    if template.pick().form == PickForm::List {
        patches.push(balancer_patch(template));
    }
    let mut spec = json!({"configPatches": patches});
    if !gateway.selector.is_empty() {
        spec["workloadSelector"] = json!({"labels": gateway.selector});
    }
    json!({
        "apiVersion": Kind::EnvoyFilter.api_version(),
        "kind": Kind::EnvoyFilter.name(),
        "metadata": {"namespace": name.namespace, "name": name.name},
        "spec": spec,
    })
}

/// The filter after ours that takes the pick where Envoy's load balancer reads it.
fn reader_of_the_pick(template: &Template) -> Value {
    let pick = template.pick();
    match pick.form {
        PickForm::StatefulSession => json!({
            "name": "envoy.filters.http.stateful_session",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.stateful_session.v3.StatefulSession",
                "session_state": {
                    "name": "envoy.http.stateful_session.header",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.http.stateful_session.header.v3.HeaderBasedSessionState",
                        "name": pick.header,
                    },
                },
            },
        }),
        PickForm::List => json!({
            "name": "envoy.filters.http.header_to_metadata",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
                "request_rules": [{
                    "header": pick.header,
                    "on_header_present": {"metadata_namespace": "envoy.lb", "key": pick.header, "type": "STRING"},
                    "remove": true,
                }],
            },
        }),
    }
}

/// The pods' cluster must read a list of picks; Envoy's least request takes what the filter does not pick.
fn balancer_patch(template: &Template) -> Value {
    let header = &template.pick().header;
    json!({
        "applyTo": "CLUSTER",
        "match": {"context": "GATEWAY", "cluster": {"name": template.cluster()}},
        "patch": {"operation": "MERGE", "value": {"load_balancing_policy": {"policies": [{"typed_extension_config": {
            "name": "envoy.load_balancing_policies.override_host",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost",
                "override_host_sources": [
                    {"metadata": {"key": "envoy.lb", "path": [{"key": header}]}},
                    // The filter's own scrapes of the pods pass no filters.
                    {"header": header},
                ],
                "fallback_policy": {"policies": [{"typed_extension_config": {
                    "name": "envoy.load_balancing_policies.least_request",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest",
                    },
                }}]},
            },
        }}]}}},
    })
}

fn filter_patch(filter: &Value) -> Value {
    json!({
        "applyTo": "HTTP_FILTER",
        "match": {
            "context": "GATEWAY",
            "listener": {"filterChain": {"filter": {
                "name": "envoy.filters.network.http_connection_manager",
                "subFilter": {"name": "envoy.filters.http.router"},
            }}},
        },
        // Each is put just before the router, so they keep this order.
        "patch": {"operation": "INSERT_BEFORE", "value": filter},
    })
}

fn cluster_patch(gateway: &Gateway) -> Value {
    json!({
        "applyTo": "CLUSTER",
        "match": {"context": "GATEWAY"},
        "patch": {"operation": "ADD", "value": {
            "name": TRAINER_CLUSTER,
            "type": "STRICT_DNS",
            "connect_timeout": "5s",
            "typed_extension_protocol_options": {
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                    "explicit_http_config": {"http2_protocol_options": {
                        // A trainer that went without a word is found by its silence.
                        "connection_keepalive": {"interval": "30s", "timeout": "5s"},
                    }},
                },
            },
            "load_assignment": {
                "cluster_name": TRAINER_CLUSTER,
                "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"socket_address": {
                    "address": gateway.host, "port_value": gateway.port,
                }}}}]}],
            },
        }},
    })
}
