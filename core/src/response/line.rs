//! Bytes to lines, wherever chunks are split.
//!
//! The grammar of `text/event-stream`: lines end with CR, LF or CRLF, and a byte order mark may open the
//! stream. A line that lies within one chunk is handed on where it lies; only one that spans chunks is
//! copied, and of an overlong one only its head is kept. Bytes stay bytes: a character split across chunks is
//! whole again before anything decodes it.

/// A longer line is cut; `data:` lines of real engines are some hundred bytes, but for the first and the last
/// of the responses API.
pub(super) const MAX_LINE_BYTES: usize = 256 << 10;

/// A line without its end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'a> {
    pub(super) bytes: &'a [u8],
    /// Whether the line went on beyond [`MAX_LINE_BYTES`].
    pub(super) cut: bool,
}

/// Cuts a stream of chunks into lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Head of the line that the last chunk left open.
    open: Vec<u8>,
    cut: bool,
    /// The last chunk ended with CR: an LF that comes next belongs to it.
    after_cr: bool,
    past_first_line: bool,
}

impl Lines {
    /// Hands every line that `chunk` ends to `on_line`.
    pub(super) fn push(&mut self, chunk: &[u8], mut on_line: impl FnMut(Line<'_>)) {
        let mut rest = chunk;
        if !chunk.is_empty() && core::mem::take(&mut self.after_cr) {
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while let Some(length) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (line, end) = rest.split_at(length);
            rest = match end {
                [b'\r', b'\n', tail @ ..] => tail,
                [b'\r'] => {
                    self.after_cr = true;
                    &[]
                }
                [_, tail @ ..] => tail,
                [] => &[],
            };
            self.close(line, &mut on_line);
        }
        if !rest.is_empty() {
            self.keep(rest);
        }
    }

    /// Hands on the line that the stream's end left open, if there is one.
    pub(super) fn finish(&mut self, mut on_line: impl FnMut(Line<'_>)) {
        if !self.open.is_empty() {
            self.close(&[], &mut on_line);
        }
    }

    fn close(&mut self, tail: &[u8], on_line: &mut impl FnMut(Line<'_>)) {
        if self.open.is_empty() && tail.len() <= MAX_LINE_BYTES {
            on_line(Line { bytes: self.without_mark(tail), cut: false });
        } else {
            self.keep(tail);
            let open = core::mem::take(&mut self.open);
            on_line(Line { bytes: self.without_mark(&open), cut: self.cut });
            self.open = open;
            self.open.clear();
            self.cut = false;
        }
        self.past_first_line = true;
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = MAX_LINE_BYTES.saturating_sub(self.open.len());
        match bytes.split_at_checked(room) {
            Some((head, tail)) => {
                self.open.extend_from_slice(head);
                self.cut |= !tail.is_empty();
            }
            None => self.open.extend_from_slice(bytes),
        }
    }

    fn without_mark<'a>(&self, line: &'a [u8]) -> &'a [u8] {
        if self.past_first_line { line } else { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<(Vec<u8>, bool)> {
        let mut seen = Vec::new();
        let mut lines = Lines::default();
        for chunk in chunks {
            lines.push(chunk, |line| seen.push((line.bytes.to_vec(), line.cut)));
        }
        lines.finish(|line| seen.push((line.bytes.to_vec(), line.cut)));
        seen
    }

    #[test]
    fn all_three_line_ends_end_one_line_each() {
        let expected: Vec<_> =
            [&b"a"[..], b"", b"b", b"", b"c", b"d", b"e"].map(|line| (line.to_vec(), false)).into();
        assert_eq!(lines(&[b"a\n\nb\r\rc\r\nd\n\re"]).len(), 8, "LF CR are two ends");
        assert_eq!(lines(&[b"a\n\nb\r\rc\r\nd\ne"]), expected);
        assert_eq!(lines(&[b"a\n\nb\r", b"\rc\r", b"\nd\ne"]), expected);
        assert_eq!(lines(&[b"a\n\nb\r", b"", b"\rc\r", b"", b"\nd\ne"]), expected);
    }

    #[test]
    fn a_byte_order_mark_is_dropped_at_the_start_only() {
        let expected = vec![(b"a".to_vec(), false), (b"\xef\xbb\xbfb".to_vec(), false)];
        assert_eq!(lines(&[b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n"]), expected);
        assert_eq!(lines(&[b"\xef", b"\xbb", b"\xbf", b"a\n\xef\xbb\xbfb\n"]), expected);
    }

    #[test]
    fn an_overlong_line_is_cut_and_the_next_is_whole_again() {
        let long = [b"x".repeat(MAX_LINE_BYTES + 1), b"\nshort\n".to_vec()].concat();
        for step in [1000, MAX_LINE_BYTES, MAX_LINE_BYTES + 1, long.len()] {
            let chunks: Vec<&[u8]> = long.chunks(step).collect();
            let seen = lines(&chunks);
            assert_eq!(seen.len(), 2);
            assert_eq!((seen[0].0.len(), seen[0].1), (MAX_LINE_BYTES, true), "chunks of {step}");
            assert_eq!(seen[1], (b"short".to_vec(), false));
        }
    }

    #[test]
    fn an_endless_line_holds_bounded_memory() {
        let mut lines = Lines::default();
        for _ in 0..1000 {
            lines.push(&[b'x'; 4096], |_| {});
        }
        assert!(lines.open.capacity() <= 2 * MAX_LINE_BYTES);
    }
}
