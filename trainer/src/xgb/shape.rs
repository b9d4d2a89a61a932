//! Whether bytes have the shape of an XGBoost model file, before XGBoost sees them.
//!
//! XGBoost's readers trust their input: an empty buffer aborts the process, half a UBJSON file can crash it, and
//! deep nesting overflows its stack. So the whole structure is walked here first. What it is not: a check of the
//! values, which XGBoost refuses with an error.

use serde::Deserialize;
use serde::de::IgnoredAny;

/// Deepest nesting walked; a model has 9 levels.
const MAX_DEPTH: usize = 64;

/// No model is shorter, in UBJSON.
const MIN_UBJSON_BYTES: usize = 100;

/// The objects without which XGBoost finds no model.
const PARTS: [&str; 2] = ["gradient_booster", "learner_model_param"];

#[derive(Deserialize)]
struct Json {
    learner: Learner,
}

#[derive(Deserialize)]
struct Learner {
    #[serde(rename = "gradient_booster")]
    _gradient_booster: IgnoredAny,
    #[serde(rename = "learner_model_param")]
    _learner_model_param: IgnoredAny,
}

#[derive(Deserialize)]
struct Leaves {
    learner: LeavesOfLearner,
}

#[derive(Deserialize)]
struct LeavesOfLearner {
    gradient_booster: Booster,
}

/// What says whether leaves are vectors. DART boosters of old have the trees a level deeper.
#[derive(Default, Deserialize)]
struct Booster {
    #[serde(default)]
    model: Model,
    #[serde(default)]
    gbtree: Option<Box<Booster>>,
}

#[derive(Default, Deserialize)]
struct Model {
    #[serde(default)]
    trees: Vec<Tree>,
}

#[derive(Deserialize)]
struct Tree {
    tree_param: Option<TreeParam>,
    leaf_weights: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct TreeParam {
    size_leaf_vector: Option<String>,
}

impl Booster {
    fn has_old_vectors(&self) -> bool {
        let old = |tree: &Tree| {
            let size = tree.tree_param.as_ref().and_then(|parameters| parameters.size_leaf_vector.as_deref());
            tree.leaf_weights.is_none() && size.is_some_and(is_vector)
        };
        self.model.trees.iter().any(old) || self.gbtree.as_ref().is_some_and(|inner| inner.has_old_vectors())
    }
}

/// Whether this is the length of a vector leaf.
fn is_vector(size: &str) -> bool {
    !matches!(size, "" | "0" | "1")
}

/// XGBoost loads such a file and crashes when it predicts: it looks for the leaves where versions since 3 have them.
const OLD_VECTORS: &str = "its leaves are vectors (multi_strategy=multi_output_tree) as XGBoost wrote them before it \
                           had `leaf_weights`, which the version here misreads: fit it again with XGBoost 3.4, or with \
                           multi_strategy=one_output_per_tree";

/// Checks the shape; the error says what is wrong with it.
pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    if bytes.is_empty() {
        return Err("it is empty".to_owned());
    }
    if bytes.starts_with(b"binf") || bytes.first() != Some(&b'{') {
        return Err(
            "it is neither JSON nor UBJSON; XGBoost's old binary form is to be saved again by the XGBoost \
                    that wrote it, as save_model(\"model.json\")"
                .to_owned(),
        );
    }
    if !bytes.starts_with(b"{L") {
        let Json { learner: Learner { .. } } = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        if json_depth(bytes) > MAX_DEPTH {
            return Err(format!("it is nested deeper than {MAX_DEPTH} levels"));
        }
        // What has another form is XGBoost's to refuse, which it does with an error.
        if serde_json::from_slice(bytes)
            .is_ok_and(|leaves: Leaves| leaves.learner.gradient_booster.has_old_vectors())
        {
            return Err(OLD_VECTORS.to_owned());
        }
        return Ok(());
    }
    if bytes.len() < MIN_UBJSON_BYTES {
        return Err(format!("{} bytes are not a whole UBJSON model", bytes.len()));
    }
    let mut ubjson = Ubjson { rest: bytes, found: [false; PARTS.len()], vectors: 0, weights: 0 };
    ubjson.value(0, false).ok_or("it is cut off or not UBJSON")?;
    if !ubjson.rest.is_empty() {
        return Err(format!("{} bytes follow the end of its UBJSON", ubjson.rest.len()));
    }
    if ubjson.vectors > ubjson.weights {
        return Err(OLD_VECTORS.to_owned());
    }
    match PARTS.iter().zip(ubjson.found).find(|(_, found)| !found) {
        Some((part, _)) => Err(format!("it has no `learner.{part}`")),
        None => Ok(()),
    }
}

/// Deepest nesting of JSON that is known to be well-formed.
fn json_depth(bytes: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut in_string, mut escaped) = (false, false);
    for &byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// A walk through UBJSON, which is a byte for the type and then the value.
struct Ubjson<'a> {
    rest: &'a [u8],
    /// Which of [`PARTS`] were seen in `learner`.
    found: [bool; PARTS.len()],
    /// Trees whose leaves are vectors.
    vectors: usize,
    /// Trees that have `leaf_weights`.
    weights: usize,
}

