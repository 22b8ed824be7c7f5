//! `promise`: a new conversation starts within a stated time, and what was started goes on.
//!
//! Two lines: first turns (new) and follow-ups (returning). With `phi` the share of the new line,
//! `y` = charge dispatched from the returning line / (1 - phi) - charge dispatched from the new
//! line / phi, the next one is the returning line's head (charge `r`) iff
//! `y + r / (1 - phi) <= n / phi` (`n`: charge of the new line's head), else the new line's.
//!
//! Then `-R / (1 - phi) < y <= N / phi` with the largest charges `R` and `N` of the two lines, and a
//! request with charge `C` ahead of it in its own line (its own included) sees of the other line at
//! most `C x other share / own share` and one largest charge. Proof for a new one: while it waits,
//! `y` grows by what the returning line gets over `1 - phi`, and falls by at most what the new line
//! gets over `phi`. After the last returning one before it, `y <= n / phi` for a head that goes
//! before it or is itself; so what the returning line got is at most
//! `(1 - phi) x (C / phi - y at its arrival)`, and `y` was above `-R / (1 - phi)`. For a returning
//! one alike. To keep it while one line is empty: the new line's credit grows to one charge of a
//! newcomer at most (which it may have anyway), so that the next one starts at the next seat; the
//! returning line's credit is dropped when it is empty; what a line owes stays. What is kept is the
//! charge that a line is owed, so that it holds over changes of `phi`, with the least share
//! in force meanwhile.
//!
//! `phi` is `new_share` while a follow-up is predicted to wait at most `continue_within`, else
//! `new_share_floor`; back at four fifths of it. Who was let in with the whole share, or booked
//! when it was to be had (`book.rs`), starts with it.
//!
//! Holds. A head that holds for its worker steps aside, and its line goes on with the next one. The
//! other line may have gone on its account, up to a charge that is not ahead of those who now pass
//! it. So the head at the other line's last dispatch is kept as the guarantor of its line: whoever of
//! the line would be dispatched beyond its own bound (which is counted exactly: what went of both
//! lines since it came) sees the guarantor go first, and its hold is over. Then
//! `y <= 0` (for the new line; the returning one alike), and the bound holds for all behind it. A
//! line in which everybody holds has no head to compare with: the other line goes only as long as the
//! bound of each of them still holds if it went next, and `y` within the largest charges; else the
//! holder goes first. And a holder is passed by at most `max_passes` of its own line.
//!
//! Within a line: tenants by weighted charge (`groups.rs`), within a tenant flows by finish tags
//! (`flows.rs`); first turns that waited longer than `start_within` go first within their tenant.
//! What a tenant is charged is estimated when the request comes and trued up when it is served.
//!
//! At the door a first turn is refused if, at `quantile` of the measured drain times, it would start
//! later than `start_within`.
//!
//! Source: ours (DESIGN section 7). Defaults: see [`Options`].

mod lane;

use super::LineKind;
use super::drain::Drain;
use super::order::{Ahead, Order};
use super::ticket::{Bill, Ticket};
use crate::place::{OptionError, OptionValue, number, seconds, whole};
use crate::time::Nanos;
use alloc::collections::BTreeSet;
use core::time::Duration;
use lane::Lane;

/// The settings of `promise`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The share of the dispatched charge that first turns get while both lines wait.
    pub new_share: f64,
    /// The same while follow-ups wait longer than `continue_within`.
    pub new_share_floor: f64,
    /// A first turn that would start later is refused at the door.
    pub start_within: Duration,
    /// The wait of follow-ups up to which first turns get their whole share.
    pub continue_within: Duration,
    /// How often a follow-up may be passed by a warm one.
    pub max_passes: u32,
    /// The quantile of measured drain times that predictions go by; 0.5 to 0.99.
    pub quantile: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            new_share: 0.2,
            new_share_floor: 0.05,
            start_within: Duration::from_secs(10),
            continue_within: Duration::from_secs(30),
            max_passes: 8,
            quantile: 0.9,
        }
    }
}

