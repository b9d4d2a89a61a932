//! How fast pods are, learned online from their own answers.
//!
//! Two laws are shared by all pods of a class, and each pod has a factor of its own in either:
//!
//! * a decode step takes base + requests × a + context tokens × b: weights are read once, every sequence has its
//!   own work, and attention reads every token held;
//! * a first token takes some steps of waiting, the prefill's own work (linear, and quadratic by attention), and a
//!   share of a step for every chunk that the engine cuts it into.
//!
//! What matters for routing is the difference between pods, and noise that is independent per pod would pick the luckiest error.
//! So the laws are learned from all pods' answers together; a pod's factor is believed as far as pods are seen to
//! differ by more than chance (empirical Bayes: with equal pods it is 1, with mixed hardware nearly what was
//! measured).
//!
//! Not a predictor by itself: it feeds the prior and columns of the model's row.

use crate::codec::{Reader, Writer};
use crate::num::{f32_of_f64, f64_of_u64};
use crate::plane::PlaneSums;

/// Share of the old that a new answer leaves: the last 30 answers of a pod or so count, so that one that slows down is
/// noticed within 20; for the laws those of all pods of a class together.
const KEEP: f32 = 1.0 - 1.0 / 30.0;

/// The same from what is known of the other pods: after 300 answers elsewhere a third of it is left, so a pod
/// that gets none is taken for a typical one again within some hundred requests, and tried.
const KEEP_OF_OTHERS: f32 = 1.0 - 1.0 / 300.0;

/// Ridge weight of the belief in a law, in answers.
const BELIEF_ANSWERS: f32 = 1.0;

/// An answer counts as at most this factor off what was expected: on machines that stall now and then a mean
/// without it follows the stalls.
const MOST_SURPRISE: f32 = 4.0;

/// Answers from which what was expected is trusted that much.
const ANSWERS_TO_CLIP: f32 = 5.0;

/// Answers of a pod err together, as they share its batch: so many say as much as one that errs alone.
const ANSWERS_ALIKE: f64 = 4.0;

/// Rounds of fitting laws and factors in turn.
const ROUNDS: usize = 3;

/// Prefill work.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Work {
    /// Tokens to compute.
    pub tokens: f32,
    /// Pairs of a computed token and one before it, for attention.
    pub token2: f32,
}

impl Work {
    /// Computing the last `uncached_tokens` of a prompt.
    #[must_use]
    pub fn of(uncached_tokens: f32, prompt_tokens: f32) -> Self {
        let tokens = uncached_tokens.max(0.0);
        Self { tokens, token2: tokens * (prompt_tokens - tokens / 2.0).max(tokens / 2.0) }
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { tokens: self.tokens + other.tokens, token2: self.token2 + other.token2 }
    }

    /// This share of it.
    #[must_use]
    pub fn share(self, share: f32) -> Self {
        Self { tokens: self.tokens * share, token2: self.token2 * share }
    }
}

/// A decode step's law.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decode {
    /// Ms of a step by itself.
    pub base_ms: f32,
    /// Ms more for each request decoding.
    pub per_request_ms: f32,
    /// Ms more for each token of context held.
    pub per_context_token_ms: f32,
}

impl Decode {
    /// Ms of a step with so many requests that hold so many tokens.
    #[must_use]
    pub fn step_ms(&self, requests: f32, context_tokens: f32) -> f32 {
        self.base_ms + self.per_request_ms * requests + self.per_context_token_ms * context_tokens
    }

    /// Ms that a request which holds so many tokens adds to a step.
    #[must_use]
    pub fn added_ms(&self, context_tokens: f32) -> f32 {
        self.per_request_ms + self.per_context_token_ms * context_tokens
    }

    fn law(self) -> [f32; 3] {
        [self.base_ms, self.per_request_ms, self.per_context_token_ms]
    }

    fn of([base_ms, per_request_ms, per_context_token_ms]: [f32; 3], factor: f32) -> Self {
        Self {
            base_ms: base_ms * factor,
            per_request_ms: per_request_ms * factor,
            per_context_token_ms: per_context_token_ms * factor,
        }
    }
}

