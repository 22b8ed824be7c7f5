//! The explanation: what was chosen, among whom, by which scores, for which reason.

use crate::ids::{AttemptId, WorkerId};
use crate::limits::DECISION_CANDIDATES_MAX;
use crate::line::LineKind;
use crate::request::{Identity, KeySource, Usage};
use crate::time::Nanos;
use core::time::Duration;
use smallvec::SmallVec;

/// Why this worker. One word per way in which a policy can come to its choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The only worker that could take it.
    OnlyOne,
    /// Least load among the candidates.
    LeastLoad,
    /// Drawn at random.
    Random,
    /// Its turn in the rotation.
    Rotation,
    /// The less loaded of two drawn at random.
    PowerOfTwo,
    /// The hash of the key names it.
    Hash,
    /// The hash names another, which is over its bound; next in the hash's order.
    Bounded,
    /// The session's home.
    Home,
    /// Exact binding to the worker that holds the response it continues.
    Pinned,
    /// Longest warm prefix.
    Warmest,
    /// The scenario's subset, least loaded in it.
    Scenario,
    /// Home or warmest was left because of its load.
    Escape,
    /// Home or warmest could not take it (down, draining, failed this request, no seat in time).
    HomeUnavailable,
    /// Another attempt after a failure.
    Retry,
}

impl Reason {
    /// The name used in records and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnlyOne => "only_one",
            Self::LeastLoad => "least_load",
            Self::Random => "random",
            Self::Rotation => "rotation",
            Self::PowerOfTwo => "power_of_two",
            Self::Hash => "hash",
            Self::Bounded => "bounded",
            Self::Home => "home",
            Self::Pinned => "pinned",
            Self::Warmest => "warmest",
            Self::Scenario => "scenario",
            Self::Escape => "escape",
            Self::HomeUnavailable => "home_unavailable",
            Self::Retry => "retry",
        }
    }

    /// All reasons, for bounded metric labels.
    pub const ALL: [Self; 14] = [
        Self::OnlyOne,
        Self::LeastLoad,
        Self::Random,
        Self::Rotation,
        Self::PowerOfTwo,
        Self::Hash,
        Self::Bounded,
        Self::Home,
        Self::Pinned,
        Self::Warmest,
        Self::Scenario,
        Self::Escape,
        Self::HomeUnavailable,
        Self::Retry,
    ];
}

/// One candidate as the policy saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// Who.
    pub worker: WorkerId,
    /// The policy's score; what it means, and whether more or less is better, the policy's file
    /// says. NaN where the policy did not look at this one.
    pub score: f64,
    /// Our own requests on it.
    pub running: u32,
    /// Uncached prompt tokens dispatched to it and not yet answered.
    pub prefill_tokens: u64,
    /// Leading tokens of this prompt that we believe it holds.
    pub matched_tokens: u32,
    /// Whether it had a free seat.
    pub seat: bool,
}

/// What a prediction of cached tokens rests on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PredictionSource {
    /// Nothing of the prompt is believed to be there.
    #[default]
    None,
    /// Our own dispatches.
    Predicted,
    /// The worker's own events.
    Observed,
}

impl PredictionSource {
    /// All of them, for bounded metric labels.
    pub const ALL: [Self; 3] = [Self::None, Self::Predicted, Self::Observed];

    /// The name used in records and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Predicted => "predicted",
            Self::Observed => "observed",
        }
    }
}

/// What was believed of the chosen worker, in leading blocks of the prompt's chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Belief {
    /// What was gone by: the larger of observed and (where it still counts) predicted.
    pub blocks: u32,
    /// What it rests on.
    pub source: PredictionSource,
    /// By our own dispatches, whether it counts or not.
    pub predicted: u32,
    /// By the worker's events, in whatever tier.
    pub observed: u32,
    /// Of `observed`, the last ones that the worker was about to evict for what was dispatched to it.
    pub leaving: u32,
    /// Of `observed`, leading blocks in device memory.
    pub device: u32,
    /// Of `observed`, leading blocks in device or host memory.
    pub host: u32,
    /// The data-parallel rank that holds `observed`; None: the engine names none.
    pub rank: Option<u32>,
    /// A rank of the worker lost events: what it holds is not certain.
    pub uncertain: bool,
    /// How long ago the worker's last events came; None: it sent none.
    pub age: Option<Duration>,
}

/// How the request came through the line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Queueing {
    /// The fairness policy's config name.
    pub fairness: &'static str,
    /// Which line.
    pub line: LineKind,
    /// Which band: an index into the pool's bands.
    pub band: u16,
    /// Uncached prompt tokens and twice the tokens of the answer, as estimated when it came.
    pub charge: u64,
    /// When it would start, as predicted when it came; None: it did not wait, or nothing was
    /// measured yet.
    pub predicted_start: Option<Duration>,
    /// Others in the new line and in the returning line when it was dispatched.
    pub waiting: [u32; 2],
}

/// The candidate that was believed to hold more of the prompt than the chosen one: what staying with
/// the warmest would have meant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stay {
    /// Who.
    pub worker: WorkerId,
    /// Leading tokens of the prompt that it was believed to hold.
    pub matched_tokens: u32,
    /// When the first token was to be expected from it, after the dispatch, by the learnt costs. None: it had
    /// no free seat, and nobody can say when it would have had one.
    pub first_token_expected: Option<Duration>,
}

/// One decision, complete.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The attempt it opened.
    pub attempt: AttemptId,
    /// Who got it.
    pub worker: WorkerId,
    /// The policy's config name.
    pub policy: &'static str,
    /// Why.
    pub reason: Reason,
    /// How many workers could have taken it.
    pub candidates_count: u32,
    /// The chosen first, then the best of the rest; at most `DECISION_CANDIDATES_MAX`.
    pub candidates: SmallVec<[Scored; DECISION_CANDIDATES_MAX]>,
    /// State of the generator before the decision.
    pub seed: u64,
    /// When it arrived and when it was dispatched.
    pub arrived: Nanos,
    /// When it was dispatched.
    pub dispatched: Nanos,
    /// Others that were dispatched before it although they came later.
    pub passed_by: u32,
    /// How it came through the line.
    pub queueing: Queueing,
    /// How the chain was made.
    pub identity: Identity,
    /// Where the session key came from.
    pub session_source: KeySource,
    /// 1 for a first request.
    pub turn: u32,
    /// Prompt tokens, exact or estimated.
    pub prompt_tokens: u32,
    /// Of them, tokens we believe the worker holds.
    pub predicted_cached_tokens: u32,
    /// What that rests on.
    pub belief: Belief,
    /// When its first token is expected, after the dispatch, by the learnt costs.
    pub first_token_expected: Option<Duration>,
    /// The warmest candidate, where another was chosen.
    pub stay: Option<Stay>,
    /// Age of the worker's own report; None: it never reported.
    pub report_age: Option<Duration>,
    /// The report was older than the pool's bound, or missing: own leases ruled.
    pub stale: bool,
}

impl Decision {
    /// Predicted less actual cached tokens; None where the engine does not say.
    #[must_use]
    pub fn prediction_error(&self, usage: &Usage) -> Option<i64> {
        let actual = usage.cached_tokens?;
        Some(i64::from(self.predicted_cached_tokens) - i64::from(actual))
    }
}
