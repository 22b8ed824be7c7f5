//! Prefixes: the chain of a prompt, and who is believed to hold how much of it.

pub mod chain;
pub mod index;
mod matches;
pub mod observed;
mod slab;
mod table;

pub use chain::ChainBuilder;
pub use index::Index;
pub use matches::Matches;
pub use observed::{KvBatch, KvEvent, KvState, Observed, Sightings};
