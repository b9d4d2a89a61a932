//! What the estimator learns, forgets, shares and survives.

use super::super::{Api, BlockOptions, read_request};
use super::*;

fn text(text_bytes: u32) -> Prompt {
    Prompt { text_bytes, ..Prompt::default() }
}

/// An answer to a prompt of which only the bytes are known.
fn observe(estimator: &mut TokenEstimator, model_key: u64, text_bytes: u32, prompt_tokens: u32) {
    estimator.observe(model_key, text_bytes, &PromptShape::default(), prompt_tokens);
}

#[test]
fn before_any_answer_four_bytes_make_a_token() {
    let estimator = TokenEstimator::new();
    assert_eq!(estimator.bytes_per_token(1), 4.0);
    assert_eq!(estimator.estimate(1, &text(400)), 100.0);
    assert_eq!(estimator.estimate(1, &text(0)), 1.0);
}

#[test]
fn token_ids_are_exact_whatever_was_learned() {
    let mut estimator = TokenEstimator::new();
    observe(&mut estimator, 1, 1000, 1000);
    let prompt = Prompt { exact_tokens: Some(77), ..text(400) };
    assert_eq!(estimator.estimate(1, &prompt), 77.0);
}

#[test]
fn the_ratio_of_a_model_is_learned_and_no_other_model_is_touched() {
    let mut estimator = TokenEstimator::new();
    for _ in 0..50 {
        observe(&mut estimator, 1, 3000, 2000);
    }
    assert!((estimator.bytes_per_token(1) - 1.5).abs() < 0.05, "{}", estimator.bytes_per_token(1));
    assert_eq!(estimator.bytes_per_token(2), 4.0);
}

#[test]
fn a_change_of_language_is_followed_within_a_few_hundred_answers() {
    let mut estimator = TokenEstimator::new();
    for _ in 0..1000 {
        observe(&mut estimator, 1, 4400, 1000);
    }
    for _ in 0..400 {
        observe(&mut estimator, 1, 1700, 1000);
    }
    assert!((estimator.bytes_per_token(1) - 1.7).abs() < 0.1, "{}", estimator.bytes_per_token(1));
}

#[test]
fn one_outlier_moves_the_estimate_by_little() {
    let mut estimator = TokenEstimator::new();
    for _ in 0..200 {
        observe(&mut estimator, 1, 4000, 1000);
    }
    observe(&mut estimator, 1, 40, 8000);
    assert!((estimator.bytes_per_token(1) - 4.0).abs() < 0.25, "{}", estimator.bytes_per_token(1));
}

#[test]
fn the_estimate_stays_within_its_bounds_whatever_engines_report() {
    let mut estimator = TokenEstimator::new();
    for _ in 0..1000 {
        observe(&mut estimator, 1, 1, u32::MAX);
        observe(&mut estimator, 2, u32::MAX, 1);
    }
    assert!((0.5..0.51).contains(&estimator.bytes_per_token(1)), "{}", estimator.bytes_per_token(1));
    assert!((15.9..=16.0).contains(&estimator.bytes_per_token(2)), "{}", estimator.bytes_per_token(2));
}

#[test]
fn the_model_not_heard_of_for_longest_makes_room() {
    let mut estimator = TokenEstimator::new();
    for key in 0..64 {
        observe(&mut estimator, key, 2000, 1000);
    }
    observe(&mut estimator, 0, 2000, 1000);
    observe(&mut estimator, 64, 2000, 1000);
    assert_eq!(estimator.models.len(), 64);
    assert!(estimator.bytes_per_token(0) < 3.0);
    assert_eq!(estimator.bytes_per_token(1), 4.0);
    assert!(estimator.bytes_per_token(64) < 3.0);
}

fn prompt(content: &str, messages: usize) -> Prompt {
    let message = serde_json::json!({"role": "user", "content": content});
    let body = serde_json::json!({"model": "m", "messages": vec![message; messages]}).to_string();
    read_request(Api::Chat, body.as_bytes(), BlockOptions { block_bytes: 256, max_blocks: 100 })
        .unwrap()
        .prompt
}

/// Prose, code and Chinese of some length, with the tokens of an imagined vocabulary and template.
fn truth(at: u32) -> (Prompt, u32) {
    let (words, signs, ideographs) = match at % 3 {
        0 => (20 + at % 70, 4 + at % 7, 0),
        1 => (15 + at % 50, 60 + at % 31, 0),
        _ => (at % 3, 5 + at % 5, 40 + at % 90),
    };
    let messages = 1 + at % 4;
    let text = format!(
        "{}{}{}",
        "quickly ".repeat(words as usize),
        "({}) ".repeat(signs as usize / 4),
        "\u{4e2d}".repeat(ideographs as usize)
    );
    let tokens = 12 + messages * (7 + words * 3 / 2 + signs / 4 * 3 + ideographs * 9 / 10);
    (prompt(&text, messages as usize), tokens)
}

