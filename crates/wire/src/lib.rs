//! Formats on the wire, pure: request bodies, event streams, usage, errors, metrics text.
//!
//! Nothing here does I/O, and nothing here re-serialises: a request is read from the client's own
//! bytes, which go to the worker unchanged.

pub mod answer;
pub mod content;
pub mod endpoint;
pub mod error;
pub mod fields;
pub mod head;
pub mod json;
pub mod kv;
pub mod opening;
pub mod prometheus;
pub mod splice;
pub mod sse;
pub mod usage;

pub use endpoint::{Endpoint, Family};
pub use head::{BodyError, BodyErrorKind, RequestHead};
pub use sse::StreamObserver;
pub use usage::WireUsage;
