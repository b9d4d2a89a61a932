//! The responses API, Anthropic's messages and embeddings are measured as completions are: when their first and
//! last token came, how many there were, how they ended, and what of them the next turn finds in the cache.
//!
//! The pod sends a token when the client has read the one before and says so. So a time in a sample lies, without
//! any margin, between the times that pod and client saw of it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use foretoken_core::features::{Feature, SCHEMA_ID};
use foretoken_core::sample::{Ending, Sample, TokenSource};
use foretoken_tests::envoy::{Envoy, Options};
use foretoken_tests::http::{self, EventStream};
use foretoken_tests::paths;
use foretoken_tests::samples::SampleSink;
use foretoken_tests::stepped::{Served, SteppedPod, StreamedApi};
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(20);

struct Bench {
    pod: SteppedPod,
    sink: SampleSink,
    envoy: Envoy,
}

impl Bench {
    async fn start(name: &str) -> Result<Self> {
        let pod = SteppedPod::start().await?;
        let sink = SampleSink::start().await?;
        let mut options = Options::new(&[pod.address()])?;
        // How workers hear of each other's requests is another test's matter.
        options.workers = 1;
        options.trainer = Some((sink.address(), sink.address()));
        let envoy = Envoy::start(name, &options, &paths::run_dir(name)?).await?;
        envoy.wait_for_pods(1, WITHIN).await?;
        Ok(Self { pod, sink, envoy })
    }

    /// The one sample that has come, and what the pod knows of the same request.
    async fn outcome(&mut self) -> Result<(Sample, Served)> {
        let served =
            tokio::time::timeout(WITHIN, self.pod.served()).await.context("the pod still serves")??;
        let mut samples = self.sink.take(1, WITHIN).await?;
        ensure!(samples.len() == 1, "one request, {} samples", samples.len());
        Ok((samples.remove(0), served))
    }

    /// Sends a request, and reads its answer token by token.
    async fn ask(&mut self, api: StreamedApi, body: &Value) -> Result<Turn> {
        let sent = Instant::now();
        let mut answer = EventStream::open(self.envoy.llm(), api.path(), body).await?;
        ensure!(answer.status == 200, "{}", answer.status);
        while !opened(&answer.next().await?.context("no event that opens the answer")?) {}
        // From here to Envoy to the pod took no longer than this. With twice that between the events, a time that
        // is taken of the event before or after the right one falls out of its bounds.
        let apart = 2 * sent.elapsed();
        tokio::time::sleep(apart).await;
        self.pod.step();
        let (mut text, mut read) = (String::new(), Vec::new());
        while let Some(event) = answer.next().await? {
            if let Some((is_reasoning, part)) = part_of(&event) {
                read.push(Instant::now());
                tokio::time::sleep(apart).await;
                self.pod.step();
                if !is_reasoning {
                    text.push_str(part);
                }
            }
        }
        let (sample, served) = self.outcome().await?;
        Ok(Turn { sent, read, text, sample, served })
    }
}

/// A request that was answered, as its client saw it, and what was measured of it.
struct Turn {
    sent: Instant,
    /// When each event with text was read.
    read: Vec<Instant>,
    text: String,
    sample: Sample,
    served: Served,
}

/// Whether this is an event that comes before the first token, and is none.
fn opened(event: &Value) -> bool {
    matches!(event["type"].as_str(), Some("response.in_progress" | "ping"))
}

/// The generated text in an event, and whether it is reasoning.
fn part_of(event: &Value) -> Option<(bool, &str)> {
    let delta = &event["delta"];
    match event["type"].as_str()? {
        "response.reasoning_text.delta" => Some((true, delta.as_str()?)),
        "response.output_text.delta" => Some((false, delta.as_str()?)),
        "content_block_delta" => match delta["type"].as_str()? {
            "thinking_delta" => Some((true, delta["thinking"].as_str()?)),
            "text_delta" => Some((false, delta["text"].as_str()?)),
            _ => None,
        },
        _ => None,
    }
}

fn ms(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64() * 1000.0
}

