//! The line: requests that wait for a seat, first come first served, bounded.
