//! The table that people read: one row per placement, fairness and load, means over seeds.

use super::{Cell, Spread, Sums};

type Column = (&'static str, usize, fn(&Sums) -> Option<f64>);

/// Heads, decimals, and what stands below. Shares are in percent.
const COLUMNS: &[Column] = &[
    ("served", 0, |s| Some(s.served as f64)),
    ("refused", 0, |s| Some(s.refused as f64)),
    ("lost", 0, |s| {
        Some((s.failed + s.gave_up + s.abandoned) as f64)
    }),
    ("ttft p50", 3, |s| s.ttft.p50),
    ("p99", 3, |s| s.ttft.p99),
    ("first p99", 3, |s| s.ttft_first.p99),
    ("later p99", 3, |s| s.ttft_later.p99),
    ("tpot p50", 4, |s| s.tpot.p50),
    ("p99", 4, |s| s.tpot.p99),
    ("e2e p50", 2, |s| s.e2e.p50),
    ("p99", 2, |s| s.e2e.p99),
    ("wait max", 2, |s| {
        s.wait_first
            .max
            .into_iter()
            .chain(s.wait_later.max)
            .reduce(f64::max)
    }),
    ("good %", 1, |s| percent(s.goodput)),
    ("reuse %", 1, |s| percent(s.reuse)),
    ("of best %", 1, |s| percent(s.of_ceiling)),
    ("off", 0, |s| s.prediction_error),
    ("escapes", 0, |s| Some(s.escapes as f64)),
    ("waste %", 2, |s| percent(warmth(s, s.escape_tokens))),
    ("moves %", 1, |s| {
        percent((s.could_move > 0).then(|| s.moves as f64 / s.could_move as f64))
    }),
    ("imbal.", 2, |s| s.imbalance),
    ("preempt", 0, |s| Some(s.preemptions as f64)),
    ("jain", 3, |s| s.jain_speed),
];

/// What the heads mean.
pub const LEGEND: &str = "\
load      what requests take of the engines with every reuse and full batches, over what there is: 1 is the end
served    answered in full; refused: at the end of all tries; lost: failed, given up, or never sent because of that
ttft      seconds from arrival to the first token; first: of first turns; later: of follow-ups
tpot      seconds for each token after the first; e2e: seconds to the end; wait max: longest in the line, refused too
good      within the bounds (ttft scaled by length, tpot), of all that were sent or should have been
reuse     cached of prompt tokens served; of best: cached over what one unbounded cache would have had
off       predicted less actual cached tokens, mean
escapes   dispatches away from home or warmest because of its load; waste: prompt tokens left warm there, of all
moves     follow-ups served elsewhere than the turn before; imbal.: most charge of one worker over the mean
preempt   jobs that engines sent back for want of memory
jain      Jain's index over flows' speed (1: all equally slowed), those never served in it
A value with ± is the mean over seeds and half the width of its 95 % confidence interval.
";

fn percent(share: Option<f64>) -> Option<f64> {
    share.map(|share| share * 100.0)
}

fn warmth(sums: &Sums, tokens: u64) -> Option<f64> {
    let prompt = sums.prompt_tokens as f64;
    (prompt > 0.0).then(|| tokens as f64 / prompt)
}

/// Rows of text, the first one the heads, all columns right-aligned but the first two.
#[must_use]
pub fn table(cells: &[Cell]) -> String {
    let rows: Vec<&[Cell]> = rows(cells).collect();
    aligned(&lines(&rows), 2)
}

/// The table's cells, line by line, the heads first.
pub(crate) fn lines(rows: &[&[Cell]]) -> Vec<Vec<String>> {
    let heads = ["placement", "fairness", "load"].into_iter();
    let heads = heads.chain(COLUMNS.iter().map(|(head, ..)| *head));
    let mut lines: Vec<Vec<String>> = vec![heads.map(str::to_owned).collect()];
    for row in rows {
        let Some(cell) = row.first() else {
            continue;
        };
        let mut line = vec![cell.placement.clone(), cell.fairness.clone()];
        let loads: Vec<f64> = row.iter().map(|cell| cell.load).collect();
        line.push(Spread::of(&loads).map_or("-".to_owned(), |load| format!("{:.2}", load.mean)));
        line.extend(COLUMNS.iter().map(|(_, decimals, value)| {
            let values: Vec<f64> = row.iter().filter_map(|cell| value(&cell.sums)).collect();
            shown(Spread::of(&values), *decimals)
        }));
        lines.push(line);
    }
    lines
}

/// Cells that differ in their seed only, as [`super::play`] returns them.
pub fn rows(cells: &[Cell]) -> impl Iterator<Item = &[Cell]> {
    cells.chunk_by(|a, b| a.row == b.row)
}

fn shown(value: Option<Spread>, decimals: usize) -> String {
    let Some(value) = value else {
        return "-".to_owned();
    };
    match value.half_width {
        Some(half) => format!("{:.decimals$}±{half:.decimals$}", value.mean),
        None => format!("{:.decimals$}", value.mean),
    }
}

/// Columns padded to their widest cell; the first `left` of them to the left.
pub(crate) fn aligned(lines: &[Vec<String>], left: usize) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| {
        let cells = lines.iter().filter_map(|line| line.get(at));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).enumerate();
        let cells: Vec<String> = cells
            .map(|(at, (cell, width))| {
                if at < left {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            })
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}
