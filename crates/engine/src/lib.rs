//! What each engine kind can do and say: names of metrics, probes, resets.

pub mod gauges;
pub mod kind;
pub mod slots;

pub use gauges::{EngineGauges, gauges};
pub use kind::{EngineKind, Readiness};
pub use slots::slots;
