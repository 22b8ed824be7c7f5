#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn unhex(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap().as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap();
    let byte = |pair: &[u8]| u8::try_from(digit(pair[0]) << 4 | digit(pair[1])).unwrap();
    text.chunks_exact(2).map(byte).collect()
}

/// MessagePack of a JSON value; `{"$bytes": hex}` is a byte string, as in the recordings.
fn pack(value: &Value, out: &mut Vec<u8>) {
    let length = |count: usize| u32::try_from(count).unwrap().to_be_bytes();
    match value {
        Value::Null => out.push(0xc0),
        Value::Bool(flag) => out.push(0xc2 + u8::from(*flag)),
        Value::Number(number) => {
            if let Some(n) = number.as_u64() {
                match n {
                    0..=0x7f => out.push(n as u8),
                    0x80..=0xff => out.extend([0xcc, n as u8]),
                    0x100..=0xffff => {
                        out.push(0xcd);
                        out.extend((n as u16).to_be_bytes());
                    }
                    _ => {
                        out.push(0xcf);
                        out.extend(n.to_be_bytes());
                    }
                }
            } else if let Some(n) = number.as_i64() {
                out.push(0xd3);
                out.extend(n.to_be_bytes());
            } else {
                out.push(0xcb);
                out.extend(number.as_f64().unwrap().to_be_bytes());
            }
        }
        Value::String(text) => {
            out.push(0xdb);
            out.extend(length(text.len()));
            out.extend(text.as_bytes());
        }
        Value::Array(items) => {
            out.push(0xdd);
            out.extend(length(items.len()));
            items.iter().for_each(|item| pack(item, out));
        }
        Value::Object(map) => {
            if let Some(hex) = map.get("$bytes") {
                let bytes = unhex(hex);
                out.push(0xc6);
                out.extend(length(bytes.len()));
                out.extend(bytes);
                return;
            }
            out.push(0xdf);
            out.extend(length(map.len()));
            for (key, item) in map {
                pack(&Value::from(key.as_str()), out);
                pack(item, out);
            }
        }
    }
}

fn packed(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    pack(value, &mut out);
    out
}

fn read(value: &Value) -> Result<KvBatch, KvError> {
    decode(&packed(value))
}

fn one(event: Value) -> KvEvent {
    let mut batch = read(&json!([1.5, [event]])).unwrap();
    assert_eq!(batch.unknown, 0);
    batch.events.remove(0)
}

fn stored(event: Value) -> Stored {
    match one(event) {
        KvEvent::Stored(stored) => stored,
        other => panic!("{other:?}"),
    }
}

#[test]
fn arrays_of_every_length_are_read() {
    // SGLang: five fields at first, a medium later; signed hashes.
    let event = stored(json!(["BlockStored", [-2, 3], -9, [1, 2, 3, 4], 2, null]));
    assert_eq!(event.hashes, [EngineHash(u64::MAX - 1), EngineHash(3)]);
    assert_eq!(event.parent, Some(EngineHash(u64::MAX - 8)));
    let blocks: Vec<_> = event.blocks().unwrap().collect();
    assert_eq!(
        blocks,
        [
            (EngineHash(u64::MAX - 1), [1, 2].as_slice()),
            (EngineHash(3), [3, 4].as_slice())
        ]
    );
    let event = stored(json!([
        "BlockStored",
        [5],
        null,
        [1],
        1,
        null,
        "CPU_PINNED"
    ]));
    assert_eq!((event.medium, event.parent), (Medium::Host, None));
    // More items than we know.
    let event = stored(json!([
        "BlockStored", [5], null, [1], 1, 7, "GPU", "a", [["a", "s"]], 1, "sliding_window", 64,
        "REMOTE", {"x": [1]}, 9
    ]));
    assert_eq!((event.lora_id, event.group), (Some(7), Some(1)));
    assert_eq!((event.kind, event.window), (GroupKind::Window, Some(64)));
    assert_eq!((event.salt(), event.remote), (Some("s"), true));
    assert_eq!(event.lora_name.as_deref(), Some("a"));
    assert_eq!(
        one(json!(["BlockRemoved", [1], "DISK", 2])),
        KvEvent::Removed(Removed {
            hashes: vec![EngineHash(1)],
            medium: Medium::Disk,
            group: Some(2),
            ..Removed::default()
        })
    );
    assert_eq!(one(json!(["AllBlocksCleared"])), KvEvent::Cleared);
}

