//! Telling how far the demo is: a bar on a terminal, plain lines otherwise. All of it on standard error, so
//! that standard output holds the result alone.

use std::cell::Cell;
use std::io::IsTerminal;

use foretoken_sim::load::{Progress, Report};
use indicatif::{ProgressBar, ProgressStyle};

/// Without a terminal: seconds between two lines.
const LINE_EVERY_S: f64 = 10.0;

/// Says one thing.
pub(super) fn line(text: &str) {
    eprintln!("demo: {text}");
}

/// Progress of one phase.
pub(super) struct Bar {
    name: String,
    bar: Option<ProgressBar>,
    next_line_s: Cell<f64>,
}

impl Bar {
    pub(super) fn new(name: &str, seconds: f64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(seconds.ceil().max(1.0) as u64);
            if let Ok(style) =
                ProgressStyle::with_template("demo: {prefix:<18} [{bar:30}] {pos}/{len} s  {msg}")
            {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_prefix(name.to_owned());
            bar
        });
        if bar.is_none() {
            line(&format!("{name} begins"));
        }
        Self { name: name.to_owned(), bar, next_line_s: Cell::new(LINE_EVERY_S) }
    }

    pub(super) fn show(&self, progress: Progress) {
        let message = format!(
            "{} answered, {} in flight, {} failed",
            progress.done, progress.in_flight, progress.failed
        );
        match &self.bar {
            Some(bar) => {
                bar.set_position(progress.seconds as u64);
                bar.set_message(message);
            }
            None if progress.seconds >= self.next_line_s.get() => {
                self.next_line_s.set(self.next_line_s.get() + LINE_EVERY_S);
                line(&format!("{} {:.0} s: {message}", self.name, progress.seconds));
            }
            None => {}
        }
    }

    pub(super) fn finish(&self, report: &Report) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        line(&format!(
            "{}: {} requests, {} failed, TTFT mean {:.0} ms, p90 {:.0} ms",
            self.name, report.requests, report.failed, report.ttft_ms.mean, report.ttft_ms.p90
        ));
    }
}
