//! listener: to be written.
