//! `/explain/{request_id}`: what was decided about a request, why, and what came of it.

use crate::gateway::Gateway;
use maitred_records::{AttemptRecord, story};
use serde_json::{Value, json};
use std::sync::Arc;

/// A request's attempts and their story; None where it is not (or no more) known.
#[must_use]
pub fn explain(gateway: &Gateway, request_id: &str) -> Option<Value> {
    let attempts: Vec<Arc<AttemptRecord>> = gateway.recent.of(request_id);
    if attempts.is_empty() {
        return None;
    }
    let shown: Vec<Value> = attempts
        .iter()
        .filter_map(|record| serde_json::to_value(&**record).ok())
        .collect();
    Some(json!({
        "request_id": request_id,
        "story": story(&attempts),
        "attempts": shown,
    }))
}
