//! From a payload to its events.

use super::msgpack::{Item, Reader};
use super::{
    EngineHash, Extra, ExtraKey, GroupKind, KvBatch, KvError, KvEvent, Medium, PAYLOAD_BYTES_MAX,
    Removed, Stored,
};

/// Fields of a stored event in the order of the array form.
const STORED: [&str; 13] = [
    "type",
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
];
/// Fields of a removed event in the order of the array form.
const REMOVED: [&str; 5] = ["type", "block_hashes", "medium", "group_idx", "locality"];
/// Fields of a batch in the order of the array form.
const BATCH: [&str; 3] = ["ts", "events", "data_parallel_rank"];

/// Reads one message's payload.
///
/// # Errors
/// It is no whole MessagePack value, too long, or a field that decides identity is not what it must
/// be. Nothing of it may be used then.
pub fn decode(payload: &[u8]) -> Result<KvBatch, KvError> {
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(KvError::TooLong {
            bytes: payload.len(),
        });
    }
    let mut reader = Reader::new(payload);
    let mut batch = KvBatch::default();
    let mut timed = false;
    each(&mut reader, "batch", &BATCH, |reader, field| {
        match field {
            b"ts" => {
                batch.ts = time(reader)?;
                timed = true;
            }
            b"events" => events(reader, &mut batch)?,
            b"data_parallel_rank" | b"attn_dp_rank" => {
                batch.rank = small(reader, "data_parallel_rank")?;
            }
            _ => reader.skip(1)?,
        }
        Ok(())
    })?;
    if !timed {
        return Err(KvError::Missing { field: "ts" });
    }
    if reader.left() > 0 {
        return Err(KvError::Trailing { at: reader.at() });
    }
    Ok(batch)
}

/// Calls `read` for each field of an array (named by place in `order`) or a map (named by key);
/// it must take exactly the field's value. Items without a name are called "".
fn each<'a>(
    reader: &mut Reader<'a>,
    what: &'static str,
    order: &[&'static str],
    mut read: impl FnMut(&mut Reader<'a>, &[u8]) -> Result<(), KvError>,
) -> Result<(), KvError> {
    let at = reader.at();
    match reader.next()? {
        Item::Array(count) => {
            for place in 0..count as usize {
                read(
                    reader,
                    order.get(place).copied().unwrap_or_default().as_bytes(),
                )?;
            }
        }
        Item::Map(count) => {
            for _ in 0..count {
                let key = reader.next()?;
                let name = match key {
                    Item::Text(name) => name,
                    other => {
                        reader.skip_inside(other)?;
                        b""
                    }
                };
                read(reader, name)?;
            }
        }
        _ => return Err(unexpected(what, "an array or a map", at)),
    }
    Ok(())
}

fn unexpected(field: &'static str, expected: &'static str, at: usize) -> KvError {
    KvError::Unexpected {
        field,
        expected,
        at,
    }
}

fn time(reader: &mut Reader<'_>) -> Result<f64, KvError> {
    let at = reader.at();
    match reader.next()? {
        Item::Float(time) => Ok(time),
        Item::Unsigned(time) => Ok(time as f64),
        _ => Err(unexpected("ts", "a number", at)),
    }
}

fn events(reader: &mut Reader<'_>, batch: &mut KvBatch) -> Result<(), KvError> {
    let at = reader.at();
    let Item::Array(count) = reader.next()? else {
        return Err(unexpected("events", "an array", at));
    };
    for _ in 0..count {
        match event(reader)? {
            Some(event) => batch.events.push(event),
            None => batch.unknown = batch.unknown.saturating_add(1),
        }
    }
    Ok(())
}

/// Reads one event; none: its type is unknown.
fn event(reader: &mut Reader<'_>) -> Result<Option<KvEvent>, KvError> {
    let kind = kind(*reader)?;
    Ok(match kind {
        b"BlockStored" => Some(KvEvent::Stored(stored(reader)?)),
        b"BlockRemoved" => Some(KvEvent::Removed(removed(reader)?)),
        b"AllBlocksCleared" => {
            reader.skip(1)?;
            Some(KvEvent::Cleared)
        }
        _ => {
            reader.skip(1)?;
            None
        }
    })
}

/// The type of the event that begins here. It comes first with every engine, but a map need not.
fn kind<'a>(mut reader: Reader<'a>) -> Result<&'a [u8], KvError> {
    let at = reader.at();
    let (count, keyed) = match reader.next()? {
        Item::Array(count) => (count.min(1), false),
        Item::Map(count) => (count, true),
        _ => return Err(unexpected("event", "an array or a map", at)),
    };
    for _ in 0..count {
        if keyed {
            let key = reader.next()?;
            if key != Item::Text(b"type") {
                reader.skip_inside(key)?;
                reader.skip(1)?;
                continue;
            }
        }
        let at = reader.at();
        return match reader.next()? {
            Item::Text(kind) => Ok(kind),
            _ => Err(unexpected("type", "a text", at)),
        };
    }
    Err(KvError::Missing { field: "type" })
}

