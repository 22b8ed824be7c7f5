//! What workers say of their caches, against what we predict.

use super::*;
use crate::decision::PredictionSource;
use crate::limits::KV_BLOCKS_AT_ONCE;
use crate::pool::Gauges;
use crate::prefix::ChainBuilder;
use crate::prefix::observed::{KvBatch, KvEvent, KvState, Removed, Stored};

const SEED: u64 = 3;

fn tokens(blocks: usize) -> Vec<u32> {
    (0..16 * blocks as u32).collect()
}

/// A guest whose prompt is that many blocks of 16 tokens.
fn told(id: u64, blocks: usize) -> Arrival {
    let mut builder = ChainBuilder::new(SEED, 64);
    builder.push_tokens(&tokens(blocks));
    let (chain, bytes) = builder.finish();
    Arrival {
        session: Some(SessionKey(7)),
        identity: Identity::Tokens,
        chain,
        prompt_bytes: bytes,
        // One token more than the blocks: an engine computes the last one in any case.
        prompt_tokens: Some(16 * blocks as u32 + 1),
        ..guest(id)
    }
}

fn stored(blocks: usize) -> KvEvent {
    KvEvent::Stored(Stored {
        hashes: (1..=blocks as u64).collect(),
        tokens: tokens(blocks),
        block_size: 16,
        root_seed: SEED,
        ..Stored::default()
    })
}

fn gone(from: u64, to: u64) -> KvEvent {
    KvEvent::Removed(Removed {
        hashes: (from..=to).rev().collect(),
        ..Removed::default()
    })
}

impl Table {
    fn events(&mut self, slot: usize, event: KvEvent) -> Vec<Effect> {
        let batch = Box::new(KvBatch {
            events: alloc::vec![event],
        });
        self.send(Input::KvEvents {
            worker: self.workers[slot],
            rank: None,
            batch,
        })
    }

    fn kv_state(&mut self, slot: usize, state: KvState) -> Vec<Effect> {
        self.send(Input::KvState {
            worker: self.workers[slot],
            rank: None,
            state,
        })
    }

    /// Predicted cached tokens of a prompt of that many blocks in slot 0, and why.
    fn asks(&mut self, id: u64, blocks: usize) -> (u32, PredictionSource) {
        self.always(0, Duration::ZERO);
        let decision = self.seat(told(id, blocks));
        self.send(Input::Cancel(RequestId(id)));
        (decision.predicted_cached_tokens, decision.belief.source)
    }

    fn answer(&mut self, id: u64, blocks: usize, cached: u32) -> u32 {
        self.always(0, Duration::ZERO);
        let decision = self.settle(told(id, blocks));
        let usage = Usage {
            cached_tokens: Some(cached),
            ..Usage::default()
        };
        self.send(Input::Finished {
            attempt: decision.attempt,
            usage,
            served: true,
        });
        assert_eq!(
            decision.prediction_error(&usage),
            Some(i64::from(decision.predicted_cached_tokens) - i64::from(cached))
        );
        decision.predicted_cached_tokens
    }
}

fn table() -> Table {
    let mut table = Table::new(config(), 2, Seats::default());
    table.at(100.0);
    table
}

#[test]
fn events_alone_make_a_worker_warm() {
    let mut table = table();
    table.events(0, stored(6));
    assert_eq!(table.asks(1, 10), (96, PredictionSource::Observed));
    table.always(1, Duration::ZERO);
    let elsewhere = table.seat(told(2, 10));
    assert_eq!(elsewhere.belief.source, PredictionSource::None);
    assert_eq!(table.scheduler.workers(table.now)[0].observed_blocks, 6);
}

#[test]
fn a_prediction_closes_the_race_and_then_lapses() {
    // Dispatched at 100, first token at 110; then one question.
    let asked_at = |seconds: f64| {
        let mut table = table();
        table.kv_state(0, KvState::Live);
        table.always(0, Duration::ZERO);
        table.settle(told(1, 10));
        table.at(seconds.min(110.0)).tick();
        if seconds > 110.0 {
            table.send(Input::FirstToken(first(1)));
        }
        table.at(seconds).asks(2, 10)
    };
    assert_eq!(asked_at(109.0), (160, PredictionSource::Predicted));
    assert_eq!(asked_at(112.9), (160, PredictionSource::Predicted));
    // No event said so within 3 seconds after the first token.
    assert_eq!(asked_at(113.1), (0, PredictionSource::None));
    let mut table = table();
    table.kv_state(0, KvState::Live);
    // Where there are no events, it lives on.
    table.always(1, Duration::ZERO);
    table.settle(told(5, 10));
    table.send(Input::FirstToken(first(5)));
    table.at(500.0);
    assert_eq!(table.seat(told(6, 10)).predicted_cached_tokens, 160);
}

