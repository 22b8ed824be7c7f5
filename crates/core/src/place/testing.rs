//! A table to ask policies at: candidates in plain sight, one question at a time.

use super::{Answer, Candidate, Policy, Question};
use crate::cost::Rates;
use crate::ids::{RequestId, SessionKey, TenantId, WorkerId};
use crate::request::{Arrival, Identity, KeySource};
use crate::rng::Rng;
use crate::session::Home;
use crate::time::Nanos;
use alloc::vec::Vec;

/// An idle worker with a free seat; its identity is spread as a hash of a name would be.
pub(super) fn candidate(slot: u32) -> Candidate {
    Candidate {
        worker: WorkerId {
            slot,
            generation: 0,
        },
        identity: crate::rng::mix(u64::from(slot) + 1),
        running: 0,
        prefill_tokens: 0,
        resident_tokens: 0,
        kv_usage: 0.0,
        slots: None,
        busy: 0.0,
        ahead_seconds: 0.0,
        decoding: 0,
        pace: 1.0,
        reload_seconds: 0.0,
        seat: true,
        matched_blocks: 0,
        matched_tokens: 0,
        sessions: 0,
        cache_slots: None,
        last_cold: Nanos(0),
    }
}

/// Everything a question is made of; tests change what they are about.
pub(super) struct Table {
    pub(super) guest: Arrival,
    pub(super) prompt_tokens: u32,
    pub(super) home: Option<Home>,
    pub(super) opening_home: Option<Home>,
    pub(super) candidates: Vec<Candidate>,
    pub(super) rates: Rates,
    pub(super) waiting: u32,
    pub(super) follows: bool,
    pub(super) now: Nanos,
    pub(super) scores: Vec<f64>,
    pub(super) rng: Rng,
}

impl Table {
    pub(super) fn new(candidates: Vec<Candidate>) -> Self {
        Self {
            guest: Arrival {
                request: RequestId(1),
                tenant: TenantId(1),
                flow: None,
                session: None,
                session_source: KeySource::None,
                opening: None,
                scenario: None,
                leading: None,
                previous_response: None,
                model: None,
                turn: 1,
                identity: Identity::Bytes,
                scope: 0,
                chain: (0..10).collect(),
                prompt_bytes: 640,
                body_bytes: 0,
                prompt_tokens: None,
                max_tokens: None,
                extra_prompts: 0,
                reads_cache: true,
                deadline: None,
                retryable: true,
                streams: true,
                plain: false,
            },
            prompt_tokens: 160,
            home: None,
            opening_home: None,
            candidates,
            rates: Rates::default(),
            waiting: 0,
            follows: true,
            now: Nanos(10_000_000_000_000),
            scores: Vec::new(),
            rng: Rng::new(7),
        }
    }

    pub(super) fn session(&mut self, key: u64, turn: u32) {
        self.guest.session = Some(SessionKey(key));
        self.guest.session_source = KeySource::Header;
        self.guest.turn = turn;
    }

    /// A home on the candidate with that index, last used that many seconds ago.
    pub(super) fn home_on(&self, index: usize, seconds_ago: u64) -> Option<Home> {
        Some(Home {
            worker: self.candidates[index].worker,
            used: Nanos(self.now.0 - seconds_ago * 1_000_000_000),
            blocks: 10,
        })
    }

    pub(super) fn ask(&mut self, policy: &mut dyn Policy) -> Answer {
        self.scores.clear();
        self.scores.resize(self.candidates.len(), f64::NAN);
        let question = Question {
            guest: &self.guest,
            prompt_tokens: self.prompt_tokens,
            home: self.home,
            opening_home: self.opening_home,
            candidates: &self.candidates,
            waiting: self.waiting,
            rates: self.rates,
            follows: self.follows,
            now: self.now,
        };
        let answer = policy.place(&question, &mut self.scores, &mut self.rng);
        assert!(answer.choice < self.candidates.len());
        answer
    }

    pub(super) fn members(&self) -> Vec<(WorkerId, u64)> {
        self.candidates
            .iter()
            .map(|c| (c.worker, c.identity))
            .collect()
    }
}
