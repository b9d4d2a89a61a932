//! A workload and a seed become conversations: who starts when, what is said, how long the pauses are.
//!
//! Everything is drawn from the seed and the conversation's number, never from the run: the same seed
//! sends the same bytes, whatever router or pool it is played against, as long as the pool's answers are
//! the same (simulated pods' are). Texts are made when a conversation begins, so a long run needs little
//! memory.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp, LogNormal};
use serde::Serialize;

use super::words;
use super::workload::{Api, Lengths, Multiturn, Shape, Workload};
use crate::answer::Word;
use foretoken_core::hash::chain;

/// Most conversations in one run; more is a mistake in the rate.
const MAX_CONVERSATIONS: usize = 1_000_000;

/// One turn to come: numbers only.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Turn {
    /// Pause between the former answer (or the conversation's start) and this question.
    pub pause: Duration,
    /// Length of the question.
    pub question_tokens: u32,
    /// Answer asked for.
    pub output_tokens: u32,
}

/// One conversation to come: numbers only.
#[derive(Debug, Clone, PartialEq)]
pub struct Outline {
    /// Number of the conversation.
    pub number: u32,
    /// When its first live turn is sent, from the start of the run.
    pub start: Duration,
    /// Turns that took place before the run, with made-up answers.
    pub past_turns: usize,
    /// Its group.
    pub group: u32,
    /// Length of the group's shared text.
    pub shared_tokens: u32,
    /// Length of its own document.
    pub document_tokens: u32,
    /// Its turns, past ones first.
    pub turns: Vec<Turn>,
}

/// A conversation as it goes on.
#[derive(Debug)]
pub struct Conversation<'a> {
    workload: &'a Workload,
    outline: &'a Outline,
    rng: StdRng,
    system: String,
    /// Questions and answers by turns; the last question has no answer yet.
    said: Vec<String>,
}

/// All conversations of a run, in order of their start.
///
/// A conversation keeps the turns that would be sent within `seconds` if every answer took the workload's
/// assumed time; `pods` multiplies the rates. The plan does not depend on how fast answers really come, so
/// that routers are compared on the same requests.
#[must_use]
pub fn outlines(workload: &Workload, seed: u64, pods: u32, seconds: f64) -> Vec<Outline> {
    let mut rng = StdRng::seed_from_u64(chain(seed, b"arrivals"));
    let pods = f64::from(pods.max(1));
    let mut out = Vec::new();
    match &workload.shape {
        Shape::Multiturn(shape) => {
            let longest_ms =
                f64::from(shape.max_turns) * (shape.think_mean_ms * 2.0 + shape.assumed_answer_ms);
            let groups = Groups::new(shape.groups, shape.group_skew);
            let rate = shape.conversations_per_second_per_pod * pods;
            for (number, at_s) in poisson(&mut rng, rate, -longest_ms / 1000.0, seconds).enumerate() {
                out.extend(multiturn_outline(shape, &groups, seed, number as u32, at_s, seconds));
            }
        }
        Shape::SharedPrefix(shape) => {
            let groups = Groups::new(shape.groups, shape.group_skew);
            let rate = shape.requests_per_second_per_pod * pods;
            for (number, at_s) in poisson(&mut rng, rate, 0.0, seconds).enumerate() {
                let mut rng = numbers_rng(seed, number as u32);
                out.push(Outline {
                    number: number as u32,
                    start: Duration::from_secs_f64(at_s),
                    past_turns: 0,
                    group: groups.draw(&mut rng),
                    shared_tokens: shape.prefix_tokens,
                    document_tokens: 0,
                    turns: vec![Turn {
                        pause: Duration::ZERO,
                        question_tokens: draw_length(&mut rng, shape.question_tokens),
                        output_tokens: rng.random_range(shape.min_output_tokens..=shape.max_output_tokens),
                    }],
                });
            }
        }
        Shape::Constant(shape) => {
            let rate = shape.requests_per_second_per_pod * pods;
            let count = ((seconds * rate).ceil().max(0.0) as usize).min(MAX_CONVERSATIONS);
            out.extend((0..count).map(|number| Outline {
                number: number as u32,
                start: Duration::from_secs_f64(number as f64 / rate),
                past_turns: 0,
                group: 0,
                shared_tokens: 0,
                document_tokens: 0,
                turns: vec![Turn {
                    pause: Duration::ZERO,
                    question_tokens: shape.prompt_tokens,
                    output_tokens: shape.output_tokens,
                }],
            }));
        }
    }
    out.sort_by_key(|outline| (outline.start, outline.number));
    out
}

/// Requests in a plan.
#[must_use]
pub fn planned_requests(outlines: &[Outline]) -> u64 {
    outlines.iter().map(|outline| (outline.turns.len() - outline.past_turns) as u64).sum()
}

fn poisson(rng: &mut StdRng, rate: f64, from_s: f64, to_s: f64) -> impl Iterator<Item = f64> {
    let gaps = Exp::new(rate).ok();
    let mut at = from_s;
    std::iter::from_fn(move || {
        at += gaps?.sample(rng);
        (at < to_s).then_some(at)
    })
    .take(MAX_CONVERSATIONS)
}

