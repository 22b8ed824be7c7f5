//! service: to be written.
