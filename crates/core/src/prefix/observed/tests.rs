//! What KV events were misread for, one test each, with values computed by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::limits::GAPS_MAX;
use crate::prefix::ChainBuilder;
use alloc::vec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const SEED: u64 = 5;
/// Slots of two workers.
const W1: u32 = 1;
const W2: u32 = 2;

fn observed() -> Observed {
    Observed::new(16, 1 << 20, Duration::from_secs(1))
}

fn tokens(count: u32) -> Vec<u32> {
    (0..count).map(|i| i * 31 + 7).collect()
}

fn chain(seed: u64, tokens: &[u32]) -> Vec<BlockHash> {
    let mut builder = ChainBuilder::new(seed, 64);
    builder.push_tokens(tokens);
    builder.finish().0
}

/// Blocks of 16 tokens of the one prompt: names `h1`.. are 101.., from block `from` (0: the first).
fn blocks(from: u32, count: u32) -> Stored {
    Stored {
        hashes: (from + 1..=from + count)
            .map(|n| u64::from(100 + n))
            .collect(),
        parent: (from > 0).then_some(u64::from(100 + from)),
        tokens: tokens(16 * (from + count)).split_off(16 * from as usize),
        block_size: 16,
        root_seed: SEED,
        ..Stored::default()
    }
}

fn removed(names: &[u64]) -> Removed {
    Removed {
        hashes: names.to_vec(),
        ..Removed::default()
    }
}

impl Observed {
    fn tell(&mut self, slot: u32, rank: Option<u32>, events: impl Into<Vec<KvEvent>>) {
        let batch = KvBatch {
            events: events.into(),
        };
        self.apply(slot, rank, batch, true, Nanos(0));
        self.check().unwrap();
    }

    fn store(&mut self, slot: u32, stored: Stored) {
        self.tell(slot, None, [KvEvent::Stored(stored)]);
    }

    fn remove(&mut self, slot: u32, removed: Removed) {
        self.tell(slot, None, [KvEvent::Removed(removed)]);
    }

    fn sees(&self, slot: u32, chain: &[BlockHash]) -> Sighting {
        let mut found = Sightings::default();
        self.matches(chain, &mut found);
        found.get(slot)
    }

    /// Leading blocks of the one prompt (10 blocks).
    fn leading(&self, slot: u32) -> u32 {
        self.sees(slot, &chain(SEED, &tokens(160))).blocks
    }
}

#[test]
fn an_orphan_never_matches_before_its_parent_shows_up() {
    let mut known = observed();
    known.store(W1, blocks(1, 1));
    assert_eq!((known.leading(W1), known.parked()), (0, 1));
    known.store(W1, blocks(0, 1));
    assert_eq!((known.leading(W1), known.parked()), (2, 0));
    // Nor the children of an orphan, in whatever order they come.
    let mut known = observed();
    for from in [6, 2, 4] {
        known.store(W1, blocks(from, 2));
    }
    known.store(W2, blocks(0, 2));
    assert_eq!((known.leading(W1), known.leading(W2)), (0, 2));
    known.store(W1, blocks(0, 2));
    assert_eq!((known.leading(W1), known.parked()), (8, 0));
    assert_eq!(known.counts().parked, 6);
}

#[test]
fn parked_blocks_are_bounded_and_the_oldest_give_way() {
    // A sixteenth of the bound, in tokens of 4 bytes: 96 tokens are 6 blocks.
    let mut known = Observed::new(16, 96 * 4 * 16, Duration::from_secs(1));
    known.store(W1, blocks(1, 4));
    known.store(W1, blocks(6, 3));
    assert_eq!((known.parked(), known.counts().parked_dropped), (3, 4));
    known.store(W1, blocks(20, 7));
    assert_eq!((known.parked(), known.counts().parked_dropped), (3, 11));
}

#[test]
fn removing_what_is_not_there_changes_nothing() {
    let mut known = observed();
    known.store(W1, blocks(0, 2));
    known.remove(W1, removed(&[102, 999, 101]));
    assert_eq!((known.leading(W1), known.blocks(W1)), (0, 0));
    assert_eq!(known.counts().removed_unknown, 1);
    known.remove(W2, removed(&[101]));
    assert_eq!(known.counts().removed_unknown, 2);
}

