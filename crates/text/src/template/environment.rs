//! The template engine made to behave as Transformers' Jinja2 does.

use super::generation;
use super::joined;
use super::methods::unknown_method;
use super::python::{Dumps, is_space};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, escape_formatter};
use std::borrow::Cow;

/// Depth of macros and includes that a template may reach.
const RECURSION_MAX: usize = 200;

/// The longest text of spaces that `indent=` gives.
const INDENT_MAX: usize = 64;

/// What a template raised itself, by `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("the template refused the request")]
pub(crate) struct Raised(pub(crate) String);

/// An environment without templates. `fuel` bounds the work of one rendering, in instructions and
/// in 64 bytes of text made.
///
/// # Errors
/// The syntax is refused; it never is.
pub(crate) fn environment(fuel: u64) -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?,
    );
    env.set_debug(false);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_recursion_limit(RECURSION_MAX);
    env.set_fuel(Some(fuel));
    env.set_unknown_method_callback(unknown_method);
    // As the engine's own, less indirect for texts: nothing is escaped.
    env.set_formatter(|out, state, value| match value.as_str() {
        Some(text) => out.write_str(text).map_err(Error::from),
        None => escape_formatter(out, state, value),
    });
    env.add_filter("tojson", tojson);
    env.add_filter("trim", trim);
    env.add_filter("indent", indent);
    env.add_filter(joined::FILTER, text_only);
    env.add_test("iterable", |value: &Value| {
        !value.is_none() && value.try_iter().is_ok()
    });
    env.add_test("sequence", |value: &Value| is_sequence(value));
    env.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
    env.add_function("raise_exception", raise_exception);
    env.add_function(generation::FUNCTION, |state: &mut State, args: Kwargs| {
        let caller: Value = args.get("caller")?;
        caller.call(state, &[])
    });
    Ok(env)
}

/// Python takes for a sequence what has a length and items by index: mappings and strings too.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined
    )
}

fn text_only(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.clone()),
        _ => Err(Error::from(ErrorKind::InvalidOperation)),
    }
}

fn raise_exception(message: Value) -> Result<Value, Error> {
    let raised = Raised(message.to_string());
    Err(Error::new(ErrorKind::InvalidOperation, "raised by the template").with_source(raised))
}

fn trim(value: &Value, chars: Option<Value>) -> Value {
    let owned;
    let text = match value.as_str() {
        Some(text) => text,
        None => {
            owned = value.to_string();
            &owned
        }
    };
    match chars.as_ref().and_then(Value::as_str) {
        Some(chars) => text.trim_matches(|c| chars.contains(c)).into(),
        None => text.trim_matches(is_space).into(),
    }
}

/// `indent(text, width=4, first=False, blank=False)`, which keeps a last line feed.
fn indent(
    text: Cow<'_, str>,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    named: Kwargs,
) -> Result<String, Error> {
    let width = match width {
        Some(width) => Some(width),
        None => named.get("width")?,
    };
    let first = first.or(named.get("first")?).unwrap_or(false);
    let blank = blank.or(named.get("blank")?).unwrap_or(false);
    named.assert_all_used()?;
    let indent = match &width {
        Some(width) => indent_text(width)?,
        None => " ".repeat(4),
    };
    let mut out = String::with_capacity(text.len() + 64);
    for (at, line) in lines(&text).into_iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        let is_first = at == 0;
        if (is_first && first) || (!is_first && (blank || !line.is_empty())) {
            out.push_str(&indent);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// The lines of a text with a line feed added, as Python's `splitlines` parts them.
fn lines(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut from = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let ends = matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        );
        if ends {
            found.push(text.get(from..at).unwrap_or_default());
            from = at + c.len_utf8();
            if c == '\r' && chars.next_if(|next| next.1 == '\n').is_some() {
                from += 1;
            }
        }
    }
    found.push(text.get(from..).unwrap_or_default());
    found
}

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, as
/// Transformers defines it over `json.dumps`.
fn tojson(state: &State, value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let mut given: Vec<Value> = args.0.into_iter().map(Value::from).collect();
    let named = match given.pop_if(|last| last.is_kwargs()) {
        Some(named) => Kwargs::try_from(named)?,
        None => Kwargs::from_iter(Vec::<(String, Value)>::new()),
    };
    if given.len() > 4 {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let argument = |at: usize, name: &str| -> Result<Option<Value>, Error> {
        let value = match given.get(at) {
            Some(value) => Some(value.clone()),
            None => named.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|v| !v.is_none() && !v.is_undefined()))
    };
    let ensure_ascii = argument(0, "ensure_ascii")?;
    let indent = argument(1, "indent")?;
    let separators = argument(2, "separators")?;
    let sort_keys = argument(3, "sort_keys")?;
    named.assert_all_used()?;
    let mut dumps = Dumps {
        ensure_ascii: ensure_ascii.is_some_and(|v| v.is_true()),
        sort_keys: sort_keys.is_some_and(|v| v.is_true()),
        indent: indent.as_ref().map(indent_text).transpose()?,
        ..Dumps::default()
    };
    if dumps.indent.is_some() {
        dumps.item = ",".to_owned();
    }
    if let Some(separators) = separators {
        dumps.item = separators.get_item_by_index(0)?.to_string();
        dumps.key = separators.get_item_by_index(1)?.to_string();
    }
    let text = dumps.text(value)?;
    state.consume_fuel(text.len() as u64 / 64)?;
    Ok(Value::from(text))
}

fn indent_text(indent: &Value) -> Result<String, Error> {
    match indent.kind() {
        ValueKind::String => Ok(indent.to_string()),
        _ => {
            let width = i64::try_from(indent.clone())?;
            let width = usize::try_from(width).unwrap_or_default();
            Ok(" ".repeat(width.min(INDENT_MAX)))
        }
    }
}
