//! Comments in a stream whose request waits in the line, for clients and proxies between that take
//! silence for death. Off by default: once a head is sent, its status cannot tell of a refusal.

use super::{Call, Shard, exchange};
use crate::attempt::Guest;
use crate::relay::{Answer, RelayBody, Waiting};
use crate::reply::Problem;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response};
use std::sync::Arc;
use std::time::Duration;

/// The answer, or, where the request still waits in the line after `period`, the head of a stream
/// that says so in each further one.
pub(super) async fn attend(
    shard: &Arc<Shard>,
    call: &Call,
    guest: Guest,
    body: Bytes,
    period: Duration,
) -> Result<Response<RelayBody>, Problem> {
    let (shard, call) = (Arc::clone(shard), call.clone());
    let (endpoint, ticket) = (call.endpoint, Arc::clone(guest.ticket()));
    let mut answer: Answer =
        Box::pin(async move { exchange::attend(&shard, &call, guest, body).await });
    loop {
        tokio::select! {
            biased;
            answer = &mut answer => return answer,
            () = tokio::time::sleep(period) => {}
        }
        // On a worker its answer is waited for: its head is worth more than a comment.
        if ticket.in_line() {
            break;
        }
    }
    let waiting = Waiting::new(endpoint, period, answer);
    let mut response = Response::new(RelayBody::Waiting(Box::new(waiting)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}
