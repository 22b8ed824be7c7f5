//! The table: medians over rounds, ratios within rounds, and whether a target is met.

use std::fmt::Write as _;

use crate::cases::{Case, Growth, Sample, Samples};
use crate::targets::{MAITRED, Target};
use crate::waiting::{BODY, Waiting};

/// Most the gateway may add to the median of a direct connection, in milliseconds.
const ADDED_P50_MOST_MS: f64 = 0.4;
/// Most resident memory may grow over 100,000 distinct prompts of 1 KiB, in MiB.
const GROWTH_MOST_MIB: f64 = 64.0;
/// Most memory that a waiting request may take beside its body, in bytes.
const WAITING_MOST_BYTES: f64 = 1_024.0;

/// The middle value; the mean of the two middle ones for an even count; 0 for none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => (values[count / 2 - 1] + values[count / 2]) / 2.0,
    }
}

/// Lines of a Markdown table, which is legible in a terminal too.
#[derive(Debug, Default)]
pub(crate) struct Report {
    text: String,
    missed: usize,
}

impl Report {
    /// The text so far.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// How many targets were missed.
    pub(crate) fn missed(&self) -> usize {
        self.missed
    }

    /// Adds a line.
    pub(crate) fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn verdict(&mut self, met: bool) -> &'static str {
        self.missed += usize::from(!met);
        if met { "met" } else { "MISSED" }
    }

    /// The head of the table of CPU time.
    pub(crate) fn cpu_head(&mut self) {
        self.line("| case | through | CPU ms/request | x base (min..max of rounds) | target | |");
        self.line("|---|---|--:|--:|--:|---|");
    }

    /// The rows of one case; ratios are to the case's base.
    pub(crate) fn cpu_rows(&mut self, case: &Case, targets: &[Target], samples: &Samples) {
        let base = targets
            .iter()
            .position(|target| target.name == case.versus.base);
        for (index, target) in targets.iter().enumerate() {
            let own = &samples[index];
            let rate = median(own.iter().map(|sample| sample.rate));
            let chunks = own.first().map_or(0.0, |sample| sample.chunks);
            let mut note = format!("{rate:.0}/s");
            if case.shape.stream {
                let _ = write!(note, ", {chunks:.0} chunks");
            }
            let Some(cpu) = cpu_of(own) else {
                self.line(&format!(
                    "| {} | {} | | | | {note} |",
                    case.name, target.name
                ));
                continue;
            };
            let ratios = base
                .map(|base| ratios(own, &samples[base]))
                .unwrap_or_default();
            let (mut shown, mut goal) = (String::new(), String::new());
            if !ratios.is_empty() {
                let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
                let high = ratios.iter().copied().fold(0.0, f64::max);
                let middle = median(ratios);
                shown = format!("{middle:.2} ({low:.2}..{high:.2})");
                if target.name == case.versus.own
                    && let Some(most) = case.ratio_most
                {
                    goal = format!("<= {most}");
                    let met = self.verdict(middle <= most);
                    note = format!("{met}; {note}");
                }
            }
            self.line(&format!(
                "| {} | {} | {cpu:.4} | {shown} | {goal} | {note} |",
                case.name, target.name
            ));
        }
    }

    /// The latency table.
    pub(crate) fn latency(&mut self, targets: &[Target], samples: &Samples) {
        self.line(
            "\n| 1 KiB chat at 100/s, one connection | p50 ms | added over direct, ms | target | |",
        );
        self.line("|---|--:|--:|--:|---|");
        let direct = samples.first().cloned().unwrap_or_default();
        for (target, own) in targets.iter().zip(samples) {
            let p50 = median(own.iter().map(|sample| sample.p50_ms));
            let added = median(
                own.iter()
                    .zip(&direct)
                    .map(|(own, direct)| own.p50_ms - direct.p50_ms),
            );
            let (mut goal, mut note) = (String::new(), "");
            if target.name == MAITRED {
                goal = format!("<= {ADDED_P50_MOST_MS}");
                note = self.verdict(added <= ADDED_P50_MOST_MS);
            }
            self.line(&format!(
                "| {} | {p50:.3} | {added:+.3} | {goal} | {note} |",
                target.name
            ));
        }
    }

    /// The memory line.
    pub(crate) fn memory(&mut self, count: usize, growth: &Growth) {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let steps: Vec<String> = growth
            .steps
            .iter()
            .map(|&bytes| format!("{:+.1}", mib(bytes)))
            .collect();
        let grown = growth.steps.last().copied().map_or(0.0, mib);
        let verdict = self.verdict(grown < GROWTH_MOST_MIB);
        self.line(&format!(
            "\nMemory: {:.1} MiB at start; after each quarter of {count} distinct 1 KiB prompts {} MiB; target < {GROWTH_MOST_MIB} MiB above start: {verdict}",
            mib(growth.before),
            steps.join(", "),
        ));
    }

    /// What waits in the line.
    pub(crate) fn waiting(&mut self, all: &[(&str, Waiting)]) {
        self.line(&format!(
            "\n| waiting requests of {BODY} bytes | requests | bytes beside the body | target | | an idle connection |"
        ));
        self.line("|---|--:|--:|--:|---|--:|");
        for (over, waiting) in all {
            let note = self.verdict(waiting.request <= WAITING_MOST_BYTES);
            self.line(&format!(
                "| {over} | {} | {:.0} | <= {WAITING_MOST_BYTES} | {note} | {:.0} |",
                waiting.requests, waiting.request, waiting.connection
            ));
        }
    }
}

fn cpu_of(samples: &[Sample]) -> Option<f64> {
    let values: Option<Vec<f64>> = samples.iter().map(|sample| sample.cpu_ms).collect();
    values.map(median)
}

/// Ratios of CPU time within each round: what disturbs a round disturbs both of its sides.
fn ratios(own: &[Sample], base: &[Sample]) -> Vec<f64> {
    own.iter()
        .zip(base)
        .filter_map(|(own, base)| Some(own.cpu_ms? / base.cpu_ms?))
        .filter(|ratio| ratio.is_finite())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median([]), 0.0);
    }
}
