//! What is summed up of records, for all of them and for each group.

use std::collections::BTreeMap;

use maitred_records::{AttemptRecord, MissRecord, Outcome};
use serde::Serialize;

use super::sketch::Sketch;

/// Causes, in the order in which they are shown.
pub(super) fn causes() -> [&'static str; 7] {
    MissRecord::default().causes().map(|(name, _)| name)
}

/// A prediction that is off by no more tokens is right: the last block of a prompt often is not cached.
const NEAR_TOKENS: f64 = 16.0;

/// Predicted less actual cached tokens of served answers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PredictionErrors {
    /// Where both are known.
    pub error: Sketch,
    /// More than [`NEAR_TOKENS`] too many were predicted.
    pub too_many: u64,
    /// More than [`NEAR_TOKENS`] too few.
    pub too_few: u64,
    /// Answers whose engine does not say what it found.
    pub unknown: u64,
}

/// Dispatches to another than the warmest candidate. Times are from arrival to the first token, in milliseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Regret {
    /// All of them.
    pub left: u64,
    /// Where the warmest had no free seat: what waiting for one would have cost nobody knows.
    pub full: u64,
    /// Not answered, or not as a stream: when the first token came cannot be seen.
    pub unseen: u64,
    /// Where staying was expected to take so long; as many as are judged.
    pub there: Sketch,
    /// What was expected where it went.
    pub here: Sketch,
    /// What it took.
    pub paid: Sketch,
    /// Those that took longer than staying was expected to.
    pub regretted: u64,
    /// Milliseconds by which they did.
    pub lost_ms: f64,
    /// Milliseconds by which the others were faster.
    pub won_ms: f64,
}

/// How old what was gone by was, in milliseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Ages {
    /// Decisions.
    pub decisions: u64,
    /// The worker's own metrics.
    pub report: Sketch,
    /// Decisions without any.
    pub report_none: u64,
    /// They were too old, or missing: own leases ruled.
    pub stale: u64,
    /// The worker's last KV events.
    pub events: Sketch,
    /// Decisions about workers that had sent none.
    pub events_none: u64,
}

/// The sums of one group.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Sums {
    /// Records.
    pub attempts: u64,
    /// By how they ended.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Served answers that are accounted for, token by token.
    pub accounted: u64,
    /// Served answers that are not: their records are older than the causes.
    pub unaccounted: u64,
    /// Accounted answers whose causes and cached tokens are not their prompt: there should be none.
    pub inexact: u64,
    /// Their prompts' tokens.
    pub prompt_tokens: u64,
    /// Of them, served from the cache.
    pub cached_tokens: u64,
    /// Of them, those that were not, by cause.
    pub causes: BTreeMap<&'static str, u64>,
    /// Answers that have the cause.
    pub with_cause: BTreeMap<&'static str, u64>,
    /// Tokens that were moved, by why.
    pub moved: BTreeMap<String, u64>,
    /// Served answers whose engine does not say what was cached.
    pub cached_unknown: u64,
    /// Their prompts' tokens, as far as they are known.
    pub cached_unknown_tokens: u64,
    /// By what the prediction rested on.
    pub errors: BTreeMap<String, PredictionErrors>,
    /// By the reason of the decision.
    pub regret: BTreeMap<String, Regret>,
    /// Signals.
    pub ages: Ages,
    /// From arrival to the first token, of served answers.
    pub ttft_ms: Sketch,
    /// Served answers whose first token could not be seen.
    pub ttft_unknown: u64,
    /// From arrival to dispatch or refusal, of all that reached the scheduler.
    pub queue_ms: Sketch,
}

impl Sums {
    /// Adds a record.
    pub(super) fn add(&mut self, r: &AttemptRecord) {
        self.attempts += 1;
        *self.outcomes.entry(r.outcome.as_str()).or_default() += 1;
        if r.outcome != Outcome::Rejected {
            self.queue_ms.add(r.queue_ms);
        }
        if r.outcome == Outcome::Served {
            self.served(r);
        }
        if r.policy.is_some() {
            self.decided(r);
        }
    }

    fn served(&mut self, r: &AttemptRecord) {
        match r.ttft_ms {
            Some(ttft) => self.ttft_ms.add(ttft),
            None => self.ttft_unknown += 1,
        }
        let prompt = r.prompt_tokens.or(r.prompt_tokens_estimated);
        if r.cached_tokens.is_none() {
            self.cached_unknown += 1;
            self.cached_unknown_tokens += u64::from(prompt.unwrap_or(0));
        }
        match &r.misses {
            Some(misses) => self.account(misses, r.cached_tokens.unwrap_or(0), prompt),
            None => self.unaccounted += 1,
        }
        if let (Some(belief), Some(predicted)) = (&r.belief, r.predicted_cached_tokens) {
            let errors = self.errors.entry(belief.source.to_string()).or_default();
            match r.cached_tokens {
                Some(actual) => {
                    let error = f64::from(predicted) - f64::from(actual);
                    errors.error.add(error);
                    errors.too_many += u64::from(error > NEAR_TOKENS);
                    errors.too_few += u64::from(error < -NEAR_TOKENS);
                }
                None => errors.unknown += 1,
            }
        }
    }

    fn account(&mut self, misses: &MissRecord, cached: u32, prompt: Option<u32>) {
        self.accounted += 1;
        let mut total = u64::from(cached);
        for (cause, tokens) in misses.causes() {
            *self.causes.entry(cause).or_default() += u64::from(tokens);
            *self.with_cause.entry(cause).or_default() += u64::from(tokens > 0);
            total += u64::from(tokens);
        }
        self.inexact += u64::from(prompt.map(u64::from) != Some(total));
        self.prompt_tokens += total;
        self.cached_tokens += u64::from(cached);
        if let Some(why) = &misses.moved_why {
            *self.moved.entry(why.to_string()).or_default() += u64::from(misses.moved);
        }
    }

    fn decided(&mut self, r: &AttemptRecord) {
        let ages = &mut self.ages;
        ages.decisions += 1;
        ages.stale += u64::from(r.stale);
        match r.report_age_ms {
            Some(age) => ages.report.add(age as f64),
            None => ages.report_none += 1,
        }
        match r.belief.as_ref().and_then(|belief| belief.age_ms) {
            Some(age) => ages.events.add(age as f64),
            None => ages.events_none += 1,
        }
        let Some(stay) = &r.stay else {
            return;
        };
        let reason = r.reason.as_deref().unwrap_or("unknown");
        let regret = self.regret.entry(reason.to_owned()).or_default();
        regret.left += 1;
        let seen = r
            .ttft_ms
            .filter(|_| r.stream && r.outcome == Outcome::Served);
        match (stay.ttft_expected_ms, seen) {
            (None, _) => regret.full += 1,
            (_, None) => regret.unseen += 1,
            (Some(there), Some(paid)) => {
                regret.there.add(there);
                regret.paid.add(paid);
                if let Some(here) = r.ttft_expected_ms {
                    regret.here.add(here);
                }
                regret.regretted += u64::from(paid > there);
                regret.lost_ms += (paid - there).max(0.0);
                regret.won_ms += (there - paid).max(0.0);
            }
        }
    }
}
