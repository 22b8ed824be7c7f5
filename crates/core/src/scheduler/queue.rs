//! The scheduler's side of the line: tickets, classes, holders, the view.

use super::Scheduler;
use super::candidates::{Pin, could_take, has_room};
use super::request::{Hold, Request};
use crate::ids::WorkerId;
use crate::input::Effect;
use crate::limits::LINE_SCAN_MAX;
use crate::line::ticket::{Bill, ClassId, Standing, Ticket};
use crate::line::{Class, LineKind};
use crate::request::{Arrival, Usage};
use crate::time::Nanos;
use alloc::boxed::Box;
use alloc::vec::Vec;

impl Scheduler {
    pub(super) fn ticket(&self, guest: &Arrival, place: u64, now: Nanos) -> Ticket {
        let terms = self.config.tenants.of(guest.tenant);
        let last = self.config.bands.len().saturating_sub(1);
        Ticket {
            request: guest.request,
            place,
            arrived: now,
            tenant: guest.tenant,
            weight: terms.weight,
            flow: guest
                .flow
                .map_or_else(|| crate::rng::mix(!guest.request.0), |flow| flow.0),
            band: terms.band.min(last as u16),
            line: LineKind::of(guest.turn),
            turn: guest.turn,
            bytes: guest.body_bytes,
            bill: Bill::default(),
            matched: 0,
            class: ClassId::MAX,
            standing: Standing::Out,
            held_for: None,
            charged: None,
            predicted: None,
            measured: false,
            whole: false,
            tag: None,
            since: None,
            held_at: None,
            turn_came: None,
        }
    }

    /// Puts a request that does not wait into the class of those whom the same workers could take.
    pub(super) fn classify(&mut self, request: &mut Request, now: Nanos) {
        let plain = self.alike && request.failed.is_empty();
        let plain = plain && request.guest.previous_response.is_none();
        if let Some(class) = self.everyone.filter(|_| plain)
            && self.line.class(class).is_some()
        {
            request.ticket.class = class;
            return;
        }
        let workers = self.takers(request, now);
        let bands = self.config.bands.len();
        let fairness = &self.config.fairness;
        request.ticket.class = self.line.class_of(workers, fairness, bands);
        if plain {
            self.everyone = Some(request.ticket.class);
        }
    }

    /// Who could take it, healthy or not.
    fn takers(&self, request: &Request, now: Nanos) -> Vec<WorkerId> {
        if let Pin::On(worker) | Pin::Away(worker) = self.pin(request, now) {
            return [worker].into();
        }
        let takes = |w: &&crate::pool::worker::Worker| could_take(w, request);
        self.fleet.iter().filter(takes).map(|w| w.id).collect()
    }

    /// Who could take what has changed: everybody is put where he belongs now. A class keeps its
    /// accounts as long as anybody of it stays in it.
    pub(super) fn regroup(&mut self, now: Nanos) {
        self.line.forget_empty();
        self.everyone = None;
        self.alike = self.fleet.iter().all(|worker| worker.takes_everything());
        let mut groups: Vec<(Vec<WorkerId>, ClassId)> = Vec::new();
        let mut ids: Vec<_> = self.line.iter().map(|(_, id)| id).collect();
        // The accounts are those of the ones who have not sat yet.
        ids.sort_by_key(|id| self.requests.get(id).is_some_and(|r| r.attempts > 0));
        for id in ids {
            let Some(mut request) = self.take(id) else {
                continue;
            };
            let workers = self.takers(&request, now);
            let old = request.ticket.class;
            let known = groups.iter().find(|(set, _)| *set == workers);
            let class = match known.map(|(_, class)| *class) {
                Some(class) => class,
                None => {
                    let taken = groups.iter().any(|(_, class)| *class == old);
                    let class = if taken {
                        self.line.new_class(&self.config)
                    } else {
                        old
                    };
                    if let Some(kept) = self.line.class_mut(class) {
                        kept.workers.clone_from(&workers);
                    }
                    groups.push((workers, class));
                    class
                }
            };
            if class != old {
                let (standing, holds) = (request.ticket.standing, request.ticket.held_for);
                self.line.stand(&mut request.ticket, Standing::Out, now);
                request.ticket.class = class;
                request.ticket.forget_order();
                request.ticket.held_for = holds;
                self.line.stand(&mut request.ticket, standing, now);
            }
            self.keep(request);
        }
        // What was emptied may be of the same workers as another class: nobody is to join it.
        self.line.forget_empty();
    }

    /// Whether a worker of the class has room for a request without a prompt.
    pub(super) fn class_room(&self, class: &Class, now: Nanos) -> bool {
        let workers = || class.workers.iter().filter_map(|id| self.fleet.get(*id));
        let mut last_resort = false;
        for worker in workers() {
            if has_room(worker, now) {
                if worker.health.takes_work(now) {
                    return true;
                }
                last_resort = true;
            }
        }
        last_resort && !workers().any(|worker| worker.health.takes_work(now))
    }

    /// Estimates what it will be charged, once, from what the candidates hold of it.
    pub(super) fn estimate(&self, request: &mut Request, matched: u32) {
        if request.ticket.bill != Bill::default() {
            return;
        }
        let (uncached, resident) = self.lease_tokens(request, matched);
        let prompts = u64::from(request.guest.extra_prompts) + 1;
        let prompt = u64::from(request.prompt_tokens).saturating_mul(prompts);
        request.ticket.matched = matched;
        request.ticket.bill = Bill {
            prompt,
            uncached,
            output: resident.saturating_sub(prompt),
        };
    }

