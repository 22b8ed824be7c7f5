//! Prometheus text exposition, read tolerantly.

/// One sample line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// The metric's name.
    pub name: &'a str,
    /// What stands between the braces; empty without.
    pub labels: &'a str,
    /// The value; may be infinite or not a number.
    pub value: f64,
}

impl<'a> Sample<'a> {
    /// A label's value as written (escapes not decoded).
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        loop {
            let (key, after) = rest.split_once('=')?;
            let quoted = after.trim_start().strip_prefix('"')?;
            let end = quote_end(quoted)?;
            if key.trim() == name {
                return quoted.get(..end);
            }
            rest = quoted.get(end + 1..)?.trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest);
        }
    }
}

/// Offset of the quote that ends a label's value.
fn quote_end(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}

/// Offset behind the brace that closes a line's labels; quotes may hold braces.
fn labels_end(text: &str) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = text.get(at..)?;
        at += rest.find(['"', '}'])?;
        if text.as_bytes()[at] == b'}' {
            return Some(at);
        }
        at += 1;
        at += quote_end(text.get(at..)?)? + 1;
    }
}

/// One line. None for comments and for what cannot be read.
fn sample(line: &str) -> Option<Sample<'_>> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let name_end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inner) => {
            let end = labels_end(inner)?;
            (inner.get(..end)?, inner.get(end + 1..)?)
        }
        None => ("", rest),
    };
    // A time stamp or an exemplar may follow.
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    (!name.is_empty()).then_some(Sample {
        name,
        labels,
        value,
    })
}

/// The samples of a text; comments and lines that cannot be read are passed over.
pub fn samples(text: &str) -> impl Iterator<Item = Sample<'_>> {
    text.lines().filter_map(sample)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn labels_and_values_are_read_and_the_rest_is_passed_over() {
        let text = "# HELP a b\n# TYPE a gauge\na{x=\"1\",y=\"b\\\"}, z\"} 2.5e1 1700000000\n\
                    b 3\nbroken{x=\"1 4\nc{} +Inf # {t=\"1\"} 1\n  d\t7\nnovalue\n";
        let all: Vec<_> = samples(text).collect();
        assert_eq!(all.len(), 4);
        assert_eq!(all[0].name, "a");
        assert_eq!(all[0].value, 25.0);
        assert_eq!(all[0].label("x"), Some("1"));
        assert_eq!(all[0].label("y"), Some("b\\\"}, z"));
        assert_eq!(all[0].label("z"), None);
        assert_eq!((all[1].name, all[1].value), ("b", 3.0));
        assert_eq!((all[2].name, all[2].value), ("c", f64::INFINITY));
        assert_eq!((all[3].name, all[3].value), ("d", 7.0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_text_panics(text in "[a-z{}\"\\\\=, \n0-9é.#]{0,200}") {
            for sample in samples(&text) {
                let _ = sample.label("a");
            }
        }
    }
}
