//! Tests of the whole engine: order, reuse, preemption, conservation.

use proptest::prelude::*;

use super::*;

fn profile() -> Profile {
    Profile {
        name: "test".to_owned(),
        floor_ms: 10.0,
        prefill_ms_per_token: 0.1,
        attention_ms_per_token2: 1e-4,
        decode_ms_per_seq: 0.5,
        decode_ms_per_context_token: 1e-3,
        jitter_sigma: 0.0,
        max_num_seqs: 8,
        max_batched_tokens: 64,
        max_model_len_tokens: 256,
        block_tokens: 4,
        kv_blocks: 64,
        tokens_per_step: 1.0,
        host_kv_blocks: 0,
        host_load_ms_per_token: 0.0,
    }
}

fn prompt(first: u32, len: u32) -> TokenBlocks {
    let mut blocks = TokenBlocks::new("m", 4);
    (0..len).for_each(|at| blocks.push(first + at));
    blocks
}

fn submit(engine: &mut Engine, id: u64, prompt: TokenBlocks, max_output_tokens: u32) {
    engine.submit(Submission { id, prompt, max_output_tokens }).unwrap();
}

/// Steps until idle; all events in order, and the steps' work.
fn drain(engine: &mut Engine) -> (Vec<TokenEvent>, Vec<StepStart>) {
    let (mut events, mut steps) = (Vec::new(), Vec::new());
    while let Some(step) = engine.start_step() {
        steps.push(step);
        engine.finish_step(&mut events);
        assert!(steps.len() < 100_000, "the engine does not come to rest");
        engine.kv.audit().unwrap();
    }
    (events, steps)
}

