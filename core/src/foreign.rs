//! What others store in a pod's KV cache: told from the pod's own counter, less what this Envoy knows of.
//!
//! Another Envoy, a batch job, a user with a direct line: their tokens push ours out, and no ledger holds
//! them. The engine counts all tokens that it computes; the ledgers count those that this Envoy caused. The
//! difference, when it grows, is foreign and takes room in the prefix index.
//!
//! Not exact to the request: requests in flight are counted by one side and not yet by the other, so they are
//! given the benefit of the doubt.

/// The two counters of one pod, and how far apart they were when last settled.
#[derive(Debug, Clone, Copy, Default)]
pub struct ForeignTokens {
    settled: Option<Counters>,
}

#[derive(Debug, Clone, Copy)]
struct Counters {
    engine: f64,
    ours: f64,
}

impl ForeignTokens {
    /// Foreign tokens stored since the last call. NaN counters say nothing.
    ///
    /// `engine` is the engine's counter of tokens computed, `ours` that of the requests that ended here, and
    /// `in_flight` the tokens of ours that the engine may have counted and we have not.
    pub fn settle(&mut self, engine: f64, ours: f64, in_flight: f64) -> f32 {
        if !(engine.is_finite() && ours.is_finite()) {
            return 0.0;
        }
        let now = Counters { engine, ours };
        let Some(before) = self.settled else {
            self.settled = Some(now);
            return 0.0;
        };
        if engine < before.engine || ours < before.ours {
            // The engine restarted, or a worker's VM did.
            self.settled = Some(now);
            return 0.0;
        }
        let apart = (engine - before.engine) - (ours - before.ours);
        let foreign = apart - in_flight;
        if foreign > 0.0 {
            self.settled = Some(Counters { engine: before.engine + foreign, ours: before.ours });
            return crate::num::f32_of_f64(foreign);
        }
        if apart < -in_flight {
            // What was in flight at the last settling has ended here, or is overestimated: no debt is kept,
            // or foreign traffic would have to make up for it first.
            self.settled = Some(Counters { engine: before.engine + apart + in_flight, ours: before.ours });
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_ours_is_not_foreign_whenever_it_is_counted() {
        let mut foreign = ForeignTokens::default();
        assert_eq!(foreign.settle(5000.0, 0.0, 0.0), 0.0, "before the first settling nothing is known");
        assert_eq!(foreign.settle(5800.0, 0.0, 1000.0), 0.0, "in flight");
        assert_eq!(foreign.settle(6000.0, 1000.0, 0.0), 0.0, "ended");
        assert_eq!(foreign.settle(6700.0, 1000.0, 0.0), 700.0);
        assert_eq!(foreign.settle(6700.0, 1000.0, 0.0), 0.0, "once");
    }

    #[test]
    fn counters_that_start_again_are_settled_anew() {
        let mut foreign = ForeignTokens::default();
        foreign.settle(5000.0, 100.0, 0.0);
        assert_eq!(foreign.settle(10.0, 100.0, 0.0), 0.0);
        assert_eq!(foreign.settle(60.0, 100.0, 0.0), 50.0);
        assert_eq!(foreign.settle(f64::NAN, 100.0, 0.0), 0.0);
        assert_eq!(foreign.settle(100.0, 100.0, 0.0), 40.0, "an unknown in between loses nothing");
    }

    proptest! {
        #[test]
        fn all_that_is_foreign_is_found_but_what_may_be_in_flight(
            steps in proptest::collection::vec((0_u32..500, 0_u32..500, any::<bool>()), 1..100),
        ) {
            let mut counter = ForeignTokens::default();
            counter.settle(0.0, 0.0, 0.0);
            let (mut engine, mut ours, mut in_flight) = (0.0, 0.0, 0.0_f64);
            let (mut sent, mut found) = (0.0_f64, 0.0_f64);
            for (own, other, ends) in steps {
                engine += f64::from(own) + f64::from(other);
                sent += f64::from(other);
                in_flight += f64::from(own);
                if ends {
                    ours += in_flight;
                    in_flight = 0.0;
                }
                found += f64::from(counter.settle(engine, ours, in_flight));
                prop_assert!(found <= sent + 1.0);
            }
            ours += in_flight;
            found += f64::from(counter.settle(engine, ours, 0.0));
            prop_assert!((found - sent).abs() <= 1.0, "found {found} of {sent}");
        }
    }
}
