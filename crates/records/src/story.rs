//! A request's records in plain words.

use crate::attempt::{AttemptRecord, BeliefRecord, Outcome};
use crate::causes;
use std::fmt::Write;

/// Tells what happened to one request; `attempts` are its records in order.
#[must_use]
pub fn story<R: AsRef<AttemptRecord>>(attempts: &[R]) -> String {
    let mut text = String::new();
    let Some(first) = attempts.first().map(AsRef::as_ref) else {
        return "Nothing is known of this request.".to_owned();
    };
    // Writing to a String cannot fail.
    let _ = tell_request(&mut text, first);
    for record in attempts {
        let _ = tell_attempt(&mut text, record.as_ref());
    }
    text.truncate(text.trim_end().len());
    text
}

fn tell_request(text: &mut String, r: &AttemptRecord) -> std::fmt::Result {
    write!(text, "Request {} to {}", r.request_id, r.route)?;
    if !r.pool.is_empty() {
        write!(text, " reached pool {}", r.pool)?;
    }
    if !r.model.is_empty() {
        write!(text, " (model {})", r.model)?;
    }
    write!(text, ". ")?;
    match r.turn {
        0 | 1 => write!(text, "It is a first turn")?,
        turn => write!(text, "It is turn {turn} of its conversation")?,
    }
    match (&r.session, key_source(&r.session_source)) {
        (Some(_), Some(source)) => write!(text, ", known by {source}.")?,
        _ => write!(text, ", without a session key.")?,
    }
    if let Some(reason) = &r.identity_fallback {
        write!(
            text,
            " It is known by its bytes, not its tokens: {}.",
            fallback_words(reason)
        )?;
    } else if r.identity == "tokens" {
        write!(text, " It is known by its tokens.")?;
    }
    if r.roles_renamed > 0 {
        let n = r.roles_renamed;
        write!(text, " {n} of its messages went as system, not developer.")?;
    }
    writeln!(text)
}

fn tell_attempt(text: &mut String, r: &AttemptRecord) -> std::fmt::Result {
    if r.attempt == 0 {
        return tell_end(text, r);
    }
    write!(text, "Attempt {}", r.attempt)?;
    if let Some(worker) = &r.worker {
        write!(text, " went to {worker}")?;
    }
    if let Some(reason) = &r.reason {
        write!(text, " because {}", reason_words(reason))?;
    }
    if let Some(policy) = &r.policy {
        write!(
            text,
            " (policy {policy}, {} could have taken it",
            workers(r.candidates_count)
        )?;
        if r.queue_ms >= 1.0 {
            write!(text, ", it waited {} ms", millis(r.queue_ms))?;
            if let Some(line) = &r.line {
                write!(text, " in the {line} line")?;
            }
            if let Some(predicted) = r.predicted_start_ms {
                write!(text, " ({} ms were predicted)", millis(predicted))?;
            }
        }
        if r.passed_by > 0 {
            write!(text, ", {} passed it", r.passed_by)?;
        }
        write!(text, ")")?;
    }
    write!(text, ". ")?;
    if r.pull.as_deref() == Some("horde") {
        write!(text, "That worker pulls, by the AI Horde's API. ")?;
    } else if r.pull.is_some() {
        write!(text, "That worker pulls. ")?;
    }
    tell_load(text, r)?;
    causes::tell_stay(text, r)?;
    tell_cache(text, r)?;
    tell_end(text, r)
}

fn tell_load(text: &mut String, r: &AttemptRecord) -> std::fmt::Result {
    if let Some(chosen) = r.candidates.first()
        && chosen.running > 0
    {
        write!(
            text,
            "{} of our requests ran there, {} prompt tokens ahead of it. ",
            chosen.running, chosen.prefill_tokens
        )?;
    }
    if r.stale {
        match r.report_age_ms {
            Some(age) => write!(
                text,
                "Its own metrics were {age} ms old, too old to go by: our own leases ruled. "
            )?,
            None => write!(text, "It reports no metrics: our own leases ruled. ")?,
        }
    }
    Ok(())
}

