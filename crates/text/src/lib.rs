//! From a request to its block chain and session key.

pub mod harness;
pub mod identify;
pub mod keys;
pub mod scope;
mod session;

pub use identify::{Context, Identified, identify};
pub use keys::{model_key, response_key};
pub use scope::{Scope, scope};

#[cfg(test)]
mod tests;
