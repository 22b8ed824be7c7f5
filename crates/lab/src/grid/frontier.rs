//! Who goes next: what newcomers and follow-ups get under `promise` with different shares, floors and bounds, and under
//! every other fairness policy.

use maitred_core::line::FairnessConfig;

use super::table::aligned;
use super::{Cell, Spread, Sums, rows};

/// Shares of the new line.
const SHARES: [f64; 5] = [0.05, 0.1, 0.2, 0.35, 0.5];
/// The floor while follow-ups wait too long, unless it is the share itself.
const FLOOR: f64 = 0.05;
/// Seconds within which a newcomer starts, beside the default.
const BOUNDS: [u32; 3] = [2, 5, 30];

/// The fairness policies of the drawing, by name and options.
#[must_use]
pub fn frontier() -> Vec<String> {
    let mut specs = vec!["promise".to_owned()];
    for share in SHARES {
        let floors = if share > FLOOR {
            &[FLOOR, share][..]
        } else {
            &[share]
        };
        specs.extend(
            floors
                .iter()
                .map(|floor| format!("promise:new_share={share}:new_share_floor={floor}")),
        );
    }
    specs.extend(BOUNDS.map(|bound| format!("promise:start_within_seconds={bound}")));
    let rivals = FairnessConfig::NAMES
        .iter()
        .filter(|name| **name != "promise");
    specs.extend(rivals.map(|name| (*name).to_owned()));
    specs
}

type Column = (&'static str, usize, fn(&Sums) -> Option<f64>);

const COLUMNS: &[Column] = &[
    ("came", 0, |s| Some(s.first_turns.came as f64)),
    ("started", 0, |s| Some(s.first_turns.started as f64)),
    ("door", 0, |s| {
        Some(s.first_turns.refused_at_the_door as f64)
    }),
    ("waited", 0, |s| {
        Some(s.first_turns.refused_after_waiting as f64)
    }),
    ("start p50", 1, |s| s.first_turns.wait.p50),
    ("p99", 1, |s| s.first_turns.wait.p99),
    ("max", 1, |s| s.first_turns.wait.max),
    ("cont. p50", 1, |s| s.wait_later.p50),
    ("p99", 1, |s| s.wait_later.p99),
    ("max", 1, |s| s.wait_later.max),
    ("lost", 0, |s| {
        Some((s.abandoned + s.failed + s.gave_up) as f64)
    }),
    ("served/s", 2, |s| Some(s.served_per_second)),
    ("reuse %", 1, |s| Some(100.0 * s.reuse?)),
    ("jain", 3, |s| s.jain_speed),
];

/// What the heads of [`frontier_table`] mean.
pub const FRONTIER_LEGEND: &str = "\
came      first turns; started: dispatched in the end; door: refused at once, every try; waited: refused after waiting
start     seconds that those who started waited in the line; cont.: seconds that follow-ups waited, refused ones too
lost      requests that failed, were given up, or were never sent because one before was not served
jain      Jain's index over flows' speed, those never served in it
";

/// Rows of text, one for each fairness policy and load.
#[must_use]
pub fn frontier_table(cells: &[Cell]) -> String {
    let mut heads = vec!["fairness".to_owned(), "load".to_owned()];
    heads.extend(COLUMNS.iter().map(|(head, ..)| (*head).to_owned()));
    let mut lines = vec![heads];
    for row in rows(cells) {
        let Some(cell) = row.first() else {
            continue;
        };
        let mean = |value: &dyn Fn(&Cell) -> Option<f64>, decimals: usize| {
            let values: Vec<f64> = row.iter().filter_map(value).collect();
            let mean = Spread::of(&values).map(|spread| spread.mean);
            mean.map_or("-".to_owned(), |mean| format!("{mean:.decimals$}"))
        };
        let mut line = vec![cell.fairness.clone(), mean(&|cell| Some(cell.load), 2)];
        let cells = COLUMNS.iter();
        line.extend(cells.map(|(_, decimals, value)| mean(&|cell| value(&cell.sums), *decimals)));
        lines.push(line);
    }
    aligned(&lines, 1)
}
