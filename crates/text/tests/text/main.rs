//! Templates against Python's Jinja2, ids against the Hugging Face tokenizers, over public
//! templates, tokenizers and texts where those are at hand.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr
)]

mod ids;
mod renderings;

use std::path::PathBuf;

/// A file or folder of the shared data; None, and a note, where it is not at hand.
fn data(path: &str) -> Option<PathBuf> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data");
    let path = PathBuf::from(root).join(path);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: {} is not at hand", path.display());
    None
}
