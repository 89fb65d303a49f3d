//! Tables of rows.

use super::{Field, Row, Units};

/// How fields are named beside their values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prefixes {
    /// Not at all.
    None,
    /// `LVM2_PV_NAME='/dev/sda'`.
    Quoted,
    /// `LVM2_PV_NAME=/dev/sda`.
    Bare,
}

/// The format of a table.
#[derive(Clone, Debug)]
pub struct Style {
    /// Print the headings.
    pub headings: bool,
    /// Text between columns; `None`: a blank, with aligned columns.
    pub separator: Option<String>,
    /// Columns are aligned although there is a separator.
    pub aligned: bool,
    /// Names beside the values, which are not aligned then.
    pub prefixes: Prefixes,
    /// Print each field as a line, not aligned.
    pub rows: bool,
}

impl Style {
    fn cell<R>(&self, field: &Field<R>, row: &R, units: &Units) -> String {
        let text = field.show(row, units);
        let quote = match self.prefixes {
            Prefixes::None => return text,
            Prefixes::Quoted => "'",
            Prefixes::Bare => "",
        };
        format!("LVM2_{}={quote}{text}{quote}", field.name.to_ascii_uppercase())
    }
}

/// The table of `rows` in LVM's format, indented by two blanks.
pub fn table<R: Row>(
    fields: &[&'static Field<R>],
    rows: &[R],
    units: &Units,
    style: &Style,
) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut lines: Vec<Vec<String>> = Vec::new();
    if style.headings {
        lines.push(fields.iter().map(|field| field.heading.to_owned()).collect());
    }
    lines.extend(rows.iter().map(|row| {
        let cells = fields.iter().map(|field| style.cell(field, row, units));
        cells.collect()
    }));
    let is_table = style.prefixes == Prefixes::None && !style.rows;
    let is_aligned = is_table && (style.separator.is_none() || style.aligned);
    if style.rows {
        let column = |at: usize| lines.iter().filter_map(|line| line.get(at).cloned()).collect();
        lines = (0..fields.len()).map(column).collect();
    }
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..fields.len()).map(width).collect();
    let separator = style.separator.as_deref();
    let mut out = String::new();
    for (at, line) in lines.iter().enumerate() {
        let text = if is_aligned {
            let is_heading = style.headings && at == 0;
            let cells = line.iter().zip(&widths).zip(fields);
            let is_right = |field: &Field<R>| !is_heading && field.kind.is_right(units);
            let cells = cells.map(|((cell, width), field)| match is_right(field) {
                true => format!("{cell:>width$}"),
                false => format!("{cell:width$}"),
            });
            let text = cells.collect::<Vec<_>>().join(separator.unwrap_or(" "));
            // As LVM, which fills the last column only in front of a separator.
            if separator.is_some() { text } else { text.trim_end_matches(' ').to_owned() }
        } else {
            line.join(separator.unwrap_or(" "))
        };
        out.push_str("  ");
        out.push_str(&text);
        out.push('\n');
    }
    out
}
