//! The table that people read.

use super::Sums;

/// Rows of text, the first one the heads, all columns right-aligned but the first.
#[must_use]
pub fn table(rows: &[(String, Sums)]) -> String {
    let heads = [
        "policy",
        "load",
        "came",
        "started",
        "door",
        "waited",
        "open",
        "late",
        "start p50",
        "p99",
        "max",
        "cont. p50",
        "p99",
        "max",
        "refused",
        "starved",
        "share",
        "reuse",
        "req/s",
        "again",
    ];
    let mut lines: Vec<Vec<String>> = vec![heads.iter().map(|head| (*head).to_owned()).collect()];
    lines.extend(rows.iter().map(|(policy, sums)| row(policy, sums)));
    let widths: Vec<usize> = (0..heads.len())
        .map(|at| {
            lines
                .iter()
                .map(|line| line[at].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for line in lines {
        let cells: Vec<String> = line
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(at, (cell, width))| {
                if at == 0 {
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

/// What the heads of [`table`] mean.
pub const LEGEND: &str = "\
load     what clients would take if nobody waited, over what there is
came     newcomers; started: their first turn was served; door: refused at once; waited: refused after waiting;
         open: still waiting at the end; late: admitted, but not started within start_within
         (but for those who came before anything was measured)
start    seconds that first turns waited; cont.: seconds that follow-ups waited; refused: follow-ups refused
starved  deep conversations that got nothing in the last quarter of the time
share    first turns' part of the charge dispatched while both lines waited
reuse    cached over prompt tokens of follow-ups
again    refused newcomers who came once more at the time they were told, and how many were let in
";

fn row(policy: &str, sums: &Sums) -> Vec<String> {
    let seconds = |value: Option<f64>| value.map_or("-".to_owned(), |s| format!("{s:.1}"));
    let share =
        |value: Option<f64>| value.map_or("-".to_owned(), |s| format!("{:.1} %", s * 100.0));
    vec![
        policy.to_owned(),
        format!("{:.2}", sums.load),
        sums.newcomers.to_string(),
        sums.started.to_string(),
        sums.refused_at_the_door.to_string(),
        sums.refused_after_waiting.to_string(),
        sums.still_waiting.to_string(),
        sums.late_starts.to_string(),
        seconds(sums.start_waits.p50),
        seconds(sums.start_waits.p99),
        seconds(sums.start_waits.max),
        seconds(sums.follow_up_waits.p50),
        seconds(sums.follow_up_waits.p99),
        seconds(Some(sums.follow_up_longest)),
        sums.follow_ups_refused.to_string(),
        sums.deep_starved.to_string(),
        share(sums.new_share_contested),
        share(sums.follow_up_reuse),
        format!("{:.3}", sums.throughput),
        format!("{}/{}", sums.retries_admitted, sums.retries),
    ]
}
