//! Tests of the index: what it matches, what it lets go, and what it says of survival.

use super::*;
use proptest::prelude::*;

const POD: u64 = 7;

fn chain(seed: u64, length: u64) -> Vec<u64> {
    let mut state = seed;
    (0..length)
        .map(|i| {
            state = crate::hash::chain(state, &i.to_le_bytes());
            state
        })
        .collect()
}

fn index(kv_tokens: u64) -> PrefixIndex {
    let mut index = PrefixIndex::new(100_000);
    index.set_capacity(POD, Capacity { kv_tokens, host_tokens: 0 });
    index
}

fn look(index: &PrefixIndex, blocks: &[u64]) -> PrefixMatch {
    index.look(POD, blocks, 10.0, &Survival::default(), &mut 0)
}

#[test]
fn a_prompt_matches_as_far_as_it_was_sent_to_that_pod() {
    let mut index = index(10_000);
    let long = chain(1, 20);
    index.place(POD, None, &long[..12], 10.0);
    let found = look(&index, &long);
    assert_eq!((found.matched_tokens, found.surviving_tokens), (120.0, 120.0));
    assert!(found.probability > 0.99);
    assert_eq!(index.look(8, &long, 10.0, &Survival::default(), &mut 0), PrefixMatch::default());
    index.forget(POD);
    assert_eq!(look(&index, &long).matched_tokens, 0.0);
    assert!(index.is_empty());
}

#[test]
fn the_tail_of_the_least_recently_used_prompt_is_the_first_to_be_lost() {
    let mut index = index(10_000);
    let (old, new) = (chain(1, 500), chain(2, 700));
    index.place(POD, None, &old, 10.0);
    index.place(POD, None, &new, 10.0);
    let (old_found, new_found) = (look(&index, &old), look(&index, &new));
    assert_eq!(new_found.surviving_tokens, 7000.0);
    // 3,000 of the old one's 5,000 tokens fit beside the new one's.
    assert_eq!(old_found.matched_tokens, 5000.0);
    assert!((old_found.surviving_tokens - 3000.0).abs() < 350.0, "{old_found:?}");
    assert!(old_found.probability < 0.01);
}

#[test]
fn what_is_generated_and_what_others_send_takes_room_too() {
    let mut index = index(10_000);
    let prompt = chain(1, 300);
    index.place(POD, None, &prompt, 10.0);
    index.allocate(POD, 6000.0);
    assert!(look(&index, &prompt).surviving_tokens > 2900.0);
    index.allocate(POD, 2500.0);
    let found = look(&index, &prompt);
    assert!((found.surviving_tokens - 1500.0).abs() < 350.0, "{found:?}");
    index.allocate(POD, f32::MAX);
    assert!(look(&index, &prompt).surviving_tokens < 1.0);
}

#[test]
fn a_chain_that_is_used_again_is_as_good_as_new() {
    let mut index = index(10_000);
    let prompt = chain(1, 300);
    index.place(POD, None, &prompt, 10.0);
    index.allocate(POD, 6000.0);
    index.place(POD, Some(prompt[299]), &[], 10.0);
    index.allocate(POD, 6000.0);
    assert!(look(&index, &prompt).surviving_tokens > 2900.0);
}

#[test]
fn an_answer_continues_the_chain_of_its_prompt() {
    let mut index = index(10_000);
    let whole = chain(1, 30);
    index.place(POD, None, &whole[..20], 10.0);
    index.place(POD, Some(whole[19]), &whole[20..], 10.0);
    assert_eq!(look(&index, &whole).surviving_tokens, 300.0);
    let other = chain(2, 10);
    index.place(POD, Some(12345), &other, 10.0);
    assert_eq!(look(&index, &other).matched_tokens, 0.0, "without its head it matches nothing");
}

#[test]
fn what_the_kv_cache_let_go_is_expected_in_the_host_tier() {
    let mut index = index(10_000);
    index.set_capacity(POD, Capacity { kv_tokens: 10_000, host_tokens: 30_000 });
    let prompt = chain(1, 300);
    index.place(POD, None, &prompt, 10.0);
    index.allocate(POD, 20_000.0);
    let found = look(&index, &prompt);
    assert!(found.surviving_tokens < 1.0 && found.host_tokens > 2900.0, "{found:?}");
    index.allocate(POD, 25_000.0);
    assert!(look(&index, &prompt).host_tokens < 100.0);
}

