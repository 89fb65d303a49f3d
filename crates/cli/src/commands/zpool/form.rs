//! The tables of `zpool` and `zfs`.

use ashlar_daemon::error::Error;
use ashlar_terminal::table::{Column, table};
use ashlar_view::zfs_text::{ShortNames, is_number};
use clap::Args;

/// The refusal of a property that does not exist, in the words of libzfs.
pub(crate) fn invalid_property(name: &str) -> Error {
    Error::usage(format!("bad property list: invalid property '{name}'"))
}

/// How tables and their values are printed.
#[derive(Args, Debug)]
pub(crate) struct Form {
    /// No headings, and a tab between values
    #[arg(short = 'H')]
    pub(crate) for_programs: bool,

    /// Exact numbers
    #[arg(short = 'p')]
    pub(crate) exact: bool,
}

impl Form {
    /// A table: values separated by tabs for programs, else columns with headings.
    pub(crate) fn table(&self, columns: &[Column], rows: &[Vec<String>]) -> String {
        match self.for_programs {
            true => rows.iter().map(|row| row.join("\t") + "\n").collect(),
            false => table(columns, rows),
        }
    }
}

/// The columns of these properties; their headings are the short names.
pub(crate) fn columns(names: &[String], short: &ShortNames) -> Vec<Column> {
    let column = |name: &String| Column {
        heading: short.short(name).to_uppercase(),
        right: is_number(short.full(name)),
    };
    names.iter().map(column).collect()
}
