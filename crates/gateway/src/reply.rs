//! reply: to be written.
