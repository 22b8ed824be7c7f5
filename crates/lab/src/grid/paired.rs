//! Policy against policy, seed by seed: the same clients under both, so that what differs is the policy.

use serde::Serialize;

use super::table::aligned;
use super::{Cell, Spread, Sums, rows};

/// Name, decimals, whether more is better, value. Shares are in percent.
type Metric = (&'static str, usize, bool, fn(&Sums) -> Option<f64>);

const METRICS: &[Metric] = &[
    ("ttft p50", 3, false, |s| s.ttft.p50),
    ("ttft p99", 3, false, |s| s.ttft.p99),
    ("e2e p50", 2, false, |s| s.e2e.p50),
    ("good %", 1, true, |s| Some(100.0 * s.goodput?)),
    ("reuse %", 1, true, |s| Some(100.0 * s.reuse?)),
];

/// Which way a difference goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// The interval lies on the good side of 0.
    Better,
    /// It lies on the bad side.
    Worse,
    /// It holds 0, or there is one seed only.
    Noise,
    /// Every seed gives exactly the same.
    Same,
}

/// One policy against another, at one load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Paired {
    /// Its row among all.
    pub row: usize,
    /// Placement and fairness.
    pub name: String,
    /// Offered load.
    pub load: f64,
    /// By metric: the mean difference over seeds (this less that), with its interval, and which way it goes.
    pub metrics: Vec<(&'static str, Option<(Spread, Way)>)>,
}

/// Every row against that of `baseline` (a placement as it was named) at the same fairness and load.
#[must_use]
pub fn paired(cells: &[Cell], baseline: &str) -> Vec<Paired> {
    let rows: Vec<&[Cell]> = rows(cells).collect();
    // Rows come load by load, each with all placements, each with all fairness policies.
    let mut found = Vec::new();
    for row in &rows {
        let Some(cell) = row.first().filter(|cell| cell.placement != baseline) else {
            continue;
        };
        let same = rows
            .iter()
            .filter_map(|other| Some((other.first()?, *other)));
        let mut same = same.filter(|(other, _)| {
            other.placement == baseline
                && other.fairness == cell.fairness
                && other.asked == cell.asked
        });
        let Some((_, base)) = same.next() else {
            continue;
        };
        let metrics = METRICS.iter().map(|(name, _, more, value)| {
            let pairs = row
                .iter()
                .zip(base)
                .map(|(a, b)| Some(value(&a.sums)? - value(&b.sums)?));
            let differences: Option<Vec<f64>> = pairs.collect();
            let spread = differences.and_then(|all| Spread::of(&all));
            (*name, spread.map(|spread| (spread, way(spread, *more))))
        });
        found.push(Paired {
            row: cell.row,
            name: format!("{} {}", cell.placement, cell.fairness),
            load: cell.load,
            metrics: metrics.collect(),
        });
    }
    found
}

fn way(spread: Spread, more_is_better: bool) -> Way {
    let Some(half) = spread.half_width else {
        return Way::Noise;
    };
    if spread.mean == 0.0 && half == 0.0 {
        return Way::Same;
    }
    if spread.mean.abs() <= half {
        return Way::Noise;
    }
    if (spread.mean > 0.0) == more_is_better {
        Way::Better
    } else {
        Way::Worse
    }
}

/// The differences as people read them.
#[must_use]
pub fn paired_table(cells: &[Cell], baseline: &str) -> String {
    let mut lines = vec![vec![format!("less {baseline}"), "load".to_owned()]];
    if let Some(heads) = lines.first_mut() {
        heads.extend(METRICS.iter().map(|(name, ..)| (*name).to_owned()));
    }
    for paired in paired(cells, baseline) {
        let mut line = vec![paired.name, format!("{:.2}", paired.load)];
        let decimals = METRICS.iter().map(|metric| metric.1);
        line.extend(
            paired
                .metrics
                .iter()
                .zip(decimals)
                .map(|((_, found), decimals)| {
                    let Some((spread, way)) = found else {
                        return "-".to_owned();
                    };
                    let word = match way {
                        Way::Better => " better",
                        Way::Worse => " worse",
                        Way::Noise => "",
                        Way::Same => " same",
                    };
                    match spread.half_width {
                        Some(half) => {
                            format!("{:+.decimals$}±{half:.decimals$}{word}", spread.mean)
                        }
                        None => format!("{:+.decimals$}", spread.mean),
                    }
                }),
        );
        lines.push(line);
    }
    aligned(&lines, 1)
}
