//! The output of LVM's reporting commands: fields by name, rows, selections of them, and the texts of the display commands.
//!
//! Names, headings, order and formats of the fields are LVM's (`lib/report/columns.h`); so are the
//! attribute letters. A volume without a known state is shown as inactive: nothing here queries a kernel.

pub mod display;
mod fields;
mod inventory;
mod json;
mod pattern;
mod selection;
mod size;
mod table;
mod value;

pub use fields::{LvRow, LvState, PvFacts, PvRow, VgRow};
pub use inventory::{GroupFacts, Inventory, PresentVolume};
pub use json::json;
pub use selection::{SELECTION_HELP, Selection, SelectionError};
pub use size::{BadUnits, Units, long};
pub use table::{Prefixes, Style, table};
pub use value::{Kind, Percent, Value};

use std::cmp::Ordering;

use thiserror::Error;

/// A column of a report on rows of type `R`.
pub struct Field<R> {
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

/// The row types of reports.
pub trait Row: Sized + 'static {
    /// The name of a row in JSON: `lv`.
    const NAME: &'static str;
    /// All fields, by the prefix that `all` follows: `vg` for `vg_all`.
    const FIELDS: &'static [(&'static str, &'static [Field<Self>])];
    /// The fields shown by default.
    const DEFAULT: &'static [&'static str];
    /// The fields that it is sorted by, by default.
    const SORTED_BY: &'static str;

    /// The group that it belongs to.
    fn vg(&self) -> Option<VgRow>;

    /// All fields.
    fn fields() -> impl Iterator<Item = &'static Field<Self>> {
        Self::FIELDS.iter().flat_map(|(_, fields)| *fields)
    }
}

/// Why fields cannot be shown or sorted by.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FieldError {
    /// There is no such field.
    #[error("Unrecognised field: {0}")]
    Unknown(String),
    /// There is no name.
    #[error("Invalid options string: ")]
    NoName,
}

/// Names in LVM's form: case and underscores do not matter.
fn normal(name: &str) -> String {
    name.chars().filter(|c| *c != '_').map(|c| c.to_ascii_lowercase()).collect()
}

/// The field of this name, which may lack the report's prefix.
fn find<R: Row>(name: &str) -> Option<&'static Field<R>> {
    let name = normal(name);
    let with_prefix = format!("{}{name}", R::NAME);
    let is = |wanted: &str| R::fields().find(|field| normal(field.name) == wanted);
    is(&name).or_else(|| is(&with_prefix))
}

/// The fields requested by `-o` options, one after another: names separated by commas. `+` in front adds them to the
/// ones before, which are the default ones at first; `-` removes them. `all` or `NAME_all` stands for all.
///
/// # Errors
/// A field is unknown, or an option empty.
pub fn requested<R: Row>(options: &[String]) -> Result<Vec<&'static Field<R>>, FieldError> {
    let mut fields = named::<R>(R::DEFAULT.iter().copied())?;
    for option in options {
        let (sign, names) = match option.strip_prefix('+') {
            Some(names) => ('+', names),
            None => option.strip_prefix('-').map_or((' ', option.as_str()), |names| ('-', names)),
        };
        if option.is_empty() {
            return Err(FieldError::NoName);
        }
        let names = named::<R>(names.split(',').filter(|name| !name.is_empty()))?;
        match sign {
            '+' => fields.extend(names),
            '-' => fields.retain(|field| !names.iter().any(|other| other.name == field.name)),
            _ => fields = names,
        }
    }
    Ok(fields)
}

fn named<'a, R: Row>(
    names: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<&'static Field<R>>, FieldError> {
    let mut fields = Vec::new();
    for name in names {
        let all = R::FIELDS
            .iter()
            .filter(|(prefix, _)| name == "all" || name.strip_suffix("_all") == Some(*prefix));
        let mut all = all.flat_map(|(_, fields)| *fields).peekable();
        if all.peek().is_some() {
            fields.extend(all);
        } else {
            fields.push(find(name).ok_or_else(|| FieldError::Unknown(name.to_owned()))?);
        }
    }
    Ok(fields)
}

/// A field that rows are sorted by.
pub struct SortKey<R: 'static> {
    field: &'static Field<R>,
    descending: bool,
}

/// The keys of `-O`: names separated by commas, with `-` in front for descending order.
///
/// # Errors
/// A field is unknown.
pub fn sort_keys<R: Row>(text: &str) -> Result<Vec<SortKey<R>>, FieldError> {
    let keys = text.split(',').filter(|key| !key.is_empty()).map(|key| {
        let descending = key.starts_with('-');
        let name = key.strip_prefix(['+', '-']).unwrap_or(key);
        let field = find(name).ok_or_else(|| FieldError::Unknown(key.to_owned()))?;
        Ok(SortKey { field, descending })
    });
    keys.collect()
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

/// The list of a report's fields.
pub fn help<R: Row>() -> String {
    let width = R::fields().map(|field| field.name.len()).max().unwrap_or(0);
    let line = |field: &Field<R>| {
        format!("  {:width$} - {} [{}]\n", field.name, field.about, field.kind.name())
    };
    R::fields().map(line).collect()
}
