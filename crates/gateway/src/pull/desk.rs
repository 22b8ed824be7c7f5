//! One pulling worker's desk: its open polls, the requests promised to them, and the jobs it has.
//!
//! A dispatch takes a poll at the moment of the decision, under the scheduler's lock, so that polls
//! and the scheduler's count of them never differ. A job is known here from the moment it is claimed
//! until its attempt lets go of it ([`Claim`]); taking it out ends the attempt.

use super::past::{End, Past};
use super::work::{Handing, Job, Loss, Work};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use hyper::body::Incoming;
use maitred_core::AttemptId;
use maitred_core::pool::RequestLimits;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A job that was handed out and is in no list of the worker's after this time was lost on its way.
const HANDING_OVER: Duration = Duration::from_secs(3);

/// What a worker answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// What came of the body with the head.
    pub(crate) begun: Bytes,
    /// What still comes.
    pub(crate) rest: Option<Incoming>,
    /// The worker withheld a part, or all, of what its model said (a Horde worker's word).
    pub(crate) filtered: bool,
    /// Told when all was read; dropped when nobody reads any more.
    pub(crate) done: oneshot::Sender<()>,
}

/// Which API a worker speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    /// Our own: any request, streamed answers, heartbeats.
    Maitred,
    /// The AI Horde's: one plain prompt, one text back, no heartbeat.
    Horde,
}

impl Speaks {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Maitred => "maitred",
            Self::Horde => "horde",
        }
    }
}

/// What a worker last said of itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Said {
    /// Which life of the worker: another one begins with a cold cache.
    pub(crate) instance: Option<String>,
    /// The program, as it names itself.
    pub(crate) agent: Option<String>,
    pub(crate) models: Vec<String>,
    pub(crate) slots: Option<u32>,
    pub(crate) limits: RequestLimits,
    /// It said nothing for too long.
    pub(crate) silent: bool,
    /// Its owner wants it to get nothing, and why.
    pub(crate) maintenance: Option<String>,
}

/// A worker's polls and jobs, to be shown.
#[derive(Clone, Debug, PartialEq)]
pub struct PullView {
    /// The API it speaks: `maitred` or `horde`.
    pub api: &'static str,
    /// Whose it is.
    pub owner: String,
    /// The program, as it names itself.
    pub agent: Option<String>,
    /// Polls that wait.
    pub polls: u32,
    /// Jobs that it has.
    pub jobs: u32,
    /// For how long the oldest of them has been there.
    pub oldest_job: Option<Duration>,
    /// Since its last sign of life.
    pub heard: Duration,
    /// Most tokens of prompt and answer.
    pub context_max: Option<u32>,
    /// Most tokens of an answer.
    pub output_max: Option<u32>,
    /// Why its owner wants it to get nothing.
    pub maintenance: Option<String>,
}

struct Open {
    /// None: the worker is answering.
    answer: Option<oneshot::Sender<Answer>>,
    /// Tells the attempt why the job is lost.
    lost: Option<oneshot::Sender<Loss>>,
    claimed: Instant,
    /// The worker asked for another job although it can have but one.
    doubted: Option<Instant>,
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
    pub(crate) speaks: Speaks,
    pub(crate) owner: String,
    pub(crate) said: Mutex<Said>,
    state: Mutex<State>,
    seen: Mutex<Instant>,
    past: Arc<Past>,
}

/// An attempt's hold on its job.
pub(crate) struct Claim {
    desk: Arc<Desk>,
    pub(crate) id: String,
    /// The answer's head; an error: the job is lost.
    pub(crate) answer: oneshot::Receiver<Answer>,
    /// Ready: the job is lost.
    pub(crate) lost: oneshot::Receiver<Loss>,
}

impl Claim {
    pub(crate) fn heard(&self) {
        self.desk.heard();
    }

