//! attempt: to be written.
