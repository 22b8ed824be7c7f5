//! The scheduler at run time: the only place where its inputs get a time and its effects a receiver.

use crate::kv::ReadAgain;
use crate::pull::Desk;
use maitred_core::ids::{RequestId, WorkerId};
use maitred_core::miss::Misses;
use maitred_core::pool::{FleetChange, WorkerSpec};
use maitred_core::request::{Refusal, RetryAfter};
use maitred_core::scheduler::WorkerView;
use maitred_core::{Arrival, AttemptId, Decision, Effect, Input, Nanos, Scheduler};
use maitred_records::Name;
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// What became of a request's wish for a seat.
#[derive(Debug)]
pub enum Verdict {
    /// Open this attempt.
    Dispatched(Box<Decision>),
    /// It will not be served.
    Refused {
        /// Why.
        refusal: Refusal,
        /// When it may try again.
        retry_after: Option<RetryAfter>,
        /// When this was decided.
        at: Nanos,
    },
}

/// A request's line to the scheduler: its verdict and its attempt's abort come here.
#[derive(Debug, Default)]
pub struct Ticket {
    inner: Mutex<TicketState>,
    in_line: AtomicBool,
}

#[derive(Debug, Default)]
struct TicketState {
    verdict: Option<Verdict>,
    aborted: Option<u8>,
    waker: Option<Waker>,
}