/// Whether a measured time is at least and at most these; clocks and samples round to less than 10 us.
fn lies_between(measured_ms: Option<f32>, least: f64, most: f64) -> bool {
    measured_ms.map(f64::from).is_some_and(|ms| ms >= least - 0.01 && ms <= most + 0.01)
}

/// What must hold for every whole streamed answer.
fn check_measured(turn: &Turn) {
    let Turn { sent, read, sample, served, .. } = turn;
    assert_eq!((sample.status, sample.streamed, sample.ending), (200, true, Ending::Complete), "{sample:?}");
    assert_eq!(
        (sample.attempts, sample.model.as_str(), sample.schema.as_str()),
        (1, "stepped", SCHEMA_ID),
        "{sample:?}"
    );
    assert!(sample.is_clean(), "it trains: {sample:?}");
    assert!(served.whole);
    assert_eq!(
        (sample.prompt_tokens, sample.cached_tokens, sample.output_tokens, sample.tokens_from),
        (Some(served.prompt_tokens), Some(served.cached_tokens), served.output_tokens, TokenSource::Usage)
    );

    assert_eq!(read.len(), served.sent.len());
    let (first, last) = (0, read.len() - 1);
    assert!(
        lies_between(sample.ttft_ms, ms(served.arrived, served.sent[first]), ms(*sent, read[first])),
        "the first token is the first reasoning: {sample:?}"
    );
    assert!(
        lies_between(sample.e2e_ms, ms(served.arrived, served.sent[last]), ms(*sent, read[last])),
        "the last token is the last text: {sample:?}"
    );
    let gaps = f64::from(served.output_tokens - 1);
    assert!(
        lies_between(
            sample.tpot_ms,
            ms(read[first], served.sent[last]) / gaps,
            ms(served.sent[first], read[last]) / gaps
        ),
        "all tokens of usage share the time from the first to the last: {sample:?}"
    );
}

/// Text of the prompt's that the pod's KV cache was expected to hold at the pick, in bytes.
fn expected_bytes(turn: &Turn, prompt_bytes: usize) -> usize {
    let feature = |feature: Feature| f64::from(turn.sample.features[feature as usize]);
    let share = feature(Feature::SurvivingTokens) / feature(Feature::PromptTokens);
    (share * prompt_bytes as f64) as usize
}

fn request(api: StreamedApi, turns: &Value) -> Value {
    match api {
        StreamedApi::Responses => {
            json!({"model": "stepped", "instructions": SYSTEM, "input": turns, "stream": true})
        }
        StreamedApi::Messages => {
            json!({"model": "stepped", "system": SYSTEM, "messages": turns, "max_tokens": 500, "stream": true})
        }
    }
}

/// An answer as clients send it back, with its reasoning.
fn history(api: StreamedApi, question: &str, answer: &str, next: &str) -> Value {
    let user = |text: &str| json!({"role": "user", "content": text});
    let reasoning = "The user wants something.";
    match api {
        StreamedApi::Responses => json!([
            user(question),
            {"type": "reasoning", "id": "rs_1", "summary": [],
             "content": [{"type": "reasoning_text", "text": reasoning}]},
            {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
             "content": [{"type": "output_text", "text": answer, "annotations": []}]},
            user(next)
        ]),
        StreamedApi::Messages => json!([
            user(question),
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": reasoning, "signature": "c2lnbmVk"},
                {"type": "text", "text": answer}]},
            user(next)
        ]),
    }
}

const SYSTEM: &str =
    "You answer in ten sentences of little content, one after the other, and never in fewer.";
const NEXT: &str = "And what follows from that?";