#[test]
fn maps_are_read_in_any_order_and_with_unknown_keys() {
    let event = stored(json!({
        "future": {"deep": [[[1]], {"a": null}]}, "token_ids": [1, 70_000], "block_size": 2,
        "extra_keys": [[["cache_salt", "t"], ["mm", "pic", 3], ["lora", "x", "/p"], ["p2", -1]]],
        "block_hashes": [{"$bytes": "00000000000000ff"}], "type": "BlockStored"
    }));
    assert_eq!(event.hashes, [EngineHash(255)]);
    assert_eq!(event.salt(), Some("t"));
    let keys: Vec<ExtraKey> = event.extra.into_iter().map(|extra| extra.key).collect();
    let item = |id: &str, offset| ExtraKey::Item {
        id: id.into(),
        offset,
    };
    assert_eq!(
        keys,
        [
            ExtraKey::Salt("t".into()),
            item("pic", 3),
            ExtraKey::Adapter("x".into()),
            item("p2", -1)
        ]
    );
    assert_eq!(
        one(
            json!({"type": "BlockRemoved", "block_hashes": [1, 2], "remaining_copy_counts": [1, 0]})
        ),
        KvEvent::Removed(Removed {
            hashes: vec![EngineHash(1), EngineHash(2)],
            remaining: vec![1, 0],
            ..Removed::default()
        })
    );
    assert_eq!(one(json!({"type": "AllBlocksCleared"})), KvEvent::Cleared);
}

#[test]
fn extra_keys_that_are_not_understood_are_not_nothing() {
    let event = stored(json!({
        "type": "BlockStored", "block_hashes": [1, 2, 3], "token_ids": [1, 2, 3], "block_size": 1,
        "extra_keys": [null, [{"$bytes": "00"}], "x"]
    }));
    let blocks: Vec<(u32, ExtraKey)> = event.extra.into_iter().map(|e| (e.block, e.key)).collect();
    assert_eq!(blocks, [(1, ExtraKey::Other), (2, ExtraKey::Other)]);
}

#[test]
fn a_salt_spelt_like_the_adapter_stays() {
    let event = stored(json!({
        "type": "BlockStored", "block_hashes": [1], "token_ids": [1], "block_size": 1,
        "lora_name": "a", "extra_keys": [["a", "a"]]
    }));
    assert_eq!(event.salt(), Some("a"));
}

#[test]
fn drafting_pairs_count_by_their_first_token() {
    let event = stored(json!(["BlockStored", [5], null, [[1, 2], [2, 3]], 2, null]));
    assert_eq!(event.token_ids, [1, 2]);
}

#[test]
fn blocks_named_by_hash_alone_have_no_tokens() {
    let event = stored(json!({
        "type": "BlockStored", "block_hashes": [1], "token_ids": [], "block_size": 0,
        "medium": "CPU"
    }));
    assert!(event.blocks().is_none());
}

#[test]
fn unknown_events_are_counted_and_the_rest_is_used() {
    let batch = read(&json!([
        2, [["Moved", {"a": [1]}], {"type": "AllBlocksCleared"}, {"x": 1, "type": "Later"}], null, 5
    ]))
    .unwrap();
    assert_eq!((batch.unknown, batch.events.len()), (2, 1));
    assert_eq!((batch.ts, batch.rank), (2.0, None));
    let batch = read(&json!({"events": [], "attn_dp_rank": 3, "ts": 1.0})).unwrap();
    assert_eq!(batch.rank, Some(3));
    assert_eq!(read(&json!([1.0, [], 0])).unwrap().rank, Some(0));
}

