//! Tables of configurations that were measured in rounds.

use crate::common::{Outcome, median};
use crate::load::Score;

/// What a table tells.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    /// Thousands of I/Os in a second.
    Kiops,
    /// Millions of bytes in a second.
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
    /// Measures every row and column in each round, so that what else the machine does meets all
    /// alike. `run` gets round, row and column.
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

    /// Prints the medians of all rows.
    pub(crate) fn print(&self, title: &str) {
        let unit = match self.unit {
            Unit::Kiops => "thousand I/Os in a second",
            Unit::Megabytes => "MB in a second",
        };
        println!("\n{title}\n  {unit}, medians of {} rounds", self.rounds());
        print!("  {:NAME$}", "");
        self.columns.iter().for_each(|column| print!(" {column:>12}"));
        println!();
        for (name, row) in self.rows.iter().zip(&self.scores) {
            let value = |score: &Score| match self.unit {
                Unit::Kiops => score.iops / 1e3,
                Unit::Megabytes => score.rate / 1e6,
            };
            self.line(name, |column| median(row[column].iter().map(value).collect()), 1);
            println!();
        }
    }

    /// Prints the CPU time of an I/O of all rows.
    pub(crate) fn print_cpu(&self) {
        for (name, row) in self.rows.iter().zip(&self.scores) {
            let name = format!("{name}, CPU ns/IO");
            let of = |column: usize| median(row[column].iter().map(|s| s.cpu_ns).collect());
            self.line(&name, of, 0);
            println!();
        }
    }

    /// The median over the rounds of how many times the rate of the row `than` the row `of` has.
    fn ratio(&self, of: usize, than: usize, column: usize) -> f64 {
        let pairs = self.scores[of][column].iter().zip(&self.scores[than][column]);
        median(pairs.map(|(a, b)| a.rate / b.rate).collect())
    }

    /// Prints the ratios of two rows, and what is wanted of them.
    pub(crate) fn print_ratio(&self, of: usize, than: usize, wanted: Option<f64>) {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        self.print_ratio_of(of, than, &all, wanted);
    }

    /// As [`Self::print_ratio`], with nothing wanted of other columns than `columns`.
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
