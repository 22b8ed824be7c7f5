//! Bytes of rendering per prompt token, learnt from what engines report.
//!
//! Formula: `ratio += (sample - ratio) / 16` with `sample = bytes / tokens` of a finished attempt,
//! clamped to 0.5..16. Prior: 4.0, the usual figure for English text and BPE tokenizers.

use crate::request::{Arrival, Identity};

const PRIOR: f64 = 4.0;
const WEIGHT: f64 = 1.0 / 16.0;
const LEAST: f64 = 0.5;
const MOST: f64 = 16.0;

/// The pool's learnt ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BytesPerToken(f64);

impl BytesPerToken {
    /// Nothing learnt yet.
    pub(crate) fn new() -> Self {
        Self(PRIOR)
    }

    /// Bytes per token.
    pub(crate) fn get(self) -> f64 {
        self.0
    }

    /// A prompt of that many bytes was that many tokens. Nothing is learnt from empty prompts.
    pub(crate) fn learn(&mut self, bytes: u64, tokens: u32) {
        if bytes > 0 && tokens > 0 {
            let sample = (bytes as f64 / f64::from(tokens)).clamp(LEAST, MOST);
            self.0 += (sample - self.0) * WEIGHT;
        }
    }

    /// Tokens of that many bytes, rounded up.
    pub(crate) fn tokens(self, bytes: u64) -> u32 {
        let tokens = libm::ceil(bytes as f64 / self.0);
        if tokens >= f64::from(u32::MAX) {
            u32::MAX
        } else {
            tokens as u32
        }
    }

    /// Blocks of `block_bytes` that hold that many tokens; at least 1.
    pub(crate) fn blocks(self, tokens: u64, block_bytes: u32) -> u64 {
        let blocks = tokens as f64 * self.0 / f64::from(block_bytes.max(1));
        (blocks as u64).max(1)
    }
}

/// Tokens of the first `blocks` blocks of the guest's chain, in proportion to the whole prompt:
/// by bytes under byte identity, by blocks under token identity.
pub(crate) fn leading_tokens(
    guest: &Arrival,
    prompt_tokens: u32,
    blocks: u32,
    block_bytes: u32,
) -> u32 {
    let (part, whole) = match guest.identity {
        Identity::Bytes => (
            u64::from(blocks) * u64::from(block_bytes),
            guest.prompt_bytes,
        ),
        Identity::Tokens => (u64::from(blocks), guest.chain.len() as u64),
    };
    if whole == 0 || part == 0 {
        return 0;
    }
    let part = part.min(whole);
    // Asked once per candidate: the short division wherever the product fits.
    match u64::from(prompt_tokens).checked_mul(part) {
        Some(product) => (product / whole) as u32,
        None => (u128::from(prompt_tokens) * u128::from(part) / u128::from(whole)) as u32,
    }
}

/// The inverse of [`leading_tokens`]: full blocks among the first `tokens` of `prompt_tokens`.
pub(crate) fn leading_blocks(
    guest: &Arrival,
    prompt_tokens: u32,
    tokens: u32,
    block_bytes: u32,
) -> u32 {
    if prompt_tokens == 0 {
        return 0;
    }
    let (whole, unit) = match guest.identity {
        Identity::Bytes => (guest.prompt_bytes, u64::from(block_bytes.max(1))),
        Identity::Tokens => (guest.chain.len() as u64, 1),
    };
    let part =
        u128::from(whole) * u128::from(tokens.min(prompt_tokens)) / u128::from(prompt_tokens);
    let blocks = part / u128::from(unit);
    blocks.min(guest.chain.len() as u128) as u32
}

#[cfg(test)]
mod tests {
    use super::BytesPerToken;

    #[test]
    fn learns_by_a_sixteenth_and_rounds_tokens_up() {
        let mut ratio = BytesPerToken::new();
        assert_eq!(ratio.tokens(10), 3);
        ratio.learn(200, 100);
        assert!((ratio.get() - 3.875).abs() < 1e-12, "4 + (2 - 4) / 16");
        ratio.learn(0, 5);
        ratio.learn(5, 0);
        assert!((ratio.get() - 3.875).abs() < 1e-12);
        ratio.learn(1_000_000, 1);
        assert!((ratio.get() - (3.875 + (16.0 - 3.875) / 16.0)).abs() < 1e-12);
    }

    #[test]
    fn blocks_of_a_cache() {
        assert_eq!(BytesPerToken::new().blocks(1_600, 64), 100);
        assert_eq!(BytesPerToken::new().blocks(1, 64), 1);
    }
}
