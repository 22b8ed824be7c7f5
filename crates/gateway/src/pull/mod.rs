//! Workers that pull: they connect to us, ask for a request when they have a free slot, and send the
//! answer back. For machines that can not be reached.
//!
//! `broker` knows the workers and keeps watch over them, `desk` holds the polls and jobs of one, `routes`
//! and `answering` speak to them, `pulled` is the answer's way into the relay. An attempt on such a worker
//! goes the same way as any other, with the same lease.

mod answering;
mod broker;
mod desk;
mod pulled;
mod routes;

pub(crate) use broker::Broker;
pub(crate) use desk::{Desk, Job};
pub(crate) use pulled::Pulled;
pub(crate) use routes::serve;

/// A new job's name, in the form of a UUID.
pub(crate) fn job_id() -> String {
    let (a, b) = crate::request_id::fresh();
    let text = format!("{a:016x}{b:016x}");
    let part = |from: usize, to: usize| text.get(from..to).unwrap_or_default();
    format!(
        "{}-{}-4{}-8{}-{}",
        part(0, 8),
        part(8, 12),
        part(13, 16),
        part(17, 20),
        part(20, 32)
    )
}
