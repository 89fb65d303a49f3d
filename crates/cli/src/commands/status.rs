//! `ashlar status`: the state of a running daemon.

use std::process::ExitCode;

use ashlar_client::interface;
use ashlar_daemon::error::Result;
use ashlar_disks::options::BackEnd;
use ashlar_view::graph::human_size;
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
        out.extend(waits_for.iter().map(|what| format!("waiting: {what}\n")));
    }
    if status.io == BackEnd::Threads.name() {
        out += "I/O by threads, without io_uring\n";
    }
    if !status.sandbox.is_empty() {
        out += &format!("sandbox: {}\n", status.sandbox);
    }
    out.extend(status.places.lines().iter().map(|place| format!("{place}\n")));
    let modelled = status.models.iter().map(|it| (&it.disk, &it.model));
    out.extend(modelled.map(|(disk, model)| format!("{disk} takes the time of {model}\n")));
    let limited = status.limited.iter().filter_map(|it| Some((&it.volume, it.limits.text()?)));
    out.extend(limited.map(|(volume, limits)| format!("{volume} is {limits}\n")));
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
        out.extend(volume.snapshot.iter().map(|snapshot| format!(", {snapshot}")));
        out.push('\n');
        out.extend(volume.clients.lines().iter().map(|client| format!("  {client}\n")));
    }
    out
}
