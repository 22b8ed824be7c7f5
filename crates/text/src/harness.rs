//! Headers by which known coding agents and front ends name their session.
