//! KV events: what an engine says it stored and dropped. vLLM's and SGLang's messages, pure.
//!
//! A message is three frames (topic, sequence number, payload); [`live`] and [`replayed`] take the
//! frames apart, [`decode`] reads the payload, [`Tracker`] says what a sequence number means.
//!
//! The payload is MessagePack: an array `[time, events, rank]` whose events are maps with a `type`
//! (vLLM from 0.24) or arrays that begin with it (vLLM up to 0.23, SGLang). Items and keys that we do
//! not know are skipped, those left out have their defaults, whole events of an unknown type are
//! counted. Whatever decides identity (hashes, tokens, adapter, extra keys) must be readable, or the
//! whole payload is refused: a block must never be believed under another one's name.

mod event;
mod frames;
mod msgpack;
mod sequence;
#[cfg(test)]
mod tests;

pub use event::decode;
pub use frames::{Live, Replayed, live, replay_request, replayed};
pub use sequence::{OnLive, OnReplay, Tracker};

/// Longest payload that is read, bytes. A step that stores 100,000 blocks of 16 tokens has about 7 MB.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 20;

/// An engine's own name for a block, opaque.
///
/// An integer is taken as it is (SGLang's are signed: the same 64 bits), of a byte string the last 8
/// bytes, big endian: exactly what vLLM itself does to make an integer of its digest, so both forms of
/// one block are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineHash(pub u64);

impl EngineHash {
    /// The name that a digest stands for.
    #[must_use]
    pub fn of_bytes(digest: &[u8]) -> Self {
        let tail = &digest[digest.len().saturating_sub(8)..];
        Self(
            tail.iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte)),
        )
    }
}

/// One step's events of one engine (or one data-parallel rank of it).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KvBatch {
    /// The engine's clock when it was made, seconds since 1970.
    pub ts: f64,
    /// The data-parallel rank that says so; absent is not rank 0.
    pub rank: Option<u32>,
    /// In the order they happened.
    pub events: Vec<KvEvent>,
    /// Events of types that we do not know, left out.
    pub unknown: u32,
}

/// Something that happened to an engine's blocks.
#[derive(Clone, Debug, PartialEq)]
pub enum KvEvent {
    /// Blocks can be found now.
    Stored(Stored),
    /// Blocks cannot be found any more.
    Removed(Removed),
    /// No block can be found any more.
    Cleared,
}

/// A run of blocks, each the child of the one before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The blocks, in order.
    pub hashes: Vec<EngineHash>,
    /// The block before the first; none: it begins a prompt.
    pub parent: Option<EngineHash>,
    /// Tokens of these blocks only. May be empty: some tiers name their blocks by hash alone.
    pub token_ids: Vec<u32>,
    /// Tokens per block.
    pub block_size: u32,
    /// The adapter's number, where there is one.
    pub lora_id: Option<u32>,
    /// The adapter's name, where there is one.
    pub lora_name: Option<Box<str>>,
    /// Where they are kept.
    pub medium: Medium,
    /// What else their hashes cover, by block, ascending; the adapter's name is left out.
    pub extra: Vec<Extra>,
    /// What else they cover was said, be it nothing. Where it was not (SGLang, vLLM before 0.17), a
    /// salted block looks like any other.
    pub says_extra: bool,
    /// The cache group; hybrid models have several, which share hashes.
    pub group: Option<u32>,
    /// What the group keeps.
    pub kind: GroupKind,
    /// Tokens of the group's window.
    pub window: Option<u32>,
    /// Kept in a place that is not this engine's own.
    pub remote: bool,
}

impl Stored {
    /// The tokens of each block, or nothing where they were not all said.
    #[must_use]
    pub fn blocks(&self) -> Option<impl Iterator<Item = (EngineHash, &[u32])>> {
        let size = self.block_size as usize;
        let whole = size > 0 && self.hashes.len().checked_mul(size) == Some(self.token_ids.len());
        whole.then(|| {
            let tokens = self.token_ids.chunks_exact(size.max(1));
            self.hashes.iter().copied().zip(tokens)
        })
    }

    /// The cache salt. The engine says it with a prompt's first block only, after the ids of media.
    #[must_use]
    pub fn salt(&self) -> Option<&str> {
        let first = self.extra.iter().take_while(|extra| extra.block == 0);
        let mut salt = None;
        for extra in first.filter(|_| self.parent.is_none()) {
            if let ExtraKey::Text(text) | ExtraKey::Salt(text) = &extra.key {
                salt = Some(&**text);
            }
        }
        salt
    }
}

