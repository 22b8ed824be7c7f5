//! The line: requests that wait for a seat, and who of them is offered the next one.
//!
//! - `terms`: tenants, bands, limits. `ticket`: what is known of one request, and its charge.
//! - `class`: requests that wait for the same workers. `order`: what a fairness policy is; one file
//!   each. `groups`, `flows`: tenants by weighted charge, flows by finish tags.
//! - `book`: times that were promised to the refused. `drain`, `steady`: how fast seats become free. `counts`: what waits, and what came of it.

pub(crate) mod book;
mod class;
mod config;
mod counts;
pub mod dlpm;
mod drain;
mod fcfs;
mod flows;
mod groups;
pub mod las;
mod order;
pub mod promise;
mod round_robin;
mod steady;
mod terms;
pub(crate) mod ticket;
pub mod turn_priority;
mod view;
pub mod vtc;

pub use config::FairnessConfig;
pub use terms::{Band, LineKind, LineLimits, TenantTerms, Tenants};
pub use view::{ClassView, LineView, LinesView, TenantView};

use crate::ids::{ModelKey, RequestId, WorkerId};
use crate::scheduler::PoolConfig;
use crate::time::Nanos;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use book::Book;
pub(crate) use class::Class;
use core::ops::Bound::{Excluded, Unbounded};
use core::time::Duration;
use counts::Counts;
use ticket::{Bill, ClassId, Standing, Ticket};

/// A request that others passed so often (because it needs more prefill than they) gets a worker
/// kept free for it.
pub(crate) const PASSES_MAX: u32 = 64;
/// The longest wait that is advised where something is full.
const RETRY_AFTER_MAX: f64 = 30.0;
/// Classes without anybody in them that are kept for their accounts.
const CLASSES_KEPT: usize = 16;

/// The waiting requests.
#[derive(Default)]
pub(crate) struct Line {
    /// By place.
    entries: BTreeMap<u64, RequestId>,
    pub(crate) classes: BTreeMap<ClassId, Class>,
    next_class: ClassId,
    /// Those whose turn came when they did not fit, by place.
    pub(crate) unfit: BTreeSet<u64>,
    /// Those who hold, by the worker they hold for.
    pub(crate) holders: BTreeMap<WorkerId, BTreeSet<u64>>,
    pub(crate) counts: Counts,
    /// Of each band and model.
    pub(crate) books: BTreeMap<(u16, Option<ModelKey>), Book>,
}

impl Line {
    /// The class of those whom exactly these workers could take.
    pub(crate) fn class_of(
        &mut self,
        workers: Vec<WorkerId>,
        fairness: &FairnessConfig,
        bands: usize,
    ) -> ClassId {
        let known = self.classes.iter().find(|(_, c)| c.workers == workers);
        if let Some((id, _)) = known {
            return *id;
        }
        if self.classes.len() >= CLASSES_KEPT {
            self.classes.retain(|_, class| class.waiting > 0);
        }
        let id = self.next_class;
        self.next_class = self.next_class.wrapping_add(1);
        let class = Class::new(workers, fairness, bands);
        self.classes.insert(id, class);
        id
    }

    /// A class whose workers are to be said yet.
    pub(crate) fn new_class(&mut self, config: &PoolConfig) -> ClassId {
        let id = self.next_class;
        self.next_class = self.next_class.wrapping_add(1);
        let class = Class::new(Vec::new(), &config.fairness, config.bands.len());
        self.classes.insert(id, class);
        id
    }

    pub(crate) fn class(&self, id: ClassId) -> Option<&Class> {
        self.classes.get(&id)
    }

    pub(crate) fn class_mut(&mut self, id: ClassId) -> Option<&mut Class> {
        self.classes.get_mut(&id)
    }

    pub(crate) fn classes(&self) -> impl Iterator<Item = (ClassId, &Class)> {
        self.classes.iter().map(|(id, class)| (*id, class))
    }

    /// Drops the classes in which nobody waits: who could take what has changed.
    pub(crate) fn forget_empty(&mut self) {
        self.classes.retain(|_, class| class.waiting > 0);
    }

