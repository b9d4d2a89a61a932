//! The form in which a model travels inside the filter's configuration: base64 of raw-deflated ONNX.
//!
//! The configuration is text, hence base64; deflate makes an ONNX tree model 5 to 6 times smaller, and
//! its decoder is small and pure Rust (zstd would save a further tenth at twice the time to read).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use miniz_oxide::inflate::TINFLStatus;

use super::{ModelError, contract::MAX_FILE_BYTES};

/// Longest packed text that is decoded: deflate cannot shrink below what would then pass the bound.
const MAX_PACKED_BYTES: usize = MAX_FILE_BYTES / 3 * 4 + 4096;

/// Deflate effort: the slowest of the common levels, paid once per push.
const LEVEL: u8 = 9;

/// Packs an ONNX file.
#[must_use]
pub fn pack(onnx: &[u8]) -> String {
    STANDARD.encode(miniz_oxide::deflate::compress_to_vec(onnx, LEVEL))
}

/// Unpacks to ONNX bytes.
///
/// # Errors
/// [`ModelError::Packed`] when the text is not that form, [`ModelError::Size`] when it inflates past
/// [`MAX_FILE_BYTES`].
pub fn unpack(packed: &str) -> Result<Vec<u8>, ModelError> {
    if packed.len() > MAX_PACKED_BYTES {
        return Err(ModelError::Size { what: "packed model", bytes: packed.len(), limit: MAX_PACKED_BYTES });
    }
    let deflated =
        STANDARD.decode(packed).map_err(|error| ModelError::Packed(format!("not base64: {error}")))?;
    miniz_oxide::inflate::decompress_to_vec_with_limit(&deflated, MAX_FILE_BYTES).map_err(|error| match error
        .status
    {
        TINFLStatus::HasMoreOutput => {
            ModelError::Size { what: "inflated ONNX file", bytes: error.output.len(), limit: MAX_FILE_BYTES }
        }
        status => ModelError::Packed(format!("not raw deflate: {status:?}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_packed_unpacks_to_the_same_bytes(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
            prop_assert_eq!(unpack(&pack(&bytes)).unwrap(), bytes);
        }

        #[test]
        fn any_text_is_refused_or_unpacked_but_never_panics(text in "[A-Za-z0-9+/=]{0,200}") {
            let _ = unpack(&text);
        }
    }

    #[test]
    fn a_bomb_stops_at_the_bound() {
        let packed = pack(&vec![0; MAX_FILE_BYTES + 1]);
        assert!(packed.len() < 100_000);
        assert!(matches!(unpack(&packed), Err(ModelError::Size { what: "inflated ONNX file", .. })));
        assert_eq!(unpack(&pack(&vec![0; MAX_FILE_BYTES])).unwrap().len(), MAX_FILE_BYTES);
    }

    #[test]
    fn a_truncated_text_is_refused() {
        let packed = pack(&[7; 4000]);
        assert!(matches!(unpack(&packed[..packed.len() / 8 * 4]), Err(ModelError::Packed(_))));
        assert!(matches!(unpack("%%%%"), Err(ModelError::Packed(_))));
    }
}
