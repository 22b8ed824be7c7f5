//! What an engine says it read and wrote. Unknown is not zero.

/// Token counts of one answer, as far as the engine said them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireUsage {
    /// All prompt tokens, cached ones included.
    pub prompt_tokens: Option<u32>,
    /// Prompt tokens served from cache.
    pub cached_tokens: Option<u32>,
    /// Tokens of the answer.
    pub output_tokens: Option<u32>,
}
