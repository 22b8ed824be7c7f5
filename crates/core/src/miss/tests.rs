use super::{Ancestor, FAMILIES_MAX, Lineages, MARKS, Misses, Moved, Served};
use crate::ids::{SessionKey, WorkerId};
use crate::request::{BlockHash, Identity};
use crate::rng::mix;
use crate::time::Nanos;
use alloc::vec::Vec;
use proptest::prelude::*;

fn w(slot: u32) -> WorkerId {
    WorkerId {
        slot,
        generation: 0,
    }
}

/// A chain of which each part is (content, blocks).
fn chain(parts: &[(u64, u32)]) -> Vec<BlockHash> {
    let mut hash = 7;
    let mut chain = Vec::new();
    for (content, blocks) in parts {
        for block in 0..*blocks {
            hash = mix(hash ^ mix(content << 32 | u64::from(block)));
            chain.push(hash);
        }
    }
    chain
}

/// 10 tokens in a block, and 5 beyond the last.
fn served(chain: &[BlockHash], turn: u32, cached: Option<u32>) -> Served<'_> {
    Served {
        chain,
        identity: Identity::Tokens,
        block_tokens: 10.0,
        prompt_tokens: chain.len() as u32 * 10 + 5,
        cached_tokens: cached,
        reads_cache: true,
        cache_block: 0,
        turn,
        scope: 1,
        worker: w(0),
        epoch: 0,
        why: Moved::Policy,
        dispatched: Nanos(0),
        ended: Nanos(0),
    }
}

const S: Option<SessionKey> = Some(SessionKey(1));

#[test]
fn what_nobody_had_is_new_and_what_was_found_is_cached() {
    let mut lineages = Lineages::new(8);
    let one = chain(&[(1, 100)]);
    let told = lineages.served(S, &served(&one, 1, Some(30)));
    let expected = Misses {
        cached: 30,
        new: 975,
        ..Misses::default()
    };
    assert_eq!(told, expected, "others had the first 30");
    let two = chain(&[(1, 100), (2, 20)]);
    let told = lineages.served(S, &served(&two, 2, Some(1_000)));
    assert_eq!((told.cached, told.new, told.total()), (1_000, 205, 1_205));
    assert_eq!(lineages.served(None, &served(&two, 1, Some(0))).new, 1_205);
}

#[test]
fn what_the_ancestor_had_is_moved_restarted_evicted_or_unknown() {
    let one = chain(&[(1, 100)]);
    let two = chain(&[(1, 100), (2, 20)]);
    let after = |change: &dyn Fn(&mut Served<'_>)| {
        let mut lineages = Lineages::new(8);
        lineages.served(S, &served(&one, 1, Some(0)));
        let mut next = served(&two, 2, Some(400));
        change(&mut next);
        let told = lineages.served(S, &next);
        assert_eq!(told.total(), 1_205);
        told
    };
    let told = after(&|_| {});
    assert_eq!((told.cached, told.evicted, told.new), (400, 600, 205));
    let told = after(&|s| (s.worker, s.why) = (w(1), Moved::Escape));
    assert_eq!((told.moved, told.moved_why), (600, Some(Moved::Escape)));
    let told = after(&|s| s.epoch = 1);
    assert_eq!(told.restarted, 600);
    let told = after(&|s| s.cached_tokens = None);
    assert_eq!((told.unknown, told.cached, told.new), (1_000, 0, 205));
    // Where all of it was found nothing was moved, wherever it went.
    let told = after(&|s| (s.worker, s.cached_tokens) = (w(1), Some(1_000)));
    assert_eq!((told.moved, told.moved_why, told.new), (0, None, 205));
}

#[test]
fn a_changed_beginning_is_diverged_and_another_scope_is_scope() {
    let mut lineages = Lineages::new(8);
    let one = chain(&[(1, 50), (2, 50)]);
    lineages.served(S, &served(&one, 1, Some(0)));
    // The first half is the same; 500 tokens of it are not, and 100 come to it.
    let two = chain(&[(1, 50), (3, 60)]);
    let told = lineages.served(S, &served(&two, 2, Some(500)));
    assert_eq!((told.cached, told.diverged, told.new), (500, 500, 105));
    // A clock at the very beginning: the next turn shares nothing.
    let three = chain(&[(9, 130)]);
    let told = lineages.served(S, &served(&three, 3, Some(0)));
    assert_eq!((told.diverged, told.new), (1_100, 205));
    let four = chain(&[(10, 140)]);
    let mut next = served(&four, 4, Some(0));
    next.scope = 2;
    let told = lineages.served(S, &next);
    assert_eq!((told.scope, told.new), (1_300, 105));
}

