//! Envoy's admin listing of a cluster's hosts: how to ask for it, how to read it.
//!
//! The path is made of the configuration's cluster name and nothing else: the admin interface can stop Envoy,
//! so nothing that a client sent may ever reach it.

use core::fmt::Write;
use core::net::{IpAddr, SocketAddr};

use serde::Deserialize;

/// A listing is read up to here: 745 B a host, [`foretoken_core::fleet::MAX_PODS`] hosts, eight times over.
pub const MAX_LISTING_BYTES: usize = 8 << 20;

/// Why a listing gave no members.
#[derive(Debug, thiserror::Error)]
pub enum ListingError {
    /// Not the JSON of a listing.
    #[error("not JSON of Envoy's /clusters: {0}")]
    Json(#[from] serde_json::Error),
    /// The cluster is not in it.
    #[error("Envoy has no cluster named {0:?}")]
    NoCluster(String),
}

#[derive(Deserialize)]
struct Listing {
    #[serde(default)]
    cluster_statuses: Vec<ClusterStatus>,
}

#[derive(Deserialize)]
struct ClusterStatus {
    #[serde(default)]
    name: String,
    #[serde(default)]
    host_statuses: Vec<HostStatus>,
}

#[derive(Deserialize)]
struct HostStatus {
    #[serde(default)]
    address: Address,
    #[serde(default)]
    health_status: Health,
}

/// Other kinds of address (pipes, internal listeners) have no `ip:port` to pick by.
#[derive(Default, Deserialize)]
struct Address {
    socket_address: Option<SocketAddress>,
}

#[derive(Deserialize)]
struct SocketAddress {
    #[serde(default)]
    address: String,
    #[serde(default)]
    port_value: u16,
}

/// Envoy leaves out flags that are not set. Degraded hosts serve, so that flag is not read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Health {
    eds_health_status: String,
    failed_active_health_check: bool,
    failed_outlier_check: bool,
    pending_dynamic_removal: bool,
    pending_active_hc: bool,
    excluded_via_immediate_hc_fail: bool,
    active_hc_timeout: bool,
}

impl Health {
    fn is_healthy(&self) -> bool {
        let by_endpoints = matches!(self.eds_health_status.as_str(), "" | "HEALTHY" | "UNKNOWN" | "DEGRADED");
        let failing = self.failed_active_health_check
            || self.failed_outlier_check
            || self.pending_active_hc
            || self.excluded_via_immediate_hc_fail
            || self.active_hc_timeout;
        by_endpoints && !failing
    }
}

/// Path of the listing of one cluster. Its `filter` is a regular expression.
#[must_use]
pub fn listing_path(cluster: &str) -> String {
    let mut path = "/clusters?format=json&filter=".to_owned();
    let mut percent = |byte: u8| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            path.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(path, "%{byte:02X}");
        }
    };
    percent(b'^');
    for byte in cluster.bytes() {
        if byte.is_ascii_punctuation() && byte != b'_' {
            percent(b'\\');
        }
        percent(byte);
    }
    percent(b'$');
    path
}

/// The cluster's hosts as `ip:port` with health, in Envoy's own spelling of addresses.
///
/// # Errors
/// [`ListingError`] when the body is no listing or the cluster is not in it; a cluster without hosts is no error.
pub fn read_members(cluster: &str, body: &[u8]) -> Result<Vec<(String, bool)>, ListingError> {
    let listing: Listing = serde_json::from_slice(body)?;
    let status = listing
        .cluster_statuses
        .into_iter()
        .find(|status| status.name == cluster)
        .ok_or_else(|| ListingError::NoCluster(cluster.to_owned()))?;
    let members = status.host_statuses.into_iter().filter_map(|host| {
        // With health checks Envoy goes on listing a host that has been taken out until a check fails. To us it has
        // left, and a pod that later has its address is another one.
        if host.health_status.pending_dynamic_removal {
            return None;
        }
        let socket = host.address.socket_address?;
        let ip: IpAddr = socket.address.parse().ok()?;
        Some((SocketAddr::new(ip, socket.port_value).to_string(), host.health_status.is_healthy()))
    });
    Ok(members.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_path_names_exactly_one_cluster() {
        assert_eq!(listing_path("pods"), "/clusters?format=json&filter=%5Epods%24");
        assert_eq!(
            listing_path("outbound|80||a.b"),
            "/clusters?format=json&filter=%5Eoutbound%5C%7C80%5C%7C%5C%7Ca%5C.b%24"
        );
        assert!(!listing_path("x&y\r\n/quitquitquit").contains(['\r', '\n', ' ']));
    }

    #[test]
    fn hosts_are_read_with_their_health() {
        let body = br#"{"cluster_statuses":[{"name":"other"},{"name":"pods","added_via_api":false,"host_statuses":[
            {"address":{"socket_address":{"address":"127.0.0.1","port_value":9001}},"health_status":{"eds_health_status":"HEALTHY"},"weight":1},
            {"address":{"socket_address":{"address":"127.0.0.1","port_value":9002}},"health_status":{"eds_health_status":"HEALTHY","failed_active_health_check":true}},
            {"address":{"socket_address":{"address":"::1","port_value":9003}},"health_status":{"eds_health_status":"DRAINING"}},
            {"address":{"socket_address":{"address":"10.0.0.2","port_value":1}},"health_status":{"eds_health_status":"HEALTHY","pending_dynamic_removal":true}},
            {"address":{"pipe":{"path":"/x"}},"health_status":{}},
            {"address":{"socket_address":{"address":"10.0.0.1","port_value":1}}}]}]}"#;
        let members = read_members("pods", body).unwrap();
        let expected = [
            ("127.0.0.1:9001", true),
            ("127.0.0.1:9002", false),
            ("[::1]:9003", false),
            ("10.0.0.1:1", true),
        ];
        assert_eq!(members, expected.map(|(address, healthy)| (address.to_owned(), healthy)));
        assert_eq!(read_members("other", body).unwrap(), []);
    }

    #[test]
    fn a_listing_without_the_cluster_says_so() {
        let error = read_members("pods", br#"{"cluster_statuses":[]}"#).unwrap_err();
        assert!(error.to_string().contains("no cluster named \"pods\""), "{error}");
        assert!(read_members("pods", b"<html>").is_err());
    }

    proptest! {
        #[test]
        fn any_name_gives_a_path_of_safe_characters(name in ".{0,40}") {
            let path = listing_path(&name);
            prop_assert!(path.bytes().all(|b| b.is_ascii_graphic()));
            prop_assert_eq!(path.matches('&').count(), 1);
        }

        #[test]
        fn any_bytes_are_read_without_harm(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_members("pods", &body);
        }
    }
}
