//! Mooncake's traces (FAST'25 release): `timestamp` in ms, `input_length`, `output_length`, `hash_ids` of 512-token
//! blocks that stand for all before them; the last one may be unfilled.
//!
//! They name no sessions: a request that begins with all but the last block of an earlier one (at least two blocks)
//! continues it. Times are rounded to 3 s: those of one time are spread evenly over the time to the next one, at most 3 s.

use std::collections::HashMap;
use std::io::BufRead;

use super::field::{Fields, spans};
use super::{Lines, Row, Take, TraceError};

/// Tokens in a block.
const BLOCK: u32 = 512;
/// Seconds that times are rounded to.
const ROUNDED: f64 = 3.0;
/// Blocks that a continued request has at least, its last one not counted.
const CONTINUED: usize = 2;

pub(super) fn read<R: BufRead>(
    lines: &mut Lines<R>,
    mut take: Box<Take<'_>>,
) -> Result<u32, TraceError> {
    let mut together: Vec<Row> = Vec::new();
    let mut sessions = Sessions::default();
    while let Some(text) = lines.next()? {
        let text = text.to_vec();
        let fields = Fields::parse(&text, lines.number())?;
        let at = fields.number("timestamp")? / 1e3;
        let input = fields.tokens("input_length")?;
        let ids = fields.ids("hash_ids")?;
        if ids.len() as u64 != u64::from(input.div_ceil(BLOCK)) {
            let problem = "must have one id for each 512 tokens of input_length begun";
            return Err(fields.wrong("hash_ids", problem));
        }
        let row = Row {
            line: lines.number(),
            at: Some(at),
            session: Some(sessions.of(&ids)),
            inferred: true,
            partial: input % BLOCK != 0,
            spans: spans(ids),
            input,
            output: fields.tokens("output_length")?,
            block: BLOCK,
            ..Row::default()
        };
        if together.first().is_some_and(|first| first.at != row.at) {
            spread(&mut together, at, &mut *take)?;
        }
        together.push(row);
    }
    spread(&mut together, f64::INFINITY, &mut *take)?;
    Ok(BLOCK)
}

/// Hands on rows of one time; `next` is when the next ones come.
fn spread(rows: &mut Vec<Row>, next: f64, take: &mut Take<'_>) -> Result<(), TraceError> {
    let count = rows.len() as f64;
    for (place, mut row) in rows.drain(..).enumerate() {
        let at = row.at.unwrap_or(0.0);
        let room = (next - at).clamp(0.0, ROUNDED);
        row.at = Some(at + room * place as f64 / count);
        take(row)?;
    }
    Ok(())
}

/// Which session a request continues.
#[derive(Default)]
struct Sessions {
    /// By the last but one block of a session's latest request (an id stands for all before it).
    tails: HashMap<u64, u64>,
    count: u64,
}

impl Sessions {
    fn of(&mut self, ids: &[u64]) -> u64 {
        let deep = ids.get(CONTINUED - 1..).unwrap_or_default();
        let found = deep.iter().rev().find_map(|id| self.tails.get(id));
        let session = found.copied().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        });
        if let Some(tail) = ids.len().checked_sub(2).filter(|at| at + 1 >= CONTINUED) {
            self.tails.insert(ids[tail], session);
        }
        session
    }
}
