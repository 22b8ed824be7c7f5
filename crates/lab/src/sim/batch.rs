//! The engine model of `maitred-enginesim` in virtual time.
//!
//! The model hashes token ids, the lab has chained blocks: a block's tokens are drawn from its hash, and what follows
//! the last full block from the job's id. So equal chains find each other and nothing else does.

use maitred_core::pool::Gauges;
use maitred_core::prefix::observed::{KvBatch, KvEvent, Removed, Stored};
use maitred_core::request::{BlockHash, Failure, Usage};
use maitred_core::rng::mix;
use maitred_core::time::Nanos;
use maitred_enginesim::model;

use super::engine::{Engine, Job, Progress};

/// The seed of every chain that is made of tokens here.
pub(super) const ROOT_SEED: u64 = 0;

/// See the module.
#[derive(Debug)]
pub struct Batch {
    engine: model::Engine,
    events: Vec<model::Event>,
}

impl Batch {
    /// An empty engine.
    #[must_use]
    pub fn new(config: model::Config) -> Self {
        Self {
            engine: model::Engine::new(config),
            events: Vec::new(),
        }
    }
}

/// The prompt's tokens. The two halves of a block's hash stand in its tokens, so that equal tokens are equal blocks;
/// what follows the last full block is drawn from `tail`.
#[must_use]
pub(super) fn tokens(chain: &[BlockHash], block: usize, prompt: u32, tail: u64) -> Vec<u32> {
    let prompt = (prompt as usize).max(1);
    let mut tokens = Vec::with_capacity(prompt);
    for hash in chain {
        let room = prompt - tokens.len();
        let words = [*hash as u32, (*hash >> 32) as u32];
        tokens.extend((0..block.min(room)).map(|at| words[at & 1]));
    }
    tokens.resize(prompt, mix(tail) as u32);
    tokens
}

impl Engine for Batch {
    fn submit(&mut self, now: Nanos, job: Job<'_>) -> Result<(), Failure> {
        let block = self.engine.config().block_tokens;
        let tokens = tokens(job.chain, block, job.prompt_tokens, job.id);
        let job = model::Job {
            id: job.id,
            tokens,
            max_tokens: job.output_tokens as usize,
            seed: job.id,
            scope: 0,
            salt: None,
        };
        self.engine.submit(now.0, job).map_err(|error| match error {
            model::SubmitError::QueueFull { .. } => Failure::Saturated,
            _ => Failure::ServerError,
        })
    }

    fn cancel(&mut self, _: Nanos, id: u64) {
        self.engine.cancel(id);
    }

    fn advance(&mut self, now: Nanos, said: &mut Vec<Progress>) -> Option<Nanos> {
        let next = self.engine.step(now.0, &mut self.events);
        for event in self.events.drain(..) {
            match event {
                model::Event::FirstToken { id, .. } => said.push(Progress::FirstToken(id)),
                model::Event::Finished { id, usage, .. } => {
                    let count = |tokens: usize| u32::try_from(tokens).ok();
                    let usage = Usage {
                        prompt_tokens: count(usage.prompt),
                        cached_tokens: count(usage.cached),
                        output_tokens: count(usage.completion),
                    };
                    said.push(Progress::Finished(id, usage));
                }
                model::Event::Token { .. } | model::Event::Preempted { .. } => {}
            }
        }
        next.map(Nanos)
    }

    fn gauges(&self) -> Gauges {
        let metrics = self.engine.metrics();
        Gauges {
            running: u32::try_from(metrics.running).ok(),
            waiting: u32::try_from(metrics.waiting).ok(),
            kv_usage: Some(metrics.blocks_used as f64 / metrics.blocks_total.max(1) as f64),
            ..Gauges::default()
        }
    }

    fn note_kv_events(&mut self) {
        self.engine.note_kv_events();
    }

    fn take_kv_events(&mut self) -> KvBatch {
        let block_size = self.engine.config().block_tokens as u32;
        let told = |event| match event {
            model::KvEvent::Stored {
                hashes,
                parent,
                tokens,
                ..
            } => KvEvent::Stored(Stored {
                hashes,
                parent,
                tokens,
                block_size,
                root_seed: ROOT_SEED,
                ..Stored::default()
            }),
            model::KvEvent::Removed { hash } => KvEvent::Removed(Removed {
                hashes: vec![hash],
                ..Removed::default()
            }),
            model::KvEvent::Cleared => KvEvent::Cleared,
        };
        let events = self.engine.take_kv_events();
        KvBatch {
            events: events.into_iter().map(told).collect(),
        }
    }

    fn preemptions(&self) -> u64 {
        self.engine.metrics().preemptions
    }
}
