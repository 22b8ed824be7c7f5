//! The book: times that were promised to those who were refused at the door.
//!
//! Who is told "come again in 50 s" and does so must find the seat that was meant, though others
//! came meanwhile. So the time that is told is a slot of the line's own future: the line starts one
//! newcomer every `each` (its charge over the line's share of the drain rate), slots follow each
//! other at `SPACING x each` (at least a second), and each has room for as many starts as fit in it.
//! A slot begins when a seat is expected soon, where that can be known (`steady.rs`).
//! A fresh newcomer is let in only if all who are due now, and the first who is due next, would still
//! start in time; who comes within the grace of its slot is not held up by the others' places.
//!
//! Not everybody comes again. With the share `p` of those who did lately, a slot is given to so many
//! that nearly all who come find room: `starts + floor(0.05 / p)` for few starts (another one comes with
//! `p`, and then one of the two fails), and `(starts - 1.2 sqrt(starts)) / p` for many.
//! Where nothing is known, everybody comes.
//!
//! Nobody crowds it: a caller who can be known again has one place for each session and
//! `CALLER_PLACES` in all (an anonymous caller is its address; one who can not be known again is its
//! tenant), and a tenant that has less than an even part of the places gets one more in a slot that is
//! full. Beyond `AHEAD` nothing is promised, and nothing is told.
//!
//! Source: ours; booking more than there is, by the share that does not show, is what airlines do
//! (Beckmann, "Decision and Team Problems in Airline Reservations", Econometrica 1958).

use crate::ids::TenantId;
use crate::time::Nanos;
use alloc::collections::BTreeMap;
use core::time::Duration;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

/// How far slots lie apart, over the time that their starts take: what is left is for the fresh.
const SPACING: f64 = 1.25;
/// How long after its slot began a place is kept, at most and at least: clients sleep whole seconds,
/// and a little more. In between: a third of what is promised.
const GRACE_MOST: Duration = Duration::from_secs(3);
const GRACE_LEAST: Duration = Duration::from_secs(1);
/// Slots begin within this time from now.
const AHEAD: Duration = Duration::from_secs(3_600);
/// Seconds after which a time that is not good is taken all the same.
const LOOKED_AT: u64 = 120;
/// Places of one caller.
const CALLER_PLACES: u32 = 8;
/// Places of one book.
const PLACES_MAX: usize = 16_384;
/// What becomes of the weight of what was seen with each further place that ended.
const FADING: f64 = 0.98;
/// Fewer can not be told from none.
const SHOW_LEAST: f64 = 0.02;
/// `(places - starts) x p` that a slot of few starts bears.
const SPARE: f64 = 0.05;

/// Who booked: the caller, and its session, where they can be known again; else 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Guest {
    pub(crate) tenant: TenantId,
    pub(crate) caller: u64,
    pub(crate) session: u64,
}

/// What somebody who is refused needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub(crate) charge: f64,
    /// From now until it could be let in, if nobody had booked; whole seconds.
    pub(crate) first: Duration,
    /// How long its start takes the line, and whether with the line's whole share.
    pub(crate) each: Duration,
    pub(crate) whole: bool,
    /// What is promised to those who are let in.
    pub(crate) within: Duration,
}

/// What was promised to one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Place {
    pub(crate) start: Nanos,
    /// With the whole share of the line, whatever is in force then.
    pub(crate) whole: bool,
}

#[derive(Debug)]
struct Slot {
    end: Nanos,
    kept_until: Nanos,
    /// How many can start, and how many came.
    starts: u32,
    came: u32,
    /// Who is expected, and the largest charge of one.
    guests: SmallVec<[Guest; 2]>,
    charge: f64,
    /// Whether all of them start with the whole share.
    whole: bool,
}

impl Slot {
    /// Charge of those who are expected and for whom there is room.
    fn kept(&self) -> f64 {
        let room = self.starts.saturating_sub(self.came) as usize;
        self.charge * room.min(self.guests.len()) as f64
    }
}

/// What is kept for those who booked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Kept {
    /// Charge of those who are due now.
    pub(crate) now: f64,
    /// When the next are due.
    pub(crate) next: Option<Place>,
}

#[derive(Debug, Default)]
pub(crate) struct Book {
    /// By their beginning.
    slots: BTreeMap<Nanos, Slot>,
    places: HashMap<Guest, Place, FxBuildHasher>,
    callers: HashMap<(TenantId, u64), u32, FxBuildHasher>,
    tenants: HashMap<TenantId, u32, FxBuildHasher>,
    /// Of those whose slot is over or who came, faded: who came, and all.
    came: f64,
    ended: f64,
}

impl Book {
    /// The share of those who booked that comes.
    pub(crate) fn show_rate(&self) -> f64 {
        ((self.came + 1.0) / (self.ended + 1.0)).max(SHOW_LEAST)
    }

    /// Forgets whose slot is over.
    pub(crate) fn expire(&mut self, now: Nanos) {
        while let Some((_, slot)) = self.slots.first_key_value()
            && slot.kept_until < now
        {
            let Some((_, slot)) = self.slots.pop_first() else {
                return;
            };
            for guest in slot.guests {
                self.drop_place(guest);
                self.ends(false);
            }
        }
    }

    /// When that guest is expected.
    pub(crate) fn place(&self, guest: Guest) -> Option<Place> {
        self.places.get(&guest).copied()
    }