impl Ticket {
    /// The next verdict.
    pub async fn verdict(&self) -> Verdict {
        poll_fn(|cx| {
            let mut inner = self.inner.lock();
            match inner.verdict.take() {
                Some(verdict) => Poll::Ready(verdict),
                None => {
                    remember(&mut inner.waker, cx);
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Whether there is a verdict that was not asked for yet.
    pub(crate) fn is_decided(&self) -> bool {
        self.inner.lock().verdict.is_some()
    }

    /// Whether its request waits for a seat, as the request itself last said.
    pub(crate) fn in_line(&self) -> bool {
        self.in_line.load(Ordering::Relaxed)
    }

    /// Its request begins to wait for a seat, or has one.
    pub(crate) fn waits(&self, waits: bool) {
        self.in_line.store(waits, Ordering::Relaxed);
    }

    /// Ready once the attempt of this number is to be aborted.
    pub fn poll_aborted(&self, number: u8, cx: &Context<'_>) -> Poll<()> {
        let mut inner = self.inner.lock();
        if inner.aborted == Some(number) {
            return Poll::Ready(());
        }
        remember(&mut inner.waker, cx);
        Poll::Pending
    }

    fn tell(&self, verdict: Verdict) -> Option<Waker> {
        let mut inner = self.inner.lock();
        inner.verdict = Some(verdict);
        inner.waker.take()
    }

    fn abort(&self, number: u8) -> Option<Waker> {
        let mut inner = self.inner.lock();
        inner.aborted = Some(number);
        inner.waker.take()
    }
}

fn remember(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) if waker.will_wake(cx.waker()) => {}
        _ => *place = Some(cx.waker().clone()),
    }
}

struct State {
    scheduler: Scheduler,
    live: HashMap<RequestId, Arc<Ticket>, FxBuildHasher>,
    effects: Vec<Effect>,
    /// The desks of the workers that pull.
    desks: HashMap<WorkerId, Arc<Desk>, FxBuildHasher>,
    /// What the logs call a worker, by slot.
    names: Vec<Name>,
    /// What became of the tokens of the prompt that was served last.
    accounted: Option<Misses>,
    /// When the timer is to call `Tick`, as last asked for.
    wake: Option<Nanos>,
}

impl State {
    fn name(&self, worker: WorkerId) -> &str {
        self.names.get(worker.slot as usize).map_or("", |n| n)
    }
}

/// A pool's scheduler with its lock, its clock and those who wait for it.
pub struct Driver {
    pool: String,
    origin: Instant,
    state: Mutex<State>,
    timer: Notify,
    /// Whose events are followed. Never locked together with `state` by others than `route`.
    followed: Mutex<Vec<(WorkerId, ReadAgain)>>,
}

impl Driver {
    /// Times are counted from `origin`.
    #[must_use]
    pub fn new(pool: &str, scheduler: Scheduler, origin: Instant) -> Self {
        Self {
            pool: pool.to_owned(),
            origin,
            state: Mutex::new(State {
                scheduler,
                live: HashMap::with_hasher(FxBuildHasher),
                effects: Vec::new(),
                desks: HashMap::with_hasher(FxBuildHasher),
                names: Vec::new(),
                accounted: None,
                wake: None,
            }),
            timer: Notify::new(),
            followed: Mutex::default(),
        }
    }

    /// Now, in the scheduler's time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        let nanos = self.origin.elapsed().as_nanos();
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// A request arrives; returns when. What becomes of it comes through the ticket; the caller owes
    /// `Cancel` for it until it was refused, finished, or failed without retry.
    pub fn arrive(&self, arrival: Box<Arrival>) -> (Arc<Ticket>, Nanos) {
        let ticket = Arc::new(Ticket::default());
        let request = arrival.request;
        let at = self.run(|state| {
            state.live.insert(request, Arc::clone(&ticket));
            Input::Arrive(arrival)
        });
        (ticket, at)
    }

    /// Anything else that happened.
    pub fn handle(&self, input: Input) {
        self.run(|_| input);
    }

    /// A worker joins under this name.
    pub fn add(&self, id: WorkerId, spec: WorkerSpec, name: &Name) {
        self.run(|state| {
            let slot = id.slot as usize;
            if state.names.len() <= slot {
                state.names.resize(slot + 1, Name::default());
            }
            state.names[slot] = name.clone();
            Input::Fleet(FleetChange::Add(id, spec))
        });
    }

    /// The last word about a request: `input`, after which it is not known any more. What became of
    /// its prompt's tokens, where it was served.
    pub fn close(&self, request: RequestId, input: Input) -> Option<Misses> {
        let (_, misses) = self.run_accounted(|state| {
            state.live.remove(&request);
            state.accounted = None;
            input
        });
        misses
    }

    /// A worker that pulls comes, or is gone (None).
    pub(crate) fn desk(&self, worker: WorkerId, desk: Option<Arc<Desk>>) {
        let mut state = self.state.lock();
        match desk {
            Some(desk) => state.desks.insert(worker, desk),
            None => state.desks.remove(&worker),
        };
    }

    /// Changes a worker's open polls and tells how many there are. No dispatch comes between the two.
    pub(crate) fn pop(&self, worker: WorkerId, change: impl FnOnce() -> u32) {
        self.run(|_| Input::Pop {
            worker,
            seats: change(),
        });
    }

    /// Returns the time that the scheduler was told.
    fn run(&self, input: impl FnOnce(&mut State) -> Input) -> Nanos {
        self.run_accounted(input).0
    }

    /// The same, with the account of the attempt that the input ended.
    fn run_accounted(&self, input: impl FnOnce(&mut State) -> Input) -> (Nanos, Option<Misses>) {
        let mut wakers: Vec<Waker> = Vec::new();
        let told = {
            let mut state = self.state.lock();
            let input = input(&mut state);
            let mut effects = std::mem::take(&mut state.effects);
            let now = self.now();
            state.scheduler.handle(now, input, &mut effects);
            for effect in effects.drain(..) {
                if let Some(waker) = self.route(&mut state, effect, now) {
                    wakers.push(waker);
                }
            }
            state.effects = effects;
            (now, state.accounted.take())
        };
        for waker in wakers {
            waker.wake();
        }
        told
    }

    fn route(&self, state: &mut State, effect: Effect, at: Nanos) -> Option<Waker> {
        match effect {
            Effect::Dispatch(decision) => {
                if let Some(desk) = state.desks.get(&decision.worker) {
                    desk.promise(decision.attempt);
                }
                let ticket = state.live.get(&decision.attempt.request)?;
                ticket.tell(Verdict::Dispatched(decision))
            }
            Effect::Refuse {
                request,
                refusal,
                retry_after,
            } => {
                let ticket = state.live.remove(&request)?;
                ticket.tell(Verdict::Refused {
                    refusal,
                    retry_after,
                    at,
                })
            }
            Effect::Account { misses, .. } => {
                state.accounted = Some(misses);
                None
            }
            Effect::Abort(AttemptId { request, number }) => state.live.get(&request)?.abort(number),
            Effect::Wake(at) => {
                if state.wake != Some(at) {
                    state.wake = Some(at);
                    self.timer.notify_one();
                }
                None
            }
            Effect::Availability {
                worker,
                state: availability,
            } => {
                tracing::info!(
                    pool = %self.pool,
                    worker = state.name(worker),
                    state = availability.as_str(),
                    "worker changed"
                );
                None
            }
            Effect::Epoch {
                worker,
                epoch,
                read_again,
            } => {
                let name = state.name(worker);
                tracing::info!(pool = %self.pool, worker = name, epoch, "worker is cold");
                if read_again {
                    let followed = self.followed.lock();
                    for (_, again) in followed.iter().filter(|(id, _)| *id == worker) {
                        again.ask();
                    }
                }
                None
            }
        }
    }

    /// Calls `Tick` when it is due, for ever. One such task per pool.
    pub async fn keep_time(self: Arc<Self>) {
        loop {
            let due = self.state.lock().wake;
            let Some(due) = due else {
                self.timer.notified().await;
                continue;
            };
            // A millisecond late rather than early: the timer's own grain.
            let wait = due.since(self.now());
            if wait.is_zero() {
                self.state.lock().wake = None;
                self.handle(Input::Tick);
                self.rearm();
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(wait + Duration::from_micros(100)) => {}
                () = self.timer.notified() => {}
            }
        }
    }

    fn rearm(&self) {
        let mut state = self.state.lock();
        let next = state.scheduler.next_wake();
        state.wake = match (state.wake, next) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if state.wake.is_some_and(|at| at <= self.now()) {
            // Due again at once would spin; the next grain of the clock will do.
            state.wake = Some(self.now() + Duration::from_millis(1));
        }
    }

    /// The worker's events are followed: they are read again when its cache begins a new life.
    pub fn follow(&self, worker: WorkerId, again: ReadAgain) {
        let mut followed = self.followed.lock();
        followed.retain(|(_, again)| !again.is_over());
        followed.push((worker, again));
    }

    /// The id that the next worker must have.
    #[must_use]
    pub fn next_worker_id(&self) -> WorkerId {
        self.state.lock().scheduler.next_worker_id()
    }

    /// All workers.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerView> {
        let state = self.state.lock();
        state.scheduler.workers(self.now())
    }

    /// Reads the scheduler under its lock; keep it short.
    pub fn read<R>(&self, read: impl FnOnce(&Scheduler) -> R) -> R {
        read(&self.state.lock().scheduler)
    }

    /// Requests that arrived and have not ended.
    #[must_use]
    pub fn live(&self) -> usize {
        self.state.lock().live.len()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{Driver, Instant, Scheduler};
    use maitred_core::scheduler::PoolConfig;

    #[test]
    fn starts_with_nobody() {
        let scheduler = Scheduler::new(PoolConfig::default(), 1).unwrap();
        let driver = Driver::new("p", scheduler, Instant::now());
        assert_eq!(driver.live(), 0);
    }
}