#[test]
fn side_calls_are_families_of_their_own() {
    let mut lineages = Lineages::new(8);
    let main = |turn: u32| chain(&[(1, 40 * turn)]);
    lineages.served(S, &served(&main(1), 1, Some(0)));
    let title = chain(&[(77, 5)]);
    let told = lineages.served(S, &served(&title, 1, Some(0)));
    assert_eq!((told.new, told.diverged), (55, 0));
    let told = lineages.served(S, &served(&main(2), 2, Some(400)));
    assert_eq!((told.cached, told.new, told.diverged), (400, 405, 0));
    let told = lineages.served(S, &served(&title, 1, Some(0)));
    assert_eq!(told.evicted, 50);
}

#[test]
fn the_longest_chain_is_found_at_its_end() {
    let mut lineages = Lineages::new(8);
    let one = chain(&[(1, 5_003)]);
    lineages.served(S, &served(&one, 1, Some(0)));
    let two = chain(&[(1, 5_003), (2, 9)]);
    let told = lineages.served(S, &served(&two, 2, Some(0)));
    assert_eq!((told.evicted, told.new), (50_030, 95));
}

#[test]
fn a_follow_up_of_which_nothing_is_remembered_is_unknown() {
    let mut lineages = Lineages::new(1);
    let one = chain(&[(1, 100)]);
    let told = lineages.served(S, &served(&one, 3, Some(400)));
    assert_eq!((told.cached, told.unknown, told.new), (400, 605, 0));
    assert_eq!(told.ancestor, None);
    // Room for one session: the other's takes it.
    lineages.served(Some(SessionKey(2)), &served(&one, 1, Some(0)));
    let told = lineages.served(S, &served(&one, 4, Some(400)));
    assert_eq!((told.unknown, told.new), (605, 0));
}

#[test]
fn prompts_that_cannot_be_compared_blame_nobody() {
    let mut lineages = Lineages::new(8);
    let one = chain(&[(1, 100)]);
    lineages.served(S, &served(&one, 1, Some(0)));
    // By its bytes: other hashes for the same text.
    let two = chain(&[(5, 120)]);
    let mut next = served(&two, 2, Some(400));
    next.identity = Identity::Bytes;
    let told = lineages.served(S, &next);
    assert_eq!((told.unknown, told.diverged, told.new), (600, 0, 205));
    // The engine was told not to look.
    let mut lineages = Lineages::new(8);
    lineages.served(S, &served(&one, 1, Some(0)));
    let three = chain(&[(1, 100), (2, 20)]);
    let mut next = served(&three, 2, Some(0));
    next.reads_cache = false;
    let told = lineages.served(S, &next);
    assert_eq!((told.unknown, told.evicted, told.new), (1_000, 0, 205));
}

#[test]
fn what_was_not_through_left_nothing() {
    let mut lineages = Lineages::new(8);
    let one = chain(&[(1, 100)]);
    let at = |chain, from, to| Served {
        dispatched: Nanos(from),
        ended: Nanos(to),
        ..served(chain, 2, Some(0))
    };
    let mut first = at(&one, 0, 10);
    first.turn = 1;
    lineages.served(S, &first);
    // Two at once, from the same beginning: neither finds what the other added, both the beginning.
    let left = chain(&[(1, 100), (2, 50)]);
    let right = chain(&[(1, 100), (2, 50), (3, 5)]);
    let told = lineages.served(S, &at(&left, 20, 40));
    assert_eq!((told.evicted, told.new), (1_000, 505));
    let told = lineages.served(S, &at(&right, 30, 50));
    assert_eq!((told.evicted, told.diverged, told.new), (1_000, 0, 555));
    // And one that comes when both were through finds all.
    let told = lineages.served(S, &at(&right, 60, 70));
    assert_eq!((told.evicted, told.new), (1_550, 5));
}