impl Options {
    /// Sets one option.
    ///
    /// # Errors
    /// [`OptionError::UnknownOption`] or [`OptionError::BadValue`].
    pub fn set(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError> {
        match option {
            "new_share" => {
                self.new_share = number(
                    value,
                    self.new_share_floor,
                    0.9,
                    "a share from new_share_floor to 0.9",
                )?;
            }
            "new_share_floor" => {
                self.new_share_floor = number(
                    value,
                    0.01,
                    self.new_share,
                    "a share from 0.01 to new_share",
                )?;
            }
            "start_within_seconds" => self.start_within = seconds(value)?,
            "continue_within_seconds" => self.continue_within = seconds(value)?,
            "max_passes" => self.max_passes = whole(value)?,
            "quantile" => self.quantile = number(value, 0.5, 0.99, "a share from 0.5 to 0.99")?,
            _ => {
                return Err(OptionError::UnknownOption(&[
                    "new_share",
                    "new_share_floor",
                    "start_within_seconds",
                    "continue_within_seconds",
                    "max_passes",
                    "quantile",
                ]));
            }
        }
        Ok(())
    }
}

/// The share of `continue_within` at which the new line gets its whole share back.
const RELIEF: f64 = 0.8;
/// What becomes of the largest newcomer's charge with each further newcomer.
const FADING: f64 = 0.99;
/// Rounding in sums of charges.
const ROUNDING: f64 = 1e-6;

const NEW: usize = LineKind::New as usize;
const RETURNING: usize = LineKind::Returning as usize;

#[derive(Debug)]
pub(crate) struct Promise {
    options: Options,
    lanes: [Lane; 2],
    /// Above zero: charge that the new line is owed; below: that the returning line is.
    owed: f64,
    /// Follow-ups wait too long: the new line has its floor.
    floor: bool,
    /// They wait so long that a floor in force would stay.
    near_floor: bool,
    /// Places of those in the new line who were let in with the whole share, and start with it.
    whole: BTreeSet<u64>,
    /// The largest charge of a newcomer lately.
    newcomer: f64,
}

impl Promise {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            lanes: [Lane::aged(), Lane::default()],
            owed: 0.0,
            floor: false,
            near_floor: false,
            whole: BTreeSet::new(),
            newcomer: 0.0,
        }
    }

    fn phi_if(&self, whole: bool) -> f64 {
        if whole {
            self.options.new_share
        } else {
            self.options.new_share_floor
        }
    }

    /// The share in force.
    fn phi(&self) -> f64 {
        self.phi_if(!self.floor || !self.whole.is_empty())
    }

    /// The account in the terms of the formula.
    fn y(&self) -> f64 {
        let phi = self.phi();
        self.owed / if self.owed > 0.0 { phi } else { 1.0 - phi }
    }

    fn owed_of(&self, y: f64) -> f64 {
        let phi = self.phi();
        y * if y > 0.0 { phi } else { 1.0 - phi }
    }

    /// The account after a dispatch of that charge from that line.
    fn after(&self, line: usize, charge: f64) -> f64 {
        let (phi, y) = (self.phi(), self.y());
        let other_waits = !self.lanes[1 - line].is_empty();
        if line == RETURNING {
            let next = y + charge / (1.0 - phi);
            let most = if other_waits {
                f64::INFINITY
            } else {
                self.newcomer / phi
            };
            next.min(most.max(y))
        } else {
            let next = y - charge / phi;
            let least = if other_waits { f64::NEG_INFINITY } else { 0.0 };
            next.max(least.min(y))
        }
    }

    /// The most of the other line that goes before `charge` of this line has gone.
    fn others_before(&self, line: usize, charge: f64, phi: f64) -> f64 {
        let y = self.owed / if self.owed > 0.0 { phi } else { 1.0 - phi };
        let most = if line == NEW {
            (1.0 - phi) * (charge / phi - y)
        } else {
            phi * (charge / (1.0 - phi) + y)
        };
        most.max(0.0)
    }

    /// The returning line is owed nothing once nobody waits in it.
    fn forget_credit(&mut self) {
        if self.lanes[RETURNING].is_empty() {
            self.owed = self.owed.max(0.0);
        }
    }

    fn own_share(&self, line: usize) -> f64 {
        let phi = self.phi();
        if line == NEW { phi } else { 1.0 - phi }
    }

    /// What both lines have been charged so far.
    fn gone(&self) -> [f64; 2] {
        [self.lanes[NEW].gone, self.lanes[RETURNING].gone]
    }

    /// Whether one of that line and charge that came at `since` is within its bound, if it goes
    /// after `more` charge of the other line.
    fn within(&self, line: usize, charge: f64, since: [f64; 2], more: f64) -> bool {
        let (lane, other) = (&self.lanes[line], &self.lanes[1 - line]);
        let own = self.own_share(line);
        let ahead = lane.gone - since[line] + charge;
        let seen = other.gone - since[1 - line] + more;
        seen <= ahead * (1.0 - own) / own + other.largest.max(more) + ROUNDING
    }

    /// Who must go before one of that line is dispatched.
    fn first(&self, line: usize, place: u64, charge: f64, since: [f64; 2]) -> Option<u64> {
        let lane = &self.lanes[line];
        if !self.within(line, charge, since, 0.0)
            && let Some(debtor) = lane.debtor(place)
        {
            return Some(debtor);
        }
        let most = u64::from(self.options.max_passes);
        let passed = |holder: &&lane::Holder| lane.passes(holder.held_at) >= most;
        if let Some(holder) = lane.holders.iter().find(passed) {
            return Some(holder.place);
        }
        let other = &self.lanes[1 - line];
        if !other.tenants.is_empty() || other.holders.is_empty() {
            return None;
        }
        let y = self.after(line, charge);
        let gained = if line == RETURNING { y } else { -y };
        if gained * self.own_share(1 - line) > other.largest + ROUNDING {
            return other.holders.first().map(|holder| holder.place);
        }
        let kept = |h: &&lane::Holder| !self.within(1 - line, h.charge, h.since, charge);
        other.holders.iter().find(kept).map(|holder| holder.place)
    }

    /// Who is let in with the whole share starts with it.
    fn promised(&mut self, ticket: &mut Ticket) {
        ticket.whole |= !self.floor && ticket.since.is_none();
        if ticket.whole && ticket.line == LineKind::New {
            self.whole.insert(ticket.place);
        }
    }

    /// Whether follow-ups wait longer than they should.
    fn look(&mut self, drain: &Drain) {
        let Some(rate) = drain.rate().filter(|rate| *rate > 0.0) else {
            return;
        };
        let share = self.options.new_share;
        let own = self.lanes[RETURNING].charge;
        let other = self.lanes[NEW].charge.min(own * share / (1.0 - share));
        let wait = (own + other) / rate;
        let limit = self.options.continue_within.as_secs_f64();
        let was = self.floor;
        self.near_floor = wait > limit * RELIEF;
        self.floor = wait > limit || (was && self.near_floor);
    }
}

