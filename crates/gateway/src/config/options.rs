//! A policy's name and its options: the same for placement and fairness, in files and in the admin API.

use super::problem::{Problem, nearest};
use super::tree::{Field, Section, Value};
use maitred_core::line::FairnessConfig;
use maitred_core::place::{OptionError, OptionValue, PolicyConfig};

/// A kind of policy that is chosen by name and set by options.
pub(crate) trait Choice: Sized {
    /// What it is called in messages.
    const KIND: &'static str;
    /// Every name.
    const KNOWN: &'static [&'static str];
    /// The one of that name with its defaults.
    fn choose(name: &str) -> Option<Self>;
    /// Its name.
    fn chosen(&self) -> &'static str;
    /// Sets one option.
    fn set_option(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError>;
}

impl Choice for PolicyConfig {
    const KIND: &'static str = "policy";
    const KNOWN: &'static [&'static str] = Self::NAMES;

    fn choose(name: &str) -> Option<Self> {
        Self::named(name).ok()
    }

    fn chosen(&self) -> &'static str {
        self.name()
    }

    fn set_option(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError> {
        self.set(option, value)
    }
}

impl Choice for FairnessConfig {
    const KIND: &'static str = "fairness";
    const KNOWN: &'static [&'static str] = Self::NAMES;

    fn choose(name: &str) -> Option<Self> {
        Self::named(name).ok()
    }

    fn chosen(&self) -> &'static str {
        self.name()
    }

    fn set_option(&mut self, option: &str, value: OptionValue<'_>) -> Result<(), OptionError> {
        self.set(option, value)
    }
}

/// A name, or a mapping with `name` and options.
pub(super) fn read<C: Choice>(field: &Field<'_>) -> Result<C, Problem> {
    if let Value::Text(name) = &field.node.value {
        return C::choose(name).ok_or_else(|| field.problem(unknown::<C>(name)));
    }
    let mut section = Section::open(field).map_err(|_| {
        let kind = C::KIND;
        field.wrong_kind(&format!("a {kind}'s name, or a mapping with `name`"))
    })?;
    let Some(name) = section.take("name") else {
        let kind = C::KIND;
        return Err(section.problem("name", format!("is missing: which {kind}?")));
    };
    let text = name.text()?;
    let mut choice = C::choose(text).ok_or_else(|| name.problem(unknown::<C>(text)))?;
    for (place, key, option) in section.rest() {
        let value = match &option.node.value {
            Value::Integer(n) => OptionValue::Number(*n as f64),
            Value::Number(n) => OptionValue::Number(*n),
            Value::Text(text) => OptionValue::Text(text),
            Value::Flag(flag) => OptionValue::Flag(*flag),
            _ => return Err(option.wrong_kind("a number, a text, true or false")),
        };
        if let Err(error) = choice.set_option(key, value) {
            let mut problem = option.problem(message(&choice, key, &error));
            if matches!(error, OptionError::UnknownOption(_)) {
                (problem.line, problem.column) = (place.line, place.column);
            }
            return Err(problem);
        }
    }
    Ok(choice)
}

/// Says that there is none of that name, which there are, and which was probably meant.
pub(crate) fn unknown<C: Choice>(name: &str) -> String {
    let kind = C::KIND;
    let hint = nearest(name, C::KNOWN)
        .map(|near| format!("did you mean `{near}`? "))
        .unwrap_or_default();
    format!(
        "unknown {kind} `{name}`; {hint}known: {}",
        C::KNOWN.join(", ")
    )
}

fn message<C: Choice>(choice: &C, option: &str, error: &OptionError) -> String {
    let (kind, name) = (C::KIND, choice.chosen());
    match error {
        OptionError::UnknownPolicy | OptionError::UnknownFairness => unknown::<C>(name),
        OptionError::BadValue(allowed) => format!("must be {allowed}"),
        OptionError::UnknownOption([]) => format!("{kind} `{name}` has no options"),
        OptionError::UnknownOption(known) => {
            let hint = nearest(option, known)
                .map(|near| format!("did you mean `{near}`? "))
                .unwrap_or_default();
            format!(
                "{kind} `{name}` has no such option; {hint}known: {}",
                known.join(", ")
            )
        }
    }
}

/// What the admin API's JSON names: `(field, message)` where it is wrong.
pub(crate) fn from_json<C: Choice>(
    name: &str,
    options: &serde_json::Map<String, serde_json::Value>,
) -> Result<C, (String, String)> {
    let mut choice = C::choose(name).ok_or_else(|| ("name".to_owned(), unknown::<C>(name)))?;
    for (key, value) in options {
        let field = format!("options.{key}");
        let value = match value {
            serde_json::Value::Number(n) => OptionValue::Number(n.as_f64().unwrap_or(f64::NAN)),
            serde_json::Value::String(text) => OptionValue::Text(text),
            serde_json::Value::Bool(flag) => OptionValue::Flag(*flag),
            _ => {
                return Err((field, "must be a number, a text, true or false".to_owned()));
            }
        };
        if let Err(error) = choice.set_option(key, value) {
            let message = message(&choice, key, &error);
            return Err((field, message));
        }
    }
    Ok(choice)
}