fn tell_cache(text: &mut String, r: &AttemptRecord) -> std::fmt::Result {
    let prompt = r.prompt_tokens.or(r.prompt_tokens_estimated);
    let (Some(predicted), Some(prompt)) = (r.predicted_cached_tokens, prompt) else {
        return Ok(());
    };
    write!(
        text,
        "We believed it held {predicted} of the prompt's {prompt} tokens{}; ",
        r.belief.as_ref().map_or("", belief_words)
    )?;
    let told = r
        .belief
        .as_ref()
        .filter(|belief| belief.source == "observed");
    if let Some(age) = told.and_then(|belief| belief.age_ms) {
        write!(text, "the last of these came {age} ms before; ")?;
    }
    if let Some(belief) = r.belief.as_ref().filter(|belief| belief.observed > 0) {
        if let Some(rank) = belief.rank {
            write!(text, "its rank {rank} holds them; ")?;
        }
        let slower = belief
            .device
            .map(|device| belief.observed.saturating_sub(device));
        if let Some(slower) = slower.filter(|slower| *slower > 0) {
            let observed = belief.observed;
            write!(
                text,
                "{slower} of the {observed} blocks that it had told of were not in the device's memory; "
            )?;
        }
    }
    if let Some(belief) = r.belief.as_ref().filter(|belief| belief.leaving > 0) {
        let (leaving, observed) = (belief.leaving, belief.observed);
        write!(
            text,
            "{leaving} of the {observed} blocks that it had told of were about to go for what was sent there before; "
        )?;
    }
    match r.cached_tokens {
        Some(cached) => write!(text, "the engine says {cached} came from its cache. ")?,
        None => write!(text, "the engine does not say what came from its cache. ")?,
    }
    causes::tell(text, r)
}

fn belief_words(belief: &BeliefRecord) -> &'static str {
    match (&*belief.source, belief.uncertain) {
        ("observed", false) => " by its own events",
        ("observed", true) => " by its own events, of which some were lost",
        ("predicted", false) => " by what we sent there",
        ("predicted", true) => " by what we sent there (its events do not tell all)",
        (_, true) => ", and its events do not tell all",
        _ => "",
    }
}

fn tell_end(text: &mut String, r: &AttemptRecord) -> std::fmt::Result {
    if let Some(ttft) = r.ttft_ms {
        write!(text, "First token after {} ms", millis(ttft))?;
        match r.ttft_expected_ms {
            Some(expected) => write!(text, " ({} ms were expected). ", millis(expected))?,
            None => write!(text, ". ")?,
        }
    }
    let after = millis(r.e2e_ms);
    match r.outcome {
        Outcome::Served => write!(text, "Served after {after} ms")?,
        Outcome::ClientError => write!(text, "The worker refused it as wrong after {after} ms")?,
        Outcome::Retried => write!(text, "It failed after {after} ms and was tried again")?,
        Outcome::Failed => write!(text, "It failed after {after} ms and was not tried again")?,
        Outcome::Cancelled => write!(text, "The client left after {after} ms")?,
        Outcome::Refused => {
            write!(text, "It was refused after {after} ms")?;
            if let Some(reason) = &r.reason {
                write!(text, ": {}", refusal_words(reason))?;
            }
        }
        Outcome::Rejected => write!(text, "It was turned away before it was placed")?,
    }
    match (&r.failure, r.lost.as_deref()) {
        (_, Some(lost)) => write!(text, " ({})", loss_words(lost))?,
        (Some(failure), None) => write!(text, " ({failure})")?,
        (None, None) => {}
    }
    if let Some(status) = r.status {
        write!(text, ", status {status}")?;
    }
    if let Some(tokens) = r.output_tokens {
        write!(text, ", {tokens} tokens written")?;
    }
    writeln!(text, ".")
}

/// How a job that a worker had pulled was lost.
fn loss_words(lost: &str) -> &str {
    match lost {
        "not_taken" => "its poll was gone before the job was written",
        "broken" => "the worker's connection broke",
        "silent" => "the worker said nothing any more",
        "missing" => "the worker said that it did not have the job",
        "expired" => "no answer came in the time that a job may take",
        "dropped" => "the worker asked for another job instead of answering",
        "reborn" => "the worker had been started anew",
        "left" => "the worker left",
        "faulted" => "the worker gave the job back",
        other => other,
    }
}