fn stored(reader: &mut Reader<'_>) -> Result<Stored, KvError> {
    let mut event = Stored::default();
    let mut named = false;
    each(reader, "BlockStored", &STORED, |reader, field| {
        match field {
            b"block_hashes" => {
                named = true;
                hashes(reader, &mut event.hashes)?;
            }
            b"parent_block_hash" => event.parent = parent(reader)?,
            b"token_ids" => tokens(reader, &mut event.token_ids)?,
            b"block_size" => event.block_size = small(reader, "block_size")?.unwrap_or(0),
            b"lora_id" => event.lora_id = small(reader, "lora_id")?,
            b"lora_name" => event.lora_name = text(reader, "lora_name")?,
            b"medium" => event.medium = medium(reader)?,
            b"extra_keys" => event.says_extra = extra(reader, &mut event.extra)?,
            b"group_idx" => event.group = lenient(reader)?,
            b"kv_cache_spec_kind" => event.kind = group_kind(reader)?,
            b"kv_cache_spec_sliding_window" => event.window = lenient(reader)?,
            b"locality" => event.remote = remote(reader)?,
            _ => reader.skip(1)?,
        }
        Ok(())
    })?;
    if !named {
        return Err(KvError::Missing {
            field: "block_hashes",
        });
    }
    // Each block repeats the adapter's name; said once is enough.
    if let Some(name) = &event.lora_name {
        let is_name = |key: &ExtraKey| matches!(key, ExtraKey::Text(text) | ExtraKey::Adapter(text) if text == name);
        let mut last = None;
        event.extra.retain(|extra| {
            // Only the first of a block: a salt may be spelt like an adapter.
            let first = last.replace(extra.block) != Some(extra.block);
            !(first && is_name(&extra.key))
        });
    }
    Ok(event)
}

fn removed(reader: &mut Reader<'_>) -> Result<Removed, KvError> {
    let mut event = Removed::default();
    let mut named = false;
    each(reader, "BlockRemoved", &REMOVED, |reader, field| {
        match field {
            b"block_hashes" => {
                named = true;
                hashes(reader, &mut event.hashes)?;
            }
            b"medium" => event.medium = medium(reader)?,
            b"group_idx" => event.group = lenient(reader)?,
            b"remaining_copy_counts" => remaining(reader, &mut event.remaining)?,
            b"locality" => event.remote = remote(reader)?,
            _ => reader.skip(1)?,
        }
        Ok(())
    })?;
    if !named {
        return Err(KvError::Missing {
            field: "block_hashes",
        });
    }
    if event.remaining.len() != event.hashes.len() {
        event.remaining.clear();
    }
    Ok(event)
}

// === one field's value ===

