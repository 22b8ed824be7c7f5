//! The record of one attempt (schema 1).

use crate::line::to_micros;
use crate::name::Name;
use serde::{Deserialize, Serialize, Serializer};
use std::borrow::Cow;

/// Number of this layout; a reader refuses none, it fills what is missing with "unknown".
pub const SCHEMA: u16 = 1;

/// How an attempt, or a request that never got one, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The worker served it (2xx), to the end.
    Served,
    /// The worker answered with its own deterministic client error (4xx), which was relayed.
    ClientError,
    /// The attempt failed before a byte reached the client; another one follows.
    Retried,
    /// The attempt failed and nothing follows: the client got an error or a broken stream.
    Failed,
    /// The client left.
    Cancelled,
    /// The scheduler refused it (line full, wait expired, no workers, ...); no attempt was made.
    Refused,
    /// The gateway refused it before it was scheduled (unknown model, too large, bad body, ...).
    Rejected,
}

impl Outcome {
    /// All outcomes, for bounded metric labels; `self as usize` indexes it.
    pub const ALL: [Self; 7] = [
        Self::Served,
        Self::ClientError,
        Self::Retried,
        Self::Failed,
        Self::Cancelled,
        Self::Refused,
        Self::Rejected,
    ];

    /// The name used in records and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::ClientError => "client_error",
            Self::Retried => "retried",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
            Self::Rejected => "rejected",
        }
    }
}

/// A worker that could have taken the attempt, as the policy saw it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandidateRecord {
    /// Its name.
    pub worker: Name,
    /// The policy's score; null where the policy did not look at this one.
    pub score: Option<f64>,
    /// Our own requests on it.
    pub running: u32,
    /// Uncached prompt tokens dispatched to it and not yet answered.
    pub prefill_tokens: u64,
    /// Leading tokens of this prompt that it was believed to hold.
    pub matched_tokens: u32,
    /// Whether it had a free seat.
    pub seat: bool,
}

/// What the prediction of cached tokens rested on, in leading blocks of the prompt's chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeliefRecord {
    /// `observed` (the worker's own events), `predicted` (our own dispatches) or `none`.
    pub source: Cow<'static, str>,
    /// What was gone by.
    pub blocks: u32,
    /// By the worker's events, in whatever tier.
    pub observed: u32,
    /// Of `observed`, leading blocks in the device's memory. None: nothing was told of it.
    #[serde(default)]
    pub device: Option<u32>,
    /// Of `observed`, leading blocks in the device's or the host's memory.
    #[serde(default)]
    pub host: Option<u32>,
    /// The data-parallel rank that holds `observed`; None: the engine names none.
    #[serde(default)]
    pub rank: Option<u32>,
    /// Of `observed`, the last ones that the worker was about to evict for what was dispatched to it.
    #[serde(default)]
    pub leaving: u32,
    /// By our own dispatches, whether it counted or not.
    pub predicted: u32,
    /// Events of the worker were lost: what it holds was not certain.
    pub uncertain: bool,
    /// How long before the decision its last events had come, in milliseconds; None: it had sent none.
    #[serde(default)]
    pub age_ms: Option<u64>,
}

/// What became of the tokens of a served prompt. With `cached_tokens` (0 where that is unknown) they
/// add up to `prompt_tokens`, or to `prompt_tokens_estimated` where the engine does not count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissRecord {
    /// Tokens that no ancestor had.
    pub new: u32,
    /// In whose place the ancestor had others.
    pub diverged: u32,
    /// That the ancestor had in another scope.
    pub scope: u32,
    /// That the ancestor had on another worker.
    pub moved: u32,
    /// Why `moved` is not 0: `escape`, `hold_expired`, `full`, `draining`, `down`, `retry`, `policy`.
    #[serde(default)]
    pub moved_why: Option<Cow<'static, str>>,
    /// That the same worker had and dropped.
    pub evicted: u32,
    /// That the same worker had in an earlier life.
    pub restarted: u32,
    /// Of which it cannot be known.
    pub unknown: u32,
    /// Leading tokens in common with the ancestor; None: no ancestor is known.
    #[serde(default)]
    pub common_tokens: Option<u32>,
    /// Who served the ancestor; None also where that worker is gone.
    #[serde(default)]
    pub ancestor_worker: Option<Name>,
}

