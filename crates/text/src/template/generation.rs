//! `{% generation %}`: Transformers marks the model's own words with it. It prints what it holds.
//!
//! The engine has no such tag, so it becomes a call block, which has the same scoping.

use std::borrow::Cow;

/// The function that the call block calls; it prints what the block holds.
pub(crate) const FUNCTION: &str = "__generation";

/// The template with `generation` blocks spelt as call blocks; all else as it stands, also where
/// the word is in text, strings, comments or raw blocks.
pub(crate) fn rewrite(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len() + 64);
    let mut rest = source;
    let mut raw = false;
    while let Some(start) = rest.find('{') {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let length = match tag.as_bytes().get(1) {
            Some(b'#') if !raw => tag.find("#}").map_or(tag.len(), |end| end + 2),
            Some(b'{') if !raw => closed(tag, "}}"),
            Some(b'%') => closed(tag, "%}"),
            _ => 1,
        };
        let (tag, after) = tag.split_at(length);
        rest = after;
        match statement(tag) {
            Some("endraw") => raw = false,
            Some("raw") => raw = true,
            Some("generation") if !raw => {
                out.push_str(&tag.replacen("generation", &format!("call {FUNCTION}()"), 1));
                continue;
            }
            Some("endgeneration") if !raw => {
                out.push_str(&tag.replacen("endgeneration", "endcall", 1));
                continue;
            }
            // Within a raw block a tag is text: its end may hide the true one.
            _ if raw && length > 1 => {
                out.push('{');
                rest = &rest_from(source, rest, tag)[1..];
                continue;
            }
            _ => {}
        }
        out.push_str(tag);
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Whether the template joins text marked `safe` with other text: Python escapes the other text
/// for HTML then, which is not done here.
pub(crate) fn joins_safe(source: &str) -> bool {
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        let tag = rest.get(start..).unwrap_or_default();
        let length = match tag.as_bytes().get(1) {
            Some(b'#') => tag.find("#}").map_or(tag.len(), |end| end + 2),
            Some(b'{') => closed(tag, "}}"),
            Some(b'%') => closed(tag, "%}"),
            _ => 1,
        };
        let (tag, after) = tag.split_at(length);
        let is_safe = |after: &str| {
            let name = after.trim_start();
            ["safe", "escape", "forceescape", "e"].iter().any(|filter| {
                let next = name.strip_prefix(filter).and_then(|n| n.chars().next());
                next.is_some_and(|c| !c.is_alphanumeric() && c != '_')
            })
        };
        // `~` joins without escaping where templates are not escaped as a whole.
        let joins = tag.contains('+');
        if joins && !tag.starts_with("{#") && tag.split('|').skip(1).any(is_safe) {
            return true;
        }
        rest = after;
    }
    false
}

/// The text from the beginning of `tag` on, which lies right before `rest`.
fn rest_from<'a>(source: &'a str, rest: &str, tag: &str) -> &'a str {
    source
        .get(source.len() - rest.len() - tag.len()..)
        .unwrap_or_default()
}

/// A statement's only word; None where it has several, or is no statement.
fn statement(tag: &str) -> Option<&str> {
    let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    Some(inner.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace()))
}

/// Bytes of a tag up to its end, which strings within it do not have.
fn closed(tag: &str, end: &str) -> usize {
    let bytes = tag.as_bytes();
    let mut quote = None;
    let mut at = 2;
    while let Some(byte) = bytes.get(at) {
        match quote {
            Some(_) if *byte == b'\\' => at += 1,
            Some(open) if open == *byte => quote = None,
            Some(_) => {}
            None if matches!(byte, b'"' | b'\'') => quote = Some(*byte),
            None if bytes.get(at..at + 2) == Some(end.as_bytes()) => return at + 2,
            None => {}
        }
        at += 1;
    }
    tag.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_becomes_a_call_block() {
        assert_eq!(
            rewrite(
                "a{%generation%}b{%- endgeneration +%}c{%-  generation -%}d{% endgeneration %}"
            ),
            "a{%call __generation()%}b{%- endcall +%}c{%-  call __generation() -%}d{% endcall %}"
        );
    }

    #[test]
    fn safe_text_joined_with_other_text_is_seen() {
        assert!(joins_safe("a{{ 'b' | safe + c }}"));
        assert!(joins_safe("{% set x = a + b|e %}"));
        assert!(!joins_safe("{% set x = a ~ b|e %}"));
        assert!(!joins_safe("{{ a | tojson | safe }} + {# a|safe + b #}"));
        assert!(!joins_safe("{{ a + b | default('e') | escaped }}"));
    }

    #[test]
    fn the_word_elsewhere_stays() {
        for source in [
            "{# {% generation %} #}",
            "{{ '{% generation %}' }}",
            "{% raw %}{% generation %}{{ '{% endraw %}",
            "{% set x = \"{% generation %}\\\" %}\" %}",
            "{% if add_generation_prompt %}generation{% endif %}",
            "no tags: generation { { %",
        ] {
            assert_eq!(rewrite(source), source);
        }
        let after = "{% raw %}{{ ' {% endraw %}{% generation %}";
        assert_eq!(
            rewrite(after),
            "{% raw %}{{ ' {% endraw %}{% call __generation() %}"
        );
    }
}
