//! `POST /api/v2/generate/text/submit`: a worker's text, or its word that there will be none.

use super::check::Faults;
use super::{TEXT_MAX, Wrong, read, token};
use crate::config::PullToken;
use crate::metrics::Submitted;
use crate::pull::broker::{Broker, Member};
use crate::pull::desk::{Answer, Speaks};
use crate::pull::past::End;
use crate::pull::work::Loss;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use hyper::body::Incoming;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Bytes that count as a token where a reward is reckoned; workers only show it.
const TOKEN_BYTES: f64 = 4.0;
const STATES: [&str; 4] = ["ok", "censored", "faulted", "csam"];

pub(super) async fn submit(
    broker: &Broker,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Value, Wrong> {
    let counts = &broker.gateway.metrics.pull;
    let token = token(broker, headers)?;
    let mut body = read(headers, body, TEXT_MAX).await?;
    let mut faults = Faults::default();
    let job = faults.text(&body, "id", usize::MAX);
    let state = faults.text(&body, "state", usize::MAX);
    faults.whole(&body, "seed", (i64::MIN, i64::MAX));
    let text = match body.remove("generation") {
        Some(Value::String(text)) => Some(text),
        None => {
            faults.missing("generation", "the JSON body");
            None
        }
        Some(other) => {
            let one = Map::from_iter([("generation".to_owned(), other)]);
            faults.text(&one, "generation", usize::MAX)
        }
    };
    if let Some(state) = &state
        && !STATES.contains(&state.as_str())
    {
        let message = format!("'{state}' is not one of {STATES:?}");
        faults.found.insert("state".to_owned(), json!(message));
    }
    if job.is_none() && !faults.found.contains_key("id") {
        faults.missing("id", "the JSON body");
    }
    let (Some(job), Some(text), true) = (&job, text, faults.found.is_empty()) else {
        if let Some(job) = &job
            && fault(broker, token, job)
        {
            counts.submitted(Speaks::Horde, Submitted::Faulted);
        } else {
            counts.submitted(Speaks::Horde, Submitted::Invalid);
        }
        return Err(Wrong::invalid(faults.found));
    };
    let Some(member) = holder(broker, job) else {
        return Err(over(broker, job));
    };
    if !member.belongs_to(token) {
        return Err(Wrong::forbidden(
            "WrongCredentials",
            "That job was given to a worker of somebody else.",
        ));
    }
    member.heard();
    match state.as_deref() {
        Some("faulted") => {
            member.desk.lose(job, Loss::Faulted);
            counts.submitted(Speaks::Horde, Submitted::Faulted);
            Ok(json!({"reward": 0.0}))
        }
        state => {
            let filtered = matches!(state, Some("censored" | "csam"));
            let reward = (text.len() as f64 / TOKEN_BYTES).ceil();
            if deliver(&member, job, text, filtered).await {
                counts.submitted(Speaks::Horde, Submitted::Taken);
                return Ok(json!({"reward": reward}));
            }
            Err(over(broker, job))
        }
    }
}

/// Who has the job, where it is one of this API's.
fn holder(broker: &Broker, job: &str) -> Option<Arc<Member>> {
    let member = broker.holder(job)?;
    (member.desk.speaks == Speaks::Horde).then_some(member)
}

/// The worker says in broken words that it has no text: `generation` is null, say. That is as good
/// as giving the job back.
fn fault(broker: &Broker, token: &PullToken, job: &str) -> bool {
    let member = holder(broker, job).filter(|member| member.belongs_to(token));
    member.is_some_and(|member| member.desk.lose(job, Loss::Faulted))
}

/// Whether somebody took the text.
async fn deliver(member: &Member, job: &str, text: String, filtered: bool) -> bool {
    let Ok(answer) = member.desk.answering(job) else {
        return false;
    };
    let (done, read) = oneshot::channel();
    let whole = Answer {
        status: StatusCode::OK,
        headers: HeaderMap::new(),
        begun: Bytes::from(text.replace('\0', "")),
        rest: None,
        filtered,
        done,
    };
    answer.send(whole).is_ok() && read.await.is_ok()
}

/// Nobody waits for the job: why.
fn over(broker: &Broker, job: &str) -> Wrong {
    let end = match broker.holder(job) {
        // Its answer is under way.
        Some(_) => Some(End::Answered),
        None => broker.past.of(job),
    };
    let what = match end {
        Some(End::Answered) => Submitted::Duplicate,
        Some(_) => Submitted::Late,
        None => Submitted::Unknown,
    };
    broker.gateway.metrics.pull.submitted(Speaks::Horde, what);
    match end {
        Some(End::Answered) => Wrong::new(
            StatusCode::BAD_REQUEST,
            "DuplicateGen",
            format!("Processing Generation with ID {job} already submitted."),
        ),
        Some(End::Faulted | End::Lost) => Wrong::new(
            StatusCode::BAD_REQUEST,
            "AbortedGen",
            format!("Processing Generation with ID {job} took too long and was aborted."),
        ),
        Some(End::Cancelled) | None => Wrong::new(
            StatusCode::NOT_FOUND,
            "InvalidJobID",
            format!("Processing Job with ID {job} does not exist."),
        ),
    }
}
