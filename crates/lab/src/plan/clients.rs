//! The clients that play a plan: what they send follows from what became of what they sent before.

use std::collections::VecDeque;
use std::time::Duration;

use maitred_core::time::Nanos;

use super::{Begin, Plan};
use crate::sim::{Ask, End, Outcome, Workload};

/// A failed request is tried again after so long, where nobody says when.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// How clients behave when they are not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manners {
    /// How often a refused or failed request is sent once more: when the refusal says, or a second later. After that
    /// the session ends.
    pub retries: u32,
    /// They give up so long after sending, unless the first token came.
    pub patience: Option<Duration>,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            retries: 2,
            patience: None,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Clients<'a> {
    plan: &'a Plan,
    manners: Manners,
    /// Requests that are bound to a time, the last one first.
    starts: Vec<(Nanos, u32)>,
    /// Ends that each request still waits for; `u32::MAX`: it will not be sent.
    left: Vec<u32>,
    /// What is to be sent now that something ended.
    ready: VecDeque<(Duration, u32)>,
    abandoned: u64,
}

const NEVER: u32 = u32::MAX;

impl<'a> Clients<'a> {
    /// All of them, before the first request.
    #[must_use]
    pub fn new(plan: &'a Plan, manners: Manners) -> Self {
        let mut starts = Vec::new();
        let mut left = Vec::with_capacity(plan.requests.len());
        for (at, request) in plan.requests.iter().enumerate() {
            match request.begin {
                Begin::At(time) => {
                    starts.push((time, at as u32));
                    left.push(0);
                }
                Begin::After { needs, .. } => left.push(needs.max(1)),
            }
        }
        starts.sort_unstable_by(|a, b| b.cmp(a));
        Self {
            plan,
            manners,
            starts,
            left,
            ready: VecDeque::new(),
            abandoned: 0,
        }
    }

    /// Requests that were never sent, because their session ended before.
    #[must_use]
    pub fn abandoned(&self) -> u64 {
        self.abandoned
    }

    fn ask(&self, at: u32, tries: u32) -> Ask {
        let request = &self.plan.requests[at as usize];
        Ask {
            session: u64::from(request.session),
            group: request.group,
            tenant: request.tenant,
            turn: request.turn,
            tries,
            chain: request.chain(),
            prompt_tokens: request.prompt_tokens,
            output_tokens: request.output_tokens,
            patience: self.manners.patience,
        }
    }

    /// One of the ends that `at` waits for has come.
    fn release(&mut self, at: u32, now: Nanos) {
        let left = &mut self.left[at as usize];
        if *left == NEVER || *left == 0 {
            return;
        }
        *left -= 1;
        if *left == 0
            && let Begin::After {
                pause, no_sooner, ..
            } = self.plan.requests[at as usize].begin
        {
            self.ready.push_back((pause.max(no_sooner.since(now)), at));
        }
    }

    fn done(&mut self, at: u32, now: Nanos) {
        if let Some(next) = self.plan.following(at) {
            self.release(next, now);
        }
        for other in &self.plan.requests[at as usize].also {
            self.release(*other, now);
        }
    }

    /// The session ends with request `at`: the rest of it is not sent, nor are the sessions that the rest would have
    /// called into being; who waits for its end waits no longer.
    fn abandon(&mut self, at: u32, now: Nanos) {
        // What `at` itself would have begun is not begun either.
        let mut ended = vec![at];
        while let Some(at) = ended.pop() {
            if let Some(next) = self.plan.following(at)
                && self.left[next as usize] != NEVER
            {
                self.left[next as usize] = NEVER;
                self.abandoned += 1;
                ended.push(next);
            }
            for other in &self.plan.requests[at as usize].also {
                if self.plan.requests[*other as usize].turn > 1 {
                    self.release(*other, now);
                } else if self.left[*other as usize] != NEVER {
                    self.left[*other as usize] = NEVER;
                    self.abandoned += 1;
                    ended.push(*other);
                }
            }
        }
    }
}

impl Workload for Clients<'_> {
    fn start(&mut self) -> Option<(Nanos, Ask)> {
        let (time, at) = self.starts.pop()?;
        Some((time, self.ask(at, 0)))
    }

    fn next(&mut self, last: &Outcome) -> Option<(Duration, Ask)> {
        let at = self.plan.at(last.session, last.turn)?;
        match last.end {
            End::Served => self.done(at, last.ended),
            End::Refused { .. } | End::Failed(_) if last.tries < self.manners.retries => {
                let told = match last.end {
                    End::Refused { retry_after, .. } => retry_after,
                    _ => None,
                };
                let after = told.unwrap_or(RETRY_PAUSE);
                return Some((after, self.ask(at, last.tries + 1)));
            }
            _ => self.abandon(at, last.ended),
        }
        self.more()
    }

    fn more(&mut self) -> Option<(Duration, Ask)> {
        let (pause, at) = self.ready.pop_front()?;
        Some((pause, self.ask(at, 0)))
    }
}
