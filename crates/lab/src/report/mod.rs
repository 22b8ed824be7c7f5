//! A page that a person would rather look at than read: self-contained, no script, nothing from the network.

mod chart;
pub(crate) mod frame;
mod heat;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use crate::grid::{Cell, Spread, Sums, rows};
use chart::{Bars, Lines};
use frame::escaped;

type Metric = (&'static str, &'static str, fn(&Sums) -> Option<f64>);

/// What is drawn, with what is good about it.
const METRICS: &[Metric] = &[
    ("Time to first token, median (s)", "less is better", |s| {
        s.ttft.p50
    }),
    (
        "Time to first token, 99th percentile (s)",
        "less is better",
        |s| s.ttft.p99,
    ),
    ("Good answers (%)", "more is better", |s| {
        Some(100.0 * s.goodput?)
    }),
    (
        "Cached of prompt tokens (%)",
        "more is better; dashed: the most that one unbounded cache would have",
        |s| Some(100.0 * s.reuse?),
    ),
    (
        "First turns: 99th percentile of the wait in the line (s)",
        "less is better; refused ones too",
        |s| s.wait_first.p99,
    ),
    (
        "Follow-ups: 99th percentile of the wait in the line (s)",
        "less is better; refused ones too",
        |s| s.wait_later.p99,
    ),
    ("Most work of one worker over the mean", "1 is even", |s| {
        s.imbalance
    }),
];
/// The metric that has a ceiling.
const REUSE: usize = 3;

/// The page. `what` is what was played, `command` how to play it again.
#[must_use]
pub fn page(what: &str, command: &str, cells: &[Cell]) -> String {
    let rows: Vec<&[Cell]> = rows(cells).collect();
    let seeds = rows.first().map_or(0, |row| row.len());
    let mut page = String::new();
    // A string takes all that is written.
    let _ = write!(
        page,
        "{}<h1>{what}</h1><p>{} policies at {} loads, {seeds} seeds each; simulated: virtual time, the real scheduler, \
         modelled engines.</p><p><code>{command}</code></p><div class=grid>",
        frame::head(&format!("maitred simulate: {what}")),
        names(&rows).len(),
        loads(&rows).len(),
        what = escaped(what),
        command = escaped(command),
    );
    for (place, (title, note, value)) in METRICS.iter().enumerate() {
        let chart = chart(&rows, *value, place == REUSE);
        let _ = write!(
            page,
            "<figure><h2>{title}</h2><p>{note}</p>{chart}</figure>"
        );
    }
    page.push_str("</div>");
    page.push_str(&timelines(&rows));
    page.push_str(&table(&rows));
    page.push_str("</html>\n");
    page
}

fn name(cell: &Cell) -> String {
    format!("{} {}", cell.placement, cell.fairness)
}

/// Policies in the order in which they stand.
fn names(rows: &[&[Cell]]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for cell in rows.iter().filter_map(|row| row.first()) {
        if !names.contains(&name(cell)) {
            names.push(name(cell));
        }
    }
    names
}

/// Different loads: rows of one load follow each other.
fn loads(rows: &[&[Cell]]) -> Vec<f64> {
    let mut loads: Vec<f64> = rows.iter().filter_map(|row| mean_load(row)).collect();
    loads.dedup();
    loads
}

fn mean_load(row: &[Cell]) -> Option<f64> {
    let loads: Vec<f64> = row.iter().map(|cell| cell.load).collect();
    Spread::of(&loads).map(|spread| spread.mean)
}

fn mean(row: &[Cell], value: impl Fn(&Sums) -> Option<f64>) -> Option<Spread> {
    let values: Vec<f64> = row.iter().filter_map(|cell| value(&cell.sums)).collect();
    Spread::of(&values)
}

fn chart(rows: &[&[Cell]], value: fn(&Sums) -> Option<f64>, with_most: bool) -> String {
    let most = |row: &[Cell]| mean(row, |sums| Some(100.0 * sums.ceiling?)).map(|most| most.mean);
    if loads(rows).len() < 2 {
        let bars = rows
            .iter()
            .filter_map(|row| Some((name(row.first()?), mean(row, value)?)));
        let most = rows.iter().filter_map(|row| most(row)).reduce(f64::max);
        return Bars {
            bars: bars.collect(),
            most: most.filter(|_| with_most),
        }
        .svg();
    }
    let series = names(rows).into_iter().map(|wanted| {
        let own = rows
            .iter()
            .filter(|row| row.first().is_some_and(|cell| name(cell) == wanted));
        let points = own.filter_map(|row| Some((mean_load(row)?, mean(row, value)?.mean)));
        let points: Vec<(f64, f64)> = points.collect();
        (wanted, points)
    });
    let ceiling = rows
        .iter()
        .filter_map(|row| Some((mean_load(row)?, most(row)?)));
    let mut ceiling: Vec<(f64, f64)> = ceiling.filter(|_| with_most).collect();
    ceiling.sort_by(|a, b| a.0.total_cmp(&b.0));
    Lines {
        series: series.collect(),
        most: ceiling,
    }
    .svg()
}

/// Drawings of the highest load, first seed.
fn timelines(rows: &[&[Cell]]) -> String {
    let highest = rows
        .iter()
        .filter_map(|row| mean_load(row))
        .fold(0.0, f64::max);
    let shown = rows.iter().filter(|row| mean_load(row) == Some(highest));
    let cells: Vec<&Cell> = shown.filter_map(|row| row.first()).collect();
    let top = cells
        .iter()
        .map(|cell| heat::top(&cell.timeline))
        .fold(0.0, f32::max);
    let mut html = format!(
        "<h2>Requests on each worker over time, at load {highest:.2}</h2><p>A row is a worker; the darkest is {top:.0} \
         requests at once. First seed.</p><div class=grid>"
    );
    for cell in cells {
        let drawn = heat::svg(&cell.timeline, top);
        let _ = write!(
            html,
            "<figure><h2>{}</h2>{drawn}</figure>",
            escaped(&name(cell))
        );
    }
    html.push_str("</div>");
    html
}

fn table(rows: &[&[Cell]]) -> String {
    let text = crate::grid::lines(rows);
    format!(
        "{}<pre>{}</pre>",
        frame::table(&text),
        escaped(crate::grid::LEGEND)
    )
}
