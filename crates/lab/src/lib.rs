//! The lab: in which a policy is chosen before anybody has to live with it.
//!
//! [`sim`] runs the scheduler of production in virtual time against modelled engines and causal clients;
//! [`plan`] is what clients will ask for, made by a generator of [`workload`] or read from a [`trace`]; [`grid`] plays a plan under many policies,
//! loads and seeds; [`scenario`] has the situations that are worth a table of their own; [`fit`] finds the
//! engine model's constants in records, [`review`] says what records tell of a time in service, [`report`] draws, [`quantile`] is how waits are summed up.
//! Nothing here reads a clock: equal inputs and an equal seed give equal results, byte for byte.

pub mod fit;
pub mod grid;
pub mod plan;
pub mod quantile;
pub mod report;
pub mod review;
pub mod scenario;
pub mod sim;
pub mod trace;
pub mod workload;
