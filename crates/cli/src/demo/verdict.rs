//! The closing comparison, in numbers and in plain words; also where the words are not flattering.

use std::time::Duration;

use super::play::Outcome;
use super::score::{Sample, Summary};
use super::view::{share, time};

/// Differences smaller than this part are called none.
const EQUAL_WITHIN: f64 = 0.05;

/// Lines that compare `after` with `before`.
pub(crate) fn compare(before: &Outcome, after: &Outcome, length: Duration) -> Vec<String> {
    let common = |own: &Outcome, other: &Outcome| -> Vec<Sample> {
        let both = own
            .score
            .samples
            .iter()
            .filter(|(key, _)| other.score.samples.contains_key(*key));
        both.map(|(_, sample)| *sample).collect()
    };
    let a = Summary::of(common(before, after).into_iter());
    let b = Summary::of(common(after, before).into_iter());
    let mut lines = vec![
        format!(
            "The same {} requests were answered in both runs ({} s each, caches emptied in between):",
            a.requests,
            length.as_secs()
        ),
        String::new(),
        row("", &before.policy, &after.policy, ""),
    ];
    let p50 = (a.ttft_p50.as_secs_f64(), b.ttft_p50.as_secs_f64());
    let p99 = (a.ttft_p99.as_secs_f64(), b.ttft_p99.as_secs_f64());
    let computed = (a.computed_tokens() as f64, b.computed_tokens() as f64);
    lines.push(row(
        "first token, median",
        &time(a.ttft_p50),
        &time(b.ttft_p50),
        &less(p50),
    ));
    lines.push(row(
        "first token, 99 of 100 within",
        &time(a.ttft_p99),
        &time(b.ttft_p99),
        &less(p99),
    ));
    lines.push(row(
        "prompt tokens from cache",
        &share(a.cached_share()),
        &share(b.cached_share()),
        "",
    ));
    lines.push(row(
        "of a follow-up's earlier turns",
        &share(a.earlier_share()),
        &share(b.earlier_share()),
        "",
    ));
    lines.push(row(
        "prompt tokens computed",
        &count(computed.0),
        &count(computed.1),
        &less(computed),
    ));
    lines.push(String::new());
    lines.push("Over the whole runs (a client asks again only when it was answered):".to_owned());
    lines.push(String::new());
    let (all_a, all_b) = (before.score.summary(), after.score.summary());
    let answered = (all_a.requests as f64, all_b.requests as f64);
    lines.push(row(
        "requests answered",
        &count(answered.0),
        &count(answered.1),
        &more(answered),
    ));
    let balance = |outcome: &Outcome| {
        outcome
            .loads
            .busiest_over_mean()
            .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2} x"))
    };
    lines.push(row(
        "busiest engine against the mean",
        &balance(before),
        &balance(after),
        "",
    ));
    let open = |outcome: &Outcome| outcome.score.open.to_string();
    lines.push(row(
        "under way when time was up",
        &open(before),
        &open(after),
        "",
    ));
    let errors = |outcome: &Outcome| outcome.score.errors.to_string();
    lines.push(row("errors", &errors(before), &errors(after), ""));
    lines.push(String::new());
    lines.extend(words(before, after, &a, &b));
    for outcome in [before, after] {
        if let Some(error) = &outcome.score.first_error {
            lines.push(format!("First error under {}: {error}", outcome.policy));
        }
    }
    lines
}

