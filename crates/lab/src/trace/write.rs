//! Writing traces: rows as they come in our own format, or a whole plan in any that can be written.

use std::collections::HashMap;
use std::io::Write;

use serde_json::{Value, json};

use super::{Format, Row, TraceError};
use crate::plan::{Begin, Plan, Planned, Span, nominal_order};

/// Writes rows in our own format, one at a time.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    begun: bool,
}

impl<W: Write> Writer<W> {
    /// Nothing is written before the first row.
    pub fn new(out: W) -> Self {
        Self { out, begun: false }
    }

    /// Writes a row.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn row(&mut self, row: &Row) -> Result<(), TraceError> {
        if !std::mem::replace(&mut self.begun, true) {
            line(
                &mut self.out,
                &json!({ "maitred_trace": 1, "block_tokens": row.block }),
            )?;
        }
        let mut fields = serde_json::Map::new();
        let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
        if let Some(session) = row.session {
            put("session", json!(session));
        }
        if let Some(at) = row.at {
            put("at", json!(at));
        }
        if let Some(pause) = row.pause {
            put("pause", json!(pause));
        }
        if let Some(caller) = row.called_by {
            put("called_by", json!(caller));
        }
        for (name, flag) in [
            ("awaited", row.awaited),
            ("partial", row.partial),
            ("blind", row.blind),
        ] {
            if flag {
                put(name, json!(true));
            }
        }
        if row.tenant != 0 {
            put("tenant", json!(row.tenant));
        }
        if !row.group.is_empty() {
            put("group", json!(row.group));
        }
        put("in", json!(row.input));
        put("out", json!(row.output));
        let runs = row.spans.iter().map(|span| json!([span.first, span.count]));
        put("runs", runs.collect());
        line(&mut self.out, &Value::Object(fields))
    }

    /// Hands out what was written to.
    pub fn into_inner(self) -> W {
        self.out
    }
}

fn line(out: &mut impl Write, value: &Value) -> Result<(), TraceError> {
    serde_json::to_writer(&mut *out, value).map_err(std::io::Error::from)?;
    out.write_all(b"\n")?;
    Ok(())
}

/// Writes a plan.
///
/// Our own format keeps all of it; Mooncake's and Bailian's have a time for each request, for which each answer is taken
/// to need 20 ms a token, and blocks of 512 and 16 tokens.
///
/// # Errors
/// It cannot be written; or the format cannot be, or not with blocks of this size.
pub fn write_plan(out: &mut impl Write, plan: &Plan, format: Format) -> Result<(), TraceError> {
    match format {
        Format::Maitred => own(out, plan),
        Format::Mooncake => timed(out, plan, 512, |_, request, seconds, blocks, _| {
            json!({
                "timestamp": (seconds * 1e3).round() as u64,
                "input_length": request.prompt_tokens,
                "output_length": request.output_tokens,
                "hash_ids": blocks,
            })
        }),
        Format::Bailian => timed(out, plan, 16, |plan, request, seconds, blocks, at| {
            json!({
                "chat_id": at,
                "parent_chat_id": if request.turn > 1 { i64::from(at) - 1 } else { -1 },
                "timestamp": seconds,
                "input_length": request.prompt_tokens,
                "output_length": request.output_tokens,
                "type": plan.groups.get(usize::from(request.group)).map_or("", String::as_str),
                "turn": request.turn,
                "hash_ids": blocks,
            })
        }),
        _ => Err(refused("only maitred, mooncake and bailian are written")),
    }
}

fn refused(problem: &str) -> TraceError {
    TraceError::Io(std::io::Error::new(
        std::io::ErrorKind::InvalidInput,
        problem.to_owned(),
    ))
}

