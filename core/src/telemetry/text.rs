//! The Prometheus text format, line by line, without copying.
//!
//! Reads what exposition formats 0.0.4 and OpenMetrics 1.0 have in common: `name{label="value"} number`,
//! with a timestamp or an exemplar after it that are not looked at. A line that is not of that form is
//! skipped: half a page is better than none, and what is needed and missing shows by its absence.

use super::scan;

/// Lines read of one page. Pages of engines have 20 to 700; ranks and LoRA adapters multiply them.
const MAX_LINES: usize = 50_000;
/// A longer line is skipped. The longest in use, vLLM's `cache_config_info`, has about 1,200 bytes.
const MAX_LINE_BYTES: usize = 16 << 10;
/// Labels read of one series.
const MAX_LABELS: usize = 128;

/// One sample line, read as far as its name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Series<'a> {
    /// Name of the metric.
    pub(super) name: &'a [u8],
    /// What follows the name.
    rest: &'a [u8],
}

/// The sample lines of a page.
pub(super) fn series(page: &[u8]) -> impl Iterator<Item = Series<'_>> {
    Lines { rest: page }.take(MAX_LINES).filter_map(Series::of_line)
}

/// The lines of a page.
struct Lines<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let (line, rest) = self.rest.split_at_checked(scan::newline(self.rest).unwrap_or(self.rest.len()))?;
        self.rest = rest.get(1..).unwrap_or_default();
        Some(line)
    }
}

impl<'a> Series<'a> {
    fn of_line(line: &'a [u8]) -> Option<Self> {
        let line = line.trim_ascii_start();
        if line.len() > MAX_LINE_BYTES || line.starts_with(b"#") {
            return None;
        }
        let (name, rest) = line.split_at_checked(scan::name_end(line)?)?;
        (!name.is_empty()).then_some(Self { name, rest: rest.trim_ascii_start() })
    }

    /// The labels, in the order of the page.
    pub(super) fn labels(&self) -> Labels<'a> {
        Labels { rest: self.rest.strip_prefix(b"{").unwrap_or_default(), left: MAX_LABELS }
    }

    /// The value; `None` when the line is malformed. May be NaN or infinite.
    pub(super) fn value(&self) -> Option<f64> {
        let rest = if self.rest.starts_with(b"{") {
            let mut labels = self.labels();
            while labels.next().is_some() {}
            labels.rest.strip_prefix(b"}")?
        } else {
            self.rest
        };
        let number = rest.trim_ascii_start().split(|byte| byte.is_ascii_whitespace()).next()?;
        // `+Inf`, `-Inf`, `NaN` and exponents are in Rust's own grammar too.
        core::str::from_utf8(number).ok()?.parse().ok()
    }
}

/// Iterator over a series' labels. Stops at the closing brace, or where the text is malformed.
#[derive(Debug, Clone)]
pub(super) struct Labels<'a> {
    rest: &'a [u8],
    left: usize,
}

/// A label. The value is as the page writes it: with its escapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label<'a> {
    pub(super) name: &'a [u8],
    pub(super) value: &'a [u8],
}

impl Label<'_> {
    /// The value as a number; `None` when it is none.
    pub(super) fn number(&self) -> Option<f64> {
        core::str::from_utf8(self.value).ok()?.parse().ok()
    }
}

impl<'a> Iterator for Labels<'a> {
    type Item = Label<'a>;

    fn next(&mut self) -> Option<Label<'a>> {
        let rest = self.rest.trim_ascii_start();
        self.rest = rest;
        self.left = self.left.checked_sub(1)?;
        let equals = rest.iter().position(|byte| matches!(byte, b'=' | b'}' | b'"'))?;
        let (name, rest) = rest.split_at_checked(equals)?;
        let quoted = rest.strip_prefix(b"=")?.trim_ascii_start().strip_prefix(b"\"")?;
        let (value, rest) = quoted.split_at_checked(closing_quote(quoted)?)?;
        let rest = rest.strip_prefix(b"\"")?.trim_ascii_start();
        self.rest = rest.strip_prefix(b",").unwrap_or(rest).trim_ascii_start();
        Some(Label { name: name.trim_ascii(), value })
    }
}

