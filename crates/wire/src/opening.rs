//! The opening of a conversation: instructions, tools, first user message; and how far it has gone.

use crate::endpoint::Endpoint;
use crate::head::RequestHead;
use smallvec::SmallVec;

/// Raw spans of the body that make up a conversation's beginning.
#[derive(Clone, Debug, Default)]
pub struct Opening<'a> {
    /// System, developer and instruction texts, in order; string bodies without quotes.
    pub system: SmallVec<[&'a [u8]; 4]>,
    /// The raw `tools` value.
    pub tools: Option<&'a [u8]>,
    /// The first user message's texts and other parts.
    pub first_user: SmallVec<[&'a [u8]; 4]>,
    /// 1 for a first request; assistant messages in the history + 1.
    pub turn: u32,
    /// Prompts in a batch request beyond the first.
    pub extra_prompts: u32,
}

/// Reads the opening.
#[must_use]
pub fn read<'a>(_endpoint: Endpoint, _head: &RequestHead<'a>) -> Opening<'a> {
    Opening {
        turn: 1,
        ..Opening::default()
    }
}
