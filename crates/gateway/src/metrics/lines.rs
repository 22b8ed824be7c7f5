//! Gauges of the lines: what waits, how long the oldest has waited, what was promised and refused.

use super::{Labels, PoolRow};
use maitred_core::line::{LineView, TenantView};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

type Real<const N: usize> = Family<Labels<N>, Gauge<f64, AtomicU64>>;

/// Name, help and reading of each gauge of a line. None has no series: unknown is not zero.
type Reading = (&'static str, &'static str, fn(&LineView) -> Option<f64>);

const READINGS: [Reading; 10] = [
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
    jain: Real<1>,
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
            "Jain's index over the service by weight of the tenants that wait, those never served in it",
            jain.clone(),
        );
        Self { readings, jain }
    }

    pub(super) fn fill(&self, pools: &[PoolRow]) {
        self.jain.clear();
        for family in &self.readings {
            family.clear();
        }
        for pool in pools {
            let name: Arc<str> = Arc::from(pool.pool.as_str());
            if let Some(jain) = pool.tenants_jain {
                let labels = [("pool", Arc::clone(&name))];
                self.jain.get_or_create(&labels).set(jain);
            }
            for (band, line) in &pool.lines {
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
            }
        }
    }
}

/// Jain's index over service by weight: 1: all alike; 1/n: one of n gets all. Who was never served is
/// in it. None: fewer than two wait, or nobody was served yet.
pub(crate) fn jain(tenants: &[TenantView]) -> Option<f64> {
    let shares = || tenants.iter().map(|t| t.served_charge / t.weight);
    let sum: f64 = shares().sum();
    let squares: f64 = shares().map(|x| x * x).sum();
    (tenants.len() > 1 && squares > 0.0).then(|| sum * sum / (tenants.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::{TenantView, jain};
    use maitred_core::ids::TenantId;

    fn tenant(weight: f64, served_charge: f64) -> TenantView {
        TenantView {
            tenant: TenantId(1),
            band: 0,
            weight,
            waiting: 1,
            bytes: 0,
            flows: 1,
            served_charge,
        }
    }

    #[test]
    fn by_hand() {
        assert_eq!(jain(&[tenant(1.0, 5.0)]), None);
        assert_eq!(jain(&[tenant(1.0, 0.0), tenant(1.0, 0.0)]), None);
        assert_eq!(jain(&[tenant(1.0, 4.0), tenant(2.0, 8.0)]), Some(1.0));
        assert_eq!(jain(&[tenant(1.0, 4.0), tenant(1.0, 0.0)]), Some(0.5));
        // (1 + 3)^2 / (2 x (1 + 9))
        assert_eq!(jain(&[tenant(1.0, 1.0), tenant(1.0, 3.0)]), Some(0.8));
    }
}