/// A first token's law.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prefill {
    /// Decode steps that pass whatever the prompt: the running one ends, and the own first one.
    pub wait_steps: f32,
    /// Ms for each token computed.
    pub per_token_ms: f32,
    /// Ms for each pair of a computed token and one before it.
    pub per_token2_ms: f32,
    /// Decode steps for each token computed: one for each chunk.
    pub steps_per_token: f32,
}

impl Prefill {
    /// Ms that the work itself takes; decoding that goes on beside it is not in it.
    #[must_use]
    pub fn work_ms(&self, work: Work) -> f32 {
        self.per_token_ms * work.tokens + self.per_token2_ms * work.token2
    }

    /// Ms from dispatch to the first token after this work, own and ahead, among decode steps of `step_ms`.
    #[must_use]
    pub fn ttft_ms(&self, work: Work, step_ms: f32) -> f32 {
        (self.wait_steps + self.steps_per_token * work.tokens) * step_ms + self.work_ms(work)
    }

    fn law(self) -> [f32; 4] {
        [self.wait_steps, self.per_token_ms, self.per_token2_ms, self.steps_per_token]
    }

    fn of([wait_steps, per_token_ms, per_token2_ms, steps_per_token]: [f32; 4], factor: f32) -> Self {
        Self {
            wait_steps: wait_steps * factor,
            per_token_ms: per_token_ms * factor,
            per_token2_ms: per_token2_ms * factor,
            steps_per_token: steps_per_token * factor,
        }
    }
}

/// A pod's speed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PodSpeed {
    /// First tokens.
    pub prefill: Prefill,
    /// Further tokens.
    pub decode: Decode,
}

/// Speed assumed before any pod has answered: an 8B model on one current GPU. 0.15-0.3 ms a prompt token and 10-15 ms
/// a step are the ranges that llm-d's simulator profiles give for it. Attention by arithmetic: 4 × layers × width
/// operations a pair at 400 TFLOP/s, and 128 KiB of cache a token at 3.3 TB/s. Chunks of 2048 tokens are vLLM's.
pub const DEFAULT_SPEED: PodSpeed = PodSpeed {
    prefill: Prefill {
        wait_steps: 1.5,
        per_token_ms: 0.2,
        per_token2_ms: 1.3e-6,
        steps_per_token: 1.0 / 2048.0,
    },
    decode: Decode { base_ms: 12.0, per_request_ms: 0.2, per_context_token_ms: 4e-5 },
};

/// What is learned of one pod. Additive over workers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SpeedSums {
    /// TTFT in ms.
    pub ttft: PlaneSums<4>,
    /// TPOT in ms, freed of the prefills in between.
    pub tpot: PlaneSums<3>,
}

fn clipped(count: f32, expected: f32, y: f32) -> f32 {
    // A spike passes; a lasting change is followed within a few answers.
    if count < ANSWERS_TO_CLIP { y } else { y.clamp(expected / MOST_SURPRISE, expected * MOST_SURPRISE) }
}

impl SpeedSums {
    /// An answer of a pod taken to be this fast: `work`, own and ahead, among steps of `step_ms` took `ttft_ms`.
    pub fn observe_ttft(&mut self, speed: &PodSpeed, work: Work, step_ms: f32, ttft_ms: f32) {
        let expected = speed.prefill.ttft_ms(work, step_ms);
        let x = [step_ms, work.tokens, work.token2, work.tokens * step_ms];
        self.ttft.observe(&x, clipped(self.ttft.count, expected, ttft_ms), expected, KEEP);
    }

    /// An answer of a pod taken to be this fast: among so many requests decoding, itself included, that held so
    /// many tokens, it took `tpot_ms` a token, freed of prefills.
    pub fn observe_tpot(&mut self, speed: &PodSpeed, requests: f32, context_tokens: f32, tpot_ms: f32) {
        let expected = speed.decode.step_ms(requests, context_tokens);
        let x = [1.0, requests, context_tokens];
        self.tpot.observe(&x, clipped(self.tpot.count, expected, tpot_ms), expected, KEEP);
    }

