//! Our own format, which loses nothing of the others: a head line, then one request a line.
//!
//! ```text
//! {"maitred_trace":1,"block_tokens":16}
//! {"session":0,"at":1.5,"in":420,"out":80,"runs":[[1,25],[900,1]]}
//! {"session":0,"pause":12.25,"in":560,"out":64,"runs":[[1,25],[900,10]]}
//! {"session":1,"called_by":0,"awaited":true,"pause":0,"in":300,"out":20,"runs":[[2000,18]]}
//! ```
//!
//! `runs` are blocks as `[first id, count]`; an id stands for its content and all before it. `partial` says that the
//! last one is not full; `blind` that nothing is known of prefixes. `at` is in seconds; `pause` is the time after the
//! session's answer before. A session that is `called_by` another begins `pause` after the last answer of that one which
//! stands before it in the file; where it is `awaited`, the other's next request waits for its end. `tenant` and `group`
//! may be missing.

use std::io::BufRead;

use serde_json::Value;

use super::blocks::runs;
use super::field::Fields;
use super::{Lines, Row, Take, TraceError};

/// The only layout so far.
pub(super) const VERSION: f64 = 1.0;

pub(super) fn read<R: BufRead>(
    lines: &mut Lines<R>,
    mut take: Box<Take<'_>>,
) -> Result<u32, TraceError> {
    let Some(text) = lines.next()? else {
        return Ok(16);
    };
    let text = text.to_vec();
    let head = Fields::parse(&text, lines.number())?;
    if head.number("maitred_trace")? != VERSION {
        return Err(head.wrong("maitred_trace", "must be 1"));
    }
    let block = head.tokens("block_tokens")?;
    if !(1..=4_096).contains(&block) {
        return Err(head.wrong("block_tokens", "must be 1 to 4096"));
    }
    while let Some(text) = lines.next()? {
        let text = text.to_vec();
        take(row(
            &Fields::parse(&text, lines.number())?,
            block,
            lines.number(),
        )?)?;
    }
    Ok(block)
}

fn row(fields: &Fields, block: u32, line: u64) -> Result<Row, TraceError> {
    let flag = |field: &str| match fields.map().get(field) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(fields.wrong(field, "must be true or false")),
    };
    let number = |field: &str| match fields.some_number(field)? {
        Some(number) if number < 0.0 => Err(fields.wrong(field, "must be at least 0")),
        number => Ok(number),
    };
    let spans = match fields.map().get("runs") {
        None | Some(Value::Null) => Vec::new(),
        Some(list) => runs(list)
            .ok_or_else(|| fields.wrong("runs", "must be a list of pairs of first id and count"))?,
    };
    let input = fields.tokens("in")?;
    let partial = flag("partial")?;
    let row = Row {
        line,
        at: number("at")?,
        pause: number("pause")?,
        session: number("session")?.map(|number| number as u64),
        called_by: number("called_by")?.map(|number| number as u64),
        awaited: flag("awaited")?,
        tenant: number("tenant")?.map_or(0, |number| number as u64),
        group: fields.name("group")?.unwrap_or_default(),
        spans,
        partial,
        input,
        output: fields.tokens("out")?,
        blind: flag("blind")?,
        block,
        ..Row::default()
    };
    let full = row.blocks() - u64::from(partial).min(row.blocks());
    if full * u64::from(block) > u64::from(input) {
        return Err(fields.wrong("in", "is less than its blocks hold"));
    }
    Ok(row)
}
