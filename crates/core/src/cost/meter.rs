//! What one worker was seen to do.
//!
//! **Ahead**: the seconds of prefill that stand before a newcomer: what was expected of each open
//! prefill, less what the first of them has had. An engine computes prompts in the order in which
//! they came, so a first token says that all before it is done. A first token that nobody can see
//! (an answer in one piece) counts as come when it was expected.
//!
//! **Periods**: prompts that come together are computed together, and their first tokens come
//! together; so what one of them took is not to be seen, and what all of them took is. A period
//! lasts from the first open prefill until none is open, or until [`MEMBERS`] first tokens came;
//! it is learnt when the engine has said how much of each prompt it had to compute.
//!
//! **Decode**: sums over time of who decoded and of how much context, so that an answer's time can
//! be laid to the batch it was in.

use super::rates::squares;
use crate::ids::RequestId;
use crate::time::Nanos;
use alloc::collections::VecDeque;
use smallvec::SmallVec;

/// First tokens in one period, at most.
const MEMBERS: u32 = 8;

/// Periods of a worker that wait for the engine's counts; of more the oldest is learnt by what was
/// believed.
const WAITING: usize = 8;

/// Answers of fewer tokens say nothing of a step.
const OUTPUT_MIN: f64 = 8.0;

/// Prefills in one stretch of time on one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Period {
    number: u32,
    start: Nanos,
    last: Nanos,
    open: bool,
    /// Moments at which first tokens came.
    pub(super) events: u32,
    /// First tokens.
    pub(super) members: u32,
    /// Of them, those whose counts the engine has told.
    settled: u32,
    /// New tokens, and what their attention looked at.
    pub(super) tokens: f64,
    squares: f64,
    /// Requests that decoded, summed over the members.
    decoding: f64,
    pub(super) seconds: f64,
    /// An attempt ended before its first token.
    pub(super) censored: bool,
    /// A first token was not to be seen.
    pub(super) unseen: bool,
}

impl Period {
    /// What the fit is over: moments, tokens, squares, decoders.
    pub(super) fn terms(&self) -> [f64; 4] {
        let events = f64::from(self.events.max(1));
        let decoding = self.decoding / f64::from(self.members.max(1));
        [events, self.tokens, self.squares, events * decoding]
    }
}

/// Seconds of one part of [`Recent`].
const PART_SECONDS: f64 = 20.0;

/// What was dispatched lately: the part of time that is not over, and the share of the one before
/// that is not longer ago than one part.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    began: Nanos,
    now: f64,
    before: f64,
}

impl Recent {
    fn add(&mut self, seconds: f64, now: Nanos) {
        let passed = now.since(self.began).as_secs_f64();
        if passed >= PART_SECONDS {
            self.before = if passed < 2.0 * PART_SECONDS {
                self.now
            } else {
                0.0
            };
            (self.now, self.began) = (0.0, now);
        }
        self.now += seconds;
    }

    /// Seconds dispatched in a second.
    fn share(&self, now: Nanos) -> f64 {
        let passed = now.since(self.began).as_secs_f64() / PART_SECONDS;
        let before = self.before * (1.0 - passed).max(0.0);
        let current = self.now * (2.0 - passed).clamp(0.0, 1.0);
        (before + current) / PART_SECONDS
    }
}

/// A prompt whose first token has not come.
#[derive(Clone, Copy, Debug)]
struct Open {
    request: RequestId,
    seconds: f64,
    seen: bool,
}

/// What an attempt carries of its worker's meter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Mark {
    /// New tokens, as believed, and the whole prompt.
    pub(crate) new: u64,
    pub(crate) context: u64,
    /// Whether its first token can be seen.
    pub(crate) seen: bool,
    period: Option<u32>,
    first_token: Option<Nanos>,
    decoded: f64,
    held: f64,
    prefilled: f64,
}

impl Mark {
    /// Of an attempt that was not sent yet.
    pub(crate) fn new(new: u64, context: u64, seen: bool) -> Self {
        Self {
            new,
            context,
            seen,
            ..Self::default()
        }
    }
}

