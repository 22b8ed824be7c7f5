#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::draw::{Arrivals, Zipf, lengths, stream, turns};
use super::{KINDS, named};
use crate::plan::{Begin, Plan, ideal, nominal_order};

fn plan(spec: &str, seed: u64) -> Plan {
    named(spec).unwrap().plan(16, seed, 1.0)
}

fn means(plan: &Plan) -> (f64, f64) {
    let count = plan.requests.len() as f64;
    let all: u64 = (plan.requests.iter())
        .map(|r| u64::from(r.prompt_tokens))
        .sum();
    let found = ideal(plan, &nominal_order(plan));
    let reused: u64 = found.iter().map(|(all, _)| u64::from(*all)).sum();
    (
        count / plan.sessions.len() as f64,
        reused as f64 / all as f64,
    )
}

#[test]
fn a_seed_gives_one_plan_and_another_another() {
    for (kind, _) in KINDS {
        assert_eq!(plan(kind, 1), plan(kind, 1), "{kind}");
        assert_ne!(plan(kind, 1), plan(kind, 2), "{kind}");
    }
}

#[test]
fn every_request_is_sent_and_has_as_many_blocks_as_tokens() {
    for (kind, _) in KINDS {
        let plan = plan(kind, 3);
        assert_eq!(nominal_order(&plan).len(), plan.requests.len(), "{kind}");
        for request in &plan.requests {
            let blocks: u32 = request.spans.iter().map(|span| span.count).sum();
            assert_eq!(blocks, request.prompt_tokens / 16, "{kind}");
            assert!(request.output_tokens >= 1, "{kind}");
            let begins = matches!(request.begin, Begin::At(_));
            assert!(request.turn == 1 || !begins, "{kind}: later turns wait");
        }
    }
}

#[test]
fn a_factor_gives_more_over_the_same_time() {
    for (kind, _) in KINDS {
        let generator = named(kind).unwrap();
        let (one, three) = (generator.plan(16, 1, 1.0), generator.plan(16, 1, 3.0));
        let sessions = three.sessions.len() as f64 / one.sessions.len() as f64;
        let span = three.span().as_secs_f64() / one.span().as_secs_f64();
        assert!((2.5..3.5).contains(&sessions), "{kind}: {sessions}");
        assert!((0.7..1.4).contains(&span), "{kind}: {span}");
    }
}

#[test]
fn options_are_taken_by_name() {
    let wide = plan("chat:sessions=37:turns=1", 1);
    assert_eq!((wide.sessions.len(), wide.requests.len()), (37, 37));
    let wrong = |spec: &str| named(spec).err().unwrap();
    assert!(wrong("nothing").starts_with("nothing: no such workload; known are chat"));
    assert!(wrong("chat:depth=3").starts_with("chat: depth: no such option; it has sessions"));
    assert_eq!(
        wrong("chat:turns=-1"),
        "chat: turns: must be a number of at least 0"
    );
    assert_eq!(wrong("chat:turns"), "chat: turns: must be option=value");
}

#[test]
fn kinds_are_what_they_say() {
    // 5 turns, each finding all of the one before.
    let (turns, reuse) = means(&plan("chat:sessions=800", 1));
    assert!(
        (4.4..5.6).contains(&turns) && (0.6..0.9).contains(&reuse),
        "{turns} {reuse}"
    );
    let (turns, reuse) = means(&plan("agents", 1));
    assert!(
        (15.0..35.0).contains(&turns) && reuse > 0.9,
        "{turns} {reuse}"
    );
    // One opening for all reuses more than a thousand.
    let (_, few) = means(&plan("shared:sessions=300:openings=1:turns=1", 1));
    let (_, many) = means(&plan("shared:sessions=300:openings=300:turns=1:skew=0", 1));
    assert!(few > 0.8 && many < 0.5, "{few} {many}");
    let whale = plan("whale", 1);
    assert_eq!(whale.groups, ["whale", "newcomer"]);
    assert_eq!(
        whale.requests.iter().filter(|r| r.group == 0).count(),
        60 * 40
    );
    let subs = plan("agents:sub_share=0.5", 1);
    assert!(
        subs.requests.iter().any(|r| r.also.len() >= 2),
        "calls of sub-agents"
    );
    assert!(subs.requests.iter().any(|r| r.group == 1 && r.turn > 1));
}

#[test]
fn bursts_keep_the_mean_rate() {
    let starts = |plan: &Plan| -> Vec<f64> {
        let mut times: Vec<f64> = (plan.requests.iter())
            .filter_map(|r| match r.begin {
                Begin::At(at) => Some(at.0 as f64 / 1e9),
                Begin::After { .. } => None,
            })
            .collect();
        times.sort_unstable_by(f64::total_cmp);
        times
    };
    let burst = starts(&plan("burst:sessions=5000:turns=1", 1));
    let rate = burst.len() as f64 / burst.last().unwrap();
    assert!((1.8..2.2).contains(&rate), "{rate}");
    // A burst is 5 of 60 s at ten times the rate: 50 of 105 parts.
    let inside = burst.iter().filter(|at| *at % 60.0 < 5.0).count();
    let share = inside as f64 / burst.len() as f64;
    assert!((0.44..0.52).contains(&share), "{share}");
}

#[test]
fn draws_have_the_means_they_are_asked_for() {
    let mut rng = stream(1, 1, 1);
    let count = 20_000;
    let mean = |sum: f64| sum / f64::from(count);
    let drawn = mean((0..count).map(|_| f64::from(turns(&mut rng, 5.0))).sum());
    assert!((4.8..5.2).contains(&drawn), "{drawn}");
    assert_eq!(turns(&mut rng, 0.0), 1);
    let mut values: Vec<u32> = (0..count)
        .map(|_| lengths(&mut rng, 200.0, 0.8, 1e4))
        .collect();
    values.sort_unstable();
    assert!((190..210).contains(&values[values.len() / 2]));
    // 200 e^(0.8 x 1.2816) = 558.
    assert!((530..590).contains(&values[values.len() * 9 / 10]));
    let mut arrivals = Arrivals::new(rng.clone(), 4.0);
    let last = (0..count).map(|_| arrivals.next()).last().unwrap();
    assert!((4_800.0..5_200.0).contains(&(last.0 as f64 / 1e9)));
    // Weights 1, 1/2, 1/3, 1/4 of 25/12: 48, 24, 16, 12 %.
    let zipf = Zipf::new(4, 1.0);
    let mut seen = [0_u32; 4];
    for _ in 0..count {
        seen[zipf.draw(&mut rng)] += 1;
    }
    for (seen, share) in seen.iter().zip([0.48, 0.24, 0.16, 0.12]) {
        let drawn = f64::from(*seen) / f64::from(count);
        assert!((drawn - share).abs() < 0.015, "{drawn} {share}");
    }
}
