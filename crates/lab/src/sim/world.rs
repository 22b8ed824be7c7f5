//! The loop: one event after the other, each told to the scheduler, each effect carried out.

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::HashMap;
use maitred_core::ids::{AttemptId, FlowKey, RequestId, SessionKey, WorkerId};
use maitred_core::input::{Effect, Input};
use maitred_core::pool::{FleetChange, Seats, WorkerSpec};
use maitred_core::request::{Arrival, Failure, Identity, KeySource};
use maitred_core::rng::mix;
use maitred_core::time::Nanos;
use maitred_core::{Decision, Scheduler};
use rustc_hash::FxBuildHasher;

use super::engine::{Engine, EngineKind, Job, Progress};
use super::events::{Event, Events};
use super::setup::{FleetEvent, Reports, Run, Setup, SetupError};
use super::workload::{Ask, End, Outcome, Workload};

mod fleet;

/// Blocks that stand for the leading text.
const LEADING_BLOCKS: usize = 4;
/// Bytes that stand for a token.
const TOKEN_BYTES: u64 = 4;
/// Bits of an engine's job id that number the attempt.
const ATTEMPT_BITS: u32 = 8;

struct Live {
    ask: Ask,
    outcome: Outcome,
    attempt: Option<(AttemptId, usize)>,
}

struct Worker {
    id: WorkerId,
    engine: Box<dyn Engine>,
    /// Of its pending event; older events of it are stale.
    number: u64,
    next: Option<Nanos>,
    gone: bool,
    kind: EngineKind,
    /// Lives of its process so far, the present one not counted.
    life: u32,
    /// Its process died and is not back yet.
    down: bool,
}

pub(super) struct World<'a> {
    scheduler: Scheduler,
    workload: &'a mut dyn Workload,
    workers: Vec<Worker>,
    by_id: HashMap<WorkerId, usize, FxBuildHasher>,
    live: HashMap<RequestId, Live, FxBuildHasher>,
    events: Events,
    inputs: VecDeque<Input>,
    effects: Vec<Effect>,
    said: Vec<Progress>,
    outcomes: Vec<Outcome>,
    fleet: Vec<FleetEvent>,
    reports: Option<Reports>,
    kv_events: Option<Duration>,
    /// Tokens in a block of the pool's chains.
    token_block: u32,
    /// Preemptions of engines that are no more.
    preemptions: u64,
    until: Option<Nanos>,
    seed: u64,
    next_request: u64,
    /// Requests that are on their way from their clients.
    expected: usize,
    /// The scheduler's timer that is set.
    armed: Option<Nanos>,
    /// Requests that wait: first turns, follow-ups.
    waiting: [usize; 2],
    line_most: usize,
}

/// Which line it waits in.
fn line(turn: u32) -> usize {
    usize::from(turn > 1)
}

fn job_id(attempt: AttemptId) -> u64 {
    attempt.request.0 << ATTEMPT_BITS | u64::from(attempt.number)
}

fn attempt_id(job: u64) -> AttemptId {
    AttemptId {
        request: RequestId(job >> ATTEMPT_BITS),
        number: job as u8,
    }
}

impl<'a> World<'a> {
    pub(super) fn new(setup: Setup, workload: &'a mut dyn Workload) -> Result<Self, SetupError> {
        if setup.workers.is_empty() {
            return Err(SetupError::NoWorkers);
        }
        let token_block = setup.pool.token_block;
        let scheduler = Scheduler::new(setup.pool, setup.seed).map_err(SetupError::Pool)?;
        let mut world = World {
            scheduler,
            workload,
            workers: Vec::new(),
            by_id: HashMap::with_hasher(FxBuildHasher),
            live: HashMap::with_hasher(FxBuildHasher),
            events: Events::default(),
            inputs: VecDeque::new(),
            effects: Vec::new(),
            said: Vec::new(),
            outcomes: Vec::new(),
            fleet: Vec::new(),
            reports: setup.reports,
            kv_events: setup.kv_events,
            token_block,
            expected: 0,
            preemptions: 0,
            until: setup.until,
            seed: setup.seed,
            next_request: 0,
            armed: None,
            waiting: [0, 0],
            line_most: 0,
        };
        for kind in &setup.workers {
            world.join(kind, Nanos::default());
        }
        for (index, (at, event)) in setup.fleet.into_iter().enumerate() {
            world.fleet.push(event);
            world.events.push(at, Event::Fleet(index));
        }
        if world.reports.is_some() {
            world.events.push(Nanos::default(), Event::Sample);
        }
        world.next_session();
        Ok(world)
    }

