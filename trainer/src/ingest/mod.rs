//! Reads what filters send: NDJSON, one sample a line, each judged alone.
//!
//! A filter that runs in a proxy must never be made to resend a batch because of one line, so a bad line costs
//! that line and a reason. Everything is bounded: body, inflated body, lines, length of a line.

pub mod limits;

use std::io::Read;

use foretoken_core::features::{COLUMNS, COUNT, Column, SCHEMA_ID};
use foretoken_core::sample::Sample;
use subtle::ConstantTimeEq;
use thiserror::Error;

/// Longest body, as sent. 4096 samples, the filter's largest batch, are 3 MB.
pub const MAX_BODY_BYTES: usize = 8 << 20;

/// Longest body after gunzip.
const MAX_INFLATED_BYTES: u64 = 32 << 20;

/// Most lines of one body.
const MAX_LINES: usize = 10_000;

/// Longest line. A sample is about 700 bytes.
const MAX_LINE_BYTES: usize = 16 << 10;

/// Longest id, model name and address.
const MAX_NAME_BYTES: usize = 256;

/// How far a sample may be ahead of the trainer's clock, ms. Proxies' clocks drift by seconds; a sample from
/// far ahead would pass for the newest until the clock reaches it, and so stop every later fit.
pub const MAX_AHEAD_MS: u64 = 5 * 60 * 1000;

/// Largest size of a feature. Beyond what tokens, requests and milliseconds of any fleet come to.
const MAX_FEATURE: f32 = 1e12;

/// Longest prior, ms: twelve days, so that a queue of any length is in.
const MAX_PRIOR_MS: f32 = 1e9;

/// Longest measured time, ms: 28 hours.
const MAX_TIME_MS: f32 = 1e8;

/// Most reasons that an answer lists.
const MAX_REASONS: usize = 10;

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// Why a line was rejected.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[$doc])* $variant,)+ }

        impl Reason {
            /// All reasons.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The label value in metrics and answers.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

reasons! {
    /// The line is longer than is read.
    TooLong = "too_long",
    /// More lines than are read of one body.
    TooManyLines = "too_many_lines",
    /// Not the JSON of a sample.
    NotASample = "not_a_sample",
    /// Another feature schema.
    Schema = "schema",
    /// Not as many features as the schema has.
    Features = "features",
    /// No id, or a name that is too long.
    Name = "name",
    /// A number that no request can have.
    OutOfRange = "out_of_range",
    /// Its time lies ahead of the trainer's clock.
    Future = "future",
}

/// A rejected line.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Rejected {
    /// Line number from 1.
    pub line: usize,
    /// Why, as in the metrics.
    pub reason: &'static str,
    /// What is wrong with it.
    pub detail: String,
}

/// A body, read.
#[derive(Debug, Default)]
pub struct Batch {
    /// Good samples with the text they came as.
    pub samples: Vec<(Sample, Vec<u8>)>,
    /// How often each reason occurred.
    pub rejected: Vec<(Reason, u64)>,
    /// The first rejected lines.
    pub examples: Vec<Rejected>,
}

impl Batch {
    fn reject(&mut self, line: usize, reason: Reason, detail: String) {
        match self.rejected.iter_mut().find(|(seen, _)| *seen == reason) {
            Some((_, count)) => *count += 1,
            None => self.rejected.push((reason, 1)),
        }
        if self.examples.len() < MAX_REASONS {
            self.examples.push(Rejected { line, reason: reason.name(), detail });
        }
    }

    /// Number of rejected lines.
    #[must_use]
    pub fn rejected_count(&self) -> u64 {
        self.rejected.iter().map(|(_, count)| count).sum()
    }
}

/// Why a whole body was refused.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum BodyError {
    /// A content-encoding that is not read.
    #[error("content-encoding {0:?} is not read: send plain or gzip")]
    Encoding(String),
    /// Not gzip, though it says so.
    #[error("content-encoding is gzip, but the body is not: {0}")]
    Gzip(String),
    /// Too long after gunzip.
    #[error("the body inflates to more than {MAX_INFLATED_BYTES} bytes: send fewer samples at once")]
    TooLarge,
}

