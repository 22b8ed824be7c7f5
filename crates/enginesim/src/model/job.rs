//! What goes into the engine and what comes out.

use std::sync::Arc;

/// What the engine is asked to compute.
#[derive(Debug, Clone)]
pub struct Job {
    /// Named by the caller; unique among the jobs inside.
    pub id: u64,
    /// The prompt. At least one token.
    pub tokens: Vec<u32>,
    /// Tokens to generate, exactly; 0 computes the prompt only (an embedding).
    pub max_tokens: usize,
    /// What the reply is drawn from.
    pub seed: u64,
    /// Seed of the block chain: jobs with different scopes never share a block.
    pub scope: u64,
    /// What KV events say of the scope, with the first block.
    pub salt: Option<Arc<str>>,
}

/// Why a job was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The prompt has no token.
    #[error("the prompt is empty")]
    Empty,
    /// Prompt and reply together never fit into the KV memory.
    #[error(
        "prompt ({prompt} tokens) and max_tokens ({max_tokens}) exceed the context of {limit} tokens"
    )]
    TooLong {
        /// Prompt tokens.
        prompt: usize,
        /// Asked reply.
        max_tokens: usize,
        /// Tokens the KV memory holds.
        limit: usize,
    },
    /// The waiting queue is full.
    #[error("the waiting queue is full ({limit} jobs)")]
    QueueFull {
        /// `Config::waiting_max`.
        limit: usize,
    },
    /// A job of this id is inside.
    #[error("job {id} is already inside")]
    Duplicate {
        /// The id.
        id: u64,
    },
}

/// Tokens of a finished job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt: usize,
    /// Of those, found in the cache at first admission: whole blocks, at most `prompt - 1`.
    pub cached: usize,
    /// Generated tokens.
    pub completion: usize,
}

/// What a step brought. `at` is the end of that step, ns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The first generated token.
    FirstToken {
        /// The job.
        id: u64,
        /// When, ns.
        at: u64,
        /// The token.
        token: u32,
        /// Prompt tokens that came from the cache.
        cached: usize,
    },
    /// A later token.
    Token {
        /// The job.
        id: u64,
        /// When, ns.
        at: u64,
        /// The token.
        token: u32,
    },
    /// The job is done and gone from the engine.
    Finished {
        /// The job.
        id: u64,
        /// When, ns.
        at: u64,
        /// What it used.
        usage: Usage,
    },
    /// No block was free: the job gave its blocks back and will be computed again.
    Preempted {
        /// The job.
        id: u64,
        /// Start of the step that took its blocks, ns.
        at: u64,
    },
}

/// The engine's gauges and counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Metrics {
    /// Sequences running.
    pub running: usize,
    /// Jobs waiting.
    pub waiting: usize,
    /// Blocks in use.
    pub blocks_used: usize,
    /// All blocks.
    pub blocks_total: usize,
    /// Blocks that can be found by hash.
    pub blocks_cached: usize,
    /// Prompt tokens looked up in the cache, ever.
    pub prefix_queries: u64,
    /// Prompt tokens found there, ever.
    pub prefix_hits: u64,
    /// Prompt tokens of finished jobs, ever.
    pub prompt_tokens: u64,
    /// Generated tokens, ever.
    pub generation_tokens: u64,
    /// Preemptions, ever.
    pub preemptions: u64,
    /// Jobs finished, ever.
    pub finished: u64,
    /// Steps run, ever.
    pub steps: u64,
    /// Of them, those that began with none, one, two, or more jobs left waiting for want of room.
    pub steps_waiting: [u64; 4],
}
