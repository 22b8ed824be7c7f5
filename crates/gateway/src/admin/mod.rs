//! Admin: the operators own listener.