    pub(crate) fn kept(&self, now: Nanos) -> Kept {
        let mut kept = Kept::default();
        for (start, slot) in &self.slots {
            let charge = slot.kept();
            if *start <= now {
                kept.now += charge;
            } else if charge > 0.0 {
                kept.next = Some(Place {
                    start: *start,
                    whole: slot.whole,
                });
                break;
            }
        }
        kept
    }

    /// It came and is in.
    pub(crate) fn admitted(&mut self, guest: Guest, now: Nanos) {
        if let Some(start) = self.strike(guest) {
            self.ends(true);
            if start <= now
                && let Some(slot) = self.slots.get_mut(&start)
            {
                slot.came += 1;
            }
        }
    }

    /// It came in its time, and there was no room.
    pub(crate) fn turned_away(&mut self, guest: Guest) {
        if self.strike(guest).is_some() {
            self.ends(true);
        }
    }

    /// Gives it a place, whole seconds from now; the place it has, if it has one. None: the book is
    /// full.
    pub(crate) fn book(
        &mut self,
        guest: Guest,
        want: Want,
        good: impl Fn(Nanos) -> bool,
        now: Nanos,
    ) -> Option<Nanos> {
        if let Some(place) = self.places.get(&guest) {
            return Some(place.start);
        }
        let caller = (guest.tenant, guest.caller);
        let of_caller = self.callers.get(&caller).copied().unwrap_or(0);
        if of_caller >= CALLER_PLACES || self.places.len() >= PLACES_MAX {
            return None;
        }
        let spaced = want.each.as_secs_f64() * SPACING;
        let starts = (1.0 / spaced.max(1e-3)).clamp(1.0, 1e3) as u32;
        let width = Duration::try_from_secs_f64(spaced.max(1.0)).ok()?;
        let first = now + want.first.max(Duration::from_secs(1));
        let more = u32::from(self.has_less(guest.tenant));
        let next_good = |at: Nanos| {
            let seconds = (0..LOOKED_AT).map(|n| at + Duration::from_secs(n));
            seconds.into_iter().find(|at| good(*at)).unwrap_or(at)
        };
        let mut at = next_good(first);
        let mut joins = None;
        for (start, slot) in &self.slots {
            if *start >= at + width {
                break;
            }
            let most = self.most(slot.starts) + more;
            if *start >= first && (slot.guests.len() as u32 + slot.came) < most {
                joins = Some(*start);
                break;
            }
            if slot.end > at {
                let seconds = libm::ceil(slot.end.since(now).as_secs_f64());
                at = next_good(now + Duration::from_secs(seconds as u64));
            }
        }
        let start = joins.unwrap_or(at);
        if start > now + AHEAD {
            return None;
        }
        let slot = self.slots.entry(start).or_insert(Slot {
            end: start + width,
            kept_until: start + (want.within / 3).clamp(GRACE_LEAST, GRACE_MOST),
            starts,
            came: 0,
            guests: SmallVec::new(),
            charge: 0.0,
            whole: true,
        });
        slot.whole &= want.whole;
        slot.guests.push(guest);
        slot.charge = slot.charge.max(want.charge);
        let whole = want.whole;
        self.places.insert(guest, Place { start, whole });
        *self.callers.entry(caller).or_default() += 1;
        *self.tenants.entry(guest.tenant).or_default() += 1;
        Some(start)
    }

    /// How many a slot of so many starts is given to.
    fn most(&self, starts: u32) -> u32 {
        let (p, starts) = (self.show_rate(), f64::from(starts));
        let few = starts + libm::floor(SPARE / p);
        let many = libm::floor((starts - 1.2 * libm::sqrt(starts)) / p);
        few.max(many) as u32
    }

    /// Whether the tenant has less than an even part of the places, while others have more.
    fn has_less(&self, tenant: TenantId) -> bool {
        let own = self.tenants.get(&tenant).copied().unwrap_or(0) as usize;
        let tenants = self.tenants.len() + usize::from(own == 0);
        own * tenants < self.places.len()
    }

    fn ends(&mut self, came: bool) {
        self.came = self.came * FADING + f64::from(u8::from(came));
        self.ended = self.ended * FADING + 1.0;
    }

    /// Takes it out of its slot.
    fn strike(&mut self, guest: Guest) -> Option<Nanos> {
        let start = self.drop_place(guest)?;
        if let Some(slot) = self.slots.get_mut(&start) {
            slot.guests.retain(|other| *other != guest);
        }
        Some(start)
    }

    fn drop_place(&mut self, guest: Guest) -> Option<Nanos> {
        let start = self.places.remove(&guest)?.start;
        let caller = (guest.tenant, guest.caller);
        if let Some(count) = self.callers.get_mut(&caller) {
            *count -= 1;
            if *count == 0 {
                self.callers.remove(&caller);
            }
        }
        if let Some(count) = self.tenants.get_mut(&guest.tenant) {
            *count -= 1;
            if *count == 0 {
                self.tenants.remove(&guest.tenant);
            }
        }
        Some(start)
    }

    /// Whether slots, places and counts agree.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let in_slots: usize = self.slots.values().map(|slot| slot.guests.len()).sum();
        let of_callers: u32 = self.callers.values().sum();
        let of_tenants: u32 = self.tenants.values().sum();
        let places = self.places.len();
        if in_slots != places || of_callers as usize != places || of_tenants as usize != places {
            return Err("the book's slots, places and counts disagree");
        }
        let fits = |(guest, place): (&Guest, &Place)| {
            let slot = self.slots.get(&place.start);
            slot.is_some_and(|slot| slot.guests.contains(guest))
        };
        if !self.places.iter().all(fits) {
            return Err("a place that is in no slot");
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
