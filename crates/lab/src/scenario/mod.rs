//! Situations that are worth a table of their own.

pub mod starvation;
