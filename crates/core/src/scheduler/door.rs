//! The door: who may wait, who is refused and what is told to whom.

use super::Scheduler;
use super::request::Request;
use crate::ids::ModelKey;
use crate::input::Effect;
use crate::line::book::{Book, Guest, Place, Want};
use crate::line::ticket::Ticket;
use crate::request::{Failure, Refusal, RetryAfter};
use crate::time::Nanos;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

/// How much of `start_within` a fresh newcomer leaves to one who booked, for what is not foreseen.
const SLACK: f64 = 0.1;

fn guest_of(request: &Request) -> Guest {
    Guest {
        tenant: request.guest.tenant,
        caller: request.guest.flow.map_or(0, |flow| flow.0),
        session: request.guest.session.map_or(0, |session| session.0),
    }
}

fn page(request: &Request) -> (u16, Option<ModelKey>) {
    (request.ticket.band, request.guest.model)
}

impl Scheduler {
    /// Whether the line has a place for it. Those who have one keep it, and those who come back
    /// for another attempt were admitted already: their number is bounded by the seats.
    fn may_wait(&self, request: &Request) -> bool {
        request.waits() || request.attempts > 0 || self.line.len() < self.config.line_max
    }

    /// What a newcomer to the line is refused for. Those who are in it, or were, are not asked.
    pub(super) fn door(&mut self, request: &mut Request, now: Nanos) -> Option<Refusal> {
        if request.waits() || request.attempts > 0 {
            return None;
        }
        if !self.may_wait(request) {
            return Some(Refusal::LineFull);
        }
        let config = &self.config;
        let full = self.line.counts.full(
            &request.ticket,
            config.flow_limits,
            &config.tenants,
            &config.bands,
        );
        if full.is_some() {
            return full;
        }
        if let Some(place) = self.due(request, now) {
            request.ticket.whole = place.whole;
        }
        let ticket = &mut request.ticket;
        let whole = ticket.whole.then_some(true);
        ticket.predicted = self.line.predict(ticket, 0.0, whole, now);
        request.ticket.measured = self.line.measured(&request.ticket);
        let limit = self.start_within(&request.ticket)?;
        let late = self.late(request, limit, now);
        late.then_some(Refusal::StartTooLate)
    }

    fn start_within(&self, ticket: &Ticket) -> Option<Duration> {
        let class = self.line.class(ticket.class)?;
        class.order(ticket.band).start_within(ticket.line)
    }

    /// The place that it has, if it came in its time.
    fn due(&mut self, request: &Request, now: Nanos) -> Option<Place> {
        let book = self.line.books.get_mut(&page(request))?;
        book.expire(now);
        let place = book.place(guest_of(request))?;
        (place.start <= now).then_some(place)
    }

    /// Whether it, or one who booked, would start too late if it were let in.
    fn late(&mut self, request: &Request, limit: Duration, now: Nanos) -> bool {
        let ticket = &request.ticket;
        if ticket.predicted.is_some_and(|start| start > limit) {
            return true;
        }
        if self.due(request, now).is_some() {
            return false;
        }
        let Some(book) = self.line.books.get(&page(request)) else {
            return false;
        };
        let kept = book.kept(now);
        let start = |more, whole| {
            let start = self.line.predict(ticket, more, whole, now);
            start.unwrap_or_default()
        };
        if kept.now > 0.0 && start(kept.now, None) > limit {
            return true;
        }
        kept.next.is_some_and(|next| {
            let after = now + start(kept.now + ticket.charge(), Some(next.whole));
            after > next.start + limit.mul_f64(1.0 - SLACK)
        })
    }

    /// It is in: what was kept for it is free.
    pub(super) fn admitted(&mut self, request: &Request, now: Nanos) {
        if request.attempts == 0
            && !request.waits()
            && let Some(book) = self.line.books.get_mut(&page(request))
        {
            book.expire(now);
            book.admitted(guest_of(request), now);
        }
    }

    /// The request ends here, unserved.
    pub(super) fn refuse(
        &mut self,
        mut request: Box<Request>,
        refusal: Refusal,
        effects: &mut Vec<Effect>,
    ) {
        let now = self.now;
        self.leave_line(&mut request, now);
        let ticket = &request.ticket;
        let class = ticket.class;
        let line = self.line.counts.line(ticket.band, ticket.line);
        let retry_after = match refusal {
            Refusal::LineFull | Refusal::FlowFull | Refusal::TenantFull | Refusal::BandFull => {
                line.refused_full += 1;
                self.line.retry_after(class)
            }
            Refusal::StartTooLate => {
                line.refused_late += 1;
                self.start_again(&request, now)
            }
            Refusal::WaitExpired => {
                line.expired += 1;
                None
            }
            Refusal::AttemptsExhausted(Failure::Saturated) => request.retry_after,
            _ => None,
        };
        effects.push(Effect::Refuse {
            request: request.guest.request,
            refusal,
            retry_after,
        });
    }

    /// Books a place for it: in whole seconds, when it will be let in. None: it is not known, or
    /// all that can be promised is.
    fn start_again(&mut self, request: &Request, now: Nanos) -> Option<RetryAfter> {
        let ticket = &request.ticket;
        let limit = self.start_within(ticket)?;
        let excess = ticket.predicted?.saturating_sub(limit).as_secs_f64();
        let first = Duration::from_secs(libm::ceil(excess).max(1.0) as u64);
        let Some(each) = self.line.pace(ticket) else {
            // Nothing was measured yet: nothing can be promised.
            return Some(first);
        };
        let guest = guest_of(request);
        let class = self.line.classes.get(&ticket.class)?;
        let near = limit.mul_f64(1.0 - SLACK);
        let good = |at| class.drain.steady.free_within(at, near, now);
        let book: &mut Book = self.line.books.entry(page(request)).or_default();
        book.expire(now);
        if book.place(guest).is_some_and(|place| place.start <= now) {
            book.turned_away(guest);
        }
        let want = Want {
            charge: ticket.charge(),
            first,
            each,
            whole: class.order(ticket.band).whole_later(),
            within: limit,
        };
        let at = book.book(guest, want, good, now)?;
        let seconds = libm::ceil(at.since(now).as_secs_f64()).max(1.0);
        Some(Duration::from_secs(seconds as u64))
    }
}
