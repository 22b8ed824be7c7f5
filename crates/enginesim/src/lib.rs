//! The simulated engine: what a continuous-batching inference server does with its time and its memory.
//!
//! Two halves, kept apart:
//!
//! * [`model`] is pure: no clock, no I/O; nanoseconds are an argument. The laboratory drives it in virtual time.
//! * [`server`] puts a socket and a clock around it: an OpenAI-compatible server that the demo, the tests and the benches use.
//!
//! [`tokens`] is the toy tokenizer both share. It is not a language model: the text it answers with means nothing.

pub mod model;
pub mod server;
pub mod tokens;
