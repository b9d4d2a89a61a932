//! From a request's headers to its pick.
//!
//! The headers are held while the body comes, because the pick needs the body and a pick must be in the headers
//! when they go on. That takes `allow_on_headers_stop_iteration: true` in Envoy's configuration; without it
//! Envoy holds the body back as well and the request waits until its client gives up.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use foretoken_core::asked::Asked;
use foretoken_core::config::{BodyMode, Malformed, PickForm, Trust};
use foretoken_core::explain::explain;
use foretoken_core::fallback::Reason;
use foretoken_core::refuse::{self, Answer};
use foretoken_core::request::{
    Api, BlockOptions, LlmRequest, Prompt, RequestError, api_of_path, read_request,
};
use foretoken_core::router::{Choice, Decision};
use foretoken_core::telemetry::orca::FORMAT_HEADER;

use super::{EXPLAIN_HEADER, Flow, OWN_PREFIX, Phase, Routed, Stream};
use crate::host::pairs::pairs;
use crate::host::{Buffer, Headers, HostError};
use crate::metrics::Metric;

/// Prompt blocks that are hashed: 1 MiB of prompt at the default block size.
const MAX_PROMPT_BLOCKS: u32 = 4096;

/// Names the model of a request whose body is not read.
const MODEL_HEADER: &[u8] = b"x-foretoken-model";

/// Filter state `wasm.foretoken`: in access logs `%FILTER_STATE(wasm.foretoken:PLAIN)%`.
const LOG_PROPERTY: &str = "foretoken";

/// What is read of a request's headers.
#[derive(Debug, Default, PartialEq)]
struct Head {
    api: Option<Api>,
    is_post: bool,
    content_length: Option<u64>,
    encoded: bool,
    wants_explain: bool,
    wants_load_report: bool,
    model: String,
    asked: Asked,
    /// Names of the headers with targets and priorities.
    asking: Vec<String>,
    /// Names of headers that only the filter may set.
    to_remove: Vec<String>,
}

fn read_head(packed: &[u8], pick_header: &str) -> Head {
    let mut head = Head::default();
    for (name, value) in pairs(packed) {
        match name {
            b":path" => head.api = core::str::from_utf8(value).ok().and_then(api_of_path),
            b":method" => head.is_post = value == b"POST",
            b"content-length" => {
                head.content_length =
                    core::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
            }
            b"content-encoding" => {
                head.encoded |= !value.is_empty() && !value.eq_ignore_ascii_case(b"identity");
            }
            _ if name == FORMAT_HEADER.as_bytes() => head.wants_load_report = true,
            _ if name == pick_header.as_bytes() || name.starts_with(OWN_PREFIX) => {
                head.wants_explain |= name == EXPLAIN_HEADER.as_bytes() && value == b"1";
                if name == MODEL_HEADER {
                    head.model = core::str::from_utf8(value).unwrap_or_default().to_owned();
                }
                head.asked.take(name, value);
                // Envoy's names are lower-case ASCII.
                head.to_remove.extend(core::str::from_utf8(name).ok().map(str::to_owned));
            }
            _ if head.asked.take(name, value) => {
                head.asking.extend(core::str::from_utf8(name).ok().map(str::to_owned));
            }
            _ => {}
        }
    }
    head
}

/// The pick as the header carries it.
fn pick_value(choices: &[Choice], form: PickForm) -> String {
    match form {
        PickForm::List => choices.iter().map(|choice| choice.address.as_str()).collect::<Vec<_>>().join(","),
        PickForm::StatefulSession => {
            choices.first().map(|choice| STANDARD.encode(&choice.address)).unwrap_or_default()
        }
    }
}

/// One line for access logs.
fn log_line(decision: &Decision) -> String {
    let Some(pick) = decision.choices.first() else { return String::new() };
    let mut line = format!(
        "pod={} rung={} generation={} ttft_ms={:.1} tpot_ms={:.2} candidates={}",
        pick.address,
        decision.rung.name(),
        decision.generation,
        pick.prediction.ttft_ms_p50,
        pick.prediction.tpot_ms_p50,
        decision.candidates
    );
    if decision.terms.priority != 0 {
        line.push_str(&format!(" priority={}", decision.terms.priority));
    }
    if let Some(in_time) = decision.in_time {
        line.push_str(&format!(" in_time={in_time}"));
    }
    if let Some(shed) = decision.shed {
        line.push_str(&format!(" refused={} retry_after_s={}", shed.refusal.name(), shed.retry_after_s));
    }
    line
}

