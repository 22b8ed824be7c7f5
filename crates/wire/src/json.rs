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
mod numbers;
mod value;

pub(crate) use check::Checker;
pub use check::check;
pub use decode::decode;
pub use numbers::token_ids;
pub use value::{Elements, Members, Value};

/// Strings of at least this many bytes are remembered by [`check`].
const LONG_STRING_BYTES: usize = 64;

/// Words of eight bytes that are looked at before the call of the vector search is worth it.
const WORDS_BEFORE_SEARCH: usize = 2;

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

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;
/// Eight times `0`, and eight quotes.
const DIGIT_ZEROS: u64 = LOW * 0x30;
const QUOTES: u64 = LOW * 0x22;

/// The eight bytes at `at`, the first of them lowest.
fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*word))
}

/// How many of a word's bytes, from the lowest, are digits without a gap.
fn leading_digits(word: u64) -> usize {
    // A byte b is a digit where b ^ '0' is at most 9; the sum sets the high bit of the others, and
    // carries reach only bytes above one that is no digit.
    let nibbles = word ^ DIGIT_ZEROS;
    let others = (nibbles | nibbles.wrapping_add(LOW * 0x76)) & HIGH;
    (others.trailing_zeros() / 8) as usize
}

/// Offset of the first quote at or after `at`.
fn find_quote(bytes: &[u8], mut at: usize) -> Option<usize> {
    for _ in 0..WORDS_BEFORE_SEARCH {
        let Some(word) = word_at(bytes, at) else {
            break;
        };
        let quote = word ^ QUOTES;
        // The lowest bit set is exact: false hits of the trick lie above a true one only.
        let hits = quote.wrapping_sub(LOW) & !quote & HIGH;
        if hits != 0 {
            return Some(at + (hits.trailing_zeros() / 8) as usize);
        }
        at += 8;
    }
    memchr::memchr(b'"', bytes.get(at..)?).map(|n| at + n)
}

/// Offset of the closing quote of a string whose first byte is at `start`: the first quote with an
/// even number of backslashes before it. Other escapes do not stop the search, so text full of
/// them is as fast as plain text.
fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut from = start;
    loop {
        let found = find_quote(bytes, from)?;
        let before = bytes.get(from..found)?;
        let slashes = before.iter().rev().take_while(|b| **b == b'\\').count();
        if slashes % 2 == 0 {
            return Some(found);
        }
        from = found + 1;
    }
}

fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\t' | b'\r') = bytes.get(at) {
        at += 1;
    }
    at
}
