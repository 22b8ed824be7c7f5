//! What a run comes to.

use std::collections::BTreeMap;

use maitred_core::decision::Reason;
use serde::Serialize;

use super::{Prepared, Room};
use crate::quantile::of_sorted;
use crate::sim::{End, Outcome, Run};

/// Seconds (of TTFT, say) of those who have one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// How many have one.
    pub count: usize,
    /// The mean; None of nobody.
    pub mean: Option<f64>,
    /// The median.
    pub p50: Option<f64>,
    /// The 90th percentile.
    pub p90: Option<f64>,
    /// The 99th.
    pub p99: Option<f64>,
    /// The largest.
    pub max: Option<f64>,
}

impl Quantiles {
    /// Of these values.
    #[must_use]
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_unstable_by(f64::total_cmp);
        let count = values.len();
        Self {
            count,
            mean: (count > 0).then(|| values.iter().sum::<f64>() / count as f64),
            p50: of_sorted(&values, 0.5),
            p90: of_sorted(&values, 0.9),
            p99: of_sorted(&values, 0.99),
            max: values.last().copied(),
        }
    }
}

/// What became of those who wanted to begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FirstTurns {
    /// First turns that were sent.
    pub came: usize,
    /// Of them, those that were sent to a worker in the end.
    pub started: usize,
    /// Refused in the moment they came, every try counted.
    pub refused_at_the_door: usize,
    /// Refused after they had waited, every try counted.
    pub refused_after_waiting: usize,
    /// Seconds that those who started had waited in the line.
    pub wait: Quantiles,
}

impl FirstTurns {
    /// `tries` are all tries, `last` the last ones.
    fn of<'a>(
        tries: impl Iterator<Item = &'a Outcome>,
        last: impl Iterator<Item = &'a Outcome> + Clone,
    ) -> Self {
        let refused = tries.filter(|o| o.turn == 1 && matches!(o.end, End::Refused { .. }));
        let (door, waited): (Vec<_>, Vec<_>) = refused.partition(|o| o.refused_at_the_door());
        let first = last.filter(|o| o.turn == 1);
        let started = first.clone().filter(|o| o.dispatched.is_some());
        Self {
            came: first.count(),
            started: started.clone().count(),
            refused_at_the_door: door.len(),
            refused_after_waiting: waited.len(),
            wait: Quantiles::of(started.map(|o| o.wait().as_secs_f64())),
        }
    }
}

/// One run, summed up. What is refused and tried again is counted once, by its last try, but for `refusals`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sums {
    /// Requests of the plan.
    pub planned: usize,
    /// Requests that were sent.
    pub came: usize,
    /// Of them, those that were answered in full.
    pub served: usize,
    /// Those that were refused, at the end of all tries.
    pub refused: usize,
    /// Those that failed, at the end of all tries.
    pub failed: usize,
    /// Those whose clients gave up.
    pub gave_up: usize,
    /// Never sent, because an earlier one of the session was not served.
    pub abandoned: usize,
    /// Answers "refused", every try counted.
    pub refusals: usize,
    /// First turns.
    pub first_turns: FirstTurns,
    /// Seconds from arrival to the first token.
    pub ttft: Quantiles,
    /// The same of first turns.
    pub ttft_first: Quantiles,
    /// The same of later turns.
    pub ttft_later: Quantiles,
    /// Seconds for each token after the first.
    pub tpot: Quantiles,
    /// Seconds from arrival to the end.
    pub e2e: Quantiles,
    /// Seconds that first turns waited in the line, refused ones too.
    pub wait_first: Quantiles,
    /// Seconds that later turns waited in the line, refused ones too.
    pub wait_later: Quantiles,
    /// Served within the bounds, of all that were sent or abandoned.
    pub goodput: Option<f64>,
    /// Served within the bounds, in a second.
    pub good_per_second: f64,
    /// Served, in a second.
    pub served_per_second: f64,
    /// Tokens of answers, in a second.
    pub output_per_second: f64,
    /// Prompt tokens served.
    pub prompt_tokens: u64,
    /// Cached of the prompt tokens served.
    pub reuse: Option<f64>,
    /// What an unbounded cache shared by all would have had of them.
    pub ceiling: Option<f64>,
    /// The one over the other.
    pub of_ceiling: Option<f64>,
    /// Predicted less actual cached tokens, mean.
    pub prediction_error: Option<f64>,
    /// The same without signs.
    pub prediction_error_abs: Option<f64>,
    /// Dispatches that left home or the warmest because of its load.
    pub escapes: usize,
    /// Prompt tokens that were believed to be warm where they left.
    pub escape_tokens: u64,
    /// Prompt tokens by which all dispatches were believed colder than the warmest candidate.
    pub warmth_left: u64,
    /// Later turns served by another worker than the turn before.
    pub moves: usize,
    /// Later turns served after a served turn.
    pub could_move: usize,
    /// The most charge served by one worker over the mean.
    pub imbalance: Option<f64>,
    /// Jain's index over flows' served share of what they asked for, those never served in it. Flows are tenants, or
    /// sessions where there is one tenant.
    pub jain_service: Option<f64>,
    /// Jain's index over flows' speed: the time on an idle engine with all that can be reused, over the real one; 0
    /// for what was not served.
    pub jain_speed: Option<f64>,
    /// Jobs that engines sent back for want of memory.
    pub preemptions: u64,
    /// Most requests that waited in the line at once.
    pub line_most: usize,
    /// Promised starts that were broken.
    pub promises_broken: u64,
    /// Seconds from the first arrival to the end.
    pub seconds: f64,
    /// Events handled.
    pub events: u64,
}

