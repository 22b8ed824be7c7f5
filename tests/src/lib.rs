//! Scripted workers and raw clients for the scenarios in `tests/`.
