//! The form of a segment on disk: lines of text, each with its own checksum.
//!
//! A line is `CRC32 KIND JSON\n`: the CRC-32 (IEEE 802.3) in eight hexadecimal digits of all that follows the
//! space after it up to the line feed, a letter, and the sample as the filter sent it. So a flipped bit or a
//! half-written line costs that line, and text tools still read the file: `cut -c 12- FILE | jq .`.
//!
//! What it is not: it knows nothing of what a sample means, nor when the disk has it; that is [`super`] and
//! [`super::sync`].

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Bytes before the JSON: checksum, space, letter, space.
const HEAD: usize = 11;

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A sample to learn from, as far as it is clean.
    Sample,
    /// A sample of a batch that was not believed: kept for people to look at, never learned from.
    Quarantined,
}

impl Kind {
    fn letter(self) -> u8 {
        match self {
            Self::Sample => b's',
            Self::Quarantined => b'q',
        }
    }

    fn of(letter: u8) -> Option<Self> {
        match letter {
            b's' => Some(Self::Sample),
            b'q' => Some(Self::Quarantined),
            _ => None,
        }
    }
}

/// One line of a segment, read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line<'a> {
    /// A record whose checksum is right.
    Record(Kind, &'a [u8]),
    /// The file ends inside it: a crash or a full disk.
    Torn,
    /// Its checksum is wrong, or it has none.
    Damaged,
}

/// Appends a record to `out`. `json` has no line feed.
pub fn encode(kind: Kind, json: &[u8], out: &mut Vec<u8>) {
    let mut crc = crc32fast::Hasher::new();
    let head = [kind.letter(), b' '];
    crc.update(&head);
    crc.update(json);
    out.extend_from_slice(format!("{:08x} ", crc.finalize()).as_bytes());
    out.extend_from_slice(&head);
    out.extend_from_slice(json);
    out.push(b'\n');
}

/// Reads a line without its line feed.
#[must_use]
pub fn decode(line: &[u8]) -> Option<(Kind, &[u8])> {
    let (head, json) = line.split_at_checked(HEAD)?;
    let crc = u32::from_str_radix(std::str::from_utf8(head.get(..8)?).ok()?, 16).ok()?;
    let kind = Kind::of(*head.get(9)?)?;
    (head.get(8) == Some(&b' ') && crc32fast::hash(line.get(9..)?) == crc).then_some((kind, json))
}

/// The lines of a segment; empty ones are passed over.
pub fn lines(bytes: &[u8]) -> impl Iterator<Item = Line<'_>> {
    bytes.split_inclusive(|&byte| byte == b'\n').filter(|line| *line != b"\n").map(|line| {
        match line.strip_suffix(b"\n") {
            None => Line::Torn,
            Some(line) => decode(line).map_or(Line::Damaged, |(kind, json)| Line::Record(kind, json)),
        }
    })
}

/// One file.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) path: PathBuf,
    pub(super) number: u64,
    pub(super) bytes: u64,
    /// Newest sample in it, ms since the Unix epoch; 0 without any.
    pub(super) newest_ms: u64,
    /// When the file was last written by an earlier start; stands in where no sample can be read.
    pub(super) written_ms: u64,
}

/// `samples-00000001.log` to 1.
fn number(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("samples-")?.strip_suffix(".log")?.parse().ok()
}

/// The segments in a directory, oldest first; empty ones, left by starts that received nothing, are removed.
///
/// # Errors
/// The path and why.
pub(super) fn find(dir: &Path) -> Result<Vec<Segment>, (PathBuf, io::Error)> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |error| (path, error)
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(at(dir))? {
        let path = entry.map_err(at(dir))?.path();
        if let Some(number) = number(&path) {
            let metadata = path.metadata().map_err(at(&path))?;
            let bytes = metadata.len();
            if bytes == 0 {
                fs::remove_file(&path).map_err(at(&path))?;
            } else {
                let written = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
                let written_ms =
                    written.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
                found.push(Segment { path, number, bytes, newest_ms: 0, written_ms });
            }
        }
    }
    found.sort_by_key(|segment| segment.number);
    Ok(found)
}

/// Makes the next segment, durably: the directory's entry is on disk before anything is acknowledged in it.
///
/// # Errors
/// The path and why.
pub(super) fn create(dir: &Path, number: u64) -> Result<(Segment, File), (PathBuf, io::Error)> {
    let path = dir.join(format!("samples-{number:08}.log"));
    let made = OpenOptions::new().create_new(true).append(true).open(&path).and_then(|file| {
        File::open(dir)?.sync_all()?;
        Ok(file)
    });
    match made {
        Ok(file) => Ok((Segment { path, number, bytes: 0, newest_ms: 0, written_ms: 0 }, file)),
        Err(error) => Err((path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_record_is_a_line_of_text_with_the_standard_checksum() {
        let mut out = Vec::new();
        encode(Kind::Sample, b"{\"id\":\"a\"}", &mut out);
        encode(Kind::Quarantined, b"{}", &mut out);
        // zlib.crc32(b's {"id":"a"}') and zlib.crc32(b'q {}').
        assert_eq!(String::from_utf8(out.clone()).unwrap(), "d7b39489 s {\"id\":\"a\"}\n28f5f3b9 q {}\n");
        let read: Vec<Line<'_>> = lines(&out).collect();
        assert_eq!(
            read,
            [Line::Record(Kind::Sample, b"{\"id\":\"a\"}"), Line::Record(Kind::Quarantined, b"{}")]
        );
    }

    #[test]
    fn a_line_without_checksum_is_damaged_and_one_without_end_is_torn() {
        assert_eq!(lines(b"{\"id\":\"a\"}\n\n00").collect::<Vec<_>>(), [Line::Damaged, Line::Torn]);
        assert_eq!(lines(b"").count(), 0);
    }

    proptest! {
        #[test]
        fn what_a_crash_leaves_loses_only_the_line_it_cuts(
            payloads in prop::collection::vec("[ -~]{0,60}", 1..8),
            cut in 0usize..600,
        ) {
            let mut out = Vec::new();
            let mut ends = Vec::new();
            for payload in &payloads {
                encode(Kind::Sample, payload.as_bytes(), &mut out);
                ends.push(out.len());
            }
            let cut = cut.min(out.len());
            let whole = ends.iter().filter(|&&end| end <= cut).count();
            let read: Vec<Line<'_>> = lines(&out[..cut]).collect();
            for (line, payload) in read.iter().zip(&payloads[..whole]) {
                prop_assert_eq!(line, &Line::Record(Kind::Sample, payload.as_bytes()));
            }
            let torn = usize::from(cut > 0 && !ends.contains(&cut));
            prop_assert_eq!(read.len(), whole + torn);
        }

        #[test]
        fn a_flipped_bit_is_found(payload in "[ -~]{1,60}", at in 0usize..80, bit in 0u8..8) {
            let mut out = Vec::new();
            encode(Kind::Sample, payload.as_bytes(), &mut out);
            let at = at % (out.len() - 1);
            out[at] ^= 1 << bit;
            // The case of a hexadecimal digit means nothing.
            let harmless = at < 8 && out[at].is_ascii_hexdigit() && bit == 5;
            for line in lines(&out) {
                prop_assert!(harmless || !matches!(line, Line::Record(..)));
            }
        }
    }
}