/// The numbers of conversation `number`; none when it is over before the run starts.
fn multiturn_outline(
    shape: &Multiturn,
    groups: &Groups,
    seed: u64,
    number: u32,
    at_s: f64,
    until_s: f64,
) -> Option<Outline> {
    let mut rng = numbers_rng(seed, number);
    let group = groups.draw(&mut rng);
    let document_tokens = draw_length(&mut rng, shape.document_tokens);
    let think = (shape.think_mean_ms > 0.0).then(|| Exp::new(1.0 / shape.think_mean_ms).ok()).flatten();
    let count = rng.random_range(shape.min_turns..=shape.max_turns) as usize;
    let mut turns = Vec::with_capacity(count);
    for turn in 0..count {
        let pause_ms = if turn == 0 { 0.0 } else { think.map_or(0.0, |think| think.sample(&mut rng)) };
        turns.push(Turn {
            pause: Duration::from_secs_f64(pause_ms / 1000.0),
            question_tokens: draw_length(&mut rng, shape.question_tokens),
            output_tokens: rng.random_range(shape.min_output_tokens..=shape.max_output_tokens),
        });
    }
    let (mut past_turns, mut start_s) = (0, at_s);
    while start_s < 0.0 {
        past_turns += 1;
        start_s += shape.assumed_answer_ms / 1000.0 + turns.get(past_turns)?.pause.as_secs_f64();
    }
    let mut sent_s = start_s;
    let later = turns.iter().skip(past_turns + 1);
    let kept = later
        .take_while(|turn| {
            sent_s += shape.assumed_answer_ms / 1000.0 + turn.pause.as_secs_f64();
            sent_s < until_s
        })
        .count();
    turns.truncate(past_turns + 1 + kept);
    if start_s >= until_s {
        return None;
    }
    let start = Duration::from_secs_f64(start_s);
    let shared_tokens = shape.system_tokens;
    Some(Outline { number, start, past_turns, group, shared_tokens, document_tokens, turns })
}

fn numbers_rng(seed: u64, number: u32) -> StdRng {
    StdRng::seed_from_u64(chain(chain(seed, b"numbers"), &number.to_le_bytes()))
}

fn draw_length(rng: &mut StdRng, lengths: Lengths) -> u32 {
    // Mean of a log-normal is exp(mu + sigma^2 / 2).
    let mu = lengths.mean_tokens.ln() - lengths.sigma * lengths.sigma / 2.0;
    let drawn = LogNormal::new(mu, lengths.sigma).map_or(lengths.mean_tokens, |law| law.sample(rng));
    (drawn.round() as u32).clamp(lengths.min_tokens, lengths.max_tokens)
}

/// Popularity of groups: cumulative shares.
struct Groups(Vec<f64>);

impl Groups {
    fn new(groups: u32, skew: f64) -> Self {
        let mut total = 0.0;
        Self(
            (1..=groups)
                .map(|rank| {
                    total += f64::from(rank).powf(-skew);
                    total
                })
                .collect(),
        )
    }

    fn draw(&self, rng: &mut StdRng) -> u32 {
        let total = self.0.last().copied().unwrap_or(1.0);
        let draw = rng.random::<f64>() * total;
        self.0.partition_point(|share| *share <= draw).min(self.0.len() - 1) as u32
    }
}

#[derive(Serialize)]
struct ChatBody<'a> {
    model: &'a str,
    messages: Vec<ChatMessage<'a>>,
    max_tokens: u32,
    ignore_eos: bool,
    temperature: f32,
    stream: bool,
    stream_options: StreamOptions,
}

#[derive(Serialize)]
struct ChatMessage<'a> {
    role: &'static str,
    content: &'a str,
}

#[derive(Serialize)]
struct CompletionBody<'a> {
    model: &'a str,
    prompt: String,
    max_tokens: u32,
    ignore_eos: bool,
    temperature: f32,
    stream: bool,
    stream_options: StreamOptions,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

impl<'a> Conversation<'a> {
    /// Makes the texts up to the first live question.
    #[must_use]
    pub fn begin(workload: &'a Workload, outline: &'a Outline, seed: u64) -> Self {
        let mut shared = StdRng::seed_from_u64(chain(chain(seed, b"group"), &outline.group.to_le_bytes()));
        let rng = StdRng::seed_from_u64(chain(chain(seed, b"texts"), &outline.number.to_le_bytes()));
        let system = words::text(&mut shared, outline.shared_tokens);
        let mut conversation = Self { workload, outline, rng, system, said: Vec::new() };
        for turn in 0..outline.past_turns {
            conversation.ask(turn);
            let digest = conversation.rng.random();
            let answer: Vec<u8> = (0..outline.turns[turn].output_tokens)
                .flat_map(|position| Word::at(digest, position).as_bytes().to_vec())
                .collect();
            conversation.answered(String::from_utf8_lossy(&answer).into_owned());
        }
        conversation
    }