/// Sessions one after the other, each followed, after the request that calls them, by those it calls.
fn own(out: &mut impl Write, plan: &Plan) -> Result<(), TraceError> {
    let mut writer = Writer::new(out);
    let starts = plan.sessions.iter().filter(|at| {
        matches!(plan.requests.get(**at as usize), Some(request) if matches!(request.begin, Begin::At(_)))
    });
    for first in starts {
        // Requests still to be written, the next one last; a session's next request lies below those it waits for.
        let mut open = vec![(*first, None)];
        while let Some((at, caller)) = open.pop() {
            let request = &plan.requests[at as usize];
            writer.row(&row(plan, at, caller))?;
            open.extend(plan.following(at).map(|next| (next, None)));
            let called = request.also.iter().rev();
            let called = called.filter(|other| plan.requests[**other as usize].turn == 1);
            open.extend(called.map(|other| (*other, Some(request.session))));
        }
    }
    Ok(())
}

fn row(plan: &Plan, at: u32, caller: Option<u32>) -> Row {
    let request = &plan.requests[at as usize];
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let (time, pause) = match request.begin {
        Begin::At(time) => (Some(seconds(time.0)), None),
        Begin::After {
            pause, no_sooner, ..
        } if pause.is_zero() && no_sooner.0 > 0 => (Some(seconds(no_sooner.0)), None),
        Begin::After { pause, .. } => (None, Some(pause.as_secs_f64())),
    };
    Row {
        at: time,
        pause,
        session: Some(u64::from(request.session)),
        called_by: caller.map(u64::from),
        awaited: caller.is_some() && awaited(plan, at),
        tenant: request.tenant.0,
        group: plan
            .groups
            .get(usize::from(request.group))
            .cloned()
            .unwrap_or_default(),
        block: plan.block_tokens,
        spans: request.spans.to_vec(),
        input: request.prompt_tokens,
        output: request.output_tokens,
        ..Row::default()
    }
}

/// Whether somebody waits for the session's end.
fn awaited(plan: &Plan, first: u32) -> bool {
    let mut last = first;
    while let Some(next) = plan.following(last) {
        last = next;
    }
    let also = plan.requests[last as usize].also.iter();
    also.copied()
        .any(|other| plan.requests[other as usize].turn > 1)
}

fn timed(
    out: &mut impl Write,
    plan: &Plan,
    block: u32,
    shown: impl Fn(&Plan, &Planned, f64, Vec<u64>, u32) -> Value,
) -> Result<(), TraceError> {
    if !block.is_multiple_of(plan.block_tokens) && !plan.block_tokens.is_multiple_of(block) {
        let sizes = "blocks of this trace and of the format must be multiples of each other";
        return Err(refused(sizes));
    }
    let mut cutter = Cutter {
        from: plan.block_tokens,
        to: block,
        known: HashMap::new(),
    };
    for (time, at) in nominal_order(plan) {
        let request = &plan.requests[at as usize];
        let blocks = cutter.blocks(&request.spans, request.prompt_tokens, at);
        let seconds = time.0 as f64 / 1e9;
        line(out, &shown(plan, request, seconds, blocks, at))?;
    }
    Ok(())
}

/// Turns blocks of one size into blocks of another, numbered in the order in which they come.
struct Cutter {
    from: u32,
    to: u32,
    known: HashMap<(u64, u32), u64>,
}

impl Cutter {
    fn blocks(&mut self, spans: &[Span], tokens: u32, request: u32) -> Vec<u64> {
        let ids: Vec<u64> = (spans.iter())
            .flat_map(|span| (0..u64::from(span.count)).map(|at| span.first + at))
            .collect();
        let mut names: Vec<(u64, u32)> = if self.from >= self.to {
            let parts = self.from / self.to;
            ids.iter()
                .flat_map(|id| (0..parts).map(|part| (*id, part)))
                .collect()
        } else {
            // An id stands for all before it, so the last of a group stands for the group.
            let group = (self.to / self.from) as usize;
            ids.chunks_exact(group)
                .filter_map(|ids| Some((*ids.last()?, 0)))
                .collect()
        };
        // What is left is the request's own: there is one id for each block begun.
        let own = (tokens.div_ceil(self.to) as usize).saturating_sub(names.len());
        names.extend((0..own as u32).map(|part| (u64::MAX - u64::from(request), part)));
        names.into_iter().map(|name| self.number(name)).collect()
    }

    fn number(&mut self, name: (u64, u32)) -> u64 {
        let next = self.known.len() as u64;
        *self.known.entry(name).or_insert(next)
    }
}
