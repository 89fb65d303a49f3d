//! `ashlar zpool destroy` and `labelclear`.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_commands::pools::{ImportMode, clear_labels};
use ashlar_daemon::error::{Error, Result};
use ashlar_disks::{self as disks, Access, Opener};
use ashlar_zfs::protocol::Dataset;
use clap::Args;

use super::place::PoolArgs;

/// What the file system at the root of a pool without files refers to is less.
const EMPTY_BYTES: u64 = 1 << 20;

/// Whether a dataset has more than the file system of a new pool.
fn has_data(dataset: &Dataset) -> bool {
    let referenced = dataset.properties.get("referenced");
    let bytes = referenced.and_then(|it| it.value.parse::<u64>().ok());
    bytes.is_none_or(|bytes| bytes >= EMPTY_BYTES)
}

/// Destroy a pool
///
/// Its disks are marked as free, and all its volumes are lost. A pool that a daemon serves must be exported first.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 destroyed, 1 failed, 2 wrong usage.

Examples:
  ashlar zpool destroy -d a.img,b.img tank
  ashlar zpool destroy --force -d a.img,b.img tank")]
pub(crate) struct Destroy {
    /// Even if it has volumes or file systems with data
    #[arg(short, long)]
    force: bool,

    /// The pool
    pool: String,

    #[command(flatten)]
    place: PoolArgs,
}

impl Destroy {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.place.with(Some(&self.pool), ImportMode::WRITE, |session| {
            let datasets = session.datasets(&self.pool)?;
            let used = datasets.iter().filter(|dataset| {
                dataset.kind != "snapshot" && (dataset.name != self.pool || has_data(dataset))
            });
            let used: Vec<&str> = used.map(|dataset| dataset.name.as_str()).collect();
            if let (false, [first, ..]) = (self.force, &used[..]) {
                let (pool, count) = (&self.pool, used.len());
                let why =
                    format!("it has volumes or file systems: {count}, the first is '{first}'");
                return Err(Error::failed(format_args!("cannot destroy '{pool}': {why}"))
                    .hint("nothing was changed; --force destroys the pool with all its data"));
            }
            session.destroy(&self.pool)
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Erase the ZFS labels of disks
///
/// Nothing takes them for members of a pool then. A disk that a running ashlar uses is refused.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 erased, 1 failed, 2 wrong usage.

Examples:
  ashlar zpool labelclear old.img
  ashlar zpool labelclear --force old.img")]
pub(crate) struct LabelClear {
    /// Also the labels of a pool that was not destroyed, and damaged ones
    #[arg(short, long)]
    force: bool,

    /// The disks
    #[arg(value_name = "DISK", required = true)]
    disks: Vec<PathBuf>,
}

impl LabelClear {
    pub(crate) fn run(self) -> Result<ExitCode> {
        disks::reactor()?.block_on(async {
            let disks = Opener::new(Access::Write).all(&self.disks)?;
            clear_labels(&disks, self.force).await
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
