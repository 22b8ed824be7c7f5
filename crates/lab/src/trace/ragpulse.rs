//! RAGPulse: `timestamp` (s), `input_length`, `output_length`, `session_id`, and `hash_ids` that name the parts which the
//! prompt is made of, in the order `sys_prompt`, `passages_ids`, `history`, `web_search`, `user_input`. A second file
//! says how many tokens each part has (`id`, `tokens`); without it the parts of a prompt count as equally long.
//!
//! Parts become blocks of 16 tokens, each standing for all before it: a passage is the same only after the same
//! beginning.

use std::collections::HashMap;
use std::io::BufRead;

use maitred_core::rng::mix;

use super::field::{Fields, Names, ids, spans};
use super::{Lines, Reading, Row, Take, TraceError, open};

/// Tokens in a block.
const BLOCK: u32 = 16;
const KINDS: [&str; 5] = [
    "sys_prompt",
    "passages_ids",
    "history",
    "web_search",
    "user_input",
];

pub(super) fn read<R: BufRead>(
    lines: &mut Lines<R>,
    reading: &Reading,
    mut take: Box<Take<'_>>,
) -> Result<u32, TraceError> {
    let mut lengths: HashMap<u64, u32> = HashMap::new();
    if let Some(path) = &reading.parts {
        let mut parts = open(path)?;
        while let Some(text) = parts.next()? {
            let text = text.to_vec();
            let fields = Fields::parse(&text, parts.number())?;
            let id = fields.number("id")? as u64;
            lengths.insert(id, fields.tokens("tokens")?);
        }
    }
    let mut names = Names::default();
    while let Some(text) = lines.next()? {
        let text = text.to_vec();
        let fields = Fields::parse(&text, lines.number())?;
        let parts = parts(&fields)?;
        let input = fields.tokens("input_length")?;
        let equal = input / u32::try_from(parts.len()).unwrap_or(u32::MAX).max(1);
        let mut blocks = Vec::new();
        let (mut chain, mut filled) = (0_u64, 0_u32);
        for part in parts {
            let mut left = if reading.parts.is_none() {
                equal
            } else {
                *(lengths.get(&part)).ok_or_else(|| {
                    fields.wrong(
                        "hash_ids",
                        &format!("part {part} is not in the file of parts"),
                    )
                })?
            };
            let mut from = 0;
            while left > 0 {
                let taken = left.min(BLOCK - filled);
                // What of which part lies here.
                chain = mix(chain ^ mix(part << 24 ^ u64::from(from) << 5 ^ u64::from(taken)));
                (left, from, filled) = (left - taken, from + taken, filled + taken);
                if filled == BLOCK {
                    blocks.push(chain);
                    filled = 0;
                }
            }
        }
        // Lengths of parts sum to the input's but for a few tokens.
        blocks.truncate((input / BLOCK) as usize);
        let session = fields.name("session_id")?;
        take(Row {
            line: lines.number(),
            at: Some(fields.number("timestamp")?),
            session: session.map(|name| names.number(&name)),
            spans: spans(blocks),
            input,
            output: fields.tokens("output_length")?,
            block: BLOCK,
            ..Row::default()
        })?;
    }
    Ok(BLOCK)
}

fn parts(fields: &Fields) -> Result<Vec<u64>, TraceError> {
    let lists = (fields.map().get("hash_ids")).and_then(serde_json::Value::as_object);
    let lists = lists.ok_or_else(|| fields.wrong("hash_ids", "must be an object of lists"))?;
    let mut parts = Vec::new();
    for kind in KINDS {
        if let Some(list) = lists.get(kind) {
            let field = format!("hash_ids.{kind}");
            let some = ids(list).ok_or_else(|| fields.wrong(&field, "must be a list of ids"))?;
            parts.extend(some);
        }
    }
    Ok(parts)
}
