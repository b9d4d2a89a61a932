//! What a pod was busy with over a time: requests decoding, tokens they held, prompts computed.
//!
//! A request's time per token depends on the company it had from its first token to its last, which the load at
//! its pick tells only roughly. Sums over time, taken at both ends, tell it exactly. Each worker keeps sums of its own requests;
//! they add up over workers.
//!
//! Not the load at a moment: that is [`crate::load`].

use crate::codec::{Reader, Writer};
use crate::num::{f32_of_f64, f64_of_u64};
use crate::speed::Work;

/// Sums since this worker began, as of `at_us`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Occupancy {
    at_us: u64,
    /// Requests decoding now…
    requests: f64,
    /// …and the tokens they hold.
    context_tokens: f64,
    /// Both over time.
    requests_us: f64,
    context_us: f64,
    /// Prompts computed: tokens, and pairs of a token and one before it.
    tokens: f64,
    token2: f64,
}

/// What a pod was busy with between two moments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Company {
    /// Mean number of requests decoding.
    pub requests: f32,
    /// Mean number of tokens that they held.
    pub context_tokens: f32,
    /// Prompts computed in that time.
    pub prefilled: Work,
}

impl Occupancy {
    fn advance(&mut self, now_us: u64) {
        let passed_us = f64_of_u64(now_us.saturating_sub(self.at_us));
        self.requests_us += self.requests * passed_us;
        self.context_us += self.context_tokens * passed_us;
        self.at_us = self.at_us.max(now_us);
    }

    /// A request that holds `context_tokens` produced its first token after this work.
    pub fn begin(&mut self, context_tokens: f32, prefilled: Work, now_us: u64) {
        self.advance(now_us);
        self.requests += 1.0;
        self.context_tokens += f64::from(context_tokens);
        self.tokens += f64::from(prefilled.tokens);
        self.token2 += f64::from(prefilled.token2);
    }

    /// One that decodes holds so many tokens more.
    pub fn grow(&mut self, tokens: f32, now_us: u64) {
        self.advance(now_us);
        self.context_tokens += f64::from(tokens);
    }

    /// One that held `context_tokens` ended, or went elsewhere.
    pub fn finish(&mut self, context_tokens: f32, now_us: u64) {
        self.advance(now_us);
        self.requests = (self.requests - 1.0).max(0.0);
        self.context_tokens = if self.requests > 0.0 {
            (self.context_tokens - f64::from(context_tokens)).max(0.0)
        } else {
            // Rounding must not add up over months.
            0.0
        };
    }

    /// Adds another worker's sums; both count up to `now_us`.
    pub fn add(&mut self, other: &Self, now_us: u64) {
        let mut other = *other;
        self.advance(now_us);
        other.advance(now_us);
        self.requests += other.requests;
        self.context_tokens += other.context_tokens;
        self.requests_us += other.requests_us;
        self.context_us += other.context_us;
        self.tokens += other.tokens;
        self.token2 += other.token2;
    }

    /// What happened since these sums were `earlier`; `None` where no time passed, or a worker's sums began anew.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Option<Company> {
        let passed_us = f64_of_u64(self.at_us.saturating_sub(earlier.at_us));
        let mean = |now: f64, before: f64| (now - before) / passed_us;
        let requests = mean(self.requests_us, earlier.requests_us);
        let context_tokens = mean(self.context_us, earlier.context_us);
        let (tokens, token2) = (self.tokens - earlier.tokens, self.token2 - earlier.token2);
        let sound = |value: &f64| value.is_finite() && *value >= 0.0;
        [requests, context_tokens, tokens, token2].iter().all(sound).then(|| Company {
            requests: f32_of_f64(requests),
            context_tokens: f32_of_f64(context_tokens),
            prefilled: Work { tokens: f32_of_f64(tokens), token2: f32_of_f64(token2) },
        })
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.u64(self.at_us);
        for value in
            [self.requests, self.context_tokens, self.requests_us, self.context_us, self.tokens, self.token2]
        {
            out.f64(value);
        }
    }

    /// `None` when a value is missing, not finite or negative.
    pub(crate) fn read(input: &mut Reader<'_>) -> Option<Self> {
        let at_us = input.u64()?;
        let mut next = || input.f64().filter(|value| value.is_finite() && *value >= 0.0);
        Some(Self {
            at_us,
            requests: next()?,
            context_tokens: next()?,
            requests_us: next()?,
            context_us: next()?,
            tokens: next()?,
            token2: next()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_company_of_a_time_is_its_mean() {
        let mut pod = Occupancy::default();
        pod.begin(100.0, Work::of(100.0, 100.0), 1_000);
        let earlier = pod;
        pod.begin(300.0, Work::of(200.0, 300.0), 2_000);
        pod.grow(50.0, 3_000);
        pod.finish(350.0, 4_000);
        pod.add(&Occupancy::default(), 5_000);
        let company = pod.since(&earlier).unwrap();
        // One request for 4 ms and another for 2 of them.
        assert_eq!(company.requests, 1.5);
        assert_eq!(company.context_tokens, (4.0 * 100.0 + 300.0 + 350.0) / 4.0);
        assert_eq!(company.prefilled, Work { tokens: 200.0, token2: 40_000.0 });
    }

    #[test]
    fn workers_add_up_at_one_moment() {
        let (mut one, mut two) = (Occupancy::default(), Occupancy::default());
        one.begin(10.0, Work::default(), 1_000);
        two.begin(20.0, Work::default(), 3_000);
        let mut all = one;
        all.add(&two, 5_000);
        assert_eq!((all.requests_us, all.context_us), (4_000.0 + 2_000.0, 40_000.0 + 40_000.0));
    }

    #[test]
    fn sums_that_began_anew_tell_nothing() {
        let mut pod = Occupancy::default();
        pod.begin(10.0, Work::of(5.0, 5.0), 1_000);
        pod.grow(1.0, 2_000);
        let mut fresh = Occupancy::default();
        fresh.begin(10.0, Work::default(), 4_000);
        assert_eq!(fresh.since(&pod), None);
        assert_eq!(pod.since(&pod), None, "no time passed");
    }

    #[test]
    fn nothing_is_left_of_requests_that_ended() {
        let mut pod = Occupancy::default();
        for at in 0..100_u64 {
            pod.begin(0.1, Work::default(), at * 10);
            pod.finish(0.1 + 1e-9, at * 10 + 5);
        }
        assert_eq!((pod.requests, pod.context_tokens), (0.0, 0.0));
        let mut out = Writer::reuse(Vec::new());
        pod.write(&mut out);
        assert_eq!(Occupancy::read(&mut Reader::new(&out.finish())), Some(pod));
    }
}
