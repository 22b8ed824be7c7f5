//! An engine reduced to what a queue sees of it: so many seats, each taken for a while.
//!
//! A job that comes while all seats are taken waits inside, first come first served. The first token comes when the
//! seat is taken; the cache (least recently used block first, as the engine model has it) says what was warm then.
//! Warmth makes nothing faster here: so waits follow from the queue alone, and reuse from the placement alone.

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::HashMap;
use maitred_core::pool::Gauges;
use maitred_core::request::{BlockHash, Failure, Usage};
use maitred_core::rng::Rng;
use maitred_core::time::Nanos;
use maitred_enginesim::model::KvCache;
use rustc_hash::FxBuildHasher;

use super::engine::{Engine, Job, Progress, Service};

/// A drawn service is at most so many times the mean.
const DRAWN_MOST: f64 = 4.0;

#[derive(Debug)]
struct Seated {
    until: Nanos,
    usage: Usage,
    blocks: Vec<u32>,
}

#[derive(Debug)]
struct Waiting {
    id: u64,
    chain: Vec<BlockHash>,
    prompt_tokens: u32,
    output_tokens: u32,
}

/// See the module.
#[derive(Debug)]
pub struct SeatsEngine {
    slots: usize,
    service: Service,
    block_tokens: u32,
    cache: KvCache,
    rng: Rng,
    seated: HashMap<u64, Seated, FxBuildHasher>,
    waiting: VecDeque<Waiting>,
    /// First tokens that were not told yet.
    begun: Vec<u64>,
}

impl SeatsEngine {
    /// An empty one.
    #[must_use]
    pub fn new(slots: u32, service: Service, block_tokens: u32, kv_tokens: u64, seed: u64) -> Self {
        let blocks = kv_tokens / u64::from(block_tokens.max(1));
        Self {
            slots: slots.max(1) as usize,
            service,
            block_tokens: block_tokens.max(1),
            cache: KvCache::new(usize::try_from(blocks).unwrap_or(usize::MAX)),
            rng: Rng::new(seed),
            seated: HashMap::with_hasher(FxBuildHasher),
            waiting: VecDeque::new(),
            begun: Vec::new(),
        }
    }

    fn duration(&mut self) -> Duration {
        match self.service {
            Service::Fixed(time) => time,
            Service::Drawn(mean) => {
                // 53 random bits: never 1, so the logarithm is finite.
                let unit = (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
                mean.mul_f64((-(1.0 - unit).ln()).min(DRAWN_MOST))
            }
        }
    }

    fn seat(&mut self, now: Nanos) {
        while self.seated.len() < self.slots {
            let Some(job) = self.waiting.pop_front() else {
                return;
            };
            // The last prompt token is always computed.
            let whole = job.prompt_tokens.saturating_sub(1) / self.block_tokens;
            let usable = &job.chain[..job.chain.len().min(whole as usize)];
            let (matched, _) = self.cache.matched(usable);
            let mut blocks = Vec::with_capacity(job.chain.len());
            for hash in &usable[..matched] {
                blocks.extend(self.cache.share(*hash));
            }
            for hash in &job.chain[matched..] {
                let Some((block, _)) = self.cache.take() else {
                    break;
                };
                self.cache.store(block, *hash);
                blocks.push(block);
            }
            let usage = Usage {
                prompt_tokens: Some(job.prompt_tokens),
                cached_tokens: Some(matched as u32 * self.block_tokens),
                output_tokens: Some(job.output_tokens),
            };
            let until = now + self.duration();
            let seated = Seated {
                until,
                usage,
                blocks,
            };
            self.seated.insert(job.id, seated);
            self.begun.push(job.id);
        }
    }

    fn leave(&mut self, id: u64) -> Option<Usage> {
        let gone = self.seated.remove(&id)?;
        // From the tail, so that the beginning is forgotten last.
        for block in gone.blocks.into_iter().rev() {
            self.cache.release(block);
        }
        Some(gone.usage)
    }
}

impl Engine for SeatsEngine {
    fn submit(&mut self, now: Nanos, job: Job<'_>) -> Result<(), Failure> {
        self.waiting.push_back(Waiting {
            id: job.id,
            chain: job.chain.to_vec(),
            prompt_tokens: job.prompt_tokens,
            output_tokens: job.output_tokens,
        });
        self.seat(now);
        Ok(())
    }

    fn cancel(&mut self, now: Nanos, id: u64) {
        self.waiting.retain(|job| job.id != id);
        self.begun.retain(|begun| *begun != id);
        if self.leave(id).is_some() {
            self.seat(now);
        }
    }

    fn advance(&mut self, now: Nanos, said: &mut Vec<Progress>) -> Option<Nanos> {
        said.extend(self.begun.drain(..).map(Progress::FirstToken));
        let mut done: Vec<(Nanos, u64)> = self
            .seated
            .iter()
            .filter(|(_, seated)| seated.until <= now)
            .map(|(id, seated)| (seated.until, *id))
            .collect();
        done.sort_unstable();
        for (_, id) in done {
            if let Some(usage) = self.leave(id) {
                said.push(Progress::Finished(id, usage));
            }
        }
        self.seat(now);
        said.extend(self.begun.drain(..).map(Progress::FirstToken));
        self.seated.values().map(|seated| seated.until).min()
    }

    fn gauges(&self) -> Gauges {
        Gauges {
            running: Some(self.seated.len() as u32),
            waiting: Some(self.waiting.len() as u32),
            kv_usage: Some(self.cache.used() as f64 / self.cache.total().max(1) as f64),
            ..Gauges::default()
        }
    }
}
