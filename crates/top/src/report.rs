//! The table as text, for `--batch`.

use ashlar_terminal::table::{Column as TextColumn, table};

use crate::columns::Column;
use crate::head;
use crate::rates::Interval;
use crate::view::View;
use crate::{Options, view};

impl Interval {
    /// Sorts the devices and leaves out those that do not match the filter.
    pub fn arrange(&mut self, options: &Options) {
        self.devices.retain(|device| view::matches(device, &options.filter));
        self.devices.sort_by(|one, other| options.sort.order(one, other));
    }
}

/// The lines above the table, and the table with all columns.
pub fn text(interval: &Interval, options: &Options) -> String {
    let mut text = String::new();
    for (_, line) in head::lines(interval) {
        text += &line;
        text.push('\n');
    }
    let columns = Column::ALL.map(|column| TextColumn {
        heading: column.heading().to_owned(),
        right: !column.has_words(),
    });
    let rows = View::new(options).rows(&interval.devices);
    let cells = rows
        .iter()
        .map(|row| Column::ALL.map(|column| column.text(&interval.devices[row.index])).to_vec());
    text + &table(&columns, &cells.collect::<Vec<_>>())
}
