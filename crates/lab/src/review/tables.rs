//! The tables that people read.

use std::fmt::Write as _;

use super::{KINDS, Review, Sketch, Sums, sums};
use crate::grid::aligned;

/// Groups of one kind that a table shows: those with the most records. JSON has all.
const SHOWN: usize = 20;

/// A table: the heads are its first line; the first two columns are text.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// What it is about.
    pub title: &'static str,
    /// What its heads mean.
    pub note: &'static str,
    /// Heads, then rows.
    pub lines: Vec<Vec<String>>,
}

/// All of them.
#[must_use]
pub fn tables(review: &Review) -> Vec<Table> {
    vec![
        reuse(review),
        moved(review),
        predictions(review),
        regret(review),
        ages(review),
        ends(review),
    ]
}

/// As text.
#[must_use]
pub fn text(review: &Review) -> String {
    let mut text = summary(review);
    for table in tables(review) {
        // A string takes all that is written.
        let _ = write!(
            text,
            "\n{}\n{}\n\n{}",
            table.title,
            table.note,
            aligned(&table.lines, 2)
        );
    }
    text
}

/// One paragraph of what the tables rest on.
pub(super) fn summary(review: &Review) -> String {
    let all = &review.all;
    let mut text = format!(
        "{} records, {} duplicates left out; {} served answers with {} prompt tokens are accounted for, {} are not.\n",
        review.records, review.duplicates, all.accounted, all.prompt_tokens, all.unaccounted
    );
    if all.cached_unknown > 0 {
        let _ = writeln!(
            text,
            "Of {} answers ({} prompt tokens) the engines do not say what was cached: have them report it \
             (vLLM: --enable-prompt-tokens-details).",
            all.cached_unknown, all.cached_unknown_tokens
        );
    }
    if all.inexact > 0 {
        let _ = writeln!(
            text,
            "In {} records causes and cached tokens are not the prompt.",
            all.inexact
        );
    }
    for (kind, groups) in &review.by {
        if groups.len() > SHOWN {
            let _ = writeln!(
                text,
                "Of {} groups by {kind} the {SHOWN} with the most records are shown.",
                groups.len()
            );
        }
    }
    text
}

/// All, then the groups of each kind, the largest first; turns in their order.
fn groups(review: &Review) -> Vec<(&str, &str, &Sums)> {
    let mut rows = vec![("all", "", &review.all)];
    for kind in KINDS {
        let Some(groups) = review.by.get(kind) else {
            continue;
        };
        let mut of: Vec<(&str, &Sums)> = groups.iter().map(|(g, s)| (g.as_str(), s)).collect();
        of.sort_by(|a, b| b.1.attempts.cmp(&a.1.attempts).then(a.0.cmp(b.0)));
        of.truncate(SHOWN);
        if kind == "turn" {
            of.sort_by_key(|(turn, _)| {
                turn.chars()
                    .take_while(char::is_ascii_digit)
                    .collect::<String>()
                    .parse::<u32>()
                    .ok()
            });
        }
        rows.extend(of.into_iter().map(|(group, sums)| (kind, group, sums)));
    }
    rows
}

