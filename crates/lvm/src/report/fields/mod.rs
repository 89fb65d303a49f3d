//! The fields of each report.

mod lv;
mod pv;
mod vg;

pub use lv::{LvRow, LvState};
pub use pv::{PvFacts, PvRow};
pub use vg::VgRow;

use super::value::Value;
use super::{Field, Kind, Row};

const fn field<R>(
    kind: Kind,
    name: &'static str,
    heading: &'static str,
    about: &'static str,
    get: fn(&R) -> Value,
) -> Field<R> {
    Field { name, heading, kind, about, get }
}
