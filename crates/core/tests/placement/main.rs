//! Placement policies alone, in a room without a scheduler: properties that all share, and the
//! inputs on which other routers went wrong.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

mod herd;
mod properties;
mod room;
mod sessions;
mod spread;
