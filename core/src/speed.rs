//! How fast a pod is, learned online from its own answers.
//!
//! Pods of mixed hardware are the normal case. Two lines are fitted per pod by least squares on decayed
//! sums: TTFT against the uncached tokens of work at and ahead of the request, and TPOT against the number
//! of requests decoding. The sums of several workers add up, so what one worker learns all of them know.
//!
//! Residuals are weighted by 1/(x + scale)²: about relative errors, so that a 10 % error counts the same on a
//! 50 ms and on a 5 s answer. The weight depends on x alone: by the answer's own time, slow answers would count
//! less and a pod that slows down would be believed late. A ridge pulls a pod with few answers to the fleet's
//! median, so a new pod starts as a typical one.
//! Not a predictor by itself: it feeds the prior and is a column of the model's row.

use crate::codec::{Reader, Writer};

/// Weight that each new answer takes from the old ones: an effective memory of about 30 answers, so that a
/// pod that slowed down is noticed within 20.
const FORGET: f32 = 1.0 / 30.0;

/// Weight that an answer takes from what is known of the other pods: after 300 answers elsewhere a third of it
/// is left, so a pod that gets none comes back to the fleet's median within some hundred requests.
const FADE: f32 = 1.0 / 300.0;

/// Ridge weight of the belief that a pod is typical, in answers.
const BELIEF_ANSWERS: f32 = 1.0;

/// An answer counts as at most this factor off the line so far: on machines that stall now and then a mean
/// without it follows the stalls.
const MOST_SURPRISE: f32 = 4.0;

/// Answers from which the line so far is trusted that much.
const ANSWERS_TO_CLIP: f32 = 5.0;

/// A straight line y = `base` + `slope` × x.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// y at x = 0.
    pub base: f32,
    /// Rise of y for one more x.
    pub slope: f32,
}

/// Decayed sums of a weighted least-squares fit. Additive over workers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LineSums {
    /// Decayed number of observations.
    pub count: f32,
    w: f64,
    wx: f64,
    wy: f64,
    wxx: f64,
    wxy: f64,
}

impl LineSums {
    /// Takes one observation. Ignored when a value is not finite, x is negative or y is not positive.
    fn observe(&mut self, x: f32, y: f32, scale: f64) {
        if !(x.is_finite() && y.is_finite()) || x < 0.0 || y <= 0.0 {
            return;
        }
        let keep = f64::from(1.0 - FORGET);
        let (x, y) = (f64::from(x), f64::from(y));
        let weight = 1.0 / ((x + scale) * (x + scale));
        self.count = self.count * (1.0 - FORGET) + 1.0;
        self.w = self.w * keep + weight;
        self.wx = self.wx * keep + weight * x;
        self.wy = self.wy * keep + weight * y;
        self.wxx = self.wxx * keep + weight * x * x;
        self.wxy = self.wxy * keep + weight * x * y;
    }

    /// `y`, or as far from the line so far as one answer may be, once there are answers enough to tell.
    fn clipped(&self, belief: Line, x: f32, y: f32) -> f32 {
        if self.count < ANSWERS_TO_CLIP {
            return y;
        }
        let line = self.fit(belief);
        let expected = line.base + line.slope * x;
        // A spike passes; a lasting change is followed within a few answers.
        y.clamp(expected / MOST_SURPRISE, expected * MOST_SURPRISE)
    }

    fn fade(&mut self) {
        self.scale(1.0 - FADE);
    }

    fn scale(&mut self, share: f32) {
        self.count *= share;
        for sum in [&mut self.w, &mut self.wx, &mut self.wy, &mut self.wxx, &mut self.wxy] {
            *sum *= f64::from(share);
        }
    }