async fn a_conversation_is_measured(api: StreamedApi, name: &str) -> Result<()> {
    let mut bench = Bench::start(name).await?;
    let question = "What is to be said about a fox that jumps over a dog, as foxes do? ".repeat(12);
    let asked = json!([{"role": "user", "content": question}]);
    let first = bench.ask(api, &request(api, &asked)).await?;
    check_measured(&first);
    assert_eq!(first.served.cached_tokens, 0);

    // As long as the answer that was given, and not the one.
    let other = "Something else ".repeat(first.text.len() / 15);
    let control = bench.ask(api, &request(api, &history(api, &question, &other, NEXT))).await?;
    let second = bench.ask(api, &request(api, &history(api, &question, &first.text, NEXT))).await?;
    let prompt_bytes = SYSTEM.len() + question.len();
    let expected = |turn: &Turn, answer: &str| expected_bytes(turn, prompt_bytes + answer.len() + NEXT.len());
    for turn in [&control, &second] {
        check_measured(turn);
    }
    let (of_control, of_second) = (expected(&control, &other), expected(&second, &first.text));
    assert!(
        of_control > prompt_bytes / 2 && of_control <= prompt_bytes + 64,
        "another answer shares the first prompt, {prompt_bytes} bytes, and no more: {of_control}"
    );
    assert!(
        of_second > prompt_bytes + first.text.len() / 2,
        "the answer, {} bytes, is cached after the prompt, {prompt_bytes}: {of_second}",
        first.text.len()
    );
    // The engine, whose cache knows the words, agrees.
    assert!(control.sample.cached_tokens < first.sample.prompt_tokens);
    assert!(second.sample.cached_tokens > first.sample.prompt_tokens);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_response_is_measured_and_its_text_is_cached_for_the_next_turn() -> Result<()> {
    a_conversation_is_measured(StreamedApi::Responses, "apis-responses").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_message_is_measured_and_its_text_is_cached_for_the_next_turn() -> Result<()> {
    a_conversation_is_measured(StreamedApi::Messages, "apis-messages").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_in_the_middle_is_a_cancelled_sample() -> Result<()> {
    let mut bench = Bench::start("apis-cancelled").await?;
    for api in [StreamedApi::Responses, StreamedApi::Messages] {
        let asked = request(api, &json!([{"role": "user", "content": "Say much."}]));
        let mut answer = EventStream::open(bench.envoy.llm(), api.path(), &asked).await?;
        let mut parts = 0;
        while parts < 2 {
            bench.pod.step();
            while part_of(&answer.next().await?.context("the answer is over")?).is_none() {}
            parts += 1;
        }
        drop(answer);

        let (sample, served) = bench.outcome().await?;
        assert!(!served.whole && served.sent.len() == 2, "the pod was told: {served:?}");
        assert_eq!(
            (sample.status, sample.streamed, sample.ending),
            (200, true, Ending::Cancelled),
            "{api:?}"
        );
        assert_eq!((sample.output_tokens, sample.tokens_from), (2, TokenSource::Events), "{sample:?}");
        assert!(sample.ttft_ms < sample.e2e_ms && sample.ttft_ms.is_some(), "{sample:?}");
        assert_eq!(sample.tpot_ms, None, "an event holds many words, so events are no tokens: {sample:?}");
        // Anthropic's API tells the prompt's length at the start, the other one at the end.
        let told = (api == StreamedApi::Messages).then_some(served.prompt_tokens);
        assert_eq!(sample.prompt_tokens, told, "{api:?}");
        assert!(!sample.is_clean());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_embedding_has_an_end_and_prompt_tokens_and_no_token_times() -> Result<()> {
    let mut bench = Bench::start("apis-embeddings").await?;
    let body = json!({"model": "stepped", "input": "a fox jumps over a dog ".repeat(40)});
    let sent = Instant::now();
    let answer = http::post_json(bench.envoy.llm(), "/v1/embeddings", &[], &body).await?;
    let read = Instant::now();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()?["data"][0]["embedding"], json!([0.25, -0.5, 0.125]));

    let (sample, served) = bench.outcome().await?;
    assert_eq!((sample.status, sample.streamed, sample.ending), (200, false, Ending::Complete), "{sample:?}");
    assert_eq!((sample.ttft_ms, sample.tpot_ms), (None, None));
    assert!(
        lies_between(sample.e2e_ms, ms(served.arrived, served.sent[0]), ms(sent, read)),
        "{:?}",
        sample.e2e_ms
    );
    assert_eq!((sample.prompt_tokens, sample.cached_tokens), (Some(6 * 40), None));
    assert_eq!((sample.output_tokens, sample.tokens_from), (0, TokenSource::Usage));
    assert!(!sample.is_clean(), "nothing is trained on it");
    Ok(())
}
