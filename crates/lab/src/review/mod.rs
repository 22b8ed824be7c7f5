//! What records say of a time in service: where the warmth went, how good predictions were, what leaving a warm worker
//! was worth, and how old what was gone by was; for all, and for each policy, tenant, model and turn.
//!
//! Unknown is counted as unknown. A record that stands twice (by request id and attempt) counts once.

mod page;
mod sketch;
mod sums;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault};

use hashbrown::HashSet;
use maitred_records::AttemptRecord;
use rustc_hash::{FxBuildHasher, FxHasher};
use serde::Serialize;

pub use page::page;
pub use sketch::Sketch;
pub use sums::{Ages, PredictionErrors, Regret, Sums};
pub use tables::{Table, tables, text};

/// Groups of one kind that have sums of their own; the others are summed up together, as `others`.
pub const GROUPS_MAX: usize = 1_000;

/// The name of what has no group of its own.
const OTHERS: &str = "others";

/// What records are grouped by.
pub const KINDS: [&str; 4] = ["policy", "tenant", "model", "turn"];

/// The sums so far.
#[derive(Debug, Default, Serialize)]
pub struct Review {
    /// Records that were taken.
    pub records: u64,
    /// Records that had been taken before.
    pub duplicates: u64,
    /// All together.
    pub all: Sums,
    /// By kind of group, as [`KINDS`] has them, then by group.
    pub by: BTreeMap<&'static str, BTreeMap<String, Sums>>,
    #[serde(skip)]
    seen: HashSet<(u64, u8), FxBuildHasher>,
}

impl Review {
    /// Takes a record.
    pub fn take(&mut self, record: &AttemptRecord) {
        let id = BuildHasherDefault::<FxHasher>::default().hash_one(&record.request_id);
        if !self.seen.insert((id, record.attempt)) {
            self.duplicates += 1;
            return;
        }
        self.records += 1;
        self.all.add(record);
        let groups = [
            record.policy.as_deref().unwrap_or("none").to_owned(),
            format!("{:016x}", record.tenant),
            record.model.to_string(),
            turns(record.turn).to_owned(),
        ];
        for (kind, group) in KINDS.into_iter().zip(groups) {
            let groups = self.by.entry(kind).or_default();
            let full = groups.len() >= GROUPS_MAX && !groups.contains_key(&group);
            let group = if full { OTHERS.to_owned() } else { group };
            groups.entry(group).or_default().add(record);
        }
    }
}

/// Late turns go together.
fn turns(turn: u32) -> &'static str {
    match turn {
        0 | 1 => "1",
        2 => "2",
        3..=5 => "3-5",
        6..=10 => "6-10",
        _ => "11 and later",
    }
}
