//! What is held on one worker, on two axes: prefill (uncached prompt tokens, until the first token)
//! and residency (a slot and tokens, until the end).
//!
//! Of residency two things are bounded: slots, and uncached prompt tokens against what the KV cache
//! holds. What was cached already may be shared by many and is counted for none, and of answers
//! nobody knows how long they get: so what is refused a seat by this could not be held for certain.
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

    /// Uncached prompt tokens, whether they are prefilled or not.
    pub(crate) fn computed_tokens(&self) -> u64 {
        self.prefill_tokens
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
    /// Uncached prompt tokens of all open leases: so much of the KV cache is theirs alone.
    pub(crate) computed_tokens: u64,
}

impl Ledger {
    /// Whether a request with that many uncached tokens has a seat on both axes. One that is larger
    /// than the prefill limit has one while no prefill is open, and one that is larger than the KV
    /// cache while nothing runs: the engine is to refuse it, not we.
    pub(crate) fn fits(&self, seats: &Seats, prefill_tokens: u64) -> bool {
        let slot = seats.slots.is_none_or(|slots| self.running < slots);
        let prefill = seats.prefill_tokens.is_none_or(|most| {
            self.prefills == 0 || self.prefill_tokens.saturating_add(prefill_tokens) <= most
        });
        let kv = seats.kv_tokens.is_none_or(|most| {
            self.running == 0 || self.computed_tokens.saturating_add(prefill_tokens) <= most
        });
        slot && prefill && kv
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
        self.computed_tokens += lease.prefill_tokens;
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
        self.computed_tokens = self.computed_tokens.saturating_sub(lease.prefill_tokens);
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

    #[test]
    fn what_must_be_held_until_the_end_is_bounded_by_the_cache() {
        let seats = Seats {
            kv_tokens: Some(1_000),
            ..Seats::default()
        };
        let mut ledger = Ledger::default();
        assert!(ledger.fits(&seats, 5_000), "oversized, but nothing runs");
        let mut a = ledger.open(W, 600, 5_000);
        ledger.first_token(&mut a);
        assert!(
            ledger.fits(&seats, 400),
            "its cached part and its answer do not count"
        );
        assert!(!ledger.fits(&seats, 401), "prefilled, and still there");
        ledger.close(a);
        assert_eq!(ledger, Ledger::default());
    }
}
