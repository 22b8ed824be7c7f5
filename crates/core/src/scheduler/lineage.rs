//! What became of each token of a served prompt, and what staying with the warmest would have meant.

use super::Scheduler;
use super::request::{Attempt, Request};
use crate::decision::{Reason, Stay};
use crate::input::Effect;
use crate::miss::{Moved, Served};
use crate::place::Candidate;
use crate::request::{Identity, Usage};
use crate::time::Nanos;
use alloc::vec::Vec;
use core::time::Duration;

impl Scheduler {
    /// The warmest of those who could take it, where the chosen one holds less.
    pub(super) fn stay(&self, request: &Request, chosen: &Candidate, now: Nanos) -> Option<Stay> {
        let candidates = self.scratch.candidates.iter();
        let warmest = candidates
            .filter(|c| c.matched_tokens > chosen.matched_tokens)
            .max_by_key(|c| (c.matched_tokens, c.seat))?;
        let (prefill, _) = self.lease_tokens(request, warmest.matched_tokens);
        let context = u64::from(request.prompt_tokens);
        let seconds = || warmest.first_token_seconds(&self.rates(now), prefill, context);
        Some(Stay {
            worker: warmest.worker,
            matched_tokens: warmest.matched_tokens,
            first_token_expected: warmest
                .seat
                .then(seconds)
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
        })
    }

    /// Why it goes elsewhere than its session's home, should it do so; `held`: it waited for a seat.
    pub(super) fn why_moved(
        &self,
        request: &Request,
        reason: Reason,
        held: bool,
        now: Nanos,
    ) -> Moved {
        if request.attempts > 1 {
            return Moved::Retry;
        }
        let home = request.guest.session.and_then(|k| self.homes.get(k, now));
        if let Some(home) = home {
            let candidates = &self.scratch.candidates;
            let seat = candidates.iter().find(|c| c.worker == home.worker);
            let worker = self.fleet.get(home.worker);
            match seat.map(|candidate| candidate.seat) {
                Some(false) if held => return Moved::HoldExpired,
                Some(false) => return Moved::Full,
                Some(true) => {}
                None if worker.is_some_and(|w| w.health.draining()) => return Moved::Draining,
                None if worker.is_none_or(|w| !w.health.takes_work(now)) => return Moved::Down,
                None => {}
            }
        }
        match reason {
            Reason::Escape | Reason::Bounded => Moved::Escape,
            Reason::HomeUnavailable => Moved::Full,
            _ => Moved::Policy,
        }
    }

    /// A served attempt: a cause for each token that was not cached.
    pub(super) fn account(
        &mut self,
        request: &Request,
        attempt: &Attempt,
        usage: Usage,
        now: Nanos,
        effects: &mut Vec<Effect>,
    ) {
        let guest = &request.guest;
        let worker = attempt.lease.worker;
        let prompt = usage.prompt_tokens.unwrap_or(request.prompt_tokens);
        let block_tokens = match guest.identity {
            Identity::Tokens => f64::from(self.config.token_block),
            Identity::Bytes if guest.prompt_bytes == 0 => 1.0,
            Identity::Bytes => {
                let bytes = f64::from(self.config.block_bytes);
                bytes * f64::from(prompt) / guest.prompt_bytes as f64
            }
        };
        let served = Served {
            chain: &guest.chain,
            identity: guest.identity,
            block_tokens,
            prompt_tokens: prompt,
            cached_tokens: usage.cached_tokens,
            reads_cache: guest.reads_cache,
            cache_block: self.observed.block_size(worker.slot),
            turn: guest.turn,
            scope: guest.scope,
            worker,
            epoch: self.fleet.get(worker).map_or(0, |worker| worker.epoch),
            why: attempt.why,
            dispatched: attempt.dispatched,
            ended: now,
        };
        // Of several prompts in one request only the first is known by its chain.
        let session = guest.session.filter(|_| guest.extra_prompts == 0);
        effects.push(Effect::Account {
            attempt: attempt.id,
            misses: self.lineages.served(session, &served),
        });
    }
}
