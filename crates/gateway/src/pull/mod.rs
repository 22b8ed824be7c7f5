//! Workers that pull: they connect to us, ask for a request when they have a free slot, and send the
//! answer back. For machines that can not be reached.
//!
//! `broker` knows the workers and keeps watch over them, `desk` holds the polls and jobs of one, `waiting`
//! is a poll, `line` the connection that it waits on, `work` a request on its way, `past` what became of jobs; `routes` and `answering` speak to
//! workers in our own API, `horde` in the AI Horde's; `pulled` is the answer's way into the relay, `prompt`
//! the way of a request that becomes one plain prompt and of its text back. An attempt on such a worker goes
//! the same way as any other, with the same lease.

mod answering;
mod broker;
mod desk;
mod horde;
mod line;
mod past;
mod prompt;
mod pulled;
mod reply;
mod routes;
mod waiting;
mod work;

pub(crate) use broker::Broker;
pub use desk::PullView;
pub(crate) use desk::{Answer, Claim, Desk, Speaks};
pub(crate) use prompt::{Bounds, Prompt, is_plain};
pub(crate) use pulled::Pulled;
pub(crate) use routes::serve;
pub(crate) use work::{Loss, Work};

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