fn table(
    title: &'static str,
    note: &'static str,
    heads: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> Table {
    let heads = heads.iter().map(|head| (*head).to_owned()).collect();
    Table {
        title,
        note,
        lines: std::iter::once(heads).chain(rows).collect(),
    }
}

fn reuse(review: &Review) -> Table {
    let mut heads = vec!["by", "", "answers", "prompt tokens", "cached %"];
    let names = sums::causes().map(|cause| format!("{cause} %"));
    heads.extend(names.iter().map(String::as_str));
    heads.push("not told");
    let rows = groups(review).into_iter().map(|(kind, group, sums)| {
        let share = |tokens: u64| percent(tokens, sums.prompt_tokens);
        let mut row = vec![
            kind.to_owned(),
            group.to_owned(),
            sums.accounted.to_string(),
            sums.prompt_tokens.to_string(),
            share(sums.cached_tokens),
        ];
        row.extend(sums::causes().map(|cause| share(sums.causes.get(cause).copied().unwrap_or(0))));
        row.push(sums.cached_unknown.to_string());
        row
    });
    table(
        "Reuse by cause",
        "Shares of prompt tokens of served answers: cached, or why not. not told: answers whose engine does not say what \
         was cached; of their tokens none count as cached.",
        &heads,
        rows,
    )
}

fn moved(review: &Review) -> Table {
    let all = &review.all;
    let causes = sums::causes().map(|cause| {
        let tokens = all.causes.get(cause).copied().unwrap_or(0);
        let answers = all.with_cause.get(cause).copied().unwrap_or(0);
        vec![
            cause.to_owned(),
            String::new(),
            tokens.to_string(),
            percent(tokens, all.prompt_tokens),
            answers.to_string(),
        ]
    });
    let why = all.moved.iter().map(|(why, tokens)| {
        vec![
            "moved".to_owned(),
            why.clone(),
            tokens.to_string(),
            percent(*tokens, all.prompt_tokens),
            "-".to_owned(),
        ]
    });
    table(
        "Causes",
        "Tokens that were not cached, by cause, and of those that were moved, why they were.",
        &["cause", "why", "tokens", "share %", "answers"],
        causes.into_iter().chain(why),
    )
}

fn predictions(review: &Review) -> Table {
    let rows = groups(review).into_iter().flat_map(|(kind, group, sums)| {
        sums.errors.iter().map(move |(source, errors)| {
            let known = errors.error.count();
            let mut row = vec![
                kind.to_owned(),
                format!("{group} {source}").trim().to_owned(),
                known.to_string(),
                errors.unknown.to_string(),
            ];
            row.extend([0.01, 0.1, 0.5, 0.9, 0.99].map(|q| shown(errors.error.quantile(q), 0)));
            row.push(shown(errors.error.mean(), 1));
            row.push(percent(errors.too_many, known));
            row.push(percent(errors.too_few, known));
            row
        })
    });
    table(
        "Predicted less actual cached tokens",
        "By what the prediction rested on: observed (the worker's events), predicted (our own dispatches), none. \
         too many, too few: off by more than 16 tokens.",
        &[
            "by",
            "",
            "answers",
            "unknown",
            "p1",
            "p10",
            "p50",
            "p90",
            "p99",
            "mean",
            "too many %",
            "too few %",
        ],
        rows,
    )
}

fn regret(review: &Review) -> Table {
    let rows = groups(review).into_iter().flat_map(|(kind, group, sums)| {
        sums.regret.iter().map(move |(reason, regret)| {
            let judged = regret.paid.count();
            vec![
                kind.to_owned(),
                format!("{group} {reason}").trim().to_owned(),
                regret.left.to_string(),
                percent(regret.left, sums.ages.decisions),
                regret.full.to_string(),
                regret.unseen.to_string(),
                judged.to_string(),
                shown(regret.there.mean(), 1),
                shown(regret.here.mean(), 1),
                shown(regret.paid.mean(), 1),
                percent(regret.regretted, judged),
                shown((judged > 0).then_some(regret.lost_ms / 1e3), 2),
                shown((judged > 0).then_some(regret.won_ms / 1e3), 2),
            ]
        })
    });
    table(
        "Regret of leaving the warmest worker",
        "By the decision's reason. full: the warmest had no seat, and what waiting would have cost is unknown; unseen: no stream, or no answer. Of those judged, mean milliseconds to the first token: as expected from the warmest (there), as expected \
         where it went (here), and as it was (paid). regretted: it took longer than staying was expected to; lost and won: by how many \
         seconds in all. How far paid is from here is how far the expectation is off.",
        &[
            "by",
            "",
            "left",
            "of all %",
            "full",
            "unseen",
            "judged",
            "there ms",
            "here ms",
            "paid ms",
            "regretted %",
            "lost s",
            "won s",
        ],
        rows,
    )
}

fn ages(review: &Review) -> Table {
    let rows = groups(review).into_iter().map(|(kind, group, sums)| {
        let ages = &sums.ages;
        let of = |sketch: &Sketch| {
            [
                shown(sketch.quantile(0.5), 0),
                shown(sketch.quantile(0.99), 0),
                shown(sketch.max(), 0),
            ]
        };
        let mut row = vec![
            kind.to_owned(),
            group.to_owned(),
            ages.decisions.to_string(),
        ];
        row.extend(of(&ages.report));
        row.push(ages.report_none.to_string());
        row.push(percent(ages.stale, ages.decisions));
        row.extend(of(&ages.events));
        row.push(ages.events_none.to_string());
        row
    });
    table(
        "Age of signals",
        "In milliseconds at the decision: of the chosen worker's own metrics, and of its last KV events; none: decisions about \
         workers that had sent none. stale: metrics too old or missing, own leases ruled.",
        &[
            "by",
            "",
            "decisions",
            "metrics p50",
            "p99",
            "max",
            "none",
            "stale %",
            "events p50",
            "p99",
            "max",
            "none",
        ],
        rows,
    )
}

fn ends(review: &Review) -> Table {
    let outcomes = maitred_records::Outcome::ALL.map(maitred_records::Outcome::as_str);
    let mut heads = vec!["by", "", "records"];
    heads.extend(outcomes);
    heads.extend(["ttft p50", "p99", "unknown", "wait p50", "p99"]);
    let rows = groups(review).into_iter().map(|(kind, group, sums)| {
        let mut row = vec![kind.to_owned(), group.to_owned(), sums.attempts.to_string()];
        row.extend(outcomes.map(|end| sums.outcomes.get(end).copied().unwrap_or(0).to_string()));
        row.push(shown(sums.ttft_ms.quantile(0.5), 1));
        row.push(shown(sums.ttft_ms.quantile(0.99), 1));
        row.push(sums.ttft_unknown.to_string());
        row.push(shown(sums.queue_ms.quantile(0.5), 1));
        row.push(shown(sums.queue_ms.quantile(0.99), 1));
        row
    });
    table(
        "How they ended",
        "Records by outcome; milliseconds from arrival to the first token of served answers (unknown: it could not be seen), and to \
         dispatch or refusal.",
        &heads,
        rows,
    )
}

/// A share in percent; unknown of nothing.
fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    format!("{:.1}", 100.0 * part as f64 / whole as f64)
}

fn shown(value: Option<f64>, decimals: usize) -> String {
    match value {
        // No minus before a zero.
        Some(value) => format!("{:.decimals$}", value + 0.0),
        None => "-".to_owned(),
    }
}
