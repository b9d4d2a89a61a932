//! The packed form in which a whole header map crosses the ABI.
//!
//! `u32` count, then that many pairs of `u32` lengths, then name, NUL, value, NUL for each. The SDK's own
//! reader indexes and unwraps; this one stops where the bytes stop.

use foretoken_core::num::u32_of_usize;

/// Pairs that are read: far above Envoy's own bound of 100 headers.
const MAX_PAIRS: usize = 4096;

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(head)
}

fn length(bytes: &mut &[u8]) -> Option<usize> {
    let (head, rest) = bytes.split_first_chunk::<4>()?;
    *bytes = rest;
    usize::try_from(u32::from_le_bytes(*head)).ok()
}

/// Names and values, in order. Ends early when the bytes are not of that form.
pub fn pairs(mut bytes: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let count = length(&mut bytes).unwrap_or(0).min(MAX_PAIRS);
    let (mut lengths, mut texts) = bytes.split_at_checked(count.saturating_mul(8)).unwrap_or((&[], &[]));
    core::iter::from_fn(move || {
        let (name_length, value_length) = (length(&mut lengths)?, length(&mut lengths)?);
        let name = take(&mut texts, name_length)?;
        take(&mut texts, 1)?;
        let value = take(&mut texts, value_length)?;
        take(&mut texts, 1)?;
        Some((name, value))
    })
}

/// These headers in that form.
#[must_use]
pub fn pack(headers: &[(&str, &str)]) -> Vec<u8> {
    let length = |length: usize| u32_of_usize(length).to_le_bytes();
    let mut out = length(headers.len()).to_vec();
    for (name, value) in headers {
        out.extend(length(name.len()));
        out.extend(length(value.len()));
    }
    for text in headers.iter().flat_map(|(name, value)| [name, value]) {
        out.extend(text.as_bytes());
        out.push(0);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packed_headers_are_read_back(headers in prop::collection::vec(("[a-z:-]{0,12}", ".{0,12}"), 0..20)) {
            let borrowed: Vec<(&str, &str)> =
                headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let packed = pack(&borrowed);
            let read: Vec<(String, String)> = pairs(&packed)
                .map(|(name, value)| (String::from_utf8(name.to_vec()).unwrap(), String::from_utf8(value.to_vec()).unwrap()))
                .collect();
            prop_assert_eq!(&read, &headers);
            for cut in 0..packed.len() {
                prop_assert!(pairs(&packed[..cut]).count() < headers.len().max(1));
            }
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = pairs(&bytes).count();
        }
    }
}