/// Where a quoted text ends: at the first quote that no backslash precedes.
fn closing_quote(quoted: &[u8]) -> Option<usize> {
    let mut escaped = false;
    quoted.iter().position(|byte| {
        let closes = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        closes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read = (String, Vec<(String, String)>, Option<f64>);

    fn one(line: &str) -> Option<Read> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let mut all = series(line.as_bytes());
        let series = all.next()?;
        assert!(all.next().is_none());
        let labels = series.labels().map(|label| (text(label.name), text(label.value))).collect();
        Some((text(series.name), labels, series.value()))
    }

    fn value(line: &str) -> Option<f64> {
        one(line).and_then(|(_, _, value)| value)
    }

    #[test]
    fn help_type_and_empty_lines_are_no_series() {
        for line in ["", "# HELP a b", "# TYPE a counter", "  # EOF", "\r", "name_alone"] {
            assert_eq!(one(line), None, "{line}");
        }
    }

    #[test]
    fn names_labels_and_values_are_read_in_every_common_spelling() {
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        for line in [
            "a{x=\"1\",y=\"2\"} 3",
            "a{x=\"1\",y=\"2\",} 3.0\r",
            " a { x = \"1\" , y = \"2\" }\t3e0 1700000000000",
        ] {
            let (name, labels, value) = one(line).unwrap();
            assert_eq!((name.as_str(), value), ("a", Some(3.0)), "{line}");
            assert_eq!(labels, [label("x", "1"), label("y", "2")], "{line}");
        }
        assert_eq!(one("a 7").unwrap(), ("a".to_owned(), vec![], Some(7.0)));
        assert_eq!(one("a{} 7").unwrap(), ("a".to_owned(), vec![], Some(7.0)));
        assert_eq!(value("a{x=\"1\"} 5 # {trace=\"q\"} 9 1.5"), Some(5.0));
    }

    #[test]
    fn braces_quotes_and_newlines_inside_a_label_do_not_end_it() {
        let (_, labels, value) = one(r#"a{x="} 1 \" {\\",y="\n,",z="="} 2"#).unwrap();
        let values: Vec<&str> = labels.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, [r#"} 1 \" {\\"#, r"\n,", "="]);
        assert_eq!(value, Some(2.0));
    }

    #[test]
    fn numbers_may_be_exponents_infinite_or_none() {
        assert_eq!(value("a 8.128902e+06"), Some(8_128_902.0));
        assert_eq!(value("a +Inf"), Some(f64::INFINITY));
        assert_eq!(value("a -Inf"), Some(f64::NEG_INFINITY));
        assert!(value("a NaN").unwrap().is_nan());
        for line in [
            "a x",
            "a ",
            "a{",
            "a{x",
            "a{x=",
            "a{x=\"1",
            "a{x=\"1\"",
            "a{x=\"1\"}",
            "a{x=\"1\"} ",
            "a{x=\"1\\\"} 2",
            "a{=} 2",
        ] {
            assert_eq!(value(line), None, "{line}");
        }
    }

    #[test]
    fn a_page_costs_bounded_work() {
        let many = "a 1\n".repeat(60_000);
        assert_eq!(series(many.as_bytes()).count(), MAX_LINES);
        let long = format!("a{{x=\"{}\"}} 1\nb 1\n", "y".repeat(20_000));
        assert_eq!(series(long.as_bytes()).count(), 1);
        let labels = format!("a{{{}}} 1", "x=\"\",".repeat(3000));
        assert_eq!(series(labels.as_bytes()).next().unwrap().labels().count(), MAX_LABELS);
    }
}
