//! What is said to be about to go, against an engine that evicts as vLLM does.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use hashbrown::HashSet;
use maitred_core::ids::{AttemptId, RequestId};
use maitred_core::prefix::observed::{Claiming, Removed, Stored};
use maitred_core::prefix::{ChainBuilder, KvBatch, KvEvent, Observed, Sightings};
use maitred_core::time::Nanos;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const BLOCK: usize = 16;
const SLOT: u32 = 3;
/// Blocks that requests can use; the engine has one more for itself.
const BLOCKS: usize = 64;

/// Full blocks, each named by all that it follows.
fn chain(tokens: &[u32]) -> Vec<u64> {
    let mut builder = ChainBuilder::new(9, 4 * BLOCK);
    builder.push_tokens(tokens);
    builder.finish().0
}

/// A block pool with one free list: what was used last is taken last, ends of chains first.
#[derive(Default)]
struct Engine {
    users: BTreeMap<u64, u32>,
    free: VecDeque<u64>,
    running: usize,
    events: Vec<KvEvent>,
}

impl Engine {
    /// Computes a prompt; how many of its blocks were there, and what was evicted for it.
    fn begin(&mut self, tokens: &[u32]) -> (usize, Vec<u64>) {
        let whole = chain(tokens);
        let most = (tokens.len() - 1) / BLOCK;
        let there = |name: &&u64| self.users.contains_key(*name);
        let hit = whole.iter().take(most).take_while(there).count();
        for name in &whole[..hit] {
            *self.users.get_mut(name).unwrap() += 1;
            self.free.retain(|other| other != name);
        }
        let need = (tokens.len() + 1).div_ceil(BLOCK) - hit;
        let room = BLOCKS - self.users.len() - self.running;
        let mut evicted = Vec::new();
        for _ in room..need {
            let name = self.free.pop_front().expect("the test asks for too much");
            self.users.remove(&name);
            evicted.push(name);
            let hashes = vec![name];
            self.events.push(KvEvent::Removed(Removed {
                hashes,
                ..Removed::default()
            }));
        }
        for name in &whole[hit..] {
            self.users.insert(*name, 1);
        }
        self.running += 1;
        self.events.push(KvEvent::Stored(Stored {
            hashes: whole[hit..].to_vec(),
            parent: hit.checked_sub(1).map(|at| whole[at]),
            tokens: tokens[hit * BLOCK..whole.len() * BLOCK].to_vec(),
            block_size: BLOCK as u32,
            root_seed: 9,
            ..Stored::default()
        }));
        (hit, evicted)
    }

    fn end(&mut self, tokens: &[u32]) {
        self.running -= 1;
        for name in chain(tokens).into_iter().rev() {
            let users = self.users.get_mut(&name).unwrap();
            *users -= 1;
            if *users == 0 {
                self.free.push_back(name);
            }
        }
    }
}

struct Room {
    observed: Observed,
    engine: Engine,
    requests: u64,
}

impl Room {
    fn listen(&mut self) {
        let events = std::mem::take(&mut self.engine.events);
        self.observed
            .apply(SLOT, None, KvBatch { events }, false, Nanos(0));
        self.observed.check().unwrap();
    }

    /// Blocks of the chain that are said to be there still when it is its turn.
    fn believed(&self, chain: &[u64], tokens: usize) -> u32 {
        let mut seen = Sightings::default();
        self.observed.matches(chain, &mut seen);
        let seen = seen.get(SLOT).blocks;
        let stays = seen - self.observed.leaving(SLOT, &chain[..seen as usize]);
        self.observed.usable(SLOT, stays, tokens as u32)
    }

    /// A dispatch, with those that are open.
    fn dispatch(&mut self, tokens: &[u32], open: &[(AttemptId, Vec<u32>)]) -> (AttemptId, u32) {
        self.requests += 1;
        let attempt = AttemptId {
            request: RequestId(self.requests),
            number: 1,
        };
        let whole = chain(tokens);
        let matched = self.believed(&whole, tokens.len());
        let missing = self.observed.claim(&Claiming {
            slot: SLOT,
            attempt,
            chain: &whole,
            matched,
            prompt_tokens: tokens.len() as u32,
            capacity_tokens: ((BLOCKS + 1) * BLOCK) as u64,
            running: open.len() as u32,
        });
        if missing > 0 {
            let mut in_use: HashSet<u64, _> = HashSet::default();
            in_use.extend(&whole);
            for (_, tokens) in open {
                in_use.extend(chain(tokens));
            }
            self.observed.give_way(SLOT, missing, &in_use);
        }
        self.observed.check().unwrap();
        (attempt, matched)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Conversations that grow or begin anew, two at a time: what the second finds when it is its turn is
    /// what was said when both were dispatched, and what goes is what was said to go.
    #[test]
    fn what_goes_was_said_to_go(
        turns in prop::collection::vec((0_usize..6, 17_usize..120, prop::bool::weighted(0.7)), 4..60)
    ) {
        let observed = Observed::new(BLOCK as u32, 1 << 20, Duration::from_secs(1));
        let mut room = Room { observed, engine: Engine::default(), requests: 0 };
        let mut talks: Vec<Vec<u32>> = vec![Vec::new(); 6];
        let mut fresh = 0_u32;
        for pair in turns.chunks_exact(2) {
            if pair[0].0 == pair[1].0 {
                continue;
            }
            let mut open: Vec<(AttemptId, Vec<u32>)> = Vec::new();
            let mut said = Vec::new();
            let before = room.observed.leaving_blocks(SLOT);
            prop_assert_eq!(before, 0);
            for (talk, more, goes_on) in pair {
                let talk = &mut talks[*talk];
                if !*goes_on || talk.len() > 300 {
                    talk.clear();
                }
                talk.extend((0..*more as u32).map(|i| fresh + i));
                fresh += 1_000;
                let (attempt, matched) = room.dispatch(talk, &open);
                said.push(matched);
                open.push((attempt, talk.clone()));
            }
            let going = room.observed.leaving_blocks(SLOT);
            let (mut found, mut evicted) = (Vec::new(), 0);
            for (_, tokens) in &open {
                let (hit, gone) = room.engine.begin(tokens);
                found.push(hit as u32);
                evicted += gone.len() as u64;
            }
            prop_assert_eq!(&found, &said);
            prop_assert_eq!(evicted, going);
            room.listen();
            prop_assert_eq!(room.observed.claimants(SLOT).count(), 0);
            for (attempt, tokens) in &open {
                room.engine.end(tokens);
                room.observed.ended(SLOT, *attempt, Some(Nanos(9)));
            }
        }
    }
}
