//! One line on standard error that says where it stands; nothing where that is no terminal.

use std::io::{IsTerminal as _, Write as _};

pub(super) struct Progress {
    shown: bool,
    all: usize,
}

impl Progress {
    pub(super) fn new(all: usize) -> Self {
        Self {
            shown: std::io::stderr().is_terminal(),
            all,
        }
    }

    /// So many are done; `what` is one of them, or the one that is at work.
    pub(super) fn show(&self, done: usize, what: &str) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[2K{done} of {}: {what}", self.all);
        }
    }

    pub(super) fn clear(&self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}
