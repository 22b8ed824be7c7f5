//! Gauges of the lines: what waits, how long the oldest has waited, what was promised and refused.

use super::{Labels, PoolRow};
use maitred_core::line::{LineView, LinesView};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

type Real<const N: usize> = Family<Labels<N>, Gauge<f64, AtomicU64>>;

/// Name, help and reading of each gauge of a line. None has no series: unknown is not zero.
type Reading = (&'static str, &'static str, fn(&LineView) -> Option<f64>);

const READINGS: [Reading; 15] = [
    (
        "line_waiting",
        "Requests that wait, by band and line",
        |l| Some(l.waiting as f64),
    ),
    (
        "line_oldest_seconds",
        "How long the oldest that waits has waited; none waits: 0",
        |l| Some(l.oldest.map_or(0.0, |d| d.as_secs_f64())),
    ),
    (
        "line_waiting_seconds",
        "How long all that wait have waited so far, together: to be added to the sum of queue_wait",
        |l| Some(l.waited.as_secs_f64()),
    ),
    (
        "line_overdue",
        "First turns that wait longer than promised already",
        |l| Some(l.overdue as f64),
    ),
    (
        "line_share",
        "Share of the dispatched charge that is the line's while both lines wait",
        |l| l.share,
    ),
    (
        "line_share_floor",
        "The least that line_share comes down to",
        |l| l.share_floor,
    ),
    (
        "line_contested_charge",
        "Charge dispatched while the other line waited: over the sum of both lines, the share that it had",
        |l| Some(l.contested_charge as f64),
    ),
    (
        "line_predicted_start_seconds",
        "When one that came now would start",
        |l| l.predicted_start.map(|d| d.as_secs_f64()),
    ),
    ("line_charge", "Charge that waits", |l| {
        Some(l.charge as f64)
    }),
    (
        "line_dispatched_charge",
        "Charge dispatched since the start",
        |l| Some(l.dispatched_charge as f64),
    ),
    (
        "line_promises_kept",
        "First turns that started in time",
        |l| Some(l.promises_kept as f64),
    ),
    (
        "line_promises_broken",
        "First turns that waited longer than promised, started or not",
        |l| Some(l.promises_broken as f64),
    ),
    (
        "line_refused_late",
        "Refused at the door: they would have started too late",
        |l| Some(l.refused_late as f64),
    ),
    (
        "line_refused_full",
        "Refused at the door: something was full",
        |l| Some(l.refused_full as f64),
    ),
    ("line_expired", "Waited as long as they may, in vain", |l| {
        Some(l.expired as f64)
    }),
];

pub(super) struct LineGauges {
    readings: Vec<Real<3>>,
    jain: Real<2>,
    longest_start: Real<3>,
}

impl LineGauges {
    pub(super) fn register(r: &mut Registry) -> Self {
        let readings = READINGS.iter().map(|(name, help, _)| {
            let family = Real::default();
            r.register(*name, *help, family.clone());
            family
        });
        let readings = readings.collect();
        let jain = Real::default();
        r.register(
            "line_tenants_jain",
            "Jain's index over all tenants that wait, those never served in it: over their service by weight, or their slowdowns",
            jain.clone(),
        );
        let longest_start = Real::default();
        r.register(
            "line_predicted_start_longest_seconds",
            "When one that came now would start, for the workers with the longest wait",
            longest_start.clone(),
        );
        Self {
            readings,
            jain,
            longest_start,
        }
    }

    pub(super) fn fill(&self, pools: &[PoolRow]) {
        self.jain.clear();
        for family in self.readings.iter().chain([&self.longest_start]) {
            family.clear();
        }
        for pool in pools {
            let name: Arc<str> = Arc::from(pool.pool.as_str());
            let view = &pool.lines;
            for (over, jain) in [
                ("service", view.jain_service),
                ("slowdown", view.jain_slowdown),
            ] {
                if let Some(jain) = jain {
                    let labels = [("pool", Arc::clone(&name)), ("over", Arc::from(over))];
                    self.jain.get_or_create(&labels).set(jain);
                }
            }
            for (band, line) in pool.bands.iter().zip(&view.lines) {
                let labels = [
                    ("pool", Arc::clone(&name)),
                    ("band", Arc::from(band.as_str())),
                    ("line", Arc::from(line.line.as_str())),
                ];
                for (family, (.., read)) in self.readings.iter().zip(&READINGS) {
                    if let Some(value) = read(line) {
                        family.get_or_create(&labels).set(value);
                    }
                }
                if let Some(start) = longest_start(view, line) {
                    let seconds = start.as_secs_f64();
                    self.longest_start.get_or_create(&labels).set(seconds);
                }
            }
        }
    }
}

/// The prediction of the workers for whom it is the longest.
fn longest_start(view: &LinesView, line: &LineView) -> Option<Duration> {
    let starts = view.classes.iter().flat_map(|class| &class.starts);
    let own = starts.filter(|(band, kind, _)| (*band, *kind) == (line.band, line.line));
    own.filter_map(|(.., start)| *start).max()
}