impl MissRecord {
    /// The causes by name, in the order in which they are shown.
    #[must_use]
    pub fn causes(&self) -> [(&'static str, u32); 7] {
        [
            ("new", self.new),
            ("diverged", self.diverged),
            ("scope", self.scope),
            ("moved", self.moved),
            ("evicted", self.evicted),
            ("restarted", self.restarted),
            ("unknown", self.unknown),
        ]
    }
}

/// The candidate that was believed to hold more of the prompt than the chosen one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StayRecord {
    /// Its name.
    pub worker: Name,
    /// Leading tokens of the prompt that it was believed to hold.
    pub matched_tokens: u32,
    /// When its first token was to be expected after the request's arrival, in milliseconds; None: it had no
    /// free seat, and nobody can say when it would have had one.
    #[serde(default, serialize_with = "opt_micros")]
    pub ttft_expected_ms: Option<f64>,
}

/// One attempt, or one request that never came to an attempt (`attempt` is 0 then).
///
/// `None` is "unknown", never zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// [`SCHEMA`].
    pub schema: u16,
    /// When the request arrived, in milliseconds since 1970 (UTC).
    pub time_ms: u64,
    /// The request id, as the client and the worker see it.
    pub request_id: Name,
    /// 1 for the first attempt; 0: none was made.
    pub attempt: u8,
    /// Hash of who pays.
    #[serde(with = "hex_u64")]
    pub tenant: u64,
    /// The pool; empty where the request reached none.
    pub pool: Name,
    /// The model's configured name, or `other`.
    pub model: Name,
    /// The route template, as in the metrics.
    pub route: Cow<'static, str>,
    /// Whether the client asked for a stream.
    pub stream: bool,
    /// 1 for a first request; assistant messages in the history + 1.
    pub turn: u32,
    /// Hash of the session key.
    #[serde(with = "opt_hex_u64", default)]
    pub session: Option<u64>,
    /// Where the session key came from.
    pub session_source: Cow<'static, str>,
    /// `bytes` or `tokens`: how the block chain was made.
    pub identity: Cow<'static, str>,
    /// Why it is `bytes` although the pool has a tokenizer; None where it has none, or was used.
    #[serde(default)]
    pub identity_fallback: Option<Cow<'static, str>>,
    /// Messages of role `developer` that went to the worker as `system`, as the pool says.
    #[serde(default)]
    pub roles_renamed: u32,
    /// The placement policy's name; None where nothing was decided.
    #[serde(default)]
    pub policy: Option<Cow<'static, str>>,
    /// Why this worker; for refusals, the refusal's code.
    #[serde(default)]
    pub reason: Option<Cow<'static, str>>,
    /// Who got it.
    #[serde(default)]
    pub worker: Option<Name>,
    /// The chosen first, then the best of the rest (bounded).
    #[serde(default)]
    pub candidates: Vec<CandidateRecord>,
    /// How many workers could have taken it.
    #[serde(default)]
    pub candidates_count: u32,
    /// The fairness policy's name; None where it came to no line.
    #[serde(default)]
    pub fairness: Option<Cow<'static, str>>,
    /// `new` or `returning`: which line of the queue was its own.
    #[serde(default)]
    pub line: Option<Cow<'static, str>>,
    /// The band's place among the pool's bands, from 0.
    #[serde(default)]
    pub band: Option<u16>,
    /// What it counted for in the line: uncached prompt tokens and twice the tokens of the answer,
    /// as estimated.
    #[serde(default)]
    pub charge: Option<u64>,
    /// When it would start, as predicted when it came, in milliseconds.
    #[serde(default, serialize_with = "opt_micros")]
    pub predicted_start_ms: Option<f64>,
    /// When its first token was expected after its arrival, by what the pool has learnt of costs, in
    /// milliseconds.
    #[serde(default, serialize_with = "opt_micros")]
    pub ttft_expected_ms: Option<f64>,
    /// Others that were dispatched before it although they came later.
    #[serde(default)]
    pub passed_by: u32,
    /// Bytes of the prompt's rendering.
    #[serde(default)]
    pub prompt_bytes: u64,
    /// Prompt tokens as they were reckoned when it was placed.
    #[serde(default)]
    pub prompt_tokens_estimated: Option<u32>,
    /// Prompt tokens by the engine's count.
    #[serde(default)]
    pub prompt_tokens: Option<u32>,
    /// Prompt tokens that we believed the worker held.
    #[serde(default)]
    pub predicted_cached_tokens: Option<u32>,
    /// What that rested on; None where nothing was decided.
    #[serde(default)]
    pub belief: Option<BeliefRecord>,
    /// Prompt tokens served from cache by the engine's count.
    #[serde(default)]
    pub cached_tokens: Option<u32>,
    /// Why the others were not; None where the attempt was not served.
    #[serde(default)]
    pub misses: Option<MissRecord>,
    /// What staying with the warmest candidate would have meant; None where it was chosen.
    #[serde(default)]
    pub stay: Option<StayRecord>,
    /// Tokens of the answer by the engine's count.
    #[serde(default)]
    pub output_tokens: Option<u32>,
    /// From arrival to dispatch (or refusal), in milliseconds.
    #[serde(default, serialize_with = "micros")]
    pub queue_ms: f64,
    /// From arrival to the first token, in milliseconds.
    #[serde(default, serialize_with = "opt_micros")]
    pub ttft_ms: Option<f64>,
    /// From arrival to the end, in milliseconds.
    #[serde(default, serialize_with = "micros")]
    pub e2e_ms: f64,
    /// Age of the worker's own metrics at the decision, in milliseconds.
    #[serde(default)]
    pub report_age_ms: Option<u64>,
    /// The report was older than the pool's bound, or missing: own leases ruled.
    #[serde(default)]
    pub stale: bool,
    /// How it ended.
    pub outcome: Outcome,
    /// What went wrong, where something did.
    #[serde(default)]
    pub failure: Option<Cow<'static, str>>,
    /// The API by which the worker asked for the job, where it pulls: `maitred` or `horde`.
    #[serde(default)]
    pub pull: Option<Cow<'static, str>>,
    /// How such a job was lost, where it was.
    #[serde(default)]
    pub lost: Option<Cow<'static, str>>,
    /// The status that the client got, or that the worker answered with.
    #[serde(default)]
    pub status: Option<u16>,
    /// State of the generator before the decision.
    #[serde(with = "hex_u64", default)]
    pub seed: u64,
}

