//! Endpoint discovery (EDS) by a file that Envoy watches: pods come and go as a test says.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;

use super::bootstrap::lb_endpoints;

/// The file, and how often it has been written.
#[derive(Debug)]
pub struct EndpointsFile {
    path: PathBuf,
    version: u64,
}

impl EndpointsFile {
    /// A file in `dir` with these pods.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create(dir: &Path, pods: &[SocketAddr]) -> Result<Self> {
        let mut file = Self { path: dir.join("endpoints.json"), version: 0 };
        file.set(pods)?;
        Ok(file)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// From now on the pods are these.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set(&mut self, pods: &[SocketAddr]) -> Result<()> {
        self.version += 1;
        let response = json!({
            "version_info": self.version.to_string(),
            "resources": [{
                "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
                "cluster_name": "pods",
                "endpoints": lb_endpoints(pods),
            }],
        });
        // Envoy looks at a watched file when another one is moved over it.
        let partial = self.path.with_extension("partial");
        std::fs::write(&partial, response.to_string())?;
        std::fs::rename(&partial, &self.path)?;
        Ok(())
    }
}
