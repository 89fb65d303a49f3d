//! The progress of a scrub: a bar on a terminal, or a line now and then.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use ashlar_commands::btrfs::scrub::{ScrubObserver, ScrubRecord};
use ashlar_daemon::error::Result;
use indicatif::ProgressBar;

use crate::{output, progress};

/// How often a line is printed without a progress bar.
const LINE: Duration = Duration::from_secs(60);

/// Prints the progress of a scrub.
pub(super) struct ScrubDisplay {
    bar: Option<ProgressBar>,
    has_lines: bool,
    printed: Instant,
}

impl ScrubDisplay {
    /// Nothing is printed if `quiet`, and no bar beside JSON.
    pub(super) fn new(quiet: bool, json: bool) -> Self {
        let bar = progress::bar().filter(|_| !quiet && !json);
        let has_lines =
            bar.is_none() && !quiet && !output::is_quiet() && std::io::stdout().is_terminal();
        Self { bar, has_lines, printed: Instant::now() }
    }
}

impl ScrubObserver for ScrubDisplay {
    fn progress(&mut self, record: &ScrubRecord) -> Result<()> {
        if let Some(bar) = &self.bar {
            bar.set_position((record.percent() * 10.0) as u64);
            bar.set_message(record.progress());
            bar.tick();
        } else if self.has_lines && self.printed.elapsed() >= LINE {
            self.printed = Instant::now();
            output::print(&format!("{}\n", record.progress()))?;
        }
        Ok(())
    }
}
