//! Python's methods of strings, lists and mappings that templates call.

use super::python::is_space;
use minijinja::value::{Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

/// Our methods first, then those of `minijinja-contrib`.
pub(crate) fn unknown_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let found = match value.kind() {
        ValueKind::String => string(state, value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Seq if method == "index" => Some(list_index(value, args)?),
        ValueKind::Seq | ValueKind::Map if method == "copy" => Some(value.clone()),
        _ => None,
    };
    match found {
        Some(value) => Ok(value),
        None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn string(state: &State, text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let value = match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            strip(text, method, chars).into()
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "index" | "rindex" => {
            let (what,): (&str,) = from_args(args)?;
            let at = if method == "index" {
                text.find(what)
            } else {
                text.rfind(what)
            };
            let at = at.ok_or_else(|| failed("substring not found"))?;
            text.get(..at).unwrap_or_default().chars().count().into()
        }
        "partition" | "rpartition" => partition(text, method, args)?,
        "rsplit" => rsplit(text, args)?,
        "casefold" => {
            let () = from_args(args)?;
            text.to_lowercase().into()
        }
        "swapcase" => {
            let () = from_args(args)?;
            swapcase(text).into()
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            zfill(state, text, width)?.into()
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<&str>) = from_args(args)?;
            justify(state, text, method, width, fill.unwrap_or(" "))?.into()
        }
        _ => return Ok(None),
    };
    Ok(Some(value))
}

fn failed(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

fn strip<'a>(text: &'a str, method: &str, chars: Option<&str>) -> &'a str {
    let drop = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    match method {
        "lstrip" => text.trim_start_matches(drop),
        "rstrip" => text.trim_end_matches(drop),
        _ => text.trim_matches(drop),
    }
}

fn partition(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(args)?;
    if separator.is_empty() {
        return Err(failed("empty separator"));
    }
    let parts = if method == "partition" {
        text.split_once(separator)
            .map_or((text, "", ""), |(a, b)| (a, separator, b))
    } else {
        text.rsplit_once(separator)
            .map_or(("", "", text), |(a, b)| (a, separator, b))
    };
    Ok(Value::from((parts.0, parts.1, parts.2)))
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, splits): (Option<&str>, Option<i64>) = from_args(args)?;
    let parts = usize::try_from(splits.unwrap_or(-1)).map_or(usize::MAX, |n| n.saturating_add(1));
    let mut found: Vec<Value> = match separator {
        Some("") => return Err(failed("empty separator")),
        Some(separator) => text.rsplitn(parts, separator).map(Value::from).collect(),
        None => rsplit_space(text, parts),
    };
    found.reverse();
    Ok(Value::from(found))
}

/// From the end, at most `parts` pieces between runs of white space; the last one is the rest.
fn rsplit_space(text: &str, parts: usize) -> Vec<Value> {
    let mut found = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() {
        if found.len() + 1 == parts {
            found.push(Value::from(rest));
            break;
        }
        let word = rest.rfind(is_space).map_or(0, |at| {
            at + rest
                .get(at..)
                .and_then(|r| r.chars().next())
                .map_or(1, char::len_utf8)
        });
        found.push(Value::from(rest.get(word..).unwrap_or_default()));
        rest = rest
            .get(..word)
            .unwrap_or_default()
            .trim_end_matches(is_space);
    }
    found
}

fn swapcase(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_uppercase() {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
    }
    out
}

/// How many characters are missing to `width`; pays for them before they are made.
fn missing(state: &State, text: &str, width: usize) -> Result<usize, Error> {
    let missing = width.saturating_sub(text.chars().count());
    state.consume_fuel(missing as u64 / 64)?;
    // Without fuel nothing else bounds it.
    if missing > 1 << 20 {
        return Err(failed("string is padded too far"));
    }
    Ok(missing)
}

fn zfill(state: &State, text: &str, width: usize) -> Result<String, Error> {
    let zeros = "0".repeat(missing(state, text, width)?);
    Ok(match text.strip_prefix(['+', '-']) {
        Some(digits) => format!("{}{zeros}{digits}", &text[..1]),
        None => format!("{zeros}{text}"),
    })
}

fn justify(
    state: &State,
    text: &str,
    method: &str,
    width: usize,
    fill: &str,
) -> Result<String, Error> {
    if fill.chars().count() != 1 {
        return Err(failed(
            "the fill character must be exactly one character long",
        ));
    }
    let missing = missing(state, text, width)?;
    let left = match method {
        "ljust" => 0,
        "rjust" => missing,
        // As CPython has it: the odd one goes left where the width is odd.
        _ => missing / 2 + (missing & width & 1),
    };
    Ok(format!(
        "{}{text}{}",
        fill.repeat(left),
        fill.repeat(missing - left)
    ))
}

fn list_index(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (what,): (&Value,) = from_args(args)?;
    for (at, item) in value.try_iter()?.checked().enumerate() {
        if item? == *what {
            return Ok(Value::from(at));
        }
    }
    Err(failed("value is not in list"))
}
