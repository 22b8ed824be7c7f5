//! What clients will ask for, written down before anything is simulated: sessions of requests, each with its blocks
//! and lengths, released by time or by the ends of others.
//!
//! A generator or a trace gives a [`Plan`]; [`Clients`] play it. So every policy gets the same requests, and a
//! follow-up still comes only after its answer.

mod ceiling;
mod clients;
#[cfg(test)]
mod tests;

pub use ceiling::{Order, ideal, nominal_order};
pub use clients::{Clients, Manners};

use std::time::Duration;

use maitred_core::ids::TenantId;
use maitred_core::request::BlockHash;
use maitred_core::rng::mix;
use maitred_core::time::Nanos;

/// Blocks with consecutive ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Id of the first. An id stands for its content and everything before it: equal ids, equal beginnings.
    pub first: u64,
    /// How many.
    pub count: u32,
}

/// When a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// At that time.
    At(Nanos),
    /// A pause after the last of what it waits for has ended.
    After {
        /// How many ends it waits for; at least 1.
        needs: u32,
        /// The pause: thought, or a tool's run.
        pause: Duration,
        /// Not before that time, however early the ends come: when a trace says it was sent.
        no_sooner: Nanos,
    },
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Its session, from 0.
    pub session: u32,
    /// 1 for the session's first.
    pub turn: u32,
    /// Who pays.
    pub tenant: TenantId,
    /// A label, an index into [`Plan::groups`].
    pub group: u16,
    /// The prompt's full blocks.
    pub spans: Box<[Span]>,
    /// All prompt tokens, the unfilled last block included.
    pub prompt_tokens: u32,
    /// Tokens of the answer, exactly.
    pub output_tokens: u32,
    /// When it is sent.
    pub begin: Begin,
    /// Requests of other sessions that wait for its end (the next one of its own session does so anyway): first
    /// turns that it calls into being, later turns that wait for it.
    pub also: Box<[u32]>,
}

impl Begin {
    /// A pause after one end.
    #[must_use]
    pub fn after(pause: Duration) -> Self {
        Self::After {
            needs: 1,
            pause,
            no_sooner: Nanos::default(),
        }
    }
}

impl Planned {
    /// The ids of its full blocks.
    pub fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.spans
            .iter()
            .flat_map(|span| (0..u64::from(span.count)).map(move |at| span.first + at))
    }

    /// Its full blocks as the scheduler sees them.
    #[must_use]
    pub fn chain(&self) -> Vec<BlockHash> {
        self.ids().map(mix).collect()
    }
}

/// All requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Tokens in a block.
    pub block_tokens: u32,
    /// Names of the labels.
    pub groups: Vec<String>,
    /// The requests: those of a session follow each other, in order of turns.
    pub requests: Vec<Planned>,
    /// Where each session begins in `requests`.
    pub sessions: Vec<u32>,
}

impl Plan {
    /// The number of a session's request.
    #[must_use]
    pub fn at(&self, session: u64, turn: u32) -> Option<u32> {
        let first = *self.sessions.get(usize::try_from(session).ok()?)?;
        let at = first + turn.checked_sub(1)?;
        let found = self.requests.get(at as usize)?;
        (u64::from(found.session) == session).then_some(at)
    }

    /// The request of the same session that follows request `at`.
    #[must_use]
    pub fn following(&self, at: u32) -> Option<u32> {
        let next = self.requests.get(at as usize + 1)?;
        (next.session == self.requests[at as usize].session).then_some(at + 1)
    }

    /// From the first to the last start that is bound to a time.
    #[must_use]
    pub fn span(&self) -> Duration {
        let times = || self.requests.iter().filter_map(Planned::start);
        match (times().min(), times().max()) {
            (Some(first), Some(last)) => last.since(first),
            _ => Duration::ZERO,
        }
    }

    /// The same requests with all times multiplied by `factor`; pauses stay.
    pub fn stretch(&mut self, factor: f64) {
        for request in &mut self.requests {
            match &mut request.begin {
                Begin::At(at) | Begin::After { no_sooner: at, .. } => {
                    *at = Nanos((at.0 as f64 * factor) as u64);
                }
            }
        }
    }
}

impl Planned {
    fn start(&self) -> Option<Nanos> {
        match self.begin {
            Begin::At(at) => Some(at),
            Begin::After { .. } => None,
        }
    }
}

/// Writes a plan, session by session.
#[derive(Debug)]
pub struct PlanBuilder {
    plan: Plan,
    next_id: u64,
}

impl PlanBuilder {
    /// An empty one; block ids are handed out from 1.
    #[must_use]
    pub fn new(block_tokens: u32) -> Self {
        let block_tokens = block_tokens.max(1);
        Self {
            plan: Plan {
                block_tokens,
                ..Plan::default()
            },
            next_id: 1,
        }
    }

    /// Tokens in a block.
    #[must_use]
    pub fn block(&self) -> u32 {
        self.plan.block_tokens
    }

    /// As many ids as nobody else has; the first of them.
    pub fn fresh(&mut self, blocks: u64) -> u64 {
        let first = self.next_id;
        self.next_id += blocks;
        first
    }

    /// The label of that name.
    pub fn group(&mut self, name: &str) -> u16 {
        let groups = &mut self.plan.groups;
        let at = groups.iter().position(|known| known == name);
        let at = at.unwrap_or_else(|| {
            groups.push(name.to_owned());
            groups.len() - 1
        });
        u16::try_from(at).unwrap_or(u16::MAX)
    }

    /// Begins a session; its requests are what [`PlanBuilder::turn`] adds until the next one begins.
    pub fn session(&mut self) -> u32 {
        // A session without requests would have no place in the list.
        if self.plan.sessions.last().copied() != Some(self.len()) {
            self.plan.sessions.push(self.len());
        }
        self.plan.sessions.len() as u32 - 1
    }

    /// Requests so far: the number of the next one.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.plan.requests.len() as u32
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.plan.requests.is_empty()
    }

    /// Adds the session's next request and returns its number. Its `session`, `turn` and `also` are set here.
    pub fn turn(&mut self, mut request: Planned) -> u32 {
        let at = self.len();
        let first = self.plan.sessions.last().copied().unwrap_or(0);
        request.session = (self.plan.sessions.len() as u32).saturating_sub(1);
        request.turn = at - first + 1;
        request.also = Box::default();
        self.plan.requests.push(request);
        at
    }

    /// A session's first request is called into being by `caller`: its pause begins with the end of that one.
    pub fn called_by(&mut self, first: u32, caller: u32) {
        self.link(first, caller);
    }

    /// `later`, a request of another session, waits for the end of `earlier` as well.
    pub fn wait_for(&mut self, later: u32, earlier: u32) {
        self.link(later, earlier);
        if let Some(Planned {
            begin: Begin::After { needs, .. },
            ..
        }) = self.plan.requests.get_mut(later as usize)
        {
            *needs += 1;
        }
    }

    fn link(&mut self, later: u32, earlier: u32) {
        if let Some(request) = self.plan.requests.get_mut(earlier as usize) {
            let mut also = request.also.to_vec();
            also.push(later);
            request.also = also.into();
        }
    }

    /// What was written.
    #[must_use]
    pub fn finish(self) -> Plan {
        self.plan
    }
}