#[test]
fn a_history_that_slides_is_diverged() {
    let mut lineages = Lineages::new(8);
    let turn = |n: u64| chain(&[(1, 10), (n, 30), (n + 1, 30)]);
    lineages.served(S, &served(&turn(2), 9, Some(0)));
    let three = turn(3);
    let told = lineages.served(S, &served(&three, 9, Some(100)));
    assert_eq!((told.cached, told.diverged, told.new), (100, 600, 5));
    let common = told.ancestor.map(|ancestor| ancestor.common);
    assert_eq!(common, Some(100));
}

#[test]
fn less_than_a_block_of_the_engine_is_no_miss() {
    let mut lineages = Lineages::new(8);
    let one = chain(&[(1, 100)]);
    lineages.served(S, &served(&one, 1, Some(0)));
    // The engine caches blocks of 64: of 1000 tokens it can serve 960.
    let two = chain(&[(1, 100), (2, 20)]);
    let mut next = served(&two, 2, Some(960));
    next.cache_block = 64;
    let told = lineages.served(S, &next);
    assert_eq!((told.cached, told.evicted, told.new), (960, 0, 245));
    let worker = told.ancestor.map(|ancestor: Ancestor| ancestor.worker);
    assert_eq!(worker, Some(w(0)));
}

#[test]
fn the_end_of_every_length_is_a_mark() {
    for blocks in 1..=(3 * MARKS as u32 + 2) {
        let marks: Vec<u32> = super::marked(blocks).collect();
        assert!(
            marks.len() <= MARKS && marks.last() == Some(&blocks),
            "{blocks}"
        );
        let one = chain(&[(1, blocks)]);
        let mut lineages = Lineages::new(8);
        lineages.served(S, &served(&one, 1, Some(0)));
        let two = chain(&[(1, blocks), (2, 1)]);
        let told = lineages.served(S, &served(&two, 2, Some(0)));
        assert_eq!(told.evicted, 10 * blocks, "{blocks}");
    }
    assert_eq!(super::marked(0).count(), 0);
}

proptest! {
    #[test]
    fn causes_and_cached_tokens_are_the_prompt(
        requests in prop::collection::vec(
            (
                (0_u64..5, prop::collection::vec((0_u64..3, 0_u32..40), 0..4), 1_u32..5),
                (0_u32..3_000, prop::option::of(0_u32..4_000), 0_u64..2),
                (0_u32..3, 0_u32..2, 0_usize..Moved::ALL.len()),
                (any::<bool>(), any::<bool>(), 0_u64..9, 0_u64..9),
            ),
            1..40,
        ),
    ) {
        let mut lineages = Lineages::new(3);
        for ((session, parts, turn), (prompt, cached, scope), (worker, epoch, why), more) in requests {
            let chain = chain(&parts);
            let request = Served {
                chain: &chain,
                identity: if more.0 { Identity::Tokens } else { Identity::Bytes },
                block_tokens: 10.0,
                prompt_tokens: prompt,
                cached_tokens: cached,
                reads_cache: more.1,
                cache_block: 0,
                turn,
                scope,
                worker: w(worker),
                epoch,
                why: Moved::ALL[why],
                dispatched: Nanos(more.2),
                ended: Nanos(more.2 + more.3),
            };
            let key = (session > 0).then_some(SessionKey(session));
            let told = lineages.served(key, &request);
            prop_assert_eq!(told.total(), prompt);
            prop_assert_eq!(told.cached, cached.unwrap_or(0).min(prompt));
            prop_assert_eq!(told.moved_why.is_some(), told.moved > 0);
            prop_assert!(cached.is_some() || told.moved + told.evicted + told.restarted == 0);
            prop_assert!(!(more.1 && cached.is_some() && told.ancestor.is_none() && turn == 1) || told.unknown == 0);
            prop_assert!(lineages.len() <= 3);
            for lineage in lineages.by_key.values() {
                prop_assert!(lineage.families.len() <= FAMILIES_MAX);
            }
        }
    }
}
