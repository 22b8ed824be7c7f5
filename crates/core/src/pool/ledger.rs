//! What is held on one worker, on two axes: prefill (uncached prompt tokens, until the first token)
//! and residency (a slot and tokens, until the end).
//!
//! A lease is opened before the attempt is sent and closed by value, so it can be closed only once.
//! Nothing expires, and what is given back is what was taken, so no count can go below zero.

use super::Seats;
use crate::ids::WorkerId;

/// More tokens than this are counted as this many: keeps sums far from overflow.
const LEASE_TOKENS_MAX: u64 = 1 << 40;

/// What one attempt holds. Deliberately neither `Clone` nor `Copy`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// On whom, this life of the slot only.
    pub(crate) worker: WorkerId,
    prefill_tokens: u64,
    resident_tokens: u64,
    prefill_open: bool,
}

impl Lease {
    /// Prefill tokens still held.
    pub(crate) fn prefill_tokens(&self) -> u64 {
        if self.prefill_open {
            self.prefill_tokens
        } else {
            0
        }
    }

    /// Tokens held until the end.
    pub(crate) fn resident_tokens(&self) -> u64 {
        self.resident_tokens
    }

    /// Whether the first token is still to come.
    pub(crate) fn prefill_open(&self) -> bool {
        self.prefill_open
    }
}

/// The sums over the open leases of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    /// Open leases.
    pub(crate) running: u32,
    /// Of them, those whose first token has not come.
    pub(crate) prefills: u32,
    /// Uncached prompt tokens of those.
    pub(crate) prefill_tokens: u64,
    /// Tokens of all open leases.
    pub(crate) resident_tokens: u64,
}

impl Ledger {
    /// Whether a request with that many uncached tokens has a seat on both axes. One that is larger
    /// than the prefill limit has one while no prefill is open.
    pub(crate) fn fits(&self, seats: &Seats, prefill_tokens: u64) -> bool {
        let slot = seats.slots.is_none_or(|slots| self.running < slots);
        let prefill = seats.prefill_tokens.is_none_or(|most| {
            self.prefills == 0 || self.prefill_tokens.saturating_add(prefill_tokens) <= most
        });
        slot && prefill
    }

    /// Takes a seat.
    pub(crate) fn open(&mut self, worker: WorkerId, prefill: u64, resident: u64) -> Lease {
        let lease = Lease {
            worker,
            prefill_tokens: prefill.min(LEASE_TOKENS_MAX),
            resident_tokens: resident.min(LEASE_TOKENS_MAX),
            prefill_open: true,
        };
        self.running += 1;
        self.prefills += 1;
        self.prefill_tokens += lease.prefill_tokens;
        self.resident_tokens += lease.resident_tokens;
        lease
    }

    /// The first token came: the prefill part is given back, once.
    pub(crate) fn first_token(&mut self, lease: &mut Lease) {
        if lease.prefill_open {
            lease.prefill_open = false;
            debug_assert!(self.prefills > 0 && self.prefill_tokens >= lease.prefill_tokens);
            self.prefills = self.prefills.saturating_sub(1);
            self.prefill_tokens = self.prefill_tokens.saturating_sub(lease.prefill_tokens);
        }
    }

    /// The attempt ended: everything still held is given back.
    pub(crate) fn close(&mut self, mut lease: Lease) {
        self.first_token(&mut lease);
        debug_assert!(self.running > 0 && self.resident_tokens >= lease.resident_tokens);
        self.running = self.running.saturating_sub(1);
        self.resident_tokens = self.resident_tokens.saturating_sub(lease.resident_tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::{Ledger, Seats};
    use crate::ids::WorkerId;

    const W: WorkerId = WorkerId {
        slot: 0,
        generation: 0,
    };

    #[test]
    fn both_axes_are_taken_and_given_back() {
        let mut ledger = Ledger::default();
        let mut a = ledger.open(W, 100, 356);
        let b = ledger.open(W, 50, 60);
        assert_eq!(
            (
                ledger.running,
                ledger.prefill_tokens,
                ledger.resident_tokens
            ),
            (2, 150, 416)
        );
        ledger.first_token(&mut a);
        ledger.first_token(&mut a);
        assert_eq!((ledger.prefills, ledger.prefill_tokens), (1, 50));
        ledger.close(a);
        ledger.close(b);
        assert_eq!(ledger, Ledger::default());
    }

    #[test]
    fn seats_bound_each_axis() {
        let seats = Seats {
            slots: Some(3),
            prefill_tokens: Some(100),
            kv_tokens: None,
            cache_slots: None,
        };
        let mut ledger = Ledger::default();
        assert!(ledger.fits(&seats, 5_000), "oversized, but nothing is open");
        let mut a = ledger.open(W, 90, 90);
        assert!(ledger.fits(&seats, 10));
        assert!(!ledger.fits(&seats, 11));
        ledger.first_token(&mut a);
        assert!(ledger.fits(&seats, 5_000));
        let _b = ledger.open(W, 1, 1);
        let _c = ledger.open(W, 1, 1);
        assert!(!ledger.fits(&seats, 0), "no slot left");
        assert!(ledger.fits(&Seats::default(), 1 << 50), "no limits");
    }
}
