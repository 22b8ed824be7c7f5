//! `/evidence`: what affinity saved and cost in each pool, and what work costs there as learnt.

use super::answer::{Answer, json_answer};
use crate::gateway::Gateway;
use crate::pool::Pool;
use http::StatusCode;
use serde_json::{Value, json};

pub(super) fn list(gateway: &Gateway) -> Answer {
    let pools: Vec<Value> = gateway.pools.iter().map(|pool| show(pool)).collect();
    json_answer(StatusCode::OK, &json!({ "pools": pools }))
}

fn show(pool: &Pool) -> Value {
    let now = pool.driver.now();
    let (evidence, costs) = pool
        .driver
        .read(|scheduler| (scheduler.evidence(now), scheduler.costs(now)));
    let rates = costs.rates;
    json!({
        "pool": pool.name,
        "affinity": {
            "state": evidence.state.as_str(),
            "since_seconds": evidence.since_seconds,
            "changes": evidence.changes,
            "window": {
                "saved_seconds": evidence.saved_seconds,
                "cost_seconds": evidence.cost_seconds,
                "answers": evidence.answers,
            },
            "total": {
                "saved_seconds": evidence.saved_total,
                "cost_seconds": evidence.cost_total,
            },
        },
        "costs": {
            "prefill": {
                "fixed_seconds": rates.prefill[0],
                "seconds_per_token": rates.prefill[1],
                "seconds_per_token_squared": rates.prefill[2],
                "seconds_per_decoding_request": rates.prefill[3],
                "learnt_from": costs.prefills_learnt,
                "median_error": known(costs.prefill_error, costs.prefills_learnt),
                "censored": costs.censored,
                "unseen": costs.unseen,
            },
            "decode": {
                "step_seconds": rates.decode[0],
                "seconds_per_request": rates.decode[1],
                "seconds_per_context_token": rates.decode[2],
                "seconds_per_prefill_token": rates.decode[3],
                "learnt_from": costs.decodes_learnt,
                "median_error": known(costs.decode_error, costs.decodes_learnt),
            },
            "prefill_load": rates.busy,
            "turns_left": rates.turns_left,
            "output_tokens": rates.output_tokens,
            "service_seconds": rates.service_seconds,
        },
    })
}

/// None before anything was learnt.
fn known(error: f64, learnt: u64) -> Option<f64> {
    (learnt > 0).then_some(error)
}
