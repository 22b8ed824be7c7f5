//! Who may wait how much, and on which terms: tenants, bands, limits.

use crate::ids::TenantId;
use alloc::collections::BTreeMap;
use alloc::string::String;

/// What may wait at once, of a flow, a tenant or a band. None: as much as the line has room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineLimits {
    /// Requests in the line.
    pub requests_max: Option<u32>,
    /// Bytes of their bodies.
    pub bytes_max: Option<u64>,
}

/// One tenant's terms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TenantTerms {
    /// Its part of the service, against that of the other tenants that wait in the same line;
    /// more than 0, at most 1,000,000.
    pub weight: f64,
    /// Which of the pool's bands its requests wait in: an index into [`PoolConfig::bands`]. Past
    /// the last one: the last one.
    ///
    /// [`PoolConfig::bands`]: crate::scheduler::PoolConfig::bands
    pub band: u16,
    /// What of it may wait.
    pub limits: LineLimits,
}

impl Default for TenantTerms {
    fn default() -> Self {
        Self {
            weight: 1.0,
            band: 0,
            limits: LineLimits::default(),
        }
    }
}

/// The terms of all tenants.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tenants {
    /// Those that have terms of their own.
    pub terms: BTreeMap<TenantId, TenantTerms>,
    /// Everybody else's.
    pub default: TenantTerms,
}

impl Tenants {
    /// The tenant's terms.
    #[must_use]
    pub fn of(&self, tenant: TenantId) -> &TenantTerms {
        self.terms.get(&tenant).unwrap_or(&self.default)
    }
}

/// A band: requests of an earlier one go before those of a later one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Band {
    /// As metrics and the admin API show it.
    pub name: String,
    /// The share of the dispatched charge that it gets while it waits, whatever waits before it;
    /// 0 to 1, and over all bands at most 1. 0: it goes when no earlier band could.
    pub floor: f64,
    /// What may wait in it.
    pub limits: LineLimits,
}

/// The two lines of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LineKind {
    /// First turns.
    #[default]
    New,
    /// Follow-ups.
    Returning,
}

impl LineKind {
    /// Both, for bounded metric labels.
    pub const ALL: [Self; 2] = [Self::New, Self::Returning];

    /// The line of a request of that turn.
    #[must_use]
    pub fn of(turn: u32) -> Self {
        if turn > 1 { Self::Returning } else { Self::New }
    }

    /// The name used in records, metrics and the admin API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Returning => "returning",
        }
    }
}
