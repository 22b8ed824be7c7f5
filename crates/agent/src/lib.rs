//! The agent: runs beside an OpenAI-compatible engine that nobody can connect to, asks a maitred for
//! requests, and sends the engine's answers back as they come. The API is described in `docs/pull.md`.

mod call;
mod engine;
mod job;
mod work;

pub use call::{Base, CallError};
pub use work::{AgentError, run};

use std::time::Duration;

/// What an agent needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where maitred listens for workers.
    pub broker: Base,
    /// The worker token.
    pub token: String,
    /// The engine.
    pub engine: Base,
    /// `Authorization: Bearer` of requests to the engine.
    pub engine_key: Option<String>,
    /// The worker's name.
    pub name: String,
    /// The pool to serve; None: the one that fits.
    pub pool: Option<String>,
    /// Requests at once.
    pub slots: u32,
    /// Models to serve; empty: what the engine lists.
    pub models: Vec<String>,
    /// Most tokens of prompt and answer; None: what the engine says, if it does.
    pub context_max: Option<u32>,
    /// Most tokens of an answer; None: any.
    pub output_max: Option<u32>,
    /// How long one poll waits.
    pub wait: Duration,
    /// Between two signs of life, at most: the broker says what it takes for silence.
    pub beat: Duration,
}
