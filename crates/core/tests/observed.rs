//! Observed residency against a naive model.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use maitred_core::prefix::observed::{Removed, Stored, Tier};
use maitred_core::prefix::{ChainBuilder, KvBatch, KvEvent, KvState, Observed, Sightings};
use maitred_core::time::Nanos;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const OURS: usize = 16;
/// Tokens that one symbol of a document stands for.
const UNIT: usize = 8;
const SEED: u64 = 77;

/// Worker slot, rank, and tokens in an engine block.
const OWNERS: [(u32, Option<u32>, usize); 6] = [
    (0, None, 32),
    (1, Some(0), 16),
    (1, Some(1), 16),
    (2, None, 64),
    (3, Some(0), 8),
    (4, None, 24),
];

fn tokens(document: &[u8]) -> Vec<u32> {
    let unit = |symbol: u8| (0..UNIT as u32).map(move |i| u32::from(symbol) * 100 + i);
    document.iter().copied().flat_map(unit).collect()
}

fn chain(tokens: &[u32]) -> Vec<u64> {
    let mut builder = ChainBuilder::new(SEED, 4 * OURS);
    builder.push_tokens(tokens);
    builder.finish().0
}

/// The engine's name of what ends after `end` tokens.
fn name(owner: usize, tokens: &[u32], end: usize) -> u64 {
    let mut builder = ChainBuilder::new(owner as u64 % 3, 4 * end);
    builder.push_tokens(&tokens[..end]);
    builder.finish().0[0]
}

#[derive(Clone, Debug)]
enum Step {
    /// The blocks from the first number on, as many as the second says.
    Store(usize, Vec<u8>, usize, usize),
    ToHost(usize, Vec<u8>, usize),
    Remove(usize, Vec<u8>, usize, bool),
    Clear(usize),
    Lose(usize),
    Leave(u32),
}

fn document() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec((0_u8..2, 1_usize..9), 1..7).prop_map(|runs| {
        let repeat = |(symbol, length): (u8, usize)| std::iter::repeat_n(symbol, length);
        runs.into_iter().flat_map(repeat).collect()
    })
}

fn step() -> impl Strategy<Value = Step> {
    let owner = || 0..OWNERS.len();
    prop_oneof![
        10 => (owner(), document()).prop_map(|(o, d)| Step::Store(o, d, 0, 99)),
        10 => (owner(), document(), 0_usize..8, 1_usize..8)
            .prop_map(|(o, d, from, count)| Step::Store(o, d, from, count)),
        4 => (owner(), document(), 0_usize..8).prop_map(|(o, d, at)| Step::ToHost(o, d, at)),
        12 => (owner(), document(), 0_usize..12, prop::bool::weighted(0.2))
            .prop_map(|(o, d, at, host)| Step::Remove(o, d, at, host)),
        1 => owner().prop_map(Step::Clear),
        1 => owner().prop_map(Step::Lose),
        1 => (0_u32..5).prop_map(Step::Leave),
    ]
}

/// By name: the tiers it is in.
type Held = BTreeMap<u64, BTreeSet<Tier>>;

/// Tokens of the prompt that an owner has without a gap, from the beginning.
fn covered(owner: usize, held: &Held, prompt: &[u32]) -> usize {
    let size = OWNERS[owner].2;
    let ends = (1..=prompt.len() / size).map(|block| block * size);
    ends.take_while(|end| held.contains_key(&name(owner, prompt, *end)))
        .last()
        .unwrap_or(0)
}

fn event(owner: usize, prompt: &[u32], from: usize, to: usize, tier: Tier) -> KvEvent {
    let size = OWNERS[owner].2;
    KvEvent::Stored(Stored {
        hashes: (from + 1..=to)
            .map(|b| name(owner, prompt, b * size))
            .collect(),
        parent: (from > 0).then(|| name(owner, prompt, from * size)),
        tokens: prompt[from * size..to * size].to_vec(),
        block_size: size as u32,
        root_seed: SEED,
        tier,
        ..Stored::default()
    })
}

fn tell(observed: &mut Observed, owner: usize, event: KvEvent, split: usize) {
    let (slot, rank, _) = OWNERS[owner];
    let batch = KvBatch {
        events: vec![event],
    };
    for part in batch.split(split) {
        assert!(part.blocks() <= split);
        observed.apply(slot, rank, part, true, Nanos(0));
    }
}

