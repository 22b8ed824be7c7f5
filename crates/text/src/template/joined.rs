//! Texts that a template joins by `+` or `~` only to print them are printed one after another
//! instead: joining copies a message several times.
//!
//! `{{ '<' + a + b }}` prints what `{{ '<' }}{{ a }}{{ b }}` prints if `a` and `b` are strings, and
//! fails if one of them is none: nothing else can be added to a string. A filter sees to that.

use super::tags::{Kind, tags};

/// Passes strings, and fails on all else as `+` would.
pub(crate) const FILTER: &str = "__joined";

/// Words that bind less tightly than what joins.
const LOOSER: [&str; 8] = ["if", "else", "or", "and", "not", "in", "is", "recursive"];

/// The template with printed sums of texts spelt one by one; all else as it stands.
pub(crate) fn rewrite(source: &str) -> String {
    let mut out = String::with_capacity(source.len() + source.len() / 4);
    for (kind, tag) in tags(source) {
        if kind != Kind::Print || !apart(tag, &mut out) {
            out.push_str(tag);
        }
    }
    out
}

/// Writes the tag's operands as tags of their own; false, and nothing written, where it is no
/// such sum.
fn apart(tag: &str, out: &mut String) -> bool {
    let inner = tag.strip_prefix("{{").and_then(|t| t.strip_suffix("}}"));
    let Some(inner) = inner else { return false };
    let (begin, inner) = inner.split_at(usize::from(inner.starts_with(['-', '+'])));
    let trims = usize::from(inner.len() > 1 && inner.ends_with(['-', '+']));
    let Some((inner, end)) = inner.split_at_checked(inner.len() - trims) else {
        return false;
    };
    let Some((by, operands)) = operands(inner) else {
        return false;
    };
    // A string among the first two makes the sum one of strings.
    let is_text = by == '~' || operands.iter().take(2).any(|some| is_literal(some));
    if operands.len() < 2 || !is_text || operands.iter().any(|some| some.trim().is_empty()) {
        return false;
    }
    let last = operands.len() - 1;
    for (at, operand) in operands.iter().enumerate() {
        out.push_str("{{");
        out.push_str(if at == 0 { begin } else { "" });
        if is_literal(operand) {
            out.push(' ');
            out.push_str(operand);
        } else {
            out.push_str(" (");
            out.push_str(operand);
            out.push(')');
            if by == '+' {
                out.push('|');
                out.push_str(FILTER);
            }
        }
        out.push(' ');
        out.push_str(if at == last { end } else { "" });
        out.push_str("}}");
    }
    true
}

/// What stands between `+`, or between `~`, outside of all brackets and strings; None where there
/// is another operator too, as loose as these or looser.
fn operands(inner: &str) -> Option<(char, Vec<&str>)> {
    let bytes = inner.as_bytes();
    let mut found = Vec::new();
    let (mut by, mut from, mut depth, mut at) = (None, 0, 0_usize, 0);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' | b'\'' => at = string_end(bytes, at)?,
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.checked_sub(1)?,
            _ if depth > 0 => {}
            b'+' | b'~' => {
                if *by.get_or_insert(char::from(byte)) != char::from(byte) {
                    return None;
                }
                found.push(inner.get(from..at)?);
                from = at + 1;
            }
            b'|' | b'.' | b'_' => {}
            _ if byte.is_ascii_whitespace() => {}
            _ if byte.is_ascii_alphabetic() => {
                let rest = inner.get(at..)?;
                let ends = |c: char| !c.is_ascii_alphanumeric() && c != '_';
                let word = rest.get(..rest.find(ends).unwrap_or(rest.len()))?;
                if LOOSER.contains(&word) {
                    return None;
                }
                at += word.len() - 1;
            }
            // Digits within names are read with them; numbers may be signed.
            _ => return None,
        }
        at += 1;
    }
    found.push(inner.get(from..)?);
    (depth == 0).then_some((by?, found))
}

/// Where the string ends that begins here.
fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let quote = bytes.get(start)?;
    let mut at = start + 1;
    loop {
        match bytes.get(at)? {
            b'\\' => at += 2,
            byte if byte == quote => return Some(at),
            _ => at += 1,
        }
    }
}

/// Whether an operand is one string and nothing else.
fn is_literal(operand: &str) -> bool {
    let operand = operand.trim().as_bytes();
    let quoted = matches!(operand.first(), Some(b'"' | b'\''));
    quoted && string_end(operand, 0) == Some(operand.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_texts_are_printed_one_by_one() {
        for (source, spelt) in [
            (
                "{{- '<' + m.role + \"\\n\" + m['a b']|trim }}",
                "{{-  '<'  }}{{ ( m.role )|__joined }}{{  \"\\n\"  }}{{ ( m['a b']|trim )|__joined }}",
            ),
            ("{{a+'}}'-}}", "{{ (a)|__joined }}{{ '}}' -}}"),
            ("{{ a ~ b1 }}", "{{ ( a ) }}{{ ( b1 ) }}"),
            (
                "{{ 'a' + f(b + 1, c) }}",
                "{{  'a'  }}{{ ( f(b + 1, c) )|__joined }}",
            ),
        ] {
            assert_eq!(rewrite(source), spelt);
        }
    }

    #[test]
    fn all_else_stays() {
        for source in [
            "{{ a + b }}",
            "{{ 1 + 2 }}",
            "{{ a + b + 'c' }}",
            "{{ 'a' 'b' + c if d else e }}",
            "{{ 'a' + b if c }}",
            "{{ 'a' + b == c }}",
            "{{ 'a' + b - c }}",
            "{{ 'a' + b * 2 }}",
            "{{ 'a' + b ~ c }}",
            "{{ 'a' + b is string }}",
            "{{ 'a' + b, c }}",
            "{{ 'a' 'b' + c }}",
            "{{ 'a' + }}",
            "{{ 'a' + {'b': {}}['c'] - '{{ \"a\" + b }}' }}",
            "{{ ('a' + b) | trim }}",
            "{{ 'a+b' }}",
            "{# {{ 'a' + b }} #}{% raw %}{{ 'a' + b }}{% endraw %}",
            "{% set a = 'a' + b %}",
            "{{ 'a + b",
            "{{ - }}{{-}}{{}}",
        ] {
            assert_eq!(rewrite(source), source);
        }
    }
}