impl Order for Promise {
    fn join(&mut self, ticket: &mut Ticket) {
        let line = ticket.line as usize;
        self.promised(ticket);
        if ticket.since.is_none() {
            self.forget_credit();
            ticket.since = Some(self.gone());
            if line == NEW {
                self.newcomer = ticket.charge().max(self.newcomer * FADING);
            }
        }
        self.lanes[line].join(ticket);
    }

    fn leave(&mut self, ticket: &Ticket) {
        self.whole.remove(&ticket.place);
        self.lanes[ticket.line as usize].leave(ticket);
    }

    fn head(&mut self, now: Nanos, drain: &Drain) -> Option<u64> {
        self.look(drain);
        let overdue = Some(self.options.start_within);
        let new = self.lanes[NEW].head(now, overdue);
        let returning = self.lanes[RETURNING].head(now, None);
        let (Some(n), Some(r)) = (new, returning) else {
            return new.or(returning).map(|(place, _)| place);
        };
        let phi = self.phi();
        let next = if self.y() + r.1 / (1.0 - phi) <= n.1 / phi {
            r
        } else {
            n
        };
        Some(next.0)
    }

    fn served(&mut self, ticket: &Ticket, now: Nanos) {
        let (line, charge) = (ticket.line as usize, ticket.charge());
        if line == NEW && ticket.since.is_none() {
            self.newcomer = charge.max(self.newcomer * FADING);
        }
        self.owed = self.owed_of(self.after(line, charge));
        self.forget_credit();
        let overdue = Some(self.options.start_within).filter(|_| line != NEW);
        let other = &mut self.lanes[1 - line];
        other.guarantor = other.head(now, overdue).map(|(place, _)| place);
        let lane = &mut self.lanes[line];
        lane.came(charge);
        lane.gone += charge;
        lane.dispatches += 1;
        lane.tenants.served(ticket, charge);
    }

