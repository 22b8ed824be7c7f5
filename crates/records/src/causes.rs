//! Where a prompt's warmth went, in plain words.

use crate::attempt::{AttemptRecord, MissRecord};
use crate::story::millis;
use std::fmt::{Result, Write};

/// What became of the tokens that were not cached, one sentence for each cause.
pub(crate) fn tell(text: &mut String, r: &AttemptRecord) -> Result {
    let Some(misses) = &r.misses else {
        return Ok(());
    };
    for (cause, tokens) in misses.causes() {
        if tokens > 0 {
            write!(text, "{} ", sentence(cause, tokens, misses, r))?;
        }
    }
    Ok(())
}

/// What staying with the warmest worker would have meant.
pub(crate) fn tell_stay(text: &mut String, r: &AttemptRecord) -> Result {
    let Some(stay) = &r.stay else {
        return Ok(());
    };
    let (worker, tokens) = (&stay.worker, stay.matched_tokens);
    write!(
        text,
        "{worker} was believed to hold more of it, {tokens} tokens"
    )?;
    match stay.ttft_expected_ms {
        Some(ms) => write!(
            text,
            "; from there the first token was expected after {} ms. ",
            millis(ms)
        ),
        None => write!(text, ", but had no free seat. "),
    }
}

fn sentence(cause: &str, tokens: u32, misses: &MissRecord, r: &AttemptRecord) -> String {
    let before = misses.ancestor_worker.as_deref();
    let before = before.unwrap_or("a worker that is gone");
    match cause {
        "new" => format!("{} new to the conversation.", were(tokens)),
        "diverged" => format!(
            "{} lost because the prompt differs from what the conversation had sent before, from about token {} on.",
            were(tokens),
            misses.common_tokens.unwrap_or(0)
        ),
        "scope" => format!(
            "{} computed before under another scope (isolation, adapter, weights, template or salt).",
            had_been(tokens)
        ),
        "moved" => format!(
            "{} computed before on {before}; they were computed again here because {}.",
            had_been(tokens),
            misses
                .moved_why
                .as_deref()
                .map_or("the request went elsewhere", moved_words)
        ),
        "evicted" => format!(
            "{} in this worker's cache before and had been evicted.",
            had_been(tokens)
        ),
        "restarted" => format!(
            "{} in this worker's cache before it began a new life (a restart or a reset).",
            had_been(tokens)
        ),
        _ => format!("Of {tokens} {}.", unknown_words(misses, r)),
    }
}

fn were(tokens: u32) -> String {
    match tokens {
        1 => "1 was".to_owned(),
        n => format!("{n} were"),
    }
}

fn had_been(tokens: u32) -> String {
    format!("{tokens} had been")
}

fn moved_words(why: &str) -> &str {
    match why {
        "escape" => "that worker was too loaded",
        "hold_expired" => "that worker was waited for and had no seat in time",
        "full" => "that worker had no free seat",
        "draining" => "that worker was draining",
        "down" => "that worker was down or removed",
        "retry" => "an earlier attempt at this request had failed",
        "policy" => "the policy does not go by where the conversation was",
        other => other,
    }
}

fn unknown_words(misses: &MissRecord, r: &AttemptRecord) -> &'static str {
    if r.cached_tokens.is_none() {
        "that had been computed before it is not known whether they were cached: the engine does not say"
    } else if misses.common_tokens.is_none() {
        "it is not known whether they had been computed before: what the conversation sent earlier is not remembered"
    } else {
        "that had been computed before it is not known where they went: the prompts were identified in different \
         ways, or the engine was told not to look"
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::attempt::{AttemptRecord, MissRecord, Outcome, StayRecord};
    use crate::story;
    use std::collections::HashSet;

    fn told(misses: MissRecord, cached: Option<u32>) -> String {
        story(&[std::sync::Arc::new(AttemptRecord {
            attempt: 1,
            request_id: "r".into(),
            prompt_tokens: Some(4_321),
            predicted_cached_tokens: Some(17),
            cached_tokens: cached,
            misses: Some(misses),
            outcome: Outcome::Served,
            ..AttemptRecord::default()
        })])
    }

    #[test]
    fn each_cause_is_told_apart_with_its_number() {
        let before = || MissRecord {
            common_tokens: Some(1_234),
            ancestor_worker: Some("w7".into()),
            ..MissRecord::default()
        };
        let set: [fn(&mut MissRecord); 7] = [
            |m| m.new = 987,
            |m| m.diverged = 987,
            |m| m.scope = 987,
            |m| m.moved = 987,
            |m| m.evicted = 987,
            |m| m.restarted = 987,
            |m| m.unknown = 987,
        ];
        let mut stories = HashSet::new();
        for set in set {
            let mut misses = before();
            set(&mut misses);
            let story = told(misses, Some(0));
            assert!(story.contains("987"), "{story}");
            assert!(stories.insert(story));
        }
        let none = told(before(), Some(4_321));
        assert!(!none.contains("987") && stories.insert(none));
    }

    #[test]
    fn each_reason_to_move_is_told_apart_with_where_it_was() {
        let mut stories = HashSet::new();
        for why in [
            "escape",
            "hold_expired",
            "full",
            "draining",
            "down",
            "retry",
            "policy",
        ] {
            let story = told(
                MissRecord {
                    moved: 55,
                    moved_why: Some(why.into()),
                    ancestor_worker: Some("w7".into()),
                    ..MissRecord::default()
                },
                Some(0),
            );
            assert!(
                story.contains("55 had been computed before on w7"),
                "{story}"
            );
            assert!(!story.contains('_'), "words, not codes: {story}");
            assert!(stories.insert(story), "{why}");
        }
    }

    #[test]
    fn each_way_not_to_know_is_told_apart() {
        let unknown = |common| MissRecord {
            unknown: 321,
            common_tokens: common,
            ..MissRecord::default()
        };
        let stories = HashSet::from([
            told(unknown(Some(0)), None),
            told(unknown(Some(0)), Some(0)),
            told(unknown(None), Some(0)),
        ]);
        assert_eq!(stories.len(), 3);
        assert!(stories.iter().all(|story| story.contains("Of 321 ")));
        let diverged = MissRecord {
            diverged: 3,
            common_tokens: Some(1_234),
            ..MissRecord::default()
        };
        assert!(told(diverged, Some(0)).contains("token 1234"));
    }

    #[test]
    fn staying_is_told_with_what_it_would_have_cost() {
        let stay = |expected| AttemptRecord {
            attempt: 1,
            stay: Some(StayRecord {
                worker: "w9".into(),
                matched_tokens: 777,
                ttft_expected_ms: expected,
            }),
            ..AttemptRecord::default()
        };
        let known = story(&[std::sync::Arc::new(stay(Some(250.0)))]);
        assert!(
            known.contains("w9") && known.contains("777") && known.contains("250 ms"),
            "{known}"
        );
        let full = story(&[std::sync::Arc::new(stay(None))]);
        assert!(full.contains("no free seat"), "{full}");
    }
}
