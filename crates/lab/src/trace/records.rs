//! The gateway's records. They hold no prompt and no chain, so that prefixes are taken from the conversations: each
//! request of a session is taken to begin with all of the one before. Attempts that another one followed, and requests
//! that never reached the scheduler, are left out. All records are read before the first row is handed on: they are
//! written in order of their ends.

use std::io::BufRead;

use maitred_core::rng::mix;
use maitred_records::{AttemptRecord, Outcome};

use super::lines::wrong;
use super::{Lines, Reading, Row, Take, TraceError};
use crate::plan::Span;

/// Tokens in a block.
const BLOCK: u32 = 16;
/// Tokens of an answer of which nothing is known.
pub(super) const OUTPUT: u32 = 256;
/// Bytes of a token, where only bytes are known.
const TOKEN_BYTES: u64 = 4;

pub(super) fn read<R: BufRead>(
    lines: &mut Lines<R>,
    reading: &Reading,
    mut take: Box<Take<'_>>,
) -> Result<u32, TraceError> {
    let mut rows: Vec<(u64, Row)> = Vec::new();
    while let Some(text) = lines.next()? {
        let parsed: Result<AttemptRecord, _> = serde_json::from_slice(text);
        let line = lines.number();
        let record = parsed.map_err(|error| wrong(line, "line", error.to_string()))?;
        if matches!(
            record.outcome,
            Outcome::Retried | Outcome::Rejected | Outcome::ClientError
        ) {
            continue;
        }
        rows.push((record.time_ms, row(&record, line, reading)));
    }
    rows.sort_by_key(|(time, row)| (*time, row.line));
    let first = rows.first().map_or(0, |(time, _)| *time);
    for (time, mut row) in rows {
        row.at = Some((time - first) as f64 / 1e3);
        take(row)?;
    }
    Ok(BLOCK)
}

fn row(record: &AttemptRecord, line: u64, reading: &Reading) -> Row {
    let exact = record.prompt_tokens;
    let bytes = u32::try_from(record.prompt_bytes / TOKEN_BYTES).unwrap_or(u32::MAX);
    let input = exact.or(record.prompt_tokens_estimated).unwrap_or(bytes);
    let assumed = if reading.output > 0 {
        reading.output
    } else {
        OUTPUT
    };
    let session = record.session;
    let blocks = input / BLOCK;
    // The low half of the ids is the place in the conversation.
    let first = session.map(|session| mix(session) & !u64::from(u32::MAX));
    let whole = first.filter(|_| blocks > 0).map(|first| Span {
        first,
        count: blocks,
    });
    Row {
        line,
        session,
        tenant: record.tenant,
        group: record.model.to_string(),
        spans: whole.into_iter().collect(),
        input,
        output: record.output_tokens.unwrap_or(assumed),
        blind: session.is_none(),
        estimated: exact.is_none() || record.output_tokens.is_none(),
        block: BLOCK,
        ..Row::default()
    }
}
