//! A room without a scheduler: workers with counts, homes and caches without bounds, so that
//! policies can be tried alone.

use maitred_core::cost::Rates;
use maitred_core::decision::Reason;
use maitred_core::ids::{RequestId, SessionKey, TenantId, WorkerId};
use maitred_core::place::{Answer, Candidate, Policy, PolicyConfig, Question};
use maitred_core::request::{Arrival, Identity, KeySource};
use maitred_core::rng::{Rng, mix};
use maitred_core::session::Home;
use maitred_core::time::Nanos;
use std::collections::{HashMap, HashSet};

/// Tokens of one block.
pub(crate) const BLOCK: u32 = 16;

/// Whether the policy may keep small prompts that begin alike together. Some weigh any hit against
/// load, and an idle pool has none; one leaves no hit that is fast enough.
pub(crate) fn stays_with_any_hit(policy: &str, together: bool) -> bool {
    let weigh = [
        "lmetric",
        "smetric",
        "sticky_until_saturated",
        "dynamo_cost",
    ];
    policy == "dualmap" || (!together && weigh.contains(&policy))
}

/// A chain whose hashes cover what is before them: `parts` are (content, blocks).
pub(crate) fn chain(parts: &[(u64, usize)]) -> Vec<u64> {
    let mut hash = 1;
    let mut chain = Vec::new();
    for (content, blocks) in parts {
        for block in 0..*blocks {
            hash = mix(hash ^ mix(content.wrapping_mul(1_000_003).wrapping_add(block as u64)));
            chain.push(hash);
        }
    }
    chain
}

/// A request with that chain and no keys.
pub(crate) fn arrival(chain: Vec<u64>) -> Arrival {
    Arrival {
        request: RequestId(0),
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
        identity: Identity::Tokens,
        scope: 0,
        prompt_bytes: chain.len() as u64 * 64,
        chain,
        body_bytes: 0,
        prompt_tokens: None,
        max_tokens: None,
        extra_prompts: 0,
        reads_cache: true,
        deadline: None,
        retryable: true,
        streams: true,
        plain: false,
    }
}

/// A request of a named session.
pub(crate) fn turn_of(session: u64, turn: u32, chain: Vec<u64>) -> Arrival {
    let mut guest = arrival(chain);
    guest.session = Some(SessionKey(mix(session + 1)));
    guest.session_source = KeySource::Header;
    guest.turn = turn;
    guest
}

/// A request of a client that names nothing: the key is its opening's.
pub(crate) fn anonymous(opening: u64, turn: u32, chain: Vec<u64>) -> Arrival {
    let mut guest = turn_of(opening, turn, chain);
    guest.session_source = KeySource::Content;
    guest.opening = guest.session;
    guest.leading = guest.session;
    guest
}

/// What was given to a worker; give it back with [`Room::finish`].
pub(crate) struct Sitting {
    pub(crate) worker: WorkerId,
    pub(crate) reason: Reason,
    pub(crate) uncached: u32,
    pub(crate) prompt: u32,
}

/// The room.
pub(crate) struct Room {
    pub(crate) workers: Vec<Candidate>,
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) rng: Rng,
    pub(crate) homes: HashMap<SessionKey, Home>,
    opening_homes: HashMap<SessionKey, Home>,
    caches: HashMap<WorkerId, HashSet<u64>>,
    pub(crate) now: Nanos,
}

impl Room {
    pub(crate) fn new(n: u32, config: &PolicyConfig, seed: u64) -> Self {
        let mut room = Self {
            workers: Vec::new(),
            policy: config.build(),
            rng: Rng::new(seed),
            homes: HashMap::new(),
            opening_homes: HashMap::new(),
            caches: HashMap::new(),
            now: Nanos(1),
        };
        room.workers.extend((0..n).map(idle));
        room.tell_members();
        room
    }

    pub(crate) fn named(n: u32, policy: &str, seed: u64) -> Self {
        Self::new(n, &PolicyConfig::named(policy).unwrap(), seed)
    }

    pub(crate) fn add(&mut self, slot: u32) {
        self.workers.push(idle(slot));
        self.tell_members();
    }

    /// Removes the worker at that position with all that was known of it.
    pub(crate) fn remove(&mut self, index: usize) -> WorkerId {
        let gone = self.workers.remove(index).worker;
        self.caches.remove(&gone);
        self.homes.retain(|_, home| home.worker != gone);
        self.tell_members();
        gone
    }

