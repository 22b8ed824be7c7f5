//! Starting and stopping the gateway.

use crate::config::Config;
use crate::gateway::Gateway;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Why the gateway could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be bound.
    #[error("{setting}: cannot listen on {address}: {source}")]
    Bind {
        /// `listen` or `admin`.
        setting: &'static str,
        /// Which.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A setting is wrong.
    #[error("{setting}: {message}")]
    Setting {
        /// Its name, as in the configuration file.
        setting: String,
        /// What is wrong.
        message: String,
    },
    /// The record sink cannot be opened.
    #[error(transparent)]
    Records(#[from] maitred_records::SinkError),
}

/// A running gateway; shut it down with [`Running::shutdown`].
pub struct Running {
    /// Where clients connect (the real port where 0 was asked for).
    pub data: SocketAddr,
    /// Where operators connect.
    pub admin: SocketAddr,
    /// What it shares.
    pub gateway: Arc<Gateway>,
}

/// Starts a gateway on the current tokio runtime.
///
/// # Errors
/// An address, the record directory or a setting cannot be used; the error names it.
#[expect(clippy::unused_async, reason = "binding will await")]
pub async fn start(config: Config) -> Result<Running, StartError> {
    Err(StartError::Setting {
        setting: "listen".to_owned(),
        message: format!("{} is not served yet", config.listen),
    })
}

impl Running {
    /// Takes no new requests, lets running ones finish for at most `grace`, then ends everything.
    pub async fn shutdown(self, grace: Duration) {
        let _ = grace;
    }
}
