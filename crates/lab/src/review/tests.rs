#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use maitred_records::{AttemptRecord, BeliefRecord, MissRecord, Outcome, StayRecord};

use super::{GROUPS_MAX, Review, page, tables, text};

fn belief(source: &'static str, age_ms: Option<u64>) -> BeliefRecord {
    BeliefRecord {
        source: source.into(),
        blocks: 1,
        observed: 0,
        leaving: 0,
        device: None,
        host: None,
        rank: None,
        predicted: 1,
        uncertain: false,
        age_ms,
    }
}

/// Served: of 1000 tokens 600 were cached, 250 new, 150 moved; 640 were predicted; away from a warmer worker,
/// from which 80 ms were expected, where 100 ms were expected and 120 ms it took.
fn served(id: &str) -> AttemptRecord {
    AttemptRecord {
        request_id: id.into(),
        attempt: 1,
        tenant: 7,
        model: "m".into(),
        stream: true,
        turn: 4,
        policy: Some("session".into()),
        reason: Some("escape".into()),
        prompt_tokens: Some(1_000),
        cached_tokens: Some(600),
        predicted_cached_tokens: Some(640),
        belief: Some(belief("predicted", Some(30))),
        misses: Some(MissRecord {
            new: 250,
            moved: 150,
            moved_why: Some("escape".into()),
            common_tokens: Some(750),
            ..MissRecord::default()
        }),
        stay: Some(StayRecord {
            worker: "w0".into(),
            matched_tokens: 750,
            ttft_expected_ms: Some(80.0),
        }),
        ttft_expected_ms: Some(100.0),
        ttft_ms: Some(120.0),
        queue_ms: 5.0,
        report_age_ms: Some(40),
        outcome: Outcome::Served,
        ..AttemptRecord::default()
    }
}

/// Served by an engine that says nothing: 100 tokens of which nothing is known.
fn silent(id: &str) -> AttemptRecord {
    AttemptRecord {
        tenant: 8,
        turn: 1,
        prompt_tokens: None,
        prompt_tokens_estimated: Some(100),
        cached_tokens: None,
        misses: Some(MissRecord {
            unknown: 60,
            new: 40,
            ..MissRecord::default()
        }),
        stay: None,
        ttft_ms: None,
        belief: Some(belief("none", None)),
        predicted_cached_tokens: Some(0),
        report_age_ms: None,
        stale: true,
        ..served(id)
    }
}

fn review(records: &[AttemptRecord]) -> Review {
    let mut review = Review::default();
    records.iter().for_each(|record| review.take(record));
    review
}

