//! A pool of equal workers, and what each request that waits has seen go before it.

use maitred_core::decision::Decision;
use maitred_core::ids::{FlowKey, RequestId, SessionKey, TenantId};
use maitred_core::line::{FairnessConfig, LineKind, TenantTerms};
use maitred_core::place::{OptionValue, PolicyConfig};
use maitred_core::pool::{FleetChange, RequestLimits, Seats, WorkerSpec};
use maitred_core::request::{Failure, Identity, KeySource, Refusal, Usage};
use maitred_core::scheduler::PoolConfig;
use maitred_core::{Arrival, AttemptId, Effect, Input, Nanos, Scheduler, WorkerId};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Arrive {
        returning: bool,
        tenant: u64,
        prompt: u32,
        output: u32,
        session: Option<u64>,
    },
    Finish(usize),
    Fail(usize),
    Cancel(usize),
    Add,
    Remove(usize),
    Advance(u64),
}

struct Guest {
    line: usize,
    charge: f64,
    /// What both lines had been charged when it came, and what had left its line unserved.
    then: [f64; 2],
    arrived: Nanos,
    left_then: f64,
    sits: Option<AttemptId>,
    charged: bool,
}

pub(crate) struct Hall {
    pub(crate) scheduler: Scheduler,
    now: Nanos,
    share: f64,
    holds: bool,
    next: u64,
    live: BTreeMap<RequestId, Guest>,
    workers: Vec<WorkerId>,
    /// A worker that said it is full has no seat for a second.
    full_until: Nanos,
    /// Since when a seat is free.
    free_since: Option<Nanos>,
    gone: [f64; 2],
    left: [f64; 2],
    largest: [f64; 2],
}

const SLOTS: u32 = 2;
const HOLD_MAX: Duration = Duration::from_secs(2);

impl Hall {
    /// `placement` may hold where it is not `least_load`.
    pub(crate) fn new(share: f64, placement: &str) -> Self {
        let mut fairness = FairnessConfig::default();
        let number = OptionValue::Number;
        if share < 0.2 {
            fairness.set("new_share_floor", number(share)).unwrap();
            fairness.set("new_share", number(share)).unwrap();
        } else {
            fairness.set("new_share", number(share)).unwrap();
            fairness.set("new_share_floor", number(share)).unwrap();
        }
        // The door is another matter.
        let late = number(86_400.0);
        fairness.set("start_within_seconds", late).unwrap();
        let mut policy = PolicyConfig::named(placement).unwrap();
        // As long as the pool lets them.
        let _ = policy.set("hold_seconds", number(60.0));
        let mut config = PoolConfig {
            fairness,
            policy,
            hold_max: HOLD_MAX,
            ..PoolConfig::default()
        };
        let heavy = TenantTerms {
            weight: 3.0,
            ..TenantTerms::default()
        };
        config.tenants.terms.insert(TenantId(2), heavy);
        let mut hall = Self {
            scheduler: Scheduler::new(config, 1).unwrap(),
            now: Nanos(0),
            share,
            holds: placement != "least_load",
            next: 0,
            live: BTreeMap::new(),
            workers: Vec::new(),
            full_until: Nanos(0),
            free_since: None,
            gone: [0.0; 2],
            left: [0.0; 2],
            largest: [0.0; 2],
        };
        hall.take(&Step::Add);
        hall.take(&Step::Add);
        hall
    }

    pub(crate) fn take(&mut self, step: &Step) {
        match *step {
            Step::Arrive {
                returning,
                tenant,
                prompt,
                output,
                session,
            } => self.arrive(returning, tenant, prompt, output, session),
            Step::Finish(pick) => {
                if let Some(attempt) = self.sitting(pick) {
                    self.live.remove(&attempt.request);
                    let usage = Usage::default();
                    self.send(Input::Finished {
                        attempt,
                        usage,
                        served: true,
                    });
                }
            }
            Step::Fail(pick) => {
                if let Some(attempt) = self.sitting(pick) {
                    self.live.get_mut(&attempt.request).unwrap().sits = None;
                    self.full_until = self.now + Duration::from_secs(1);
                    self.send(Input::Failed {
                        attempt,
                        failure: Failure::Saturated,
                        retry: true,
                        retry_after: None,
                    });
                }
            }
            Step::Cancel(pick) => {
                let all: Vec<RequestId> = self.live.keys().copied().collect();
                if let Some(id) = pick.checked_rem(all.len()).map(|at| all[at]) {
                    self.leaves(id);
                    self.send(Input::Cancel(id));
                }
            }
            Step::Add if self.workers.len() < 6 => {
                let id = self.scheduler.next_worker_id();
                self.workers.push(id);
                let spec = WorkerSpec {
                    identity: self.next * 31 + u64::from(id.slot),
                    seats: Seats {
                        slots: Some(SLOTS),
                        ..Seats::default()
                    },
                    models: Vec::new(),
                    assume_ready: true,
                    pulls: false,
                    limits: RequestLimits::default(),
                };
                self.send(Input::Fleet(FleetChange::Add(id, spec)));
            }
            Step::Add => {}
            Step::Remove(pick) => {
                // The last one stays, so that nobody is refused for want of any.
                if self.workers.len() > 1 {
                    let id = self.workers.remove(pick % self.workers.len());
                    self.send(Input::Fleet(FleetChange::Remove(id)));
                }
            }
            Step::Advance(ms) => {
                self.now = self.now + Duration::from_millis(ms);
                self.send(Input::Tick);
            }
        }
    }

