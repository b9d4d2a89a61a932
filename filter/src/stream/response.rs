//! From the response's headers to the sample.
//!
//! A request is over at the response's last byte, or when Envoy says that the stream is closed, whichever comes
//! first; its books are closed exactly once.

use foretoken_core::config::PickForm;
use foretoken_core::num::u64_of_f64;
use foretoken_core::response::BodyForm;
use foretoken_core::response::{ResponseReader, form_of_content_type};
use foretoken_core::router::Outcome;
use foretoken_core::sample::{Ending, Sample};
use foretoken_core::slo::Attained;
use foretoken_core::telemetry::LoadReport;
use foretoken_core::telemetry::orca::{REPORT_HEADER, REPORT_HEADER_BINARY, read_report, read_report_binary};

use super::{EXPLAIN_HEADER, Phase, Stream};
use crate::host::{Buffer, Headers, Host};
use crate::metrics::{Metric, Target};
use crate::state::status_of;

/// Envoy's response flags for a client that went away (`CoreResponseFlag`: DownstreamConnectionTermination,
/// DownstreamRemoteReset).
const CLIENT_GONE_FLAGS: u64 = 1 << 14 | 1 << 28;

fn text_property(host: &dyn Host, path: &[&str]) -> Option<String> {
    String::from_utf8(host.property(path).ok()??).ok()
}

/// Envoy gives integers as eight little-endian bytes.
fn integer_property(host: &dyn Host, path: &[&str]) -> Option<u64> {
    let bytes = host.property(path).ok()??;
    bytes.try_into().ok().map(u64::from_le_bytes)
}

fn client_is_gone(host: &dyn Host) -> bool {
    integer_property(host, &["response", "flags"]).is_some_and(|flags| flags & CLIENT_GONE_FLAGS != 0)
        || text_property(host, &["response", "code_details"])
            .is_some_and(|details| details.starts_with("downstream"))
}

/// The load report that the response carries, if it does. A client that did not ask for it does not get it: how the
/// pods are loaded is nobody else's business. A header that cannot be removed harms nobody.
fn take_load_report(host: &dyn Host, client_asked: bool) -> Option<LoadReport> {
    let take = |name, read: fn(&[u8]) -> Option<LoadReport>| {
        let value = host.header(Headers::Response, name).ok().flatten()?;
        if !client_asked {
            let _ = host.remove_header(Headers::Response, name);
        }
        read(&value)
    };
    let text = take(REPORT_HEADER, read_report);
    take(REPORT_HEADER_BINARY, read_report_binary).or(text)
}

impl Stream {
    /// The response's headers came.
    pub fn response_headers(&mut self, end_of_stream: bool) {
        let (host, Some((state, config)), Phase::Routed(routed)) =
            (self.vm.host(), &self.routing, &mut self.phase)
        else {
            return;
        };
        let now_us = host.now_us();
        routed.status = status_of(host, Headers::Response);
        let header = |name| host.header(Headers::Response, name).ok().flatten();
        let content_type = header("content-type").and_then(|value| String::from_utf8(value).ok());
        let encoded =
            header("content-encoding").is_some_and(|value| !value.eq_ignore_ascii_case(b"identity"));
        let form = content_type.as_deref().and_then(form_of_content_type).filter(|_| !encoded);
        routed.streamed = form == Some(BodyForm::Sse);
        routed.reader = form
            .filter(|_| routed.status == 200)
            .map(|form| ResponseReader::with_answer(form, core::mem::take(&mut routed.tail)));
        routed.attempts = integer_property(host, &["upstream", "request_attempt_count"])
            .and_then(|attempts| u32::try_from(attempts).ok())
            .unwrap_or(0);
        let address = text_property(host, &["upstream", "address"]).filter(|address| !address.is_empty());
        let report = config.telemetry.orca.then(|| take_load_report(host, self.wants_load_report)).flatten();
        if let (Some(address), Ok(mut state)) = (address, state.try_borrow_mut()) {
            let segment = state.router.served_by(&mut routed.dispatch, &address, now_us);
            if segment.is_some() {
                state.publish(host, segment, now_us);
            }
            if let Some(report) = report {
                state.router.note_load_report(&address, &report, now_us);
                self.vm.metrics().add(host, Metric::LoadReports, 1);
            }
        }
        if let Some(explain) = routed.explain.take()
            && let Err(error) = host.set_header(Headers::Response, EXPLAIN_HEADER, &explain)
        {
            self.complain(&error);
        }
        // stateful_session tells the client when another pod than the picked one served.
        if config.pick.form == PickForm::StatefulSession
            && let Err(error) = host.remove_header(Headers::Response, &config.pick.header)
        {
            self.complain(&error);
        }
        if end_of_stream {
            self.response_ended();
        }
    }

