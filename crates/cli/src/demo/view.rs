//! The live table: redrawn in place on a terminal, a plain line every five seconds without one.

use std::io::{IsTerminal as _, Stdout, Write as _};
use std::time::Duration;

use maitred_enginesim::model::Metrics;

use super::play::Plan;
use super::score::Summary;

/// Between two plain lines.
const PLAIN_EVERY: Duration = Duration::from_secs(5);
/// Characters of a bar.
const BAR: usize = 24;

/// Where the demo shows itself.
#[derive(Debug)]
pub(crate) struct View {
    out: Stdout,
    terminal: bool,
    /// Lines of the block that is redrawn.
    drawn: usize,
    next_plain: Duration,
}

impl View {
    /// Standard output.
    pub(crate) fn new() -> Self {
        let out = std::io::stdout();
        Self {
            terminal: out.is_terminal(),
            out,
            drawn: 0,
            next_plain: PLAIN_EVERY,
        }
    }

    /// Prints `text` and a line end. A closed output is no reason to stop.
    pub(crate) fn say(&mut self, text: &str) {
        let _ = writeln!(self.out, "{text}");
        let _ = self.out.flush();
    }

    /// Starts a new block below what is there.
    pub(crate) fn begin(&mut self) {
        self.drawn = 0;
        self.next_plain = PLAIN_EVERY;
    }

    /// Shows where a run stands.
    pub(crate) fn show(
        &mut self,
        plan: &Plan,
        elapsed: Duration,
        summary: &Summary,
        errors: usize,
        engines: &[Metrics],
        served_before: &[u64],
    ) {
        if self.terminal {
            let lines = table(plan, elapsed, summary, errors, engines, served_before);
            let mut text = String::new();
            if self.drawn > 0 {
                text.push_str(&format!("\x1b[{}A", self.drawn));
            }
            for line in &lines {
                text.push_str("\x1b[2K");
                text.push_str(line);
                text.push('\n');
            }
            self.drawn = lines.len();
            let _ = self.out.write_all(text.as_bytes());
            let _ = self.out.flush();
        } else if elapsed >= self.next_plain || elapsed >= plan.length {
            while self.next_plain <= elapsed {
                self.next_plain += PLAIN_EVERY;
            }
            self.say(&plain(plan, elapsed, summary, errors, engines));
        }
    }
}

fn plain(
    plan: &Plan,
    elapsed: Duration,
    summary: &Summary,
    errors: usize,
    engines: &[Metrics],
) -> String {
    let loads: Vec<String> = engines
        .iter()
        .map(|m| (m.running + m.waiting).to_string())
        .collect();
    format!(
        "{:<12} {:>2}/{} s  {:>5} answered  first token p50 {} p99 {}  cached {}  errors {}  in flight {}",
        plan.policy,
        elapsed.as_secs(),
        plan.length.as_secs(),
        summary.requests,
        time(summary.ttft_p50),
        time(summary.ttft_p99),
        share(summary.cached_share()),
        errors,
        loads.join(" "),
    )
}

fn table(
    plan: &Plan,
    elapsed: Duration,
    summary: &Summary,
    errors: usize,
    engines: &[Metrics],
    served_before: &[u64],
) -> Vec<String> {
    let part = elapsed.as_secs_f64() / plan.length.as_secs_f64().max(1e-9);
    let mut lines = vec![
        format!(
            "{:<12} {}  {:>2}/{} s",
            plan.policy,
            bar(part),
            elapsed.as_secs(),
            plan.length.as_secs()
        ),
        format!(
            "  {} answered   first token p50 {}  p99 {}   cached {}   errors {errors}",
            summary.requests,
            time(summary.ttft_p50),
            time(summary.ttft_p99),
            share(summary.cached_share()),
        ),
    ];
    for (at, m) in engines.iter().enumerate() {
        let load = m.running + m.waiting;
        let served = m
            .finished
            .saturating_sub(served_before.get(at).copied().unwrap_or(0));
        lines.push(format!(
            "  engine {}  {}  running {:>2}  waiting {:>2}  served {:>4}  KV {:>3.0} %",
            at + 1,
            bar(load as f64 / BAR as f64),
            m.running,
            m.waiting,
            served,
            100.0 * m.blocks_used as f64 / m.blocks_total.max(1) as f64,
        ));
    }
    lines
}

fn bar(part: f64) -> String {
    let full = ((part * BAR as f64).round() as usize).min(BAR);
    "█".repeat(full) + &"·".repeat(BAR - full)
}

/// A duration as people read it.
pub(crate) fn time(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1_000.0;
    if ms < 1_000.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{:.2} s", ms / 1_000.0)
    }
}

/// A share in percent; unknown is not zero.
pub(crate) fn share(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |s| format!("{:.1} %", s * 100.0))
}
