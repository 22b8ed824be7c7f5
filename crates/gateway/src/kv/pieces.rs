//! Long batches in pieces, so that whoever applies them under a lock holds it shortly.

use maitred_wire::kv::{KvBatch, KvEvent, Removed, Stored};

/// Most blocks of one piece.
const BLOCKS_MAX: usize = 1_024;

/// Cuts a batch where it has too many blocks. In order, the pieces say what the whole says.
pub(super) fn pieces(batch: KvBatch) -> Vec<KvBatch> {
    cut(batch, BLOCKS_MAX)
}

fn cut(batch: KvBatch, most: usize) -> Vec<KvBatch> {
    let count: usize = batch.events.iter().map(blocks).sum();
    if count <= most {
        return vec![batch];
    }
    let (ts, rank) = (batch.ts, batch.rank);
    let piece = || KvBatch {
        ts,
        rank,
        ..KvBatch::default()
    };
    let mut pieces = vec![KvBatch {
        unknown: batch.unknown,
        ..piece()
    }];
    let mut room = most;
    for event in batch.events {
        let mut rest = Some(event);
        while let Some(event) = rest.take() {
            if room == 0 {
                pieces.push(piece());
                room = most;
            }
            let (head, tail) = split(event, room);
            room = room.saturating_sub(blocks(&head));
            if let Some(last) = pieces.last_mut() {
                last.events.push(head);
            }
            rest = tail;
        }
    }
    pieces
}

/// Blocks that an event names; one that names none costs as much as one.
fn blocks(event: &KvEvent) -> usize {
    match event {
        KvEvent::Stored(stored) => stored.hashes.len().max(1),
        KvEvent::Removed(removed) => removed.hashes.len().max(1),
        KvEvent::Cleared => 1,
    }
}

/// The first `at` blocks of an event, and the others if there are any.
fn split(event: KvEvent, at: usize) -> (KvEvent, Option<KvEvent>) {
    if blocks(&event) <= at {
        return (event, None);
    }
    match event {
        KvEvent::Stored(stored) => match split_stored(stored, at) {
            (head, Some(tail)) => (KvEvent::Stored(head), Some(KvEvent::Stored(tail))),
            (whole, None) => (KvEvent::Stored(whole), None),
        },
        KvEvent::Removed(mut head) => {
            let tail = Removed {
                hashes: head.hashes.split_off(at),
                remaining: head.remaining.split_off(at.min(head.remaining.len())),
                ..head
            };
            (KvEvent::Removed(head), Some(KvEvent::Removed(tail)))
        }
        KvEvent::Cleared => (KvEvent::Cleared, None),
    }
}

fn split_stored(mut head: Stored, at: usize) -> (Stored, Option<Stored>) {
    // Without tokens for every block there is no telling which are whose.
    let known = head.blocks().is_some();
    if !(known || head.token_ids.is_empty()) {
        return (head, None);
    }
    let tokens = if known {
        at * head.block_size as usize
    } else {
        0
    };
    let block = u32::try_from(at).unwrap_or(u32::MAX);
    let place = head.extra.partition_point(|extra| extra.block < block);
    let mut extra = head.extra.split_off(place);
    for extra in &mut extra {
        extra.block -= block;
    }
    let hashes = head.hashes.split_off(at);
    let token_ids = head.token_ids.split_off(tokens);
    let tail = Stored {
        parent: head.hashes.last().copied(),
        hashes,
        token_ids,
        extra,
        lora_name: head.lora_name.clone(),
        ..head
    };
    (head, Some(tail))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::cut;
    use maitred_wire::kv::{EngineHash, Extra, ExtraKey, KvBatch, KvEvent, Removed, Stored};

    #[test]
    fn pieces_say_what_the_whole_says() {
        let batch = KvBatch {
            ts: 1.0,
            rank: Some(3),
            unknown: 2,
            events: vec![
                KvEvent::Stored(Stored {
                    hashes: (1..=5).map(EngineHash).collect(),
                    parent: Some(EngineHash(9)),
                    token_ids: (0..10).collect(),
                    block_size: 2,
                    lora_name: Some("a".into()),
                    extra: vec![Extra {
                        block: 3,
                        key: ExtraKey::Other,
                    }],
                    ..Stored::default()
                }),
                KvEvent::Cleared,
                KvEvent::Removed(Removed {
                    hashes: (1..=3).map(EngineHash).collect(),
                    remaining: vec![1, 0, 2],
                    ..Removed::default()
                }),
            ],
        };
        let pieces = cut(batch.clone(), 2);
        let counts: Vec<usize> = pieces.iter().map(|piece| piece.events.len()).collect();
        assert_eq!(counts, [1, 1, 2, 1, 1]);
        assert_eq!(pieces[0].unknown, 2);
        assert!(pieces.iter().all(|piece| piece.rank == Some(3)));
        let stored: Vec<&Stored> = pieces
            .iter()
            .flat_map(|piece| &piece.events)
            .filter_map(|event| match event {
                KvEvent::Stored(stored) => Some(stored),
                _ => None,
            })
            .collect();
        let parents: Vec<_> = stored.iter().map(|s| s.parent.unwrap().0).collect();
        assert_eq!(parents, [9, 2, 4]);
        assert_eq!(stored[1].token_ids, [4, 5, 6, 7]);
        assert_eq!(stored[1].extra[0].block, 1);
        assert_eq!(stored[2].lora_name.as_deref(), Some("a"));
        let KvEvent::Removed(last) = &pieces[4].events[0] else {
            panic!("{pieces:?}");
        };
        assert_eq!(
            (last.hashes.len(), last.remaining.as_slice()),
            (1, [2].as_slice())
        );
        assert_eq!(cut(batch.clone(), 9), [batch]);
    }
}
