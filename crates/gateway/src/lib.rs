//! The live gateway: the only owner of a clock and of sockets.
//!
//! [`start`] takes a checked [`Config`], binds the data listener and the admin listener, and starts
//! one task per worker that probes and scrapes it. Decisions are made by [`maitred_core::Scheduler`],
//! one per pool; this crate feeds it inputs and carries out its effects.
//!
//! The way in, by file: `listener` accepts, `service` routes, `body` reads, `pool` and `driver` hold the
//! scheduler, `attempt` opens one try on an `upstream`, `relay` streams the answer back, `reply`
//! words our own answers. Beside it: [`fleet`] (health and signals), [`admin`], [`metrics`], [`recent`].

pub mod admin;
mod attempt;
mod body;
pub mod config;
mod decode;
pub mod driver;
pub mod fleet;
mod gateway;
mod headers;
pub mod kv;
mod listener;
pub mod metrics;
pub mod pool;
mod pull;
pub mod recent;
mod relay;
mod reply;
mod request_id;
#[cfg(test)]
mod scripted;
mod service;
mod start;
mod tenants;
pub mod text;
pub mod upstream;

pub use config::Config;
pub use gateway::Gateway;
pub use pull::PullView;
pub use start::{Running, StartError, start};
pub use tenants::{Registry, Tenant, tenant_id};
