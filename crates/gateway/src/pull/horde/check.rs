//! What is wrong with a body's fields, in the words that the Horde's framework has for it.

use serde_json::{Map, Value, json};

/// Field by field. Of one field the first fault counts.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) found: Map<String, Value>,
}

impl Faults {
    fn add(&mut self, field: &str, message: String) {
        self.found.entry(field).or_insert(json!(message));
    }

    /// A field that must be there is not.
    pub(super) fn missing(&mut self, field: &str, place: &str) {
        let message = format!("Missing required parameter in {place}");
        self.add(field, message);
    }

    fn wrong_type(&mut self, field: &str, value: &Value, wanted: &str) {
        self.add(field, format!("{} is not of type '{wanted}'", shown(value)));
    }

    /// A text of at most `most` characters.
    pub(super) fn text(
        &mut self,
        body: &Map<String, Value>,
        field: &str,
        most: usize,
    ) -> Option<String> {
        let value = body.get(field)?;
        match value.as_str() {
            Some(text) if text.chars().count() <= most => return Some(text.to_owned()),
            Some(_) => self.add(field, format!("is longer than {most} characters")),
            None => self.wrong_type(field, value, "string"),
        }
        None
    }

    /// A whole number within bounds.
    pub(super) fn whole(
        &mut self,
        body: &Map<String, Value>,
        field: &str,
        (least, most): (i64, i64),
    ) -> Option<u32> {
        let value = body.get(field)?;
        match value.as_i64() {
            Some(n) if n < least => {
                self.add(field, format!("{n} is less than the minimum of {least}"));
            }
            Some(n) if n > most => {
                self.add(field, format!("{n} is greater than the maximum of {most}"));
            }
            Some(n) => return u32::try_from(n).ok(),
            None => self.wrong_type(field, value, "integer"),
        }
        None
    }

    /// A flag.
    pub(super) fn flag(&mut self, body: &Map<String, Value>, field: &str) {
        if let Some(value) = body.get(field)
            && !value.is_boolean()
        {
            self.wrong_type(field, value, "boolean");
        }
    }

    /// Texts of a length within bounds.
    pub(super) fn texts(
        &mut self,
        body: &Map<String, Value>,
        field: &str,
        (least, most): (usize, usize),
    ) -> Option<Vec<String>> {
        let value = body.get(field)?;
        let Some(items) = value.as_array() else {
            self.wrong_type(field, value, "array");
            return None;
        };
        let mut texts = Vec::with_capacity(items.len());
        for item in items {
            match item.as_str() {
                Some(text) if (least..=most).contains(&text.chars().count()) => {
                    texts.push(text.to_owned());
                }
                Some(_) => {
                    let message = format!("{} has not {least} to {most} characters", shown(item));
                    self.add(field, message);
                }
                None => self.wrong_type(field, item, "string"),
            }
        }
        Some(texts)
    }
}

/// A value as Python shows it, shortened.
fn shown(value: &Value) -> String {
    let text = match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::String(text) => format!("'{text}'"),
        other => other.to_string(),
    };
    text.chars().take(80).collect()
}
