//! `ashlar zpool scrub`.

use std::process::ExitCode;

use ashlar_commands::pools::{ImportMode, Session};
use ashlar_daemon::error::Result;
use ashlar_view::zfs_text::{nice_bytes, scan_status};
use ashlar_zfs::protocol::{Command, ScanStatus, Scrub as What};
use clap::Args;
use indicatif::ProgressBar;

use super::place::PoolArgs;
use crate::output;
use crate::progress;

/// Read all data of a pool, and repair damage
///
/// If a daemon serves the pool, the scrub runs by itself, and -w follows it; without a daemon it
/// lasts as long as the command, and continues at its last position when it is started again.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed or data could not be repaired, 2 wrong usage.

Examples:
  ashlar zpool scrub tank
  ashlar zpool scrub -w tank
  ashlar zpool scrub -p tank
  ashlar zpool scrub -d a.img,b.img tank")]
pub(crate) struct Scrub {
    /// Wait for its end
    #[arg(short, long)]
    wait: bool,

    /// Pause it; a scrub without options resumes it
    #[arg(short, long, conflicts_with = "wait")]
    pause: bool,

    /// End it
    #[arg(short, long, conflicts_with_all = ["wait", "pause"])]
    stop: bool,

    /// The pool
    pool: String,

    #[command(flatten)]
    place: PoolArgs,
}

impl Scrub {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let what = match (self.pause, self.stop) {
            (true, _) => What::Pause,
            (_, true) => What::Stop,
            (false, false) => What::Start,
        };
        let errors = self.place.with(Some(&self.pool), ImportMode::WRITE, |session| {
            session.run(&self.pool, Command::Scrub(what))?;
            let follows = self.wait || matches!(session, Session::Here { .. });
            if what == What::Start && follows { follow(session, &self.pool) } else { Ok(0) }
        })?;
        Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Shows a scrub's progress to its end; returns the number of errors that could not be repaired.
fn follow(session: &mut Session, pool: &str) -> Result<u64> {
    let progress = Progress::new(pool);
    let scan = session.await_scrub(pool, |scan| progress.show(scan))?;
    progress.end();
    output::tell(&format!("{pool}: {}\n", scan_status(scan.as_ref())))?;
    Ok(scan.map_or(0, |scan| scan.errors))
}

/// The bar of a scrub or resilver.
pub(crate) struct Progress<'a> {
    pool: &'a str,
    bar: Option<ProgressBar>,
}

impl<'a> Progress<'a> {
    /// For this pool.
    pub(crate) fn new(pool: &'a str) -> Self {
        Self { pool, bar: progress::bar() }
    }

    /// Shows how far it is.
    pub(crate) fn show(&self, scan: &ScanStatus) {
        let Some(bar) = &self.bar else { return };
        let ScanStatus { examined_bytes: done, to_examine_bytes: all, .. } = *scan;
        bar.set_prefix(format!("{} {}", self.pool, scan.function));
        // In parts of 1000.
        bar.set_position((u128::from(done) * 1000 / u128::from(all.max(1))) as u64);
        bar.set_message(format!("{}/{}", nice_bytes(done), nice_bytes(all)));
        bar.tick();
    }

    /// Removes it.
    pub(crate) fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
