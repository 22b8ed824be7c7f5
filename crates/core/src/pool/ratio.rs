//! Bytes of rendering per prompt token, learnt from what engines report.
//!
//! Formula: `ratio += (sample - ratio) / 16` with `sample = bytes / tokens` of a finished attempt,
//! clamped to 0.5..16. Prior: 4.0, the usual figure for English text and BPE tokenizers.

use crate::request::{Arrival, Identity};
use crate::scheduler::PoolConfig;

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

/// Tokens of the first `blocks` blocks of the guest's chain. Under token identity a block is
/// `token_block` tokens, neither more nor less; under byte identity they are the share of the prompt's
/// tokens that the blocks have of its bytes.
pub(crate) fn leading_tokens(
    guest: &Arrival,
    prompt_tokens: u32,
    blocks: u32,
    config: &PoolConfig,
) -> u32 {
    let bytes = match guest.identity {
        Identity::Tokens => return blocks.saturating_mul(config.token_block).min(prompt_tokens),
        Identity::Bytes => u64::from(blocks) * u64::from(config.block_bytes),
    };
    let whole = guest.prompt_bytes;
    if whole == 0 {
        return 0;
    }
    let part = bytes.min(whole);
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
    config: &PoolConfig,
) -> u32 {
    let tokens = tokens.min(prompt_tokens);
    let blocks = match guest.identity {
        Identity::Tokens => u128::from(tokens / config.token_block.max(1)),
        Identity::Bytes if prompt_tokens == 0 => 0,
        Identity::Bytes => {
            let bytes =
                u128::from(guest.prompt_bytes) * u128::from(tokens) / u128::from(prompt_tokens);
            bytes / u128::from(config.block_bytes.max(1))
        }
    };
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
