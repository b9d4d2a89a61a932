//! Facts and times to a summary.
//!
//! Two counts of output tokens run side by side: events that carried one, and what the engine reports. The
//! reported count holds; events since the last report are added to it, so that a stream that
//! breaks off between two reports is not short of them.

use super::event::Facts;
use super::{EventCount, Progress, Summary, Usage};
use crate::sample::TokenSource;

/// What has been seen of one body.
#[derive(Debug, Default)]
pub(super) struct Tally {
    first_token_us: Option<u64>,
    last_token_us: Option<u64>,
    /// Tokens by events, over the whole body.
    counted: u32,
    /// Tokens by the engine's last report, and which kind of report it was.
    reported: Option<(u32, TokenSource)>,
    /// Tokens by events since that report.
    since_report: u32,
    /// The largest count that was shown: [`Progress::tokens`] does not fall.
    shown: u32,
    usage: Usage,
    timings: Usage,
    ended: bool,
    error: bool,
    /// Parts of events that carried tokens, the bytes of their text, and whether every one of them said how many
    /// tokens it held.
    parts: u32,
    bytes: u32,
    unstated_parts: u32,
}

impl Tally {
    /// Takes one event, received at `now_us`.
    pub(super) fn event(&mut self, facts: &Facts, now_us: u64) {
        self.error |= facts.error;
        self.ended |= facts.ended;
        self.parts = self.parts.saturating_add(facts.parts);
        self.bytes = self.bytes.saturating_add(facts.bytes);
        if !facts.stated {
            self.unstated_parts = self.unstated_parts.saturating_add(facts.parts);
        }
        self.usage = facts.usage.unwrap_or_default().or(self.usage);
        self.timings = facts.timings.unwrap_or_default().or(self.timings);

        let before = self.tokens();
        let had_report = self.reported.is_some();
        let report = self.report_in(facts);
        match report {
            Some(report) => {
                self.reported = Some(report);
                self.since_report = 0;
            }
            None => self.since_report = self.since_report.saturating_add(facts.tokens),
        }
        self.counted = self.counted.saturating_add(facts.tokens);

        // With usage in every event, a count that rises is a token even where its text was withheld
        // (parsers of reasoning and tool calls do that).
        let count_rose = had_report && facts.of_choice && report.is_some_and(|(tokens, _)| tokens > before);
        if facts.tokens > 0 || count_rose {
            self.first_token_us = self.first_token_us.or(Some(now_us));
            self.last_token_us = Some(now_us);
        }
    }

    /// The count that this event reports. `usage` outranks `timings`, and a zero after tokens is a
    /// placeholder of servers that fill `usage` in at the end.
    fn report_in(&self, facts: &Facts) -> Option<(u32, TokenSource)> {
        let tokens_in = |usage: Option<Usage>| usage.and_then(|usage| usage.completion_tokens);
        let usage = tokens_in(facts.usage).map(|tokens| (tokens, TokenSource::Usage));
        let timings = || tokens_in(facts.timings).map(|tokens| (tokens, TokenSource::Timings));
        let has_usage = matches!(self.reported, Some((_, TokenSource::Usage)));
        let report = usage.or_else(|| if has_usage { None } else { timings() });
        let seen = self.counted.saturating_add(facts.tokens);
        report.filter(|(tokens, _)| *tokens > 0 || seen == 0)
    }

    /// The format's own end was seen.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// An error was seen outside of an event's JSON.
    pub(super) fn error(&mut self) {
        self.error = true;
    }

    pub(super) fn has_token(&self) -> bool {
        self.first_token_us.is_some()
    }

    fn tokens(&self) -> u32 {
        match self.reported {
            Some((tokens, _)) => tokens.saturating_add(self.since_report),
            None => self.counted,
        }
    }

    pub(super) fn progress(&mut self, first_token: bool) -> Progress {
        self.shown = self.shown.max(self.tokens());
        Progress { tokens: self.shown, first_token }
    }

    /// What the body said; the answer's blocks are not known here.
    pub(super) fn summary(&self) -> Summary {
        Summary {
            first_token_us: self.first_token_us,
            last_token_us: self.last_token_us,
            output_tokens: self.tokens(),
            tokens_from: self.reported.map_or(TokenSource::Events, |(_, source)| source),
            usage: self.usage.or(self.timings),
            events: EventCount {
                parts: self.parts,
                bytes: self.bytes,
                stated: self.parts > 0 && self.unstated_parts == 0,
            },
            end_us: None,
            complete: self.ended,
            error: self.error,
            answer_blocks: Vec::new(),
        }
    }
}