#[test]
fn sums_are_those_of_the_records() {
    let slower_there = AttemptRecord {
        ttft_ms: Some(50.0),
        ..served("b")
    };
    let full = AttemptRecord {
        stay: Some(StayRecord {
            ttft_expected_ms: None,
            ..served("x").stay.unwrap()
        }),
        ..served("c")
    };
    // Not a stream: when its first token came is not known.
    let whole = AttemptRecord {
        stream: false,
        ..served("f")
    };
    let refused = AttemptRecord {
        request_id: "e".into(),
        outcome: Outcome::Refused,
        ..AttemptRecord::default()
    };
    let all = [served("a"), slower_there, full, silent("d"), refused, whole];
    let review = review(&all);
    let sums = &review.all;
    assert_eq!((review.records, sums.attempts, sums.accounted), (6, 6, 5));
    assert_eq!((sums.prompt_tokens, sums.cached_tokens), (4_100, 2_400));
    let causes: u64 = sums.causes.values().sum();
    assert_eq!(causes + sums.cached_tokens, sums.prompt_tokens);
    assert_eq!((sums.causes["new"], sums.causes["moved"]), (1_040, 600));
    assert_eq!((sums.causes["unknown"], sums.with_cause["moved"]), (60, 4));
    assert_eq!((sums.moved["escape"], sums.inexact), (600, 0));
    assert_eq!((sums.cached_unknown, sums.cached_unknown_tokens), (1, 100));
    let errors = &sums.errors["predicted"];
    assert_eq!((errors.error.count(), errors.too_many), (4, 4));
    assert_eq!(errors.error.mean(), Some(40.0));
    assert_eq!(
        (
            sums.errors["none"].unknown,
            sums.errors["none"].error.count()
        ),
        (1, 0)
    );
    // 120 for 80 is 40 ms lost; 50 for 80 is 30 won; of the third nobody knows.
    let regret = &sums.regret["escape"];
    assert_eq!((regret.left, regret.full, regret.unseen), (4, 1, 1));
    assert_eq!((regret.regretted, regret.paid.count()), (1, 2));
    assert_eq!((regret.lost_ms, regret.won_ms), (40.0, 30.0));
    assert_eq!(regret.here.mean(), Some(100.0));
    let ages = &sums.ages;
    assert_eq!((ages.decisions, ages.report_none, ages.stale), (5, 1, 1));
    assert_eq!((ages.events.count(), ages.events_none), (4, 1));
    assert_eq!((sums.ttft_ms.count(), sums.ttft_unknown), (4, 1));
    assert_eq!(review.by["tenant"]["0000000000000007"].attempts, 4);
    assert_eq!(review.by["turn"]["3-5"].cached_tokens, 2_400);
    assert_eq!(review.by["policy"]["none"].attempts, 1);
}

#[test]
fn a_record_that_stands_twice_counts_once() {
    let again = AttemptRecord {
        attempt: 2,
        ..served("a")
    };
    let review = review(&[served("a"), again, served("a")]);
    assert_eq!((review.records, review.duplicates), (2, 1));
    assert_eq!(review.all.prompt_tokens, 2_000);
}

#[test]
fn causes_that_are_not_the_prompt_are_told() {
    let mut wrong = served("a");
    wrong.prompt_tokens = Some(999);
    let told = text(&review(&[wrong]));
    assert!(
        told.contains("In 1 records causes and cached tokens are not the prompt"),
        "{told}"
    );
}

#[test]
fn tables_say_unknown_where_it_is() {
    let review = review(&[silent("a")]);
    let tables = tables(&review);
    let rows = |title: &str| {
        let table = tables.iter().find(|table| table.title.starts_with(title));
        table.unwrap().lines.clone()
    };
    let ages = &rows("Age of signals")[1];
    assert_eq!(ages[..8], ["all", "", "1", "-", "-", "-", "1", "100.0"]);
    let reuse = &rows("Reuse by cause")[1];
    assert_eq!(reuse[2..6], ["1", "100", "0.0", "40.0"]);
    assert_eq!(reuse[11..], ["60.0", "1"]);
    let told = text(&review);
    assert!(
        told.contains("Of 1 answers (100 prompt tokens) the engines do not say"),
        "{told}"
    );
    assert_eq!(text(&Review::default()).matches("NaN").count(), 0);
}

#[test]
fn groups_are_bounded_and_none_is_dropped() {
    let mut review = Review::default();
    for tenant in 0..GROUPS_MAX as u64 + 50 {
        review.take(&AttemptRecord {
            tenant,
            ..served(&tenant.to_string())
        });
    }
    let groups = &review.by["tenant"];
    assert_eq!(groups.len(), GROUPS_MAX + 1);
    assert_eq!(groups["others"].attempts, 50);
    assert!(text(&review).contains("groups by tenant the 20"));
}

#[test]
fn the_page_is_sound_and_asks_no_network() {
    let odd = AttemptRecord {
        model: "<script>&".into(),
        ..served("a")
    };
    let page = page("records & more", &review(&[odd, silent("b")]), &[]);
    for tag in ["svg", "figure", "div", "table", "h1", "h2"] {
        let opened =
            page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    for outside in [
        "http:", "https:", "<script", "<link", "@import", "url(", "NaN",
    ] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("records &amp; more") && page.contains("moved 15"));
}
