//! The toy tokenizer: a pure, reversible function between text and token ids.
//!
//! A token is up to four bytes of text, cut on character borders, and its id is those bytes: so a prompt has about
//! bytes / 4 tokens. Special tokens (role marks) end in a byte that no UTF-8 text contains and never equal text.
//! Each message is cut from its own beginning, so a conversation's earlier turns stay a prefix of its later ones, and
//! the text a reply was sent as comes back as the ids it was generated with.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Most bytes in one token.
const PIECE: usize = 4;
/// Last byte of every special token; never occurs in UTF-8.
const SPECIAL: u8 = 0xFF;

/// Appends the ids of `text`.
pub fn push_text(text: &str, out: &mut Vec<u32>) {
    out.reserve(text.len() / PIECE + 1);
    let mut rest = text;
    while !rest.is_empty() {
        let mut end = rest.len().min(PIECE);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (piece, tail) = rest.split_at(end);
        let mut id = [0_u8; PIECE];
        id[..piece.len()].copy_from_slice(piece.as_bytes());
        out.push(u32::from_le_bytes(id));
        rest = tail;
    }
}

/// The id of the mark `<|name|>`.
#[must_use]
pub fn special(name: &str) -> u32 {
    let hash = xxh3_64(name.as_bytes()).to_le_bytes();
    u32::from_le_bytes([hash[0], hash[1], hash[2], SPECIAL])
}

/// The text of `ids`; special and foreign ids show as the replacement character.
#[must_use]
pub fn text_of(ids: &[u32]) -> String {
    let mut text = String::with_capacity(ids.len() * PIECE);
    for id in ids {
        let bytes = id.to_le_bytes();
        let used = bytes.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
        match std::str::from_utf8(&bytes[..used]) {
            Ok(piece) => text.push_str(piece),
            Err(_) => text.push('\u{FFFD}'),
        }
    }
    text
}

/// The `index`-th token of the reply drawn from `seed`: three letters and a space, or a full stop at the end.
///
/// Always four bytes, so that the reply's text is cut into the same tokens when it comes back in the history.
#[must_use]
pub fn generated(seed: u64, index: u64, last: bool) -> u32 {
    let draw = xxh3_64_with_seed(&index.to_le_bytes(), seed);
    let consonant = |bits: u64| b"bdfgklmnprstvz"[(bits % 14) as usize];
    let vowel = b"aeiou"[((draw >> 8) % 5) as usize];
    let end = if last { b'.' } else { b' ' };
    u32::from_le_bytes([consonant(draw), vowel, consonant(draw >> 16), end])
}

/// The seed of a reply: equal prompts give equal replies, as at temperature 0.
#[must_use]
pub fn reply_seed(prompt: &[u32], choice: u64) -> u64 {
    prompt.iter().fold(choice, |seed, id| {
        (seed ^ u64::from(*id))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(29)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn text_comes_back(text in "[^\0]{0,80}") {
            let mut ids = Vec::new();
            push_text(&text, &mut ids);
            prop_assert_eq!(text_of(&ids), text);
        }
    }

    #[test]
    fn a_reply_is_cut_as_it_was_generated() {
        let reply: Vec<u32> = (0..9).map(|i| generated(7, i, i == 8)).collect();
        let mut again = Vec::new();
        push_text(text_of(&reply).trim(), &mut again);
        assert_eq!(again, reply);
    }

    #[test]
    fn four_bytes_a_token_and_marks_are_no_text() {
        let mut ids = Vec::new();
        push_text("abcdefgh", &mut ids);
        assert_eq!(ids.len(), 2);
        assert!(special("user") != special("assistant"));
        assert_eq!(text_of(&[special("user")]), "\u{FFFD}");
    }
}
