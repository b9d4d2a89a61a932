//! How many tokens of a pod's cache are newer than a given block, without a search tree.
//!
//! Under LRU a block lives as long as fewer tokens than the cache holds were used after it. That number,
//! the block's depth, is needed for every match. Time is cut into epochs of a fixed number of tokens
//! used; each epoch counts the tokens whose last use lies in it, and a block remembers its epoch. The depth
//! is then the sum over the newer epochs, exact to half an epoch.

/// Epochs told apart; the oldest ones run together.
const EPOCHS: usize = 64;

/// Epochs in which one whole capacity is used once. Blocks stay known up to twice that, so that the 64
/// epochs reach as far as the list of blocks does.
pub(super) const EPOCHS_PER_CAPACITY: u32 = 32;

/// Epochs are numbered modulo 256; a block that was last used so many epochs ago is renumbered in time.
const RENUMBER_EVERY: u8 = 128;

/// Tokens by the epoch of their last use.
#[derive(Debug, Clone)]
pub(super) struct Recency {
    /// Tokens of epoch `e` at `e % 64`.
    tokens: [u64; EPOCHS],
    newest: u8,
    epochs: u8,
    held: u64,
    used_in_newest: u64,
}

impl Default for Recency {
    fn default() -> Self {
        Self { tokens: [0; EPOCHS], newest: 0, epochs: 1, held: 0, used_in_newest: 0 }
    }
}

impl Recency {
    /// Tokens in all epochs.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Tokens were used now; gives the epoch that they belong to from now on.
    pub(super) fn add(&mut self, tokens: u16) -> u8 {
        self.held += u64::from(tokens);
        self.used_in_newest += u64::from(tokens);
        let newest = self.newest;
        self.change(newest, |count| count + u64::from(tokens));
        newest
    }

    /// Tokens last used in `epoch` are used anew, or gone.
    pub(super) fn remove(&mut self, epoch: u8, tokens: u16) {
        self.held = self.held.saturating_sub(u64::from(tokens));
        let epoch = self.known(epoch);
        self.change(epoch, |count| count.saturating_sub(u64::from(tokens)));
    }

    /// Begins a new epoch if this one is over. True when the holder must renumber ([`Self::known`]) the
    /// blocks of the oldest epoch now.
    pub(super) fn turn(&mut self, epoch_tokens: u64) -> bool {
        if self.used_in_newest < epoch_tokens.max(1) {
            return false;
        }
        self.used_in_newest = 0;
        if usize::from(self.epochs) == EPOCHS {
            let oldest = self.oldest();
            let merged = self.tokens.get(usize::from(oldest) % EPOCHS).copied().unwrap_or(0);
            self.change(oldest.wrapping_add(1), |count| count + merged);
        } else {
            self.epochs += 1;
        }
        self.newest = self.newest.wrapping_add(1);
        let newest = self.newest;
        self.change(newest, |_| 0);
        self.newest.is_multiple_of(RENUMBER_EVERY)
    }

    /// The epoch that a block is counted in: its own, or the oldest where its own has run together with it.
    pub(super) fn known(&self, epoch: u8) -> u8 {
        if self.newest.wrapping_sub(epoch) >= self.epochs { self.oldest() } else { epoch }
    }

    /// Tokens used after a block of this epoch.
    pub(super) fn depth(&self, epoch: u8) -> u64 {
        let epoch = self.known(epoch);
        let mut newer = 0;
        let mut at = self.newest;
        for _ in 0..self.epochs {
            if at == epoch {
                break;
            }
            newer += self.tokens.get(usize::from(at) % EPOCHS).copied().unwrap_or(0);
            at = at.wrapping_sub(1);
        }
        newer + self.tokens.get(usize::from(epoch) % EPOCHS).copied().unwrap_or(0) / 2
    }

    fn oldest(&self) -> u8 {
        self.newest.wrapping_sub(self.epochs - 1)
    }

    fn change(&mut self, epoch: u8, change: impl FnOnce(u64) -> u64) {
        if let Some(count) = self.tokens.get_mut(usize::from(epoch) % EPOCHS) {
            *count = change(*count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn the_depth_is_that_of_a_list_to_half_an_epoch(
            uses in proptest::collection::vec((0_usize..30, 1_u16..20), 1..600),
            epoch_tokens in 1_u64..30,
        ) {
            let mut recency = Recency::default();
            let mut blocks: Vec<Option<(u8, u16)>> = vec![None; 30];
            // Newest last.
            let mut order: Vec<usize> = Vec::new();
            for (block, tokens) in uses {
                let tokens = blocks[block].map_or(tokens, |(_, tokens)| tokens);
                if let Some((epoch, tokens)) = blocks[block].take() {
                    recency.remove(epoch, tokens);
                    order.retain(|other| *other != block);
                }
                let renumber = recency.turn(epoch_tokens);
                if renumber {
                    for (epoch, _) in blocks.iter_mut().flatten() {
                        *epoch = recency.known(*epoch);
                    }
                }
                blocks[block] = Some((recency.add(tokens), tokens));
                order.push(block);
                let held: u64 = blocks.iter().flatten().map(|(_, tokens)| u64::from(*tokens)).sum();
                prop_assert_eq!(held, recency.held());
                let mut newer = 0;
                for other in order.iter().rev() {
                    let (epoch, tokens) = blocks[*other].unwrap();
                    let own: u64 = blocks.iter().flatten()
                        .filter(|(other, _)| recency.known(*other) == recency.known(epoch))
                        .map(|(_, tokens)| u64::from(*tokens)).sum();
                    let depth = recency.depth(epoch);
                    prop_assert!(depth.abs_diff(newer) <= own, "depth {depth}, {newer} newer, {own} in the epoch");
                    newer += u64::from(tokens);
                }
            }
        }
    }
}
