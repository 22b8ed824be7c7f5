//! KV events as vLLM writes them: MessagePack, `[time, events, rank]`.

use crate::model::KvEvent;

/// How an event is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KvFormat {
    /// A map with its type: vLLM from 0.24.
    #[default]
    Map,
    /// An array that begins with its type, and replays without a topic: vLLM up to 0.23.
    Array,
}

/// One message's payload. The rank is 0, as an engine with a single one says it.
pub(super) fn payload(
    ts: f64,
    events: &[KvEvent],
    block_tokens: usize,
    format: KvFormat,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + events.len() * 128);
    out.extend([0x93, 0xcb]);
    out.extend(ts.to_be_bytes());
    array(events.len(), &mut out);
    for event in events {
        write(event, block_tokens, format, &mut out);
    }
    number(0, &mut out);
    out
}

/// A field's name and value.
type Field<'a> = (&'static str, Item<'a>);

enum Item<'a> {
    Nil,
    Number(u64),
    Text(&'a str),
    Hashes(&'a [u64]),
    Tokens(&'a [u32]),
    /// One entry a block: nil, but for the salt of the first.
    Extra(usize, Option<&'a str>),
}

fn write(event: &KvEvent, block_tokens: usize, format: KvFormat, out: &mut Vec<u8>) {
    match event {
        KvEvent::Stored {
            hashes,
            parent,
            tokens,
            salt,
        } => fields(
            "BlockStored",
            &[
                ("block_hashes", Item::Hashes(hashes)),
                ("parent_block_hash", parent.map_or(Item::Nil, Item::Number)),
                ("token_ids", Item::Tokens(tokens)),
                ("block_size", Item::Number(block_tokens as u64)),
                ("lora_id", Item::Nil),
                ("medium", Item::Text("GPU")),
                ("lora_name", Item::Nil),
                ("extra_keys", Item::Extra(hashes.len(), salt.as_deref())),
                ("group_idx", Item::Number(0)),
                ("kv_cache_spec_kind", Item::Text("full_attention")),
            ],
            format,
            out,
        ),
        KvEvent::Removed { hash } => fields(
            "BlockRemoved",
            &[
                ("block_hashes", Item::Hashes(&[*hash])),
                ("medium", Item::Text("GPU")),
                ("group_idx", Item::Number(0)),
            ],
            format,
            out,
        ),
        KvEvent::Cleared => fields("AllBlocksCleared", &[], format, out),
    }
}

fn fields(kind: &str, fields: &[Field<'_>], format: KvFormat, out: &mut Vec<u8>) {
    match format {
        KvFormat::Map => {
            // No event has more than 15 fields.
            out.push(0x80 | (fields.len() as u8 + 1));
            text("type", out);
        }
        KvFormat::Array => out.push(0x90 | (fields.len() as u8 + 1)),
    }
    text(kind, out);
    for (name, value) in fields {
        if format == KvFormat::Map {
            text(name, out);
        }
        item(value, out);
    }
}

fn item(value: &Item<'_>, out: &mut Vec<u8>) {
    match value {
        Item::Nil => out.push(0xc0),
        Item::Number(value) => number(*value, out),
        Item::Text(value) => text(value, out),
        Item::Hashes(hashes) => {
            array(hashes.len(), out);
            hashes.iter().for_each(|hash| number(*hash, out));
        }
        Item::Tokens(tokens) => {
            array(tokens.len(), out);
            tokens
                .iter()
                .for_each(|token| number(u64::from(*token), out));
        }
        Item::Extra(blocks, salt) => {
            array(*blocks, out);
            for block in 0..*blocks {
                match salt.filter(|_| block == 0) {
                    Some(salt) => {
                        array(1, out);
                        text(salt, out);
                    }
                    None => out.push(0xc0),
                }
            }
        }
    }
}

fn number(value: u64, out: &mut Vec<u8>) {
    if let Ok(value) = u8::try_from(value) {
        if value > 0x7f {
            out.push(0xcc);
        }
        out.push(value);
    } else if let Ok(value) = u16::try_from(value) {
        out.push(0xcd);
        out.extend(value.to_be_bytes());
    } else if let Ok(value) = u32::try_from(value) {
        out.push(0xce);
        out.extend(value.to_be_bytes());
    } else {
        out.push(0xcf);
        out.extend(value.to_be_bytes());
    }
}

/// Longest text, bytes; what is longer is cut.
const TEXT_MAX: usize = u16::MAX as usize;

fn text(value: &str, out: &mut Vec<u8>) {
    let value = &value.as_bytes()[..value.len().min(TEXT_MAX)];
    match u8::try_from(value.len()) {
        Ok(length @ 0..=31) => out.push(0xa0 | length),
        Ok(length) => out.extend([0xd9, length]),
        Err(_) => {
            out.push(0xda);
            out.extend((value.len() as u16).to_be_bytes());
        }
    }
    out.extend(value);
}

fn array(length: usize, out: &mut Vec<u8>) {
    match u16::try_from(length) {
        Ok(length @ 0..=15) => out.push(0x90 | length as u8),
        Ok(length) => {
            out.push(0xdc);
            out.extend(length.to_be_bytes());
        }
        Err(_) => {
            out.push(0xdd);
            out.extend((length as u32).to_be_bytes());
        }
    }
}
