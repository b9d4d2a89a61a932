//! Extension discovery by a file that Envoy watches: pushes whose every byte a test chooses.
//!
//! The trainer pushes over gRPC and refuses to publish what is bad; a test of what Envoy and the filter do
//! with a bad push needs a sender without scruples.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};

use crate::paths::{self, Flavour};

/// The file, and what has been pushed through it.
#[derive(Debug)]
pub struct EcdsFile {
    path: PathBuf,
    module: PathBuf,
    version: u64,
}

impl EcdsFile {
    /// A file in `dir` that first pushes `filter`.
    ///
    /// # Errors
    /// When the filter is not built or the file cannot be written.
    pub fn create(dir: &Path, flavour: Flavour, filter: &Value) -> Result<Self> {
        let module = paths::module(flavour)?;
        let mut file = Self { path: dir.join("ecds.json"), module, version: 0 };
        file.push(filter)?;
        Ok(file)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Pushes these settings.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn push(&mut self, filter: &Value) -> Result<()> {
        self.push_text(&filter.to_string())
    }

    /// Pushes this text as the filter's settings, whatever it is.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn push_text(&mut self, text: &str) -> Result<()> {
        self.version += 1;
        let response = json!({
            "version_info": self.version.to_string(),
            "resources": [{
                "@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
                "name": "foretoken",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
                    "config": {
                        "name": "foretoken",
                        "root_id": "foretoken",
                        "vm_config": {
                            "vm_id": "foretoken",
                            "runtime": "envoy.wasm.runtime.v8",
                            "code": {"local": {"filename": self.module}},
                        },
                        "allow_on_headers_stop_iteration": true,
                        "failure_policy": "FAIL_RELOAD",
                        "configuration": {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": text},
                    },
                },
            }],
        });
        // Envoy looks at a watched file when another one is moved over it.
        let partial = self.path.with_extension("partial");
        std::fs::write(&partial, response.to_string())?;
        std::fs::rename(&partial, &self.path)?;
        Ok(())
    }
}
