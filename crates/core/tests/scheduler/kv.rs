//! What workers say of the prompts that the model sends.

use maitred_core::prefix::observed::{Removed, Stored};
use maitred_core::prefix::{ChainBuilder, KvBatch, KvEvent, KvState};
use maitred_core::{Input, WorkerId};

const SEED: u64 = 1;

/// Tokens of a session's prompt of that many blocks of 16.
fn tokens(session: u64, blocks: u64) -> Vec<u32> {
    let block = |at: u64| [(session * 1_000 + at) as u32; 16];
    (0..blocks).flat_map(block).collect()
}

pub(crate) fn chain(session: u64, blocks: u64) -> Vec<u64> {
    let mut builder = ChainBuilder::new(SEED, 64);
    builder.push_tokens(&tokens(session, blocks));
    builder.finish().0
}

/// A word of one of two ranks on the session's blocks from `from` on.
pub(crate) fn word(worker: WorkerId, session: u64, from: u64, count: u64, kind: u8) -> Input {
    let rank = (kind & 1 == 1).then_some(0);
    let hashes: Vec<u64> = (from..from + count).map(|b| session * 1_000 + b).collect();
    let event = match kind / 2 {
        0..=2 => KvEvent::Stored(Stored {
            parent: (from > 0).then(|| session * 1_000 + from - 1),
            tokens: tokens(session, from + count).split_off(16 * from as usize),
            hashes,
            block_size: 16,
            root_seed: SEED,
            ..Stored::default()
        }),
        3..=4 => KvEvent::Removed(Removed {
            hashes: hashes.into_iter().rev().collect(),
            ..Removed::default()
        }),
        5 => KvEvent::Cleared,
        other => {
            let states = [KvState::Live, KvState::Uncertain, KvState::Restarted];
            let state = states[usize::from(other) % states.len()];
            return Input::KvState {
                worker,
                rank,
                state,
            };
        }
    };
    let batch = Box::new(KvBatch {
        events: vec![event],
    });
    Input::KvEvents {
        worker,
        rank,
        batch,
    }
}