    /// Why the job is lost, now that it is.
    pub(crate) fn loss(&mut self) -> Loss {
        self.lost.try_recv().unwrap_or(Loss::Broken)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let open = self.desk.state.lock().jobs.remove(&self.id);
        if let Some(open) = open {
            let end = match open.answer {
                Some(_) => End::Cancelled,
                None => End::Answered,
            };
            self.desk.past.note(&self.id, end);
        }
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
    pub(crate) fn new(speaks: Speaks, owner: &str, said: Said, past: Arc<Past>) -> Self {
        Self {
            speaks,
            owner: owner.to_owned(),
            said: Mutex::new(said),
            state: Mutex::default(),
            seen: Mutex::new(Instant::now()),
            past,
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

    /// What is known of it.
    pub(crate) fn view(&self) -> PullView {
        let said = self.said.lock().clone();
        let state = self.state.lock();
        let oldest = state.jobs.values().map(|open| open.claimed.elapsed()).max();
        PullView {
            api: self.speaks.as_str(),
            owner: self.owner.clone(),
            agent: said.agent,
            polls: count(state.polls.len()),
            jobs: count(state.jobs.len()),
            oldest_job: oldest,
            heard: self.silent_for(),
            context_max: said.limits.context_max,
            output_max: said.limits.output_max,
            maintenance: said.maintenance,
        }
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
        count(state.polls.len())
    }

    pub(crate) fn open_polls(&self) -> u32 {
        count(self.state.lock().polls.len())
    }

    /// It waits no longer; returns whether that poll was still open, and its open polls.
    pub(crate) fn withdraw(&self, poll: u64) -> (bool, u32) {
        let mut state = self.state.lock();
        let before = state.polls.len();
        state.polls.retain(|(number, _)| *number != poll);
        let was_open = state.polls.len() < before;
        (was_open, count(state.polls.len()))
    }

    /// All polls end, without a job; returns its open polls.
    pub(crate) fn dismiss(&self) -> u32 {
        self.state.lock().polls.clear();
        0
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

    /// The attempt can not use the poll that it was promised.
    pub(crate) fn decline(&self, attempt: AttemptId) {
        self.state.lock().promised.remove(&attempt);
    }

    /// Hands the attempt's request to the poll that it was promised; None: the poll is gone.
    pub(crate) fn claim(self: &Arc<Self>, attempt: AttemptId, work: Work) -> Option<Claim> {
        let (answer_sender, answer) = oneshot::channel();
        let (lost_sender, lost) = oneshot::channel();
        let id = super::job_id();
        let poll = {
            let mut state = self.state.lock();
            let poll = state.promised.remove(&attempt)?;
            let open = Open {
                answer: Some(answer_sender),
                lost: Some(lost_sender),
                claimed: Instant::now(),
                doubted: None,
            };
            state.jobs.insert(id.clone(), open);
            poll
        };
        let handing = Handing::new(Arc::clone(self), id.clone());
        let job = Job {
            id: id.clone(),
            work,
            handing,
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
    pub(crate) fn lose(&self, job: &str, why: Loss) -> bool {
        let open = self.state.lock().jobs.remove(job);
        let was_open = open.is_some();
        if let Some(open) = open {
            self.end(job, open, why);
        }
        was_open
    }

    fn end(&self, job: &str, open: Open, why: Loss) {
        self.past.note(job, End::of(why));
        if let Some(lost) = open.lost {
            // Nobody waits for it any more: as well.
            let _ = lost.send(why);
        }
    }

    fn lose_where(&self, why: Loss, lost: impl Fn(&str, &Open) -> bool) {
        let gone: Vec<(String, Open)> = {
            let mut state = self.state.lock();
            state.jobs.extract_if(|id, open| lost(id, open)).collect()
        };
        for (id, open) in gone {
            self.end(&id, open, why);
        }
    }

    pub(crate) fn has(&self, job: &str) -> bool {
        self.state.lock().jobs.contains_key(job)
    }

    /// The worker says which jobs it has: loses those that it should have and does not, and
    /// returns those that nobody waits for.
    pub(crate) fn compare(&self, theirs: &[String]) -> Vec<String> {
        self.lose_where(Loss::Missing, |id, open| {
            open.answer.is_some()
                && open.claimed.elapsed() >= HANDING_OVER
                && !theirs.iter().any(|theirs| theirs == id)
        });
        let state = self.state.lock();
        let unwanted = theirs.iter().filter(|id| !state.jobs.contains_key(*id));
        unwanted.cloned().collect()
    }

    /// Loses what was handed out longer than `most` ago and is not being answered.
    pub(crate) fn expire(&self, most: Duration) {
        self.lose_where(Loss::Expired, |_, open| {
            open.answer.is_some() && open.claimed.elapsed() > most
        });
    }

    /// A worker that can have one job asks for one: what it had, it has no more, unless its answer
    /// comes soon.
    pub(crate) fn doubt(&self) {
        let now = Instant::now();
        for open in self.state.lock().jobs.values_mut() {
            open.doubted.get_or_insert(now);
        }
    }

    /// Loses what has been doubted for longer than `most`.
    pub(crate) fn give_up_doubted(&self, most: Duration) {
        self.lose_where(Loss::Dropped, |_, open| {
            open.answer.is_some() && open.doubted.is_some_and(|at| at.elapsed() > most)
        });
    }

    /// Jobs that it has.
    pub(crate) fn jobs(&self) -> usize {
        self.state.lock().jobs.len()
    }

    /// The worker is gone: every job is lost, no poll is open.
    pub(crate) fn clear(&self, why: Loss) -> u32 {
        self.dismiss();
        self.lose_where(why, |_, _| true);
        0
    }
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
