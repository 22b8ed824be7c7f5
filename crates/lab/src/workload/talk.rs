//! One conversation as it grows: an opening that others have too, then text of its own.

use maitred_core::ids::TenantId;

use crate::plan::{Begin, PlanBuilder, Planned, Span};

/// Ids kept for one conversation's own blocks: more than the longest has.
const OWN_BLOCKS: u64 = 1 << 24;

/// Text that several conversations begin with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    first: u64,
    tokens: u32,
}

impl Opening {
    pub(super) fn new(builder: &mut PlanBuilder, tokens: u32) -> Self {
        let blocks = u64::from(tokens / builder.block());
        Self {
            first: builder.fresh(blocks),
            tokens,
        }
    }
}

/// See the module.
pub(super) struct Talk {
    pub(super) tenant: TenantId,
    pub(super) group: u16,
    opening: Opening,
    own: u64,
    /// All tokens of the conversation so far.
    tokens: u32,
}

impl Talk {
    /// Begins a session.
    pub(super) fn new(
        builder: &mut PlanBuilder,
        tenant: TenantId,
        group: u16,
        opening: Opening,
    ) -> Self {
        builder.session();
        Self {
            tenant,
            group,
            opening,
            own: builder.fresh(OWN_BLOCKS),
            tokens: opening.tokens,
        }
    }

    pub(super) fn tokens(&self) -> u32 {
        self.tokens
    }

    /// All but the opening is replaced by so much text that nobody has seen: a summary.
    pub(super) fn replace(&mut self, builder: &mut PlanBuilder, tokens: u32) {
        self.own = builder.fresh(OWN_BLOCKS);
        self.tokens = self.opening.tokens + tokens;
    }

    /// Adds a turn: `new` tokens of input, then an answer of `output` tokens, which stays in the conversation.
    pub(super) fn turn(
        &mut self,
        builder: &mut PlanBuilder,
        begin: Begin,
        new: u32,
        output: u32,
    ) -> u32 {
        self.tokens = self.tokens.saturating_add(new).max(1);
        let block = builder.block();
        let shared = self.opening.tokens / block;
        let own = self.tokens / block - shared;
        let spans = [(self.opening.first, shared), (self.own, own)];
        let spans = spans.into_iter().filter(|(_, count)| *count > 0);
        let at = builder.turn(Planned {
            session: 0,
            turn: 0,
            tenant: self.tenant,
            group: self.group,
            spans: spans.map(|(first, count)| Span { first, count }).collect(),
            prompt_tokens: self.tokens,
            output_tokens: output,
            begin,
            also: Box::default(),
        });
        self.tokens = self.tokens.saturating_add(output);
        at
    }
}
