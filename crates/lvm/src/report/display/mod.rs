//! The texts of `pvdisplay`, `vgdisplay`, `lvdisplay`, `pvscan`, `vgscan`, `lvscan` and `pvck`.
//!
//! Lines about kernel devices are missing: volumes that are active here have none. Each kind of volume has a file, which uses the types here, so that they all lead to
//! each other.

mod headers;
mod lv;
mod maps;
mod pv;
mod scan;
mod vg;

pub use headers::{checked, headers, metadata_text};
pub use scan::{PvDetails, lvscan, pvscan, vgscan};

use super::{LvRow, PvRow, Units, VgRow};

/// The forms of a display.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A line for each property; with `maps` also the extents.
    Long {
        /// Whether extents are shown.
        maps: bool,
    },
    /// A group as [`Self::Long`], with its volumes and physical volumes; of others the same as that.
    Whole,
    /// One line.
    Short,
    /// One line with colons between numbers.
    Colons,
}

/// Rows that can be displayed.
pub trait Display {
    /// The text of a row.
    fn display(&self, form: Form, units: &Units) -> String;
}

impl Display for PvRow {
    fn display(&self, form: Form, units: &Units) -> String {
        match form {
            Form::Long { maps } => pv::long(self, units, maps),
            Form::Whole => pv::long(self, units, false),
            Form::Short => pv::short(self, units),
            Form::Colons => pv::colons(self, units),
        }
    }
}

impl Display for VgRow {
    fn display(&self, form: Form, units: &Units) -> String {
        match form {
            Form::Long { .. } => vg::long(self, units),
            Form::Whole => vg::whole(self, units),
            Form::Short => vg::short(self, units),
            Form::Colons => vg::colons(self),
        }
    }
}

impl Display for LvRow {
    fn display(&self, form: Form, units: &Units) -> String {
        match form {
            Form::Long { maps } => lv::long(self, units, maps),
            Form::Whole => lv::long(self, units, false),
            // There is no short form of volumes.
            Form::Short | Form::Colons => lv::colons(self),
        }
    }
}

/// Lines of names and values.
struct Lines {
    text: String,
    /// The width of names.
    width: usize,
}

/// LVM's empty line.
const EMPTY: &str = "   \n";

impl Lines {
    fn new(title: &str, width: usize) -> Self {
        Self { text: format!("  --- {title} ---\n"), width }
    }

    fn add(&mut self, name: &str, value: impl std::fmt::Display) {
        let width = self.width;
        self.text += &format!("  {name:width$}{value}\n");
    }
}
