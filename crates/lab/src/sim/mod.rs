//! Discrete events in virtual time: causal clients, the real scheduler, modelled engines.
//!
//! [`run`](run()) takes a [`Setup`] (pool, workers, seed, end) and a [`Workload`] (who asks for what, and what they do
//! with the answer) and returns one [`Outcome`] per request. A follow-up is released by its session's last answer, so
//! a slow policy is asked less: that is what clients do.

mod batch;
mod engine;
mod events;
mod seats;
mod setup;
mod workload;
mod world;

#[cfg(test)]
mod tests;

pub use batch::Batch;
pub use engine::{Engine, EngineKind, Job, Progress, Service};
pub use seats::SeatsEngine;
pub use setup::{FleetEvent, Reports, Run, Setup, SetupError, run};
pub use workload::{Ask, End, Outcome, Workload};
