//! Held to recordings of real engines, where they are at hand.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

use maitred_wire::kv::*;
use serde_json::Value;
use std::path::PathBuf;

fn unhex(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap().as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap();
    let byte = |pair: &[u8]| u8::try_from(digit(pair[0]) << 4 | digit(pair[1])).unwrap();
    text.chunks_exact(2).map(byte).collect()
}

/// The lines of a recording; none where the recordings are not there.
fn recording(name: &str) -> Option<Vec<Value>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures");
    let Ok(text) = std::fs::read_to_string(path.join(name)) else {
        eprintln!("skipped: no recording {name}");
        return None;
    };
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    Some(lines.collect())
}

fn hash_of(value: &Value) -> EngineHash {
    match value.get("$bytes") {
        Some(hex) => EngineHash::of_bytes(&unhex(hex)),
        None => EngineHash(value.as_u64().unwrap()),
    }
}

fn hashes_of(value: &Value) -> Vec<EngineHash> {
    value.as_array().unwrap().iter().map(hash_of).collect()
}

/// What a decoded event says, from its JSON: an independent way to the same value.
fn event_of(event: &Value) -> KvEvent {
    let names: &[&str] = match event.get(0).and_then(Value::as_str) {
        Some("BlockRemoved") => &["type", "block_hashes", "medium", "group_idx"],
        _ => &[
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
        ],
    };
    let get = |name: &str| match event {
        Value::Array(items) => names
            .iter()
            .position(|n| *n == name)
            .and_then(|place| items.get(place))
            .cloned()
            .unwrap_or(Value::Null),
        map => map.get(name).cloned().unwrap_or(Value::Null),
    };
    let number = |name: &str| get(name).as_u64().map(|n| u32::try_from(n).unwrap());
    let medium = match get("medium").as_str() {
        Some("GPU") | None => Medium::Device,
        other => panic!("{other:?}"),
    };
    match get("type").as_str().unwrap() {
        "AllBlocksCleared" => KvEvent::Cleared,
        "BlockRemoved" => KvEvent::Removed(Removed {
            hashes: hashes_of(&get("block_hashes")),
            medium,
            group: number("group_idx"),
            ..Removed::default()
        }),
        "BlockStored" => {
            let lora_name = get("lora_name").as_str().map(Box::from);
            let mut extra = Vec::new();
            let blocks = get("extra_keys");
            for (block, keys) in blocks.as_array().into_iter().flatten().enumerate() {
                for key in keys.as_array().into_iter().flatten() {
                    let text: Box<str> = key.as_str().unwrap().into();
                    if Some(&text) != lora_name.as_ref() {
                        extra.push(Extra {
                            block: u32::try_from(block).unwrap(),
                            key: ExtraKey::Text(text),
                        });
                    }
                }
            }
            let tokens = get("token_ids");
            KvEvent::Stored(Stored {
                hashes: hashes_of(&get("block_hashes")),
                parent: Some(get("parent_block_hash"))
                    .filter(|p| !p.is_null())
                    .map(|p| hash_of(&p)),
                token_ids: tokens
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|t| u32::try_from(t.as_u64().unwrap()).unwrap())
                    .collect(),
                block_size: number("block_size").unwrap(),
                lora_id: number("lora_id"),
                lora_name,
                medium,
                extra,
                says_extra: !blocks.is_null(),
                group: number("group_idx"),
                kind: match get("kv_cache_spec_kind").as_str() {
                    Some("full_attention") => GroupKind::Full,
                    None => GroupKind::Unsaid,
                    other => panic!("{other:?}"),
                },
                ..Stored::default()
            })
        }
        other => panic!("{other}"),
    }
}

fn batch_of(decoded: &Value) -> KvBatch {
    KvBatch {
        ts: decoded[0].as_f64().unwrap(),
        rank: decoded[2].as_u64().map(|rank| u32::try_from(rank).unwrap()),
        events: decoded[1]
            .as_array()
            .unwrap()
            .iter()
            .map(event_of)
            .collect(),
        unknown: 0,
    }
}

