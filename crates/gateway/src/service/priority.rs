//! The band of a request as its engine is told it: the field `priority`, where the pool says so.
//!
//! Engines differ in which way it runs, so it is made for the worker that was chosen. What the
//! client sent in that field is replaced: nobody says for himself how urgent he is.

use crate::attempt::Guest;
use crate::gateway::Gateway;
use crate::upstream::Upstream;
use bytes::Bytes;
use maitred_wire::{Endpoint, head, splice};

/// The body for that worker.
pub(super) fn body_for(
    gateway: &Gateway,
    guest: &Guest,
    upstream: &Upstream,
    body: &Bytes,
) -> Bytes {
    let endpoint = guest.endpoint();
    let band = guest.decision().map(|decision| decision.queueing.band);
    let priority = band.and_then(|band| upstream.priority(band));
    let knows_it = matches!(endpoint, Endpoint::Chat | Endpoint::Completions);
    let Some(priority) = priority.filter(|_| knows_it) else {
        return body.clone();
    };
    match head::parse(endpoint, body, gateway.config.limits.json_depth_max) {
        Ok(head) => splice::set_field(&head, "priority", priority.to_string().as_bytes()).into(),
        // It was read when it came.
        Err(_) => body.clone(),
    }
}