    /// Adds the sums of another worker.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.w += other.w;
        self.wx += other.wx;
        self.wy += other.wy;
        self.wxx += other.wxx;
        self.wxy += other.wxy;
    }

    /// The line of least weighted squares, with a ridge towards `belief`; neither part below its hundredth.
    ///
    /// Minimises Σ w (y - a - b x)² + k b0² ((a - a0)/a0)² + k b0² ((b - b0)/b0)². The observations' terms are
    /// squares of y's error per x, so the belief's relative errors are brought to that unit by b0.
    #[must_use]
    pub fn fit(&self, belief: Line) -> Line {
        let (a0, b0) = (f64::from(belief.base), f64::from(belief.slope));
        let ka = f64::from(BELIEF_ANSWERS) * (b0 / a0) * (b0 / a0);
        let kb = f64::from(BELIEF_ANSWERS);
        let (maa, mab, mbb) = (self.w + ka, self.wx, self.wxx + kb);
        let (va, vb) = (self.wy + ka * a0, self.wxy + kb * b0);
        let determinant = maa * mbb - mab * mab;
        let (mut base, mut slope) =
            ((va * mbb - vb * mab) / determinant, (vb * maa - va * mab) / determinant);
        if !(base.is_finite() && slope.is_finite()) {
            return belief;
        }
        // A negative part is noise: hold it at a small positive value and fit the other alone.
        if slope < b0 / 100.0 {
            slope = b0 / 100.0;
            base = (va - slope * mab) / maa;
        }
        if base < a0 / 100.0 {
            base = a0 / 100.0;
            slope = ((vb - base * mab) / mbb).max(b0 / 100.0);
        }
        Line { base: crate::num::f32_of_f64(base), slope: crate::num::f32_of_f64(slope) }
    }

    fn write(&self, out: &mut Writer) {
        out.f32(self.count);
        for value in [self.w, self.wx, self.wy, self.wxx, self.wxy] {
            out.f64(value);
        }
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            count: input.f32()?,
            w: input.f64()?,
            wx: input.f64()?,
            wy: input.f64()?,
            wxx: input.f64()?,
            wxy: input.f64()?,
        })
    }
}

/// Uncached tokens at which the floor and the prefill of a typical pod weigh the same.
const TTFT_SCALE_TOKENS: f64 = 150.0;

/// Requests decoding at which the base and the slope of a typical pod's TPOT weigh the same.
const TPOT_SCALE_REQUESTS: f64 = 60.0;

/// What is learned of one pod. Additive over workers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SpeedSums {
    /// TTFT in ms against uncached tokens of work.
    pub ttft: LineSums,
    /// TPOT in ms, freed of the prefill share, against requests decoding.
    pub tpot: LineSums,
}

impl SpeedSums {
    /// An answer: `work_tokens` uncached tokens at and ahead of it took `ttft_ms`.
    pub fn observe_ttft(&mut self, work_tokens: f32, ttft_ms: f32) {
        let ttft_ms = self.ttft.clipped(DEFAULT_SPEED.ttft, work_tokens, ttft_ms);
        self.ttft.observe(work_tokens, ttft_ms, TTFT_SCALE_TOKENS);
    }

    /// An answer: among `requests` decoding it took `tpot_ms` a token, freed of the prefill share.
    pub fn observe_tpot(&mut self, requests: f32, tpot_ms: f32) {
        let tpot_ms = self.tpot.clipped(DEFAULT_SPEED.tpot, requests, tpot_ms);
        self.tpot.observe(requests, tpot_ms, TPOT_SCALE_REQUESTS);
    }

    /// Another pod answered.
    pub fn fade(&mut self) {
        self.ttft.fade();
        self.tpot.fade();
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

    /// The pod's speed, pulled to `belief` where little is known.
    #[must_use]
    pub fn fit(&self, belief: &PodSpeed) -> PodSpeed {
        PodSpeed { ttft: self.ttft.fit(belief.ttft), tpot: self.tpot.fit(belief.tpot) }
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        self.ttft.write(out);
        self.tpot.write(out);
    }

    pub(crate) fn read(input: &mut Reader<'_>) -> Option<Self> {
        Some(Self { ttft: LineSums::read(input)?, tpot: LineSums::read(input)? })
    }
}

/// A pod's speed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PodSpeed {
    /// `base`: TTFT floor in ms; `slope`: prefill ms per uncached token.
    pub ttft: Line,
    /// `base`: TPOT in ms of a request alone; `slope`: ms more for each further request decoding.
    pub tpot: Line,
}

/// Speed assumed before any pod has answered: an 8B model on one current GPU (0.15-0.3 ms a prompt token and
/// 10-15 ms a step are the ranges that llm-d's simulator profiles give for it).
pub const DEFAULT_SPEED: PodSpeed =
    PodSpeed { ttft: Line { base: 30.0, slope: 0.2 }, tpot: Line { base: 12.0, slope: 0.2 } };