/// A complete answer, as the decode cost learns it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Answered {
    /// Tokens of the answer.
    pub(super) tokens: f64,
    /// Seconds from dispatch to the end.
    pub(super) service: f64,
    /// Seconds from the first token to the end.
    pub(super) seconds: f64,
    decoding: f64,
    pub(super) context: f64,
    prefilled: f64,
    seen: bool,
}

impl Answered {
    /// What the fit is over: steps, requests in them, context in them, tokens of prefill between.
    pub(super) fn terms(&self) -> Option<[f64; 4]> {
        let steps = self.tokens - 1.0;
        let fine = self.seen && self.tokens >= OUTPUT_MIN && self.seconds > 0.0;
        fine.then(|| {
            let (requests, context) = (steps * self.decoding, steps * self.context);
            [steps, requests, context, self.prefilled]
        })
    }
}

/// Periods that are to be learnt now.
pub(crate) type Done = SmallVec<[Period; 2]>;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    open: VecDeque<Open>,
    ahead: f64,
    head_since: Nanos,
    current: Period,
    waiting: VecDeque<Period>,
    periods: u32,
    /// Requests that decode, and the tokens that they hold.
    decoding: u32,
    context: u64,
    at: Nanos,
    decoded: f64,
    held: f64,
    prefilled: f64,
    recent: Recent,
    pub(super) pace_log: f64,
    pace: Option<f64>,
}

impl Meter {
    /// Times that it takes longer than the pool's costs say.
    pub(crate) fn pace(&self) -> f64 {
        self.pace.unwrap_or(1.0)
    }

    /// Its pace, in the logarithm.
    pub(super) fn set_pace_log(&mut self, log: f64) {
        self.pace_log = log;
        self.pace = Some(libm::exp(log));
    }

    /// Requests whose first token came.
    pub(crate) fn decoding(&self) -> u32 {
        self.decoding
    }

    /// Seconds of work that were dispatched in a second, lately.
    pub(crate) fn busy(&self, now: Nanos) -> f64 {
        self.recent.share(now)
    }

    /// So many seconds of work were dispatched to it.
    pub(crate) fn worked(&mut self, seconds: f64, now: Nanos) {
        self.recent.add(seconds, now);
    }

    /// Seconds of prefill that stand before a newcomer.
    pub(crate) fn ahead(&self, now: Nanos) -> f64 {
        let mut left = self.ahead;
        let mut passed = now.since(self.head_since).as_secs_f64();
        for open in &self.open {
            left -= passed.min(open.seconds);
            passed -= open.seconds;
            if open.seen || passed <= 0.0 {
                break;
            }
        }
        left.max(0.0)
    }

    /// A prompt was dispatched that should take so many seconds.
    pub(crate) fn dispatched(&mut self, request: RequestId, mark: &Mark, seconds: f64, now: Nanos) {
        self.pass(now);
        if self.open.is_empty() {
            self.head_since = now;
            self.begin(now);
        }
        self.current.unseen |= !mark.seen;
        self.ahead += seconds;
        self.open.push_back(Open {
            request,
            seconds,
            seen: mark.seen,
        });
    }

    /// Its first token came; `resident` tokens are its own until the end.
    pub(crate) fn first_token(
        &mut self,
        request: RequestId,
        mark: &mut Mark,
        resident: u64,
        now: Nanos,
        done: &mut Done,
    ) {
        self.pass(now);
        self.leave(request, now);
        mark.first_token = Some(now);
        self.prefilled += mark.new as f64;
        if self.current.open {
            let period = &mut self.current;
            if period.members == 0 || period.last != now {
                period.events += 1;
                period.last = now;
            }
            period.members += 1;
            period.tokens += mark.new as f64;
            period.squares += squares(mark.new, mark.context);
            period.decoding += f64::from(self.decoding);
            mark.period = Some(period.number);
            if self.open.is_empty() || period.members >= MEMBERS {
                self.close(now, done);
            }
        }
        self.decoding += 1;
        self.context = self.context.saturating_add(resident);
        (mark.decoded, mark.held) = (self.decoded, self.held);
        mark.prefilled = self.prefilled;
    }

