//! One engine: jobs come in, steps run, tokens come out.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use xxhash_rust::xxh3::Xxh3;

use super::job::{Event, Job, Metrics, SubmitError, Usage};
use super::kv_log::{KvEvent, KvLog, Run};
use super::{Config, KvCache};
use crate::tokens;

#[derive(Debug)]
struct Seq {
    /// Prompt and what was generated.
    tokens: Vec<u32>,
    prompt: usize,
    max_tokens: usize,
    seed: u64,
    scope: u64,
    salt: Option<Arc<str>>,
    arrived: u64,
    /// Tokens whose KV is in `blocks`.
    computed: usize,
    blocks: Vec<u32>,
    /// Chain over the whole blocks of `tokens`, as far as needed.
    chain: Vec<u64>,
    /// Counted once, at first admission.
    cached: Option<usize>,
}

impl Seq {
    fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    fn decodes(&self) -> bool {
        self.generated() > 0 && self.pending() == 1
    }

    fn extend_chain(&mut self, blocks: usize, block_tokens: usize) {
        while self.chain.len() < blocks {
            let at = self.chain.len() * block_tokens;
            let mut hasher = Xxh3::with_seed(self.scope);
            hasher.update(
                &self
                    .chain
                    .last()
                    .copied()
                    .unwrap_or(self.scope)
                    .to_le_bytes(),
            );
            for token in &self.tokens[at..at + block_tokens] {
                hasher.update(&token.to_le_bytes());
            }
            self.chain.push(hasher.digest());
        }
    }
}

#[derive(Debug)]
struct Slice {
    id: u64,
    tokens: usize,
    decode: bool,
}

#[derive(Debug)]
struct Step {
    end: u64,
    work: Vec<Slice>,
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    kv: KvCache,
    jobs: HashMap<u64, Seq, FxBuildHasher>,
    waiting: VecDeque<u64>,
    /// In order of admission: the last is the youngest.
    running: Vec<u64>,
    step: Option<Step>,
    last_end: u64,
    counters: Metrics,
    /// None: nobody wants to know.
    log: Option<KvLog>,
}

impl Engine {
    /// An empty engine. A zero in `config` that would stop all progress counts as 1.
    #[must_use]
    pub fn new(mut config: Config) -> Self {
        config.block_tokens = config.block_tokens.max(1);
        config.slots = config.slots.max(1);
        config.max_batch_tokens = config.max_batch_tokens.max(1);
        Self {
            kv: KvCache::new(config.blocks()),
            config,
            jobs: HashMap::with_hasher(FxBuildHasher),
            waiting: VecDeque::new(),
            running: Vec::new(),
            step: None,
            last_end: 0,
            counters: Metrics::default(),
            log: None,
        }
    }

    /// The constants in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Longest prompt plus reply this engine can hold, tokens.
    #[must_use]
    pub fn context_tokens(&self) -> usize {
        self.kv.total() * self.config.block_tokens
    }

    /// Puts a job at the end of the waiting queue. Call [`Engine::step`] with the same `now` afterwards.
    ///
    /// # Errors
    /// See [`SubmitError`]; the engine is unchanged then.
    pub fn submit(&mut self, now: u64, job: Job) -> Result<(), SubmitError> {
        let limit = self.context_tokens();
        if job.tokens.is_empty() {
            return Err(SubmitError::Empty);
        }
        if job.tokens.len().saturating_add(job.max_tokens) > limit {
            return Err(SubmitError::TooLong {
                prompt: job.tokens.len(),
                max_tokens: job.max_tokens,
                limit,
            });
        }
        if self.waiting.len() >= self.config.waiting_max {
            return Err(SubmitError::QueueFull {
                limit: self.config.waiting_max,
            });
        }
        if self.jobs.contains_key(&job.id) {
            return Err(SubmitError::Duplicate { id: job.id });
        }
        let mut seq = Seq {
            prompt: job.tokens.len(),
            tokens: job.tokens,
            max_tokens: job.max_tokens,
            seed: job.seed,
            scope: job.scope,
            salt: job.salt,
            arrived: now,
            computed: 0,
            blocks: Vec::new(),
            chain: Vec::new(),
            cached: None,
        };
        // The last prompt token is always computed: its output is the first token.
        seq.extend_chain(
            (seq.prompt - 1) / self.config.block_tokens,
            self.config.block_tokens,
        );
        self.jobs.insert(job.id, seq);
        self.waiting.push_back(job.id);
        Ok(())
    }

    /// Takes a job out, wherever it is. What it computed so far stays findable. False when it is not inside.
    ///
    /// The step in progress keeps its length: a real engine notices between steps, too.
    pub fn cancel(&mut self, id: u64) -> bool {
        let Some(mut seq) = self.jobs.remove(&id) else {
            return false;
        };
        give_back(&mut self.kv, &mut seq);
        self.waiting.retain(|w| *w != id);
        self.running.retain(|r| *r != id);
        if let Some(step) = &mut self.step {
            step.work.retain(|slice| slice.id != id);
        }
        true
    }

