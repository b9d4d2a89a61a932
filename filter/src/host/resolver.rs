//! Names on their way through Envoy's resolver: whose they are, and what came back.
//!
//! The answer comes by a callback that no SDK knows, sometimes before the call that asked has returned, when
//! the asking state is borrowed. So it is put here and fetched at the next tick.
//!
//! Envoy's callback uses the root context that asked without looking whether it still lives. A configuration
//! that is replaced must therefore outlive its questions: it says "not yet" when asked to go, and goes with
//! the last answer.

use std::collections::VecDeque;

/// Answers kept for someone to fetch; whoever asked may be gone.
const MAX_ANSWERS: usize = 16;

/// The VM's questions and answers.
#[derive(Debug, Default)]
pub(crate) struct Resolver {
    /// Token and root of each question without an answer.
    pending: Vec<(u32, u32)>,
    leaving: Vec<u32>,
    answers: VecDeque<(u32, Vec<u8>)>,
}

impl Resolver {
    pub(crate) const fn new() -> Self {
        Self { pending: Vec::new(), leaving: Vec::new(), answers: VecDeque::new() }
    }

    /// `root` has asked, and got this token.
    pub(crate) fn asked(&mut self, token: u32, root: u32) {
        // The answer may have been faster than the call's return.
        if !self.answers.iter().any(|(answered, _)| *answered == token) {
            self.pending.push((token, root));
        }
    }

    /// The answer to `root`'s question. Returns whether `root` has been asked to go and now may.
    pub(crate) fn answered(&mut self, token: u32, root: u32, answer: Vec<u8>) -> bool {
        self.pending.retain(|(pending, _)| *pending != token);
        if self.answers.len() >= MAX_ANSWERS {
            self.answers.pop_front();
        }
        self.answers.push_back((token, answer));
        let goes = self.leaving.contains(&root) && !self.has_pending(root);
        if goes {
            self.leaving.retain(|leaving| *leaving != root);
        }
        goes
    }

    /// The answer of this token, once.
    pub(crate) fn take(&mut self, token: u32) -> Option<Vec<u8>> {
        let at = self.answers.iter().position(|(answered, _)| *answered == token)?;
        self.answers.remove(at).map(|(_, answer)| answer)
    }

    /// `root` is asked to go. Returns whether it may now.
    pub(crate) fn leave(&mut self, root: u32) -> bool {
        let stays = self.has_pending(root);
        if stays {
            self.leaving.push(root);
        }
        !stays
    }

    fn has_pending(&self, root: u32) -> bool {
        self.pending.iter().any(|(_, asking)| *asking == root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_fetched_once_however_fast_it_came() {
        let mut resolver = Resolver::new();
        resolver.asked(1, 7);
        assert_eq!(resolver.take(1), None);
        assert!(!resolver.answered(1, 7, vec![1]));
        assert!(!resolver.answered(2, 7, vec![2]));
        resolver.asked(2, 7);
        assert_eq!(
            (resolver.take(2), resolver.take(1), resolver.take(1)),
            (Some(vec![2]), Some(vec![1]), None)
        );
        assert!(resolver.leave(7), "nothing is on its way");
    }

    #[test]
    fn a_root_that_is_asked_to_go_goes_with_its_last_answer() {
        let mut resolver = Resolver::new();
        resolver.asked(1, 7);
        resolver.asked(2, 7);
        resolver.asked(3, 8);
        assert!(!resolver.leave(7));
        assert!(!resolver.answered(3, 8, Vec::new()) && resolver.leave(8));
        assert!(!resolver.answered(2, 7, Vec::new()));
        assert!(resolver.answered(1, 7, Vec::new()));
        assert!(!resolver.answered(4, 7, Vec::new()), "once");
    }

    #[test]
    fn answers_that_nobody_fetches_are_bounded() {
        let mut resolver = Resolver::new();
        (0..100).for_each(|token| {
            resolver.answered(token, 1, vec![0; 8]);
        });
        assert_eq!(resolver.answers.len(), MAX_ANSWERS);
    }
}