fn hash(item: Item<'_>) -> Option<EngineHash> {
    match item {
        Item::Unsigned(number) => Some(EngineHash(number)),
        Item::Negative(number) => Some(EngineHash(number.cast_unsigned())),
        Item::Binary(digest) if !digest.is_empty() => Some(EngineHash::of_bytes(digest)),
        _ => None,
    }
}

fn hashes(reader: &mut Reader<'_>, out: &mut Vec<EngineHash>) -> Result<(), KvError> {
    let at = reader.at();
    let Item::Array(count) = reader.next()? else {
        return Err(unexpected("block_hashes", "an array", at));
    };
    out.clear();
    out.reserve_exact(reader.plausible(count));
    for _ in 0..count {
        let at = reader.at();
        let named = hash(reader.next()?);
        out.push(named.ok_or_else(|| unexpected("block_hashes", "integers or byte strings", at))?);
    }
    Ok(())
}

fn parent(reader: &mut Reader<'_>) -> Result<Option<EngineHash>, KvError> {
    let at = reader.at();
    match reader.next()? {
        Item::Nil => Ok(None),
        item => match hash(item) {
            Some(parent) => Ok(Some(parent)),
            None => Err(unexpected(
                "parent_block_hash",
                "an integer, a byte string or nil",
                at,
            )),
        },
    }
}

fn tokens(reader: &mut Reader<'_>, out: &mut Vec<u32>) -> Result<(), KvError> {
    const EXPECTED: &str = "an array of token ids";
    let at = reader.at();
    let count = match reader.next()? {
        Item::Array(count) => count,
        Item::Nil => 0,
        _ => return Err(unexpected("token_ids", EXPECTED, at)),
    };
    out.clear();
    out.reserve_exact(reader.plausible(count));
    for _ in 0..count {
        if let Some(id) = reader.small() {
            out.push(id);
            continue;
        }
        let at = reader.at();
        let mut item = reader.next()?;
        // Where drafts are made, SGLang keys its cache by pairs of a token and the next one.
        let pair = if let Item::Array(2) = item {
            item = reader.next()?;
            reader.skip(1)?;
            true
        } else {
            false
        };
        let id = match item {
            Item::Unsigned(id) => u32::try_from(id).ok(),
            _ => None,
        };
        let expected = if pair {
            "a pair of token ids"
        } else {
            EXPECTED
        };
        out.push(id.ok_or_else(|| unexpected("token_ids", expected, at))?);
    }
    Ok(())
}

/// A number that decides identity, or nil.
fn small(reader: &mut Reader<'_>, field: &'static str) -> Result<Option<u32>, KvError> {
    let at = reader.at();
    let number = match reader.next()? {
        Item::Nil => return Ok(None),
        Item::Unsigned(number) => u32::try_from(number).ok(),
        _ => None,
    };
    match number {
        Some(number) => Ok(Some(number)),
        None => Err(unexpected(field, "a 32-bit number or nil", at)),
    }
}

/// A number that only describes: anything else is as good as nothing.
fn lenient(reader: &mut Reader<'_>) -> Result<Option<u32>, KvError> {
    match reader.next()? {
        Item::Unsigned(number) => Ok(u32::try_from(number).ok()),
        other => reader.skip_inside(other).map(|()| None),
    }
}

/// A text that decides identity, or nil.
fn text(reader: &mut Reader<'_>, field: &'static str) -> Result<Option<Box<str>>, KvError> {
    let at = reader.at();
    match reader.next()? {
        Item::Nil => Ok(None),
        Item::Text(name) => match std::str::from_utf8(name) {
            Ok(name) => Ok(Some(name.into())),
            Err(_) => Err(unexpected(field, "UTF-8", at)),
        },
        _ => Err(unexpected(field, "a text or nil", at)),
    }
}

fn medium(reader: &mut Reader<'_>) -> Result<Medium, KvError> {
    match reader.next()? {
        Item::Nil => Ok(Medium::Device),
        Item::Text(name) => Ok(Medium::of(name)),
        other => reader.skip_inside(other).map(|()| Medium::Other),
    }
}

