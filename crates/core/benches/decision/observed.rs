//! What KV events cost: to apply them, to look up what they said, to keep it.

use criterion::{BatchSize, Criterion, Throughput};
use maitred_core::limits::OBSERVED_BYTES_MAX;
use maitred_core::prefix::observed::{Removed, Stored};
use maitred_core::prefix::{ChainBuilder, KvBatch, KvEvent, Observed, Sightings};
use maitred_core::time::Nanos;
use std::hint::black_box;
use std::time::Duration;

const TOKENS: usize = 16;

/// A prompt of `blocks` blocks of which the first `opening` are shared.
struct Prompt {
    own: u64,
    opening: usize,
    blocks: usize,
}

impl Prompt {
    fn block(&self, at: usize) -> [u32; TOKENS] {
        let own = if at < self.opening { 0 } else { self.own + 1 };
        let first = (own as u32).wrapping_mul(0x9e37_79b9) ^ at as u32;
        std::array::from_fn(|i| first.wrapping_add(i as u32 * 7_919))
    }

    fn tokens(&self, from: usize, to: usize) -> Vec<u32> {
        (from..to).flat_map(|at| self.block(at)).collect()
    }

    fn names(&self, from: usize, to: usize) -> Vec<u64> {
        let name = |at: usize| {
            let own = if at < self.opening { 0 } else { self.own + 1 };
            (own << 20 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        };
        (from..to).map(name).collect()
    }

    fn chain(&self) -> Vec<u64> {
        let mut builder = ChainBuilder::new(1, 4 * TOKENS);
        builder.push_tokens(&self.tokens(0, self.blocks));
        builder.finish().0
    }

    /// Its events, `at_once` blocks each.
    fn stored(&self, at_once: usize) -> KvBatch {
        let events = (0..self.blocks).step_by(at_once).map(|from| {
            let to = (from + at_once).min(self.blocks);
            KvEvent::Stored(Stored {
                hashes: self.names(from, to),
                parent: from.checked_sub(1).map(|last| self.names(last, from)[0]),
                tokens: self.tokens(from, to),
                block_size: TOKENS as u32,
                root_seed: 1,
                ..Stored::default()
            })
        });
        KvBatch {
            events: events.collect(),
        }
    }

    /// As engines evict: one block an event, the end first.
    fn removed(&self) -> KvBatch {
        let events = self.names(0, self.blocks).into_iter().rev().map(|name| {
            KvEvent::Removed(Removed {
                hashes: vec![name],
                ..Removed::default()
            })
        });
        KvBatch {
            events: events.collect(),
        }
    }
}

fn observed() -> Observed {
    Observed::new(TOKENS as u32, OBSERVED_BYTES_MAX, Duration::from_secs(3))
}

fn apply(observed: &mut Observed, slot: u32, batch: KvBatch) {
    observed.apply(slot, None, batch, false, Nanos(0));
}

/// Blocks stored and removed, on 16 workers that hold about 10,000 blocks each; 5 % of all blocks
/// are an opening that all of them hold.
pub(crate) fn updates(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("observed");
    let prompt = |own: u64| Prompt {
        own,
        opening: 12,
        blocks: 256,
    };
    for at_once in [1, 16, 256] {
        let mut known = observed();
        for own in 0..640 {
            apply(&mut known, own as u32 % 16, prompt(own).stored(256));
        }
        let mut next = 640;
        group.throughput(Throughput::Elements(16 * 2 * 244));
        group.bench_function(format!("update_{at_once}_at_once"), |bencher| {
            bencher.iter_batched(
                || {
                    next += 16;
                    (next - 16..next)
                        .map(|own| {
                            let mut gone = prompt(own - 640).removed();
                            // The opening stays.
                            gone.events.truncate(244);
                            (own as u32 % 16, prompt(own).stored(at_once), gone)
                        })
                        .collect::<Vec<_>>()
                },
                |batches| {
                    for (slot, stored, removed) in batches {
                        apply(&mut known, slot, stored);
                        apply(&mut known, slot, removed);
                    }
                },
                BatchSize::SmallInput,
            );
        });
        known.check().expect("sound");
    }
    group.finish();
}

/// `workers` workers, each with a prompt of its own after a hot opening.
pub(crate) fn look_ups(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("observed");
    for (blocks, workers) in [(6_250, 64), (2_000, 1_000)] {
        let prompt = |own: u64| Prompt {
            own,
            opening: blocks / 4,
            blocks,
        };
        let mut known = observed();
        for slot in 0..workers {
            apply(&mut known, slot, prompt(u64::from(slot)).stored(256));
        }
        let wanted = prompt(u64::from(workers / 2)).chain();
        let mut found = Sightings::default();
        group.bench_function(format!("match_{blocks}_blocks_{workers}_workers"), |b| {
            b.iter(|| {
                known.matches(black_box(&wanted), &mut found);
                found.iter().count()
            });
        });
    }
    // Each of them holds another part of the same prompt.
    let (blocks, workers) = (6_250, 64);
    let whole = Prompt {
        own: 1,
        opening: 0,
        blocks,
    };
    let mut known = observed();
    for slot in 0..workers {
        let part = Prompt {
            blocks: blocks * (slot as usize + 1) / workers as usize,
            ..whole
        };
        apply(&mut known, slot, part.stored(256));
    }
    let wanted = whole.chain();
    let mut found = Sightings::default();
    group.bench_function("match_6250_blocks_64_workers_all_different", |bencher| {
        bencher.iter(|| {
            known.matches(black_box(&wanted), &mut found);
            found.iter().count()
        });
    });
    group.finish();
}

/// Without criterion: what a block costs, by shape of the prompts.
pub(crate) fn sizes(_: &mut Criterion) {
    for (prompts, opening, blocks) in [
        (50_000, 0, 16),
        (5_000, 64, 256),
        (6_500, 0, 256),
        (500, 500, 2_000),
    ] {
        let mut known = observed();
        for own in 0..prompts {
            let prompt = Prompt {
                own,
                opening,
                blocks,
            };
            apply(&mut known, own as u32 % 16, prompt.stored(256));
        }
        let held: u64 = (0..16).map(|slot| known.blocks(slot)).sum();
        let each = known.bytes() as f64 / held as f64;
        eprintln!(
            "observed bytes for each (block, worker), {prompts} prompts of {blocks}, {held} held: {each:.1}"
        );
    }
}
