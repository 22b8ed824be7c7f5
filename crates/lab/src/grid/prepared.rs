//! A plan that is ready to be played: scaled to a load, with its ceiling.

use maitred_core::time::Nanos;
use maitred_enginesim::model;

use super::Room;
use crate::plan::{Plan, ideal, nominal_order};

/// See the module.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The requests.
    pub plan: Plan,
    /// For each request, the prompt tokens that an unbounded cache shared by all would have, output not counted.
    pub ideal: Vec<u32>,
    /// Offered load: see [`offered_load`].
    pub load: f64,
}

/// A load is met to within this share of it, where it can be met at all.
const CLOSE: f64 = 0.01;
/// Steps towards it.
const STEPS: u32 = 8;
/// Traffic is scaled by at most this factor, up or down.
const FACTOR_MOST: f64 = 1e4;
/// The load is that of the middle requests, without this share of all at each end: a slow beginning and a few long
/// conversations at the end say little of what lies between.
const EDGE: f64 = 0.05;

impl Prepared {
    /// The plan that `source` makes at the factor at which it offers `load`, where one is given, or as near as it comes:
    /// in a trace pauses stay, so that a few long conversations cannot be made to offer much. Without `load`, at 1.
    #[must_use]
    pub fn new(source: &dyn Fn(f64) -> Plan, room: &Room, load: Option<f64>) -> Self {
        let mut factor = 1.0;
        let mut prepared = Self::at(source(factor), room);
        for _ in 0..STEPS {
            let Some(wanted) = load.filter(|wanted| *wanted > 0.0 && prepared.load > 0.0) else {
                break;
            };
            let ratio = wanted / prepared.load;
            let next = f64::clamp(factor * ratio, 1.0 / FACTOR_MOST, FACTOR_MOST);
            if (ratio - 1.0).abs() < CLOSE || next == factor {
                break;
            }
            factor = next;
            prepared = Self::at(source(factor), room);
        }
        prepared
    }

    /// The plan as it stands.
    #[must_use]
    pub fn at(plan: Plan, room: &Room) -> Self {
        let order = nominal_order(&plan);
        let found = ideal(&plan, &order);
        let ideal: Vec<u32> = found.into_iter().map(|(all, _)| all).collect();
        let load = offered_load(&plan, &order, &ideal, &room.engine, room.workers);
        Self { plan, ideal, load }
    }
}

/// What the middle nine tenths of the requests would take of the engines if all that can be reused were and every batch
/// were full, over what the engines have while they are sent: at 1 nothing is left, and less reuse or emptier batches
/// reach that sooner.
///
/// A request takes `(prompt - ideal) / prefill rate + output x (per sequence + base step / slots)`.
#[must_use]
pub fn offered_load(
    plan: &Plan,
    order: &[(Nanos, u32)],
    ideal: &[u32],
    engine: &model::Config,
    workers: u32,
) -> f64 {
    let per_token =
        engine.per_sequence_ns as f64 + engine.base_step_ns as f64 / engine.slots as f64;
    let prefill = 1e9 / engine.prefill_tokens_per_second as f64;
    let edge = (order.len() as f64 * EDGE) as usize;
    let middle = order.get(edge..order.len() - edge).unwrap_or_default();
    let (Some((from, _)), Some((to, _))) = (middle.first(), middle.last()) else {
        return 0.0;
    };
    // The last one's work is done after the time that is counted.
    let work: f64 = (middle.iter().rev().skip(1))
        .map(|(_, at)| {
            let request = &plan.requests[*at as usize];
            let new = request.prompt_tokens.saturating_sub(ideal[*at as usize]);
            f64::from(new) * prefill + f64::from(request.output_tokens) * per_token
        })
        .sum();
    let room = to.since(*from).as_nanos() as f64 * f64::from(workers);
    if room > 0.0 { work / room } else { 0.0 }
}
