//! What a worker is told of a pool that it is to import.

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

/// Values of other types say nothing that an import asks for.
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