    /// The attempt ended, served or not. `new`: the tokens that the engine had to compute, where it
    /// said so.
    pub(crate) fn ended(
        &mut self,
        request: RequestId,
        mark: &Mark,
        resident: u64,
        new: Option<u64>,
        now: Nanos,
        done: &mut Done,
    ) {
        self.pass(now);
        if mark.first_token.is_none() {
            self.leave(request, now);
            self.current.censored |= mark.seen;
            if self.open.is_empty() && self.current.open {
                self.close(now, done);
            }
            return;
        }
        self.decoding = self.decoding.saturating_sub(1);
        self.context = self.context.saturating_sub(resident);
        let Some(number) = mark.period else {
            return;
        };
        let at = self.waiting.iter().position(|p| p.number == number);
        let period = match at {
            Some(at) => &mut self.waiting[at],
            None if self.current.open && self.current.number == number => &mut self.current,
            None => return,
        };
        period.settled += 1;
        if let Some(new) = new {
            period.tokens += new as f64 - mark.new as f64;
            period.squares += squares(new, mark.context) - squares(mark.new, mark.context);
        }
        if let Some(at) = at.filter(|at| self.waiting[*at].settled >= self.waiting[*at].members) {
            done.extend(self.waiting.remove(at));
        }
    }

    /// The answer of an attempt that ended now.
    pub(crate) fn answered(
        &self,
        mark: &Mark,
        output_tokens: u32,
        dispatched: Nanos,
        now: Nanos,
    ) -> Answered {
        let first = mark.first_token.unwrap_or(now);
        let seconds = now.since(first).as_secs_f64();
        let over = seconds.max(1e-9);
        Answered {
            tokens: f64::from(output_tokens),
            service: now.since(dispatched).as_secs_f64(),
            seconds,
            decoding: (self.decoded - mark.decoded) / over,
            context: (self.held - mark.held) / over,
            prefilled: self.prefilled - mark.prefilled,
            seen: mark.seen && mark.first_token.is_some(),
        }
    }

    /// Brings the sums over time to `now`.
    fn pass(&mut self, now: Nanos) {
        let seconds = now.since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.decoded += seconds * f64::from(self.decoding);
        self.held += seconds * self.context as f64;
        while let Some(head) = self.open.front()
            && !head.seen
            && now.since(self.head_since).as_secs_f64() >= head.seconds
        {
            let seconds = head.seconds;
            self.head_since = self.head_since + core::time::Duration::from_secs_f64(seconds);
            self.ahead -= seconds;
            self.open.pop_front();
        }
        self.settle_ahead();
    }

    /// The prompt is no longer ahead of anybody.
    fn leave(&mut self, request: RequestId, now: Nanos) {
        let Some(at) = self.open.iter().position(|open| open.request == request) else {
            return;
        };
        let Some(gone) = self.open.remove(at) else {
            return;
        };
        self.ahead -= gone.seconds;
        self.head_since = if at == 0 {
            now
        } else {
            // What it took, those before it did not get.
            now.min(self.head_since + core::time::Duration::from_secs_f64(gone.seconds))
        };
        self.settle_ahead();
    }

    /// Sums of what was added and taken away do not come back to 0 by themselves.
    fn settle_ahead(&mut self) {
        if self.open.is_empty() {
            self.ahead = 0.0;
        }
    }

    fn begin(&mut self, now: Nanos) {
        self.periods = self.periods.wrapping_add(1);
        self.current = Period {
            number: self.periods,
            start: now,
            last: now,
            open: true,
            ..Period::default()
        };
    }

    fn close(&mut self, now: Nanos, done: &mut Done) {
        let mut period = self.current;
        period.open = false;
        period.seconds = now.since(period.start).as_secs_f64();
        self.current.open = false;
        if period.members == 0 || period.censored || period.unseen {
            done.push(period);
        } else {
            self.waiting.push_back(period);
            if self.waiting.len() > WAITING {
                done.extend(self.waiting.pop_front());
            }
        }
        if !self.open.is_empty() {
            let unseen = self.open.iter().any(|open| !open.seen);
            self.begin(now);
            self.current.unseen = unseen;
        }
    }
}

#[cfg(test)]
mod tests;
