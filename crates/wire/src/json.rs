//! An iterative JSON cursor over borrowed bytes.
