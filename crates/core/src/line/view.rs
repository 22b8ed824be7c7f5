//! The queue as the admin API and the metrics show it.

use super::LineKind;
use crate::ids::{TenantId, WorkerId};
use alloc::vec::Vec;
use core::time::Duration;

/// The whole queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinesView {
    /// The fairness policy's config name.
    pub fairness: &'static str,
    /// Both lines of every band.
    pub lines: Vec<LineView>,
    /// The tenants that wait, those with most requests first; at most `TENANTS_SHOWN_MAX`.
    pub tenants: Vec<TenantView>,
    /// Tenants that wait.
    pub tenants_waiting: usize,
    /// Those who wait for the same workers, for each set of workers for which somebody does; all
    /// that compete for the same seats have one drain and one prediction.
    pub classes: Vec<ClassView>,
    /// Jain's index over what all tenants that wait were served by weight: 1: all alike; 1/n: one of
    /// n got all. Who was never served is in it. None: fewer than two wait, or nobody was served.
    pub jain_service: Option<f64>,
    /// The same over their slowdowns (not by weight: what callers feel). None: fewer than two wait,
    /// or no time of service was measured yet.
    pub jain_slowdown: Option<f64>,
    /// How long a served request takes its seat, lately, in seconds; None: none was served yet.
    pub service_seconds: Option<f64>,
}

/// Those who wait for the same workers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassView {
    /// Who could take them.
    pub workers: Vec<WorkerId>,
    /// How many wait.
    pub waiting: usize,
    /// Of them, those who hold for one worker.
    pub holding: usize,
    /// Charge dispatched per second while somebody waited, lately; None: nothing was measured yet.
    pub drain_rate: Option<f64>,
    /// When one that came now would start, by band and line; None: nothing was measured yet.
    pub starts: Vec<(u16, LineKind, Option<Duration>)>,
}

/// One line of one band. Counts of what happened run since the scheduler was made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LineView {
    /// Index into the pool's bands.
    pub band: u16,
    /// Which line.
    pub line: LineKind,
    /// Requests that wait.
    pub waiting: usize,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Their charge: uncached prompt tokens and twice the tokens of the answers, as estimated.
    pub charge: u64,
    /// How long the oldest has waited; None: nobody waits.
    pub oldest: Option<Duration>,
    /// How long all who wait have waited so far, together: with the waits that ended, no wait is
    /// left out because it has not ended.
    pub waited: Duration,
    /// First turns that wait longer than `start_within` already.
    pub overdue: usize,
    /// When one that came now would start; None: nothing was measured yet.
    pub predicted_start: Option<Duration>,
    /// Charge dispatched per second while somebody waited, lately; None: nothing was measured yet.
    pub drain_rate: Option<f64>,
    /// The share of the dispatched charge that is this line's while both wait; None: the fairness
    /// policy in force states none.
    pub share: Option<f64>,
    /// The least that the share may come down to; None: as above.
    pub share_floor: Option<f64>,
    /// Charge dispatched from this line while the other line of its band waited: over that of both,
    /// the share that it had.
    pub contested_charge: u64,
    /// Requests dispatched.
    pub dispatched: u64,
    /// Their charge.
    pub dispatched_charge: u64,
    /// First turns that waited and started within `start_within`.
    pub promises_kept: u64,
    /// First turns that waited longer than `start_within`, whether they started or gave up.
    pub promises_broken: u64,
    /// Requests refused at the door for the promise's sake.
    pub refused_late: u64,
    /// Requests refused at the door because something was full.
    pub refused_full: u64,
    /// Requests that waited as long as they may.
    pub expired: u64,
}

/// One tenant that waits.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantView {
    /// Who.
    pub tenant: TenantId,
    /// Index into the pool's bands.
    pub band: u16,
    /// Its weight.
    pub weight: f64,
    /// Its requests in the line.
    pub waiting: usize,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Flows of it that wait.
    pub flows: usize,
    /// Charge dispatched for it since it last began to wait, trued up with what engines reported.
    pub served_charge: f64,
    /// Mean of (wait + service) / service over its requests that were served since it last began to
    /// wait and those that wait, who are taken to be served as long as others were lately. None: no
    /// time of service was measured yet.
    pub slowdown: Option<f64>,
}