    /// The head of a class, by place.
    pub(crate) fn head(&mut self, id: ClassId, bands: &[Band], now: Nanos) -> Option<u64> {
        self.classes.get_mut(&id)?.head(bands, now)
    }

    pub(crate) fn may_hold(&mut self, ticket: &Ticket) -> bool {
        let class = self.classes.get_mut(&ticket.class);
        class.is_some_and(|class| class.may_hold(ticket))
    }

    /// Who waits and must go before this one.
    pub(crate) fn before(&self, ticket: &Ticket) -> Option<u64> {
        let class = self.classes.get(&ticket.class)?;
        class.order(ticket.band).before(ticket)
    }

    /// It holds no more, and is the next of its line.
    pub(crate) fn goes_next(&mut self, ticket: &mut Ticket, standing: Standing, now: Nanos) {
        self.stand(ticket, standing, now);
        if standing == Standing::Ready {
            self.goes_first(ticket);
        }
    }

    /// It asks for a seat, and is the next of its line.
    pub(crate) fn goes_first(&mut self, ticket: &Ticket) {
        if let Some(class) = self.classes.get_mut(&ticket.class) {
            class.goes_next(ticket);
        }
    }

    /// Takes a place in the line, or another standing in it.
    pub(crate) fn stand(&mut self, ticket: &mut Ticket, standing: Standing, now: Nanos) {
        let before = ticket.standing;
        if before == Standing::Holding {
            self.unhold(ticket);
        }
        if let Some(worker) = ticket.held_for.filter(|_| standing == Standing::Holding) {
            self.holders.entry(worker).or_default().insert(ticket.place);
        }
        let (was, is) = (before != Standing::Out, standing != Standing::Out);
        if is && !was {
            self.entries.insert(ticket.place, ticket.request);
            self.counts.enter(ticket);
        }
        if was && !is {
            self.entries.remove(&ticket.place);
            self.unfit.remove(&ticket.place);
            self.counts.exit(ticket);
        }
        let Some(class) = self.classes.get_mut(&ticket.class) else {
            debug_assert!(!is, "who waits has a class");
            return;
        };
        if is && !was {
            let tag = class.tag;
            let first = class.waiting == 0;
            class.waiting += 1;
            if first {
                class.drain.begins(now);
                self.lift(ticket.class, tag);
            }
        }
        let Some(class) = self.classes.get_mut(&ticket.class) else {
            return;
        };
        class.stand(ticket, standing);
        if was && !is {
            class.waiting -= 1;
            if class.waiting == 0 {
                class.drain.ends();
            }
        }
    }

    fn unhold(&mut self, ticket: &mut Ticket) {
        if let Some(worker) = ticket.held_for.take()
            && let Some(places) = self.holders.get_mut(&worker)
        {
            places.remove(&ticket.place);
            if places.is_empty() {
                self.holders.remove(&worker);
            }
        }
    }

    /// Its turn came and it did not sit: from now on those who go are counted.
    pub(crate) fn turn_came(&mut self, ticket: &mut Ticket) {
        let dispatches = self.classes.get(&ticket.class).map(|c| c.dispatches);
        ticket.turn_came = ticket.turn_came.or(dispatches);
    }

    /// A class that comes back is lifted to the least tag of those in which somebody waits.
    fn lift(&mut self, id: ClassId, tag: f64) {
        let others = self
            .classes
            .iter()
            .filter(|(i, c)| **i != id && c.waiting > 0);
        let least = others.map(|(_, c)| c.tag).fold(f64::INFINITY, f64::min);
        if least.is_finite()
            && let Some(class) = self.classes.get_mut(&id)
        {
            class.tag = tag.max(least);
        }
    }

    /// The class that got the least of those that ask for a seat and are not ruled out.
    pub(crate) fn next_class(&self, open: impl Fn(ClassId, &Class) -> bool) -> Option<ClassId> {
        self.classes
            .iter()
            .filter(|(id, class)| class.asks() && open(**id, class))
            .min_by_key(|(id, class)| (class.key(), **id))
            .map(|(id, _)| *id)
    }