fn take(observed: &mut Observed, all: &mut [Held], step: &Step, split: usize) {
    match step {
        Step::Store(owner, document, from, count) => {
            let prompt = tokens(document);
            let size = OWNERS[*owner].2;
            let to = (from + count).min(prompt.len() / size);
            if *from < to {
                for block in from + 1..=to {
                    let tiers = all[*owner].entry(name(*owner, &prompt, block * size));
                    tiers.or_default().insert(Tier::Device);
                }
                tell(
                    observed,
                    *owner,
                    event(*owner, &prompt, *from, to, Tier::Device),
                    split,
                );
            }
        }
        Step::ToHost(owner, document, at) => {
            let prompt = tokens(document);
            let end = (at + 1) * OWNERS[*owner].2;
            // Of what is not there, nothing can be taken to the host.
            if end <= prompt.len() && covered(*owner, &all[*owner], &prompt) >= end {
                let tiers = all[*owner].get_mut(&name(*owner, &prompt, end)).unwrap();
                tiers.insert(Tier::Host);
                tell(
                    observed,
                    *owner,
                    event(*owner, &prompt, *at, at + 1, Tier::Host),
                    split,
                );
            }
        }
        Step::Remove(owner, document, at, host) => {
            let prompt = tokens(document);
            let end = (at + 1) * OWNERS[*owner].2;
            let tier = if *host { Tier::Host } else { Tier::Device };
            if end <= prompt.len() {
                let name = name(*owner, &prompt, end);
                if let Some(tiers) = all[*owner].get_mut(&name) {
                    tiers.remove(&tier);
                    if tiers.is_empty() {
                        all[*owner].remove(&name);
                    }
                }
                let removed = Removed {
                    hashes: vec![name],
                    tier,
                    ..Removed::default()
                };
                tell(observed, *owner, KvEvent::Removed(removed), split);
            }
        }
        Step::Clear(owner) => {
            all[*owner].clear();
            tell(observed, *owner, KvEvent::Cleared, split);
        }
        Step::Lose(owner) => {
            let (slot, rank, _) = OWNERS[*owner];
            observed.set_state(slot, rank, KvState::Uncertain);
            assert!(observed.flow(slot).uncertain > 0);
            observed.set_state(slot, rank, KvState::Live);
            all[*owner].clear();
        }
        Step::Leave(slot) => {
            observed.forget(*slot);
            for (owner, held) in all.iter_mut().enumerate() {
                if OWNERS[owner].0 == *slot {
                    held.clear();
                }
            }
        }
    }
}

fn compare(observed: &Observed, all: &[Held], document: &[u8]) -> Result<(), TestCaseError> {
    let prompt = tokens(document);
    let mut found = Sightings::default();
    observed.matches(&chain(&prompt), &mut found);
    for slot in 0..5 {
        let theirs = (0..OWNERS.len()).filter(|owner| OWNERS[*owner].0 == slot);
        let most = theirs
            .map(|owner| covered(owner, &all[owner], &prompt) / OURS)
            .max();
        let (most, said) = (most.unwrap(), found.get(slot).blocks as usize);
        // Where blocks do not end where ours do, a gap may cut more than it must.
        if slot < 3 {
            prop_assert_eq!(said, most, "slot {}", slot);
        } else {
            prop_assert!(said <= most, "slot {}: {} of {}", slot, said, most);
        }
        prop_assert!(found.get(slot).device <= found.get(slot).host);
        prop_assert!(found.get(slot).host as usize <= said);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn equals_the_naive_model(
        steps in prop::collection::vec(step(), 1..80),
        probe in document(),
        split in 1_usize..9,
    ) {
        let mut observed = Observed::new(OURS as u32, 1 << 20, Duration::from_secs(1));
        let mut all: Vec<Held> = vec![Held::new(); OWNERS.len()];
        for step in &steps {
            take(&mut observed, &mut all, step, split);
            observed.check().unwrap();
            compare(&observed, &all, &probe)?;
            if let Step::Store(_, document, ..) | Step::Remove(_, document, ..) = step {
                compare(&observed, &all, document)?;
            }
        }
        for step in &steps {
            if let Step::Store(_, document, ..) = step {
                compare(&observed, &all, document)?;
            }
        }
        for slot in 0..5 {
            observed.forget(slot);
        }
        observed.check().unwrap();
        prop_assert!(!observed.any());
    }

    #[test]
    fn never_over_the_bound_and_never_more_than_was_said(
        bytes_max in 0_usize..6_000,
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut observed = Observed::new(OURS as u32, bytes_max, Duration::from_secs(1));
        let mut all: Vec<Held> = vec![Held::new(); OWNERS.len()];
        let mut found = Sightings::default();
        for step in &steps {
            take(&mut observed, &mut all, step, 4_096);
            observed.check().unwrap();
            if let Step::Store(_, document, ..) = step {
                let prompt = tokens(document);
                observed.matches(&chain(&prompt), &mut found);
                for (slot, sighting) in found.iter() {
                    let theirs = (0..OWNERS.len()).filter(|o| OWNERS[*o].0 == slot);
                    let most = theirs.map(|o| covered(o, &all[o], &prompt) / OURS).max();
                    prop_assert!(sighting.blocks as usize <= most.unwrap());
                }
            }
        }
    }
}
