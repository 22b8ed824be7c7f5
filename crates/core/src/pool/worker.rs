//! One worker as the scheduler knows it.

use super::health::Health;
use super::learnt::Learnt;
use super::ledger::Ledger;
use super::{Availability, Gauges, RequestLimits, Seats, WorkerSpec};
use crate::cost::Meter;
use crate::ids::{ModelKey, WorkerId};
use crate::request::Arrival;
use crate::time::Nanos;
use alloc::vec::Vec;
use core::time::Duration;

/// The worker's own last word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    /// What it said.
    pub(crate) gauges: Gauges,
    /// When.
    pub(crate) at: Nanos,
    /// Requests on it then that were not ours.
    pub(crate) others: u32,
}

/// A worker, in one life of its slot.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) id: WorkerId,
    pub(crate) identity: u64,
    pub(crate) seats: Seats,
    /// How many requests it runs at once, where that is learnt.
    pub(crate) learnt: Option<Learnt>,
    pub(crate) ledger: Ledger,
    pub(crate) meter: Meter,
    /// How many requests it waits for; None: it takes what it is sent.
    pub(crate) polls: Option<u32>,
    pub(crate) limits: RequestLimits,
    pub(crate) health: Health,
    /// As last told to the caller.
    pub(crate) availability: Availability,
    models: Vec<ModelKey>,
    pub(crate) word: Option<Word>,
    /// KV tokens by its own word.
    pub(crate) kv_tokens: Option<u64>,
    /// When its process started, by its own word.
    started: Option<f64>,
    pub(crate) epoch: u32,
    pub(crate) last_cold: Nanos,
    pub(crate) drain_deadline: Option<Nanos>,
    /// How often belief in its residency was taken back.
    pub(crate) taken_back: u32,
    /// Answers in a row that found nothing of what was predicted.
    pub(crate) cold_answers: u32,
    /// Its entry among the timers.
    pub(crate) timer: Option<Nanos>,
}

impl Worker {
    pub(crate) fn new(id: WorkerId, spec: WorkerSpec) -> Self {
        let health = Health::new(spec.assume_ready);
        let mut worker = Self {
            id,
            identity: spec.identity,
            seats: spec.seats,
            learnt: None,
            ledger: Ledger::default(),
            meter: Meter::default(),
            polls: spec.pulls.then_some(0),
            limits: spec.limits,
            availability: health.availability(),
            health,
            models: Vec::new(),
            word: None,
            kv_tokens: None,
            started: None,
            epoch: 0,
            last_cold: Nanos::default(),
            drain_deadline: None,
            taken_back: 0,
            cold_answers: 0,
            timer: None,
        };
        worker.set_models(spec.models);
        worker
    }

    /// Whether it has a seat for a request with that many uncached tokens. A worker that pulls has
    /// one only while it waits for a request.
    pub(crate) fn seats_for(&self, prefill_tokens: u64, now: Nanos) -> bool {
        let seats = Seats {
            slots: self.seats.slots.or_else(|| self.slots_learnt(now)),
            kv_tokens: self.seats.kv_tokens.or(self.kv_tokens),
            ..self.seats
        };
        self.polls != Some(0) && self.ledger.fits(&seats, prefill_tokens)
    }

    /// Requests at once as it was learnt; what is set goes before it.
    pub(crate) fn slots_learnt(&self, now: Nanos) -> Option<u32> {
        self.learnt.as_ref()?.limit(now)
    }

    /// Whether its limits allow the request; `prompt_tokens` may be an estimate.
    pub(crate) fn allows(&self, guest: &Arrival, prompt_tokens: u32) -> bool {
        let limits = &self.limits;
        let output = guest.max_tokens.unwrap_or(0);
        let within = |most: Option<u32>, tokens: u32| most.is_none_or(|most| tokens <= most);
        within(limits.context_max, prompt_tokens.saturating_add(output))
            && within(limits.output_max, output)
            && (limits.tenants.is_empty() || limits.tenants.contains(&guest.tenant))
            && (guest.plain || !limits.plain_only)
    }

    /// Whether it takes whatever comes: no limits, and no list of models.
    pub(crate) fn takes_everything(&self) -> bool {
        self.models.is_empty() && self.limits == RequestLimits::default()
    }

    /// Replaces what it lists.
    pub(crate) fn set_models(&mut self, mut models: Vec<ModelKey>) {
        models.sort_unstable();
        models.dedup();
        self.models = models;
    }

    /// Whether it serves the model: it lists it, or lists nothing, or nothing was asked for.
    pub(crate) fn lists(&self, model: Option<ModelKey>) -> bool {
        model.is_none_or(|m| self.models.is_empty() || self.models.binary_search(&m).is_ok())
    }

    /// Its last word where that is not older than `stale_after`.
    pub(crate) fn fresh(&self, now: Nanos, stale_after: Duration) -> Option<&Word> {
        self.word
            .as_ref()
            .filter(|word| now.since(word.at) <= stale_after)
    }

    /// Takes its word. Returns whether its process started anew, by its own start time.
    pub(crate) fn heard(&mut self, gauges: Gauges, now: Nanos) -> bool {
        let total = gauges
            .running
            .unwrap_or(0)
            .saturating_add(gauges.waiting.unwrap_or(0));
        self.word = Some(Word {
            gauges,
            at: now,
            others: total.saturating_sub(self.ledger.running),
        });
        self.kv_tokens = gauges.kv_tokens.filter(|t| *t > 0).or(self.kv_tokens);
        let restarted = matches!((self.started, gauges.started), (Some(a), Some(b)) if a != b);
        self.started = gauges.started.or(self.started);
        restarted
    }

    /// A new life of its cache begins.
    pub(crate) fn reborn(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.health.reborn();
        self.cold_answers = 0;
    }

    /// The start time it told belongs to a life that is over; the next one told is this life's.
    pub(crate) fn forget_started(&mut self) {
        self.started = None;
    }
}
