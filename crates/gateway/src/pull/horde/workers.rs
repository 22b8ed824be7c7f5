//! Owners, and what they do with their workers.

use super::check::Faults;
use super::{ASK_MAX, Wrong, key, read, token, worker_name};
use crate::config::PullToken;
use crate::pull::broker::{Broker, Member};
use crate::pull::desk::Speaks;
use http::{HeaderMap, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};
use std::sync::Arc;

/// Characters of what an owner says of a maintenance.
const MAINTENANCE_MAX: usize = 500;
const MAINTENANCE: &str = "This worker has been put into maintenance mode by its owner";

/// `GET /api/v2/find_user`. Kudos are not kept here.
pub(super) fn find_user(broker: &Broker, headers: &HeaderMap) -> Result<Value, Wrong> {
    let unknown = |status, rc| Wrong::new(status, rc, "No user has that API key.");
    let key = key(headers).map_err(|_| unknown(StatusCode::UNAUTHORIZED, "InvalidAPIKey"))?;
    let found = broker.owner(key);
    let token = found.ok_or_else(|| unknown(StatusCode::NOT_FOUND, "UserNotFound"))?;
    // Owners of several tokens are one user.
    let tokens = &broker.settings.tokens;
    let place = tokens.iter().position(|other| other.owner == token.owner);
    let id = place.unwrap_or_default() + 1;
    Ok(json!({
        "username": format!("{}#{id}", token.owner),
        "id": id,
        "kudos": 0.0,
        "concurrency": 0,
        "worker_count": broker.count_of(&token.owner),
        "trusted": true,
        "moderator": false,
    }))
}

/// `GET /api/v2/workers/name/NAME` (or `/workers/ID`).
pub(super) fn show(broker: &Broker, headers: &HeaderMap, name: &str) -> Result<Value, Wrong> {
    let name = name.strip_prefix("name/").unwrap_or(name);
    let (member, _) = mine(broker, headers, name)?;
    Ok(shown(&member))
}

/// `PUT /api/v2/workers/ID`: the owner puts it into maintenance, or ends that.
pub(super) async fn change(
    broker: &Broker,
    headers: &HeaderMap,
    name: &str,
    body: Incoming,
) -> Result<Value, Wrong> {
    token(broker, headers)?;
    let body = read(headers, body, ASK_MAX).await?;
    let mut faults = Faults::default();
    faults.flag(&body, "maintenance");
    let why = faults.text(&body, "maintenance_msg", MAINTENANCE_MAX);
    if !faults.found.is_empty() {
        return Err(Wrong::invalid(faults.found));
    }
    let (member, token) = mine(broker, headers, name)?;
    if let Some(on) = body.get("maintenance").and_then(Value::as_bool) {
        let why = why.unwrap_or_else(|| MAINTENANCE.to_owned());
        member.maintain(on.then_some(why));
        tracing::info!(worker = %member.name, owner = %token.owner, on, "maintenance");
    }
    Ok(shown(&member))
}

fn mine<'b>(
    broker: &'b Broker,
    headers: &HeaderMap,
    name: &str,
) -> Result<(Arc<Member>, &'b PullToken), Wrong> {
    let token = token(broker, headers)?;
    let found = [name.to_owned(), worker_name(&decoded(name))];
    let member = found.iter().find_map(|name| broker.member(name));
    let member = member.filter(|m| m.desk.speaks == Speaks::Horde);
    let member = member.ok_or_else(|| {
        let message = format!("Worker {name} does not exist.");
        Wrong::new(StatusCode::NOT_FOUND, "WorkerNotFound", message)
    })?;
    if !member.belongs_to(token) {
        return Err(Wrong::forbidden(
            "WrongCredentials",
            "That worker belongs to somebody else.",
        ));
    }
    Ok((member, token))
}

fn shown(member: &Member) -> Value {
    let view = member.desk.view();
    json!({
        // The name that it has here stands for it.
        "id": member.name,
        "name": member.name,
        "type": "text",
        "online": true,
        "maintenance_mode": view.maintenance.is_some(),
        "bridge_agent": view.agent,
        "max_length": view.output_max,
        "max_context_length": view.context_max,
        "models": member.desk.said.lock().models.clone(),
    })
}

/// A path's segment without percent-encoding; what is none stays as it is.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..2).and_then(|d| std::str::from_utf8(d).ok());
        let byte = digits.and_then(|d| u8::from_str_radix(d, 16).ok());
        match byte.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}