/// Undoes the content-encoding.
///
/// # Errors
/// [`BodyError`].
pub fn decode(body: &[u8], encoding: Option<&str>) -> Result<Vec<u8>, BodyError> {
    match encoding {
        None | Some("" | "identity") => Ok(body.to_vec()),
        Some("gzip") => {
            let mut inflated = Vec::new();
            let mut reader = flate2::read::MultiGzDecoder::new(body).take(MAX_INFLATED_BYTES + 1);
            reader.read_to_end(&mut inflated).map_err(|error| BodyError::Gzip(error.to_string()))?;
            if inflated.len() as u64 > MAX_INFLATED_BYTES {
                return Err(BodyError::TooLarge);
            }
            Ok(inflated)
        }
        Some(other) => Err(BodyError::Encoding(other.chars().take(40).collect())),
    }
}

/// Reads a body of lines. Empty lines are skipped. `now_ms` is the trainer's clock, ms since the Unix epoch.
#[must_use]
pub fn read(body: &[u8], now_ms: u64) -> Batch {
    let mut batch = Batch::default();
    let lines = body.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    for (number, line) in (1..).zip(lines).filter(|(_, line)| !line.is_empty()) {
        if number > MAX_LINES {
            batch.reject(
                number,
                Reason::TooManyLines,
                format!("at most {MAX_LINES} lines are read of one body"),
            );
            break;
        }
        match read_line(line, now_ms) {
            Ok(sample) => batch.samples.push((sample, line.to_vec())),
            Err((reason, detail)) => batch.reject(number, reason, detail),
        }
    }
    batch
}

/// Reads and checks one line. `now_ms` is the trainer's clock, ms since the Unix epoch.
///
/// # Errors
/// The reason and a detail.
pub fn read_line(line: &[u8], now_ms: u64) -> Result<Sample, (Reason, String)> {
    if line.len() > MAX_LINE_BYTES {
        return Err((Reason::TooLong, format!("{} bytes, at most {MAX_LINE_BYTES} are read", line.len())));
    }
    let sample: Sample =
        serde_json::from_slice(line).map_err(|error| (Reason::NotASample, error.to_string()))?;
    if sample.schema != SCHEMA_ID {
        return Err((Reason::Schema, format!("schema {:?}, this trainer has {SCHEMA_ID:?}", sample.schema)));
    }
    if sample.features.len() != COUNT {
        return Err((
            Reason::Features,
            format!("{} features, the schema has {COUNT}", sample.features.len()),
        ));
    }
    if sample.id.is_empty() {
        return Err((Reason::Name, "`id` is empty".to_owned()));
    }
    let names = [
        ("id", &sample.id),
        ("model", &sample.model),
        ("pod", &sample.pod),
        ("picked", &sample.picked),
        ("model_id", &sample.model_id),
    ];
    if let Some((field, _)) = names.iter().find(|(_, value)| value.len() > MAX_NAME_BYTES) {
        return Err((Reason::Name, format!("`{field}` is longer than {MAX_NAME_BYTES} bytes")));
    }
    if sample.at_ms > now_ms.saturating_add(MAX_AHEAD_MS) {
        let ahead_s = (sample.at_ms - now_ms) / 1000;
        return Err((
            Reason::Future,
            format!("`at_ms` is {ahead_s} s ahead of the trainer's clock: set the clocks of both machines"),
        ));
    }
    check_ranges(&sample).map_err(|detail| (Reason::OutOfRange, detail))?;
    Ok(sample)
}