    /// The next event; when it happened, or None where it would happen after the end.
    pub(super) fn step(&mut self) -> Option<Nanos> {
        let (at, event) = self.events.pop()?;
        if self.until.is_some_and(|until| at > until) {
            return None;
        }
        self.happen(event, at);
        Some(at)
    }

    fn happen(&mut self, event: Event, now: Nanos) {
        match event {
            Event::Start(ask) => {
                self.expected -= 1;
                self.arrive(*ask, now);
                self.next_session();
            }
            Event::Send(ask) => {
                self.expected -= 1;
                self.arrive(*ask, now);
            }
            Event::Patience(request) => {
                let waits = |live: &Live| live.outcome.first_token.is_none();
                if self.live.get(&request).is_some_and(waits) {
                    self.end(request, End::GaveUp, now);
                    self.tell(Input::Cancel(request), now);
                }
            }
            Event::Engine { worker, number } => {
                if self.workers[worker].number == number {
                    self.workers[worker].next = None;
                    self.advance(worker, now);
                    self.settle(now);
                }
            }
            Event::Tick => {
                self.armed = None;
                self.tell(Input::Tick, now);
            }
            Event::Sample => self.sample(now),
            Event::Heard { worker, report } => {
                if !self.workers[worker].gone {
                    let worker = self.workers[worker].id;
                    self.tell(Input::Report { worker, report }, now);
                }
            }
            Event::Kv {
                worker,
                life,
                batch,
            } => self.hear_kv(worker, life, *batch, now),
            Event::Back(worker) => self.come_back(worker, now),
            Event::Fleet(index) => {
                let event = self.fleet[index].clone();
                self.change_fleet(event, now);
            }
        }
    }

    fn next_session(&mut self) {
        if let Some((at, ask)) = self.workload.start() {
            self.expected += 1;
            self.events.push(at, Event::Start(Box::new(ask)));
        }
    }

    fn join(&mut self, kind: &EngineKind, now: Nanos) {
        let id = self.scheduler.next_worker_id();
        let index = self.workers.len();
        self.workers.push(Worker {
            id,
            engine: kind.build(mix(self.seed ^ mix(index as u64))),
            number: 0,
            next: None,
            gone: false,
            kind: kind.clone(),
            life: 0,
            down: false,
        });
        if self.kv_events.is_some() {
            self.workers[index].engine.note_kv_events();
        }
        self.by_id.insert(id, index);
        let spec = WorkerSpec {
            identity: mix(index as u64),
            seats: Seats {
                slots: Some(kind.slots()),
                kv_tokens: Some(kind.kv_tokens()),
                ..Seats::default()
            },
            models: Vec::new(),
            limits: Default::default(),
            pulls: false,
            assume_ready: true,
        };
        self.tell(Input::Fleet(FleetChange::Add(id, spec)), now);
    }