/// A request of which only the length is known. The tokens count as given: 4 bytes each, to learn nothing of a
/// model's tokens from a body that was not read.
fn unread_request(api: Api, model: &str, content_length: Option<u64>) -> LlmRequest {
    let bytes = content_length.map_or(0, |length| u32::try_from(length).unwrap_or(u32::MAX));
    LlmRequest {
        api,
        model: model.to_owned(),
        stream: false,
        include_usage: false,
        max_tokens: None,
        prompt: Prompt { text_bytes: bytes, exact_tokens: Some(bytes / 4), ..Prompt::default() },
    }
}

impl Stream {
    /// The request's headers came.
    pub fn request_headers(&mut self, end_of_stream: bool) -> Flow {
        let host = self.vm.host();
        self.started_us = host.now_us();
        let Some((state, config)) = &self.routing else { return Flow::Continue };
        self.vm.metrics().add(host, Metric::Requests, 1);
        if let Ok(mut state) = state.try_borrow_mut() {
            state.note_served();
        }
        let head = match host.headers(Headers::Request) {
            Ok(packed) => read_head(&packed, &config.pick.header),
            Err(error) => {
                // Unseen, a pick of the client's own would be obeyed.
                let removed = host.remove_header(Headers::Request, &config.pick.header);
                self.complain(&removed.err().unwrap_or(error));
                return self.fall_back(Reason::HostCall);
            }
        };
        for name in &head.to_remove {
            if let Err(error) = host.remove_header(Headers::Request, name) {
                self.complain(&error);
                return self.fall_back(Reason::HostCall);
            }
        }
        let config = Arc::clone(config);
        let route = self.route(&config);
        if !config.slo.forward_headers || route.trust == Trust::None {
            for name in &head.asking {
                if let Err(error) = host.remove_header(Headers::Request, name) {
                    self.complain(&error);
                    return self.fall_back(Reason::HostCall);
                }
            }
        }
        let (terms, unreadable) = head.asked.terms(&route, &config.priority.objectives);
        self.terms = terms;
        if let (true, Some(api), Some(unreadable)) = (route.enabled, head.api, unreadable) {
            self.vm.metrics().add(host, Metric::Malformed(unreadable.refusal), 1);
            if config.slo.malformed == Malformed::Reject {
                return self.refuse(&refuse::unreadable(api, unreadable));
            }
        }
        let longest = u64::from(config.request.max_body_bytes);
        self.wants_explain = head.wants_explain && config.explain.allow;
        self.wants_load_report = head.wants_load_report;
        let unread = route.body == BodyMode::None;
        match head.api {
            _ if !route.enabled => self.fall_back(Reason::RouteOff),
            None => self.fall_back(Reason::UnknownPath),
            Some(_) if !head.is_post => self.fall_back(Reason::Method),
            Some(_) if end_of_stream || head.content_length == Some(0) => self.fall_back(Reason::NoBody),
            Some(api) if unread => {
                let request = unread_request(api, &head.model, head.content_length);
                let picked = self.choose(request, self.started_us);
                self.settle(picked)
            }
            Some(_) if head.encoded => self.fall_back(Reason::BodyEncoded),
            Some(_) if head.content_length.is_some_and(|length| length > longest) => {
                self.fall_back(Reason::BodyTooLarge)
            }
            Some(api) => {
                self.phase = Phase::Holding(api);
                Flow::Hold
            }
        }
    }

    /// The body has grown to `body_size` bytes.
    pub fn request_body(&mut self, body_size: usize, end_of_stream: bool) -> Flow {
        self.body_seen = true;
        if matches!(self.phase, Phase::Answered) {
            return Flow::Hold;
        }
        let (Phase::Holding(api), Some((_, config))) = (&self.phase, &self.routing) else {
            return Flow::Continue;
        };
        let api = *api;
        if body_size > usize::try_from(config.request.max_body_bytes).unwrap_or(usize::MAX) {
            return self.fall_back(Reason::BodyTooLarge);
        }
        if !end_of_stream {
            return Flow::Hold;
        }
        self.pick(api, body_size)
    }

    /// Trailers came: the body is whole, though no part of it was marked as the last.
    pub fn request_trailers(&mut self) -> Flow {
        let (Phase::Holding(api), Some((_, config))) = (&self.phase, &self.routing) else {
            return Flow::Continue;
        };
        let (api, longest) = (*api, usize::try_from(config.request.max_body_bytes).unwrap_or(usize::MAX));
        self.pick(api, longest)
    }

