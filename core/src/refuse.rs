//! The answer to a request that is sent to no pod: status, headers, and a body that clients of the API understand.
//!
//! Never a 500: what the router decides is no failure. The body has the shape of the API's own errors, so that
//! client libraries raise what they raise for a busy provider (429) or a bad request (400), and retry or do not.

use serde::Serialize;

use crate::asked::Unreadable;
use crate::fallback::Refusal;
use crate::request::Api;
use crate::shed::Shed;

/// Names the [`Refusal`] in the answer.
pub const REASON_HEADER: &str = "x-foretoken-reason";

/// An answer of the filter's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Why there is one.
    pub refusal: Refusal,
    /// Header names and values.
    pub headers: Vec<(&'static str, String)>,
    /// JSON.
    pub body: String,
}

#[derive(Serialize)]
struct Body<'a> {
    /// Anthropic's bodies say what they are.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    error: Problem<'a>,
}

#[derive(Serialize)]
struct Problem<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    param: Option<Option<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'a str>,
}

fn answer(
    api: Api,
    refusal: Refusal,
    message: &str,
    param: Option<&str>,
    more: Option<(&'static str, String)>,
) -> Answer {
    let kind = if refusal.status() == 429 { "rate_limit_error" } else { "invalid_request_error" };
    let body = if api == Api::Messages {
        Body { kind: Some("error"), error: Problem { message, kind, param: None, code: None } }
    } else {
        let error = Problem { message, kind, param: Some(param), code: Some(refusal.name()) };
        Body { kind: None, error }
    };
    let mut headers =
        vec![("content-type", "application/json".to_owned()), (REASON_HEADER, refusal.name().to_owned())];
    headers.extend(more);
    Answer { refusal, headers, body: serde_json::to_string(&body).unwrap_or_default() }
}

/// The answer to a request that is shed: 429 with `retry-after`.
#[must_use]
pub fn shed(api: Api, shed: &Shed) -> Answer {
    let what = match shed.refusal {
        Refusal::ShedTpot => "per output token",
        _ => "to the first token",
    };
    let message = format!(
        "all replicas are busy: none would keep to {:.0} ms {what}, and this request may be shed; retry after {} s",
        shed.target_ms, shed.retry_after_s
    );
    answer(api, shed.refusal, &message, None, Some(("retry-after", shed.retry_after_s.to_string())))
}

/// The answer to a request with a header that cannot be read: 400.
#[must_use]
pub fn unreadable(api: Api, unreadable: Unreadable) -> Answer {
    let Unreadable { header, refusal } = unreadable;
    let fix = match refusal {
        Refusal::MalformedPriority => "send one whole number, or the name of an objective",
        _ => "send one time in milliseconds, above 0 and up to 3600000, digits only",
    };
    answer(api, refusal, &format!("request header `{header}` cannot be read: {fix}"), Some(header), None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const SHED: Shed = Shed { refusal: Refusal::ShedTtft, target_ms: 2000.0, retry_after_s: 7 };

    #[test]
    fn what_is_shed_is_told_when_to_come_back() {
        let answer = shed(Api::Chat, &SHED);
        assert_eq!(answer.refusal.status(), 429);
        assert!(answer.headers.contains(&("retry-after", "7".to_owned())));
        assert!(answer.headers.contains(&(REASON_HEADER, "shed_ttft".to_owned())));
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        let error = &body["error"];
        assert_eq!(
            (error["type"].as_str(), error["code"].as_str()),
            (Some("rate_limit_error"), Some("shed_ttft"))
        );
        assert!(error["param"].is_null() && error.get("param").is_some(), "OpenAI's errors always have it");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("2000 ms to the first token") && message.contains("7 s"), "{message}");
    }

    #[test]
    fn anthropics_clients_get_an_error_of_their_own_shape() {
        let body: Value = serde_json::from_str(&shed(Api::Messages, &SHED).body).unwrap();
        assert_eq!(
            (body["type"].as_str(), body["error"]["type"].as_str()),
            (Some("error"), Some("rate_limit_error"))
        );
        assert!(body["error"].get("code").is_none());
    }

    #[test]
    fn an_unreadable_header_is_named_with_the_fix() {
        for (refusal, fix) in
            [(Refusal::MalformedTtftTarget, "milliseconds"), (Refusal::MalformedPriority, "objective")]
        {
            let answer = unreadable(Api::Completions, Unreadable { header: "x-some-header", refusal });
            assert_eq!(answer.refusal.status(), 400);
            let body: Value = serde_json::from_str(&answer.body).unwrap();
            assert_eq!(body["error"]["param"], "x-some-header");
            assert_eq!(body["error"]["type"], "invalid_request_error");
            let message = body["error"]["message"].as_str().unwrap();
            assert!(message.contains("`x-some-header`") && message.contains(fix), "{message}");
        }
    }
}