    /// Another pod answered.
    pub fn fade(&mut self) {
        self.scale(KEEP_OF_OTHERS);
    }

    /// Lets this share of the answers count.
    pub(crate) fn scale(&mut self, share: f32) {
        self.ttft.scale(share);
        self.tpot.scale(share);
    }

    /// Adds the sums of another worker.
    pub fn add(&mut self, other: &Self) {
        self.ttft.add(&other.ttft);
        self.tpot.add(&other.tpot);
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        self.ttft.write(out);
        self.tpot.write(out);
    }

    pub(crate) fn read(input: &mut Reader<'_>) -> Option<Self> {
        Some(Self { ttft: PlaneSums::read(input)?, tpot: PlaneSums::read(input)? })
    }
}

/// Factors of pods against a law, each believed as far as pods differ by more than chance.
///
/// A pod's factor varies about the others' with the variance t between pods, and is known but for v, the variance
/// of the mean of its answers; then the best guess of its logarithm is the mean plus t / (t + v) of what is off it.
fn factors<const N: usize>(pods: &[&PlaneSums<N>], law: &[f32; N]) -> Vec<f64> {
    let seen: Vec<_> = pods.iter().map(|sums| sums.against(law).filter(|_| sums.count >= 1.0)).collect();
    let known =
        || seen.iter().zip(pods).filter_map(|(scale, sums)| Some((scale.as_ref()?, f64::from(sums.count))));
    let answers: f64 = known().map(|(_, count)| count).sum();
    let number = f64_of_u64(u64::try_from(known().count()).unwrap_or(0));
    let variance = known().map(|(scale, count)| scale.variance * count).sum::<f64>() / answers;
    let own = |count: f64| variance * ANSWERS_ALIKE / count;
    let mean = known().map(|(scale, count)| scale.ln * count).sum::<f64>() / answers;
    let off = known().map(|(scale, _)| (scale.ln - mean) * (scale.ln - mean)).sum::<f64>() / (number - 1.0);
    let chance = known().map(|(_, count)| own(count)).sum::<f64>() / number;
    let between = (off - chance).max(0.0);
    seen.iter()
        .zip(pods)
        .map(|(scale, sums)| {
            let Some(scale) = scale else { return 1.0 };
            let ln = (scale.ln - mean) * between / (between + own(f64::from(sums.count)));
            if ln.is_finite() { ln.exp() } else { 1.0 }
        })
        .collect()
}

fn laws<const N: usize>(pods: &[&PlaneSums<N>], belief: [f32; N]) -> ([f32; N], Vec<f64>) {
    let mut law = belief;
    let mut each = vec![1.0; pods.len()];
    for _ in 0..ROUNDS {
        let mut all = PlaneSums::default();
        for (sums, factor) in pods.iter().zip(&each) {
            all.add_scaled(sums, *factor);
        }
        law = all.fit(&belief, BELIEF_ANSWERS);
        each = factors(pods, &law);
    }
    (law, each)
}

