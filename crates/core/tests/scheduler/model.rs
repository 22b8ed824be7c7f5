//! What must be true of the scheduler, seen from outside.

use crate::kv;
use crate::staff::{AMPLE, Staff, need};
use crate::step::{Step, report};
use maitred_core::decision::Decision;
use maitred_core::ids::{ModelKey, RequestId, ResponseKey, SessionKey, TenantId};
use maitred_core::place::PolicyConfig;
use maitred_core::pool::{FleetChange, Report, Seats, WorkerSpec};
use maitred_core::request::{Failure, Identity, KeySource, Usage};
use maitred_core::scheduler::{LostResponse, PoolConfig};
use maitred_core::{Arrival, AttemptId, Effect, Input, Nanos, Scheduler, WorkerId};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Default)]
struct Guest {
    /// On whom, by which attempt; None: in the line.
    sits: Option<(AttemptId, WorkerId)>,
    tried: Vec<WorkerId>,
    attempts: u8,
    /// Any worker would do, at once.
    anywhere: bool,
    /// What its limits are held against.
    plain: bool,
    tenant: u64,
    max_tokens: Option<u32>,
    /// Uncached prompt tokens of the attempt that sits: they fill the worker's KV cache.
    computed: u64,
}

pub(crate) struct Model {
    scheduler: Scheduler,
    now: Nanos,
    next: u64,
    live: BTreeMap<RequestId, Guest>,
    ended: Vec<RequestId>,
    staff: Vec<Staff>,
    policy: PolicyConfig,
    pub(crate) log: Vec<String>,
}

const LINE_MAX: usize = 12;

impl Model {
    pub(crate) fn new(seed: u64) -> Self {
        let names = PolicyConfig::NAMES;
        let policy = PolicyConfig::named(names[seed as usize % names.len()]).unwrap();
        let lost = [LostResponse::Place, LostResponse::Refuse];
        let config = PoolConfig {
            policy: policy.clone(),
            line_max: LINE_MAX,
            max_wait: Duration::from_secs(20),
            no_worker_wait: Duration::from_secs(3),
            sessions_max: 4,
            session_idle: Duration::from_secs(5),
            lost_response: lost[(seed >> 32) as usize % 2],
            // The model knows of no metrics.
            learn_slots: false,
            ..PoolConfig::default()
        };
        Self {
            scheduler: Scheduler::new(config, seed).unwrap(),
            now: Nanos(0),
            next: 0,
            live: BTreeMap::new(),
            ended: Vec::new(),
            staff: Vec::new(),
            policy,
            log: Vec::new(),
        }
    }

    pub(crate) fn take(&mut self, step: &Step) {
        match step.clone() {
            Step::Arrive { .. } => self.arrive(step),
            Step::Accepted(pick) => self.on_attempt(pick, Input::Accepted),
            Step::FirstToken(pick) => self.on_attempt(pick, Input::FirstToken),
            Step::Responded(pick, key) => self.on_attempt(pick, |attempt| Input::Responded {
                attempt,
                response: ResponseKey(key),
            }),
            Step::Finished {
                pick,
                served,
                cached,
            } => self.finish(pick, served, cached),
            Step::Failed {
                pick,
                failure,
                retry,
                after_ms,
            } => self.fail(pick, failure, retry, after_ms.map(Duration::from_millis)),
            Step::Cancel(pick) => {
                if let Some(id) = nth(self.live.keys(), pick).copied() {
                    self.live.remove(&id);
                    self.ended.push(id);
                    self.send(Input::Cancel(id));
                }
            }
            Step::Stray(id, kind) => self.stray(id, kind),
            Step::Policy(pick) => {
                let names = PolicyConfig::NAMES;
                self.policy = PolicyConfig::named(names[pick % names.len()]).unwrap();
                self.send(Input::SetPolicy(self.policy.clone()));
            }
            Step::Advance(ms) => {
                self.now = self.now + Duration::from_millis(ms);
                self.send(Input::Tick);
            }
            _ => self.take_fleet(step),
        }
    }

