//! Token ids in bulk.

use super::{DIGIT_ZEROS, leading_digits, word_at};

/// The whole numbers in a JSON array, in order; nested arrays are taken as flat, signs are passed
/// over, and what does not fit wraps: ids are to be told apart, not to be counted with.
pub fn token_ids(raw: &[u8]) -> impl Iterator<Item = u32> {
    let mut at = 0;
    core::iter::from_fn(move || {
        while !raw.get(at)?.is_ascii_digit() {
            at += 1;
        }
        if let Some(word) = word_at(raw, at) {
            let digits = leading_digits(word);
            if digits < 8 {
                at += digits;
                return Some(of_digits(word, digits));
            }
        }
        let mut id = 0_u32;
        while let Some(digit) = raw.get(at).filter(|b| b.is_ascii_digit()) {
            id = id.wrapping_mul(10).wrapping_add(u32::from(digit - b'0'));
            at += 1;
        }
        Some(id)
    })
}

/// The number of the lowest `digits` (1 to 7) bytes, the lowest byte first: pairs, then fours, then
/// all eight at once.
fn of_digits(word: u64, digits: usize) -> u32 {
    let value = (word ^ DIGIT_ZEROS) << (64 - 8 * digits);
    let value = (value * 10 + (value >> 8)) & 0x00ff_00ff_00ff_00ff;
    let value = (value * 100 + (value >> 16)) & 0x0000_ffff_0000_ffff;
    let value = (value & 0xffff) * 10_000 + (value >> 32);
    value as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn ids_of_any_length_are_read(ids in prop::collection::vec(any::<u32>(), 0..20), shift in 0u32..31) {
            let ids: Vec<u32> = ids.iter().map(|id| id >> shift).collect();
            for text in [format!("{ids:?}"), format!("{ids:?}").replace(' ', "")] {
                prop_assert!(token_ids(text.as_bytes()).eq(ids.iter().copied()));
            }
        }
    }
}
