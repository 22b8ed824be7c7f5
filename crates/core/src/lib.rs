//! The maitred scheduler: which worker a request sits on, and when.
//!
//! This crate decides and does nothing else. It has no I/O, no clock, no threads, no async and no
//! global state: the time (nanoseconds) and the seed are arguments, and what is to be done comes
//! back as [`Effect`]s. Equal inputs and an equal seed give equal effects, so a recorded list of
//! inputs is a regression test. `no_std` keeps it so: no clock, socket, file, thread or randomly
//! seeded hasher can even be named here.
//!
//! The public way in is [`Scheduler::handle`].
#![no_std]

extern crate alloc;

pub mod cost;
pub mod decision;
pub mod ids;
pub mod input;
pub mod limits;
pub mod line;
pub mod miss;
pub mod place;
pub mod pool;
pub mod prefix;
pub mod request;
pub mod rng;
pub mod scheduler;
pub mod session;
pub mod time;

pub use decision::Decision;
pub use ids::{AttemptId, RequestId, WorkerId};
pub use input::{Effect, Input};
pub use request::Arrival;
pub use scheduler::Scheduler;
pub use time::Nanos;
