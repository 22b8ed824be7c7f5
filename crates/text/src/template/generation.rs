//! `{% generation %}`: Transformers marks the model's own words with it. It prints what it holds.
//!
//! The engine has no such tag, so it becomes a call block, which has the same scoping.

use super::tags::{Kind, tags, word};
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
    for (kind, tag) in tags(source) {
        match word(tag).filter(|_| kind == Kind::Statement) {
            Some("generation") => {
                out.push_str(&tag.replacen("generation", &format!("call {FUNCTION}()"), 1));
            }
            Some("endgeneration") => {
                out.push_str(&tag.replacen("endgeneration", "endcall", 1));
            }
            _ => out.push_str(tag),
        }
    }
    Cow::Owned(out)
}

/// Whether the template joins text marked `safe` with other text: Python escapes the other text
/// for HTML then, which is not done here.
pub(crate) fn joins_safe(source: &str) -> bool {
    let is_safe = |after: &str| {
        let name = after.trim_start();
        ["safe", "escape", "forceescape", "e"].iter().any(|filter| {
            let next = name.strip_prefix(filter).and_then(|n| n.chars().next());
            next.is_some_and(|c| !c.is_alphanumeric() && c != '_')
        })
    };
    // `~` joins without escaping where templates are not escaped as a whole.
    tags(source).any(|(kind, tag)| {
        kind != Kind::Text && tag.contains('+') && tag.split('|').skip(1).any(is_safe)
    })
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
