//! Following an engine that publishes at an endpoint of its own.

use super::follower::Follower;
use maitred_zmtp::{Endpoint, Kind, Peer, ZmtpError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(3);
/// Between attempts: at first, and at most.
const WAIT_FIRST: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(5);
/// A connection that held for so long was a good one.
const HELD: Duration = Duration::from_secs(5);
/// An engine that was not heard for so long may hold anything.
pub(super) const SILENT_AFTER: Duration = Duration::from_secs(10);

/// Follows for ever.
pub(super) async fn follow(
    endpoint: Endpoint,
    topic: String,
    mut follower: Follower,
    mut again: watch::Receiver<u64>,
) {
    let mut wait = WAIT_FIRST;
    let mut heard = Instant::now();
    let mut silent = false;
    loop {
        let begun = Instant::now();
        match open(&endpoint, &topic).await {
            Ok(mut peer) => {
                tracing::info!(worker = %follower.name(), %endpoint, "KV events connected");
                silent = false;
                // A new life that others told of is not one more.
                if again.has_changed().unwrap_or(false) {
                    again.mark_unchanged();
                    follower.connected_anew().await;
                } else {
                    follower.connected().await;
                }
                let error = listen(&mut peer, &mut follower, &mut again).await;
                tracing::warn!(worker = %follower.name(), %endpoint, %error, "KV events broke off");
                follower.lost();
                heard = Instant::now();
                if begun.elapsed() >= HELD {
                    wait = WAIT_FIRST;
                }
            }
            Err(error) => {
                tracing::debug!(worker = %follower.name(), %endpoint, %error, "no KV events");
            }
        }
        if !silent && heard.elapsed() >= SILENT_AFTER {
            silent = true;
            follower.silent();
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(WAIT_MAX);
    }
}

async fn open(endpoint: &Endpoint, topic: &str) -> Result<Peer, ZmtpError> {
    let mut peer = Peer::connect(endpoint, Kind::Sub, CONNECT).await?;
    peer.subscribe(topic.as_bytes()).await?;
    Ok(peer)
}

async fn listen(
    peer: &mut Peer,
    follower: &mut Follower,
    again: &mut watch::Receiver<u64>,
) -> ZmtpError {
    loop {
        tokio::select! {
            // A new life that others told of is not to be found out once more.
            biased;
            // It fails only when this task is about to end.
            Ok(()) = again.changed() => follower.read_again().await,
            // Dropped before it is done, it loses nothing.
            arrived = peer.recv() => match arrived {
                Ok(frames) => follower.live(&frames).await,
                Err(error) => return error,
            },
        }
    }
}