/// Names the first number that no request can have.
fn check_ranges(sample: &Sample) -> Result<(), String> {
    let column = |(value, column): (&f32, &Column)| {
        // NaN is unknown.
        let known = if value.is_nan() { 0.0 } else { *value };
        let prior_ok = !column.name.starts_with("prior_") || (0.0..=MAX_PRIOR_MS).contains(&known);
        (known.abs() > MAX_FEATURE || !prior_ok).then(|| format!("feature `{}` is {value}", column.name))
    };
    if let Some(detail) = sample.features.iter().zip(COLUMNS).find_map(column) {
        return Err(format!("{detail}; unknown is null"));
    }
    let priors = [("prior_ttft_ms", sample.prior_ttft_ms), ("prior_tpot_ms", sample.prior_tpot_ms)];
    for (field, value) in priors {
        // 0 is unknown, which the row of a pod that answered never is.
        let least = if sample.is_clean() { f32::MIN_POSITIVE } else { 0.0 };
        if !(least..=MAX_PRIOR_MS).contains(&value) {
            return Err(format!("`{field}` is {value}, not a time above 0 and up to {MAX_PRIOR_MS} ms"));
        }
    }
    let predictions =
        [("predicted_ttft_ms", sample.predicted_ttft_ms), ("predicted_tpot_ms", sample.predicted_tpot_ms)];
    if let Some((field, value)) = predictions.iter().find(|(_, value)| !value.is_finite() || *value < 0.0) {
        return Err(format!("`{field}` is {value}, not a time in ms; unknown is 0"));
    }
    let times = [
        ("ttft_ms", sample.ttft_ms, f32::MIN_POSITIVE),
        // All tokens in one read are 0 apart: nothing learns a TPOT from that, but its TTFT is good.
        ("tpot_ms", sample.tpot_ms, 0.0),
        ("e2e_ms", sample.e2e_ms, f32::MIN_POSITIVE),
    ];
    for (field, value, least) in times {
        if let Some(value) = value.filter(|value| !(least..=MAX_TIME_MS).contains(value)) {
            return Err(format!("`{field}` is {value}, not a time of a request up to {MAX_TIME_MS} ms"));
        }
    }
    Ok(())
}