#[test]
fn the_bound_over_all_pods_takes_from_those_that_hold_most() {
    let mut index = PrefixIndex::new(2000);
    let small = chain(99, 100);
    index.set_capacity(99, Capacity { kv_tokens: 1_000_000, host_tokens: 0 });
    index.place(99, None, &small, 10.0);
    for pod in 0..20 {
        index.set_capacity(pod, Capacity { kv_tokens: 1_000_000, host_tokens: 0 });
        for prompt in 0..3 {
            index.place(pod, None, &chain(pod * 3 + prompt, 200), 10.0);
        }
    }
    assert!(index.len() <= 2000);
    let kept = index.look(99, &small, 10.0, &Survival::default(), &mut 0).matched_tokens;
    assert!(kept > 500.0, "the pod with little keeps most of it: {kept}");
    index.set_max_blocks(1100);
    assert!(index.len() <= 1100);
}

#[test]
fn a_prompt_longer_than_the_whole_index_leaves_its_head_and_sound_books() {
    let mut index = PrefixIndex::new(1024);
    index.set_capacity(POD, Capacity { kv_tokens: 1_000_000, host_tokens: 0 });
    let long = chain(1, 4096);
    index.place(POD, None, &long, 10.0);
    index.allocate(POD, f32::MAX);
    assert!(index.len() <= 1024);
    index.place(POD, None, &long[..20], 10.0);
    assert_eq!(look(&index, &long).matched_tokens, 200.0);
    index.forget(POD);
    assert!(index.is_empty());
}

#[test]
fn pods_that_left_take_their_blocks_with_them() {
    let mut index = index(10_000);
    index.set_capacity(8, Capacity { kv_tokens: 10_000, host_tokens: 0 });
    index.place(POD, None, &chain(1, 5), 10.0);
    index.place(8, None, &chain(1, 6), 10.0);
    index.retain_pods(|key| key == 8);
    assert_eq!(index.len(), 6);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Against a plain LRU list that the same is done to.
    #[test]
    fn a_match_is_the_leading_run_and_survival_is_what_a_plain_lru_of_that_size_holds(
        steps in proptest::collection::vec((0_u64..6, 1_usize..60, 0_u16..400), 1..100),
        capacity in 2_000_u64..6_000,
    ) {
        let mut index = PrefixIndex::new(1_000_000);
        index.set_capacity(POD, Capacity { kv_tokens: capacity, host_tokens: 0 });
        // Newest first: hash (0 where there is none) and tokens.
        let mut list: Vec<(u64, u64)> = Vec::new();
        // Chains share their first 30 blocks in pairs.
        let chains: Vec<Vec<u64>> = (0..6)
            .map(|seed| {
                let mut blocks = chain(seed / 2, 30);
                blocks.extend(chain(100 + seed, 30));
                blocks
            })
            .collect();
        for (which, length, generated) in steps {
            let blocks = &chains[usize::try_from(which).unwrap()][..length];
            index.place(POD, None, blocks, 10.0);
            for hash in blocks.iter().rev() {
                list.retain(|(other, _)| other != hash);
                list.insert(0, (*hash, 10));
            }
            index.allocate(POD, f32::from(generated));
            list.insert(0, (0, u64::from(generated)));
            let mut depth = 0;
            let held: Vec<u64> = list
                .iter()
                .take_while(|(_, tokens)| { depth += tokens; depth <= capacity })
                .map(|(hash, _)| *hash)
                .collect();
            for blocks in &chains {
                let mut guess = usize::from(generated) % 70;
                let found = index.look(POD, blocks, 10.0, &Survival::default(), &mut guess);
                let run = blocks.iter().take_while(|hash| held.contains(hash)).count();
                let run = f32_of_usize(run) * 10.0;
                prop_assert!(found.matched_tokens >= run - 0.5);
                // Half an epoch and the spread, on either side of the size.
                let slack = f32_of_u64(capacity) * 0.2 + 600.0;
                prop_assert!((found.surviving_tokens - run).abs() <= slack, "{found:?} against {run}");
                if found.probability > CERTAIN {
                    prop_assert!((found.surviving_tokens - found.matched_tokens).abs() < 1.0);
                }
            }
        }
    }

    #[test]
    fn the_guess_changes_nothing_but_the_way(
        sent in 0_usize..80,
        asked in 1_usize..80,
        guess in 0_usize..100,
    ) {
        let mut index = index(100_000);
        let blocks = chain(3, 80);
        index.place(POD, None, &blocks[..sent], 1.0);
        let mut found = guess;
        let seen = index.look(POD, &blocks[..asked], 1.0, &Survival::default(), &mut found);
        prop_assert_eq!(seen.matched_tokens, f32_of_usize(sent.min(asked)));
    }
}
