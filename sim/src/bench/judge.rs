//! Predictions judged where it counts: between pods, for the same request.
//!
//! For some decisions the future is played out on every candidate ([`crate::engine::forecast`]: true state, true
//! length, but nothing else arriving), and the order of the pods compared with that of the predictions. An error that all candidates share costs nothing;
//! one that is another for each pod picks the luckiest. Hence rank agreement and regret beside the median error.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::engine::forecast::{Extra, Forecast};
use crate::virtual_time::foretoken::address;
use crate::virtual_time::record::{Ending, Record, Spread};
use crate::virtual_time::{Ask, Observer, Pick};

/// Pods whose true times differ by less are not told apart.
const SAME: f64 = 0.02;

/// Looks at every decision that it is shown.
#[derive(Debug, Default)]
pub struct Judge {
    forecast: Forecast,
    regrets_ms: Vec<f64>,
    /// Predicted TTFT and TPOT on the pod that was picked.
    promised: HashMap<u64, (usize, f64, f64)>,
    ttft_errors: Vec<f64>,
    tpot_errors: Vec<f64>,
    ttft_pairs: (u64, u64),
    e2e_pairs: (u64, u64),
    cached_errors: Vec<f64>,
}

/// What a judge found.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Verdict {
    /// Decisions judged.
    pub decisions: usize,
    /// True completion on the picked pod less that on the best, ms. The best for the request alone: a router that
    /// spares others has some.
    pub regret_ms: Spread,
    /// Share of pairs of candidates, told apart by their true TTFT, that the prediction orders rightly.
    pub ttft_rank_agreement: f64,
    /// The same for completion (predicted: TTFT + expected output × TPOT).
    pub e2e_rank_agreement: f64,
    /// Median absolute relative error of predicted TTFT, where the request went.
    pub ttft_error: f64,
    /// The same for TPOT.
    pub tpot_error: f64,
    /// Mean absolute error of expected cached tokens, over all candidates, in shares of the prompt.
    pub cached_error: f64,
}

impl Judge {
    /// What was found.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let share = |(right, all): (u64, u64)| if all > 0 { right as f64 / all as f64 } else { 1.0 };
        Verdict {
            decisions: self.regrets_ms.len(),
            regret_ms: Spread::of(self.regrets_ms.clone()),
            ttft_rank_agreement: share(self.ttft_pairs),
            e2e_rank_agreement: share(self.e2e_pairs),
            ttft_error: Spread::of(self.ttft_errors.clone()).p50,
            tpot_error: Spread::of(self.tpot_errors.clone()).p50,
            cached_error: Spread::of(self.cached_errors.clone()).mean,
        }
    }
}

struct Judged {
    predicted_ttft_ms: f64,
    predicted_e2e_ms: f64,
    true_ttft_ms: f64,
    true_e2e_ms: f64,
}

fn count_pairs(judged: &[Judged], of: fn(&Judged) -> (f64, f64), pairs: &mut (u64, u64)) {
    for (at, one) in judged.iter().enumerate() {
        for other in &judged[at + 1..] {
            let ((p1, t1), (p2, t2)) = (of(one), of(other));
            if (t1 - t2).abs() > SAME * t1.min(t2) {
                pairs.1 += 1;
                pairs.0 += u64::from((p1 < p2) == (t1 < t2));
            }
        }
    }
}

impl Observer for Judge {
    fn decided(&mut self, ask: &Ask<'_>, pick: &Pick) {
        let Some(decision) = &pick.decision else { return };
        let mut judged = Vec::with_capacity(decision.choices.len());
        for pod in ask.pods.up() {
            let address = address(pod);
            let Some(choice) = decision.choices.iter().find(|choice| choice.address == address) else {
                continue;
            };
            let engine = ask.pods.engine(pod);
            let cached_tokens = ask.pods.cached_tokens(pod, ask.request);
            let extra = Extra {
                prompt_tokens: ask.request.prompt_tokens,
                cached_tokens,
                output_tokens: ask.request.output_tokens,
            };
            let left_ms = ask
                .pods
                .step_ends_us(pod)
                .map_or(0.0, |ends_us| ends_us.saturating_sub(ask.now_us) as f64 / 1000.0);
            let truth = self.forecast.run(engine, left_ms, Some(&extra));
            let (ttft_ms, tpot_ms) =
                (f64::from(choice.prediction.ttft_ms_p50), f64::from(choice.prediction.tpot_ms_p50));
            let expected_cached = f64::from(decision.prompt_tokens - choice.uncached_tokens);
            let prompt = f64::from(ask.request.prompt_tokens);
            self.cached_errors.push((expected_cached - f64::from(cached_tokens)).abs() / prompt);
            judged.push(Judged {
                predicted_ttft_ms: ttft_ms,
                predicted_e2e_ms: ttft_ms + f64::from(decision.expected_output_tokens) * tpot_ms,
                true_ttft_ms: truth.own_first_ms,
                true_e2e_ms: truth.own_end_ms,
            });
            if pick.pods.first() == Some(&pod) {
                self.regrets_ms.push(truth.own_end_ms);
                self.promised.insert(ask.id, (pod, ttft_ms, tpot_ms));
            }
        }
        let best = judged.iter().map(|one| one.true_e2e_ms).fold(f64::INFINITY, f64::min);
        if let Some(last) = self.regrets_ms.last_mut() {
            *last -= best;
        }
        count_pairs(&judged, |one| (one.predicted_ttft_ms, one.true_ttft_ms), &mut self.ttft_pairs);
        count_pairs(&judged, |one| (one.predicted_e2e_ms, one.true_e2e_ms), &mut self.e2e_pairs);
    }

    fn ended(&mut self, id: u64, record: &Record) {
        let Some((pod, ttft_ms, tpot_ms)) = self.promised.remove(&id) else { return };
        if record.ending != Ending::Complete || record.pod != pod {
            return;
        }
        self.ttft_errors.push((ttft_ms / record.ttft_ms().max(1e-3) - 1.0).abs());
        if let Some(true_ms) = record.tpot_ms() {
            self.tpot_errors.push((tpot_ms / true_ms.max(1e-3) - 1.0).abs());
        }
    }
}
