//! Few values by name, found by comparing: less work than hashing where names are few.

use minijinja::value::{Enumerator, Object, Value};
use std::sync::Arc;

/// A mapping with its members in order. Of two with one name the later one counts; who prints or
/// walks it has each name once.
#[derive(Debug)]
pub(super) struct Named(pub(super) Vec<(String, Value)>);

impl Object for Named {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        let mut members = self.0.iter().rev();
        let (_, value) = members.find(|(name, _)| name == key)?;
        Some(value.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let names = self.0.iter().map(|(name, _)| Value::from(name.as_str()));
        Enumerator::Values(names.collect())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }
}