/// The typical speed of these pods, pulled to `belief` where little is known, and each pod's own.
#[must_use]
pub fn speeds(pods: &[SpeedSums], belief: &PodSpeed) -> (PodSpeed, Vec<PodSpeed>) {
    let ttft: Vec<_> = pods.iter().map(|sums| &sums.ttft).collect();
    let tpot: Vec<_> = pods.iter().map(|sums| &sums.tpot).collect();
    let (prefill, ttft_factors) = laws(&ttft, belief.prefill.law());
    let (decode, tpot_factors) = laws(&tpot, belief.decode.law());
    let speed = |ttft: f64, tpot: f64| PodSpeed {
        prefill: Prefill::of(prefill, f32_of_f64(ttft)),
        decode: Decode::of(decode, f32_of_f64(tpot)),
    };
    let each = ttft_factors.iter().zip(&tpot_factors).map(|(ttft, tpot)| speed(*ttft, *tpot)).collect();
    (speed(1.0, 1.0), each)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP_MS: f32 = 20.0;

    fn work(i: u16) -> Work {
        Work::of(f32::from(i % 7) * 500.0, 4000.0)
    }

    /// Answers that take `factor` times as long as the default speed says.
    fn answer(sums: &mut SpeedSums, factor: f32, count: u16) {
        for i in 0..count {
            let ms = DEFAULT_SPEED.prefill.ttft_ms(work(i), STEP_MS) * factor;
            sums.observe_ttft(&DEFAULT_SPEED, work(i), STEP_MS, ms);
        }
    }

    fn pods(factors: &[f32]) -> Vec<SpeedSums> {
        let pod = |factor: &f32| {
            let mut sums = SpeedSums::default();
            answer(&mut sums, *factor, 100);
            sums
        };
        factors.iter().map(pod).collect()
    }

    /// How much longer a prompt takes on each than by the default speed.
    fn seen(pods: &[SpeedSums]) -> Vec<f32> {
        let of = |speed: &PodSpeed| speed.prefill.ttft_ms(work(4), STEP_MS);
        let (_, each) = speeds(pods, &DEFAULT_SPEED);
        each.iter().map(|speed| of(speed) / of(&DEFAULT_SPEED)).collect()
    }

    #[test]
    fn a_pod_that_slows_down_by_two_is_noticed_within_20_answers() {
        let mut pods = pods(&[1.0; 4]);
        answer(&mut pods[2], 2.0, 20);
        let seen = seen(&pods);
        assert!(seen[2] > 1.3, "{seen:?}");
        assert!([0, 1, 3].iter().all(|at: &usize| (seen[*at] - 1.0).abs() < 0.05), "{seen:?}");
    }

    #[test]
    fn a_stall_moves_little_and_a_lasting_change_of_ten_all_the_way() {
        let mut pods = pods(&[1.0; 4]);
        pods[1].observe_ttft(&DEFAULT_SPEED, work(3), STEP_MS, 60_000.0);
        assert!(seen(&pods)[1] < 1.15, "{:?}", seen(&pods));
        for _ in 0..300 {
            // What is expected follows, so no answer is a surprise for long.
            let (_, each) = speeds(&pods, &DEFAULT_SPEED);
            let ms = DEFAULT_SPEED.prefill.ttft_ms(work(3), STEP_MS) * 10.0;
            pods[1].observe_ttft(&each[1], work(3), STEP_MS, ms);
        }
        assert!(seen(&pods)[1] > 8.0, "{:?}", seen(&pods));
    }

    #[test]
    fn a_pod_that_was_slow_once_is_typical_again_after_a_thousand_answers_of_others() {
        let mut pods = pods(&[1.0, 1.0, 1.0, 4.0]);
        assert!(seen(&pods)[3] > 3.5, "{:?}", seen(&pods));
        for _ in 0..3000 {
            pods[3].fade();
        }
        assert!(seen(&pods)[3] < 1.5, "{:?}", seen(&pods));
    }

    #[test]
    fn a_pod_without_answers_is_typical_and_one_alone_is_itself() {
        let mut fast = pods(&[0.5, 0.5]);
        fast.push(SpeedSums::default());
        assert!((seen(&fast)[2] - 0.5).abs() < 0.05, "{:?}", seen(&fast));
        assert!((seen(&pods(&[3.0]))[0] - 3.0).abs() < 0.1);
        assert_eq!(speeds(&[], &DEFAULT_SPEED).0, DEFAULT_SPEED);
    }

    #[test]
    fn attention_counts_what_a_token_looks_back_on() {
        // All of 100: half of the pairs; the last 10 of 100: each looks back on some 95.
        assert_eq!(Work::of(100.0, 100.0).token2, 5000.0);
        assert_eq!(Work::of(10.0, 100.0).token2, 950.0);
        // An engine that computed more than it was sent did not look back on less than nothing.
        assert!(Work::of(200.0, 100.0).token2 > 0.0);
    }
}