#[test]
fn what_decides_identity_must_be_readable() {
    let field = |event: Value| match read(&json!([1.0, [event]])).unwrap_err() {
        KvError::Unexpected { field, .. } | KvError::Missing { field } => field,
        other => panic!("{other:?}"),
    };
    let with = |name: &str, value: Value| {
        let mut event = json!({"type": "BlockStored", "block_hashes": [1], "token_ids": [1]});
        event[name] = value;
        event
    };
    assert_eq!(field(with("block_hashes", json!(["x"]))), "block_hashes");
    assert_eq!(
        field(with("parent_block_hash", json!([]))),
        "parent_block_hash"
    );
    assert_eq!(field(with("token_ids", json!([-1]))), "token_ids");
    assert_eq!(field(with("lora_name", json!(5))), "lora_name");
    assert_eq!(field(with("extra_keys", json!("salt"))), "extra_keys");
    assert_eq!(field(with("block_size", json!(1.5))), "block_size");
    assert_eq!(field(with("type", json!(1))), "type");
    assert_eq!(field(json!({"type": "BlockRemoved"})), "block_hashes");
    assert_eq!(field(json!([])), "type");
    assert_eq!(field(json!(3)), "event");
    // What only describes may be anything.
    let event = stored(with("group_idx", json!(["?"])));
    assert_eq!(event.group, None);
}

#[test]
fn lengths_that_lie_are_refused_at_once() {
    // 2^32-1 events, hashes or levels promised by a few bytes.
    let huge = [0x92, 0x01, 0xdd, 0xff, 0xff, 0xff, 0xff];
    assert_eq!(decode(&huge), Err(KvError::Truncated { at: 7 }));
    let deep = [&[0x93, 0x01, 0x90], [0x91; 5_000].as_slice()].concat();
    assert!(matches!(decode(&deep), Err(KvError::Unexpected { .. })));
    let skipped = [
        &[0x94, 0x01, 0x90, 0xc0],
        [0xdd, 0xff, 0xff, 0xff, 0xff].as_slice(),
    ]
    .concat();
    assert!(matches!(decode(&skipped), Err(KvError::Truncated { .. })));
    let deep = [
        &[0x94, 0x01, 0x90, 0xc0],
        [0x91; 100_000].as_slice(),
        &[0xc0],
    ]
    .concat();
    assert_eq!(decode(&deep).unwrap().events, []);
    let mut more = packed(&json!([1.0, []]));
    more.push(0);
    assert!(matches!(decode(&more), Err(KvError::Trailing { .. })));
    assert_eq!(decode(&[]), Err(KvError::Truncated { at: 0 }));
    assert_eq!(decode(&[0x91, 0x01]).map(|b| b.ts), Ok(1.0));
    assert_eq!(decode(&[0x90]), Err(KvError::Missing { field: "ts" }));
}

#[test]
fn messages_are_taken_apart() {
    let seq = 7_u64.to_be_bytes();
    let message = live(&[b"t", &seq, b"p"]).unwrap();
    assert_eq!((message.topic, message.seq), (b"t".as_slice(), 7));
    assert_eq!(
        live(&[b"t", b"7", b"p"]),
        Err(KvError::Sequence { bytes: 1 })
    );
    assert_eq!(live(&[b"t", &seq]), Err(KvError::Frames { frames: 2 }));
    let end = [0xff; 8];
    let batch = |topic| Replayed::Batch {
        topic,
        seq: 7,
        payload: b"p",
    };
    assert_eq!(replayed(&[b"", b"t", &seq, b"p"]), Ok(batch(Some(b"t"))));
    assert_eq!(replayed(&[b"", &seq, b"p"]), Ok(batch(None)));
    assert_eq!(replayed(&[b"", b"", &end, b""]), Ok(Replayed::End));
    assert_eq!(replayed(&[b"", &end, b""]), Ok(Replayed::End));
    assert_eq!(replayed(&[b"x"]), Err(KvError::Frames { frames: 1 }));
    assert_eq!(replay_request(258), [0, 0, 0, 0, 0, 0, 1, 2]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&bytes);
        // The same behind a good beginning, so that events are reached.
        let _ = decode(&[&[0x92, 0x01, 0x91], bytes.as_slice()].concat());
    }

    #[test]
    fn broken_messages_are_refused_or_read(at in 0_usize..200, with in any::<u8>(), cut in 0_usize..200) {
        let mut bytes = packed(&json!([1.5, [
            {"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": 9, "token_ids": [1, 2, 3, 4],
             "block_size": 2, "extra_keys": [["a", ["mm", "x", 1]], null], "lora_name": "a"},
            ["BlockRemoved", [1], "GPU", 0]
        ], 0]));
        let at = at % bytes.len();
        bytes[at] = with;
        let _ = decode(&bytes);
        bytes.truncate(cut);
        prop_assert!(cut >= bytes.len() || decode(&bytes).is_err());
    }
}