#[test]
fn copies_count_only_where_the_engine_counts_them() {
    let with = |remaining: &[u32]| Removed {
        remaining: remaining.to_vec(),
        ..removed(&[101])
    };
    let mut known = observed();
    known.store(W1, blocks(0, 1));
    known.remove(W1, with(&[1]));
    assert_eq!(known.leading(W1), 1);
    known.remove(W1, with(&[0]));
    assert_eq!(known.leading(W1), 0);
    known.store(W1, blocks(0, 1));
    known.store(W1, blocks(0, 1));
    known.remove(W1, with(&[]));
    assert_eq!(known.leading(W1), 0);
}

#[test]
fn each_engine_has_its_own_block_size() {
    let prompt = tokens(100);
    let whole = |size: u32| Stored {
        hashes: (1..=u64::from(100 / size)).collect(),
        tokens: prompt[..(100 / size * size) as usize].to_vec(),
        block_size: size,
        root_seed: SEED,
        ..Stored::default()
    };
    let mut known = observed();
    known.store(W1, whole(16));
    known.store(W2, whole(64));
    known.store(3, whole(8));
    known.store(4, whole(24));
    let chain = chain(SEED, &prompt);
    // 96 and 64 tokens; 96 in blocks of 8; and 96 in four blocks of 24.
    let each = [W1, W2, 3, 4].map(|slot| 16 * known.sees(slot, &chain).blocks);
    assert_eq!(each, [96, 64, 96, 96]);
    // An engine block that goes on otherwise is of no use, however far it agrees.
    assert_eq!(known.sees(W2, &chain[..3]).blocks, 0);
    // Three blocks of 24 are 72 tokens, so 4 blocks of ours: where sizes do not divide each other
    // we know it only to one of the engine's blocks, and take the lesser.
    known.remove(4, removed(&[4]));
    assert_eq!(known.sees(4, &chain).blocks, 3);
}

#[test]
fn only_the_main_group_decides() {
    let other = |mut stored: Stored| {
        stored.group = Group::Other;
        stored
    };
    let mut known = observed();
    known.store(W1, blocks(0, 1));
    known.store(W1, other(blocks(0, 1)));
    let mut gone = removed(&[101]);
    gone.group = Group::Other;
    known.remove(W1, gone);
    assert_eq!((known.leading(W1), known.counts().ignored), (1, 2));
    known.remove(W1, removed(&[101]));
    assert_eq!(known.leading(W1), 0);
}

#[test]
fn other_pictures_are_other_chains() {
    // Two blocks of text, then one with a picture: equal tokens, other keys.
    let picture = |name: u64, key: u64| Stored {
        hashes: vec![101, 102, name],
        extra: vec![(2, key)],
        ..blocks(0, 3)
    };
    let mut known = observed();
    known.store(W1, picture(501, 71));
    known.store(W2, picture(502, 72));
    known.store(3, picture(501, 71));
    let with = |key: u64| {
        let mut chain = chain(SEED, &tokens(32));
        let seed = xxh3_64_with_seed(&key.to_le_bytes(), chain[1]);
        chain.extend(self::chain(seed, &tokens(48)[32..]));
        chain
    };
    let each = |key| [W1, W2, 3].map(|slot| known.sees(slot, &with(key)).blocks);
    assert_eq!(each(71), [3, 2, 3]);
    assert_eq!(each(72), [2, 3, 2]);
    assert_eq!(known.leading(W1), 2, "without a picture");
}

#[test]
fn each_rank_is_an_owner_of_its_own() {
    let mut known = observed();
    for (rank, count) in [(None, 1), (Some(0), 2), (Some(1), 3)] {
        known.tell(W1, rank, [KvEvent::Stored(blocks(0, count))]);
    }
    assert_eq!(known.flow(W1).live, 3);
    let whole = chain(SEED, &tokens(160));
    let seen = known.sees(W1, &whole);
    assert_eq!((seen.blocks, seen.rank), (3, Some(1)));
    known.tell(W1, Some(1), [KvEvent::Cleared]);
    let seen = known.sees(W1, &whole);
    assert_eq!((seen.blocks, seen.rank), (2, Some(0)));
    let epochs = [None, Some(0), Some(1), Some(2)].map(|rank| known.epoch(W1, rank));
    assert_eq!(epochs, [Some(0), Some(0), Some(1), None]);
}

