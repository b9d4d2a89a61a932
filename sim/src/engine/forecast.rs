//! What becomes of an engine if nothing more arrives: when each of its requests ends.
//!
//! For oracles, and for judging predictions by what would have been. It plays the scheduler's own rules on the
//! true state and the true output lengths, but takes stretches of pure decode in one stride (their steps
//! grow by a constant, so their sum is closed), which makes it some thousand times cheaper than stepping.
//!
//! Not exact: no jitter, no preemption (a request that does not fit waits), hits of waiting requests as the
//! cache stands now.

use super::Engine;
use super::profile::{Profile, StepWork};

/// A request that might be added.
#[derive(Debug, Clone, Copy)]
pub struct Extra {
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Of those, the ones in the cache.
    pub cached_tokens: u32,
    /// Tokens that it will generate.
    pub output_tokens: u32,
}

/// Times from now. Where there was no extra request its times are 0.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Outlook {
    /// First token of the extra request.
    pub own_first_ms: f64,
    /// Its last token.
    pub own_end_ms: f64,
    /// Sum of the others' ends.
    pub others_end_sum_ms: f64,
}

#[derive(Debug, Clone, Copy)]
struct Prefill {
    /// Tokens to compute.
    left: u32,
    computed: u32,
    /// Tokens to generate, the one that ends the prefill included.
    output: u32,
    own: bool,
    admitted: bool,
}

/// Buffers, kept to allocate once.
#[derive(Debug, Default)]
pub struct Forecast {
    /// Decoding sequences: the count of steps after which each is done, most last; and whether it is the extra.
    decodes: Vec<(u64, bool)>,
    prefills: std::collections::VecDeque<Prefill>,
    /// Of those, the ones that hold blocks.
    admitted: u64,
}

impl Forecast {
    /// Plays the engine's future. `to_step_end_ms`: what is left of the running step.
    pub fn run(&mut self, engine: &Engine, to_step_end_ms: f64, extra: Option<&Extra>) -> Outlook {
        let profile = &engine.profile;
        // Steps that tokens take, where speculation gives several a step.
        let steps_of = |tokens: u32| (f64::from(tokens) / profile.tokens_per_step).ceil() as u64;
        // Shared prefixes are held once, however many sequences use them.
        let mut held_tokens = u64::from(engine.kv.held_blocks()) * u64::from(profile.block_tokens);
        let mut context = 0_u64;
        let mut outlook = Outlook::default();
        let mut now_ms = to_step_end_ms;
        self.decodes.clear();
        self.prefills.clear();
        self.admitted = 0;
        for sequence in &engine.scheduler.running {
            let computed = sequence.computed + sequence.chunk;
            let left = sequence.tokens.len().saturating_sub(computed);
            let output = sequence.max_output_tokens - sequence.produced;
            if left == 0 {
                // The running step brings its next token.
                if output <= 1 {
                    outlook.others_end_sum_ms += now_ms;
                } else {
                    self.decodes.push((steps_of(output - 1), false));
                    context += u64::from(computed) + 1;
                }
            } else if sequence.produced > 0 && left == 1 {
                self.decodes.push((steps_of(output), false));
                context += u64::from(computed) + 1;
            } else {
                self.prefills.push_back(Prefill { left, computed, output, own: false, admitted: true });
                self.admitted += 1;
            }
        }
        for sequence in &engine.scheduler.waiting {
            let hits = engine.kv.leading_hits_by_bisection(sequence.reusable(profile.block_tokens));
            let computed = hits * profile.block_tokens;
            let left = sequence.tokens.len() - computed;
            let output = sequence.max_output_tokens - sequence.produced;
            self.prefills.push_back(Prefill { left, computed, output, own: false, admitted: false });
        }
        if let Some(extra) = extra {
            self.prefills.push_back(Prefill {
                left: extra.prompt_tokens.saturating_sub(extra.cached_tokens).max(1),
                computed: extra.cached_tokens,
                output: extra.output_tokens,
                own: true,
                admitted: false,
            });
        }
        self.decodes.sort_unstable_by_key(|decode| std::cmp::Reverse(decode.0));
        let capacity = profile.kv_capacity_tokens();
        let mut steps = 0_u64;
        while !self.decodes.is_empty() || !self.prefills.is_empty() {
            let work = self.prefill_step(profile, &mut held_tokens, capacity);
            if work.prefill_tokens > 0 {
                now_ms += step_ms(profile, &work, self.decodes.len() as u64, context);
                steps += 1;
                context += self.decodes.len() as u64;
                self.end_decodes(steps, now_ms, &mut context, &mut held_tokens, &mut outlook);
                self.end_prefills(steps, now_ms, profile, &mut context, &mut held_tokens, &mut outlook);
                continue;
            }
            let Some(&(until, _)) = self.decodes.last() else { break };
            // Nothing to prefill: `stride` decode steps, each with as many more context tokens as sequences.
            let stride = until.saturating_sub(steps).max(1);
            let sequences = self.decodes.len() as f64;
            let first_ms = step_ms(profile, &StepWork::default(), self.decodes.len() as u64, context);
            let growth_ms = profile.decode_ms_per_context_token * sequences;
            let count = stride as f64;
            now_ms += count * first_ms + growth_ms * count * (count - 1.0) / 2.0;
            steps += stride;
            context += stride * self.decodes.len() as u64;
            self.end_decodes(steps, now_ms, &mut context, &mut held_tokens, &mut outlook);
        }
        outlook
    }

