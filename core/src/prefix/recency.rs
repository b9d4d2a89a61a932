//! How many tokens of a pod's cache are newer than a given block, without a search tree.
//!
//! Under LRU a block lives as long as fewer tokens than the cache holds were used after it. That number,
//! the block's depth, is needed for every match. Blocks are counted in epochs by their last use: an epoch ends
//! when the blocks that were last used in it hold a fixed number of tokens, and the depth of a block is the sum over
//! the newer epochs, exact to half an epoch. Blocks that are used again leave holes in old epochs; when there are too
//! many epochs the two neighbours that hold the least together become one, so that all stay about as fine.

/// Epochs told apart.
const EPOCHS: usize = 64;

/// Epochs in which one whole capacity is used once. Blocks stay known up to 1.5 times that, which leaves some epochs
/// for holes.
pub(super) const EPOCHS_PER_CAPACITY: u32 = 32;

/// Tokens by the epoch of their last use.
///
/// A block keeps the *mark* of its epoch. Epochs that become one keep the marks of both, so marks run out at
/// some time and the blocks must be marked anew ([`Self::is_out_of_marks`]).
#[derive(Debug, Clone)]
pub(super) struct Recency {
    /// Tokens of each epoch, the oldest first.
    tokens: [u64; EPOCHS],
    epochs: usize,
    /// Which epoch a mark stands for.
    epoch_of: [u8; 256],
    newest_mark: u8,
    held: u64,
}

impl Default for Recency {
    fn default() -> Self {
        Self { tokens: [0; EPOCHS], epochs: 1, epoch_of: [0; 256], newest_mark: 0, held: 0 }
    }
}

impl Recency {
    /// Tokens in all epochs.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Tokens were used now; gives the mark that their block has from now on.
    pub(super) fn add(&mut self, tokens: u16) -> u8 {
        self.held += u64::from(tokens);
        if let Some(count) = self.tokens.get_mut(self.epochs.saturating_sub(1)) {
            *count += u64::from(tokens);
        }
        self.newest_mark
    }

    /// Tokens of a block with this mark are used anew, or gone.
    pub(super) fn remove(&mut self, mark: u8, tokens: u16) {
        self.held = self.held.saturating_sub(u64::from(tokens));
        let epoch = self.epoch(mark);
        if let Some(count) = self.tokens.get_mut(epoch) {
            *count = count.saturating_sub(u64::from(tokens));
        }
    }

    /// Whether all blocks must be marked anew ([`Self::fresh_mark`], then [`Self::marked_anew`]) before the next
    /// [`Self::turn`].
    pub(super) fn is_out_of_marks(&self) -> bool {
        self.newest_mark == u8::MAX
    }

    /// The mark that a block with this one gets when all are marked anew.
    pub(super) fn fresh_mark(&self, mark: u8) -> u8 {
        u8::try_from(self.epoch(mark)).unwrap_or(0)
    }

    /// All blocks were marked anew.
    pub(super) fn marked_anew(&mut self) {
        for (epoch, mark) in (0..=u8::MAX).zip(&mut self.epoch_of) {
            *mark = epoch;
        }
        self.newest_mark = u8::try_from(self.epochs.saturating_sub(1)).unwrap_or(0);
    }

    /// Begins a new epoch if the newest holds `epoch_tokens`.
    pub(super) fn turn(&mut self, epoch_tokens: u64) {
        let newest = self.tokens.get(self.epochs.saturating_sub(1)).copied().unwrap_or(0);
        if newest < epoch_tokens.max(1) || self.is_out_of_marks() {
            return;
        }
        if self.epochs == EPOCHS {
            self.unite_least();
        }
        self.newest_mark += 1;
        if let (Some(epoch), Some(count)) =
            (self.epoch_of.get_mut(usize::from(self.newest_mark)), self.tokens.get_mut(self.epochs))
        {
            *epoch = u8::try_from(self.epochs).unwrap_or(0);
            *count = 0;
            self.epochs += 1;
        }
    }

