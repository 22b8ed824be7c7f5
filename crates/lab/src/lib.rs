//! The lab: in which a policy is chosen before anybody has to live with it.
//!
//! [`sim`] runs the scheduler of production in virtual time against modelled engines and causal clients;
//! [`plan`] is what clients will ask for, made by a generator of [`workload`]; [`grid`] plays a plan under many policies,
//! loads and seeds; [`scenario`] has the situations that are worth a table of their own; [`quantile`] is how waits are
//! summed up.
//! Nothing here reads a clock: equal inputs and an equal seed give equal results, byte for byte.

pub mod grid;
pub mod plan;
pub mod quantile;
pub mod scenario;
pub mod sim;
pub mod workload;
