//! relay: to be written.
