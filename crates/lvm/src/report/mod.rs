//! The output of LVM's reporting commands: fields by name, rows, selections of them, and the texts of the display commands.
//!
//! Names, headings, order and formats of the fields are LVM's (`lib/report/columns.h`); so are the
//! attribute letters. A volume without a known state is shown as inactive: nothing here queries a kernel.
//!
//! The fields are a table of files, which use the types of rows and columns here: so they all lead to each other.

pub mod display;
mod fields;
mod inventory;
mod item;
mod json;
mod pattern;
mod selection;
mod size;
mod table;
mod value;

pub use fields::{AreaFacts, LvRow, LvState, PvFacts, PvRow, VgRow};
pub use inventory::{GroupFacts, Inventory, PresentVolume};
pub use item::Item;
pub use json::json;
pub use selection::{SELECTION_HELP, Selection, SelectionError};
pub use size::{BadUnits, Units, long};
pub use table::{Prefixes, Style, table};
pub use value::{Kind, Percent, Value};

use std::cmp::Ordering;

use thiserror::Error;

/// A column of a report on rows of type `R`.
pub struct Field<R> {
    /// What it is a property of.
    pub of: Of,
    /// Its name in `-o`.
    pub name: &'static str,
    /// Its heading.
    pub heading: &'static str,
    /// What its values are.
    pub kind: Kind,
    /// A description.
    pub about: &'static str,
    /// Its value for a row.
    pub get: fn(&R) -> Value,
}

impl<R> Field<R> {
    /// The text of its value for a row.
    pub fn show(&self, row: &R, units: &Units) -> String {
        (self.get)(row).show(self.kind, units)
    }
}

/// What fields are properties of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of {
    /// The row itself.
    Row,
    /// A volume group.
    Vg,
    /// A logical volume.
    Lv,
    /// A segment of a logical volume.
    Segment,
    /// A physical volume.
    Pv,
    /// Extents of a physical volume.
    Piece,
}

/// A group of fields.
pub struct Section<R: 'static> {
    /// Its title in the list of fields.
    pub title: &'static str,
    /// What precedes `_all` in the name for all its fields.
    pub prefix: &'static str,
    /// Its fields.
    pub fields: &'static [Field<R>],
}

/// Rows of which fields are shown.
pub trait Row: Sized + 'static {
    /// All fields.
    const SECTIONS: &'static [Section<Self>];

    /// All fields.
    fn fields() -> impl Iterator<Item = &'static Field<Self>> {
        Self::SECTIONS.iter().flat_map(|section| section.fields)
    }
}

/// A report: what it is about, and what it shows by default.
#[derive(Debug)]
pub struct Report {
    /// What each row describes.
    pub of: Of,
    /// The name of a row in JSON.
    pub name: &'static str,
    /// What names of its fields may lack.
    pub prefix: &'static str,
    /// The sections that `all` stands for, by their prefixes.
    pub all: &'static [&'static str],
    /// The fields shown by default, with commas between them.
    pub default: &'static str,
    /// The fields that it is sorted by, by default.
    pub sorted_by: &'static str,
}

/// `lvs`.
pub static LVS: Report = Report {
    of: Of::Lv,
    name: "lv",
    prefix: "lv",
    all: &["lv", "vg"],
    default: "lv_name,vg_name,lv_attr,lv_size,pool_lv,origin,data_percent,metadata_percent,move_pv,\
              mirror_log,copy_percent,convert_lv",
    sorted_by: "vg_name,lv_name",
};

/// `lvs --segments`.
pub static SEGMENTS: Report = Report {
    of: Of::Segment,
    name: "seg",
    prefix: "seg",
    all: &["lv", "vg", "seg"],
    default: "lv_name,vg_name,lv_attr,stripes,segtype,seg_size",
    sorted_by: "vg_name,lv_name,seg_start",
};

/// `vgs`.
pub static VGS: Report = Report {
    of: Of::Vg,
    name: "vg",
    prefix: "vg",
    all: &["vg"],
    default: "vg_name,pv_count,lv_count,snap_count,vg_attr,vg_size,vg_free",
    sorted_by: "vg_name",
};

/// `pvs`.
pub static PVS: Report = Report {
    of: Of::Pv,
    name: "pv",
    prefix: "pv",
    all: &["pv", "vg"],
    default: "pv_name,vg_name,pv_fmt,pv_attr,pv_size,pv_free",
    sorted_by: "pv_name",
};

/// `pvs --segments`.
pub static PIECES: Report = Report {
    of: Of::Piece,
    name: "pvseg",
    prefix: "pvseg",
    all: &["pv", "vg", "pvseg"],
    default: "pv_name,vg_name,pv_fmt,pv_attr,pv_size,pv_free,pvseg_start,pvseg_size",
    sorted_by: "pv_name,pvseg_start",
};

/// Why fields cannot be shown or sorted by.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FieldError {
    /// There is no such field.
    #[error("Unrecognised field: {0}")]
    Unknown(String),
    /// There is no name.
    #[error("Invalid options string: ")]
    NoName,
    /// The fields are properties of things that have no row in common.
    #[error("Can't report LV and PV fields at the same time in report type \"{0}\".")]
    Mixed(&'static str),
}

