//! A text on its way to ids, and the ids: in the parts in which they are remembered.

use crate::pieces::{Pieces, Span};
use std::sync::Arc;

/// A text cut into parts, of which none is looked up yet.
pub(crate) struct Cut {
    pub(super) text: Pieces,
    pub(crate) parts: Vec<CutPart>,
    /// Whether the tokenizer's own tokens come around.
    pub(crate) special: bool,
}

/// A part of a text.
pub(crate) enum CutPart {
    /// An added token.
    Token(u32),
    /// What lies between two of them.
    Text {
        span: Span,
        /// What its ids are remembered by.
        key: u128,
        bytes: usize,
    },
}

/// A text on its way to ids: what is known, and what is left to do.
pub struct Plan {
    pub(super) text: Pieces,
    pub(super) parts: Vec<Part>,
    pub(super) missing_bytes: usize,
    /// Whether the tokenizer's own tokens come before, and behind.
    pub(super) around: (bool, bool),
}

pub(super) enum Part {
    Known(Known),
    /// Where the text is, and what its ids are remembered by.
    Missing(Span, u128),
}

/// Ids that follow one another.
#[derive(Clone, Debug)]
pub(super) enum Known {
    Token(u32),
    Text(Arc<[u32]>),
}

impl Known {
    fn ids(&self) -> &[u32] {
        match self {
            Self::Token(id) => std::slice::from_ref(id),
            Self::Text(ids) => ids,
        }
    }
}

impl Plan {
    /// Bytes of text that must be tokenised: the cost of [`super::Tokenizer::finish`] is some 40 ns
    /// for each with the fast encoder, and about 1 us with the reference alone.
    #[must_use]
    pub fn missing_bytes(&self) -> usize {
        self.missing_bytes
    }

    /// The first part that must be tokenised.
    pub(crate) fn first_missing(&self) -> Option<usize> {
        let missing = |part: &Part| matches!(part, Part::Missing(..));
        self.parts.iter().position(missing)
    }

    /// Bytes of the whole text.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        self.text.bytes()
    }
}

/// A prompt's token ids. Those of texts known before are shared, not copied.
#[derive(Clone, Debug)]
pub struct Ids {
    pub(super) parts: Vec<Known>,
    /// Parts that are the tokenizer's own tokens before the text.
    pub(super) before: usize,
}

impl Ids {
    /// How many.
    #[must_use]
    pub fn count(&self) -> usize {
        self.parts().map(<[u32]>::len).sum()
    }

    pub(crate) fn before(&self) -> usize {
        self.before
    }

    /// All of them in order, in parts.
    pub fn parts(&self) -> impl Iterator<Item = &[u32]> {
        self.parts.iter().map(Known::ids)
    }

    /// All of them in one list.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u32> {
        self.parts().flatten().copied().collect()
    }
}
