//! What workers are believed to hold: by their own events, and by our own dispatches.
//!
//! Belief is the larger of the two. A dispatch predicts residency; where the worker's events flow
//! it does so only until they had the time to say it themselves (`predicted_life` after the first
//! token), and never brings back what they just said is gone. Without events it predicts until
//! it is evicted or refuted; so it does while a rank of the worker is uncertain, because then the
//! events since the loss are true, but not all.
//!
//! What a full worker is about to evict for requests that were dispatched to it is not believed to
//! be there, although no event said so yet: see `prefix/observed/leaving.rs`.

use super::Scheduler;
use super::candidates::Scratch;
use super::request::{Attempt, Request};
use crate::decision::{Belief, PredictionSource};
use crate::ids::WorkerId;
use crate::input::Effect;
use crate::limits::KV_BLOCKS_AT_ONCE;
use crate::pool::worker::Worker;
use crate::prefix::observed::{Claiming, Flow, KvBatch, KvState};
use crate::request::{BlockHash, Identity};
use crate::time::Nanos;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;

/// Predictions are looked through so many times in their life.
const LAPSES_PER_LIFE: u32 = 4;

/// So many predicted blocks that were not found are no evidence of a cache that is off.
const BLOCKS_MISSED: u32 = 2;

/// Whether the worker's events say all there is to say.
fn flows(flow: Flow) -> bool {
    flow.live > 0 && flow.uncertain == 0
}

impl Scheduler {
    pub(super) fn kv_events(
        &mut self,
        id: WorkerId,
        rank: Option<u32>,
        batch: KvBatch,
        now: Nanos,
    ) {
        if self.fleet.get(id).is_none() {
            return;
        }
        if batch.blocks() > KV_BLOCKS_AT_ONCE {
            self.observed.set_state(id.slot, rank, KvState::Uncertain);
            return;
        }
        let note = self.index.blocks(id.slot) > 0;
        if self.observed.apply(id.slot, rank, batch, note, now) {
            self.forget_predicted(id);
        }
    }

    pub(super) fn kv_state(
        &mut self,
        id: WorkerId,
        rank: Option<u32>,
        state: KvState,
        effects: &mut Vec<Effect>,
    ) {
        let Some(worker) = self.fleet.get_mut(id) else {
            return;
        };
        if state != KvState::Restarted {
            self.observed.set_state(id.slot, rank, state);
            return;
        }
        // The start time that it tells next belongs to this new life.
        worker.forget_started();
        worker.health.renewed();
        if self.observed.only_rank(id.slot, rank) {
            self.observed.set_state(id.slot, rank, KvState::Live);
            self.restart(id, true, effects);
        } else {
            // The other ranks live on; which of them our dispatches went to is not known.
            self.observed.set_state(id.slot, rank, KvState::Restarted);
            self.forget_predicted(id);
        }
    }

    /// Who holds how much of the request's chain, by our word and by theirs.
    pub(super) fn look_up(&mut self, request: &Request, scratch: &mut Scratch, now: Nanos) {
        let chain = &request.guest.chain;
        if self.observed.any() {
            self.lapse(now);
            self.observed.matches(chain, &mut scratch.sightings);
        } else {
            scratch.sightings.clear();
        }
        self.index.matches(chain, &mut scratch.matches);
    }

    /// What the look-up says of one worker.
    pub(super) fn belief(
        &self,
        worker: &Worker,
        request: &Request,
        scratch: &Scratch,
        now: Nanos,
    ) -> Belief {
        let slot = worker.id.slot;
        let predicted = scratch.matches.blocks(slot);
        let mut belief = Belief {
            blocks: predicted,
            predicted,
            ..Belief::default()
        };
        if self.not_caching(worker) {
            belief.blocks = 0;
        }
        let flow = self.observed.flow(slot);
        if flow != Flow::default() {
            let seen = scratch.sightings.get(slot);
            belief.observed = seen.blocks;
            (belief.device, belief.host) = (seen.device, seen.host);
            (belief.rank, belief.uncertain) = (seen.rank, flow.uncertain > 0);
            belief.age = self.observed.heard(slot).map(|at| now.since(at));
            let next = request.guest.chain.get(seen.blocks as usize);
            let gone = next.is_some_and(|block| self.observed.removed_lately(slot, *block, now));
            if gone || belief.blocks <= seen.blocks {
                let leading = request.guest.chain.get(..seen.blocks as usize);
                belief.leaving = leading.map_or(0, |l| self.observed.leaving(slot, l));
                belief.blocks = seen.blocks - belief.leaving;
            }
            if request.guest.identity == Identity::Tokens {
                let prompt = request.prompt_tokens;
                belief.blocks = self.observed.usable(slot, belief.blocks, prompt);
            }
        }
        if !request.guest.reads_cache {
            belief.blocks = 0;
        }
        belief.source = match belief.blocks {
            0 => PredictionSource::None,
            blocks if blocks + belief.leaving <= belief.observed => PredictionSource::Observed,
            _ => PredictionSource::Predicted,
        };
        belief
    }

