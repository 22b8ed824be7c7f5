//! Addresses as ZeroMQ writes them.

use std::fmt;
use std::path::PathBuf;

/// Where a peer is, or where to wait for peers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `tcp://host:port`; the host `*` is every address (only to wait at).
    Tcp {
        /// Name or address, IPv6 without brackets.
        host: String,
        /// Port.
        port: u16,
    },
    /// `ipc:///path/of/socket`.
    Ipc(PathBuf),
}

/// Why a text is no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Neither of the two forms.
    #[error("must be of the form tcp://host:port or ipc:///path")]
    Form,
    /// The port is none.
    #[error("must have a port from 1 to 65535")]
    Port,
    /// The last rank has no port.
    #[error("leaves the last rank a port above 65535")]
    Rank,
}

impl Endpoint {
    /// Reads `tcp://host:port` or `ipc:///path`.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        if let Some(path) = text.strip_prefix("ipc://") {
            if path.is_empty() || path.contains('\0') {
                return Err(EndpointError::Form);
            }
            return Ok(Self::Ipc(PathBuf::from(path)));
        }
        let rest = text.strip_prefix("tcp://").ok_or(EndpointError::Form)?;
        let (host, port) = rest.rsplit_once(':').ok_or(EndpointError::Form)?;
        let host = match host.strip_prefix('[') {
            Some(host) => host.strip_suffix(']').ok_or(EndpointError::Form)?,
            None if host.contains(':') => return Err(EndpointError::Form),
            None => host,
        };
        if host.is_empty() || host.contains(['/', '@', ' ']) {
            return Err(EndpointError::Form);
        }
        match port.parse() {
            Ok(port) if port > 0 => Ok(Self::Tcp {
                host: host.to_owned(),
                port,
            }),
            _ => Err(EndpointError::Port),
        }
    }

    /// The endpoint of a data-parallel rank, as engines lay them out: the port, or a number after the
    /// path, counts up.
    ///
    /// # Errors
    /// There is no such port.
    pub fn of_rank(&self, rank: u16) -> Result<Self, EndpointError> {
        Ok(match self {
            Self::Tcp { host, port } => Self::Tcp {
                host: host.clone(),
                port: port.checked_add(rank).ok_or(EndpointError::Rank)?,
            },
            Self::Ipc(path) if rank > 0 => {
                let mut path = path.clone().into_os_string();
                path.push(format!("_dp{rank}"));
                Self::Ipc(PathBuf::from(path))
            }
            Self::Ipc(path) => Self::Ipc(path.clone()),
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Self::Ipc(path) => write!(f, "ipc://{}", path.display()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{Endpoint, EndpointError};

    #[test]
    fn endpoints_are_read_and_shown_alike() {
        for text in [
            "tcp://127.0.0.1:5557",
            "tcp://*:1",
            "tcp://[::1]:5557",
            "tcp://engine-0.pool:65535",
            "ipc:///run/kv.sock",
        ] {
            assert_eq!(Endpoint::parse(text).unwrap().to_string(), text);
        }
        for text in [
            "",
            "127.0.0.1:1",
            "tcp://",
            "tcp://:1",
            "tcp://::1:1",
            "tcp://a b:1",
            "ipc://",
            "tcp://a",
        ] {
            assert_eq!(Endpoint::parse(text), Err(EndpointError::Form), "{text}");
        }
        for text in ["tcp://a:0", "tcp://a:65536", "tcp://a:", "tcp://a:-1"] {
            assert_eq!(Endpoint::parse(text), Err(EndpointError::Port), "{text}");
        }
    }

    #[test]
    fn ranks_count_up() {
        let base = Endpoint::parse("tcp://h:5557").unwrap();
        assert_eq!(base.of_rank(2).unwrap().to_string(), "tcp://h:5559");
        assert_eq!(base.of_rank(u16::MAX), Err(EndpointError::Rank));
        let base = Endpoint::parse("ipc:///run/kv").unwrap();
        assert_eq!(base.of_rank(0), Ok(base.clone()));
        assert_eq!(base.of_rank(1).unwrap().to_string(), "ipc:///run/kv_dp1");
    }
}
