//! The fields of all reports: one table, in LVM's order (`lib/report/columns.h`).

/// A table of fields: kind, name, heading, description; and the function that gets the value.
macro_rules! table {
    ($of:ident; $($kind:ident $([$($word:literal)+])? $name:literal $heading:literal $about:literal $get:expr;)+) => {
        &[$($crate::report::Field {
            of: $crate::report::Of::$of,
            name: $name,
            heading: $heading,
            kind: $crate::report::Kind::$kind $((&[$($word),+]))?,
            about: $about,
            get: $get,
        },)+]
    };
}

mod lv;
mod lv_table;
mod pv;
mod relations;
mod segment;
mod state;
mod vg;

pub use lv::LvRow;
pub use pv::{AreaFacts, PvFacts, PvRow};
pub use state::LvState;
pub use vg::VgRow;

use ashlar_block::Sectors;

use super::value::Value;
use super::{Field, Item, Section};

/// All fields.
pub(super) const SECTIONS: &[Section<Item>] = &[
    Section { title: "Logical Volume Fields", prefix: "lv", fields: lv_table::VOLUME },
    Section { title: "Logical Volume Device Info Fields", prefix: "lv", fields: lv_table::DEVICE },
    Section {
        title: "Logical Volume Device Status Fields",
        prefix: "lv",
        fields: lv_table::STATUS,
    },
    Section {
        title: "Logical Volume Device Info and Status Combined Fields",
        prefix: "lv",
        fields: lv_table::COMBINED,
    },
    Section { title: "Physical Volume Label Fields", prefix: "pv", fields: pv::LABEL },
    Section { title: "Physical Volume Fields", prefix: "pv", fields: pv::VOLUME },
    Section { title: "Volume Group Fields", prefix: "vg", fields: vg::FIELDS },
    Section { title: "Logical Volume Segment Fields", prefix: "seg", fields: segment::FIELDS },
    Section { title: "Physical Volume Segment Fields", prefix: "pvseg", fields: pv::PIECE },
    Section { title: "Special Fields", prefix: "", fields: SPECIAL },
];

const SPECIAL: &[Field<Item>] = table! { Row;
    Number "selected" "Selected" "1: rows that are not selected are not shown"
        |_| Value::Number(1);
};

/// Nothing, as a text.
fn empty(_: &Item) -> Value {
    Value::Text(String::new())
}

/// No number.
fn undefined(_: &Item) -> Value {
    Value::Undefined("")
}

/// No number, which LVM shows as such.
fn minus_one(_: &Item) -> Value {
    Value::Undefined("-1")
}

/// A text of what may not be there.
fn text<T>(on: Option<T>, get: impl FnOnce(T) -> String) -> Value {
    Value::Text(on.map_or_else(String::new, get))
}

/// Texts of what may not be there.
fn list<T>(on: Option<T>, get: impl FnOnce(T) -> Vec<String>) -> Value {
    Value::List(on.map_or_else(Vec::new, get))
}

/// Tags of what may not be there, in the order in which LVM shows them.
fn tags<T>(on: Option<T>, get: impl FnOnce(T) -> Vec<String>) -> Value {
    let mut tags = on.map_or_else(Vec::new, get);
    tags.sort();
    Value::List(tags)
}

/// A size of what may not be there.
fn size<T>(on: Option<T>, get: impl FnOnce(T) -> Sectors) -> Value {
    Value::Size(on.map_or(Sectors::ZERO, get))
}

/// A number of what may not be there.
fn number<T>(on: Option<T>, get: impl FnOnce(T) -> u64) -> Value {
    Value::Number(on.map_or(0, get))
}

/// Whether what may not be there is so.
fn flag<T>(on: Option<T>, get: impl FnOnce(T) -> bool) -> Value {
    Value::Flag(Some(on.is_some_and(get)))
}