    /// The same for the worker that was chosen from the last look-up.
    pub(super) fn belief_of(&self, id: WorkerId, request: &Request, now: Nanos) -> Belief {
        let worker = self.fleet.get(id);
        worker.map_or_else(Belief::default, |worker| {
            self.belief(worker, request, &self.scratch, now)
        })
    }

    /// A dispatch: the worker will hold the chain.
    pub(super) fn predict(
        &mut self,
        id: WorkerId,
        chain: &[BlockHash],
        belief: Belief,
        now: Nanos,
    ) {
        if let Some(block) = chain.get(belief.observed as usize)
            && self.observed.any()
        {
            self.observed.computes(id.slot, *block);
        }
        self.index.insert(id.slot, chain, now);
    }

    /// A dispatch to a full worker: others' blocks go before the worker's events can say so.
    pub(super) fn claim(&mut self, request: &Request) {
        let Some(attempt) = &request.attempt else {
            return;
        };
        let guest = &request.guest;
        let id = attempt.lease.worker;
        if !self.observed.any() || guest.identity != Identity::Tokens {
            return;
        }
        let Some(worker) = self.fleet.get(id) else {
            return;
        };
        let Some(capacity_tokens) = worker.seats.kv_tokens.or(worker.kv_tokens) else {
            return;
        };
        let missing = self.observed.claim(&Claiming {
            slot: id.slot,
            attempt: attempt.id,
            chain: &guest.chain,
            matched: attempt.belief.observed - attempt.belief.leaving,
            prompt_tokens: request.prompt_tokens,
            capacity_tokens,
            running: worker.ledger.running.saturating_sub(1),
        });
        if missing == 0 {
            return;
        }
        let mut in_use: HashSet<BlockHash, FxBuildHasher> = HashSet::default();
        in_use.extend(&guest.chain);
        for claimant in self.observed.claimants(id.slot) {
            if let Some(other) = self.requests.get(&claimant.request) {
                in_use.extend(&other.guest.chain);
            }
        }
        self.observed.give_way(id.slot, missing, &in_use);
    }

    /// The first token came: the chain is there, and events will say so within the life of the
    /// prediction. Not where belief in the worker was taken back since the dispatch.
    pub(super) fn prediction_begins(
        &mut self,
        id: WorkerId,
        chain: &[BlockHash],
        taken_back: u32,
        now: Nanos,
    ) {
        let current = self.fleet.get(id).map(|worker| worker.taken_back);
        if flows(self.observed.flow(id.slot)) && current == Some(taken_back) {
            self.index.insert(id.slot, chain, now);
        }
    }

    /// Whether the worker's answers say that it caches nothing.
    pub(super) fn not_caching(&self, worker: &Worker) -> bool {
        worker.cold_answers >= self.config.not_caching_after
    }

    /// Learns from one answer whether the worker caches at all.
    pub(super) fn count_cold(&mut self, attempt: &Attempt, cached: u32) {
        let predicted = attempt.belief.predicted;
        let Some(worker) = self.fleet.get_mut(attempt.lease.worker) else {
            return;
        };
        if cached >= self.config.token_block {
            worker.cold_answers = 0;
        } else if predicted > BLOCKS_MISSED {
            worker.cold_answers = worker.cold_answers.saturating_add(1);
        }
    }

    /// Ends predictions that had their time, on workers whose events flow. A prefill that is still
    /// open keeps all that is younger than itself.
    fn lapse(&mut self, now: Nanos) {
        if now < self.lapse_at {
            return;
        }
        self.lapse_at = now + self.config.predicted_life / LAPSES_PER_LIFE;
        self.observed.lapse(now);
        let life = u64::try_from(self.config.predicted_life.as_nanos()).unwrap_or(u64::MAX);
        let Some(before) = now.0.checked_sub(life) else {
            return;
        };
        let mut due: Vec<(WorkerId, Nanos)> = self
            .fleet
            .iter()
            .filter(|w| flows(self.observed.flow(w.id.slot)) && self.index.blocks(w.id.slot) > 0)
            .map(|worker| (worker.id, Nanos(before)))
            .collect();
        if due.is_empty() {
            return;
        }
        for request in self.requests.values() {
            if let Some(attempt) = request.attempt.as_ref().filter(|a| !a.first_token)
                && let Ok(at) = due.binary_search_by_key(&attempt.lease.worker, |(id, _)| *id)
            {
                due[at].1 = due[at].1.min(attempt.dispatched);
            }
        }
        for (id, before) in due {
            self.index.expire(id.slot, before);
        }
    }

    /// The worker's cache was emptied in its life: what we dispatched to it is gone from there.
    fn forget_predicted(&mut self, id: WorkerId) {
        if let Some(worker) = self.fleet.get_mut(id) {
            worker.taken_back = worker.taken_back.wrapping_add(1);
            self.index.forget(id.slot);
        }
    }

    /// Only workers that are there say anything.
    pub(super) fn check_flows(&self) -> Result<(), String> {
        for slot in 0..crate::limits::WORKERS_MAX as u32 {
            let known = self.observed.flow(slot) != Flow::default();
            if known && !self.fleet.iter().any(|worker| worker.id.slot == slot) {
                return Err(format!("slot {slot}: events of a worker that is gone"));
            }
        }
        Ok(())
    }
}