    fn tell_members(&mut self) {
        let members: Vec<(WorkerId, u64)> = self
            .workers
            .iter()
            .map(|c| (c.worker, c.identity))
            .collect();
        self.policy.members(&members);
    }

    /// Asks the policy and changes nothing else.
    pub(crate) fn ask(&mut self, guest: &Arrival) -> Answer {
        let mut sessions: HashMap<WorkerId, u32> = HashMap::new();
        for home in self.homes.values() {
            *sessions.entry(home.worker).or_default() += 1;
        }
        for c in &mut self.workers {
            let cache = self.caches.get(&c.worker);
            let held = |hash: &&u64| cache.is_some_and(|cache| cache.contains(*hash));
            c.matched_blocks = guest.chain.iter().take_while(held).count() as u32;
            c.matched_tokens = c.matched_blocks * BLOCK;
            c.sessions = sessions.get(&c.worker).copied().unwrap_or(0);
            // Nothing is computed while the room looks on.
            c.ahead_seconds = Rates::default().saved_seconds(c.prefill_tokens, c.prefill_tokens);
            c.decoding = c.running;
        }
        let mut scores = vec![f64::NAN; self.workers.len()];
        let question = Question {
            guest,
            prompt_tokens: guest.chain.len() as u32 * BLOCK,
            home: guest.session.and_then(|key| self.homes.get(&key).copied()),
            opening_home: guest
                .opening
                .and_then(|key| self.opening_homes.get(&key).copied()),
            candidates: &self.workers,
            waiting: 0,
            rates: Rates::default(),
            follows: true,
            now: self.now,
        };
        let answer = self.policy.place(&question, &mut scores, &mut self.rng);
        assert!(answer.choice < self.workers.len());
        answer
    }

    /// Places a request and seats it.
    pub(crate) fn arrive(&mut self, guest: &Arrival) -> Sitting {
        let answer = self.ask(guest);
        let cold = self.workers.iter().all(|c| c.matched_blocks == 0);
        self.now.0 += 1_000_000;
        let c = &mut self.workers[answer.choice];
        let prompt = guest.chain.len() as u32 * BLOCK;
        let sitting = Sitting {
            worker: c.worker,
            reason: answer.reason,
            uncached: prompt - c.matched_tokens,
            prompt,
        };
        c.running += 1;
        c.prefill_tokens += u64::from(sitting.uncached);
        c.resident_tokens += u64::from(prompt);
        if cold {
            c.last_cold = self.now;
        }
        self.caches
            .entry(c.worker)
            .or_default()
            .extend(&guest.chain);
        let home = Home {
            worker: c.worker,
            used: self.now,
            blocks: guest.chain.len() as u32,
        };
        if let Some(key) = guest.session {
            self.homes.insert(key, home);
        }
        if let Some(key) = guest.opening {
            self.opening_homes.insert(key, home);
        }
        self.policy.settled(guest, home.worker, self.now);
        sitting
    }

    /// The answer is complete.
    pub(crate) fn finish(&mut self, sitting: &Sitting) {
        if let Some(c) = self.workers.iter_mut().find(|c| c.worker == sitting.worker) {
            c.running -= 1;
            c.prefill_tokens -= u64::from(sitting.uncached);
            c.resident_tokens -= u64::from(sitting.prompt);
        }
    }

    /// A request that is finished before the next arrives.
    pub(crate) fn visit(&mut self, guest: &Arrival) -> Sitting {
        let sitting = self.arrive(guest);
        self.finish(&sitting);
        sitting
    }

    pub(crate) fn running(&self) -> Vec<u32> {
        self.workers.iter().map(|c| c.running).collect()
    }

    /// Homes per worker.
    pub(crate) fn sessions(&self) -> Vec<u32> {
        let count = |c: &Candidate| {
            let here = self.homes.values().filter(|h| h.worker == c.worker);
            here.count() as u32
        };
        self.workers.iter().map(count).collect()
    }
}

/// An idle worker; its identity is spread as the hash of a name would be.
pub(crate) fn idle(slot: u32) -> Candidate {
    Candidate {
        worker: WorkerId {
            slot,
            generation: 0,
        },
        identity: mix(u64::from(slot) + 0x5eed),
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

/// The largest over the mean.
pub(crate) fn skew(counts: &[u32]) -> f64 {
    let most = counts.iter().copied().max().unwrap_or(0);
    let mean = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
    f64::from(most) / mean
}