impl<'a> Ubjson<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(*self.take(1)?.first()?)
    }

    /// XGBoost writes and reads lengths as int64 only.
    fn length(&mut self) -> Option<usize> {
        if self.byte()? != b'L' {
            return None;
        }
        usize::try_from(i64::from_be_bytes(self.take(8)?.try_into().ok()?)).ok()
    }

    fn value(&mut self, depth: usize, in_learner: bool) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.byte()? {
            b'{' => self.object(depth, in_learner),
            b'[' => self.array(depth),
            b'S' => {
                let length = self.length()?;
                self.take(length).map(drop)
            }
            kind => self.take(size(kind)?).map(drop),
        }
    }

    fn object(&mut self, depth: usize, in_learner: bool) -> Option<()> {
        while *self.rest.first()? != b'}' {
            let length = self.length()?;
            let key = self.take(length)?;
            for (part, found) in PARTS.iter().zip(&mut self.found) {
                *found |= in_learner && key == part.as_bytes();
            }
            let before = self.rest;
            self.value(depth + 1, depth == 0 && key == b"learner")?;
            match key {
                b"leaf_weights" => self.weights += 1,
                b"size_leaf_vector" => {
                    // `S`, the length's own type and eight bytes, then the text.
                    let taken = before.len() - self.rest.len();
                    let text = before.get(10..taken).and_then(|text| std::str::from_utf8(text).ok());
                    self.vectors += usize::from(text.is_some_and(is_vector));
                }
                _ => {}
            }
        }
        self.byte().map(drop)
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        if *self.rest.first()? == b'$' {
            self.byte()?;
            let kind = self.byte()?;
            if self.byte()? != b'#' {
                return None;
            }
            let bytes = self.length()?.checked_mul(size(kind)?)?;
            return self.take(bytes).map(drop);
        }
        if *self.rest.first()? == b'#' {
            self.byte()?;
            // Each value takes a byte at least, so the walk ends with the file whatever the count says.
            for _ in 0..self.length()? {
                self.value(depth + 1, false)?;
            }
            return Some(());
        }
        while *self.rest.first()? != b']' {
            self.value(depth + 1, false)?;
        }
        self.byte().map(drop)
    }
}

/// Bytes of a value of this type after the type.
fn size(kind: u8) -> Option<usize> {
    match kind {
        b'Z' | b'N' | b'T' | b'F' => Some(0),
        b'i' | b'U' | b'C' => Some(1),
        b'I' => Some(2),
        b'l' | b'd' => Some(4),
        b'L' | b'D' => Some(8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xgb;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_model_never_reaches_xgboost() {
        let refusal = |bytes: &[u8]| check(bytes).unwrap_err();
        assert!(refusal(b"").contains("empty"));
        assert!(refusal(b"{}").contains("learner"));
        assert!(refusal(br#"{"learner":{}}"#).contains("gradient_booster"));
        assert!(refusal(br#"{"learner":{"gradient_booster":{}}}"#).contains("learner_model_param"));
        let json = |filling: &str| {
            format!(r#"{{"learner":{{"gradient_booster":{filling},"learner_model_param":{{}}}}}}"#)
        };
        let nested = json(&format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)));
        assert!(refusal(nested.as_bytes()).contains("nested deeper"));
        let text = json(&format!("\"\\\"{}\"", "[".repeat(100)));
        assert_eq!(check(text.as_bytes()), Ok(()), "{text}");
        assert!(refusal(b"{L").contains("2 bytes"));
        let deep = [b"{L\0\0\0\0\0\0\0\x01a".as_slice(), &b"[".repeat(100_000)].concat();
        assert!(refusal(&deep).contains("not UBJSON"));
        assert!(check(br#"{"learner":{"gradient_booster":{},"learner_model_param":{}}}"#).is_ok());
    }

    #[test]
    fn a_saved_model_passes_whole_and_at_no_shorter_length() {
        let Some(xgboost) = xgb::for_tests() else { return };
        let rows: Vec<f32> = (0u8..40).map(f32::from).collect();
        let matrix = xgboost.matrix(&rows, 2).unwrap();
        matrix.set_labels(&rows[..20]).unwrap();
        let booster = xgboost.booster(&matrix, [("nthread", "1")]).unwrap();
        for round in 0..3 {
            booster.update(round, &matrix).unwrap();
        }
        let ubjson = booster.0.save(c"{\"format\":\"ubj\"}").unwrap();
        for whole in [ubjson, booster.to_json().unwrap()] {
            assert_eq!(check(&whole), Ok(()));
            xgboost.load_booster(&whole).unwrap();
            for length in 0..whole.len() {
                assert!(check(&whole[..length]).is_err(), "{length} of {}", whole.len());
            }
        }
    }

    /// A UBJSON file of each length form that XGBoost writes, from the fixtures of another version.
    fn saved() -> &'static [u8] {
        include_bytes!("../../tests/other_xgboosts/1.7.6-squared-ubj.ubj")
    }

    proptest! {
        #[test]
        fn a_file_with_flipped_bits_never_panics(
            flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..6),
        ) {
            let mut bytes = saved().to_vec();
            for (place, bit) in flips {
                let place = place.index(bytes.len());
                bytes[place] ^= 1 << bit;
            }
            let _ = check(&bytes);
        }

        #[test]
        fn any_bytes_after_the_mark_of_ubjson_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let refused = check(&[b"{L".as_slice(), &bytes].concat()).is_err();
            prop_assert!(refused);
        }
    }
}