fn group_kind(reader: &mut Reader<'_>) -> Result<GroupKind, KvError> {
    match reader.next()? {
        Item::Nil => Ok(GroupKind::Unsaid),
        Item::Text(name) => Ok(GroupKind::of(name)),
        other => reader.skip_inside(other).map(|()| GroupKind::Other),
    }
}

fn remote(reader: &mut Reader<'_>) -> Result<bool, KvError> {
    match reader.next()? {
        Item::Text(name) => Ok(name.eq_ignore_ascii_case(b"REMOTE")),
        other => reader.skip_inside(other).map(|()| false),
    }
}

fn remaining(reader: &mut Reader<'_>, out: &mut Vec<u32>) -> Result<(), KvError> {
    out.clear();
    let head = reader.next()?;
    let Item::Array(count) = head else {
        return reader.skip_inside(head);
    };
    for _ in 0..count {
        // What cannot be read makes the list too short, and it is not used then.
        out.extend(lenient(reader)?);
    }
    Ok(())
}

/// Whether anything was said of them.
fn extra(reader: &mut Reader<'_>, out: &mut Vec<Extra>) -> Result<bool, KvError> {
    let at = reader.at();
    out.clear();
    let count = match reader.next()? {
        Item::Array(count) => count,
        Item::Nil => return Ok(false),
        _ => return Err(unexpected("extra_keys", "an array or nil", at)),
    };
    for block in 0..count {
        match reader.next()? {
            Item::Nil => {}
            Item::Array(keys) => {
                for _ in 0..keys {
                    let key = extra_key(reader)?;
                    out.push(Extra { block, key });
                }
            }
            other => {
                reader.skip_inside(other)?;
                out.push(Extra {
                    block,
                    key: ExtraKey::Other,
                });
            }
        }
    }
    Ok(true)
}

/// A plain text, `[id, offset]`, or tagged as in vLLM's hashes: `["cache_salt", salt]`,
/// `["lora", name, ..]`, `["mm", id, offset]`.
fn extra_key(reader: &mut Reader<'_>) -> Result<ExtraKey, KvError> {
    let count = match reader.next()? {
        Item::Text(text) => return Ok(spelt(text, ExtraKey::Text)),
        Item::Array(count) => count,
        other => return reader.skip_inside(other).map(|()| ExtraKey::Other),
    };
    let mut parts = [Item::Nil; 3];
    for place in 0..count as usize {
        let item = reader.next()?;
        reader.skip_inside(item)?;
        if let Some(part) = parts.get_mut(place) {
            *part = item;
        }
    }
    Ok(match (count, parts) {
        (2, [Item::Text(b"cache_salt"), Item::Text(salt), _]) => spelt(salt, ExtraKey::Salt),
        (2.., [Item::Text(b"lora"), Item::Text(name), _]) => spelt(name, ExtraKey::Adapter),
        (3, [Item::Text(b"mm"), Item::Text(id), offset]) | (2, [Item::Text(id), offset, _]) => {
            match offset {
                Item::Unsigned(offset) => item_key(id, i64::try_from(offset).ok()),
                Item::Negative(offset) => item_key(id, Some(offset)),
                _ => ExtraKey::Other,
            }
        }
        _ => ExtraKey::Other,
    })
}

fn spelt(text: &[u8], key: impl FnOnce(Box<str>) -> ExtraKey) -> ExtraKey {
    std::str::from_utf8(text).map_or(ExtraKey::Other, |text| key(text.into()))
}

fn item_key(id: &[u8], offset: Option<i64>) -> ExtraKey {
    match (std::str::from_utf8(id), offset) {
        (Ok(id), Some(offset)) => ExtraKey::Item {
            id: id.into(),
            offset,
        },
        _ => ExtraKey::Other,
    }
}