    /// Makes one of the two neighbours that hold the least together.
    fn unite_least(&mut self) {
        let sums = self.tokens.iter().zip(self.tokens.iter().skip(1)).map(|(older, newer)| older + newer);
        let Some((at, sum)) = sums.enumerate().min_by_key(|(_, sum)| *sum) else { return };
        if let Some(rest) = self.tokens.get_mut(at..) {
            rest.rotate_left(1);
            if let Some(united) = rest.first_mut() {
                *united = sum;
            }
        }
        self.epochs -= 1;
        for epoch in &mut self.epoch_of {
            if usize::from(*epoch) > at {
                *epoch -= 1;
            }
        }
    }

    /// Tokens used after a block with this mark.
    pub(super) fn depth(&self, mark: u8) -> u64 {
        let epoch = self.epoch(mark);
        let own = self.tokens.get(epoch).copied().unwrap_or(0);
        let newer = self.tokens.get(epoch + 1..self.epochs).unwrap_or_default();
        newer.iter().sum::<u64>() + own / 2
    }

    fn epoch(&self, mark: u8) -> usize {
        usize::from(self.epoch_of.get(usize::from(mark)).copied().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A list of blocks, newest last, and the same in epochs.
    struct Pair {
        recency: Recency,
        marks: Vec<Option<u8>>,
        order: Vec<usize>,
        epoch_tokens: u64,
    }

    impl Pair {
        fn new(blocks: usize, epoch_tokens: u64) -> Self {
            Self { recency: Recency::default(), marks: vec![None; blocks], order: Vec::new(), epoch_tokens }
        }

        fn use_block(&mut self, block: usize, tokens: u16) {
            if let Some(mark) = self.marks[block].take() {
                self.recency.remove(mark, tokens);
                self.order.retain(|other| *other != block);
            }
            if self.recency.is_out_of_marks() {
                for mark in self.marks.iter_mut().flatten() {
                    *mark = self.recency.fresh_mark(*mark);
                }
                self.recency.marked_anew();
            }
            self.recency.turn(self.epoch_tokens);
            self.marks[block] = Some(self.recency.add(tokens));
            self.order.push(block);
        }

        /// The largest error of a depth.
        fn error(&self, tokens: u16) -> u64 {
            let mut newer = 0;
            let mut worst = 0;
            for block in self.order.iter().rev() {
                worst = worst.max(self.recency.depth(self.marks[*block].unwrap()).abs_diff(newer));
                newer += u64::from(tokens);
            }
            worst
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn the_depth_is_that_of_a_list_to_an_epoch(
            uses in proptest::collection::vec(0_usize..90, 1..1200),
            epoch_blocks in 2_u64..8,
        ) {
            // 90 blocks in 64 epochs of at least two: never too few epochs to tell them apart.
            let mut pair = Pair::new(90, epoch_blocks * 10);
            for block in uses {
                pair.use_block(block, 10);
                prop_assert_eq!(pair.recency.held(), 10 * u64::try_from(pair.order.len()).unwrap());
            }
            prop_assert!(pair.error(10) <= (epoch_blocks + 2) * 10, "off by {}", pair.error(10));
        }
    }

    /// What conversations do: most of what is used was used before, and what is not gets older and older.
    #[test]
    fn depths_stay_apart_however_often_the_same_blocks_are_used_again() {
        const BLOCKS: usize = 480;
        // A capacity of 320 blocks in 32 epochs, known up to 1.5 times that.
        let mut pair = Pair::new(BLOCKS, 10 * 10);
        for block in 0..BLOCKS {
            pair.use_block(block, 10);
        }
        for round in 0..400_usize {
            for block in 0..30 {
                pair.use_block(BLOCKS - 1 - (round * 7 + block) % 60, 10);
            }
        }
        assert!(pair.error(10) <= 200, "off by {} of 4800", pair.error(10));
    }
}