impl Default for AttemptRecord {
    fn default() -> Self {
        Self {
            schema: SCHEMA,
            time_ms: 0,
            request_id: Name::default(),
            attempt: 0,
            tenant: 0,
            pool: Name::default(),
            model: Name::default(),
            route: Cow::Borrowed("unmatched"),
            stream: false,
            turn: 1,
            session: None,
            session_source: Cow::Borrowed("none"),
            identity: Cow::Borrowed("bytes"),
            identity_fallback: None,
            roles_renamed: 0,
            policy: None,
            reason: None,
            worker: None,
            candidates: Vec::new(),
            candidates_count: 0,
            fairness: None,
            line: None,
            band: None,
            charge: None,
            predicted_start_ms: None,
            ttft_expected_ms: None,
            passed_by: 0,
            prompt_bytes: 0,
            prompt_tokens_estimated: None,
            prompt_tokens: None,
            predicted_cached_tokens: None,
            belief: None,
            cached_tokens: None,
            misses: None,
            stay: None,
            output_tokens: None,
            queue_ms: 0.0,
            ttft_ms: None,
            e2e_ms: 0.0,
            report_age_ms: None,
            stale: false,
            outcome: Outcome::Rejected,
            failure: None,
            pull: None,
            lost: None,
            status: None,
            seed: 0,
        }
    }
}

fn micros<S: Serializer>(ms: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(to_micros(*ms))
}

fn opt_micros<S: Serializer>(ms: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    match ms {
        Some(ms) => micros(ms, serializer),
        None => serializer.serialize_none(),
    }
}

/// Hashes and seeds as 16 hex digits: JSON readers would round large numbers.
pub mod hex_u64 {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes 16 hex digits.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{value:016x}"))
    }

    /// Reads hex digits.
    ///
    /// # Errors
    /// The text is no hexadecimal number of 64 bits.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}

/// The same for values that may be unknown (null).
pub mod opt_hex_u64 {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes 16 hex digits or null.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::hex_u64::serialize(value, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Reads hex digits or null.
    ///
    /// # Errors
    /// The text is no hexadecimal number of 64 bits.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<u64>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else {
            return Ok(None);
        };
        u64::from_str_radix(&text, 16)
            .map(Some)
            .map_err(D::Error::custom)
    }
}
