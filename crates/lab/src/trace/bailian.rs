//! Qwen's traces from Bailian: `chat_id`, `parent_chat_id` (-1: a first turn), `timestamp` in s, `input_length`,
//! `output_length`, `type`, `turn`, `hash_ids` of 16-token blocks that stand for all before them.

use std::collections::HashMap;
use std::io::BufRead;

use super::field::{Fields, spans};
use super::{Lines, Row, Take, TraceError};

/// Tokens in a block.
const BLOCK: u32 = 16;

pub(super) fn read<R: BufRead>(
    lines: &mut Lines<R>,
    mut take: Box<Take<'_>>,
) -> Result<u32, TraceError> {
    let mut sessions: HashMap<i64, u64> = HashMap::new();
    let mut count = 0;
    while let Some(text) = lines.next()? {
        let text = text.to_vec();
        let fields = Fields::parse(&text, lines.number())?;
        let chat = fields.number("chat_id")? as i64;
        let parent = fields.some_number("parent_chat_id")?.unwrap_or(-1.0) as i64;
        let input = fields.tokens("input_length")?;
        let ids = fields.ids("hash_ids")?;
        if ids.len() as u64 > u64::from(input.div_ceil(BLOCK)) {
            return Err(fields.wrong(
                "hash_ids",
                "has more blocks than input_length has tokens for",
            ));
        }
        // A parent before the beginning of the trace begins a session here.
        let session = sessions.get(&parent).copied().unwrap_or_else(|| {
            count += 1;
            count - 1
        });
        sessions.insert(chat, session);
        let whole = ids.len() as u64 * u64::from(BLOCK);
        take(Row {
            line: lines.number(),
            at: Some(fields.number("timestamp")?),
            session: Some(session),
            group: fields.name("type")?.unwrap_or_default(),
            partial: whole > u64::from(input),
            spans: spans(ids),
            input,
            output: fields.tokens("output_length")?,
            block: BLOCK,
            ..Row::default()
        })?;
    }
    Ok(BLOCK)
}