/// Blocks that were dropped from one place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The blocks.
    pub hashes: Vec<EngineHash>,
    /// From where.
    pub medium: Medium,
    /// From which cache group.
    pub group: Option<u32>,
    /// Copies that are left of each block, in the order of `hashes`; empty: not said.
    pub remaining: Vec<u32>,
    /// From a place that is not this engine's own.
    pub remote: bool,
}

/// Where blocks are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Medium {
    /// The accelerator's memory (vLLM says "GPU" on a CPU, too). Also where nothing is said.
    #[default]
    Device,
    /// The host's memory.
    Host,
    /// A local disk.
    Disk,
    /// A store that several engines share.
    Shared,
    /// A name that we do not know.
    Other,
}

impl Medium {
    fn of(name: &[u8]) -> Self {
        let is = |start: &str| {
            let head = name.get(..start.len());
            head.is_some_and(|head| head.eq_ignore_ascii_case(start.as_bytes()))
        };
        if ["GPU", "DEVICE", "HBM", "NPU", "XPU", "TPU"]
            .into_iter()
            .any(is)
        {
            Self::Device
        } else if ["CPU", "HOST", "DRAM"].into_iter().any(is) {
            Self::Host
        } else if ["DISK", "FS", "SSD", "NVME", "FILE"].into_iter().any(is) {
            Self::Disk
        } else if ["OBJ", "REMOTE", "SHARED", "EXTERNAL", "S3"]
            .into_iter()
            .any(is)
        {
            Self::Shared
        } else {
            Self::Other
        }
    }
}

/// What a cache group keeps of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GroupKind {
    /// Not said: engines with one group need not.
    #[default]
    Unsaid,
    /// All of it: full or latent attention. This one decides whether a prefix is there.
    Full,
    /// The last tokens only.
    Window,
    /// A running state.
    State,
    /// A kind that we do not know.
    Other,
}

impl GroupKind {
    fn of(name: &[u8]) -> Self {
        match name {
            b"full_attention" | b"mla_attention" => Self::Full,
            b"sliding_window" | b"sliding_window_mla" | b"chunked_local_attention" => Self::Window,
            b"mamba" => Self::State,
            _ => Self::Other,
        }
    }
}

/// Something that a block's hash covers beside its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extra {
    /// Which block of the event, from 0.
    pub block: u32,
    /// What it covers.
    pub key: ExtraKey,
}

/// What a block's hash covers beside its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtraKey {
    /// A text without a name: on the first block of a prompt the cache salt, elsewhere a medium's id.
    Text(Box<str>),
    /// The cache salt.
    Salt(Box<str>),
    /// An adapter whose name is not the event's own.
    Adapter(Box<str>),
    /// A picture or the like.
    Item {
        /// Its content's id.
        id: Box<str>,
        /// Where it begins, tokens, as the engine counts it.
        offset: i64,
    },
    /// Something that we cannot read. A block with it must not be believed to be a plain one.
    Other,
}

/// Why a message cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// Longer than what is read.
    #[error("payload has {bytes} bytes; at most {PAYLOAD_BYTES_MAX} are read")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It promises more than it has.
    #[error("payload ends within a value, at byte {at}")]
    Truncated {
        /// Where.
        at: usize,
    },
    /// Something else stands where a field is.
    #[error("`{field}` must be {expected}, at byte {at}")]
    Unexpected {
        /// The field, by vLLM's name.
        field: &'static str,
        /// What it must be.
        expected: &'static str,
        /// Where.
        at: usize,
    },
    /// A field without default is not there.
    #[error("`{field}` is missing")]
    Missing {
        /// The field, by vLLM's name.
        field: &'static str,
    },
    /// More follows after the end.
    #[error("payload goes on after its end, at byte {at}")]
    Trailing {
        /// Where.
        at: usize,
    },
    /// No message has that many frames.
    #[error("message has {frames} frames")]
    Frames {
        /// How many.
        frames: usize,
    },
    /// The sequence number is none.
    #[error("sequence number has {bytes} bytes; it must have 8")]
    Sequence {
        /// Its length.
        bytes: usize,
    },
}
