//! The progress of a scrub: a bar on a terminal, or a line now and then.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use ashlar_host::btrfs::scrub::{ScrubObserver, ScrubRecord};
use ashlar_host::error::Result;
use indicatif::ProgressBar;

use super::report::{clock, human, percent, rate};
use crate::{output, progress};

/// How often a line is printed without a progress bar.
const LINE: Duration = Duration::from_secs(60);

/// Prints the progress of a scrub.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    has_lines: bool,
    printed: Instant,
}

impl Progress {
    /// Nothing is printed if `quiet`, and no bar beside JSON.
    pub(super) fn new(quiet: bool, json: bool) -> Self {
        let bar = progress::bar().filter(|_| !quiet && !json);
        let has_lines =
            bar.is_none() && !quiet && !output::is_quiet() && std::io::stdout().is_terminal();
        Self { bar, has_lines, printed: Instant::now() }
    }
}

impl ScrubObserver for Progress {
    fn progress(&mut self, record: &ScrubRecord) -> Result<()> {
        if let Some(bar) = &self.bar {
            bar.set_position((percent(record.passed_bytes(), record.total_bytes()) * 10.0) as u64);
            bar.set_message(words(record));
            bar.tick();
        } else if self.has_lines && self.printed.elapsed() >= LINE {
            self.printed = Instant::now();
            output::print(&format!("{}\n", words(record)))?;
        }
        Ok(())
    }
}

/// `27.00% of 1.00GiB, 95.30MiB/s, 0:00:07 left, 3 errors`.
fn words(record: &ScrubRecord) -> String {
    let counters = record.counters();
    let share = percent(record.passed_bytes(), record.total_bytes());
    let total = human(record.total_bytes() as f64);
    let rate = human(rate(counters.bytes(), record.duration));
    let left = record.seconds_left().map(|left| format!(", {} left", clock(left)));
    let errors = counters.read_errors + counters.csum_errors + counters.verify_errors;
    let errors = match errors + counters.super_errors {
        0 => String::new(),
        1 => ", 1 error".to_owned(),
        errors => format!(", {errors} errors"),
    };
    format!("{share:.2}% of {total}, {rate}/s{}{errors}", left.unwrap_or_default())
}