#[test]
fn what_the_worker_removed_is_not_predicted_back() {
    let mut table = table();
    table.events(0, stored(10));
    table.always(0, Duration::ZERO);
    table.settle(told(1, 10));
    table.send(Input::FirstToken(first(1)));
    table.events(0, gone(6, 10));
    assert_eq!(table.asks(2, 10), (80, PredictionSource::Observed));
    // A dispatch computes it again.
    table.settle(told(3, 10));
    assert_eq!(table.asks(4, 10), (160, PredictionSource::Predicted));
}

#[test]
fn a_new_life_is_cold_and_told_once() {
    let mut table = table();
    table.events(0, stored(10));
    table.always(0, Duration::ZERO);
    table.settle(told(1, 10));
    table.finish(first(1));
    let epoch = Effect::Epoch {
        worker: table.workers[0],
        epoch: 1,
        read_again: false,
    };
    assert_eq!(table.kv_state(0, KvState::Restarted), [epoch]);
    assert_eq!(table.asks(2, 10), (0, PredictionSource::None));
    assert_eq!(table.scheduler.kv_counts().cleared, 1);
    table.events(0, stored(4));
    assert_eq!(table.asks(3, 10), (64, PredictionSource::Observed));
    // Noticed in another way, all the same.
    table.report(0, Report::Alive);
    table.report(0, Report::Dead { refused: true });
    table.report(0, Report::Alive);
    assert_eq!(table.asks(4, 10), (0, PredictionSource::None));
}

#[test]
fn a_cleared_cache_takes_predictions_with_it() {
    let mut table = table();
    table.events(0, stored(4));
    table.always(0, Duration::ZERO);
    table.settle(told(1, 10));
    table.events(0, KvEvent::Cleared);
    assert_eq!(table.asks(2, 10), (0, PredictionSource::None));
}

/// A full cache of 12 blocks (one more is the engine's own): 6 of one conversation, then 6 of another.
/// What comes next needs 4, of 49 tokens and the answer's first: the ends of the first conversation go.
#[test]
fn what_goes_for_others_is_not_promised() {
    let seats = Seats {
        kv_tokens: Some(13 * 16),
        ..Seats::default()
    };
    let other = |first: u32| -> Vec<u32> { (first..first + 48).collect() };
    let third = |id: u64| {
        let mut builder = ChainBuilder::new(SEED, 64);
        builder.push_tokens(&other(9_000));
        let chain = builder.finish().0;
        Arrival {
            chain,
            prompt_tokens: Some(49),
            ..told(id, 3)
        }
    };
    let stores = |first: u64, tokens: Vec<u32>| {
        KvEvent::Stored(Stored {
            hashes: (first..first + tokens.len() as u64 / 16).collect(),
            tokens,
            block_size: 16,
            root_seed: SEED,
            ..Stored::default()
        })
    };
    let full = || {
        let mut table = Table::new(config(), 1, seats);
        table.at(100.0);
        table.events(0, stored(6));
        table.events(0, stores(101, other(5_000)));
        table.events(0, stores(201, other(6_000)));
        assert_eq!(table.asks(1, 10), (96, PredictionSource::Observed));
        table.settle(third(2));
        table
    };
    let mut table = full();
    assert_eq!(table.asks(3, 10), (32, PredictionSource::Observed));
    let belief = table.seat(told(4, 10)).belief;
    assert_eq!((belief.observed, belief.leaving, belief.blocks), (6, 4, 2));
    table.send(Input::Cancel(RequestId(4)));
    // It happens as it was said.
    table.events(0, gone(3, 6));
    table.events(0, stores(301, other(9_000)));
    assert_eq!(table.asks(5, 10), (32, PredictionSource::Observed));
    assert_eq!(table.scheduler.workers(table.now)[0].leaving_blocks, 0);
    // It does not happen: the request ends, and no event comes.
    let mut table = full();
    table.finish(first(2));
    table.at(103.9).tick();
    assert_eq!(table.asks(6, 10), (96, PredictionSource::Observed));
}

