//! Attempt records: what was decided, what was predicted, what came of it. One JSON line each.
//!
//! A record holds hashes, counts, names and timings, never prompt text. [`RecordSink::send`] moves a
//! record to a writer thread and never blocks; what does not fit is counted as lost. [`read`]
//! goes through the files again.

mod attempt;
mod causes;
mod line;
mod name;
mod read;
mod sink;
mod story;

pub use attempt::{
    AttemptRecord, BeliefRecord, CandidateRecord, MissRecord, Outcome, SCHEMA, StayRecord, hex_u64,
    opt_hex_u64,
};
pub use name::Name;
pub use read::{BAD_LINES_MAX, BadLine, ReadError, Records, expand, record_files};
pub use sink::{RecordSink, SinkCounts, SinkError, SinkSettings};
pub use story::story;