/// Whether an `authorization` header carries the token. The comparison takes the same time wherever the
/// first difference is, so the token cannot be guessed byte by byte.
#[must_use]
pub fn authorized(header: Option<&[u8]>, token: &str) -> bool {
    if token.is_empty() {
        return true;
    }
    // The scheme's case does not matter (RFC 9110, 11.1).
    let given = header
        .and_then(|header| header.split_at_checked(b"Bearer ".len()))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer "))
        .map_or(&[][..], |(_, given)| given);
    given.ct_eq(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic;
    use flate2::{Compression, write::GzEncoder};
    use proptest::prelude::*;
    use std::io::Write;

    /// Later than all synthetic samples.
    const NOW_MS: u64 = 1_800_000_000_000;

    fn line(change: impl FnOnce(&mut Sample)) -> Vec<u8> {
        let mut sample = synthetic::samples(1, 1).pop().unwrap();
        change(&mut sample);
        serde_json::to_vec(&sample).unwrap()
    }

    #[test]
    fn a_bad_line_costs_that_line_and_says_why() {
        let good = line(|_| {});
        let mut other = line(|_| {});
        other.truncate(40);
        let body = [
            good.as_slice(),
            b"\n\n{}\n",
            &line(|s| s.schema = "old".to_owned()),
            b"\r\n",
            &good,
            b"\n",
            &other,
        ]
        .concat();
        let batch = read(&body, NOW_MS);
        assert_eq!(batch.samples.len(), 2);
        assert_eq!(batch.samples[0].1, good);
        assert_eq!(batch.rejected_count(), 3);
        assert_eq!(batch.rejected, [(Reason::NotASample, 2), (Reason::Schema, 1)]);
        assert_eq!(batch.examples[1].line, 4);
        assert!(batch.examples[1].detail.contains("old"));
    }

    #[test]
    fn every_reason_is_reached_by_its_fault() {
        let reason = |bytes: &[u8]| read_line(bytes, NOW_MS).unwrap_err().0;
        assert_eq!(reason(&line(|s| s.features.truncate(3))), Reason::Features);
        assert_eq!(reason(&line(|s| s.id.clear())), Reason::Name);
        assert_eq!(reason(&line(|s| s.model = "m".repeat(300))), Reason::Name);
        assert_eq!(reason(&line(|s| s.ttft_ms = Some(-1.0))), Reason::OutOfRange);
        assert_eq!(reason(&vec![b' '; MAX_LINE_BYTES + 1]), Reason::TooLong);
        let huge = String::from_utf8(line(|s| s.features[0] = 12345.0)).unwrap().replace("12345.0", "1e999");
        assert!(matches!(reason(huge.as_bytes()), Reason::NotASample | Reason::OutOfRange));
        let many = read("x\n".repeat(MAX_LINES + 5).as_bytes(), NOW_MS);
        assert_eq!(many.rejected.last(), Some(&(Reason::TooManyLines, 1)));
        assert_eq!(many.examples.len(), MAX_REASONS);
    }

    #[test]
    fn a_sample_from_more_than_five_minutes_ahead_is_rejected() {
        let at = |at_ms| read_line(&line(|s| s.at_ms = at_ms), NOW_MS).map(|sample| sample.at_ms);
        assert_eq!(at(NOW_MS + MAX_AHEAD_MS).unwrap(), NOW_MS + MAX_AHEAD_MS);
        let (reason, detail) = at(NOW_MS + MAX_AHEAD_MS + 1).unwrap_err();
        assert_eq!(reason, Reason::Future);
        assert!(detail.contains("300 s ahead"), "{detail}");
        assert_eq!(at(u64::MAX).unwrap_err().0, Reason::Future);
    }

    #[test]
    fn a_number_that_cannot_be_is_rejected_by_the_name_of_its_field() {
        use foretoken_core::features::Feature;
        type Change = fn(&mut Sample);
        let faults: [(&str, Change); 15] = [
            ("prompt_tokens", |s| s.features[Feature::PromptTokens as usize] = 1.1e12),
            ("waiting_requests", |s| s.features[Feature::WaitingRequests as usize] = -1.1e12),
            ("prior_ttft_ms", |s| s.features[Feature::PriorTtftMs as usize] = -1.0),
            ("prior_tpot_ms", |s| s.features[Feature::PriorTpotMs as usize] = 2e9),
            ("prior_ttft_ms", |s| s.prior_ttft_ms = 0.0),
            ("prior_ttft_ms", |s| s.prior_ttft_ms = 1.1e9),
            ("prior_tpot_ms", |s| s.prior_tpot_ms = -3.0),
            ("predicted_ttft_ms", |s| s.predicted_ttft_ms = -0.1),
            ("predicted_tpot_ms", |s| s.predicted_tpot_ms = -1e30),
            ("ttft_ms", |s| s.ttft_ms = Some(0.0)),
            ("ttft_ms", |s| s.ttft_ms = Some(1.1e8)),
            ("tpot_ms", |s| s.tpot_ms = Some(-1.0)),
            ("tpot_ms", |s| s.tpot_ms = Some(1.1e8)),
            ("e2e_ms", |s| s.e2e_ms = Some(0.0)),
            ("e2e_ms", |s| s.e2e_ms = Some(1.1e8)),
        ];
        for (field, change) in faults {
            let (reason, detail) = read_line(&line(change), NOW_MS).unwrap_err();
            assert_eq!(reason, Reason::OutOfRange, "{field}");
            assert!(detail.contains(&format!("`{field}`")), "{field}: {detail}");
        }
        assert_eq!(Reason::OutOfRange.name(), "out_of_range");
    }

    #[test]
    fn what_is_unknown_is_in_range_and_teaches_nothing() {
        let unclean = line(|s| {
            s.status = 503;
            (s.prior_ttft_ms, s.prior_tpot_ms) = (0.0, 0.0);
            (s.predicted_ttft_ms, s.predicted_tpot_ms) = (0.0, 0.0);
            (s.ttft_ms, s.tpot_ms, s.e2e_ms) = (None, None, None);
        });
        assert_eq!(crate::dataset::example(&read_line(&unclean, NOW_MS).unwrap()), None);
        let unpredicted = line(|s| s.predicted_ttft_ms = 0.0);
        assert!(read_line(&unpredicted, NOW_MS).unwrap().is_clean());
        let in_one_read = read_line(&line(|s| s.tpot_ms = Some(0.0)), NOW_MS).unwrap();
        let example = crate::dataset::example(&in_one_read).unwrap();
        assert!(example.ttft.is_some() && example.tpot.is_none());
    }

    #[test]
    fn gzip_is_read_and_a_bomb_is_not() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(b"hello").unwrap();
        assert_eq!(decode(&encoder.finish().unwrap(), Some("gzip")).unwrap(), b"hello");
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&vec![b'\n'; MAX_INFLATED_BYTES as usize + 1]).unwrap();
        assert_eq!(decode(&encoder.finish().unwrap(), Some("gzip")), Err(BodyError::TooLarge));
        assert!(matches!(decode(b"plain", Some("gzip")), Err(BodyError::Gzip(_))));
        assert!(matches!(decode(b"", Some("br")), Err(BodyError::Encoding(_))));
        assert_eq!(decode(b"as is", None).unwrap(), b"as is");
    }

    #[test]
    fn only_the_token_opens() {
        assert!(authorized(None, ""));
        for header in [b"Bearer secret", b"bearer secret", b"BEARER secret"] {
            assert!(authorized(Some(header), "secret"));
        }
        assert!(!authorized(Some(b"bearer SECRET"), "secret"));
        for header in
            [None, Some(&b"Bearer secre"[..]), Some(b"Bearer secrets"), Some(b"secret"), Some(b"Bearer ")]
        {
            assert!(!authorized(header, "secret"));
        }
    }

    #[test]
    fn a_body_cut_anywhere_gives_its_whole_lines() {
        let good = line(|_| {});
        let body = [good.as_slice(), b"\n", &good, b"\n", &good].concat();
        for end in 0..body.len() {
            let batch = read(&body[..end], NOW_MS);
            let whole = end.saturating_add(1) / (good.len() + 1);
            let cut = end > whole * (good.len() + 1);
            assert_eq!((batch.samples.len(), batch.rejected_count()), (whole, cut.into()), "{end}");
        }
    }

    proptest! {
        #[test]
        fn a_line_with_flipped_bits_is_judged_and_what_is_accepted_is_accepted_again(
            flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..4),
        ) {
            let mut body = line(|_| {});
            for (place, bit) in flips {
                let place = place.index(body.len());
                body[place] ^= 1 << bit;
            }
            for (sample, text) in read(&body, NOW_MS).samples {
                let again = read_line(&text, NOW_MS).unwrap();
                prop_assert_eq!(format!("{sample:?}"), format!("{again:?}"));
            }
        }

        #[test]
        fn a_gzip_body_cut_anywhere_or_changed_is_read_or_refused(
            cut in prop::option::of(any::<prop::sample::Index>()),
            change in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        ) {
            let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
            packed.write_all(&line(|_| {})).unwrap();
            let mut packed = packed.finish().unwrap();
            if let Some((place, byte)) = change {
                let place = place.index(packed.len());
                packed[place] = byte;
            }
            if let Some(cut) = cut {
                packed.truncate(cut.index(packed.len()));
            }
            if let Ok(body) = decode(&packed, Some("gzip")) {
                let _ = read(&body, NOW_MS);
            }
        }
        #[test]
        fn any_bytes_are_read_without_panic(body in prop::collection::vec(any::<u8>(), 0..2000)) {
            let batch = read(&body, NOW_MS);
            prop_assert!(batch.samples.is_empty());
        }
    }
}