    fn arrive(
        &mut self,
        returning: bool,
        tenant: u64,
        prompt: u32,
        output: u32,
        session: Option<u64>,
    ) {
        let request = RequestId(self.next);
        self.next += 1;
        let line = usize::from(returning);
        let charge = (f64::from(prompt) + 2.0 * f64::from(output)).max(1.0);
        self.largest[line] = self.largest[line].max(charge);
        self.live.insert(
            request,
            Guest {
                line,
                charge,
                then: self.gone,
                arrived: self.now,
                left_then: self.left[line],
                sits: None,
                charged: false,
            },
        );
        let guest = Arrival {
            request,
            tenant: TenantId(tenant),
            flow: session.map(|s| FlowKey(tenant * 100 + s)),
            session: session.map(|s| SessionKey(tenant * 100 + s)),
            session_source: KeySource::Header,
            opening: session.map(|s| SessionKey(tenant * 100 + s)),
            scenario: None,
            leading: None,
            previous_response: None,
            model: None,
            turn: 1 + u32::from(returning),
            identity: Identity::Bytes,
            scope: 0,
            chain: Vec::new(),
            prompt_bytes: 0,
            body_bytes: 10,
            prompt_tokens: Some(prompt),
            max_tokens: Some(output),
            extra_prompts: 0,
            reads_cache: true,
            deadline: None,
            retryable: true,
            streams: true,
            plain: false,
        };
        self.send(Input::Arrive(Box::new(guest)));
    }

    fn sitting(&self, pick: usize) -> Option<AttemptId> {
        let all: Vec<AttemptId> = self.live.values().filter_map(|guest| guest.sits).collect();
        pick.checked_rem(all.len()).map(|at| all[at])
    }

    /// It leaves, and stood before others of its line.
    fn leaves(&mut self, id: RequestId) {
        let guest = self.live.remove(&id).expect("a live request");
        if guest.sits.is_none() && !guest.charged {
            self.left[guest.line] += guest.charge;
        }
    }

    fn send(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.scheduler.handle(self.now, input, &mut effects);
        self.scheduler.check().unwrap();
        let mut aborted = Vec::new();
        for effect in effects {
            match effect {
                Effect::Dispatch(decision) => self.dispatched(&decision),
                Effect::Refuse {
                    request, refusal, ..
                } => {
                    assert_ne!(refusal, Refusal::StartTooLate);
                    self.leaves(request);
                }
                Effect::Abort(attempt) => {
                    aborted.push(attempt);
                }
                _ => {}
            }
        }
        self.nobody_waits_at_a_free_seat();
        for attempt in aborted {
            // Its worker is gone: it is tried again at once.
            self.live.get_mut(&attempt.request).unwrap().sits = None;
            self.send(Input::Failed {
                attempt,
                failure: Failure::Reset,
                retry: true,
                retry_after: None,
            });
        }
    }

    fn dispatched(&mut self, decision: &Decision) {
        let id = decision.attempt.request;
        let guest = self.live.get_mut(&id).expect("a live request");
        assert!(guest.sits.is_none(), "served twice");
        guest.sits = Some(decision.attempt);
        if std::mem::replace(&mut guest.charged, true) {
            return;
        }
        let (line, charge) = (guest.line, guest.charge);
        assert_eq!(decision.queueing.charge as f64, charge);
        assert_eq!(decision.queueing.line, LineKind::ALL[line]);
        let (then, left_then) = (guest.then, guest.left_then);
        let own_share = [self.share, 1.0 - self.share][line];
        let seen = self.gone[1 - line] - then[1 - line];
        let mut ahead = self.gone[line] - then[line] + charge;
        // Who left stood ahead all the same.
        ahead += self.left[line] - left_then;
        let bound = ahead * (1.0 - own_share) / own_share + self.largest[1 - line];
        assert!(
            seen <= bound + 1e-3,
            "{id:?}: {seen} of the other line, at most {bound}"
        );
        self.gone[line] += charge;
    }

    /// Nobody who was not tried yet waits while a seat is free, but to hold for another as long as
    /// one may.
    fn nobody_waits_at_a_free_seat(&mut self) {
        let workers = self.scheduler.workers(self.now);
        let free = workers.iter().any(|worker| worker.running < SLOTS);
        if !free || self.full_until > self.now {
            self.free_since = None;
            return;
        }
        let since = *self.free_since.get_or_insert(self.now);
        let fresh = |guest: &&Guest| guest.sits.is_none() && !guest.charged;
        for guest in self.live.values().filter(fresh) {
            let beside = self.now.since(since.max(guest.arrived));
            let may = self.holds && beside < HOLD_MAX;
            assert!(may, "a seat is free for {beside:?}");
        }
    }

    pub(crate) fn close(&mut self) {
        for _ in 0..10_000 {
            if self.sitting(0).is_some() {
                self.take(&Step::Finish(0));
            } else if let Some(at) = self.scheduler.next_wake() {
                self.now = at;
                self.send(Input::Tick);
            } else {
                break;
            }
        }
        assert!(self.live.is_empty(), "somebody waits for ever");
    }
}
