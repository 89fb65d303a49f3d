//! Tables with headings.

/// A column: its heading, and whether it is right-aligned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// Its heading.
    pub heading: String,
    /// Whether it is right-aligned.
    pub right: bool,
}

/// A table: columns with headings, two blanks apart. Each row has a cell for each column.
pub fn table(columns: &[Column], rows: &[Vec<String>]) -> String {
    let heading: Vec<String> = columns.iter().map(|column| column.heading.clone()).collect();
    let width = |index: usize| {
        let cells = rows.iter().map(|row| row[index].chars().count());
        cells.chain([heading[index].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(columns).zip(&widths).map(|((cell, column), width)| {
            if column.right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    std::iter::once(&heading).chain(rows).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_on_the_left_and_numbers_on_the_right() {
        let columns = [("NAME", false), ("USED", true)];
        let columns = columns.map(|(heading, right)| Column { heading: heading.to_owned(), right });
        let rows = [
            vec!["tank/vol".to_owned(), "1K".to_owned()],
            vec!["t".to_owned(), "10.0M".to_owned()],
        ];
        let text = "NAME       USED\ntank/vol     1K\nt         10.0M\n";
        assert_eq!(table(&columns, &rows), text);
    }
}
