//! What reading KV events costs, a block.
//!
//! `cargo bench -p maitred-wire --bench kv_events -- --warm-up-time 1 --measurement-time 2`
#![allow(missing_docs)] // criterion makes items

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use maitred_wire::kv::decode;
use std::hint::black_box;

const BLOCK: usize = 16;

fn text(value: &str, out: &mut Vec<u8>) {
    out.push(0xa0 | value.len() as u8);
    out.extend(value.as_bytes());
}

fn array(length: usize, out: &mut Vec<u8>) {
    out.push(0xdd);
    out.extend((length as u32).to_be_bytes());
}

fn hash(number: u64, long: bool, out: &mut Vec<u8>) {
    let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63;
    if long {
        out.extend([0xc4, 32]);
        out.extend([7; 24]);
    } else {
        out.push(0xcf);
    }
    out.extend(number.to_be_bytes());
}

/// A payload that stores `events` runs of `blocks` blocks, as vLLM writes it now.
fn storing(events: usize, blocks: usize, long: bool) -> Vec<u8> {
    let mut out = vec![0x93, 0xcb];
    out.extend(1.5e9_f64.to_be_bytes());
    array(events, &mut out);
    for event in 0..events {
        out.push(0x8b);
        text("type", &mut out);
        text("BlockStored", &mut out);
        text("block_hashes", &mut out);
        array(blocks, &mut out);
        for block in 0..blocks {
            hash((event * blocks + block) as u64, long, &mut out);
        }
        text("parent_block_hash", &mut out);
        out.push(0xc0);
        text("token_ids", &mut out);
        array(blocks * BLOCK, &mut out);
        for token in 0..blocks * BLOCK {
            // As large a vocabulary as they come: most ids take 5 bytes, many take 3.
            let token = (token as u32).wrapping_mul(2_654_435_761) % 200_000;
            match u16::try_from(token) {
                Ok(token) => {
                    out.push(0xcd);
                    out.extend(token.to_be_bytes());
                }
                Err(_) => {
                    out.push(0xce);
                    out.extend(token.to_be_bytes());
                }
            }
        }
        text("block_size", &mut out);
        out.push(BLOCK as u8);
        for (name, value) in [
            ("lora_id", None),
            ("medium", Some("GPU")),
            ("lora_name", None),
        ] {
            text(name, &mut out);
            match value {
                Some(value) => text(value, &mut out),
                None => out.push(0xc0),
            }
        }
        text("extra_keys", &mut out);
        array(blocks, &mut out);
        out.extend(std::iter::repeat_n(0xc0, blocks));
        text("group_idx", &mut out);
        out.push(0);
        text("kv_cache_spec_kind", &mut out);
        text("full_attention", &mut out);
    }
    out.push(0);
    out
}

/// A payload that removes `events` blocks, one by one, as vLLM does.
fn removing(events: usize) -> Vec<u8> {
    let mut out = vec![0x93, 0xcb];
    out.extend(1.5e9_f64.to_be_bytes());
    array(events, &mut out);
    for event in 0..events {
        out.push(0x84);
        text("type", &mut out);
        text("BlockRemoved", &mut out);
        text("block_hashes", &mut out);
        array(1, &mut out);
        hash(event as u64, false, &mut out);
        text("medium", &mut out);
        text("GPU", &mut out);
        text("group_idx", &mut out);
        out.push(0);
    }
    out.push(0);
    out
}

fn benches(c: &mut Criterion) {
    let mut group = c.benchmark_group("kv_events");
    for (name, blocks, payload) in [
        ("stored_1024_in_1", 1_024, storing(1, 1_024, false)),
        ("stored_1024_in_1_bytes", 1_024, storing(1, 1_024, true)),
        ("stored_1024_in_32", 1_024, storing(32, 32, false)),
        ("stored_1024_in_1024", 1_024, storing(1_024, 1, false)),
        ("removed_1024_in_1024", 1_024, removing(1_024)),
    ] {
        assert!(decode(&payload).is_ok());
        group.throughput(Throughput::Elements(blocks));
        group.bench_function(name, |b| b.iter(|| decode(black_box(&payload))));
    }
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