fn words(before: &Outcome, after: &Outcome, a: &Summary, b: &Summary) -> Vec<String> {
    let (old, new) = (&before.policy, &after.policy);
    let (Some(cached_a), Some(cached_b)) = (a.cached_share(), b.cached_share()) else {
        return vec!["Nothing was answered in both runs: there is nothing to compare.".to_owned()];
    };
    let mut lines = Vec::new();
    let per_request = |s: &Summary| s.computed_tokens() as f64 / s.requests.max(1) as f64;
    if cached_b > cached_a {
        lines.push(format!(
            "Under {new} a conversation came back to the engine that remembered it: an engine computed {:.0} tokens for a",
            per_request(b)
        ));
        lines.push(format!(
            "request instead of {:.0}, and answered from its cache for the rest.",
            per_request(a)
        ));
    } else {
        lines.push(format!(
            "Under {new} the engines found no more in their caches than under {old}."
        ));
    }
    let pairs = [
        (
            "The median wait for a first token",
            a.ttft_p50.as_secs_f64(),
            b.ttft_p50.as_secs_f64(),
        ),
        (
            "The slowest hundredth",
            a.ttft_p99.as_secs_f64(),
            b.ttft_p99.as_secs_f64(),
        ),
    ];
    for (what, from, to) in pairs {
        lines.push(match change(from, to) {
            Some(c) if c < -EQUAL_WITHIN => {
                format!("{what} became {:.1} times shorter.", from / to.max(1e-9))
            }
            Some(c) if c > EQUAL_WITHIN => {
                format!("{what} became {:.1} times longer.", to / from.max(1e-9))
            }
            _ => format!("{what} stayed the same."),
        });
    }
    if let (Some(x), Some(y)) = (
        before.loads.busiest_over_mean(),
        after.loads.busiest_over_mean(),
    ) && y > x + EQUAL_WITHIN
    {
        lines.push(format!(
            "The price: the load is less even, the busiest engine had {y:.2} times the mean instead of {x:.2} times."
        ));
    }
    lines
}

fn row(what: &str, before: &str, after: &str, note: &str) -> String {
    format!("  {what:<32}{before:>14}{after:>14}   {note}")
        .trim_end()
        .to_owned()
}

fn change(from: f64, to: f64) -> Option<f64> {
    (from > 0.0).then(|| to / from - 1.0)
}

/// A note for a number that should be small.
fn less(pair: (f64, f64)) -> String {
    note(pair, "less", "MORE")
}

/// A note for a number that should be large.
fn more(pair: (f64, f64)) -> String {
    note(pair, "FEWER", "more")
}

fn note((from, to): (f64, f64), down: &str, up: &str) -> String {
    match change(from, to) {
        Some(c) if c < -EQUAL_WITHIN => format!("{:.0} % {down}", -c * 100.0),
        Some(c) if c > EQUAL_WITHIN => format!("{:.0} % {up}", c * 100.0),
        Some(_) => "about equal".to_owned(),
        None => String::new(),
    }
}

/// A number with thousands set apart.
fn count(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::score::{Loads, Score};

    fn outcome(policy: &str, samples: &[(usize, u64, u64)]) -> Outcome {
        let mut score = Score::default();
        for (client, ms, cached) in samples {
            let sample = Sample {
                ttft: Duration::from_millis(*ms),
                prompt_tokens: 1_000,
                cached_tokens: *cached,
                earlier_tokens: 0,
            };
            score.samples.insert((*client, 0, 0), sample);
        }
        let mut loads = Loads::default();
        loads.note([1, 1].into_iter());
        Outcome {
            policy: policy.to_owned(),
            score,
            loads,
        }
    }

    #[test]
    fn only_requests_of_both_runs_are_compared() {
        let a = outcome("round_robin", &[(0, 400, 0), (1, 400, 0)]);
        let b = outcome("session", &[(0, 100, 900), (2, 9_000, 0)]);
        let text = compare(&a, &b, Duration::from_secs(30)).join("\n");
        assert!(text.contains("The same 1 requests"), "{text}");
        assert!(text.contains("75 % less"), "{text}");
        assert!(text.contains("4.0 times shorter"), "{text}");
        assert!(text.contains("computed 100 tokens"), "{text}");
    }

    #[test]
    fn a_worse_column_says_so() {
        let a = outcome("round_robin", &[(0, 100, 500)]);
        let b = outcome("session", &[(0, 200, 500)]);
        let text = compare(&a, &b, Duration::from_secs(30)).join("\n");
        assert!(
            text.contains("100 % MORE") && text.contains("2.0 times longer"),
            "{text}"
        );
        assert!(text.contains("no more in their caches"), "{text}");
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(count(1_234_567.0), "1,234,567");
        assert_eq!(count(999.0), "999");
    }
}
