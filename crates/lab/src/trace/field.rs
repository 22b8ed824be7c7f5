//! Fields of a JSON object, each missing or wrong one told by its name.

use serde_json::{Map, Value};

use super::TraceError;
use super::lines::wrong;

/// An object of a line.
pub(super) struct Fields {
    map: Map<String, Value>,
    line: u64,
}

impl Fields {
    pub(super) fn parse(text: &[u8], line: u64) -> Result<Self, TraceError> {
        match serde_json::from_slice(text) {
            Ok(Value::Object(map)) => Ok(Self { map, line }),
            Ok(_) => Err(wrong(line, "line", "must be an object")),
            Err(error) => Err(wrong(line, "line", error.to_string())),
        }
    }

    pub(super) fn of(value: Value, line: u64, field: &str) -> Result<Self, TraceError> {
        match value {
            Value::Object(map) => Ok(Self { map, line }),
            _ => Err(wrong(line, field, "must be an object")),
        }
    }

    pub(super) fn map(&self) -> &Map<String, Value> {
        &self.map
    }

    pub(super) fn wrong(&self, field: &str, problem: &str) -> TraceError {
        wrong(self.line, field, problem)
    }

    fn get(&self, field: &str) -> Option<&Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    pub(super) fn take(&mut self, field: &str) -> Option<Value> {
        self.map.remove(field).filter(|value| !value.is_null())
    }

    /// A number, also one that is written as text.
    pub(super) fn number(&self, field: &str) -> Result<f64, TraceError> {
        (self.some_number(field)?).ok_or_else(|| self.wrong(field, "is missing"))
    }

    pub(super) fn some_number(&self, field: &str) -> Result<Option<f64>, TraceError> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        let number = value
            .as_f64()
            .or_else(|| value.as_str()?.trim().parse().ok());
        let finite = number.filter(|number: &f64| number.is_finite());
        finite
            .map(Some)
            .ok_or_else(|| self.wrong(field, "must be a number"))
    }

    /// A whole number of tokens.
    pub(super) fn tokens(&self, field: &str) -> Result<u32, TraceError> {
        (self.some_tokens(field)?).ok_or_else(|| self.wrong(field, "is missing"))
    }

    pub(super) fn some_tokens(&self, field: &str) -> Result<Option<u32>, TraceError> {
        let Some(number) = self.some_number(field)? else {
            return Ok(None);
        };
        if number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number) {
            Ok(Some(number as u32))
        } else {
            Err(self.wrong(field, "must be a whole number from 0 to 4294967295"))
        }
    }

    /// A name, also one that is written as a number.
    pub(super) fn name(&self, field: &str) -> Result<Option<String>, TraceError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(Value::Number(number)) => Ok(Some(number.to_string())),
            Some(_) => Err(self.wrong(field, "must be text or a number")),
        }
    }

    /// Ids; a field that is missing is an error.
    pub(super) fn ids(&self, field: &str) -> Result<Vec<u64>, TraceError> {
        let list = self
            .get(field)
            .ok_or_else(|| self.wrong(field, "is missing"))?;
        ids(list).ok_or_else(|| self.wrong(field, "must be a list of whole numbers from 0"))
    }
}

pub(super) fn ids(list: &Value) -> Option<Vec<u64>> {
    list.as_array()?.iter().map(Value::as_u64).collect()
}

/// Consecutive ids as spans.
pub(super) fn spans(ids: impl IntoIterator<Item = u64>) -> Vec<crate::plan::Span> {
    let mut spans: Vec<crate::plan::Span> = Vec::new();
    for id in ids {
        match spans.last_mut() {
            Some(last) if last.first + u64::from(last.count) == id => last.count += 1,
            _ => spans.push(crate::plan::Span {
                first: id,
                count: 1,
            }),
        }
    }
    spans
}

/// Numbers names in the order in which they come.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: std::collections::HashMap<String, u64>,
}

impl Names {
    pub(super) fn number(&mut self, name: &str) -> u64 {
        if let Some(number) = self.known.get(name) {
            return *number;
        }
        let number = self.known.len() as u64;
        self.known.insert(name.to_owned(), number);
        number
    }
}