#[test]
fn another_scope_shares_nothing() {
    let mut known = observed();
    known.store(W1, blocks(0, 2));
    let mut other = blocks(0, 2);
    other.hashes = vec![901, 902];
    other.root_seed = SEED + 1;
    known.store(W2, other);
    assert_eq!((known.leading(W1), known.leading(W2)), (2, 0));
    // Children inherit the scope, whatever their own event says.
    let mut child = blocks(2, 1);
    child.parent = Some(902);
    known.store(W2, child);
    let theirs = chain(SEED + 1, &tokens(48));
    assert_eq!(known.sees(W2, &theirs).blocks, 3);
}

#[test]
fn nothing_behind_a_gap_matches_until_it_is_closed() {
    let mut known = observed();
    known.store(W1, blocks(0, 8));
    known.remove(W1, removed(&[104, 103]));
    assert_eq!((known.leading(W1), known.blocks(W1)), (2, 6));
    known.store(W1, blocks(2, 1));
    assert_eq!(known.leading(W1), 3);
    // What follows the gap is still there, and what hangs on it can be stored.
    known.store(W1, blocks(8, 1));
    known.store(W1, blocks(3, 1));
    assert_eq!(known.leading(W1), 9);
}

#[test]
fn more_gaps_than_can_be_looked_at_are_not_believed() {
    let mut known = observed();
    let names: Vec<u64> = (101..101 + GAPS_MAX as u64 + 1).collect();
    known.store(W1, blocks(0, names.len() as u32 + 1));
    known.remove(W1, removed(&names));
    assert_eq!((known.blocks(W1), known.counts().distrusted), (0, 1));
}

#[test]
fn tiers_are_counted_apart() {
    let mut known = observed();
    known.store(W1, blocks(0, 6));
    for (tier, from, count) in [(Tier::Host, 0, 6), (Tier::Disk, 0, 8)] {
        let mut stored = blocks(from, count);
        stored.tier = tier;
        known.store(W1, stored);
    }
    let gone = |tier, names: &[u64]| Removed {
        tier,
        ..removed(names)
    };
    known.remove(W1, gone(Tier::Device, &[106, 105, 104]));
    known.remove(W1, gone(Tier::Host, &[106]));
    let seen = known.sees(W1, &chain(SEED, &tokens(160)));
    assert_eq!((seen.device, seen.host, seen.blocks), (3, 5, 8));
}

#[test]
fn uncertain_is_not_warm() {
    let mut known = observed();
    known.store(W1, blocks(0, 4));
    known.set_state(W1, None, KvState::Uncertain);
    assert_eq!(known.leading(W1), 0);
    known.store(W1, blocks(0, 3));
    assert_eq!(known.leading(W1), 3, "what came since is true");
    known.set_state(W1, None, KvState::Uncertain);
    known.store(W1, blocks(1, 2));
    assert_eq!(known.leading(W1), 0, "its beginning may be gone");
    known.set_state(W1, None, KvState::Live);
    assert_eq!(known.leading(W1), 0);
    known.store(W1, blocks(0, 1));
    assert_eq!(known.leading(W1), 3);
    known.set_state(W1, None, KvState::Restarted);
    assert_eq!((known.leading(W1), known.epoch(W1, None)), (0, Some(1)));
    let flow = Flow {
        live: 1,
        uncertain: 0,
    };
    assert_eq!(known.flow(W1), flow);
}

#[test]
fn what_contradicts_itself_is_counted_and_nothing_else() {
    let mut known = observed();
    let bad: [fn(&mut Stored); 4] = [
        |s| s.tokens.truncate(20),
        |s| s.block_size = 0,
        |s| s.hashes.push(7),
        |s| s.extra = vec![(2, 1)],
    ];
    for spoil in bad {
        let mut stored = blocks(0, 2);
        spoil(&mut stored);
        known.store(W1, stored);
    }
    assert_eq!((known.leading(W1), known.counts().malformed), (0, 4));
}

#[test]
fn workers_that_come_and_go_leave_nothing() {
    let mut known = observed();
    for worker in 0..200 {
        known.store(worker, blocks(0, 60));
        known.store(worker, blocks(70, 2));
        known.forget(worker);
    }
    known.check().unwrap();
    assert!(!known.any());
    let mut one = observed();
    one.store(W1, blocks(0, 60));
    assert!(known.bytes() <= 2 * one.bytes(), "{} bytes", known.bytes());
}
