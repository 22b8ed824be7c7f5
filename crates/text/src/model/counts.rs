//! What a model's text side did, for metrics.

use super::Fallback;
use crate::tokenizer::TokenizerCounts;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What was done since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextCounts {
    /// Requests tokenised.
    pub requests: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Requests that stayed on byte identity, by reason; all reasons, in a fixed order.
    pub fallbacks: Vec<(&'static str, u64)>,
    /// What the tokenizer and its memo did.
    pub tokenizer: TokenizerCounts,
}

#[derive(Default)]
pub(super) struct Counters {
    requests: AtomicU64,
    tokens: AtomicU64,
    fallbacks: [AtomicU64; Fallback::REASONS.len()],
}

impl Counters {
    pub(super) fn identified(&self, tokens: usize) {
        self.requests.fetch_add(1, Relaxed);
        self.tokens.fetch_add(tokens as u64, Relaxed);
    }

    pub(super) fn fell_back(&self, reason: &'static str) {
        let at = Fallback::REASONS.iter().position(|known| *known == reason);
        if let Some(count) = at.and_then(|at| self.fallbacks.get(at)) {
            count.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn read(&self, tokenizer: TokenizerCounts) -> TextCounts {
        let counts = self.fallbacks.iter().map(|count| count.load(Relaxed));
        TextCounts {
            requests: self.requests.load(Relaxed),
            tokens: self.tokens.load(Relaxed),
            fallbacks: Fallback::REASONS.into_iter().zip(counts).collect(),
            tokenizer,
        }
    }
}
