//! Scripted workers and a raw client for scenarios over real sockets.
//!
//! Both sides speak HTTP/1.1 through their own small reader, so that a test sees the bytes of the
//! wire: what the gateway sent to a worker ([`Recorded::head_raw`], [`Recorded::body_raw`]), how
//! a response was framed and whether its end arrived ([`Response::complete`]), and when a
//! connection was closed. Scripts are data: a list of [`Step`]s per request, held back by
//! [`Gate`]s that the test opens rather than by sleeping.
//!
//! Every wait has a guard of [`PATIENCE`]: a test fails with a message instead of hanging.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod binary;
mod client;
mod gate;
mod http1;
mod script;
mod talk;
mod tokenizer;
mod worker;

use std::future::Future;
use std::time::Duration;

pub use binary::{Agent, Process, maitred_path, run};
pub use client::{Client, request, text};
pub use gate::Gate;
pub use http1::{Framing, Head, Response};
pub use script::{Script, Step, json_answer, sse_event, stream_answer};
pub use tokenizer::{byte_tokenizer, write_model};
pub use worker::{Recorded, Worker};

/// Longest time any wait of this crate lasts before the test fails. Far above what a loaded
/// machine needs, since nothing is measured with it.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// Awaits `what`, panicking with `name` when it takes longer than [`PATIENCE`].
pub async fn within<T>(name: &str, what: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, what).await {
        Ok(value) => value,
        Err(_) => panic!("no end after {PATIENCE:?}: {name}"),
    }
}

/// Polls `condition` every few milliseconds until it holds; fails after [`PATIENCE`].
pub async fn eventually(name: &str, mut condition: impl FnMut() -> bool) {
    within(name, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}
