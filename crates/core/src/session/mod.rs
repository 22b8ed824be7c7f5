//! Homes: where each session last settled. Bounded, expiring, forgotten with the worker.

use crate::ids::WorkerId;
use crate::time::Nanos;

mod held;
pub(crate) mod homes;
pub(crate) mod responses;

pub use held::CacheSlots;

/// Where a session last settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// On whom.
    pub worker: WorkerId,
    /// When it last sat there.
    pub used: Nanos,
    /// Blocks of its longest chain there: what it should find again.
    pub blocks: u32,
}