#[test]
fn a_prompt_is_computed_in_chunks_of_the_budget_and_then_decodes() {
    let mut engine = Engine::new(profile(), 0);
    submit(&mut engine, 1, prompt(0, 100), 3);
    let (events, steps) = drain(&mut engine);
    let chunks: Vec<u64> = steps.iter().map(|step| step.work.prefill_tokens).collect();
    assert_eq!(chunks, [64, 36, 0, 0]);
    assert_eq!(events.iter().map(|event| event.position).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(events[2].finished && !events[1].finished);
}

#[test]
fn step_time_is_the_formula_to_the_microsecond() {
    let mut engine = Engine::new(profile(), 0);
    submit(&mut engine, 1, prompt(0, 100), 2);
    let (_, steps) = drain(&mut engine);
    // 10 + 0.1 x 64 + 1e-4 x 64 x 32; the second chunk stands behind 64 tokens; then one decode.
    assert_eq!(steps[0].duration_us, 16_605);
    assert_eq!(steps[1].duration_us, (10_000.0 + 3_600.0 + 0.1 * 36.0 * 82.0_f64).round() as u64);
    assert_eq!(steps[2].duration_us, (10_000.0 + 500.0 + 101.0_f64).round() as u64);
}

#[test]
fn the_slow_factor_multiplies_step_times() {
    let mut engine = Engine::new(profile(), 0);
    engine.set_slow_factor(5.0);
    submit(&mut engine, 1, prompt(0, 64), 1);
    assert_eq!(drain(&mut engine).1[0].duration_us, 83_024);
}

#[test]
fn jitter_has_mean_one_and_follows_the_seed() {
    let run = |seed| {
        let mut engine = Engine::new(Profile { jitter_sigma: 0.2, ..profile() }, seed);
        (0..40).for_each(|id| submit(&mut engine, id, prompt(id as u32 * 1000, 40), 40));
        drain(&mut engine).1.iter().map(|step| step.duration_us).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    let plain: u64 = {
        let mut engine = Engine::new(profile(), 0);
        (0..40).for_each(|id| submit(&mut engine, id, prompt(id as u32 * 1000, 40), 40));
        drain(&mut engine).1.iter().map(|step| step.duration_us).sum()
    };
    let ratio = run(3).iter().sum::<u64>() as f64 / plain as f64;
    assert!((ratio - 1.0).abs() < 0.05, "{ratio}");
}

#[test]
fn decoding_goes_first_and_prefill_takes_what_is_left_of_the_budget() {
    let mut engine = Engine::new(profile(), 0);
    submit(&mut engine, 1, prompt(0, 8), 50);
    engine.start_step().unwrap();
    engine.finish_step(&mut Vec::new());
    submit(&mut engine, 2, prompt(1000, 100), 2);
    let work = engine.start_step().unwrap().work;
    assert_eq!((work.decode_seqs, work.prefill_tokens), (1, 63));
}

#[test]
fn a_repeated_prompt_computes_only_its_last_block() {
    let mut engine = Engine::new(profile(), 0);
    submit(&mut engine, 1, prompt(0, 40), 1);
    drain(&mut engine);
    submit(&mut engine, 2, prompt(0, 40), 1);
    let (events, steps) = drain(&mut engine);
    // All ten blocks are known, yet the last token has to be computed, and with it its block.
    assert_eq!(events[0].cached_tokens, 36);
    assert_eq!(steps[0].work.prefill_tokens, 4);
    assert_eq!(engine.stats().prefix_hit_tokens, 36);
    assert_eq!(engine.stats().prefix_query_tokens, 80);
}

#[test]
fn the_next_turn_reuses_the_generated_answer() {
    let mut engine = Engine::new(profile(), 0);
    let first = prompt(0, 10);
    submit(&mut engine, 1, first.clone(), 15);
    drain(&mut engine);
    let mut next = first.clone();
    (0..15).for_each(|position| next.push(crate::answer::Word::at(first.digest(), position).token()));
    (0..5).for_each(|at| next.push(5000 + at));
    submit(&mut engine, 2, next, 1);
    let (events, _) = drain(&mut engine);
    // 10 + 15 tokens, of which the last was never computed: six full blocks of four.
    assert_eq!(events[0].cached_tokens, 24);
}

#[test]
fn whoever_is_admitted_in_the_same_step_shares_what_is_computed_there() {
    let mut engine = Engine::new(profile(), 0);
    submit(&mut engine, 1, prompt(0, 20), 1);
    submit(&mut engine, 2, prompt(0, 20), 1);
    assert_eq!(engine.start_step().unwrap().work.prefill_tokens, 20 + 4);
}

#[test]
fn no_request_overtakes_one_that_does_not_fit() {
    let mut engine = Engine::new(Profile { max_batched_tokens: 256, ..profile() }, 0);
    submit(&mut engine, 1, prompt(0, 150), 2);
    submit(&mut engine, 2, prompt(1000, 150), 2);
    submit(&mut engine, 3, prompt(2000, 4), 2);
    let (events, _) = drain(&mut engine);
    let firsts: Vec<u64> = events.iter().filter(|event| event.position == 0).map(|event| event.id).collect();
    assert_eq!(firsts, [1, 2, 3]);
}

#[test]
fn out_of_blocks_the_youngest_starts_over_and_loses_no_token() {
    let mut engine = Engine::new(Profile { kv_blocks: 16, max_model_len_tokens: 64, ..profile() }, 0);
    submit(&mut engine, 1, prompt(0, 20), 40);
    submit(&mut engine, 2, prompt(1000, 20), 40);
    let (events, _) = drain(&mut engine);
    assert!(engine.stats().preemptions > 0);
    for id in [1, 2] {
        let positions: Vec<u32> =
            events.iter().filter(|event| event.id == id).map(|event| event.position).collect();
        assert_eq!(positions, (0..40).collect::<Vec<_>>());
    }
    let last = |id| events.iter().rposition(|event| event.id == id).unwrap();
    assert!(last(1) < last(2), "the older request finishes first");
    assert_eq!(engine.kv.free_blocks(), 16);
}

#[test]
fn an_abort_frees_everything_at_any_stage() {
    let mut engine = Engine::new(profile(), 0);
    (1..=3).for_each(|id| submit(&mut engine, id, prompt(id as u32 * 1000, 40), 20));
    engine.abort(3);
    engine.start_step().unwrap();
    engine.abort(1);
    engine.finish_step(&mut Vec::new());
    engine.abort(2);
    engine.abort(99);
    assert_eq!(engine.stats().aborted, 3);
    assert_eq!(engine.stats().kv_held_blocks, 0);
    assert!(engine.start_step().is_none());
}

#[test]
fn what_can_never_run_is_refused() {
    let mut engine = Engine::new(profile(), 0);
    let submit = |engine: &mut Engine, len, max_output_tokens| {
        engine.submit(Submission { id: 1, prompt: prompt(0, len), max_output_tokens })
    };
    assert_eq!(submit(&mut engine, 0, 1), Err(SubmitError::EmptyPrompt));
    assert_eq!(submit(&mut engine, 1, 0), Err(SubmitError::NoOutput));
    assert_eq!(submit(&mut engine, 250, 7), Err(SubmitError::TooLong { tokens: 257, limit: 256 }));
    assert_eq!(submit(&mut engine, 250, 6), Ok(()));
}

#[test]
fn speculation_brings_several_tokens_a_step_and_all_of_them_once() {
    let mut engine = Engine::new(Profile { tokens_per_step: 2.5, ..profile() }, 0);
    submit(&mut engine, 1, prompt(0, 20), 101);
    let (events, steps) = drain(&mut engine);
    assert_eq!(events.iter().map(|event| event.position).collect::<Vec<_>>(), (0..101).collect::<Vec<_>>());
    // The first token comes of the prefill; 100 more at 2.5 a step.
    let decodes = steps.len() - 1;
    assert!((36..=46).contains(&decodes), "{decodes}");
    assert_eq!((engine.stats().generated_tokens, engine.kv.free_blocks()), (101, 64));
}

#[test]
fn what_was_evicted_comes_back_from_host_memory_at_its_price() {
    let host = Profile { host_kv_blocks: 1000, host_load_ms_per_token: 0.01, ..profile() };
    let serve = |profile: Profile| {
        let mut engine = Engine::new(profile, 0);
        submit(&mut engine, 1, prompt(0, 120), 1);
        drain(&mut engine);
        // Fills all 64 blocks with something else.
        for id in 2..5 {
            submit(&mut engine, id, prompt(id as u32 * 1000, 200), 1);
            drain(&mut engine);
        }
        submit(&mut engine, 9, prompt(0, 120), 1);
        let (events, steps) = drain(&mut engine);
        (events[0].cached_tokens, steps[0].work, engine.stats().host_hit_tokens)
    };
    let (cached, work, _) = serve(profile());
    assert_eq!((cached, work.host_tokens), (0, 0));
    let (cached, work, host_hits) = serve(host.clone());
    // All but the last block, which is always computed.
    assert_eq!((cached, work.prefill_tokens, work.host_tokens, host_hits), (116, 4, 116, 116));
    let (cached, ..) = serve(Profile { host_kv_blocks: 4, ..host });
    assert_eq!(cached, 0, "a host tier of four blocks has kept other blocks");
}

#[derive(Debug, Clone)]
enum Op {
    Submit { family: u32, len: u32, output: u32 },
    Step,
    Abort(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0u32..4, 1u32..60, 1u32..30).prop_map(|(family, len, output)| Op::Submit { family, len, output }),
        6 => Just(Op::Step),
        1 => (0u64..40).prop_map(Op::Abort),
    ]
}

proptest! {
    #[test]
    fn every_request_ends_once_with_all_its_tokens_and_the_cache_is_whole(
        ops in proptest::collection::vec(op(), 1..150),
        kv_blocks in 24u32..80,
        tokens_per_step in prop_oneof![Just(1.0), 1.0f64..4.0],
        host_kv_blocks in prop_oneof![Just(0u32), 1u32..50],
    ) {
        let profile =
            Profile { kv_blocks, max_model_len_tokens: 96, tokens_per_step, host_kv_blocks, ..profile() };
        let mut engine = Engine::new(profile.clone(), 7);
        let mut asked = std::collections::HashMap::new();
        let mut aborted = std::collections::HashSet::new();
        let mut events = Vec::new();
        for op in ops {
            match op {
                Op::Submit { family, len, output } => {
                    let id = asked.len() as u64;
                    submit(&mut engine, id, prompt(family * 1000, len), output);
                    asked.insert(id, output);
                }
                Op::Abort(id) => {
                    engine.abort(id);
                    aborted.insert(id);
                }
                Op::Step => {
                    if let Some(step) = engine.start_step() {
                        let tokens = step.work.prefill_tokens + step.work.decode_seqs;
                        prop_assert!(tokens > 0, "a step without work");
                        prop_assert!(tokens <= u64::from(profile.max_batched_tokens));
                        prop_assert!(engine.scheduler.running.len() <= profile.max_num_seqs as usize);
                        let expected = (profile.step_ms(&step.work) * 1000.0).round() as u64;
                        prop_assert_eq!(step.duration_us, expected);
                        engine.finish_step(&mut events);
                    }
                }
            }
            engine.kv.audit().map_err(TestCaseError::fail)?;
        }
        events.extend(drain(&mut engine).0);
        prop_assert_eq!(engine.kv.free_blocks(), kv_blocks, "finished sequences hold nothing");
        for (id, output) in asked {
            let positions: Vec<u32> = events.iter().filter(|event| event.id == id).map(|event| event.position).collect();
            let expected: Vec<u32> = (0..output).collect();
            if aborted.contains(&id) {
                prop_assert_eq!(&positions[..], &expected[..positions.len()]);
            } else {
                prop_assert_eq!(positions, expected);
            }
        }
    }

    #[test]
    fn first_tokens_come_in_order_of_arrival_when_prompts_share_nothing(
        lens in proptest::collection::vec(1u32..60, 1..20),
    ) {
        let mut engine = Engine::new(profile(), 0);
        for (id, len) in lens.iter().enumerate() {
            submit(&mut engine, id as u64, prompt(id as u32 * 1000, *len), 1);
        }
        let (events, _) = drain(&mut engine);
        let order: Vec<u64> = events.iter().map(|event| event.id).collect();
        prop_assert_eq!(order, (0..lens.len() as u64).collect::<Vec<_>>());
    }

    #[test]
    fn a_resident_prefix_is_never_computed_again(shared in 1u32..100, own in 1u32..20) {
        let mut engine = Engine::new(profile(), 0);
        submit(&mut engine, 0, prompt(0, shared), 1);
        drain(&mut engine);
        let mut next = prompt(0, shared);
        (0..own).for_each(|at| next.push(9000 + at));
        submit(&mut engine, 1, next, 1);
        let (events, steps) = drain(&mut engine);
        let computed: u64 = steps.iter().map(|step| step.work.prefill_tokens).sum();
        prop_assert_eq!(events[0].cached_tokens, shared / 4 * 4);
        prop_assert_eq!(computed, u64::from(shared + own - shared / 4 * 4));
    }
}
