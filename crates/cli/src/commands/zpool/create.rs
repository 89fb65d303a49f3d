//! `ashlar zpool create`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use ashlar_commands::pools::{NewPool, NewPoolProperties, PoolLayout};
use ashlar_daemon::error::Result;
use ashlar_disks::{self as disks, Access};
use clap::Args;

use crate::commands::zvol::property;
use crate::output;

/// Make a pool of disks
///
/// The pool's data are distributed over all disks, mirrors and raidz groups; log before a disk or
/// mirror dedicates it to the intent log. The new pool is exported: `ashlar serve` imports it.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 made, 1 failed, 2 wrong usage.

Examples:
  ashlar zpool create tank disk.img
  ashlar zpool create -o ashift=12 -O compression=lz4 tank mirror a.img b.img mirror c.img d.img
  ashlar zpool create tank raidz2 a.img b.img c.img d.img log mirror e.img f.img")]
pub(crate) struct Create {
    /// Also use disks with known contents
    #[arg(short, long)]
    force: bool,

    /// Show the resulting pool without making it
    #[arg(short = 'n', long)]
    dry_run: bool,

    /// A property of the pool, a feature as feature@NAME=disabled (may be repeated)
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", value_parser = property)]
    properties: Vec<(String, String)>,

    /// A property of its root dataset, which volumes inherit (may be repeated)
    #[arg(short = 'O', value_name = "PROPERTY=VALUE", value_parser = property)]
    dataset_properties: Vec<(String, String)>,

    /// Its name
    pool: String,

    /// Disks, and words such as mirror before them
    ///
    /// The words mirror, raidz, raidz2, raidz3 and log apply to the disks behind them
    #[arg(value_name = "VDEV", required = true)]
    vdevs: Vec<String>,
}

impl Create {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let layout = PoolLayout::parse(&self.vdevs)?;
        let access = if self.dry_run { Access::Look } else { Access::Write };
        disks::reactor()?.block_on(async {
            let pool = NewPool::open(layout, access, self.force).await?;
            if self.dry_run {
                return output::print(&pool.layout().describe(&self.pool));
            }
            let properties = NewPoolProperties {
                pool: BTreeMap::from_iter(self.properties),
                dataset: BTreeMap::from_iter(self.dataset_properties),
            };
            pool.create(self.pool, properties).await
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
