//! `ashlar status`: the state of a running daemon.

use std::process::ExitCode;

use ashlar_host::error::Result;
use ashlar_host::interface;
use ashlar_stack::graph::human_size;
use clap::Args;

use super::Daemon;
use crate::output;

/// Show the volumes that a running daemon serves
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar status
  ashlar status --json --control /run/other.sock")]
pub(crate) struct Status {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    daemon: Daemon,
}

impl Status {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let status = self.daemon.connect()?.status()?;
        if self.json {
            output::print_json(&status)?
        } else {
            output::print(&text(&status))?
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn text(status: &interface::Status) -> String {
    let mut out = format!("ashlar {}, process {}\n", status.version, status.pid);
    if let Some(waits_for) = &status.stopping {
        out += "stopping\n";
        for what in waits_for {
            out += &format!("waiting: {what}\n");
        }
    }
    if let Some(mount) = &status.mount {
        out += &format!("mounted on {mount}\n");
    }
    for address in &status.nbd {
        out += &format!("NBD at {address}\n");
    }
    for interface::ModelStatus { disk, model } in &status.models {
        out += &format!("{disk} takes the time of {model}\n");
    }
    for pool in &status.pools {
        out += &format!("{}: zpool, OpenZFS {} in process {}", pool.name, pool.release, pool.pid);
        out += &pool.ended.as_ref().map_or("\n".to_owned(), |how| format!(", which ended {how}\n"));
    }
    for volume in &status.volumes {
        let alias = volume.alias.as_deref().map_or(String::new(), |alias| format!(" ({alias})"));
        let size = human_size(volume.size);
        out += &format!("{}{alias}: {} {size}, {}", volume.name, volume.level, volume.state);
        if volume.raid_devices > 1 {
            let working = volume.raid_devices.saturating_sub(volume.degraded);
            out += &format!(", {working} of {} devices", volume.raid_devices);
        }
        out.push('\n');
    }
    out
}
