//! What Envoy's resolver answers to a wasm module.
//!
//! Little-endian: the number of addresses, a time to live in seconds for each, then each as NUL-ended text
//! with a port of 0 (`10.0.0.1:0`, `[::1]:0`). A failure and a name without addresses both come as none. Times
//! to live are not used: `endpoints.refresh_ms` says how often to ask.

use core::net::SocketAddr;

use foretoken_core::codec::Reader;
use foretoken_core::fleet::MAX_PODS;

/// The addresses with this port, sorted, without duplicates. What cannot be read ends the list.
#[must_use]
pub fn read_addresses(answer: &[u8], port: u16) -> Vec<String> {
    let mut input = Reader::new(answer);
    let count = input.u32().and_then(|count| usize::try_from(count).ok()).unwrap_or(0).min(MAX_PODS);
    let Some(texts) = answer.get(4 + 4 * count..) else { return Vec::new() };
    let mut addresses: Vec<SocketAddr> = texts
        .split(|byte| *byte == 0)
        .take(count)
        .map_while(|text| core::str::from_utf8(text).ok()?.parse().ok())
        .map(|mut address: SocketAddr| {
            address.set_port(port);
            address
        })
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answer(texts: &[&str]) -> Vec<u8> {
        let mut bytes = u32::try_from(texts.len()).unwrap().to_le_bytes().to_vec();
        texts.iter().for_each(|_| bytes.extend_from_slice(&30_u32.to_le_bytes()));
        texts.iter().for_each(|text| bytes.extend_from_slice(format!("{text}\0").as_bytes()));
        bytes
    }

    #[test]
    fn every_address_gets_the_port() {
        let bytes = answer(&["10.0.0.2:0", "10.0.0.1:0", "[fd00::1]:0", "10.0.0.1:0"]);
        assert_eq!(read_addresses(&bytes, 8000), ["10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000"]);
        assert_eq!(read_addresses(&answer(&[]), 8000), [""; 0]);
        assert_eq!(read_addresses(b"", 8000), [""; 0]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..80), cut in 0_usize..60) {
            let _ = read_addresses(&bytes, 1);
            let whole = answer(&["10.0.0.1:0", "10.0.0.2:0"]);
            let read = read_addresses(&whole[..cut.min(whole.len())], 1);
            prop_assert!(read.len() <= 2);
        }
    }
}
