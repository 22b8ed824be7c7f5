//! What a record says of a request before anything was decided about it.

use crate::gateway::Gateway;
use crate::listener::Attended;
use crate::metrics::ModelMetrics;
use maitred_records::{AttemptRecord, Name, Outcome};
use maitred_wire::Endpoint;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

/// What a record says of a request, whatever becomes of it.
pub(crate) struct Story {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) request_id: Name,
    pub(crate) endpoint: Endpoint,
    pub(crate) model: Arc<ModelMetrics>,
    pub(crate) stream: bool,
    /// Why its identity is bytes although the pool has a tokenizer.
    pub(crate) identity_fallback: Option<&'static str>,
    /// Messages that got another role.
    pub(crate) roles_renamed: u32,
    /// Who may continue the responses: the caller's identity as a number.
    pub(crate) owner: u64,
    /// Milliseconds since 1970.
    pub(crate) time_ms: u64,
    /// Has the client's leaving looked for, where its connection must be told to.
    pub(crate) attended: Option<Attended>,
}

impl Story {
    pub(super) fn record(&self) -> AttemptRecord {
        AttemptRecord {
            time_ms: self.time_ms,
            request_id: self.request_id.clone(),
            model: self.model.name().clone(),
            route: Cow::Borrowed(self.endpoint.route()),
            stream: self.stream,
            identity_fallback: self.identity_fallback.map(Cow::Borrowed),
            roles_renamed: self.roles_renamed,
            ..AttemptRecord::default()
        }
    }

    /// The request was refused before it reached a pool's scheduler.
    pub(crate) fn rejected(&self, status: u16, code: &'static str) {
        self.model.request(self.endpoint, Outcome::Rejected);
        self.gateway.keep(AttemptRecord {
            outcome: Outcome::Rejected,
            status: Some(status),
            failure: Some(Cow::Borrowed(code)),
            ..self.record()
        });
    }
}
