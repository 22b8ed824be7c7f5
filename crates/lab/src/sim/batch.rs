//! The engine model of `maitred-enginesim` in virtual time.
//!
//! The model hashes token ids, the lab has chained blocks: a block's tokens are drawn from its hash, and what follows
//! the last full block from the job's id. So equal chains find each other and nothing else does.

use maitred_core::pool::Gauges;
use maitred_core::request::{Failure, Usage};
use maitred_core::rng::mix;
use maitred_core::time::Nanos;
use maitred_enginesim::model;

use super::engine::{Engine, Job, Progress};

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

    fn tokens(&self, job: &Job<'_>) -> Vec<u32> {
        let block = self.engine.config().block_tokens;
        let prompt = (job.prompt_tokens as usize).max(1);
        let mut tokens = Vec::with_capacity(prompt);
        for hash in job.chain {
            let room = prompt - tokens.len();
            // The two halves of the hash identify the block; the rest only has to be the same each time.
            let words = [*hash as u32, (*hash >> 32) as u32];
            tokens.extend((0..block.min(room)).map(|at| words[at & 1]));
        }
        let tail = mix(job.id) as u32;
        tokens.resize(prompt, tail);
        tokens
    }
}

impl Engine for Batch {
    fn submit(&mut self, now: Nanos, job: Job<'_>) -> Result<(), Failure> {
        let tokens = self.tokens(&job);
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
}