#[test]
fn uncertain_workers_are_predicted_as_without_events() {
    let mut table = table();
    table.events(0, stored(8));
    table.kv_state(0, KvState::Uncertain);
    assert_eq!(table.asks(1, 10), (0, PredictionSource::None));
    table.settle(told(2, 10));
    table.finish(first(2));
    table.at(300.0);
    assert_eq!(table.asks(3, 10), (160, PredictionSource::Predicted));
    assert_eq!(table.scheduler.workers(table.now)[0].events.uncertain, 1);
}

#[test]
fn too_much_at_once_is_not_half_taken() {
    let mut table = table();
    table.events(0, stored(KV_BLOCKS_AT_ONCE + 1));
    let view = &table.scheduler.workers(table.now)[0];
    assert_eq!((view.observed_blocks, view.events.uncertain), (0, 1));
}

#[test]
fn removal_leaves_nothing_observed() {
    let mut table = table();
    table.events(0, stored(8));
    let old = table.workers[0];
    table.send(Input::Fleet(FleetChange::Remove(old)));
    table.add(Seats::default(), true);
    assert_eq!(table.asks(1, 10), (0, PredictionSource::None));
    // Late events of the old one are nobody's.
    table.events(0, stored(8));
    assert_eq!(table.asks(2, 10), (0, PredictionSource::None));
}

#[test]
fn a_worker_that_never_caches_is_found_out() {
    let mut table = table();
    let believed: Vec<u32> = (0..10).map(|id| table.answer(id, 10, 0)).collect();
    // The first is cold by itself; then eight find nothing of what was predicted.
    assert_eq!(believed, [0, 160, 160, 160, 160, 160, 160, 160, 160, 0]);
    assert!(table.scheduler.workers(table.now)[0].not_caching);
    assert_eq!(table.answer(20, 10, 144), 0);
    assert_eq!(table.asks(21, 10), (160, PredictionSource::Predicted));
}

/// Answers to requests that forbid the cache made it look cold for everybody.
#[test]
fn who_does_not_read_the_cache_proves_nothing_of_it() {
    let mut table = table();
    table.answer(0, 10, 0);
    for id in 1..20 {
        table.always(0, Duration::ZERO);
        let mut guest = told(id, 10);
        guest.reads_cache = false;
        let decision = table.settle(guest);
        assert_eq!(decision.predicted_cached_tokens, 0);
        assert_eq!(decision.belief.source, PredictionSource::None);
        assert_eq!(decision.belief.predicted, 10, "it is there all the same");
        table.send(Input::Finished {
            attempt: decision.attempt,
            usage: Usage {
                prompt_tokens: Some(160),
                cached_tokens: Some(0),
                output_tokens: None,
            },
            served: true,
        });
    }
    assert_eq!(table.asks(30, 10), (160, PredictionSource::Predicted));
    assert!(!table.scheduler.workers(table.now)[0].not_caching);
}

/// One restart is seen by probes, by the start time and by the events, in any order: the cache began
/// one new life, not three.
#[test]
fn a_restart_seen_in_three_ways_is_one() {
    type Sign = fn(&mut Table) -> Vec<Effect>;
    let events: Sign = |table| table.kv_state(0, KvState::Restarted);
    let probes: Sign = |table| {
        let mut effects = table.report(0, Report::Dead { refused: true });
        effects.extend(table.report(0, Report::Loading));
        effects.extend(table.report(0, Report::Alive));
        effects
    };
    let start: Sign = |table| table.report(0, started(2.0));
    let back: Sign = |table| table.report(0, Report::Alive);
    let gone_then_start: Sign = |table| {
        table.report(0, Report::Dead { refused: true });
        table.report(0, started(2.0))
    };
    // Events of the new life, where others told of it first, are read again without a word.
    for signs in [
        [events, probes],
        [events, start],
        [probes, start],
        [gone_then_start, back],
    ] {
        let mut table = table();
        table.report(0, Report::Alive);
        table.report(0, started(1.0));
        table.events(0, stored(10));
        let mut effects = Vec::new();
        for sign in signs {
            effects.extend(sign(&mut table));
        }
        let epochs = effects.iter().filter(|e| matches!(e, Effect::Epoch { .. }));
        assert_eq!(epochs.count(), 1, "{effects:?}");
        assert_eq!(table.asks(1, 10), (0, PredictionSource::None));
        // The next one counts again.
        table.report(0, Report::Alive);
        let second = |effect: &Effect| matches!(effect, Effect::Epoch { epoch: 2, .. });
        assert!(probes(&mut table).iter().any(second));
    }
}

fn started(at: f64) -> Report {
    Report::Gauges(Gauges {
        started: Some(at),
        ..Gauges::default()
    })
}
