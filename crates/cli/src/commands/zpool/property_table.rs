//! The table of properties that `zpool get` and `zfs get` print: NAME PROPERTY VALUE SOURCE.

use ashlar_terminal::table::Column;
use clap::Args;

use super::form::Form;

const FIELDS: [&str; 4] = ["name", "property", "value", "source"];

/// What of the table is printed, and how.
#[derive(Args, Debug)]
pub(crate) struct Layout {
    #[command(flatten)]
    form: Form,

    /// Columns, separated by commas: name, property, value, source, or all of these
    #[arg(
        short = 'o',
        value_name = "FIELD",
        value_delimiter = ',',
        default_value = "all",
        value_parser = ["name", "property", "value", "source", "all"]
    )]
    fields: Vec<String>,
}

/// A property of a pool or dataset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    /// The pool's or dataset's name.
    pub(crate) name: &'a str,
    /// The property's name.
    pub(crate) property: &'a str,
    /// Its exact value, as `-p` prints it.
    pub(crate) value: &'a str,
    /// The value's source.
    pub(crate) source: &'a str,
}

impl Layout {
    /// The table of these rows; empty, without headings, if there are no rows. `shown` formats a property's value for
    /// people.
    pub(crate) fn table(&self, rows: &[Row<'_>], shown: impl Fn(&str, &str) -> String) -> String {
        if rows.is_empty() {
            return String::new();
        }
        let fields: Vec<&str> = match self.fields.iter().any(|field| field == "all") {
            true => FIELDS.to_vec(),
            false => self.fields.iter().map(String::as_str).collect(),
        };
        let cell = |row: &Row<'_>, field: &str| match field {
            "name" => row.name.to_owned(),
            "property" => row.property.to_owned(),
            "value" if self.form.exact => row.value.to_owned(),
            "value" => shown(row.property, row.value),
            _ => row.source.to_owned(),
        };
        let cells: Vec<Vec<String>> =
            rows.iter().map(|row| fields.iter().map(|field| cell(row, field)).collect()).collect();
        let heading = |field: &&str| Column { heading: field.to_uppercase(), right: false };
        let columns: Vec<Column> = fields.iter().map(heading).collect();
        self.form.table(&columns, &cells)
    }
}