    fn take_fleet(&mut self, step: &Step) {
        if let Step::Add {
            slots,
            prefill,
            model,
            ready,
            pull,
        } = step.clone()
        {
            let id = self.scheduler.next_worker_id();
            let limited = slots.is_some() || prefill.is_some();
            let seats = Seats {
                slots,
                prefill_tokens: prefill,
                kv_tokens: Some(if limited { 400 } else { AMPLE }),
                cache_slots: None,
            };
            self.staff.push(Staff {
                id,
                slots,
                prefill,
                kv: seats.kv_tokens,
                kv_told: None,
                draining: false,
                full_until: Nanos(0),
                lists_all: model.is_none(),
                polls: pull.is_some().then_some(0),
                limits: pull.clone().unwrap_or_default(),
            });
            let spec = WorkerSpec {
                identity: u64::from(id.slot),
                seats,
                models: model.map(ModelKey).into_iter().collect(),
                assume_ready: ready,
                pulls: pull.is_some(),
                limits: pull.unwrap_or_default(),
            };
            self.send(Input::Fleet(FleetChange::Add(id, spec)));
            return;
        }
        let (Step::Remove(pick)
        | Step::Drain(pick, _)
        | Step::Resume(pick)
        | Step::Seats(pick, _)
        | Step::Models(pick, _)
        | Step::Report(pick, _)
        | Step::Pop(pick, _)
        | Step::Limits(pick, _)
        | Step::Kv(pick, ..)) = *step
        else {
            panic!("{step:?}");
        };
        if self.staff.is_empty() {
            return;
        }
        let index = pick % self.staff.len();
        let now = self.now;
        let worker = &mut self.staff[index];
        let id = worker.id;
        let input = match step.clone() {
            Step::Remove(_) => {
                self.staff.remove(index);
                Input::Fleet(FleetChange::Remove(id))
            }
            Step::Drain(_, ms) => {
                worker.draining = true;
                let deadline = ms.map(|ms| now + Duration::from_millis(ms));
                Input::Fleet(FleetChange::Drain(id, deadline))
            }
            Step::Resume(_) => {
                worker.draining = false;
                Input::Fleet(FleetChange::Resume(id))
            }
            Step::Seats(_, slots) => {
                worker.slots = slots;
                worker.prefill = None;
                worker.kv = None;
                let seats = Seats {
                    slots,
                    ..Seats::default()
                };
                Input::Fleet(FleetChange::Seats(id, seats))
            }
            Step::Models(_, model) => {
                worker.lists_all = model.is_none();
                let models = model.map(ModelKey).into_iter().collect();
                Input::Fleet(FleetChange::Models(id, models))
            }
            Step::Pop(_, seats) => {
                worker.polls = worker.polls.map(|_| seats);
                Input::Pop { worker: id, seats }
            }
            Step::Limits(_, limits) => {
                worker.limits = limits.clone();
                Input::Fleet(FleetChange::Limits(id, limits))
            }
            Step::Report(_, kind) => {
                let report = report(kind);
                if let Report::Gauges(gauges) = &report {
                    worker.kv_told = gauges.kv_tokens;
                }
                Input::Report { worker: id, report }
            }
            Step::Kv(_, session, from, count, kind) => kv::word(id, session, from, count, kind),
            other => panic!("{other:?}"),
        };
        self.send(input);
    }

    fn arrive(&mut self, step: &Step) {
        let Step::Arrive {
            session,
            blocks,
            model,
            continues,
            deadline_ms,
            extra,
            retryable,
            plain,
            tenant,
            max_tokens,
        } = step.clone()
        else {
            return;
        };
        let request = RequestId(self.next);
        let seed = session.unwrap_or(1_000 + self.next);
        self.next += 1;
        let arrival = Arrival {
            request,
            tenant: TenantId(tenant),
            flow: None,
            session: session.map(SessionKey),
            session_source: KeySource::Header,
            opening: session.map(|s| SessionKey(s % 2)),
            scenario: session.map(|s| SessionKey(s % 3)),
            leading: session.map(|s| SessionKey(s % 2)),
            previous_response: continues.map(ResponseKey),
            model: model.map(ModelKey),
            turn: 1 + (blocks / 4) as u32,
            identity: Identity::Bytes,
            scope: 0,
            chain: kv::chain(seed, blocks),
            prompt_bytes: blocks * 64 + 30,
            body_bytes: 0,
            prompt_tokens: None,
            max_tokens,
            extra_prompts: extra,
            reads_cache: true,
            deadline: deadline_ms.map(|ms| self.now + Duration::from_millis(ms)),
            retryable,
            streams: !request.0.is_multiple_of(3),
            plain,
        };
        let guest = Guest {
            anywhere: model.is_none() && continues.is_none(),
            plain,
            tenant,
            max_tokens,
            ..Guest::default()
        };
        self.live.insert(request, guest);
        self.send(Input::Arrive(Box::new(arrival)));
    }

