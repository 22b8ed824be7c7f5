//! An iterative JSON cursor over borrowed bytes: no recursion, no copies, no decoding of what is
//! not read.
//!
//! [`check`] walks a document once and proves its structure. After that, [`Value`]s are walked
//! without checking again: members, elements, text. The check remembers where long strings end, so
//! that the later walks step over a prompt instead of scanning it again.
//!
//! What the check leaves to the engine: UTF-8 and control characters inside strings, and escapes
//! that do not exist.

mod check;
mod decode;
mod value;

pub(crate) use check::Checker;
pub use check::check;
pub use decode::decode;
pub use value::{Elements, Members, Value};

/// Strings of at least this many bytes are remembered by [`check`].
const LONG_STRING_BYTES: usize = 64;

/// Words of eight bytes that are looked at before the call of the vector search is worth it.
const WORDS_BEFORE_SEARCH: usize = 4;

/// Where long strings lie: offsets of the first byte after the opening quote, and of the closing
/// quote; ascending.
pub type LongStrings = Vec<(u32, u32)>;

/// What is wrong with a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Something else than JSON at the offset.
    Syntax(usize),
    /// The bytes end within the document.
    Truncated(usize),
    /// A container deeper than the limit opens at the offset.
    TooDeep(usize),
}

impl Fault {
    /// The offset of the byte at which it was seen.
    #[must_use]
    pub fn offset(self) -> usize {
        match self {
            Self::Syntax(at) | Self::Truncated(at) | Self::TooDeep(at) => at,
        }
    }
}

/// Offset of the first quote or backslash at or after `at`.
fn find_special(bytes: &[u8], mut at: usize) -> Option<usize> {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    for _ in 0..WORDS_BEFORE_SEARCH {
        let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) else {
            break;
        };
        let word = u64::from_le_bytes(*word);
        let quote = word ^ (LOW * b'"' as u64);
        let slash = word ^ (LOW * b'\\' as u64);
        // The lowest bit set is exact: false hits of the trick lie above a true one only.
        let hits = ((quote.wrapping_sub(LOW) & !quote) | (slash.wrapping_sub(LOW) & !slash)) & HIGH;
        if hits != 0 {
            return Some(at + (hits.trailing_zeros() / 8) as usize);
        }
        at += 8;
    }
    memchr::memchr2(b'"', b'\\', bytes.get(at..)?).map(|n| at + n)
}

/// Offset of the closing quote of a string whose first byte is at `at`.
fn string_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let found = find_special(bytes, at)?;
        if bytes[found] == b'"' {
            return Some(found);
        }
        at = found + 2;
    }
}

fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\t' | b'\r') = bytes.get(at) {
        at += 1;
    }
    at
}
