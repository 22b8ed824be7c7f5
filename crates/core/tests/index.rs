//! Predicted residency against a naive model, and its bound in bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use maitred_core::prefix::{ChainBuilder, Index, Matches};
use maitred_core::time::Nanos;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::BTreeMap;

const SLOTS: u32 = 4;
const ROOMY: usize = 32 << 20;

/// One worker, block by block.
#[derive(Default)]
struct Naive {
    /// By hash: when it was last used, and the chain that ends with it.
    blocks: BTreeMap<u64, (u64, Vec<u64>)>,
    capacity: Option<u64>,
}

impl Naive {
    fn insert(&mut self, chain: &[u64], time: u64) {
        for (at, hash) in chain.iter().enumerate() {
            self.blocks.insert(*hash, (time, chain[..=at].to_vec()));
        }
        self.evict();
    }

    /// Oldest first, and of one age the deepest first.
    fn evict(&mut self) {
        while self.capacity.is_some_and(|c| self.blocks.len() as u64 > c) {
            let oldest = (self.blocks.iter())
                .min_by_key(|(_, (time, chain))| (*time, Reverse(chain.len())))
                .map(|(hash, _)| *hash);
            self.blocks.remove(&oldest.unwrap());
        }
    }

    fn truncate(&mut self, chain: &[u64], keep: usize) {
        if let Some(cut) = chain.get(keep) {
            self.blocks.retain(|_, (_, chain)| !chain.contains(cut));
        }
    }

    fn matched(&self, chain: &[u64]) -> u32 {
        let held = |hash: &&u64| self.blocks.contains_key(hash);
        chain.iter().take_while(held).count() as u32
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u32, Vec<u64>),
    Truncate(u32, Vec<u64>, usize),
    Forget(u32),
    Capacity(u32, Option<u64>),
}