    fn pick(&mut self, api: Api, body_size: usize) -> Flow {
        let picked = self.read(api, body_size).and_then(|(request, read_us)| self.choose(request, read_us));
        self.settle(picked)
    }

    fn settle(&mut self, picked: Result<Routed, NoPick>) -> Flow {
        match picked {
            Ok(routed) => {
                let (rung, reason) = (routed.dispatch.rung, routed.dispatch.reason);
                self.phase = Phase::Routed(Box::new(routed));
                let (host, metrics) = (self.vm.host(), self.vm.metrics());
                metrics.add(host, Metric::Picks(rung), 1);
                if let Some(reason) = reason {
                    metrics.add(host, Metric::Fallback(reason), 1);
                }
                Flow::Continue
            }
            Err(NoPick::Reason(reason)) => self.fall_back(reason),
            Err(NoPick::Refused(answer)) => self.refuse(&answer),
            Err(NoPick::Host(error)) => {
                self.complain(&error);
                self.fall_back(Reason::HostCall)
            }
            Err(NoPick::Busy) => self.fall_back(Reason::HostCall),
        }
    }

    /// Reads the body. Gives the time at which that was done, too.
    fn read(&self, api: Api, body_size: usize) -> Result<(LlmRequest, u64), NoPick> {
        let (host, metrics) = (self.vm.host(), self.vm.metrics());
        let (_, config) = self.routing.as_ref().ok_or(NoPick::Busy)?;
        let began_us = host.now_us();
        let body = host.bytes(Buffer::RequestBody, body_size)?;
        if body.is_empty() {
            return Err(NoPick::Reason(Reason::NoBody));
        }
        let options = BlockOptions { block_bytes: config.prefix.block_bytes, max_blocks: MAX_PROMPT_BLOCKS };
        let request = read_request(api, &body, options).map_err(|error| {
            log::debug!("passed on unread: {error}");
            NoPick::Reason(match error {
                RequestError::NotJson(_) => Reason::BodyNotJson,
                RequestError::NotRequest(_) => Reason::BodyNotRequest,
            })
        })?;
        drop(body);
        let read_us = host.now_us();
        metrics.record(host, Metric::BodyUs, read_us.saturating_sub(began_us));
        Ok((request, read_us))
    }

    fn choose(&self, request: LlmRequest, read_us: u64) -> Result<Routed, NoPick> {
        let (host, metrics) = (self.vm.host(), self.vm.metrics());
        let (state, config) = self.routing.as_ref().ok_or(NoPick::Busy)?;
        let mut state = state.try_borrow_mut().map_err(|_| NoPick::Busy)?;
        state.sync(host, read_us);
        let decision = state.router.decide_on(&request, &self.terms, read_us).map_err(NoPick::Reason)?;
        let decided_us = host.now_us();
        let decision_us = decided_us.saturating_sub(read_us);
        metrics.record(host, Metric::DecisionUs, decision_us);
        if let Some(reason) = decision.widened {
            metrics.add(host, Metric::Fallback(reason), 1);
        }
        if let Err(error) = host.set_property(LOG_PROPERTY, log_line(&decision).as_bytes()) {
            state.complain(&error, decided_us);
        }
        if let Some(shed) = &decision.shed {
            return Err(NoPick::Refused(refuse::shed(request.api, shed)));
        }
        host.set_header(
            Headers::Request,
            &config.pick.header,
            &pick_value(&decision.choices, config.pick.form),
        )?;
        if config.telemetry.orca_request && !self.wants_load_report {
            host.set_header(Headers::Request, FORMAT_HEADER, "TEXT")?;
        }
        let (dispatch, segment) = state.router.dispatch(&decision, &request, self.started_us, decided_us);
        state.publish(host, segment, decided_us);
        Ok(Routed {
            dispatch,
            explain: self.wants_explain.then(|| explain(&decision, decision_us)),
            status: 0,
            attempts: 0,
            streamed: false,
            tail: request.prompt.tail,
            reader: None,
            tokens: 0,
            summary: None,
            ended: false,
        })
    }
}

/// Why there is no pick.
enum NoPick {
    Reason(Reason),
    /// It is answered here.
    Refused(Answer),
    Host(HostError),
    /// Another callback holds the state: cannot happen in one thread, and must not matter if it does.
    Busy,
}

impl From<HostError> for NoPick {
    fn from(error: HostError) -> Self {
        Self::Host(error)
    }
}