fn worst_error(estimator: &TokenEstimator, requests: core::ops::Range<u32>) -> f32 {
    requests
        .map(|at| {
            let (prompt, tokens) = truth(at);
            (estimator.estimate(1, &prompt) / tokens as f32 - 1.0).abs()
        })
        .fold(0.0, f32::max)
}

fn taught(requests: impl Iterator<Item = u32>) -> TokenEstimator {
    let mut estimator = TokenEstimator::new();
    for at in requests {
        let (prompt, tokens) = truth(at);
        estimator.observe(1, prompt.text_bytes, &prompt.shape, tokens);
    }
    estimator
}

#[test]
fn scripts_that_take_turns_are_learned_side_by_side() {
    let estimator = taught(0..200);
    let worst = worst_error(&estimator, 200..300);
    assert!(worst < 0.1, "{worst}");
    let bytes_alone = (200..300)
        .map(|at| {
            let (prompt, tokens) = truth(at);
            let by_bytes = f64::from(prompt.text_bytes) / f64::from(estimator.bytes_per_token(1));
            (by_bytes / f64::from(tokens) - 1.0).abs()
        })
        .fold(0.0, f64::max);
    assert!(bytes_alone > 0.3, "bytes alone do not tell them apart: {bytes_alone}");
}

#[test]
fn workers_add_up_to_what_one_would_have_learned() {
    let [mut both, two] = [0, 1].map(|which| taught((0..200).filter(|at| at % 2 == which)));
    both.merge(&two);
    let worst = worst_error(&both, 200..300);
    assert!(worst < 0.1, "{worst}");
    let all = taught(0..200);
    assert!((both.bytes_per_token(1) / all.bytes_per_token(1) - 1.0).abs() < 0.1);
    let mut nothing_new = both.clone();
    nothing_new.merge(&TokenEstimator::new());
    assert_eq!(nothing_new, both);
}

#[test]
fn the_state_is_written_and_read_back() {
    let mut estimator = taught(0..100);
    for key in 2..20 {
        observe(&mut estimator, key, 300, 100);
    }
    let (text, tokens) = truth(7);
    estimator.observe(1, text.text_bytes, &text.shape, tokens);
    let mut out = Writer::default();
    estimator.write(&mut out);
    let bytes = out.finish();
    assert!(bytes.len() <= 2780, "{}", bytes.len());
    let read = TokenEstimator::read(&mut Reader::new(&bytes)).unwrap();
    assert_eq!(read.models.len(), 8, "those heard of last");
    let (mine, theirs) = (estimator.estimate(1, &text), read.estimate(1, &text));
    assert!((mine / theirs - 1.0).abs() < 0.01, "{mine} {theirs}");
    assert_eq!(read.bytes_per_token(19), estimator.bytes_per_token(19));
    for length in 0..bytes.len() {
        assert!(TokenEstimator::read(&mut Reader::new(&bytes[..length])).is_none(), "{length} bytes");
    }
    let nan = [&bytes[..25], &f32::NAN.to_le_bytes()[..], &bytes[29..]].concat();
    assert!(TokenEstimator::read(&mut Reader::new(&nan)).is_none());
}

#[test]
fn pictures_are_learned_beside_the_text() {
    let mut estimator = taught(0..200);
    let (text, tokens) = truth(30);
    let mut with = text.clone();
    with.shape.media = 2;
    assert!(estimator.estimate(1, &with) > estimator.estimate(1, &text) + 1000.0);
    for _ in 0..50 {
        estimator.observe(1, with.text_bytes, &with.shape, tokens + 2 * 1200);
    }
    let each = (estimator.estimate(1, &with) - estimator.estimate(1, &text)) / 2.0;
    assert!((each / 1200.0 - 1.0).abs() < 0.05, "{each}");
    assert!(worst_error(&estimator, 200..300) < 0.1, "the text's tokens are as they were");
}

#[test]
fn what_was_never_seen_is_estimated_as_usual() {
    let estimator = taught((0..600).filter(|at| at % 3 == 0));
    let mut other = TokenEstimator::new();
    observe(&mut other, 2, 10, 10);
    for at in [1, 2, 4, 5] {
        let (prompt, tokens) = truth(at);
        let estimate = estimator.estimate(1, &prompt);
        assert!(estimate > 0.4 * tokens as f32 && estimate < 2.5 * tokens as f32, "{estimate} {tokens}");
    }
}