    fn settled(&mut self, ticket: &Ticket, actual: Bill, _now: Nanos) {
        let more = actual.charge() - ticket.charge();
        self.lanes[ticket.line as usize].tenants.add(ticket, more);
    }

    fn may_hold(&self, ticket: &Ticket) -> bool {
        let lane = &self.lanes[ticket.line as usize];
        let passes = ticket.held_at.map_or(0, |at| lane.passes(at));
        passes < u64::from(self.options.max_passes)
    }

    fn hold(&mut self, ticket: &mut Ticket) {
        self.promised(ticket);
        let since = *ticket.since.get_or_insert(self.gone());
        let lane = &mut self.lanes[ticket.line as usize];
        let held_at = *ticket.held_at.get_or_insert(lane.dispatches);
        lane.hold(ticket, since, held_at);
    }

    fn unhold(&mut self, ticket: &Ticket) {
        self.whole.remove(&ticket.place);
        self.lanes[ticket.line as usize].unhold(ticket);
    }

    fn goes_next(&mut self, ticket: &Ticket) {
        self.lanes[ticket.line as usize].goes_next(ticket);
    }

    fn before(&self, ticket: &Ticket) -> Option<u64> {
        let since = ticket.since.unwrap_or(self.gone());
        self.first(ticket.line as usize, ticket.place, ticket.charge(), since)
    }

    fn ahead(&self, line: LineKind, charge: f64, whole: Option<bool>) -> Ahead {
        let line = line as usize;
        let phi = self.phi_if(whole.unwrap_or(!self.floor));
        let (lane, other) = (&self.lanes[line], &self.lanes[1 - line]);
        let (own, waiting) = (lane.charge, other.charge);
        let others = if waiting <= 0.0 {
            0.0
        } else if line == NEW {
            // While it waits, others come back; how many is not known, so that the bound stands.
            self.others_before(line, own + charge, phi)
        } else {
            self.others_before(line, own + charge, phi).min(waiting)
        };
        Ahead {
            charge: own + others,
            requests: f64::from(lane.waiting) + others / other.each(),
        }
    }

    fn start_within(&self, line: LineKind) -> Option<Duration> {
        (line == LineKind::New).then_some(self.options.start_within)
    }

    fn quantile(&self) -> f64 {
        self.options.quantile
    }

    fn share(&self, line: LineKind) -> Option<f64> {
        Some(self.own_share(line as usize))
    }

    fn pace(&self, line: LineKind, charge: f64) -> Ahead {
        let other = &self.lanes[1 - line as usize];
        if other.charge <= 0.0 {
            return Ahead {
                charge,
                requests: 1.0,
            };
        }
        let phi = self.phi_if(self.whole_later());
        let own = if line == LineKind::New {
            phi
        } else {
            1.0 - phi
        };
        let others = charge * (1.0 - own) / own;
        Ahead {
            charge: charge + others,
            requests: 1.0 + others / other.each(),
        }
    }

    fn whole_later(&self) -> bool {
        !self.near_floor
    }

    fn share_floor(&self, line: LineKind) -> Option<f64> {
        Some(match line {
            LineKind::New => self.options.new_share_floor,
            LineKind::Returning => 1.0 - self.options.new_share,
        })
    }

    fn check(&self) -> Result<(), &'static str> {
        self.lanes[NEW].tenants.check()?;
        self.lanes[RETURNING].tenants.check()
    }
}
