//! Sessions of block ids, one session a line: `id`, `block_size`, `requests`, each with `t` (s from the session's
//! start), `in`, `out`, `think_time` (before it), `api_time`, and its blocks as `hash_ids` or as `runs` of
//! `[first id, count]`; full blocks only. Ids mean nothing outside their session. An entry of type `subagent` holds
//! `requests` of its own, with `t` from its own start; it runs beside its session, which does not wait for it (what it
//! waited is in the `think_time` of its next request).
//!
//! Sessions have no dates: their starts are the player's.

use std::io::BufRead;

use serde_json::Value;

use super::field::{Fields, ids, spans};
use super::{Lines, Row, Take, TraceError};
use crate::plan::Span;

/// Ids of one session: the longest that we know has far fewer.
const SESSION_IDS: u64 = 1 << 32;

/// What the sessions of a line have in common.
struct Shared {
    line: u64,
    /// Added to ids, so that no two sessions have one in common.
    offset: u64,
    block: u32,
}

pub(super) fn read<R: BufRead>(
    lines: &mut Lines<R>,
    mut take: Box<Take<'_>>,
) -> Result<u32, TraceError> {
    let mut block = None;
    let mut sessions = 0;
    while let Some(text) = lines.next()? {
        let text = text.to_vec();
        let line = lines.number();
        let mut fields = Fields::parse(&text, line)?;
        let size = fields.tokens("block_size")?;
        if size == 0 || size != *block.get_or_insert(size) {
            return Err(fields.wrong(
                "block_size",
                "must be at least 1, and the same on every line",
            ));
        }
        let shared = Shared {
            line,
            offset: line * SESSION_IDS,
            block: size,
        };
        let requests = list(&mut fields, "requests")?;
        session(
            requests,
            &shared,
            "requests",
            None,
            &mut sessions,
            &mut *take,
        )?;
    }
    Ok(block.unwrap_or(16))
}

fn list(fields: &mut Fields, field: &str) -> Result<Vec<Value>, TraceError> {
    match fields.take(field) {
        Some(Value::Array(list)) => Ok(list),
        Some(_) => Err(fields.wrong(field, "must be a list")),
        None => Err(fields.wrong(field, "is missing")),
    }
}

/// One session's requests; `called` is by whom, and how long after that one's last answer.
fn session(
    requests: Vec<Value>,
    shared: &Shared,
    path: &str,
    called: Option<(u64, f64)>,
    sessions: &mut u64,
    take: &mut Take<'_>,
) -> Result<(), TraceError> {
    let own = *sessions;
    *sessions += 1;
    let mut ended: Option<f64> = None;
    for (place, value) in requests.into_iter().enumerate() {
        let at = format!("{path}[{place}]");
        let mut fields = Fields::of(value, shared.line, &at)?;
        let begun = fields.number("t").map_err(|error| within(error, &at))?;
        if fields.name("type")?.as_deref() == Some("subagent") {
            let inner = list(&mut fields, "requests").map_err(|error| within(error, &at))?;
            let pause = (begun - ended.unwrap_or(begun)).max(0.0);
            // One that stands before the first request has nobody to call it.
            let called = ended.map(|_| (own, pause));
            let path = format!("{at}.requests");
            session(inner, shared, &path, called, sessions, take)?;
            continue;
        }
        let mut row = request(&fields, shared).map_err(|error| within(error, &at))?;
        row.session = Some(own);
        if let Some((caller, pause)) = called.filter(|_| ended.is_none()) {
            row.called_by = Some(caller);
            row.pause = Some(pause);
        } else if ended.is_some() {
            let think = fields
                .some_number("think_time")
                .map_err(|error| within(error, &at))?;
            row.pause = think.or(ended.map(|ended| (begun - ended).max(0.0)));
        }
        let took = fields
            .some_number("api_time")
            .map_err(|error| within(error, &at))?;
        ended = Some(begun + took.unwrap_or(0.0));
        take(row)?;
    }
    Ok(())
}

fn request(fields: &Fields, shared: &Shared) -> Result<Row, TraceError> {
    let input = fields.tokens("in")?;
    let mut found = match fields.map().get("runs") {
        Some(list) => runs(list)
            .ok_or_else(|| fields.wrong("runs", "must be a list of pairs of first id and count"))?,
        None => spans(fields.ids("hash_ids")?),
    };
    let blocks: u64 = found.iter().map(|span| u64::from(span.count)).sum();
    if blocks * u64::from(shared.block) > u64::from(input) {
        return Err(fields.wrong("in", "is less than its blocks hold"));
    }
    for span in &mut found {
        if span.first + u64::from(span.count) > SESSION_IDS {
            return Err(fields.wrong("runs", "has an id above 4294967296"));
        }
        span.first += shared.offset;
    }
    Ok(Row {
        line: shared.line,
        spans: found,
        input,
        output: fields.tokens("out")?,
        group: fields.name("model")?.unwrap_or_default(),
        block: shared.block,
        ..Row::default()
    })
}

pub(super) fn runs(list: &Value) -> Option<Vec<Span>> {
    let pair = |pair: &Value| match ids(pair)?[..] {
        [first, count] => Some(Span {
            first,
            count: u32::try_from(count).ok()?,
        }),
        _ => None,
    };
    list.as_array()?.iter().map(pair).collect()
}

fn within(error: TraceError, path: &str) -> TraceError {
    match error {
        TraceError::Line {
            line,
            field,
            problem,
        } => TraceError::Line {
            line,
            field: format!("{path}.{field}"),
            problem,
        },
        other => other,
    }
}
