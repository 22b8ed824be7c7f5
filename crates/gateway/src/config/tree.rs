//! The file as a tree in which every key and value knows its place, and the way of taking it apart:
//! each field is taken by name, everything that is left over is a problem.

use super::problem::{Problem, nearest};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// A place in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: u32,
    pub(super) column: u32,
}

/// A value with its place.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    Flag(bool),
    Integer(i64),
    Number(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Place, String, Node)>),
}

impl Value {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Flag(_) => "true or false",
            Self::Integer(_) | Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
        }
    }
}

/// Reads the text; the one problem is its syntax.
pub(super) fn parse(text: &str) -> Result<Node, Problem> {
    if text.trim().is_empty() {
        return Ok(Node {
            place: Place { line: 1, column: 1 },
            value: Value::Map(Vec::new()),
        });
    }
    // YAML 1.2: a model named `n` is a text.
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options::<Node>(text, options).map_err(|error| {
        let (line, column) = error
            .location()
            .map_or((1, 1), |at| (at.line() as u32, at.column() as u32));
        Problem {
            line,
            column,
            field: String::new(),
            message: first_line(&error.without_snippet().to_string()),
        }
    })
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self {
            place: place_of(&spanned.referenced),
            value: spanned.value,
        })
    }
}

fn place_of(at: &serde_saphyr::Location) -> Place {
    Place {
        line: at.line() as u32,
        column: at.column() as u32,
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Integer(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(i64::try_from(number).map_or(Value::Number(number as f64), Value::Integer))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(node) = seq.next_element::<Node>()? {
            list.push(node);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let node = map.next_value::<Node>()?;
            entries.push((place_of(&key.referenced), key.value, node));
        }
        Ok(Value::Map(entries))
    }
}

/// A field that was taken: its path and its value.
#[derive(Clone, Debug)]
pub(super) struct Field<'a> {
    pub(super) path: String,
    pub(super) node: &'a Node,
}

impl Field<'_> {
    pub(super) fn problem(&self, message: impl Into<String>) -> Problem {
        Problem {
            line: self.node.place.line,
            column: self.node.place.column,
            field: self.path.clone(),
            message: message.into(),
        }
    }

    pub(super) fn wrong_kind(&self, wanted: &str) -> Problem {
        self.problem(format!(
            "must be {wanted}, but is {}",
            self.node.value.kind()
        ))
    }
}

/// A mapping that is being taken apart.
pub(super) struct Section<'a> {
    pub(super) path: String,
    pub(super) place: Place,
    entries: Vec<(Place, &'a str, &'a Node)>,
    known: Vec<&'static str>,
}

impl<'a> Section<'a> {
    /// Opens a mapping.
    pub(super) fn open(field: &Field<'a>) -> Result<Self, Problem> {
        let Value::Map(entries) = &field.node.value else {
            return Err(field.wrong_kind("a mapping"));
        };
        Ok(Self {
            path: field.path.clone(),
            place: field.node.place,
            entries: entries
                .iter()
                .map(|(place, key, node)| (*place, key.as_str(), node))
                .collect(),
            known: Vec::new(),
        })
    }

    /// Takes a field out; None where it is not set.
    pub(super) fn take(&mut self, key: &'static str) -> Option<Field<'a>> {
        self.known.push(key);
        let index = self.entries.iter().position(|(_, k, _)| *k == key)?;
        let (_, _, node) = self.entries.remove(index);
        (!matches!(node.value, Value::Null)).then(|| Field {
            path: self.path_of(key),
            node,
        })
    }

    /// All fields that are left, with the places of their keys.
    pub(super) fn rest(&mut self) -> Vec<(Place, &'a str, Field<'a>)> {
        std::mem::take(&mut self.entries)
            .into_iter()
            .map(|(place, key, node)| {
                let path = self.path_of(key);
                (place, key, Field { path, node })
            })
            .collect()
    }

    /// What is left over is unknown.
    pub(super) fn finish(mut self, problems: &mut Vec<Problem>) {
        for (place, key, field) in self.rest() {
            let message = match nearest(key, &self.known) {
                Some(name) => format!("unknown field; did you mean `{name}`?"),
                None => format!("unknown field; known here: {}", self.known.join(", ")),
            };
            problems.push(Problem {
                line: place.line,
                column: place.column,
                field: field.path,
                message,
            });
        }
    }

    /// A problem of the mapping as a whole, about one of its fields.
    pub(super) fn problem(&self, key: &str, message: impl Into<String>) -> Problem {
        Problem {
            line: self.place.line,
            column: self.place.column,
            field: self.path_of(key),
            message: message.into(),
        }
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }
}