    /// A part of the response's body came: `body_size` bytes.
    pub fn response_body(&mut self, body_size: usize, end_of_stream: bool) {
        let (host, Some((state, _)), Phase::Routed(routed)) =
            (self.vm.host(), &self.routing, &mut self.phase)
        else {
            return;
        };
        if body_size > 0
            && let Some(reader) = &mut routed.reader
        {
            let now_us = host.now_us();
            match host.bytes(Buffer::ResponseBody, body_size) {
                Ok(chunk) => {
                    let progress = reader.push(&chunk, now_us);
                    if progress.tokens != routed.tokens
                        && let Ok(mut state) = state.try_borrow_mut()
                    {
                        routed.tokens = progress.tokens;
                        if state.router.progress(&mut routed.dispatch, progress.tokens, now_us) {
                            state.publish(host, None, now_us);
                        } else {
                            state.publish_progress(host, now_us);
                        }
                    }
                }
                Err(error) => {
                    // With a part missing, what would be read is not what was sent.
                    routed.reader = None;
                    self.complain(&error);
                }
            }
        }
        if end_of_stream {
            self.response_ended();
        }
    }

    /// Trailers came: the body is whole.
    pub fn response_trailers(&mut self) {
        self.response_ended();
    }

    fn response_ended(&mut self) {
        let Phase::Routed(routed) = &mut self.phase else { return };
        let ending = match routed.reader.as_mut().map(|reader| reader.finish(self.vm.host().now_us())) {
            None => Ending::Complete,
            Some(summary) => {
                let ending = match (summary.error, summary.complete) {
                    (true, _) => Ending::Failed,
                    (false, true) => Ending::Complete,
                    (false, false) => Ending::Truncated,
                };
                routed.summary = Some(summary);
                ending
            }
        };
        self.end(ending);
    }

    /// Envoy is done with the stream. Comes twice (`on_log`, `on_done`).
    pub fn closed(&mut self) {
        let host = self.vm.host();
        match &mut self.phase {
            Phase::Passing | Phase::Answered => {}
            Phase::Holding(_) => {
                self.phase = Phase::Passing;
                if !self.body_seen
                    && let Some((state, _)) = &self.routing
                    && let Ok(mut state) = state.try_borrow_mut()
                {
                    state.hint_at_held_headers();
                }
            }
            Phase::Routed(routed) if routed.ended => {}
            Phase::Routed(routed) => {
                if let Some(reader) = &mut routed.reader {
                    routed.summary = Some(reader.finish(host.now_us()));
                }
                self.end(if client_is_gone(host) { Ending::Cancelled } else { Ending::Failed });
            }
        }
    }

    /// Closes the books on the request.
    fn end(&mut self, ending: Ending) {
        let (host, metrics) = (self.vm.host(), self.vm.metrics());
        let (Some((state, _)), Phase::Routed(routed)) = (&self.routing, &mut self.phase) else { return };
        let Ok(mut state) = state.try_borrow_mut() else { return };
        if core::mem::replace(&mut routed.ended, true) {
            return;
        }
        let now_us = host.now_us();
        let outcome = Outcome {
            status: routed.status,
            attempts: routed.attempts,
            streamed: routed.streamed,
            ending,
            summary: routed.summary.take(),
        };
        let Some((mut sample, segment)) = state.router.end(&mut routed.dispatch, &outcome, now_us) else {
            return;
        };
        // The router's clock is monotonic; a sample tells the time of day.
        sample.at_ms = host.wall_ms().saturating_sub(now_us.saturating_sub(self.started_us) / 1000);
        metrics.add(host, Metric::Ejections, state.router.take_ejections());
        state.publish(host, segment, now_us);
        if let (Some(estimate), Some(truth)) =
            (routed.dispatch.estimated_prompt_tokens(), sample.prompt_tokens)
        {
            metrics.record(host, Metric::TokenEstimateErrorPermille, error_permille(estimate, truth));
        }
        if sample.streamed && sample.status == 200 {
            record_times(&sample, |metric, ms| {
                metrics.record(host, metric, u64_of_f64(f64::from(ms).round()));
            });
        }
        let attained = Attained::of(routed.dispatch.targets(), &sample);
        for (target, met) in [(Target::Ttft, attained.ttft), (Target::Tpot, attained.tpot)] {
            match met {
                Some(true) => metrics.add(host, Metric::TargetsMet(target), 1),
                Some(false) => metrics.add(host, Metric::TargetsMissed(target), 1),
                None => {}
            }
        }
        state.take_sample(host, metrics, &sample, now_us);
    }
}

/// How far an estimate of prompt tokens was off, in thousandths of the true number (at least 1).
fn error_permille(estimate: f32, truth: u32) -> u64 {
    let truth = f64::from(truth);
    u64_of_f64(((f64::from(estimate) - truth).abs() / truth.max(1.0) * 1000.0).round())
}

fn record_times(sample: &Sample, record: impl Fn(Metric, f32)) {
    if let Some(ttft_ms) = sample.ttft_ms {
        record(Metric::TtftMs, ttft_ms);
    }
    if let Some(tpot_ms) = sample.tpot_ms {
        record(Metric::TpotMs, tpot_ms);
    }
}
