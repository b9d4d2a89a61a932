//! Which route a request takes, and what is set for it.
//!
//! Envoy's wasm filter has no configuration by route, but it lets a filter ask for the route's name and metadata.
//! It is only asked where the configuration sets anything by route.

use foretoken_core::config::{Config, RouteSettings};

use super::Stream;
use crate::host::Host;

/// The text under `route` in the route's metadata `foretoken`: for routes whose names a controller makes up.
const ROUTE_METADATA: [&str; 5] = ["xds", "route_metadata", "filter_metadata", "foretoken", "route"];

const ROUTE_NAME: [&str; 2] = ["xds", "route_name"];

/// Metadata that is not there is an error to Envoy's expressions, so what cannot be had counts as absent. So does what
/// is no text: a number comes as the eight bytes of a double.
fn text(host: &dyn Host, path: &[&str]) -> Option<String> {
    let value = host.property(path).ok()??;
    String::from_utf8(value).ok().filter(|text| !text.is_empty() && !text.contains(char::is_control))
}

impl Stream {
    /// The settings that hold for the request.
    pub(super) fn route(&self, config: &Config) -> RouteSettings {
        if config.routes.is_empty() {
            return config.route(None);
        }
        let host = self.vm.host();
        let name = text(host, &ROUTE_METADATA).or_else(|| text(host, &ROUTE_NAME));
        config.route(name.as_deref())
    }
}
