//! Tables of configurations measured in rounds.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::common::{Outcome, median};
use crate::load::Score;

/// The file that tables are appended to as JSON (`--json`).
static JSON: OnceLock<PathBuf> = OnceLock::new();

/// Appends all tables from now on to a file, a line of JSON each: `scripts/figures --import` reads them.
pub(crate) fn write_json(path: PathBuf) {
    JSON.get_or_init(|| path);
}

/// Appends a table to the file of [`write_json`]: the name and values of each row.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn record(
    title: &str,
    unit: &str,
    columns: &[&str],
    rows: &[(&str, Vec<f64>)],
) -> Outcome {
    let rows = rows.iter().map(|(name, values)| json!({ "name": name, "values": values }));
    append(title, unit, columns, rows.collect())
}

fn append(title: &str, unit: &str, columns: &[&str], rows: Vec<Value>) -> Outcome {
    let Some(path) = JSON.get() else { return Ok(()) };
    let table = json!({ "title": title, "unit": unit, "columns": columns, "rows": rows });
    writeln!(OpenOptions::new().append(true).create(true).open(path)?, "{table}")?;
    Ok(())
}

/// The unit of a table.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    /// Thousands of I/Os per second.
    Kiops,
    /// Millions of bytes per second.
    Megabytes,
}

/// The scores of all rounds, by row and column.
pub(crate) struct Grid<'a> {
    columns: &'a [&'a str],
    rows: &'a [&'a str],
    unit: Unit,
    scores: Vec<Vec<Vec<Score>>>,
}

const NAME: usize = 44;

impl<'a> Grid<'a> {
    /// Measures every row and column in each round, so that other load on the machine affects all alike. `run` gets
    /// round, row and column.
    ///
    /// # Errors
    /// Those of `run`.
    pub(crate) fn measure(
        columns: &'a [&'a str],
        rows: &'a [&'a str],
        unit: Unit,
        rounds: usize,
        mut run: impl FnMut(usize, usize, usize) -> Outcome<Score>,
    ) -> Outcome<Self> {
        let mut scores = vec![vec![Vec::new(); columns.len()]; rows.len()];
        for round in 0..rounds {
            for column in 0..columns.len() {
                for (row, scores) in scores.iter_mut().enumerate() {
                    scores[column].push(run(round, row, column)?);
                }
            }
        }
        Ok(Self { columns, rows, unit, scores })
    }

    fn rounds(&self) -> usize {
        self.scores.first().and_then(|row| row.first()).map_or(0, Vec::len)
    }

    fn line(&self, name: &str, value: impl Fn(usize) -> f64, digits: usize) {
        print!("  {name:NAME$}");
        (0..self.columns.len()).for_each(|column| print!(" {:>12.digits$}", value(column)));
    }

    /// Prints the medians of all rows, and records them with the values of all rounds, of which ratios can be made.
    ///
    /// # Errors
    /// Those of [`record`].
    pub(crate) fn print(&self, title: &str) -> Outcome {
        let unit = match self.unit {
            Unit::Kiops => "thousand I/Os in a second",
            Unit::Megabytes => "MB in a second",
        };
        println!("\n{title}\n  {unit}, medians of {} rounds", self.rounds());
        print!("  {:NAME$}", "");
        self.columns.iter().for_each(|column| print!(" {column:>12}"));
        println!();
        let mut rows = Vec::new();
        for (name, row) in self.rows.iter().zip(&self.scores) {
            let value = |score: &Score| match self.unit {
                Unit::Kiops => score.iops / 1e3,
                Unit::Megabytes => score.rate / 1e6,
            };
            let rounds: Vec<Vec<f64>> =
                row.iter().map(|scores| scores.iter().map(value).collect()).collect();
            let medians: Vec<f64> = rounds.iter().cloned().map(median).collect();
            self.line(name, |column| medians[column], 1);
            println!();
            rows.push(json!({ "name": name, "values": medians, "rounds": rounds }));
        }
        append(title, unit, self.columns, rows)
    }

    /// Prints the CPU time per I/O of all rows.
    pub(crate) fn print_cpu(&self) {
        for (name, row) in self.rows.iter().zip(&self.scores) {
            let name = format!("{name}, CPU ns/IO");
            let of = |column: usize| median(row[column].iter().map(|s| s.cpu_ns).collect());
            self.line(&name, of, 0);
            println!();
        }
    }

    /// Records the CPU time per I/O of all rows as a table of its own.
    ///
    /// # Errors
    /// Those of [`record`].
    pub(crate) fn record_cpu(&self, title: &str) -> Outcome {
        let of = |scores: &Vec<Score>| median(scores.iter().map(|score| score.cpu_ns).collect());
        let rows = self.rows.iter().zip(&self.scores);
        let rows: Vec<_> = rows.map(|(name, row)| (*name, row.iter().map(of).collect())).collect();
        record(title, "ns of CPU time for an I/O", self.columns, &rows)
    }

    /// The median over the rounds of the rate of row `of` divided by the rate of row `than`.
    fn ratio(&self, of: usize, than: usize, column: usize) -> f64 {
        let pairs = self.scores[of][column].iter().zip(&self.scores[than][column]);
        median(pairs.map(|(a, b)| a.rate / b.rate).collect())
    }

    /// Prints the ratios of two rows, and their target.
    pub(crate) fn print_ratio(&self, of: usize, than: usize, wanted: Option<f64>) {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        self.print_ratio_of(of, than, &all, wanted);
    }

    /// As [`Self::print_ratio`], with the target only for `columns`.
    pub(crate) fn print_ratio_of(
        &self,
        of: usize,
        than: usize,
        columns: &[usize],
        wanted: Option<f64>,
    ) {
        let name = format!("({}) / ({})", self.rows[of], self.rows[than]);
        if name.len() > NAME {
            println!("  {name}:");
            self.line("", |column| self.ratio(of, than, column), 2);
        } else {
            self.line(&name, |column| self.ratio(of, than, column), 2);
        }
        match wanted {
            None => println!(),
            Some(wanted) => {
                let met = columns.iter().filter(|c| self.ratio(of, than, **c) >= wanted);
                println!("   wanted >= {wanted:.2}: {} of {}", met.count(), columns.len());
            }
        }
    }
}
