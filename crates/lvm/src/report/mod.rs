//! The output of `pvs`, `vgs` and `lvs`: fields by name, rows, and tables of them.
//!
//! Names, headings, order and formats of the fields are LVM's (`lib/report/columns.h`); so are the
//! attribute letters. A volume without a known state is shown as inactive: nothing here queries a kernel.

mod fields;
mod size;

pub use fields::{LvRow, LvState, PvFacts, PvRow, VgRow};
pub use size::{BadUnits, Units, long};

use thiserror::Error;

/// A column of a report on rows of type `R`.
pub struct Field<R> {
    /// Its name in `-o`.
    pub name: &'static str,
    /// Its heading.
    pub heading: &'static str,
    /// Right-aligned, for numbers and sizes.
    pub right: bool,
    /// A description.
    pub about: &'static str,
    /// Its text for a row.
    pub get: fn(&R, &Units) -> String,
}

/// The row types of reports.
pub trait Row: Sized + 'static {
    /// The name of a row in JSON: `lv`.
    const NAME: &'static str;
    /// All fields.
    const FIELDS: &'static [Field<Self>];
    /// The fields shown by default.
    const DEFAULT: &'static [&'static str];
}

/// A requested field that does not exist.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("there is no field \"{name}\"; {report}s has: {}", .known.join(", "))]
pub struct UnknownField {
    name: String,
    report: &'static str,
    known: Vec<&'static str>,
}

/// The fields requested with `-o`: names separated by commas, `+` in front to add them to the
/// default ones, `all` or `NAME_all` for all.
///
/// # Errors
/// A field is unknown.
pub fn select<R: Row>(wanted: Option<&str>) -> Result<Vec<&'static Field<R>>, UnknownField> {
    let (more, names) = match wanted {
        None => (true, ""),
        Some(text) => text.strip_prefix('+').map_or((false, text), |names| (true, names)),
    };
    let usual = if more { R::DEFAULT } else { &[] };
    let asked = names.split(',').map(str::trim).filter(|name| !name.is_empty());
    let mut fields: Vec<&'static Field<R>> = Vec::new();
    for name in usual.iter().copied().chain(asked) {
        if name == "all" || name.strip_suffix("_all") == Some(R::NAME) {
            fields.extend(R::FIELDS);
            continue;
        }
        // LVM also accepts names without the prefix common to a report's fields.
        let is = |field: &&Field<R>| {
            let short = field.name.strip_prefix(R::NAME).and_then(|n| n.strip_prefix('_'));
            field.name == name || short == Some(name)
        };
        let field = R::FIELDS.iter().find(is).ok_or_else(|| UnknownField {
            name: name.to_owned(),
            report: R::NAME,
            known: R::FIELDS.iter().map(|field| field.name).collect(),
        })?;
        fields.push(field);
    }
    Ok(fields)
}

/// The format of a table.
#[derive(Clone, Debug)]
pub struct Style {
    /// Print the headings.
    pub headings: bool,
    /// Text between columns; `None`: a blank, with aligned columns.
    pub separator: Option<String>,
}

/// The table of `rows` in LVM's format, indented by two blanks.
pub fn table<R: Row>(
    fields: &[&'static Field<R>],
    rows: &[R],
    units: &Units,
    style: &Style,
) -> String {
    let mut lines: Vec<Vec<String>> = Vec::new();
    if style.headings && !rows.is_empty() {
        lines.push(fields.iter().map(|field| field.heading.to_owned()).collect());
    }
    let cells = |row: &R| fields.iter().map(|field| (field.get)(row, units)).collect();
    lines.extend(rows.iter().map(cells));
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line: &Vec<String>| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..fields.len()).map(width).collect();
    let mut out = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths).zip(fields).map(|((cell, width), field)| {
            match (&style.separator, field.right) {
                (Some(_), _) => cell.clone(),
                (None, true) => format!("{cell:>width$}"),
                (None, false) => format!("{cell:width$}"),
            }
        });
        let cells: Vec<String> = cells.collect();
        let text = cells.join(style.separator.as_deref().unwrap_or(" "));
        out.push_str("  ");
        out.push_str(text.trim_end_matches(' '));
        out.push('\n');
    }
    out
}
