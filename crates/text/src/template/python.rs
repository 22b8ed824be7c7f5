//! Values as Python writes them: `json.dumps`, float text, white space.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::fmt::Write;

/// Nesting up to which values are written.
const DEPTH_MAX: usize = 256;

/// How `json.dumps` writes.
pub(crate) struct Dumps {
    /// Whether all but ASCII is escaped.
    pub(crate) ensure_ascii: bool,
    /// What one level is indented by; None writes all in one line.
    pub(crate) indent: Option<String>,
    /// Stands between items.
    pub(crate) item: String,
    /// Stands between a key and its value.
    pub(crate) key: String,
    /// Whether keys are sorted.
    pub(crate) sort_keys: bool,
}

impl Default for Dumps {
    fn default() -> Self {
        Self {
            ensure_ascii: false,
            indent: None,
            item: ", ".to_owned(),
            key: ": ".to_owned(),
            sort_keys: false,
        }
    }
}

impl Dumps {
    /// The text of `value`.
    ///
    /// # Errors
    /// Python would raise: an undefined value, a function, a key that is no scalar, or nesting
    /// without end.
    pub(crate) fn text(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.value(value, 0, &mut out)?;
        Ok(out)
    }

    fn value(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(refused("value is nested too deep for JSON"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Map => self.map(value, depth, out)?,
            ValueKind::Seq => self.list(value, depth, out)?,
            _ => return Err(refused("value has no JSON form")),
        }
        Ok(())
    }

    fn list(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let mut first = true;
        for item in value.try_iter()?.checked() {
            out.push_str(if first { "[" } else { &self.item });
            first = false;
            self.line(depth + 1, out);
            self.value(&item?, depth + 1, out)?;
        }
        self.close(first, "[", ']', depth, out);
        Ok(())
    }

    fn map(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let mut members = Vec::new();
        for key in value.try_iter()?.checked() {
            let key = key?;
            let member = value.get_item(&key)?;
            let name = match key.kind() {
                ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
                ValueKind::Number => number(&key),
                ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
                ValueKind::None => "null".to_owned(),
                _ => return Err(refused("key has no JSON form")),
            };
            members.push((name, member));
        }
        if self.sort_keys {
            members.sort_by(|a, b| a.0.cmp(&b.0));
        }
        let mut first = true;
        for (name, member) in &members {
            out.push_str(if first { "{" } else { &self.item });
            first = false;
            self.line(depth + 1, out);
            self.string(name, out);
            out.push_str(&self.key);
            self.value(member, depth + 1, out)?;
        }
        self.close(first, "{", '}', depth, out);
        Ok(())
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    fn close(&self, empty: bool, opening: &str, closing: char, depth: usize, out: &mut String) {
        if empty {
            out.push_str(opening);
        } else {
            self.line(depth, out);
        }
        out.push(closing);
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        let mut plain = 0;
        for (at, c) in text.char_indices() {
            let escape = match c {
                '"' => "\\\"",
                '\\' => "\\\\",
                '\n' => "\\n",
                '\r' => "\\r",
                '\t' => "\\t",
                '\u{8}' => "\\b",
                '\u{c}' => "\\f",
                c if c < ' ' || (self.ensure_ascii && !c.is_ascii()) => "",
                _ => continue,
            };
            out.push_str(text.get(plain..at).unwrap_or_default());
            plain = at + c.len_utf8();
            if escape.is_empty() {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            } else {
                out.push_str(escape);
            }
        }
        out.push_str(text.get(plain..).unwrap_or_default());
        out.push('"');
    }
}

fn refused(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// A number as Python's `json.dumps` writes it.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
}

/// Python's `repr` of a float: the shortest digits that read back, an exponent of two digits at
/// least from `1e16` on and below `1e-4`. Rust's `Debug` has the same bounds.
pub(crate) fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let text = format!("{value:?}");
    let Some((digits, exponent)) = text.split_once('e') else {
        return text;
    };
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(rest) => ('-', rest),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

/// What Python's `str.strip` takes for white space: Unicode's, and four separators that are
/// control characters.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (value, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e20, "1e+20"),
            (1e16, "1e+16"),
            (123_456_789_012_345.0, "123456789012345.0"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (1.5e-7, "1.5e-07"),
            (-2.5e300, "-2.5e+300"),
        ] {
            assert_eq!(float(value), text);
        }
    }

    #[test]
    fn dumps_has_pythons_separators_escapes_and_order() {
        let value = Value::from_pairs([
            ("z", Value::from("<a & 'b'> \"é\"\n\u{1}")),
            ("a", Value::from(vec![Value::from(1), Value::from(())])),
            ("e", Value::from(Vec::<Value>::new())),
        ]);
        assert_eq!(
            Dumps::default().text(&value).unwrap(),
            "{\"z\": \"<a & 'b'> \\\"é\\\"\\n\\u0001\", \"a\": [1, null], \"e\": []}"
        );
        let pretty = Dumps {
            indent: Some("  ".to_owned()),
            item: ",".to_owned(),
            ensure_ascii: true,
            sort_keys: true,
            ..Dumps::default()
        };
        assert_eq!(
            pretty.text(&value).unwrap(),
            "{\n  \"a\": [\n    1,\n    null\n  ],\n  \"e\": [],\n  \"z\": \"<a & 'b'> \\\"\\u00e9\\\"\\n\\u0001\"\n}"
        );
        assert!(Dumps::default().text(&Value::UNDEFINED).is_err());
    }
}
