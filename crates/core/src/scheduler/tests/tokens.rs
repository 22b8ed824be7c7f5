//! Token identity: tokens of a block are counted, not reckoned.

use super::*;

/// Chains are over tokens, 16 of them in a block.
fn counted() -> PoolConfig {
    PoolConfig {
        identity: Identity::Tokens,
        ..config()
    }
}

/// A prompt of `blocks` full blocks and some tokens more. Its text has nothing to do with them.
fn in_tokens(id: u64, blocks: u64, more: u32) -> Arrival {
    Arrival {
        identity: Identity::Tokens,
        prompt_tokens: Some(16 * blocks as u32 + more),
        prompt_bytes: 7,
        ..long_guest(id, 7, blocks)
    }
}

fn usage(prompt: u32, cached: u32) -> Usage {
    Usage {
        prompt_tokens: Some(prompt),
        cached_tokens: Some(cached),
        output_tokens: None,
    }
}

fn answered(table: &mut Table, id: u64, usage: Usage) {
    table.send(Input::Finished {
        attempt: first(id),
        usage,
        served: true,
    });
}

#[test]
fn matched_tokens_are_blocks_of_tokens_whatever_the_text() {
    let mut table = Table::new(counted(), 1, Seats::default());
    assert_eq!(table.seat(in_tokens(1, 10, 3)).predicted_cached_tokens, 0);
    // 10 of 40 blocks: 160 of 645 tokens, not the share of the prompt (161).
    let decision = table.seat(in_tokens(2, 40, 5));
    assert_eq!(decision.predicted_cached_tokens, 160);
    assert_eq!(decision.prompt_tokens, 645);
    let view = &table.scheduler.workers(table.now)[0];
    // 163 of the first, and 645 less 160.
    assert_eq!(view.prefill_tokens, 163 + 485);
    // The client's own ids of another block size than the prompt's tokens say: never more than all.
    let short = Arrival {
        prompt_tokens: Some(100),
        ..in_tokens(3, 10, 0)
    };
    assert_eq!(table.seat(short).predicted_cached_tokens, 100);
}

#[test]
fn what_the_engine_found_is_counted_in_blocks_of_tokens() {
    let mut table = Table::new(counted(), 1, Seats::default());
    table.seat(in_tokens(1, 40, 0));
    answered(&mut table, 1, usage(640, 0));
    // A sibling: 30 blocks as before, then others. 480 tokens are believed to be there, 111 are.
    let mut sibling = in_tokens(2, 35, 0);
    for block in &mut sibling.chain[30..] {
        *block += 1_000;
    }
    assert_eq!(table.seat(sibling).predicted_cached_tokens, 480);
    answered(&mut table, 2, usage(560, 111));
    // Beyond block 6 all was lost; the sibling's own 30 common ones were computed again.
    assert_eq!(table.seat(in_tokens(3, 40, 0)).predicted_cached_tokens, 480);
    let view = &table.scheduler.workers(table.now)[0];
    assert_eq!(view.believed_blocks, 35 + 10);
}

#[test]
fn a_cache_holds_its_tokens_in_blocks_of_tokens() {
    let seats = Seats {
        kv_tokens: Some(800),
        ..Seats::default()
    };
    let mut config = counted();
    config.token_block = 32;
    let mut table = Table::new(config, 1, seats);
    table.settle(in_tokens(1, 30, 0));
    // 800 tokens are 25 blocks of 32; by bytes they would be 50.
    assert_eq!(table.scheduler.workers(table.now)[0].believed_blocks, 25);
}

#[test]
fn bytes_per_token_are_learnt_from_texts_alone() {
    let mut table = Table::new(counted(), 1, Seats::default());
    table.seat(in_tokens(1, 40, 0));
    answered(&mut table, 1, usage(640, 0));
    assert!((table.scheduler.bytes_per_token() - 4.0).abs() < 1e-12);
    table.seat(long_guest(2, 8, 40));
    // 2,560 bytes in 1,280 tokens: 2 each, learnt by a sixteenth.
    answered(&mut table, 2, usage(1_280, 0));
    assert!((table.scheduler.bytes_per_token() - 3.875).abs() < 1e-12);
}
