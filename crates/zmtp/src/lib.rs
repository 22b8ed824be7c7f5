//! ZeroMQ's wire protocol, as far as KV events need it: ZMTP 3.0 with the NULL mechanism over TCP and
//! Unix sockets, spoken with libzmq. Source: <https://rfc.zeromq.org/spec/23/>.
//!
//! A [`Peer`] is one connection. There are no sockets that hide several peers, queue without a bound or
//! reconnect on their own: whoever reads events must know when a connection broke, because that is when
//! messages are lost. What a peer may send is bounded, so a wrong one costs no memory.
//!
//! NULL means that nobody is authenticated: for trusted networks only.

mod endpoint;
mod frame;
mod listener;
mod peer;

pub use endpoint::{Endpoint, EndpointError};
pub use listener::{Incoming, Listener};
pub use peer::{Kind, Peer, Subscription, ZmtpError};

/// Most bytes of one message.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Most frames of one message.
pub const FRAMES_MAX: usize = 16;
