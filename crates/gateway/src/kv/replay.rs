//! Asking an engine for what it still buffers.

use bytes::Bytes;
use maitred_wire::kv::{self, Replayed};
use maitred_zmtp::{Endpoint, Kind, Peer, ZmtpError};
use std::time::Duration;

/// Longest wait for the connection, and for each message.
const CONNECT: Duration = Duration::from_secs(3);
const SILENCE: Duration = Duration::from_secs(10);

/// Why a replay did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplayError {
    #[error(transparent)]
    Zmtp(#[from] ZmtpError),
    #[error(transparent)]
    Message(#[from] kv::KvError),
    #[error("nothing came for {SILENCE:?}")]
    Silence,
}

/// A replay that is on its way.
pub(super) struct Replay {
    peer: Peer,
}

/// A message of it.
pub(super) struct Again {
    pub(super) seq: u64,
    pub(super) payload: Bytes,
}

impl Replay {
    /// Asks for everything from `start` on.
    pub(super) async fn ask(endpoint: &Endpoint, start: u64) -> Result<Self, ReplayError> {
        let mut peer = Peer::connect(endpoint, Kind::Dealer, CONNECT).await?;
        let start = kv::replay_request(start);
        peer.send(&[&[], start.as_slice()]).await?;
        Ok(Self { peer })
    }

    /// The next message; none: that was all.
    pub(super) async fn next(&mut self) -> Result<Option<Again>, ReplayError> {
        let Ok(frames) = tokio::time::timeout(SILENCE, self.peer.recv()).await else {
            return Err(ReplayError::Silence);
        };
        let frames = frames?;
        let borrowed: Vec<&[u8]> = frames.iter().map(|frame| &frame[..]).collect();
        Ok(match kv::replayed(&borrowed)? {
            Replayed::End => None,
            Replayed::Batch { seq, .. } => Some(Again {
                seq,
                payload: frames.last().cloned().unwrap_or_default(),
            }),
        })
    }
}
