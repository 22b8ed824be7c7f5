//! Prometheus text exposition, read tolerantly.

/// One sample line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// The metric's name.
    pub name: &'a str,
    /// What stands between the braces; empty without.
    pub labels: &'a str,
    /// The value.
    pub value: f64,
}

impl<'a> Sample<'a> {
    /// A label's value as written (escapes not decoded).
    #[must_use]
    pub fn label(&self, _name: &str) -> Option<&'a str> {
        None
    }
}

/// The samples of a text; comments and lines that cannot be read are passed over.
pub fn samples(text: &str) -> impl Iterator<Item = Sample<'_>> {
    text.lines().filter_map(|_| None)
}
