//! The import configuration of a pool, for the worker.

use crate::ondisk::nvlist::{NvList, Value};
use crate::protocol::{ImportConfig, NvMap, NvValue};

impl From<&NvList> for ImportConfig {
    fn from(list: &NvList) -> Self {
        Self(map(list))
    }
}

fn map(list: &NvList) -> NvMap {
    list.pairs().iter().filter_map(|(name, value)| Some((name.clone(), value_of(value)?))).collect()
}

/// An import does not need values of other types.
fn value_of(value: &Value) -> Option<NvValue> {
    Some(match value {
        Value::Flag => NvValue::Boolean,
        Value::Number(number) => NvValue::Uint64(*number),
        Value::Numbers(numbers) => NvValue::Uint64s(numbers.clone()),
        Value::Text(text) => NvValue::String(text.clone()),
        Value::List(list) => NvValue::List(map(list)),
        Value::Lists(lists) => NvValue::Lists(lists.iter().map(map).collect()),
        Value::Raw(_) => return None,
    })
}
