//! From a request to its block chain and session key.
//!
//! Feature `tokens`: chains over token ids, by the model's own chat template and tokenizer.

pub mod harness;
pub mod identify;
pub mod keys;
#[cfg(feature = "tokens")]
mod memo;
#[cfg(feature = "tokens")]
pub mod model;
#[cfg(feature = "tokens")]
mod pieces;
#[cfg(feature = "tokens")]
mod prefixes;
pub mod scope;
mod session;
#[cfg(feature = "tokens")]
pub mod template;
#[cfg(feature = "tokens")]
pub mod tokenizer;

pub use identify::{Context, Identified, identify, identify_without_chain};
pub use keys::{model_key, response_key};
#[cfg(feature = "tokens")]
pub use model::{Fallback, ModelFiles, TextLimits, TextModel, TextOptions};
#[cfg(feature = "tokens")]
pub use pieces::Pieces;
#[cfg(feature = "tokens")]
pub use prefixes::{ChainPlan, Cutting, TokenChain};
pub use scope::{Scope, scope};

#[cfg(test)]
mod tests;