    /// Puts prefill into a step as the scheduler would; what it computes is taken off at once.
    fn prefill_step(&mut self, profile: &Profile, held_tokens: &mut u64, capacity: u64) -> StepWork {
        let mut work = StepWork::default();
        let mut budget = profile.max_batched_tokens.saturating_sub(self.decodes.len() as u32);
        let mut running = self.decodes.len() as u32;
        let alone = running == 0;
        for prefill in &mut self.prefills {
            if budget == 0 {
                break;
            }
            running += 1;
            if !prefill.admitted {
                let needs = u64::from(prefill.left);
                let fits = *held_tokens + needs <= capacity || (alone && running == 1);
                if running > profile.max_num_seqs || !fits {
                    break;
                }
                prefill.admitted = true;
                self.admitted += 1;
                *held_tokens += needs;
            }
            let chunk = prefill.left.min(budget);
            work.add_prefill(prefill.computed, chunk);
            prefill.left -= chunk;
            prefill.computed += chunk;
            budget -= chunk;
        }
        work
    }

    fn end_decodes(
        &mut self,
        steps: u64,
        now_ms: f64,
        context: &mut u64,
        held_tokens: &mut u64,
        outlook: &mut Outlook,
    ) {
        while let Some((_, own)) = self.decodes.pop_if(|decode| decode.0 <= steps) {
            // All contexts are one sum, and so is what is held; a sequence that leaves takes the mean with it.
            let before = self.decodes.len() as u64 + 1;
            *context -= *context / before;
            *held_tokens -= *held_tokens / (before + self.admitted);
            if own {
                outlook.own_end_ms = now_ms;
            } else {
                outlook.others_end_sum_ms += now_ms;
            }
        }
    }

    fn end_prefills(
        &mut self,
        steps: u64,
        now_ms: f64,
        profile: &Profile,
        context: &mut u64,
        held_tokens: &mut u64,
        outlook: &mut Outlook,
    ) {
        while let Some(done) = self.prefills.pop_front_if(|prefill| prefill.left == 0) {
            self.admitted = self.admitted.saturating_sub(1);
            if done.own {
                outlook.own_first_ms = now_ms;
            }
            if done.output <= 1 {
                *held_tokens -= *held_tokens / (self.decodes.len() as u64 + self.admitted + 1);
                if done.own {
                    outlook.own_end_ms = now_ms;
                } else {
                    outlook.others_end_sum_ms += now_ms;
                }
                continue;
            }
            *context += u64::from(done.computed) + 1;
            let until = steps + (f64::from(done.output - 1) / profile.tokens_per_step).ceil() as u64;
            let at = self.decodes.partition_point(|decode| decode.0 > until);
            self.decodes.insert(at, (until, done.own));
        }
    }
}

fn step_ms(profile: &Profile, work: &StepWork, decodes: u64, context: u64) -> f64 {
    profile.step_ms(&StepWork { decode_seqs: decodes, decode_context_tokens: context, ..*work })
}

#[cfg(test)]
mod tests {
    use super::super::prompt::TokenBlocks;
    use super::super::{Submission, TokenEvent};
    use super::*;

    fn submit(engine: &mut Engine, id: u64, prompt_tokens: u32, output_tokens: u32) {
        let hashes = (0..u64::from(prompt_tokens / 64)).map(|at| id << 32 | at).collect::<Vec<_>>();
        let prompt = TokenBlocks::foretold(prompt_tokens, 64, hashes.into());
        engine.submit(Submission { id, prompt, max_output_tokens: output_tokens }).unwrap();
    }

    /// Steps the real engine to its end; ends of the ids, in ms.
    fn play(engine: &mut Engine, extra: u64) -> Outlook {
        let mut outlook = Outlook::default();
        let (mut now_ms, mut events) = (0.0, Vec::<TokenEvent>::new());
        while let Some(step) = engine.start_step() {
            now_ms += step.duration_us as f64 / 1000.0;
            events.clear();
            engine.finish_step(&mut events);
            for event in &events {
                if event.id == extra && event.position == 0 {
                    outlook.own_first_ms = now_ms;
                }
                if event.finished && event.id == extra {
                    outlook.own_end_ms = now_ms;
                } else if event.finished {
                    outlook.others_end_sum_ms += now_ms;
                }
            }
        }
        outlook
    }

    #[test]
    fn the_forecast_is_what_then_happens() {
        let profile = Profile { jitter_sigma: 0.0, ..Profile::built_in("h100").unwrap() };
        let mut engine = Engine::new(profile, 1);
        for id in 0..30 {
            submit(&mut engine, id, 200 + 150 * id as u32, 20 + 7 * (id as u32 % 11));
        }
        // Into the middle of it: some decode, some prefill, some wait.
        for _ in 0..25 {
            engine.start_step().unwrap();
            engine.finish_step(&mut Vec::new());
        }
        let extra = Extra { prompt_tokens: 5000, cached_tokens: 0, output_tokens: 64 };
        let mut forecast = Forecast::default();
        let alone = forecast.run(&engine, 0.0, None);
        let with = forecast.run(&engine, 0.0, Some(&extra));
        submit(&mut engine, 99, 5000, 64);
        let real = play(&mut engine, 99);
        let close = |one: f64, other: f64| (one / other - 1.0).abs() < 0.02;
        assert!(close(with.own_first_ms, real.own_first_ms), "{with:?} {real:?}");
        assert!(close(with.own_end_ms, real.own_end_ms), "{with:?} {real:?}");
        assert!(close(with.others_end_sum_ms, real.others_end_sum_ms), "{with:?} {real:?}");
        assert!(alone.others_end_sum_ms < with.others_end_sum_ms);
    }
}