    /// Adds the question of `turn`. Turns are asked in order, each after the former was answered.
    pub fn ask(&mut self, turn: usize) {
        let mut question = String::new();
        if turn == 0 {
            question = words::text(&mut self.rng, self.outline.document_tokens);
        }
        question += &words::text(&mut self.rng, self.outline.turns[turn].question_tokens);
        self.said.push(question);
    }

    /// Adds the answer to the last question.
    pub fn answered(&mut self, answer: String) {
        self.said.push(answer);
    }

    /// Path and body of the request for the last question.
    #[must_use]
    pub fn request(&self, turn: usize) -> (&'static str, Vec<u8>) {
        let model = self.workload.model.as_str();
        let max_tokens = self.outline.turns[turn].output_tokens;
        let stream_options = StreamOptions { include_usage: true };
        let (path, body) = match self.workload.api {
            Api::Chat => {
                let mut messages = Vec::with_capacity(self.said.len() + 1);
                if !self.system.is_empty() {
                    messages.push(ChatMessage { role: "system", content: &self.system });
                }
                messages.extend(self.said.iter().enumerate().map(|(at, content)| ChatMessage {
                    role: if at % 2 == 0 { "user" } else { "assistant" },
                    content,
                }));
                let body = ChatBody {
                    model,
                    messages,
                    max_tokens,
                    ignore_eos: true,
                    temperature: 0.0,
                    stream: true,
                    stream_options,
                };
                ("/v1/chat/completions", serde_json::to_vec(&body))
            }
            Api::Completions => {
                let body = CompletionBody {
                    model,
                    prompt: self.system.clone() + &self.said.concat(),
                    max_tokens,
                    ignore_eos: true,
                    temperature: 0.0,
                    stream: true,
                    stream_options,
                };
                ("/v1/completions", serde_json::to_vec(&body))
            }
        };
        // Strings and numbers always serialise; an empty body would be refused by the pod and counted.
        (path, body.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every request of a run, with answers that depend on the request alone.
    fn bytes_of_run(name: &str, seed: u64) -> Vec<Vec<u8>> {
        let workload = Workload::preset(name).unwrap();
        let outlines = outlines(&workload, seed, 4, 10.0);
        let mut out = Vec::new();
        for outline in &outlines {
            let mut conversation = Conversation::begin(&workload, outline, seed);
            for turn in outline.past_turns..outline.turns.len() {
                conversation.ask(turn);
                let (_, body) = conversation.request(turn);
                conversation.answered(format!(" {}", chain(0, &body)));
                out.push(body);
            }
        }
        out
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
        for name in super::super::workload::PRESETS {
            assert_eq!(bytes_of_run(name, 7), bytes_of_run(name, 7));
            assert_ne!(bytes_of_run(name, 7), bytes_of_run(name, 8));
        }
    }

    #[test]
    fn the_demo_rate_is_level_from_the_first_second_and_scales_with_pods() {
        let workload = Workload::preset("demo").unwrap();
        let per_second = |pods, from: f64, to: f64| {
            let until = |seconds| planned_requests(&outlines(&workload, 3, pods, seconds)) as f64;
            (until(to) - until(from)) / (to - from)
        };
        let (early, late) = (per_second(200, 0.0, 10.0), per_second(200, 60.0, 70.0));
        assert!((early / late - 1.0).abs() < 0.08, "{early} {late}");
        let (four, eight) = (per_second(4, 0.0, 1000.0), per_second(8, 0.0, 1000.0));
        assert!((eight / four - 2.0).abs() < 0.1, "{four} {eight}");
        assert!((10.0..20.0).contains(&four), "{four}");
    }

    #[test]
    fn demo_prompts_lie_between_one_and_eight_thousand_tokens() {
        let workload = Workload::preset("demo").unwrap();
        for outline in outlines(&workload, 1, 4, 60.0) {
            let turns: u32 = outline.turns.iter().map(|turn| turn.question_tokens + turn.output_tokens).sum();
            let most = outline.shared_tokens + outline.document_tokens + turns;
            assert!((1000..9000).contains(&most), "{most}");
        }
    }

    #[test]
    fn members_of_a_group_share_their_system_prompt_and_nothing_else() {
        let workload = Workload::preset("demo").unwrap();
        let outlines = outlines(&workload, 1, 4, 60.0);
        let first = &outlines[0];
        let twin = outlines[1..].iter().find(|other| other.group == first.group).unwrap();
        let other = outlines.iter().find(|other| other.group != first.group).unwrap();
        let [first, twin, other] = [first, twin, other].map(|outline| {
            let mut conversation = Conversation::begin(&workload, outline, 1);
            conversation.ask(outline.past_turns);
            conversation
        });
        assert_eq!(first.system, twin.system);
        assert_ne!(first.system, other.system);
        assert_ne!(first.said[0], twin.said[0]);
    }
}
