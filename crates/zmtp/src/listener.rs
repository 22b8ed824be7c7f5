//! Waiting for peers.

use crate::{Endpoint, Kind, Peer, ZmtpError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Longest handshake with a peer that connected.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A bound endpoint.
#[derive(Debug)]
pub struct Listener {
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    Tcp(TcpListener),
    Ipc(UnixListener, PathBuf),
}

/// A connection that was accepted; its handshake is still to come, so that none waits for another's.
#[derive(Debug)]
pub struct Incoming(Accepted);

#[derive(Debug)]
enum Accepted {
    Tcp(TcpStream),
    Ipc(UnixStream),
}

impl Listener {
    /// Binds.
    ///
    /// # Errors
    /// It cannot be bound.
    pub async fn bind(endpoint: &Endpoint) -> io::Result<Self> {
        let inner = match endpoint {
            Endpoint::Tcp { host, port } if host == "*" => {
                Inner::Tcp(TcpListener::bind(("0.0.0.0", *port)).await?)
            }
            Endpoint::Tcp { host, port } => {
                Inner::Tcp(TcpListener::bind((host.as_str(), *port)).await?)
            }
            Endpoint::Ipc(path) => Inner::Ipc(bind_ipc(path)?, path.clone()),
        };
        Ok(Self { inner })
    }

    /// Takes over a bound listener.
    #[must_use]
    pub fn of_tcp(listener: TcpListener) -> Self {
        Self {
            inner: Inner::Tcp(listener),
        }
    }

    /// The address that it really has.
    ///
    /// # Errors
    /// The system does not say.
    pub fn endpoint(&self) -> io::Result<Endpoint> {
        match &self.inner {
            Inner::Tcp(listener) => listener.local_addr().map(|address| Endpoint::Tcp {
                host: address.ip().to_string(),
                port: address.port(),
            }),
            Inner::Ipc(_, path) => Ok(Endpoint::Ipc(path.clone())),
        }
    }

    /// Waits for a peer.
    ///
    /// # Errors
    /// The system is out of something; others must close first.
    pub async fn accept(&self) -> io::Result<Incoming> {
        Ok(Incoming(match &self.inner {
            Inner::Tcp(listener) => Accepted::Tcp(listener.accept().await?.0),
            Inner::Ipc(listener, _) => Accepted::Ipc(listener.accept().await?.0),
        }))
    }
}

/// A path that nobody listens at any more is bound anew.
fn bind_ipc(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Self::Ipc(_, path) = self {
            // Somebody else may have removed it, and that is as good.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Incoming {
    /// Shakes hands as `kind`.
    ///
    /// # Errors
    /// The peer is somebody else, or too slow.
    pub async fn shake(self, kind: Kind) -> Result<Peer, ZmtpError> {
        let shaking = async {
            match self.0 {
                Accepted::Tcp(stream) => Peer::over_tcp(stream, kind).await,
                Accepted::Ipc(stream) => Peer::over_ipc(stream, kind).await,
            }
        };
        match tokio::time::timeout(HANDSHAKE, shaking).await {
            Ok(shaken) => shaken,
            Err(_) => Err(ZmtpError::Timeout(HANDSHAKE)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::Listener;
    use crate::{Endpoint, Kind, Peer, Subscription, ZmtpError};
    use std::time::Duration;

    const SOON: Duration = Duration::from_secs(20);

    async fn tcp() -> (Listener, Endpoint) {
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listener = Listener::of_tcp(socket);
        let endpoint = listener.endpoint().unwrap();
        (listener, endpoint)
    }

    async fn pair(
        listener: &Listener,
        endpoint: &Endpoint,
        kinds: (Kind, Kind),
    ) -> (Result<Peer, ZmtpError>, Result<Peer, ZmtpError>) {
        tokio::join!(Peer::connect(endpoint, kinds.0, SOON), async {
            listener.accept().await.unwrap().shake(kinds.1).await
        })
    }

    #[tokio::test]
    async fn subscribers_and_publishers_talk() {
        let dir = tempfile::tempdir().unwrap();
        let ipc = Endpoint::Ipc(dir.path().join("kv"));
        let here = Listener::bind(&ipc).await.unwrap();
        for (listener, endpoint) in [tcp().await, (here, ipc)] {
            let (sub, publisher) = pair(&listener, &endpoint, (Kind::Sub, Kind::Pub)).await;
            let (mut sub, mut publisher) = (sub.unwrap(), publisher.unwrap());
            sub.subscribe(b"kv@").await.unwrap();
            let said = publisher.subscription().await.unwrap();
            assert_eq!(said, Subscription::Add("kv@".into()));
            // More than both sides buffer, so that sending must wait for receiving.
            let long = vec![5; 10 << 20];
            let frames = [b"kv@a".as_slice(), b"12345678", &long];
            let (sent, received) = tokio::join!(publisher.send(&frames), sub.recv());
            sent.unwrap();
            assert_eq!(received.unwrap(), frames);
            drop(publisher);
            assert!(matches!(sub.recv().await, Err(ZmtpError::Closed)));
        }
    }

    #[tokio::test]
    async fn wrong_peers_are_refused() {
        let (listener, endpoint) = tcp().await;
        let (one, other) = pair(&listener, &endpoint, (Kind::Sub, Kind::Router)).await;
        assert!(matches!(one, Err(ZmtpError::Protocol(_))));
        assert!(other.is_err());
        let Endpoint::Tcp { host, port } = &endpoint else {
            panic!("{endpoint}");
        };
        let mut stream = tokio::net::TcpStream::connect((host.as_str(), *port))
            .await
            .unwrap();
        let incoming = listener.accept().await.unwrap();
        let request = [b'x'; 64];
        tokio::io::AsyncWriteExt::write_all(&mut stream, &request)
            .await
            .unwrap();
        let refused = incoming.shake(Kind::Sub).await;
        assert!(matches!(refused, Err(ZmtpError::Protocol(_))));
    }

    #[tokio::test]
    async fn a_promise_of_much_is_not_believed() {
        let (listener, endpoint) = tcp().await;
        let (dealer, router) = pair(&listener, &endpoint, (Kind::Dealer, Kind::Router)).await;
        let (mut dealer, mut router) = (dealer.unwrap(), router.unwrap());
        let many = vec![b""; crate::FRAMES_MAX + 1];
        dealer.send(&many).await.unwrap();
        assert!(matches!(router.recv().await, Err(ZmtpError::TooLong)));
        let (sub, publisher) = pair(&listener, &endpoint, (Kind::Sub, Kind::Pub)).await;
        let (mut sub, mut publisher) = (sub.unwrap(), publisher.unwrap());
        sub.subscribe(&vec![b'a'; 100_000]).await.unwrap();
        let said = publisher.subscription().await;
        assert!(matches!(said, Err(ZmtpError::TooLong)));
    }
}