    fn on_attempt(&mut self, pick: usize, input: impl Fn(AttemptId) -> Input) {
        if let Some((attempt, _)) = self.sitting(pick) {
            self.send(input(attempt));
        }
    }

    fn finish(&mut self, pick: usize, served: bool, cached: Option<u32>) {
        let Some((attempt, _)) = self.sitting(pick) else {
            return;
        };
        self.end(attempt);
        let usage = Usage {
            prompt_tokens: cached.map(|c| c + 50),
            cached_tokens: cached,
            output_tokens: None,
        };
        self.send(Input::Finished {
            attempt,
            usage,
            served,
        });
    }

    fn end(&mut self, attempt: AttemptId) {
        self.live.remove(&attempt.request);
        self.ended.push(attempt.request);
    }

    fn fail(&mut self, pick: usize, failure: Failure, retry: bool, retry_after: Option<Duration>) {
        let Some((attempt, worker)) = self.sitting(pick) else {
            return;
        };
        if retry {
            self.live.get_mut(&attempt.request).unwrap().sits = None;
        } else {
            self.end(attempt);
        }
        if failure == Failure::Saturated
            && let Some(staff) = self.staff.iter_mut().find(|s| s.id == worker)
        {
            staff.full_until = self.now + Duration::from_secs(1);
        }
        self.send(Input::Failed {
            attempt,
            failure,
            retry,
            retry_after,
        });
    }

    /// Ends of attempts that are over, words of workers that are gone: nothing may happen.
    fn stray(&mut self, id: u64, kind: u8) {
        let request = RequestId(id);
        let open = self.live.get(&request).and_then(|guest| guest.sits);
        let number = open.map_or(1 + kind % 3, |(attempt, _)| attempt.number.wrapping_add(1));
        let attempt = AttemptId { request, number };
        let worker = WorkerId {
            slot: kind.into(),
            generation: 1_000,
        };
        self.send(match kind % 5 {
            0 => Input::Accepted(attempt),
            1 => Input::FirstToken(attempt),
            2 => Input::Finished {
                attempt,
                usage: Usage::default(),
                served: true,
            },
            3 => Input::Failed {
                attempt,
                failure: Failure::Reset,
                retry: true,
                retry_after: None,
            },
            _ => Input::Fleet(FleetChange::Remove(worker)),
        });
    }

    fn sitting(&self, pick: usize) -> Option<(AttemptId, WorkerId)> {
        nth(self.live.values().filter_map(|guest| guest.sits), pick)
    }

    fn send(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.scheduler.handle(self.now, input, &mut effects);
        for effect in &effects {
            match effect {
                Effect::Dispatch(decision) => self.dispatched(decision),
                Effect::Refuse { request, .. } => {
                    let guest = self.live.remove(request).expect("refused a live request");
                    assert!(guest.sits.is_none(), "refused while it sits");
                    self.ended.push(*request);
                }
                Effect::Abort(attempt) => {
                    let sits = self.live[&attempt.request].sits;
                    assert_eq!(sits.map(|(attempt, _)| attempt), Some(*attempt));
                }
                Effect::Wake(at) => assert!(*at > self.now),
                Effect::Availability { worker, .. } | Effect::Epoch { worker, .. } => {
                    assert!(self.staff.iter().any(|staff| staff.id == *worker));
                }
                Effect::Account { .. } => {}
            }
        }
        self.log.push(format!("{effects:?}"));
        self.agree();
    }

