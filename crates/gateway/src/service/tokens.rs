//! From byte identity to token identity, where the pool has a tokenizer.

use super::admit::Admitted;
use crate::pool::Pool;
use maitred_core::Arrival;
use maitred_core::request::Identity;
use maitred_text::{ChainPlan, Cutting, Fallback, TokenChain};
use maitred_wire::{Endpoint, RequestHead};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a request's identity came about: a metric's label, and in records where a tokenizer was there
/// and could not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Rendered and tokenised.
    Rendered,
    /// The client sent token ids.
    ClientIds,
    /// The pool has no tokenizer.
    NotConfigured,
    /// The body was not read.
    Unread,
    /// Why it stays on bytes: one of `Fallback::REASONS`.
    Fallback(&'static str),
}

impl Origin {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Rendered => "rendered",
            Self::ClientIds => "client_ids",
            Self::NotConfigured => "not_configured",
            Self::Unread => "unread",
            Self::Fallback(reason) => reason,
        }
    }

    /// What records say.
    pub(crate) fn fallback(self) -> Option<&'static str> {
        match self {
            Self::Fallback(reason) => Some(reason),
            _ => None,
        }
    }
}

/// Tokenising that is left for another thread.
pub(crate) struct Pending {
    plan: ChainPlan,
    spent: Duration,
}

/// Whether the identity may come to be one in tokens.
pub(super) fn expected(pool: &Pool, endpoint: Endpoint) -> bool {
    let rendered = [Endpoint::Chat, Endpoint::Completions, Endpoint::Tokenize];
    pool.text.is_some() && rendered.contains(&endpoint)
}

/// Renders, and tokenises what little is new; more is left pending.
pub(super) fn begin(
    pool: &Pool,
    endpoint: Endpoint,
    head: &RequestHead<'_>,
    scope: u64,
    arrival: &mut Arrival,
) -> (Origin, Option<Pending>) {
    if arrival.identity == Identity::Tokens {
        return (Origin::ClientIds, None);
    }
    let Some(text) = &pool.text else {
        return (Origin::NotConfigured, None);
    };
    let start = Instant::now();
    let cutting = Cutting {
        scope,
        token_block: pool.settings.core.token_block as usize,
    };
    let plan = match text.model.plan_chain(endpoint, head, text.now(), cutting) {
        Ok(plan) => plan,
        Err(why) => return (Origin::Fallback(why.reason()), None),
    };
    if plan.missing_bytes() > text.inline_max() {
        let spent = start.elapsed();
        let pending = Pending { plan, spent };
        // Until it is done.
        return (Origin::Fallback("busy"), Some(pending));
    }
    let origin = match text.model.chain(plan) {
        Ok(found) => {
            put(arrival, found);
            pool.metrics.tokenised(start.elapsed());
            Origin::Rendered
        }
        Err(why) => Origin::Fallback(why.reason()),
    };
    (origin, None)
}

/// Tokenises what is pending, off this thread. Where too many do, the request stays on bytes.
pub(super) async fn finish(admitted: &mut Admitted) {
    let (Some(pending), Some(text)) = (admitted.pending.take(), admitted.pool.text.clone()) else {
        return;
    };
    let Some(place) = text.places.take().await else {
        text.model.count_busy();
        return;
    };
    let Pending { plan, spent } = pending;
    let worker = Arc::clone(&text);
    let done = tokio::task::spawn_blocking(move || {
        // Held here, not by the request: it may leave, the work goes on until its end.
        let _place = place;
        let start = Instant::now();
        let found = worker.model.chain(plan);
        (found, start.elapsed())
    });
    admitted.origin = match done.await {
        Ok((Ok(found), more)) => {
            put(&mut admitted.arrival, found);
            admitted.pool.metrics.tokenised(spent + more);
            Origin::Rendered
        }
        Ok((Err(why), _)) => Origin::Fallback(Fallback::reason(&why)),
        Err(_) => {
            tracing::error!(pool = admitted.pool.name, "the tokenizer panicked");
            Origin::Fallback("tokenizer")
        }
    };
}

fn put(arrival: &mut Arrival, found: TokenChain) {
    arrival.chain = found.chain;
    arrival.identity = Identity::Tokens;
    arrival.prompt_tokens = Some(found.tokens);
    arrival.leading = found.leading;
}
