//! What workers tell beside their answers, and what happens to them.

use maitred_core::ids::{AttemptId, RequestId};
use maitred_core::input::Input;
use maitred_core::limits::KV_BLOCKS_AT_ONCE;
use maitred_core::pool::{FleetChange, Gauges, Report};
use maitred_core::prefix::{ChainBuilder, KvBatch, KvState};
use maitred_core::request::{BlockHash, Failure};
use maitred_core::rng::mix;
use maitred_core::time::Nanos;

use super::{Live, World, job_id};
use crate::sim::batch::{ROOT_SEED, tokens};
use crate::sim::events::Event;
use crate::sim::setup::FleetEvent;
use crate::sim::workload::Ask;

/// Bytes of a token in a chain.
const TOKEN_BYTES: usize = 4;

impl World<'_> {
    /// Looks at all engines; what is seen reaches the scheduler later.
    pub(super) fn sample(&mut self, now: Nanos) {
        let Some(reports) = self.reports else {
            return;
        };
        for (index, worker) in self.workers.iter().enumerate() {
            if worker.gone {
                continue;
            }
            let report = if worker.down {
                Report::Dead { refused: true }
            } else {
                Report::Gauges(Gauges {
                    started: Some(f64::from(worker.life)),
                    ..worker.engine.gauges()
                })
            };
            let event = Event::Heard {
                worker: index,
                report,
            };
            self.events.push(now + reports.delay, event);
        }
        // Where all that is left to happen are looks at idle engines, nothing is left to happen.
        if self.until.is_some() || !self.live.is_empty() || self.expected > 0 {
            self.events.push(now + reports.every, Event::Sample);
        }
    }

    /// Sends what happened to a worker's cache on its way.
    pub(super) fn overhear(&mut self, index: usize, now: Nanos) {
        let Some(delay) = self.kv_events else {
            return;
        };
        let worker = &mut self.workers[index];
        let batch = worker.engine.take_kv_events();
        if batch.events.is_empty() {
            return;
        }
        let event = Event::Kv {
            worker: index,
            life: worker.life,
            batch: Box::new(batch),
        };
        self.events.push(now + delay, event);
    }

    pub(super) fn hear_kv(&mut self, index: usize, life: u32, batch: KvBatch, now: Nanos) {
        let worker = &self.workers[index];
        // What a dead process sent is lost with its connection.
        if worker.gone || worker.life != life {
            return;
        }
        let worker = worker.id;
        for part in batch.split(KV_BLOCKS_AT_ONCE) {
            let input = Input::KvEvents {
                worker,
                rank: None,
                batch: Box::new(part),
            };
            self.tell(input, now);
        }
    }

    /// The chain as the scheduler gets it: where engines tell of tokens, it is made of the same tokens.
    pub(super) fn chain(&self, ask: &Ask, request: RequestId) -> Vec<BlockHash> {
        if self.kv_events.is_none() {
            return ask.chain.clone();
        }
        let block = self.token_block as usize;
        let tail = job_id(AttemptId { request, number: 1 });
        let mut builder = ChainBuilder::new(ROOT_SEED, TOKEN_BYTES * block);
        builder.push_tokens(&tokens(&ask.chain, block, ask.prompt_tokens, tail));
        builder.finish().0
    }

    pub(super) fn change_fleet(&mut self, event: FleetEvent, now: Nanos) {
        match event {
            FleetEvent::Lose(worker) => {
                if let Some(worker) = self.workers.get_mut(worker) {
                    worker.gone = true;
                    worker.number += 1;
                    let change = FleetChange::Remove(worker.id);
                    self.tell(Input::Fleet(change), now);
                }
            }
            FleetEvent::Drain(worker) => {
                if let Some(id) = self.workers.get(worker).map(|worker| worker.id) {
                    self.tell(Input::Fleet(FleetChange::Drain(id, None)), now);
                }
            }
            FleetEvent::Restart(worker, down) => {
                if self.workers.get(worker).is_some_and(|w| !w.gone && !w.down) {
                    self.die(worker, now);
                    self.events.push(now + down, Event::Back(worker));
                }
            }
            FleetEvent::Join(kind) => self.join(&kind, now),
        }
    }

    /// The process is gone: connections break, and nobody answers.
    fn die(&mut self, index: usize, now: Nanos) {
        let worker = &mut self.workers[index];
        worker.down = true;
        worker.number += 1;
        worker.next = None;
        worker.life += 1;
        self.preemptions += worker.engine.preemptions();
        worker.engine = worker.kind.build(mix(self.seed ^ mix(index as u64)));
        if self.kv_events.is_some() {
            worker.engine.note_kv_events();
        }
        let on_it = |(_, live): &(&RequestId, &Live)| {
            live.attempt.is_some_and(|(_, worker)| worker == index)
        };
        let mut broken: Vec<(AttemptId, bool)> = (self.live.iter())
            .filter(on_it)
            .filter_map(|(_, live)| Some((live.attempt?.0, live.outcome.first_token.is_some())))
            .collect();
        broken.sort_unstable();
        for (attempt, begun) in broken {
            let failure = if begun {
                Failure::Truncated
            } else {
                Failure::Reset
            };
            self.fail(attempt, failure, !begun, now);
        }
        self.settle(now);
    }

    pub(super) fn come_back(&mut self, index: usize, now: Nanos) {
        let worker = &mut self.workers[index];
        worker.down = false;
        if worker.gone || self.kv_events.is_none() {
            return;
        }
        let worker = worker.id;
        for state in [KvState::Restarted, KvState::Live] {
            let input = Input::KvState {
                worker,
                rank: None,
                state,
            };
            self.tell(input, now);
        }
    }
}
