//! What a run comes to.

use std::time::Duration;

use serde::Serialize;

use super::{DEEP, Starvation};
use crate::quantile::of_sorted;
use crate::sim::{End, Outcome, Run};

/// Waits in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Waits {
    /// How many waited.
    pub count: usize,
    /// The median; None of nobody.
    pub p50: Option<f64>,
    /// The 99th percentile.
    pub p99: Option<f64>,
    /// The longest.
    pub max: Option<f64>,
}

impl Waits {
    fn of(waits: impl Iterator<Item = Duration>) -> Self {
        let mut waits: Vec<f64> = waits.map(|wait| wait.as_secs_f64()).collect();
        waits.sort_unstable_by(f64::total_cmp);
        Self {
            count: waits.len(),
            p50: of_sorted(&waits, 0.5),
            p99: of_sorted(&waits, 0.99),
            max: waits.last().copied(),
        }
    }
}

/// One run, summed up. A newcomer is counted once, by what became of its last try; tries after the first are counted
/// apart as well.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sums {
    /// What clients would take if nobody waited, over what there is.
    pub load: f64,
    /// The seed.
    pub seed: u64,
    /// Newcomers that came.
    pub newcomers: usize,
    /// Of them, those whose first turn was dispatched.
    pub started: usize,
    /// Those who were refused in the moment they came.
    pub refused_at_the_door: usize,
    /// Those who were refused after they had waited.
    pub refused_after_waiting: usize,
    /// Those who still waited when it ended.
    pub still_waiting: usize,
    /// Waits of those who started.
    pub start_waits: Waits,
    /// Waits of those who were refused after they had waited.
    pub refused_waits: Waits,
    /// First turns (retries too) that were admitted and waited longer than the bound, whether they started or not.
    pub late_starts: usize,
    /// The same of those who came before anything was measured that their start could be predicted from.
    pub late_unmeasured: usize,
    /// Late starts of both kinds as the scheduler itself counted them.
    pub promises_broken: u64,
    /// Refused newcomers who came once more when they were told to.
    pub retries: usize,
    /// Of them, those who were admitted then.
    pub retries_admitted: usize,
    /// Refused newcomers who were not told when to come again.
    pub refused_without_advice: usize,
    /// What newcomers were told, in seconds.
    pub advice: Waits,
    /// Waits of follow-ups that were dispatched.
    pub follow_up_waits: Waits,
    /// The longest that a follow-up waited, whatever became of it.
    pub follow_up_longest: f64,
    /// Follow-ups that were refused.
    pub follow_ups_refused: usize,
    /// Conversations of five turns that were completed.
    pub completed: usize,
    /// Follow-ups of deep conversations that were served.
    pub deep_served: usize,
    /// Deep conversations that were not served in the last quarter of the time.
    pub deep_starved: usize,
    /// The part of first turns in the charge, as the queue estimates it, that was dispatched while both lines
    /// waited; None: they never both did.
    pub new_share_contested: Option<f64>,
    /// The part of first turns in all charge that was dispatched.
    pub new_share: Option<f64>,
    /// Cached tokens over prompt tokens of follow-ups that were served.
    pub follow_up_reuse: Option<f64>,
    /// Requests served in a second.
    pub throughput: f64,
    /// Most requests that waited at once.
    pub line_most: usize,
}

