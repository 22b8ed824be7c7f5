//! One pulling worker's desk: its open polls, the requests promised to them, and the jobs it has.
//!
//! A dispatch takes a poll at the moment of the decision, under the scheduler's lock, so that polls
//! and the scheduler's count of them never differ. A job is known here from the moment it is claimed
//! until its attempt lets go of it ([`Claim`]); taking it out ends the attempt.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use hyper::body::Incoming;
use maitred_core::AttemptId;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A job that was handed out and is in no list of the worker's after this time was lost on its way.
const HANDING_OVER: Duration = Duration::from_secs(3);

/// A request as a worker gets it.
#[derive(Debug)]
pub(crate) struct Job {
    /// Its name between us and the worker.
    pub(crate) id: String,
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, String)>,
    /// The client's bytes.
    pub(crate) body: Bytes,
}

/// What a worker answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// What came of the body with the head.
    pub(crate) begun: Bytes,
    /// What still comes.
    pub(crate) rest: Option<Incoming>,
    /// Told when all was read; dropped when nobody reads any more.
    pub(crate) done: oneshot::Sender<()>,
}

struct Open {
    /// None: the worker is answering.
    answer: Option<oneshot::Sender<Answer>>,
    /// Dropping it tells the attempt that the job is lost.
    _alive: oneshot::Sender<()>,
    claimed: Instant,
}

#[derive(Default)]
struct State {
    polls: VecDeque<(u64, oneshot::Sender<Job>)>,
    next_poll: u64,
    promised: HashMap<AttemptId, oneshot::Sender<Job>>,
    jobs: HashMap<String, Open>,
}

/// See the module.
pub(crate) struct Desk {
    state: Mutex<State>,
    seen: Mutex<Instant>,
}

/// An attempt's hold on its job.
pub(crate) struct Claim {
    desk: Arc<Desk>,
    id: String,
    /// The answer's head; an error: the job is lost.
    pub(crate) answer: oneshot::Receiver<Answer>,
    /// Ready: the job is lost.
    pub(crate) lost: oneshot::Receiver<()>,
}

impl Claim {
    pub(crate) fn heard(&self) {
        self.desk.heard();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.desk.state.lock().jobs.remove(&self.id);
    }
}

/// Why a worker may not answer a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoJob {
    /// Nobody waits for it (any more).
    Unknown,
    /// It is being answered already.
    Taken,
}

impl Desk {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::default(),
            seen: Mutex::new(Instant::now()),
        }
    }

    /// The worker said something.
    pub(crate) fn heard(&self) {
        *self.seen.lock() = Instant::now();
    }

    /// For how long it has said nothing.
    pub(crate) fn silent_for(&self) -> Duration {
        self.seen.lock().elapsed()
    }

    /// A number for a poll.
    pub(crate) fn number(&self) -> u64 {
        let mut state = self.state.lock();
        state.next_poll += 1;
        state.next_poll
    }

    /// It waits for one more job; returns its open polls.
    pub(crate) fn wait(&self, poll: u64, send: oneshot::Sender<Job>) -> u32 {
        let mut state = self.state.lock();
        state.polls.push_back((poll, send));
        open(&mut state)
    }

    pub(crate) fn open_polls(&self) -> u32 {
        open(&mut self.state.lock())
    }

    /// It waits no longer; returns whether that poll was still open, and its open polls.
    pub(crate) fn withdraw(&self, poll: u64) -> (bool, u32) {
        let mut state = self.state.lock();
        let before = state.polls.len();
        state.polls.retain(|(number, _)| *number != poll);
        let was_open = state.polls.len() < before;
        (was_open, open(&mut state))
    }

    /// A request was dispatched to the worker: its oldest poll is this attempt's.
    pub(crate) fn promise(&self, attempt: AttemptId) {
        let mut state = self.state.lock();
        // Whoever never claimed is gone, and so is the poll that was kept for it.
        state.promised.retain(|_, poll| !poll.is_closed());
        if let Some((_, poll)) = state.polls.pop_front() {
            state.promised.insert(attempt, poll);
        }
    }

    /// Hands the attempt's request to the poll that it was promised; None: the poll is gone.
    pub(crate) fn claim(self: &Arc<Self>, attempt: AttemptId, job: Job) -> Option<Claim> {
        let (answer_sender, answer) = oneshot::channel();
        let (alive, lost) = oneshot::channel();
        let now = Instant::now();
        let id = job.id.clone();
        let poll = {
            let mut state = self.state.lock();
            let poll = state.promised.remove(&attempt)?;
            let open = Open {
                answer: Some(answer_sender),
                _alive: alive,
                claimed: now,
            };
            state.jobs.insert(id.clone(), open);
            poll
        };
        let claim = Claim {
            desk: Arc::clone(self),
            id,
            answer,
            lost,
        };
        poll.send(job).is_ok().then_some(claim)
    }

    /// The worker begins to answer a job.
    pub(crate) fn answering(&self, job: &str) -> Result<oneshot::Sender<Answer>, NoJob> {
        let mut state = self.state.lock();
        let open = state.jobs.get_mut(job).ok_or(NoJob::Unknown)?;
        open.answer.take().ok_or(NoJob::Taken)
    }

    /// The job is lost: the worker gave it back, or never got it.
    pub(crate) fn lose(&self, job: &str) -> bool {
        self.state.lock().jobs.remove(job).is_some()
    }

    pub(crate) fn has(&self, job: &str) -> bool {
        self.state.lock().jobs.contains_key(job)
    }

    /// The worker says which jobs it has: loses those that it should have and does not, and
    /// returns those that nobody waits for.
    pub(crate) fn compare(&self, theirs: &[String]) -> Vec<String> {
        let mut state = self.state.lock();
        state.jobs.retain(|id, open| {
            open.answer.is_none() || open.claimed.elapsed() < HANDING_OVER || theirs.contains(id)
        });
        let unwanted = theirs.iter().filter(|id| !state.jobs.contains_key(*id));
        unwanted.cloned().collect()
    }

    /// Jobs that it has.
    pub(crate) fn jobs(&self) -> usize {
        self.state.lock().jobs.len()
    }

    /// The worker is gone: every job is lost, no poll is open.
    pub(crate) fn clear(&self) -> u32 {
        let mut state = self.state.lock();
        state.polls.clear();
        state.jobs.clear();
        0
    }
}

/// The polls that somebody still waits at.
fn open(state: &mut State) -> u32 {
    u32::try_from(state.polls.len()).unwrap_or(u32::MAX)
}
