//! Messages by their frames, and what is asked of the replay endpoint.

use super::KvError;

/// Ends a replay: -1.
const END: u64 = u64::MAX;

/// A message of the live stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live<'a> {
    /// As the engine was told to name it.
    pub topic: &'a [u8],
    /// From 0 for each start of the engine.
    pub seq: u64,
    /// For [`super::decode`].
    pub payload: &'a [u8],
}

/// A message of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replayed<'a> {
    /// A batch again.
    Batch {
        /// Said by vLLM from 0.26.
        topic: Option<&'a [u8]>,
        /// Its number in the live stream.
        seq: u64,
        /// For [`super::decode`].
        payload: &'a [u8],
    },
    /// That was all.
    End,
}

/// Takes a live message apart.
///
/// # Errors
/// It has not three frames, or no sequence number.
pub fn live<'a>(frames: &[&'a [u8]]) -> Result<Live<'a>, KvError> {
    match *frames {
        [topic, seq, payload] => Ok(Live {
            topic,
            seq: sequence(seq)?,
            payload,
        }),
        _ => Err(KvError::Frames {
            frames: frames.len(),
        }),
    }
}

/// Takes a replayed message apart: `[empty, topic, seq, payload]` (vLLM from 0.26), or without the
/// topic (before, and SGLang).
///
/// # Errors
/// It has another form, or no sequence number.
pub fn replayed<'a>(frames: &[&'a [u8]]) -> Result<Replayed<'a>, KvError> {
    let (topic, seq, payload) = match *frames {
        [[], topic, seq, payload] => (Some(topic), seq, payload),
        [[], seq, payload] => (None, seq, payload),
        _ => {
            return Err(KvError::Frames {
                frames: frames.len(),
            });
        }
    };
    Ok(match sequence(seq)? {
        END => Replayed::End,
        seq => Replayed::Batch {
            topic,
            seq,
            payload,
        },
    })
}

/// The second frame of a request (the first is empty) for all that is buffered from `start`.
#[must_use]
pub fn replay_request(start: u64) -> [u8; 8] {
    start.to_be_bytes()
}

fn sequence(frame: &[u8]) -> Result<u64, KvError> {
    let bytes = frame
        .try_into()
        .map_err(|_| KvError::Sequence { bytes: frame.len() })?;
    Ok(u64::from_be_bytes(bytes))
}
