//! Publishing: the user's filter configuration with a model in it, as an Envoy extension configuration.
//!
//! One [`Publication`] is current at a time, held in a watch channel; the gRPC server ([`xds`]), the file ([`file`])
//! and the Kubernetes API ([`kubernetes`], a feature of the build) are the ways out of it. The trainer changes nothing in the user's configuration but `model`.

pub mod file;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod nodes;
pub mod targets;
pub mod xds;

use std::path::PathBuf;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::{
    AsyncDataSource, DataSource, TypedExtensionConfig, async_data_source, data_source,
};
use envoy_types::pb::envoy::extensions::filters::http::wasm::v3::Wasm;
use envoy_types::pb::envoy::extensions::wasm::v3::{FailurePolicy, PluginConfig, VmConfig, plugin_config};
use envoy_types::pb::google::protobuf::{Any, BoolValue, StringValue};
use foretoken_core::config::{Config, ConfigError, ModelConfig, Pick};
use foretoken_core::model::packed;
use prost::{Message, Name};
use serde_json::{Value, json};
use thiserror::Error;

/// Type of the resource that carries an extension's configuration.
pub const TYPE_URL: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";

/// The runtime of Envoy's released builds.
const RUNTIME: &str = "envoy.wasm.runtime.v8";

/// Root id of the filter's root context.
const ROOT_ID: &str = "foretoken";

/// Why the settings cannot be published.
#[derive(Debug, Error)]
pub enum TemplateError {
    /// Not a filter configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Not JSON.
    #[error("filter configuration: {0}")]
    Json(serde_json::Error),
    /// It brings a model along.
    #[error("filter configuration: remove `model`: the trainer writes it")]
    Model,
}

/// All that is fixed of a publication.
#[derive(Debug, Clone)]
pub struct Template {
    /// Name under which Envoy asks for the configuration.
    pub extension_name: String,
    /// Id of the wasm VM: what shared data is keyed by.
    pub vm_id: String,
    /// The filter's module, a path as Envoy sees it.
    pub module: PathBuf,
    /// The user's filter configuration.
    filter: Value,
    /// Shared token that the filter sends.
    token: String,
    /// How the filter hands its pick on.
    pick: Pick,
    /// Envoy cluster of the pods.
    cluster: String,
}

impl Template {
    /// Checks the user's filter configuration.
    ///
    /// # Errors
    /// [`TemplateError`] names the field and the fix.
    pub fn new(
        extension_name: String,
        vm_id: String,
        module: PathBuf,
        filter: &[u8],
    ) -> Result<Self, TemplateError> {
        let config = Config::from_json(filter)?;
        if config.model.is_some() {
            return Err(TemplateError::Model);
        }
        let filter = serde_json::from_slice(filter).map_err(TemplateError::Json)?;
        let Config { cluster, pick, samples, .. } = config;
        Ok(Self { extension_name, vm_id, module, filter, token: samples.token, pick, cluster })
    }

    /// Token that the filter will send with its samples; empty for none.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// How the filter hands its pick on.
    #[must_use]
    pub fn pick(&self) -> &Pick {
        &self.pick
    }

    /// Envoy cluster of the pods.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The publication of a model, or of the configuration alone before the first.
    #[must_use]
    pub fn publication(&self, generation: u64, model: Option<&[u8]>) -> Publication {
        let mut filter = self.filter.clone();
        if let (Some(onnx), Some(object)) = (model, filter.as_object_mut()) {
            let model = ModelConfig { generation, onnx_deflate_base64: packed::pack(onnx) };
            object.insert("model".to_owned(), json!(model));
        }
        let text = filter.to_string();
        Publication {
            generation,
            resource: self.resource(&text),
            json: self.json(generation, &text),
            filter: Arc::new(filter),
            extension_name: self.extension_name.clone(),
        }
    }

    fn resource(&self, text: &str) -> Any {
        let code = DataSource {
            specifier: Some(data_source::Specifier::Filename(self.module.to_string_lossy().into_owned())),
            ..DataSource::default()
        };
        let vm = VmConfig {
            vm_id: self.vm_id.clone(),
            runtime: RUNTIME.to_owned(),
            code: Some(AsyncDataSource { specifier: Some(async_data_source::Specifier::Local(code)) }),
            ..VmConfig::default()
        };
        let plugin = PluginConfig {
            name: self.extension_name.clone(),
            root_id: ROOT_ID.to_owned(),
            // A StringValue reaches the filter byte for byte; a Struct would arrive as protobuf.
            configuration: Some(Any {
                type_url: StringValue::type_url(),
                value: StringValue { value: text.to_owned() }.encode_to_vec(),
            }),
            failure_policy: FailurePolicy::FailReload.into(),
            // Without it a request whose body the filter waits for hangs.
            allow_on_headers_stop_iteration: Some(BoolValue { value: true }),
            vm: Some(plugin_config::Vm::VmConfig(vm)),
            ..PluginConfig::default()
        };
        let wasm = Wasm { config: Some(plugin) };
        let config = TypedExtensionConfig {
            name: self.extension_name.clone(),
            typed_config: Some(Any { type_url: Wasm::type_url(), value: wasm.encode_to_vec() }),
        };
        Any { type_url: TYPE_URL.to_owned(), value: config.encode_to_vec() }
    }

