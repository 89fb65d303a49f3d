//! I/O by file.

use std::collections::HashMap;
use std::sync::Arc;

use ashlar_block::trace::Action;
use ashlar_btrfs::occupants::Occupant;
use ashlar_plot::FileRow;
use ashlar_plot::trace::{Categories, Record};
use ashlar_terminal::table::{Column, table};

/// The most names that are counted; what has another is counted together.
const NAMES_MAX: usize = 1 << 16;
/// The most rows of a table for people.
const ROWS_MAX: usize = 500;
/// The most names behind a line.
const IN_LINE: usize = 4;

/// Sums for each file.
#[derive(Default)]
pub(super) struct FileSums {
    all: HashMap<Arc<str>, FileRow>,
}

impl FileSums {
    /// Counts a completion.
    pub(super) fn add(&mut self, record: &Record, occupants: &[Occupant]) {
        if record.action != Action::Complete {
            return;
        }
        let is_write = record.categories.contains(Categories::WRITE);
        for (index, Occupant { len, name }) in occupants.iter().enumerate() {
            let is_known = self.all.contains_key(name) || self.all.len() < NAMES_MAX;
            let name = if is_known { Arc::clone(name) } else { "other files".into() };
            let row = self.all.entry(Arc::clone(&name)).or_insert_with(|| FileRow {
                name: name.to_string(),
                count: 0,
                read_bytes: 0,
                written_bytes: 0,
            });
            // One I/O counts once, also if it has several parts of the file.
            row.count += u64::from(!occupants[..index].iter().any(|before| before.name == name));
            if is_write {
                row.written_bytes += len;
            } else {
                row.read_bytes += len;
            }
        }
    }

    /// All rows, those with the most bytes first.
    pub(super) fn rows(&self) -> Vec<FileRow> {
        let mut all: Vec<_> = self.all.values().cloned().collect();
        all.sort_by(|a, b| {
            let bytes = |row: &FileRow| row.read_bytes.saturating_add(row.written_bytes);
            bytes(b).cmp(&bytes(a)).then_with(|| a.name.cmp(&b.name))
        });
        all
    }
}

/// The first rows, and the others as one.
pub(super) fn shown(mut rows: Vec<FileRow>) -> Vec<FileRow> {
    if rows.len() > ROWS_MAX {
        let rest = rows.split_off(ROWS_MAX - 1);
        let name = format!("{} more", rest.len());
        let empty = FileRow { name, count: 0, read_bytes: 0, written_bytes: 0 };
        rows.push(rest.iter().fold(empty, |sum, row| FileRow {
            name: sum.name,
            count: sum.count + row.count,
            read_bytes: sum.read_bytes + row.read_bytes,
            written_bytes: sum.written_bytes + row.written_bytes,
        }));
    }
    rows
}

/// The rows as a table.
pub(super) fn text(rows: Vec<FileRow>) -> String {
    let column = |(heading, right): (&str, bool)| Column { heading: heading.to_owned(), right };
    let columns = [("READ", true), ("WRITTEN", true), ("I/OS", true), ("FILE", false)].map(column);
    let cells = |row: FileRow| {
        let numbers = [row.read_bytes, row.written_bytes, row.count].map(|it| it.to_string());
        numbers.into_iter().chain([row.name]).collect()
    };
    let rows: Vec<Vec<String>> = shown(rows).into_iter().map(cells).collect();
    format!("\nI/O by file (bytes)\n{}", table(&columns, &rows))
}

/// The names for the end of a line.
pub(super) fn in_line(occupants: &[Occupant]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for Occupant { name, .. } in occupants {
        if !names.contains(&&**name) {
            names.push(name);
        }
    }
    match names.len().saturating_sub(IN_LINE) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names[..IN_LINE].join(", ")),
    }
}
