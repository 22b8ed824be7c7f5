//! From rows to a plan that can be played.

use std::collections::HashMap;
use std::time::Duration;

use maitred_core::ids::TenantId;
use maitred_core::rng::{Rng, mix};
use maitred_core::time::Nanos;

use super::{Row, TraceError};
use crate::plan::{Begin, Plan, PlanBuilder, Planned};

/// When sessions begin and go on where a trace does not say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrivals {
    /// Sessions a second whose start the trace does not say: seeded Poisson.
    pub rate: f64,
    /// Seconds before a follow-up whose time the trace does not say.
    pub pause: f64,
    /// Times of the trace are not gone by: for sessions that were recorded one after the other.
    pub drawn: bool,
}

impl Default for Arrivals {
    /// A session in 10 s, 5 s before a follow-up.
    fn default() -> Self {
        Self {
            rate: 0.1,
            pause: 5.0,
            drawn: false,
        }
    }
}

/// A row that waits for its place.
#[derive(Debug)]
struct Kept {
    session: usize,
    at: Option<f64>,
    pause: Option<f64>,
    called_by: Option<u64>,
    awaited: bool,
    /// The row of the caller that stood last when it called.
    caller: Option<usize>,
    request: Planned,
}

/// Takes rows, gives a plan. Holds all of it: some hundred bytes a request.
#[derive(Debug)]
pub struct PlanReader {
    groups: Vec<String>,
    arrivals: Arrivals,
    requests_max: usize,
    sessions: HashMap<u64, usize>,
    /// The last row of each session so far.
    last: Vec<usize>,
    kept: Vec<Kept>,
    left_out: u64,
}

impl PlanReader {
    /// Keeps at most `requests_max` requests; what comes after is counted.
    #[must_use]
    pub fn new(arrivals: Arrivals, requests_max: usize) -> Self {
        Self {
            groups: Vec::new(),
            arrivals,
            requests_max,
            sessions: HashMap::new(),
            last: Vec::new(),
            kept: Vec::new(),
            left_out: 0,
        }
    }

    /// Rows that were left out.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Takes one row.
    ///
    /// # Errors
    /// It is called by a session of which nothing was read.
    pub fn take(&mut self, row: Row) -> Result<(), TraceError> {
        if self.kept.len() >= self.requests_max {
            self.left_out += 1;
            return Ok(());
        }
        let at = self.kept.len();
        let known = row.session.and_then(|key| self.sessions.get(&key).copied());
        let caller = match row.called_by.filter(|_| known.is_none()) {
            None => None,
            Some(key) => {
                let session = self.sessions.get(&key).ok_or_else(|| {
                    super::lines::wrong(row.line, "called_by", "names no session before it")
                })?;
                Some(self.last[*session])
            }
        };
        let session = known.unwrap_or_else(|| {
            self.last.push(at);
            if let Some(key) = row.session {
                self.sessions.insert(key, self.last.len() - 1);
            }
            self.last.len() - 1
        });
        self.last[session] = at;
        let mut spans = row.spans;
        if row.partial
            && let Some(last) = spans.last_mut()
        {
            last.count -= 1;
            if last.count == 0 {
                spans.pop();
            }
        }
        let request = Planned {
            session: 0,
            turn: 0,
            tenant: TenantId(row.tenant),
            group: self.group(row.group),
            spans: spans.into(),
            prompt_tokens: row.input.max(1),
            output_tokens: row.output.max(1),
            begin: Begin::At(Nanos::default()),
            also: Box::default(),
        };
        self.kept.push(Kept {
            session,
            at: row.at.filter(|_| !self.arrivals.drawn),
            pause: row.pause,
            called_by: row.called_by,
            awaited: row.awaited,
            caller,
            request,
        });
        Ok(())
    }

    fn group(&mut self, name: String) -> u16 {
        let known = self.groups.iter().position(|known| *known == name);
        let at = known.unwrap_or_else(|| {
            self.groups.push(name);
            self.groups.len() - 1
        });
        u16::try_from(at).unwrap_or(u16::MAX)
    }

    /// The plan. `block_tokens` is what the trace's reader returned; `seed` is what starts follow from that the trace
    /// does not say.
    #[must_use]
    pub fn plan(&self, block_tokens: u32, seed: u64) -> Plan {
        let zero = self.kept.iter().filter_map(|kept| kept.at).reduce(f64::min);
        let time = |at: f64| {
            Nanos::default()
                + Duration::try_from_secs_f64(at - zero.unwrap_or(0.0)).unwrap_or_default()
        };
        let pause = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let mut rng = Rng::new(mix(seed));
        let mut drawn = 0.0;
        let mut order: Vec<usize> = (0..self.kept.len()).collect();
        order.sort_by_key(|at| self.kept[*at].session);
        let mut builder = PlanBuilder::new(block_tokens);
        for group in &self.groups {
            builder.group(group);
        }
        let mut places = vec![0_u32; self.kept.len()];
        let mut before = None;
        for at in &order {
            let kept = &self.kept[*at];
            let first = before != Some(kept.session);
            before = Some(kept.session);
            if first {
                builder.session();
            }
            let begin = match (first, kept.at, kept.pause) {
                (true, Some(at), _) => Begin::At(time(at)),
                (true, None, wait) if kept.caller.is_some() => {
                    Begin::after(pause(wait.unwrap_or(0.0)))
                }
                (true, None, _) => {
                    drawn -= (1.0 - rng.unit()).ln() / self.arrivals.rate.max(1e-9);
                    Begin::At(Nanos::default() + pause(drawn))
                }
                (false, _, Some(wait)) => Begin::after(pause(wait)),
                (false, Some(at), None) => Begin::After {
                    needs: 1,
                    pause: Duration::ZERO,
                    no_sooner: time(at),
                },
                (false, None, None) => Begin::after(pause(self.arrivals.pause)),
            };
            let request = Planned {
                begin,
                ..kept.request.clone()
            };
            places[*at] = builder.turn(request);
        }
        self.connect(&mut builder, &order, &places);
        builder.finish()
    }

    /// Called sessions begin by their callers, which wait for them where the trace says so.
    fn connect(&self, builder: &mut PlanBuilder, order: &[usize], places: &[u32]) {
        for (place, at) in order.iter().enumerate() {
            let kept = &self.kept[*at];
            let Some(caller) = kept.caller else {
                continue;
            };
            debug_assert!(kept.called_by.is_some(), "who has a caller was called");
            builder.called_by(places[*at], places[caller]);
            if !kept.awaited {
                continue;
            }
            let session = order[place..].iter();
            let last = session
                .take_while(|other| self.kept[**other].session == kept.session)
                .last();
            let next = places[caller] + 1;
            let own = (order.get(next as usize)).map(|other| self.kept[*other].session);
            if let (Some(last), Some(own)) = (last, own)
                && own == self.kept[caller].session
            {
                builder.wait_for(next, places[*last]);
            }
        }
    }
}