    /// The same as a discovery response in JSON, for a file that Envoy watches.
    fn json(&self, generation: u64, text: &str) -> String {
        json!({
            "version_info": generation.to_string(),
            "resources": [{
                "@type": TYPE_URL,
                "name": self.extension_name,
                "typed_config": {
                    "@type": Wasm::type_url(),
                    "config": {
                        "name": self.extension_name,
                        "root_id": ROOT_ID,
                        "vm_config": {
                            "vm_id": self.vm_id,
                            "runtime": RUNTIME,
                            "code": {"local": {"filename": self.module}},
                        },
                        "configuration": {"@type": StringValue::type_url(), "value": text},
                        "failure_policy": "FAIL_RELOAD",
                        "allow_on_headers_stop_iteration": true,
                    },
                },
            }],
        })
        .to_string()
    }
}

/// What is served at a moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Publication {
    /// Generation of the model, 0 without one.
    pub generation: u64,
    /// The `TypedExtensionConfig`.
    pub resource: Any,
    /// The JSON form of the whole discovery response.
    pub json: String,
    /// The filter's configuration alone, the model in it.
    pub filter: Arc<Value>,
    /// Name of the resource.
    pub extension_name: String,
}

impl Publication {
    /// Version text of the discovery protocol.
    #[must_use]
    pub fn version(&self) -> String {
        self.generation.to_string()
    }
}

/// Sends publications to everything that serves them.
pub type Publications = tokio::sync::watch::Sender<Arc<Publication>>;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn template() -> Template {
        let filter =
            br#"{"cluster":"pods","endpoints":{"addresses":["127.0.0.1:8000"]},"samples":{"token":"t"}}"#;
        Template::new("foretoken".to_owned(), "vm".to_owned(), "m.wasm".into(), filter).unwrap()
    }

    /// The filter configuration inside a resource.
    pub(crate) fn filter_config(resource: &Any) -> Config {
        assert_eq!(resource.type_url, TYPE_URL);
        let config = TypedExtensionConfig::decode(resource.value.as_slice()).unwrap();
        assert_eq!(config.name, "foretoken");
        let plugin = Wasm::decode(config.typed_config.unwrap().value.as_slice()).unwrap().config.unwrap();
        assert_eq!((plugin.name.as_str(), plugin.root_id.as_str()), ("foretoken", "foretoken"));
        assert_eq!(plugin.failure_policy(), FailurePolicy::FailReload);
        assert_eq!(plugin.allow_on_headers_stop_iteration, Some(BoolValue { value: true }));
        let Some(plugin_config::Vm::VmConfig(vm)) = plugin.vm else { panic!("no VM") };
        assert_eq!((vm.vm_id.as_str(), vm.runtime.as_str()), ("vm", RUNTIME));
        let text = StringValue::decode(plugin.configuration.unwrap().value.as_slice()).unwrap().value;
        Config::from_json(text.as_bytes()).unwrap()
    }

    #[test]
    fn before_the_first_model_the_users_configuration_is_published_as_it_is() {
        let publication = template().publication(0, None);
        assert_eq!(publication.version(), "0");
        let config = filter_config(&publication.resource);
        assert_eq!((config.cluster.as_str(), config.model), ("pods", None));
    }

    #[test]
    fn a_model_is_added_packed_with_its_generation_and_both_forms_agree() {
        let publication = template().publication(7, Some(b"bytes of a model"));
        let config = filter_config(&publication.resource);
        let model = config.model.clone().unwrap();
        assert_eq!(model.generation, 7);
        assert_eq!(packed::unpack(&model.onnx_deflate_base64).unwrap(), b"bytes of a model");
        let json: Value = serde_json::from_str(&publication.json).unwrap();
        assert_eq!(json["version_info"], "7");
        let text = &json["resources"][0]["typed_config"]["config"]["configuration"]["value"];
        assert_eq!(Config::from_json(text.as_str().unwrap().as_bytes()).unwrap(), config);
    }

    #[test]
    fn a_configuration_with_a_model_or_a_misspelt_field_is_refused() {
        let new =
            |filter: &[u8]| Template::new("f".to_owned(), "v".to_owned(), "m".into(), filter).unwrap_err();
        let error = new(
            br#"{"cluster":"p","endpoints":{"admin_cluster":"a"},"model":{"generation":1,"onnx_deflate_base64":""}}"#,
        );
        assert!(matches!(error, TemplateError::Model), "{error}");
        assert!(new(br#"{"clutser":"p"}"#).to_string().contains("clutser"));
    }
}
