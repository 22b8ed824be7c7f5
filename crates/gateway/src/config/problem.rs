//! What is wrong with a configuration, and where.

use std::fmt;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line from 1; 0: not from a file (a flag).
    pub line: u32,
    /// Column from 1; 0: not from a file.
    pub column: u32,
    /// The field's path (`pools[0].workers[1].url`), a flag, or empty for the file as a whole.
    pub field: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "{}:{}: ", self.line, self.column)?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// The name among `known` that was probably meant: at most two edits away, or one in three letters.
pub(super) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let bound = (name.chars().count() / 3).clamp(1, 3);
    known
        .iter()
        .map(|candidate| (edits(name, candidate), *candidate))
        .filter(|(distance, _)| *distance <= bound)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance; both texts are short.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::{edits, nearest};

    #[test]
    fn distance_by_hand() {
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("same", "same"), 0);
    }

    #[test]
    fn suggests_only_what_is_near() {
        assert_eq!(nearest("sesion", &["session", "pin"]), Some("session"));
        assert_eq!(nearest("listne", &["listen", "limits"]), Some("listen"));
        assert_eq!(nearest("zzz", &["listen", "limits"]), None);
    }
}