    /// Brings the engine to `now`: ends every step that is over, starts the next one, appends what happened to `events`.
    /// Returns when the running step ends, or `None` when there is nothing to do.
    ///
    /// Calls may be late: the next step starts where the last one ended, with the jobs that were there by then.
    pub fn step(&mut self, now: u64, events: &mut Vec<Event>) -> Option<u64> {
        loop {
            match self.step.take() {
                Some(step) if step.end > now => {
                    let end = step.end;
                    self.step = Some(step);
                    return Some(end);
                }
                Some(step) => self.finish(step, events),
                None => {}
            }
            let start = if self.running.is_empty() {
                let front = self.waiting.front()?;
                self.last_end.max(self.jobs.get(front)?.arrived)
            } else {
                self.last_end
            };
            let step = self.begin(start, events)?;
            self.step = Some(step);
        }
    }

    /// Gauges and counters now.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        Metrics {
            running: self.running.len(),
            waiting: self.waiting.len(),
            blocks_used: self.kv.used(),
            blocks_total: self.kv.total(),
            blocks_cached: self.kv.cached(),
            ..self.counters
        }
    }

    /// Forgets the whole prefix cache; running jobs go on.
    pub fn reset_cache(&mut self) {
        self.kv.reset();
        if let Some(log) = &mut self.log {
            log.cleared();
        }
    }

    /// From now on, what happens to the cache is noted for [`Engine::take_kv_events`].
    pub fn note_kv_events(&mut self) {
        self.log.get_or_insert_default();
    }

    /// What happened to the cache since the last call, in order.
    pub fn take_kv_events(&mut self) -> Vec<KvEvent> {
        self.log.as_mut().map(KvLog::take).unwrap_or_default()
    }

    /// What must hold after every call. For tests.
    ///
    /// # Errors
    /// Says what is off.
    pub fn check(&self) -> Result<(), String> {
        self.kv.check()?;
        if self.running.len() > self.config.slots {
            return Err(format!("{} running", self.running.len()));
        }
        if self.running.len() + self.waiting.len() != self.jobs.len() {
            return Err("a job is in no list or in two".to_owned());
        }
        let held: usize = self.jobs.values().map(|s| s.blocks.len()).sum();
        if held < self.kv.used() {
            return Err(format!("{} blocks used, {held} held", self.kv.used()));
        }
        Ok(())
    }

    /// Chooses the next step's work: decodes first, then prefill chunks in order of admission, then new jobs.
    fn begin(&mut self, start: u64, events: &mut Vec<Event>) -> Option<Step> {
        let mut work = Vec::with_capacity(self.running.len() + 1);
        let mut budget = self.config.max_batch_tokens;
        let mut preempted = false;
        for decodes in [true, false] {
            let mut at = 0;
            while at < self.running.len() && budget > 0 {
                let id = self.running[at];
                at += 1;
                let Some(seq) = self.jobs.get(&id) else {
                    continue;
                };
                if seq.decodes() != decodes {
                    continue;
                }
                let tokens = seq.pending().min(budget);
                let need = self.blocks_missing(seq, tokens);
                let mut alive = true;
                while alive && self.kv.free() < need {
                    let Some(victim) = self.running.pop() else {
                        break;
                    };
                    alive = victim != id;
                    preempted = true;
                    budget += self.preempt(victim, &mut work);
                    events.push(Event::Preempted {
                        id: victim,
                        at: start,
                    });
                }
                if alive {
                    budget -= tokens;
                    self.grow(id, need);
                    work.push(Slice {
                        id,
                        tokens,
                        decode: decodes,
                    });
                }
            }
        }
        if !preempted {
            self.admit(start, budget, &mut work);
        }
        self.note_waiting(start);
        debug_assert!(!work.is_empty(), "the oldest job always fits");
        if work.is_empty() {
            return None;
        }
        let prefill = work.iter().filter(|s| !s.decode).map(|s| s.tokens).sum();
        let end = start.saturating_add(self.config.step_ns(self.running.len(), prefill));
        Some(Step { end, work })
    }

    /// Counts those who were there when the step began and have no part in it.
    fn note_waiting(&mut self, start: u64) {
        let there = |id: &&u64| self.jobs.get(*id).is_some_and(|job| job.arrived < start);
        let left = self.waiting.iter().filter(there).take(3).count();
        self.counters.steps_waiting[left] += 1;
    }

    /// Admits waiting jobs, first come first served, while budget, slots and blocks last.
    fn admit(&mut self, start: u64, mut budget: usize, work: &mut Vec<Slice>) {
        // Who comes in the very moment a step begins is in it only if it begins for him: so it does not matter
        // whether the caller tells of the arrival or of the time first.
        let front = self.waiting.front().and_then(|id| self.jobs.get(id));
        let idle = self.running.is_empty() && front.is_some_and(|seq| seq.arrived == start);
        while budget > 0 && self.running.len() < self.config.slots {
            let Some(id) = self.waiting.front().copied() else {
                break;
            };
            let Some(seq) = self.jobs.get_mut(&id) else {
                break;
            };
            if seq.arrived > start || (seq.arrived == start && !idle) {
                break;
            }
            let block_tokens = self.config.block_tokens;
            // After a preemption the generated tokens are looked up again as well.
            let lookup = (seq.tokens.len() - 1) / block_tokens;
            seq.extend_chain(lookup, block_tokens);
            let (matched, matched_free) = self.kv.matched(&seq.chain[..lookup]);
            let tokens = (seq.tokens.len() - matched * block_tokens).min(budget);
            let need = (matched * block_tokens + tokens).div_ceil(block_tokens) - matched;
            if self.kv.free() - matched_free < need {
                break;
            }
            for hash in &seq.chain[..matched] {
                seq.blocks.extend(self.kv.share(*hash));
            }
            seq.computed = matched * block_tokens;
            if seq.cached.is_none() {
                seq.cached = Some(seq.computed);
                self.counters.prefix_queries += seq.prompt as u64;
                self.counters.prefix_hits += seq.computed as u64;
            }
            self.waiting.pop_front();
            self.running.push(id);
            self.grow(id, need);
            budget -= tokens;
            work.push(Slice {
                id,
                tokens,
                decode: false,
            });
        }
    }

    /// Applies a step that is over.
    fn finish(&mut self, step: Step, events: &mut Vec<Event>) {
        self.last_end = step.end;
        self.counters.steps += 1;
        let at = step.end;
        for slice in step.work {
            let id = slice.id;
            let Some(seq) = self.jobs.get_mut(&id) else {
                continue;
            };
            let stored = seq.computed / self.config.block_tokens;
            seq.computed += slice.tokens;
            let whole = seq.computed / self.config.block_tokens;
            seq.extend_chain(whole, self.config.block_tokens);
            let run = Run {
                tokens: &seq.tokens,
                chain: &seq.chain,
                block_tokens: self.config.block_tokens,
                salt: seq.salt.as_ref(),
            };
            for block in stored..whole {
                let new = self.kv.store(seq.blocks[block], seq.chain[block]);
                if let Some(log) = self.log.as_mut().filter(|_| new) {
                    log.stored(&run, block);
                }
            }
            if seq.pending() > 0 {
                continue;
            }
            let made = seq.generated();
            let cached = seq.cached.unwrap_or(0);
            if made < seq.max_tokens {
                let token = tokens::generated(seq.seed, made as u64, made + 1 == seq.max_tokens);
                seq.tokens.push(token);
                self.counters.generation_tokens += 1;
                events.push(if made == 0 {
                    Event::FirstToken {
                        id,
                        at,
                        token,
                        cached,
                    }
                } else {
                    Event::Token { id, at, token }
                });
            }
            if seq.generated() == seq.max_tokens {
                let usage = Usage {
                    prompt: seq.prompt,
                    cached,
                    completion: seq.max_tokens,
                };
                self.counters.finished += 1;
                self.counters.prompt_tokens += usage.prompt as u64;
                if let Some(mut seq) = self.jobs.remove(&id) {
                    give_back(&mut self.kv, &mut seq);
                }
                self.running.retain(|r| *r != id);
                events.push(Event::Finished { id, at, usage });
            }
        }
    }

    fn blocks_missing(&self, seq: &Seq, tokens: usize) -> usize {
        (seq.computed + tokens)
            .div_ceil(self.config.block_tokens)
            .saturating_sub(seq.blocks.len())
    }

    fn grow(&mut self, id: u64, blocks: usize) {
        if let Some(seq) = self.jobs.get_mut(&id) {
            for _ in 0..blocks {
                let Some((block, dropped)) = self.kv.take() else {
                    return;
                };
                seq.blocks.push(block);
                if let Some((log, hash)) = self.log.as_mut().zip(dropped) {
                    log.removed(hash);
                }
            }
        }
    }

    /// Sends a job back to the front of the queue without its blocks. Returns the budget it had in this step.
    fn preempt(&mut self, id: u64, work: &mut Vec<Slice>) -> usize {
        self.counters.preemptions += 1;
        self.waiting.push_front(id);
        if let Some(seq) = self.jobs.get_mut(&id) {
            give_back(&mut self.kv, seq);
            seq.computed = 0;
        }
        let returned = work.iter().filter(|s| s.id == id).map(|s| s.tokens).sum();
        work.retain(|s| s.id != id);
        returned
    }
}

/// Releases the blocks from the tail, so that the beginning, which others may share, is evicted last.
fn give_back(kv: &mut KvCache, seq: &mut Seq) {
    for block in seq.blocks.drain(..).rev() {
        kv.release(block);
    }
}