impl Sums {
    /// Sums up a run.
    #[must_use]
    pub fn of(plan: &Prepared, room: &Room, run: &Run) -> Self {
        let warm = |o: &&Outcome| o.arrived.since(Default::default()) >= room.warm_up;
        let last = last_tries(run.outcomes.iter().filter(warm));
        let all = || last.iter().copied();
        let ended = |wanted: fn(&End) -> bool| all().filter(|o| wanted(&o.end)).count();
        let served = || all().filter(|o| o.end == End::Served);
        let ttft = |o: &Outcome| Some(o.ttft()?.as_secs_f64());
        let first = |o: &&Outcome| o.turn == 1;
        let later = |o: &&Outcome| o.turn > 1;
        let came = last.len();
        let skipped = run
            .outcomes
            .iter()
            .filter(|o| o.tries == 0 && !warm(o))
            .count();
        let abandoned = plan.plan.requests.len().saturating_sub(came + skipped);
        let from = run.outcomes.iter().map(|o| o.arrived).min();
        let counted_from = from
            .unwrap_or_default()
            .max(maitred_core::time::Nanos::default() + room.warm_up);
        let seconds = run.ended.since(counted_from).as_secs_f64();
        let per_second = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let good = all().filter(|o| room.slo.met(o)).count();
        let ideal = |o: &Outcome| {
            let at = plan.plan.at(o.session, o.turn);
            at.map_or(0, |at| plan.ideal[at as usize])
        };
        let known = || served().filter_map(|o| Some((o, o.cached_tokens?)));
        let prompt: u64 = known().map(|(o, _)| u64::from(o.prompt_tokens)).sum();
        let cached: u64 = known().map(|(_, cached)| u64::from(cached)).sum();
        let most: u64 = known().map(|(o, _)| u64::from(ideal(o))).sum();
        let errors =
            || known().map(|(o, cached)| f64::from(o.predicted_tokens) - f64::from(cached));
        let escaped = || all().filter(|o| o.reason == Some(Reason::Escape));
        let left = |o: &Outcome| u64::from(o.warmest_tokens - o.predicted_tokens);
        let (moves, could_move) = moves(&last);
        Self {
            planned: plan.plan.requests.len(),
            came,
            served: served().count(),
            refused: ended(|end| matches!(end, End::Refused { .. })),
            failed: ended(|end| matches!(end, End::Failed(_))),
            gave_up: ended(|end| *end == End::GaveUp),
            abandoned,
            refusals: (run.outcomes.iter().filter(warm))
                .filter(|o| matches!(o.end, End::Refused { .. }))
                .count(),
            first_turns: FirstTurns::of(run.outcomes.iter().filter(warm), all()),
            ttft: Quantiles::of(served().filter_map(ttft)),
            ttft_first: Quantiles::of(served().filter(first).filter_map(ttft)),
            ttft_later: Quantiles::of(served().filter(later).filter_map(ttft)),
            tpot: Quantiles::of(served().filter_map(|o| Some(o.tpot()?.as_secs_f64()))),
            e2e: Quantiles::of(served().map(|o| o.ended.since(o.arrived).as_secs_f64())),
            wait_first: Quantiles::of(all().filter(first).map(|o| o.wait().as_secs_f64())),
            wait_later: Quantiles::of(all().filter(later).map(|o| o.wait().as_secs_f64())),
            goodput: share(good as f64, (came + abandoned) as f64),
            good_per_second: per_second(good as f64),
            served_per_second: per_second(served().count() as f64),
            output_per_second: per_second(served().map(|o| f64::from(o.output_tokens)).sum()),
            prompt_tokens: prompt,
            reuse: share(cached as f64, prompt as f64),
            ceiling: share(most as f64, prompt as f64),
            of_ceiling: share(cached as f64, most as f64),
            prediction_error: Quantiles::of(errors()).mean,
            prediction_error_abs: Quantiles::of(errors().map(f64::abs)).mean,
            escapes: escaped().count(),
            escape_tokens: escaped().map(left).sum(),
            warmth_left: all().map(left).sum(),
            moves,
            could_move,
            imbalance: imbalance(served(), room.workers),
            jain_service: jain_service(plan, &last),
            jain_speed: jain(&flows(plan, all(), |o| (speed(room, ideal(o), o), 1.0))),
            preemptions: run.preemptions,
            line_most: run.line_most,
            promises_broken: (run.lines.lines.iter())
                .map(|line| line.promises_broken)
                .sum(),
            seconds,
            events: run.events,
        }
    }
}

fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

/// The last try of every request, by session and turn.
fn last_tries<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Vec<&'a Outcome> {
    let mut tries: Vec<&Outcome> = outcomes.collect();
    tries.sort_unstable_by_key(|o| (o.session, o.turn, std::cmp::Reverse(o.tries)));
    tries.dedup_by_key(|o| (o.session, o.turn));
    tries
}

/// Later turns served elsewhere than the turn before, and all that could have been.
fn moves(last: &[&Outcome]) -> (usize, usize) {
    let served = |o: &Outcome| o.end == End::Served;
    let pairs = last.windows(2).filter(|pair| {
        pair[0].session == pair[1].session
            && pair[0].turn + 1 == pair[1].turn
            && served(pair[0])
            && served(pair[1])
    });
    let moved = pairs
        .clone()
        .filter(|pair| pair[0].worker != pair[1].worker);
    (moved.count(), pairs.count())
}

fn imbalance<'a>(served: impl Iterator<Item = &'a Outcome>, workers: u32) -> Option<f64> {
    let mut charges: BTreeMap<u32, u64> = (0..workers).map(|worker| (worker, 0)).collect();
    for outcome in served {
        if let Some(worker) = outcome.worker {
            *charges.entry(worker).or_default() += outcome.charge();
        }
    }
    let most = charges.values().max().copied()?;
    let mean = charges.values().sum::<u64>() as f64 / charges.len() as f64;
    share(most as f64, mean)
}

/// Per flow, the sum of the first over the sum of the second.
fn flows<'a>(
    plan: &Prepared,
    outcomes: impl Iterator<Item = &'a Outcome>,
    parts: impl Fn(&Outcome) -> (f64, f64),
) -> Vec<f64> {
    let tenants = plan.plan.requests.iter().map(|request| request.tenant);
    let alone = tenants.clone().min() == tenants.max();
    let mut sums: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for outcome in outcomes {
        let flow = if alone {
            outcome.session
        } else {
            outcome.tenant.0
        };
        let sum = sums.entry(flow).or_default();
        let (part, whole) = parts(outcome);
        *sum = (sum.0 + part, sum.1 + whole);
    }
    let shares = sums.into_values().filter(|(_, whole)| *whole > 0.0);
    shares.map(|(part, whole)| part / whole).collect()
}

fn jain_service(plan: &Prepared, last: &[&Outcome]) -> Option<f64> {
    let shares = flows(plan, last.iter().copied(), |o| {
        let asked = f64::from(o.prompt_tokens) + 2.0 * f64::from(o.output_tokens);
        (if o.end == End::Served { asked } else { 0.0 }, asked)
    });
    jain(&shares)
}

/// The square of the sum over the count times the sum of squares (Jain, Chiu, Hawe 1984): 1 is even, 1 over the count is
/// all for one.
pub(super) fn jain(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    share(sum * sum, values.len() as f64 * squares)
}

/// The time that it would take alone, over the time that it took; 0 where it was not served.
fn speed(room: &Room, ideal: u32, outcome: &Outcome) -> f64 {
    let took = outcome.ended.since(outcome.arrived).as_nanos() as f64;
    if outcome.end != End::Served || took <= 0.0 {
        return 0.0;
    }
    let engine = &room.engine;
    let new = outcome.prompt_tokens.saturating_sub(ideal).max(1);
    let chunks = f64::from(new) / engine.max_batch_tokens.max(1) as f64;
    let steps = chunks.ceil() + f64::from(outcome.output_tokens.saturating_sub(1));
    let prefill = f64::from(new) * 1e9 / engine.prefill_tokens_per_second.max(1) as f64;
    let alone = steps * (engine.base_step_ns + engine.per_sequence_ns) as f64 + prefill;
    (alone / took).min(1.0)
}