impl Sums {
    /// Sums up a run. `start_within` is the bound that late starts are counted by.
    #[must_use]
    pub fn of(scenario: &Starvation, run: &Run, start_within: Duration) -> Self {
        let all = || run.outcomes.iter();
        let first_turns = || all().filter(|o| o.turn == 1);
        let last = last_tries(run);
        let newcomers = || last.iter().copied();
        let follow_ups = || all().filter(|o| o.turn > 1);
        let refused = |o: &&Outcome| matches!(o.end, End::Refused { .. });
        let late =
            |o: &&Outcome| o.turn == 1 && !o.refused_at_the_door() && o.wait() > start_within;
        let promised = |o: &&Outcome| o.promised || o.dispatched.is_none();
        let waited = |o: &&Outcome| refused(o) && !o.refused_at_the_door();
        let retried = || first_turns().filter(|o| o.tries > 0);
        let advice = |o: &Outcome| match o.end {
            End::Refused { retry_after, .. } => retry_after,
            _ => None,
        };
        let served = || all().filter(|o| o.end == End::Served);
        Self {
            load: scenario.load(),
            seed: scenario.seed,
            newcomers: newcomers().count(),
            started: newcomers().filter(|o| o.dispatched.is_some()).count(),
            refused_at_the_door: newcomers().filter(|o| o.refused_at_the_door()).count(),
            refused_after_waiting: newcomers().filter(waited).count(),
            still_waiting: newcomers()
                .filter(|o| o.end == End::Open && o.dispatched.is_none())
                .count(),
            start_waits: Waits::of(
                first_turns()
                    .filter(|o| o.dispatched.is_some())
                    .map(Outcome::wait),
            ),
            refused_waits: Waits::of(first_turns().filter(waited).map(Outcome::wait)),
            late_starts: first_turns().filter(late).filter(promised).count(),
            late_unmeasured: first_turns().filter(late).filter(|o| !promised(o)).count(),
            promises_broken: run
                .lines
                .lines
                .iter()
                .map(|line| line.promises_broken)
                .sum(),
            retries: retried().count(),
            retries_admitted: retried().filter(|o| !o.refused_at_the_door()).count(),
            refused_without_advice: first_turns()
                .filter(refused)
                .filter(|o| advice(o).is_none())
                .count(),
            advice: Waits::of(first_turns().filter_map(advice)),
            follow_up_waits: Waits::of(
                follow_ups()
                    .filter(|o| o.dispatched.is_some())
                    .map(Outcome::wait),
            ),
            follow_up_longest: follow_ups()
                .map(|o| o.wait().as_secs_f64())
                .fold(0.0, f64::max),
            follow_ups_refused: follow_ups().filter(refused).count(),
            completed: served()
                .filter(|o| o.group != DEEP && o.turn == scenario.turns)
                .count(),
            deep_served: served().filter(|o| o.group == DEEP).count(),
            deep_starved: starved(scenario, run),
            new_share_contested: new_share(all().filter(|o| o.contested)),
            new_share: new_share(all()),
            follow_up_reuse: reuse(served().filter(|o| o.turn > 1)),
            throughput: served().count() as f64 / run.ended.since(Default::default()).as_secs_f64(),
            line_most: run.line_most,
        }
    }
}

/// The last try of every newcomer's first turn.
fn last_tries(run: &Run) -> Vec<&Outcome> {
    let mut tries: Vec<&Outcome> = run.outcomes.iter().filter(|o| o.turn == 1).collect();
    tries.sort_unstable_by_key(|o| (o.session, std::cmp::Reverse(o.tries)));
    tries.dedup_by_key(|o| o.session);
    tries
}

/// Deep conversations without a dispatch in the last quarter.
fn starved(scenario: &Starvation, run: &Run) -> usize {
    let quarter = scenario.length() / 4;
    let mut lately: Vec<u64> = run
        .outcomes
        .iter()
        .filter(|o| o.group == DEEP)
        .filter(|o| o.dispatched.is_some_and(|at| run.ended.since(at) < quarter))
        .map(|o| o.session)
        .collect();
    lately.sort_unstable();
    lately.dedup();
    scenario.deep as usize - lately.len().min(scenario.deep as usize)
}

fn new_share<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Option<f64> {
    let (mut new, mut whole) = (0, 0);
    for outcome in outcomes.filter(|o| o.dispatched.is_some()) {
        let charge = outcome.charged;
        whole += charge;
        new += if outcome.turn == 1 { charge } else { 0 };
    }
    (whole > 0).then(|| new as f64 / whole as f64)
}

fn reuse<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Option<f64> {
    let (mut cached, mut prompt) = (0, 0);
    for outcome in outcomes {
        cached += u64::from(outcome.cached_tokens?);
        prompt += u64::from(outcome.prompt_tokens);
    }
    (prompt > 0).then(|| cached as f64 / prompt as f64)
}