/// The typical speed of these pods: medians over those that have answered, else `belief`.
#[must_use]
pub fn typical(pods: &[SpeedSums], belief: &PodSpeed) -> PodSpeed {
    let known = |pick: fn(&SpeedSums) -> &LineSums, default: Line| {
        let lines: Vec<Line> =
            pods.iter().map(pick).filter(|sums| sums.count >= 3.0).map(|sums| sums.fit(default)).collect();
        let median = |part: fn(&Line) -> f32, default: f32| {
            let mut values: Vec<f32> = lines.iter().map(part).collect();
            values.sort_by(f32::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(default)
        };
        Line { base: median(|line| line.base, default.base), slope: median(|line| line.slope, default.slope) }
    };
    PodSpeed { ttft: known(|sums| &sums.ttft, belief.ttft), tpot: known(|sums| &sums.tpot, belief.tpot) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(got: f32, want: f32, share: f32) {
        assert!((got - want).abs() <= want.abs() * share, "got {got}, want {want}");
    }

    #[test]
    fn a_line_is_found_from_its_points() {
        let mut sums = LineSums::default();
        for i in 0..60_u16 {
            let x = f32::from(i % 12) * 400.0;
            sums.observe(x, 25.0 + 0.08 * x, 150.0);
        }
        let line = sums.fit(DEFAULT_SPEED.ttft);
        assert_close(line.base, 25.0, 0.1);
        assert_close(line.slope, 0.08, 0.1);
    }

    #[test]
    fn a_pod_that_slows_down_by_two_is_noticed_within_20_answers() {
        let mut sums = LineSums::default();
        let x = |i: u16| f32::from(i % 7) * 500.0;
        for i in 0..200 {
            sums.observe(x(i), 20.0 + 0.1 * x(i), 150.0);
        }
        for i in 0..20 {
            sums.observe(x(i), 40.0 + 0.2 * x(i), 150.0);
        }
        // Half of the way at least: 20 of about 30 remembered answers are new.
        assert!(sums.fit(DEFAULT_SPEED.ttft).slope > 0.13);
    }

    #[test]
    fn a_stall_moves_the_line_little_and_a_lasting_change_of_ten_all_the_way() {
        let (x, mut sums) = (|i: u16| f32::from(i % 7) * 500.0, SpeedSums::default());
        for i in 0..40 {
            sums.observe_ttft(x(i), 20.0 + 0.1 * x(i));
        }
        sums.observe_ttft(500.0, 60_000.0);
        assert!(sums.fit(&DEFAULT_SPEED).ttft.slope < 0.14);
        for i in 0..60 {
            sums.observe_ttft(x(i), 200.0 + x(i));
        }
        assert!(sums.fit(&DEFAULT_SPEED).ttft.slope > 0.8, "{:?}", sums.fit(&DEFAULT_SPEED));
    }

    #[test]
    fn a_pod_without_answers_is_typical() {
        let mut fast = SpeedSums::default();
        for i in 0..40_u16 {
            fast.observe_ttft(f32::from(i % 9) * 300.0, 10.0 + 0.05 * f32::from(i % 9) * 300.0);
        }
        let typical = typical(&[fast, SpeedSums::default()], &DEFAULT_SPEED);
        assert_close(typical.ttft.slope, 0.05, 0.15);
        assert_eq!(SpeedSums::default().fit(&typical), typical);
    }

    #[test]
    fn a_pod_that_was_slow_once_is_typical_again_after_a_thousand_answers_of_others() {
        let mut slow = SpeedSums::default();
        for i in 0..60_u16 {
            slow.observe_ttft(f32::from(i % 9) * 300.0, 4.0 * (20.0 + 0.1 * f32::from(i % 9) * 300.0));
        }
        let typical = PodSpeed { ttft: Line { base: 20.0, slope: 0.1 }, ..DEFAULT_SPEED };
        assert!(slow.fit(&typical).ttft.slope > 0.35);
        for _ in 0..1500 {
            slow.fade();
        }
        assert!(slow.fit(&typical).ttft.slope < 0.2);
    }

    #[test]
    fn answers_on_one_point_never_give_a_negative_part() {
        let mut sums = LineSums::default();
        for _ in 0..50 {
            sums.observe(1000.0, 3.0, 150.0);
        }
        let line = sums.fit(DEFAULT_SPEED.ttft);
        assert!(line.base > 0.0 && line.slope > 0.0, "{line:?}");
    }

    #[test]
    fn sums_of_two_workers_add_up_to_a_fit_of_both() {
        let (mut one, mut two) = (LineSums::default(), LineSums::default());
        for i in 0..30_u16 {
            one.observe(f32::from(i) * 100.0, 10.0 + 0.1 * f32::from(i) * 100.0, 150.0);
            two.observe(f32::from(i) * 50.0, 10.0 + 0.1 * f32::from(i) * 50.0, 150.0);
        }
        one.add(&two);
        assert_close(one.fit(DEFAULT_SPEED.ttft).slope, 0.1, 0.05);
    }
}
