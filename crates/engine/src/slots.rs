//! How many requests an engine runs at once, where it says so outright.
//!
//! llama.cpp has a fixed number of slots, which `/props` tells as `total_slots`: a request beyond them waits
//! in the engine. What other engines tell (SGLang's `max_running_requests`, say) is the most that they would
//! ever run; their memory often allows less, so for them it is learnt from their own queues.

use crate::kind::{DEPTH_MAX, EngineKind};
use maitred_wire::json::{self, Value};

impl EngineKind {
    /// The path at which the kind tells its slots; None where it does not.
    #[must_use]
    pub fn slots_path(self) -> Option<&'static str> {
        match self {
            Self::LlamaCpp => Some("/props"),
            _ => None,
        }
    }
}

/// The slots that an answer of [`EngineKind::slots_path`] tells; None where it tells none.
#[must_use]
pub fn slots(body: &[u8]) -> Option<u32> {
    let long = json::check(body, DEPTH_MAX).ok()?;
    let told = Value::document(body, &long).get("total_slots")?;
    told.u32().filter(|slots| *slots > 0)
}

#[cfg(test)]
mod tests {
    use super::slots;

    #[test]
    fn slots_are_told_or_unknown() {
        assert_eq!(
            slots(br#"{"default_generation_settings":{"n_ctx":4096},"total_slots":4}"#),
            Some(4)
        );
        for none in [
            &br#"{"total_slots":0}"#[..],
            br#"{"total_slots":null}"#,
            br#"{"total_slots":-1}"#,
            br#"{"default_generation_settings":{"total_slots":4}}"#,
            b"[4]",
            b"not json",
        ] {
            assert_eq!(slots(none), None, "{}", String::from_utf8_lossy(none));
        }
    }
}
