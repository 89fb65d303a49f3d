//! `ashlar zpool status`.

use std::process::ExitCode;

use ashlar_commands::pools::ImportMode;
use ashlar_daemon::error::Result;
use ashlar_view::zfs_text::pool_status;
use clap::Args;

use super::place::PoolArgs;
use crate::output;

/// Show the health of pools
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar zpool status
  ashlar zpool status tank
  ashlar zpool status a.img b.img")]
pub(crate) struct Status {
    /// Show only unhealthy pools
    #[arg(short = 'x')]
    unwell: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Pools, or their disks [default: all]
    #[arg(value_name = "POOL")]
    names: Vec<String>,

    #[command(flatten)]
    place: PoolArgs,
}

impl Status {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (place, names) = self.place.with_named(self.names);
        let only = if let [name] = &names[..] { Some(name.as_str()) } else { None };
        let mut pools = place.with(only, ImportMode::READ, |session| session.statuses(&names))?;
        if self.unwell {
            pools.retain(|pool| pool.state != "ONLINE" || pool.errors > 0);
        }
        if self.json {
            return output::print_json(&pools).map(|()| ExitCode::SUCCESS);
        }
        let text = match (pools.is_empty(), self.unwell) {
            (true, true) => "all pools are healthy\n".to_owned(),
            (true, false) => "no pools available\n".to_owned(),
            (false, _) => pools.iter().map(pool_status).collect::<Vec<_>>().join("\n"),
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