    fn dispatched(&mut self, decision: &Decision) {
        let (attempt, worker) = (decision.attempt, decision.worker);
        let on_it = |guest: &&Guest| guest.sits.is_some_and(|(_, w)| w == worker);
        let running = self.live.values().filter(on_it).count() as u32;
        let computed: u64 = self.live.values().filter(on_it).map(|g| g.computed).sum();
        let guest = self.live.get_mut(&attempt.request).expect("a live request");
        assert!(guest.sits.is_none(), "served twice at once");
        assert_eq!(attempt.number, guest.attempts + 1);
        assert!(attempt.number <= 3, "the pool's attempts");
        assert!(!guest.tried.contains(&worker), "the same worker twice");
        guest.attempts = attempt.number;
        guest.tried.push(worker);
        guest.sits = Some((attempt, worker));
        guest.computed = need(decision);
        let (plain, tenant, output) = (guest.plain, guest.tenant, guest.max_tokens.unwrap_or(0));
        let staff = self.staff.iter_mut().find(|staff| staff.id == worker);
        let staff = staff.expect("a worker of the pool");
        if let Some(polls) = &mut staff.polls {
            assert!(*polls > 0, "it did not ask for one");
            *polls -= 1;
        }
        staff.may_take(plain, tenant, decision, output);
        staff.has_room(decision, running, computed);
    }

    fn agree(&self) {
        self.scheduler.check().unwrap();
        let sitting = self.live.values().filter(|g| g.sits.is_some()).count();
        assert_eq!(self.scheduler.requests_len(), self.live.len());
        assert_eq!(self.scheduler.line_len(), self.live.len() - sitting);
        let views = self.scheduler.workers(self.now);
        assert_eq!(views.len(), self.staff.len());
        for view in &views {
            let on_it = |guest: &&Guest| guest.sits.is_some_and(|(_, w)| w == view.worker);
            let count = self.live.values().filter(on_it).count();
            assert_eq!(view.running as usize, count, "{view:?}");
            let staff = self.staff.iter().find(|s| s.id == view.worker).unwrap();
            assert_eq!(
                view.polls, staff.polls,
                "polls are counted by one side only"
            );
        }
        // Nobody whom any worker would do waits while one has all the room there is.
        let holds = ["session", "pin", "soft_affinity"].contains(&self.policy.name());
        let free = views.iter().any(|view| {
            let staff = self.staff.iter().find(|s| s.id == view.worker).unwrap();
            staff.takes_anything(view, self.now)
        });
        let waits = |guest: &Guest| guest.sits.is_none() && guest.anywhere && guest.attempts == 0;
        if free && !holds {
            assert!(!self.live.values().any(waits), "a seat is free");
        }
    }

    /// Lets everything end: whoever sits finishes, whoever waits is seated or refused in time.
    pub(crate) fn close(&mut self) {
        for _ in 0..10_000 {
            if let Some((_, attempt)) = self.sitting(0).map(|(attempt, w)| (w, attempt)) {
                self.finish_attempt(attempt);
            } else if let Some(at) = self.scheduler.next_wake() {
                self.now = at;
                self.send(Input::Tick);
            } else {
                break;
            }
        }
        assert!(self.live.is_empty(), "somebody waits for ever");
        for view in self.scheduler.workers(self.now) {
            let held = (view.running, view.prefill_tokens, view.resident_tokens);
            assert_eq!(held, (0, 0, 0), "a lease leaked");
        }
        self.ended.sort_unstable();
        let all: Vec<RequestId> = (0..self.next).map(RequestId).collect();
        assert_eq!(self.ended, all, "everybody ends exactly once");
    }

    fn finish_attempt(&mut self, attempt: AttemptId) {
        self.live.remove(&attempt.request);
        self.ended.push(attempt.request);
        self.send(Input::Finished {
            attempt,
            usage: Usage::default(),
            served: true,
        });
    }
}

fn nth<T>(mut all: impl Iterator<Item = T> + Clone, pick: usize) -> Option<T> {
    let count = all.clone().count();
    all.nth(pick.checked_rem(count)?)
}