/// Chains of a small family: few symbols in long runs, so that many begin alike and part late.
fn chain() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec((0_u8..3, 1_usize..7), 1..6).prop_map(|runs| {
        let mut builder = ChainBuilder::new(11, 1);
        for (symbol, length) in runs {
            builder.push(&vec![symbol; length]);
        }
        builder.finish().0
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..SLOTS, chain()).prop_map(|(slot, chain)| Step::Insert(slot, chain)),
        3 => (0..SLOTS, chain(), 0_usize..20).prop_map(|(s, c, keep)| Step::Truncate(s, c, keep)),
        1 => (0..SLOTS).prop_map(Step::Forget),
        2 => (0..SLOTS, prop::option::of(0_u64..60)).prop_map(|(s, c)| Step::Capacity(s, c)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn equals_the_naive_model(steps in prop::collection::vec(step(), 1..80), probe in chain()) {
        let mut index = Index::new(ROOMY);
        let mut naive: Vec<Naive> = (0..SLOTS).map(|_| Naive::default()).collect();
        let mut found = Matches::default();
        for (time, step) in (0..).zip(&steps) {
            let mut looked_up = vec![&probe];
            match step {
                Step::Insert(slot, chain) => {
                    index.insert(*slot, chain, Nanos(time));
                    naive[*slot as usize].insert(chain, time);
                    looked_up.push(chain);
                }
                Step::Truncate(slot, chain, keep) => {
                    index.truncate(*slot, chain, *keep);
                    naive[*slot as usize].truncate(chain, *keep);
                    looked_up.push(chain);
                }
                Step::Forget(slot) => {
                    index.forget(*slot);
                    naive[*slot as usize].blocks.clear();
                }
                Step::Capacity(slot, capacity) => {
                    index.set_capacity(*slot, *capacity);
                    naive[*slot as usize].capacity = *capacity;
                    naive[*slot as usize].evict();
                }
            }
            index.check().unwrap();
            for chain in looked_up {
                index.matches(chain, &mut found);
                for (slot, worker) in (0..).zip(&naive) {
                    prop_assert_eq!(found.blocks(slot), worker.matched(chain), "slot {}", slot);
                    prop_assert_eq!(index.blocks(slot), worker.blocks.len() as u64);
                }
                let best = naive.iter().map(|worker| worker.matched(chain)).max();
                prop_assert_eq!(Some(found.best()), best);
                prop_assert!(found.iter().all(|(slot, n)| n > 0 && n == found.blocks(slot)));
                let holders = naive.iter().filter(|worker| worker.matched(chain) > 0).count();
                prop_assert_eq!(found.iter().count(), holders);
            }
        }
        // At the end every chain that was ever seen, not only the last ones.
        for step in &steps {
            let (Step::Insert(_, chain) | Step::Truncate(_, chain, _)) = step else { continue };
            index.matches(chain, &mut found);
            for (slot, worker) in (0..).zip(&naive) {
                prop_assert_eq!(found.blocks(slot), worker.matched(chain));
            }
        }
        for slot in 0..SLOTS {
            index.forget(slot);
        }
        prop_assert_eq!(index.bytes(), 0);
    }

    #[test]
    fn never_over_the_bound_and_never_more_than_was_inserted(
        bytes_max in 0_usize..60_000,
        steps in prop::collection::vec((step(), 0_u64..40, 1_usize..600), 1..60),
    ) {
        let mut index = Index::new(bytes_max);
        let mut naive: Vec<Naive> = (0..SLOTS).map(|_| Naive::default()).collect();
        let mut found = Matches::default();
        for (time, (step, salt, length)) in (0..).zip(steps) {
            match step {
                Step::Insert(slot, mut chain) => {
                    // A long tail of its own, so that the bound is reached.
                    chain.extend((0..length as u64).map(|i| spread(salt << 32 | i)));
                    index.insert(slot, &chain, Nanos(time));
                    naive[slot as usize].insert(&chain, time);
                    index.matches(&chain, &mut found);
                    prop_assert!(found.blocks(slot) <= naive[slot as usize].matched(&chain));
                }
                Step::Truncate(slot, chain, keep) => {
                    index.truncate(slot, &chain, keep);
                    naive[slot as usize].truncate(&chain, keep);
                }
                Step::Forget(slot) => {
                    index.forget(slot);
                    naive[slot as usize].blocks.clear();
                }
                Step::Capacity(..) => {}
            }
            prop_assert!(index.bytes() <= bytes_max);
            index.check().unwrap();
        }
    }
}

/// Distinct, well spread numbers (SplitMix64's finalizer).
fn spread(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

fn distinct(chain: u64, blocks: u64) -> Vec<u64> {
    (0..blocks).map(|i| spread(chain << 24 | i)).collect()
}

#[test]
fn of_a_chain_beyond_the_bound_the_beginning_is_kept() {
    let mut index = Index::new(65_536);
    let chain = distinct(1, 60_000);
    let mut found = Matches::default();
    for slot in [0, 1, 0] {
        index.insert(slot, &chain, Nanos(0));
        index.check().unwrap();
        index.matches(&chain, &mut found);
        // 64 KiB, less what is reserved for two chunks of each slab, in blocks of 8 bytes.
        assert!(found.blocks(slot) > 3_000, "{}", found.blocks(slot));
    }
}

#[test]
fn a_hundred_thousand_prompts_fit_the_default_bound() {
    let mut index = Index::new(maitred_core::limits::INDEX_BYTES_MAX);
    for prompt in 0..100_000_u64 {
        index.insert(prompt as u32 % 4, &distinct(prompt, 16), Nanos(prompt));
    }
    let blocks: u64 = (0..4).map(|slot| index.blocks(slot)).sum();
    assert_eq!(blocks, 1_600_000);
    assert!(index.bytes() <= maitred_core::limits::INDEX_BYTES_MAX);
    assert!(
        index.bytes() / 1_600_000 < 48,
        "bytes for a block and worker"
    );
}

/// Memory climbs with the churn of workers.
#[test]
fn workers_that_come_and_go_leave_nothing() {
    let mut index = Index::new(ROOMY);
    let resident: Vec<Vec<u64>> = (0..100).map(|i| distinct(1_000_000 + i, 64)).collect();
    for chain in &resident {
        index.insert(0, chain, Nanos(0));
    }
    let baseline = index.bytes();
    for worker in 1..=1_000_u32 {
        // 1 MB of prompts in blocks of 64 bytes, 32 KiB each.
        for prompt in 0..32 {
            index.insert(
                worker,
                &distinct(u64::from(worker) * 32 + prompt, 512),
                Nanos(0),
            );
        }
        assert!(index.blocks(worker) > 0 && index.bytes() <= ROOMY);
        if worker % 2 == 0 {
            index.forget(worker);
            index.forget(worker - 1);
            let slack = baseline / 8 + 40_000;
            assert!(index.bytes() <= baseline + slack, "{} bytes", index.bytes());
        }
    }
    index.check().unwrap();
    assert_eq!(index.blocks(0), 6_400);
}

#[test]
fn a_worker_keeps_what_it_used_last_to_the_block() {
    let mut index = Index::new(ROOMY);
    let (a, b) = (distinct(1, 10), distinct(2, 10));
    let mut found = Matches::default();
    index.set_capacity(0, Some(16));
    index.insert(0, &a, Nanos(0));
    index.insert(0, &b, Nanos(1));
    // Four blocks too many: the end of what was used first.
    index.matches(&a, &mut found);
    assert_eq!((found.blocks(0), found.best(), index.blocks(0)), (6, 6, 16));
    // Only its beginning is used again: the rest of `a` goes before `b` does.
    index.insert(0, &a[..2], Nanos(2));
    index.set_capacity(0, Some(11));
    index.matches(&a, &mut found);
    assert_eq!(found.blocks(0), 2);
    index.matches(&b, &mut found);
    assert_eq!(found.blocks(0), 9);
}

#[test]
fn a_cut_takes_what_hangs_below_it_from_this_worker_only() {
    let mut index = Index::new(ROOMY);
    let trunk = distinct(1, 8);
    let branch = |n: u64| [trunk.clone(), distinct(n, 4)].concat();
    let mut found = Matches::default();
    for slot in 0..2 {
        for n in 10..13 {
            index.insert(slot, &branch(n), Nanos(0));
        }
    }
    index.truncate(0, &branch(10), 8);
    assert_eq!((index.blocks(0), index.blocks(1)), (16, 20));
    index.truncate(0, &branch(11), 5);
    assert_eq!((index.blocks(0), index.blocks(1)), (5, 20));
    index.matches(&branch(12), &mut found);
    assert_eq!((found.blocks(0), found.blocks(1)), (5, 12));
    // What it does not hold can not be cut, and a cut behind the end cuts nothing.
    index.truncate(0, &branch(12), 9);
    index.truncate(1, &branch(12), 12);
    index.truncate(7, &trunk, 0);
    assert_eq!((index.blocks(0), index.blocks(1)), (5, 20));
    index.check().unwrap();
}

/// What is left when most is forgotten moves together, and stays what it was.
#[test]
fn what_is_left_is_moved_together() {
    let mut index = Index::new(ROOMY);
    let trunk = distinct(1, 20);
    let branch = |n: u64| [&trunk[..n as usize % 20], &distinct(100 + n, 5)].concat();
    let of = |slot: u32| (0..1_600_u64).filter(move |n| n % 8 == u64::from(slot));
    for n in (0..8).flat_map(of).rev() {
        index.insert(n as u32 % 8, &branch(n), Nanos(0));
    }
    let full = index.bytes();
    let held = index.blocks(3);
    for slot in (0..8).filter(|slot| *slot != 3) {
        index.forget(slot);
        index.check().unwrap();
    }
    assert!(index.bytes() < full / 4, "{} of {full}", index.bytes());
    assert_eq!(index.blocks(3), held);
    let mut found = Matches::default();
    for n in of(3) {
        index.matches(&branch(n), &mut found);
        assert_eq!(found.blocks(3) as usize, branch(n).len());
    }
    // Its order of use is the same: half of it goes, from the first used on.
    index.insert(3, &distinct(9_999, 5), Nanos(1));
    index.set_capacity(3, Some(held / 2));
    index.check().unwrap();
    let mut kept = of(3).map(|n| {
        index.matches(&branch(n), &mut found);
        found.blocks(3) as usize == branch(n).len()
    });
    assert!(kept.by_ref().take(90).all(|whole| whole));
    assert!(kept.skip(20).all(|whole| !whole));
}

/// What a passing worker divided is whole again when it is gone.
#[test]
fn runs_are_joined_again() {
    let mut index = Index::new(ROOMY);
    let trunk = distinct(1, 64);
    for slot in 0..8 {
        index.insert(slot, &trunk, Nanos(0));
    }
    for at in [60, 3, 17, 33] {
        let branch = [&trunk[..at], &distinct(100 + at as u64, 9)].concat();
        index.insert(9, &branch, Nanos(1));
        index.check().unwrap();
    }
    assert_eq!(index.runs(), 9);
    index.forget(9);
    index.check().unwrap();
    assert_eq!(index.runs(), 1);
}

/// Chains need not be chained: whoever calls with arbitrary numbers gets less, not a broken index.
#[test]
fn arbitrary_numbers_break_nothing() {
    let mut index = Index::new(65_536);
    let mut found = Matches::default();
    for round in 0..2_000_u64 {
        let length = spread(round) % 12;
        let chain: Vec<u64> = (0..length).map(|i| spread(round * 16 + i) % 3).collect();
        index.insert(round as u32 % 3, &chain, Nanos(round));
        index.matches(&chain, &mut found);
        index.truncate(round as u32 % 2, &chain, 3);
        if round % 40 == 0 {
            index.check().unwrap();
        }
    }
    index.insert(u32::MAX, &[1, 2], Nanos(0));
    assert_eq!(index.blocks(u32::MAX), 0);
}

/// What was not used since is gone; what was used again, with all before it, is not.
#[test]
fn what_was_not_used_lately_expires() {
    let second = |n: u64| Nanos(n * 1_000_000_000);
    let mut index = Index::new(ROOMY);
    let trunk = distinct(1, 8);
    let branch = |n: u64| [trunk.clone(), distinct(n, 4)].concat();
    index.insert(0, &branch(10), second(1));
    index.insert(0, &branch(11), second(2));
    index.insert(1, &branch(10), second(1));
    index.expire(0, second(1));
    assert_eq!(index.blocks(0), 16);
    index.expire(0, second(2));
    index.check().unwrap();
    assert_eq!((index.blocks(0), index.blocks(1)), (12, 12));
    index.insert(0, &trunk[..3], second(9));
    index.expire(0, second(8));
    index.check().unwrap();
    assert_eq!(index.blocks(0), 3);
    index.expire(7, second(8));
}