fn workers(count: u32) -> String {
    match count {
        1 => "1 worker".to_owned(),
        n => format!("{n} workers"),
    }
}

pub(crate) fn millis(ms: f64) -> String {
    if ms < 10.0 {
        format!("{ms:.1}")
    } else {
        format!("{ms:.0}")
    }
}

fn key_source(source: &str) -> Option<&'static str> {
    Some(match source {
        "header" => "its session header",
        "harness_header" => "its coding agent's header",
        "prompt_cache_key" => "its prompt_cache_key",
        "session_params" => "its session_params",
        "conversation" => "its conversation",
        "metadata" => "its metadata",
        "content" => "its opening",
        _ => return None,
    })
}

fn reason_words(reason: &str) -> &str {
    match reason {
        "only_one" => "no other could take it",
        "least_load" => "it had the least load",
        "random" => "it was drawn at random",
        "rotation" => "it was its turn",
        "power_of_two" => "it was the less loaded of two drawn at random",
        "hash" => "the key's hash names it",
        "bounded" => "the worker that the hash names is over its bound, and it comes next",
        "home" => "the conversation is at home there",
        "pinned" => "it holds the response that this one continues",
        "warmest" => "it holds the longest beginning of the prompt",
        "scenario" => "it serves this scenario and had the least load of those that do",
        "escape" => "the home or warmest worker was too loaded",
        "home_unavailable" => "the home or warmest worker could not take it",
        "retry" => "another attempt had failed",
        other => other,
    }
}

fn fallback_words(reason: &str) -> &str {
    match reason {
        "raised" => "the chat template refused it",
        "template" => "the chat template failed",
        "fuel" => "the chat template took too long",
        "media" => "it has parts that are no text",
        "truncated" => "the engine may cut it",
        "own_template" => "it brings a chat template of its own",
        "no_template" => "there is no chat template for it",
        "endpoint" => "requests of its kind are not rendered",
        "field" => "one of its fields cannot be rendered",
        "too_large" => "its text is too large",
        "tokenizer" => "the tokenizer failed",
        "busy" => "too many others were being tokenised",
        other => other,
    }
}

fn refusal_words(code: &str) -> &str {
    match code {
        "queue-full" => "the line is full",
        "flow-full" => "as much of its conversation waits as may",
        "tenant-full" => "as much of its tenant waits as may",
        "band-full" => "as much of its band waits as may",
        "start-too-late" => "it would have started later than promised",
        "ttl-expired" => "it waited as long as it may",
        "no-workers" => "no worker can take it",
        "attempts-exhausted" => "every worker that could be tried has failed it",
        "response-lost" => "the worker that holds the response it continues is gone",
        "closing" => "the gateway is closing",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::story;
    use crate::attempt::{AttemptRecord, BeliefRecord, Outcome};
    use std::sync::Arc;

    #[test]
    fn what_was_believed_is_told_by_rank_and_tier() {
        let belief = BeliefRecord {
            source: "observed".into(),
            blocks: 8,
            observed: 8,
            device: Some(3),
            host: Some(5),
            rank: Some(1),
            leaving: 0,
            predicted: 0,
            uncertain: false,
            age_ms: Some(40),
        };
        let record = |belief: BeliefRecord| AttemptRecord {
            attempt: 1,
            worker: Some("w1".into()),
            predicted_cached_tokens: Some(128),
            prompt_tokens: Some(200),
            cached_tokens: Some(112),
            belief: Some(belief),
            outcome: Outcome::Served,
            ..AttemptRecord::default()
        };
        let told = story(&[Arc::new(record(belief.clone()))]);
        let words = "We believed it held 128 of the prompt's 200 tokens by its own events; the last of these came 40 ms before; \
            its rank 1 holds them; 5 of the 8 blocks that it had told of were not in the device's memory; \
            the engine says 112 came from its cache. ";
        assert!(told.contains(words), "{told}");
        // Of records from before, and of engines without ranks and tiers, nothing is said of them.
        let plain = BeliefRecord {
            device: None,
            host: None,
            rank: None,
            ..belief
        };
        let told = story(&[Arc::new(record(plain))]);
        assert!(!told.contains("rank") && !told.contains("memory"), "{told}");
    }
}