    /// One is dispatched for the first time.
    pub(crate) fn served(&mut self, ticket: &Ticket, bands: &[Band], now: Nanos) {
        self.counts.dispatched(ticket);
        if let Some(class) = self.classes.get_mut(&ticket.class) {
            class.served(ticket, bands, now);
        }
    }

    /// One of that class was served, in that time.
    pub(crate) fn took(&mut self, class: Option<ClassId>, took: Duration) {
        if let Some(class) = class.and_then(|id| self.classes.get_mut(&id)) {
            class.drain.steady.served(took);
        }
    }

    pub(crate) fn settled(&mut self, ticket: &Ticket, actual: Bill, now: Nanos) {
        let more = actual.charge() - ticket.charge();
        self.counts.charged(ticket.tenant, more);
        if let Some(class) = self.classes.get_mut(&ticket.class) {
            class.settled(ticket, actual, now);
        }
    }

    /// How many of its class were dispatched since its turn came first.
    pub(crate) fn passes(&self, ticket: &Ticket) -> u32 {
        let now = self.classes.get(&ticket.class).map(|c| c.dispatches);
        match (ticket.turn_came, now) {
            (Some(then), Some(now)) => u32::try_from(now.saturating_sub(then)).unwrap_or(u32::MAX),
            _ => 0,
        }
    }

    pub(crate) fn get(&self, place: u64) -> Option<RequestId> {
        self.entries.get(&place).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, RequestId)> {
        self.entries.iter().map(|(place, id)| (*place, *id))
    }

    /// How many wait in the two lines of a band.
    pub(crate) fn waiting(&self, band: u16) -> [u32; 2] {
        let lines = self.counts.lines.get(usize::from(band));
        lines.map_or([0; 2], |lines| {
            [0, 1].map(|at: usize| lines[at].waiting as u32)
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// When a request of that class, line and charge would start if it came now and `more` charge of
    /// its line with it, before it; `whole`: see [`Order::ahead`](order::Order::ahead).
    pub(crate) fn predict(
        &self,
        ticket: &Ticket,
        more: f64,
        whole: Option<bool>,
        now: Nanos,
    ) -> Option<Duration> {
        let class = self.classes.get(&ticket.class)?;
        let order = class.order(ticket.band);
        let mut ahead = order.ahead(ticket.line, ticket.charge() + more, whole);
        ahead.charge += more;
        ahead.requests += more / ticket.charge();
        class.drain.time_for(ahead, order.quantile(), now)
    }

    /// Whether predictions for it rest on what was measured.
    pub(crate) fn measured(&self, ticket: &Ticket) -> bool {
        let class = self.classes.get(&ticket.class);
        class.is_some_and(|class| class.drain.rate().is_some())
    }

    /// How long the line takes for each start of that charge.
    pub(crate) fn pace(&self, ticket: &Ticket) -> Option<Duration> {
        let class = self.classes.get(&ticket.class)?;
        let ahead = class.order(ticket.band).pace(ticket.line, ticket.charge());
        class.drain.time_of(ahead)
    }

    /// When one more place will be free at the measured drain rate: whole seconds, at most 30;
    /// None where nothing was measured, or where it is below a second.
    pub(crate) fn retry_after(&self, class: ClassId) -> Option<Duration> {
        let interval = self.classes.get(&class)?.drain.interval()?;
        let seconds = libm::ceil(Some(interval).filter(|s| *s >= 1.0)?);
        Some(Duration::from_secs(seconds.min(RETRY_AFTER_MAX) as u64))
    }

    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let waiting: usize = self.classes.values().map(|class| class.waiting).sum();
        if waiting != self.entries.len() {
            return Err("the classes hold more or fewer than wait");
        }
        self.books.values().try_for_each(Book::check)?;
        let twice = |(id, class): (&ClassId, &Class)| {
            let others = self.classes.range((Excluded(*id), Unbounded));
            others.map(|(_, c)| c).any(|c| c.workers == class.workers)
        };
        if self.classes.iter().any(twice) {
            return Err("two classes of the same workers");
        }
        self.classes.values().try_for_each(Class::check)
    }
}