    fn arrive(&mut self, ask: Ask, now: Nanos) {
        let request = RequestId(self.next_request);
        self.next_request += 1;
        let session = SessionKey(mix(ask.session));
        let leading = ask.chain.get(..ask.chain.len().min(LEADING_BLOCKS));
        let arrival = Arrival {
            request,
            tenant: ask.tenant,
            flow: Some(FlowKey(mix(ask.tenant.0 ^ session.0))),
            session: Some(session),
            session_source: KeySource::Header,
            opening: Some(session),
            scenario: None,
            leading: leading.and_then(|l| l.last()).map(|hash| SessionKey(*hash)),
            previous_response: None,
            model: None,
            turn: ask.turn,
            identity: Identity::Tokens,
            scope: 0,
            chain: self.chain(&ask, request),
            prompt_bytes: u64::from(ask.prompt_tokens) * TOKEN_BYTES,
            body_bytes: u64::from(ask.prompt_tokens) * TOKEN_BYTES,
            prompt_tokens: Some(ask.prompt_tokens),
            max_tokens: Some(ask.output_tokens),
            extra_prompts: 0,
            reads_cache: true,
            streams: true,
            plain: false,
            deadline: None,
            retryable: true,
        };
        if let Some(patience) = ask.patience {
            self.events.push(now + patience, Event::Patience(request));
        }
        let outcome = Outcome {
            session: ask.session,
            group: ask.group,
            tenant: ask.tenant,
            turn: ask.turn,
            tries: ask.tries,
            prompt_tokens: ask.prompt_tokens,
            output_tokens: ask.output_tokens,
            arrived: now,
            dispatched: None,
            first_token: None,
            ended: now,
            end: End::Open,
            worker: None,
            reason: None,
            predicted_tokens: 0,
            warmest_tokens: 0,
            cached_tokens: None,
            attempts: 0,
            charged: 0,
            promised: false,
            contested: false,
        };
        self.waiting[line(ask.turn)] += 1;
        let live = Live {
            ask,
            outcome,
            attempt: None,
        };
        self.live.insert(request, live);
        self.tell(Input::Arrive(Box::new(arrival)), now);
        self.line_most = self.line_most.max(self.scheduler.line_len());
    }

    /// Tells the scheduler, and carries out what it says until it says nothing more.
    fn tell(&mut self, input: Input, now: Nanos) {
        self.inputs.push_back(input);
        self.settle(now);
    }

    fn settle(&mut self, now: Nanos) {
        while let Some(input) = self.inputs.pop_front() {
            let mut effects = core::mem::take(&mut self.effects);
            self.scheduler.handle(now, input, &mut effects);
            for effect in effects.drain(..) {
                self.carry_out(effect, now);
            }
            self.effects = effects;
        }
        if let Some(at) = self.scheduler.next_wake()
            && self.armed.is_none_or(|armed| at < armed)
        {
            self.armed = Some(at);
            self.events.push(at.max(now), Event::Tick);
        }
    }

    fn carry_out(&mut self, effect: Effect, now: Nanos) {
        match effect {
            Effect::Dispatch(decision) => self.dispatch(&decision, now),
            Effect::Refuse {
                request,
                refusal,
                retry_after,
            } => {
                let end = End::Refused {
                    refusal,
                    retry_after,
                };
                self.end(request, end, now);
            }
            Effect::Abort(attempt) => {
                if let Some(live) = self.live.get_mut(&attempt.request) {
                    let retry = live.outcome.first_token.is_none();
                    self.fail(attempt, Failure::Reset, retry, now);
                }
            }
            Effect::Account { .. }
            | Effect::Wake(_)
            | Effect::Availability { .. }
            | Effect::Epoch { .. } => {}
        }
    }

    fn dispatch(&mut self, decision: &Decision, now: Nanos) {
        let attempt = decision.attempt;
        let Some(index) = self.by_id.get(&decision.worker).copied() else {
            debug_assert!(false, "dispatches go to workers that joined");
            return;
        };
        let Some(live) = self.live.get_mut(&attempt.request) else {
            debug_assert!(false, "only what arrived is dispatched");
            return;
        };
        let outcome = &mut live.outcome;
        outcome.contested = self.waiting.iter().all(|count| *count > 0);
        outcome.sits(decision, now);
        self.waiting[line(live.ask.turn)] -= 1;
        live.attempt = Some((attempt, index));
        let job = Job {
            id: job_id(attempt),
            chain: &live.ask.chain,
            prompt_tokens: live.ask.prompt_tokens,
            output_tokens: live.ask.output_tokens,
        };
        let worker = &mut self.workers[index];
        let taken = if worker.down {
            Err(Failure::Connect)
        } else {
            worker.engine.submit(now, job)
        };
        match taken {
            Ok(()) => self.advance(index, now),
            Err(failure) => self.fail(attempt, failure, true, now),
        }
    }