/// Names in LVM's form: case and underscores do not matter.
fn normal(name: &str) -> String {
    name.chars().filter(|c| *c != '_').map(|c| c.to_ascii_lowercase()).collect()
}

/// The field of this name, which may lack the prefix.
fn find<R: Row>(prefix: &str, name: &str) -> Option<&'static Field<R>> {
    let name = normal(name);
    let with_prefix = format!("{prefix}{name}");
    let is = |wanted: &str| R::fields().find(|field| normal(field.name) == wanted);
    is(&name).or_else(|| is(&with_prefix))
}

impl Report {
    /// The fields requested by `-o` options, one after another: names separated by commas. `+` in front adds them to the
    /// ones before, which are the default ones at first; `-` removes them. `all` or `NAME_all` stands for all.
    ///
    /// # Errors
    /// A field is unknown, or an option empty.
    pub fn requested(&self, options: &[String]) -> Result<Vec<&'static Field<Item>>, FieldError> {
        let mut fields = self.named(self.default)?;
        for option in options {
            let (sign, names) = match option.strip_prefix('+') {
                Some(names) => ('+', names),
                None => {
                    option.strip_prefix('-').map_or((' ', option.as_str()), |names| ('-', names))
                }
            };
            if option.is_empty() {
                return Err(FieldError::NoName);
            }
            let names = self.named(names)?;
            match sign {
                '+' => fields.extend(names),
                '-' => fields.retain(|field| !names.iter().any(|other| other.name == field.name)),
                _ => fields = names,
            }
        }
        Ok(fields)
    }

    fn named(&self, names: &str) -> Result<Vec<&'static Field<Item>>, FieldError> {
        let mut fields = Vec::new();
        for name in names.split(',').filter(|name| !name.is_empty()) {
            let whole = name.strip_suffix("_all");
            let sections = Item::SECTIONS.iter().filter(|section| {
                name == "all" && self.all.contains(&section.prefix) || whole == Some(section.prefix)
            });
            let mut all = sections.flat_map(|section| section.fields).peekable();
            if all.peek().is_some() {
                fields.extend(all);
            } else {
                let found = find(self.prefix, name);
                fields.push(found.ok_or_else(|| FieldError::Unknown(name.to_owned()))?);
            }
        }
        Ok(fields)
    }

    /// The keys of `-O`: names separated by commas, with `-` in front for descending order.
    ///
    /// # Errors
    /// A field is unknown.
    pub fn sort_keys(&self, text: &str) -> Result<Vec<SortKey<Item>>, FieldError> {
        let keys = text.split(',').filter(|key| !key.is_empty()).map(|key| {
            let descending = key.starts_with('-');
            let name = key.strip_prefix(['+', '-']).unwrap_or(key);
            let found = find(self.prefix, name);
            let field = found.ok_or_else(|| FieldError::Unknown(key.to_owned()))?;
            Ok(SortKey { field, descending })
        });
        keys.collect()
    }

    /// The conditions of `-S`.
    ///
    /// # Errors
    /// They are invalid.
    pub fn selection(&self, text: &str) -> Result<Selection<Item>, SelectionError> {
        Selection::parse(self.prefix, text)
    }
}

/// A field that rows are sorted by.
pub struct SortKey<R: 'static> {
    /// The field.
    pub field: &'static Field<R>,
    descending: bool,
}

/// Sorts rows; those with equal keys stay in order.
pub fn sort<R>(rows: &mut Vec<R>, keys: &[SortKey<R>]) {
    // A value may take a search through the group: it is asked for once.
    let values = |row: &R| keys.iter().map(|key| (key.field.get)(row)).collect::<Vec<_>>();
    let mut sorted: Vec<(Vec<Value>, R)> = rows.drain(..).map(|row| (values(&row), row)).collect();
    sorted.sort_by(|(a, _), (b, _)| {
        let order = keys.iter().zip(a.iter().zip(b)).map(|(key, (a, b))| {
            let order = a.order(b);
            if key.descending { order.reverse() } else { order }
        });
        order.fold(Ordering::Equal, Ordering::then)
    });
    rows.extend(sorted.into_iter().map(|(_, row)| row));
}

/// The list of all fields; with their kinds if they are to be selected by.
pub fn help(with_kinds: bool) -> String {
    let width = Item::fields().map(|field| field.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Section { title, prefix, fields } in Item::SECTIONS {
        text += &format!("  {title}\n  {}\n", "-".repeat(title.len()));
        if !with_kinds && !prefix.is_empty() {
            text +=
                &format!("    {:width$} - all fields of this section\n", format!("{prefix}_all"));
        }
        for field in *fields {
            let kind = if with_kinds { format!(" [{}]", field.kind.name()) } else { String::new() };
            text += &format!("    {:width$} - {}{kind}\n", field.name, field.about);
        }
        text += "   \n";
    }
    text
}