#[test]
fn recordings_say_what_was_decoded() {
    let names = [
        "vllm-0.32.0/kv-events/int-hashes-sha256.jsonl",
        "vllm-0.32.0/kv-events/int-hashes-sha256_cbor.jsonl",
        "vllm-0.32.0/kv-events/bytes-hashes-sha256_cbor.jsonl",
        "vllm-older-encodings/events-0.11.0.jsonl",
        "vllm-older-encodings/events-0.16.0.jsonl",
        "vllm-older-encodings/events-0.23.0.jsonl",
        "vllm-older-encodings/events-0.24.0.jsonl",
        "vllm-older-encodings/events-0.26.0.jsonl",
    ];
    for name in names {
        for line in recording(name).into_iter().flatten() {
            let frames = [
                line["topic"].as_str().unwrap().as_bytes().to_vec(),
                unhex(&line["seq_hex"]),
                unhex(&line["payload_hex"]),
            ];
            let message = live(&[&frames[0], &frames[1], &frames[2]]).unwrap();
            assert_eq!(Some(message.seq), line["seq"].as_u64(), "{name}");
            let batch = decode(message.payload).unwrap();
            let mut expected = batch_of(&line["decoded"]);
            // The JSON reader is not exact in the last bit.
            assert!((expected.ts - batch.ts).abs() < 1e-6);
            expected.ts = batch.ts;
            assert_eq!(batch, expected, "{name} {}", message.seq);
            for event in &batch.events {
                if let KvEvent::Stored(stored) = event {
                    assert_eq!(stored.blocks().unwrap().count(), stored.hashes.len());
                }
            }
        }
    }
}

#[test]
fn both_forms_of_a_recorded_hash_are_one() {
    let first = |name: &str| {
        let lines = recording(name)?;
        let batch = decode(&unhex(&lines[0]["payload_hex"])).unwrap();
        match batch.events.first() {
            Some(KvEvent::Stored(stored)) => Some(stored.hashes.clone()),
            other => panic!("{other:?}"),
        }
    };
    let int = first("vllm-0.32.0/kv-events/int-hashes-sha256_cbor.jsonl");
    let bytes = first("vllm-0.32.0/kv-events/bytes-hashes-sha256_cbor.jsonl");
    assert_eq!(int, bytes);
}

#[test]
fn salts_and_adapters_are_found_in_recordings() {
    let name = "vllm-0.32.0/kv-events/int-hashes-sha256.jsonl";
    let Some(lines) = recording(name) else {
        return;
    };
    let mut salts = Vec::new();
    let mut adapters = Vec::new();
    for line in &lines {
        for event in decode(&unhex(&line["payload_hex"])).unwrap().events {
            if let KvEvent::Stored(stored) = event {
                salts.extend(stored.salt().map(str::to_owned));
                adapters.extend(stored.lora_name.clone());
                if stored.lora_name.is_some() {
                    assert_eq!(stored.extra, []);
                }
            }
        }
    }
    assert_eq!(salts, ["tenant-1"]);
    assert_eq!(adapters, ["lora-a".into(), "lora-b".into()]);
}

#[test]
fn a_recorded_replay_is_the_live_stream_again() {
    let live = recording("vllm-0.32.0/kv-events/int-hashes-sha256.jsonl");
    let again = recording("vllm-0.32.0/kv-events/replay-from-10.jsonl");
    let (Some(live), Some(again)) = (live, again) else {
        return;
    };
    let mut expected = 10;
    let mut ended = false;
    for line in &again {
        let frames: Vec<Vec<u8>> = line["frames_hex"]
            .as_array()
            .unwrap()
            .iter()
            .map(unhex)
            .collect();
        let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        assert!(!ended);
        match replayed(&frames).unwrap() {
            Replayed::Batch {
                topic,
                seq,
                payload,
            } => {
                let line = &live[expected as usize];
                assert_eq!(seq, expected);
                assert_eq!(topic, line["topic"].as_str().map(str::as_bytes));
                assert_eq!(payload, unhex(&line["payload_hex"]));
                expected += 1;
            }
            Replayed::End => ended = true,
        }
    }
    assert!(ended);
    assert_eq!(expected, 16);
}