    /// Lets an engine speak, and sets its next event.
    fn advance(&mut self, index: usize, now: Nanos) {
        let worker = &mut self.workers[index];
        if worker.gone || worker.down {
            return;
        }
        let mut said = core::mem::take(&mut self.said);
        let next = worker.engine.advance(now, &mut said);
        if next != worker.next {
            worker.next = next;
            worker.number += 1;
            if let Some(at) = next {
                let event = Event::Engine {
                    worker: index,
                    number: worker.number,
                };
                self.events.push(at.max(now), event);
            }
        }
        for word in said.drain(..) {
            match word {
                Progress::FirstToken(job) => {
                    let attempt = attempt_id(job);
                    if let Some(live) = self.live.get_mut(&attempt.request) {
                        live.outcome.first_token.get_or_insert(now);
                        self.inputs.push_back(Input::FirstToken(attempt));
                    }
                }
                Progress::Finished(job, usage) => {
                    let attempt = attempt_id(job);
                    if let Some(live) = self.live.get_mut(&attempt.request) {
                        live.outcome.cached_tokens = usage.cached_tokens;
                        self.inputs.push_back(Input::Finished {
                            attempt,
                            usage,
                            served: true,
                        });
                        self.end(attempt.request, End::Served, now);
                    }
                }
            }
        }
        self.said = said;
        self.overhear(index, now);
    }

    fn fail(&mut self, attempt: AttemptId, failure: Failure, retry: bool, now: Nanos) {
        self.inputs.push_back(Input::Failed {
            attempt,
            failure,
            retry,
            retry_after: None,
        });
        if !retry {
            self.end(attempt.request, End::Failed(failure), now);
        } else if let Some(live) = self.live.get_mut(&attempt.request) {
            // It waits again, if only for a moment.
            live.attempt = None;
            live.outcome.dispatched = None;
            self.waiting[line(live.ask.turn)] += 1;
        }
    }

    /// The request is over for its client, who goes on.
    fn end(&mut self, request: RequestId, end: End, now: Nanos) {
        let Some(mut live) = self.live.remove(&request) else {
            return;
        };
        match live.attempt {
            Some((attempt, index)) if end != End::Served => {
                self.workers[index].engine.cancel(now, job_id(attempt));
                self.advance(index, now);
            }
            Some(_) => {}
            None => self.waiting[line(live.ask.turn)] -= 1,
        }
        live.outcome.end = end;
        live.outcome.ended = now;
        let mut sent = self.workload.next(&live.outcome);
        while let Some((after, ask)) = sent {
            self.expected += 1;
            self.events.push(now + after, Event::Send(Box::new(ask)));
            sent = self.workload.more();
        }
        self.outcomes.push(live.outcome);
    }

    /// What came of it all; `now` is the time of the last of `events`.
    pub(super) fn close(mut self, now: Nanos, events: u64) -> Run {
        let ended = self.until.unwrap_or(now);
        let mut open: Vec<(RequestId, Live)> = self.live.drain().collect();
        open.sort_unstable_by_key(|(id, _)| *id);
        for (_, mut live) in open {
            live.outcome.ended = ended;
            self.outcomes.push(live.outcome);
        }
        let inside = self
            .workers
            .iter()
            .map(|worker| worker.engine.preemptions());
        Run {
            preemptions: self.preemptions + inside.sum::<u64>(),
            ended,
            events,
            line_most: self.line_most,
            lines: self.scheduler.lines(ended),
            outcomes: self.outcomes,
        }
    }
}