    /// What it took by the engine's word, where that says more than the estimate. What was
    /// computed again because it was moved or tried again is not its doing.
    pub(super) fn settle(&mut self, request: &Request, moved: bool, usage: Usage, now: Nanos) {
        let Some(class) = request.ticket.charged else {
            return;
        };
        let estimate = request.ticket.bill;
        let mut actual = estimate;
        if request.guest.extra_prompts == 0 {
            if let Some(prompt) = usage.prompt_tokens {
                actual.prompt = u64::from(prompt);
                if let Some(cached) = usage.cached_tokens {
                    actual.uncached = u64::from(prompt.saturating_sub(cached));
                }
            }
            if let Some(output) = usage.output_tokens {
                actual.output = u64::from(output);
            }
        }
        if moved || request.attempts > 1 {
            actual.uncached = actual.uncached.min(estimate.uncached);
        }
        let mut ticket = request.ticket.clone();
        ticket.class = class;
        self.line.settled(&ticket, actual, now);
    }

    /// It is the next of its line; if it holds, that is over, and it sits wherever a seat is.
    pub(super) fn goes_first(&mut self, place: u64, now: Nanos) {
        if let Some(mut request) = self.line.get(place).and_then(|id| self.take(id)) {
            match request.ticket.standing {
                Standing::Holding => {
                    request.hold = Hold::Spent;
                    self.ask_again(&mut request, now);
                }
                Standing::Ready => self.line.goes_first(&request.ticket),
                _ => debug_assert!(false, "who goes first waits for a seat"),
            }
            self.room = true;
            self.keep_waiting(request);
        }
    }

    /// One that held asks for a seat again.
    pub(super) fn ask_again(&mut self, request: &mut Request, now: Nanos) {
        if request.ticket.standing == Standing::Holding {
            let standing = request.asking();
            self.line.goes_next(&mut request.ticket, standing, now);
            self.room = true;
        }
    }

    /// Offers the free seats: to those who hold for a worker that has one now, and to the heads of
    /// the classes, until no class has both a seat and somebody who asks for it.
    pub(super) fn serve_line(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        self.wake_holders(now);
        self.room = false;
        self.passing = true;
        let mut done: Vec<ClassId> = Vec::new();
        let mut misfits: Vec<(ClassId, usize)> = Vec::new();
        loop {
            let open =
                |id: ClassId, class: &Class| !done.contains(&id) && self.class_room(class, now);
            let Some(class) = self.line.next_class(open) else {
                break;
            };
            let head = self.line.head(class, &self.config.bands, now);
            let Some(request) = head
                .and_then(|place| self.line.get(place))
                .and_then(|id| self.take(id))
            else {
                debug_assert!(false, "a class that asks has a head");
                done.push(class);
                continue;
            };
            let before = self.misfits.len();
            self.place(request, now, effects);
            if self.misfits.len() > before {
                let at = misfits.iter().position(|(id, _)| *id == class);
                let at = at.unwrap_or_else(|| {
                    misfits.push((class, 0));
                    misfits.len() - 1
                });
                misfits[at].1 += 1;
                if misfits[at].1 >= LINE_SCAN_MAX {
                    done.push(class);
                }
            }
        }
        self.passing = false;
        self.room = false;
        for place in core::mem::take(&mut self.misfits) {
            if let Some(mut request) = self.line.get(place).and_then(|id| self.take(id)) {
                if request.ticket.standing == Standing::Misfit {
                    let standing = request.asking();
                    self.line.stand(&mut request.ticket, standing, now);
                }
                self.keep(request);
            }
        }
    }

    /// The first of those who hold for a worker that has room asks for it.
    fn wake_holders(&mut self, now: Nanos) {
        let room = |id: &WorkerId| self.fleet.get(*id).is_some_and(|w| has_room(w, now));
        let holders = self.line.holders.iter().filter(|(id, _)| room(id));
        let first: Vec<u64> = holders
            .filter_map(|(_, places)| places.first().copied())
            .collect();
        for place in first {
            if let Some(mut request) = self.line.get(place).and_then(|id| self.take(id)) {
                self.ask_again(&mut request, now);
                self.keep(request);
            }
        }
    }

    /// The fairness of the line is another: its accounts begin anew.
    pub(super) fn set_fairness(&mut self, fairness: crate::line::FairnessConfig, now: Nanos) {
        self.config.fairness = fairness;
        let ids: Vec<_> = self.line.iter().map(|(_, id)| id).collect();
        let mut waiting: Vec<Box<Request>> = Vec::new();
        for id in ids {
            if let Some(mut request) = self.take(id) {
                self.line.stand(&mut request.ticket, Standing::Out, now);
                request.ticket.forget_order();
                waiting.push(request);
            }
        }
        self.line.forget_empty();
        self.everyone = None;
        for mut request in waiting {
            self.classify(&mut request, now);
            let standing = request.asking();
            self.line.stand(&mut request.ticket, standing, now);
            self.keep(request);
        }
        self.room = true;
    }
}
