//! `ashlar scan`: the contents of disks.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_commands::lvm::local_system_ids;
use ashlar_daemon::error::Result;
use ashlar_disks::sandbox::Sandbox;
use ashlar_disks::{self as disks, Access, Opener};
use ashlar_view::graph::TEXT_WIDTH;
use clap::Args;

use crate::output;

/// Show the contents of disks as a tree
///
/// Partitions are shown below their disk, arrays below each of their members, to any depth, and
/// file systems below their device, with their labels and UUIDs. Only reads, and takes no lock: disks may be
/// in use. Lines are as wide as the terminal, and at most 100 columns wide in a file or a pipe; programs
/// read --json.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar scan disk*.img
  ashlar scan disk0.img --map rescued/disk0.map
  ashlar scan --json /dev/sd[a-d]")]
pub(crate) struct Scan {
    /// Image files or block devices
    #[arg(required = true, value_name = "DISK")]
    disks: Vec<PathBuf>,

    /// Print JSON, in the form of lsblk --json
    #[arg(long)]
    json: bool,
}

impl Scan {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let sandbox = Sandbox::of(&self.disks);
        let opener = Opener::new(Access::Look);
        let opened = opener.all(&self.disks)?;
        let local = local_system_ids();
        let reactor = disks::reactor()?;
        // In the sandbox a terminal cannot be asked.
        let width = output::width(TEXT_WIDTH);
        sandbox.enter()?;
        let mut graph = reactor.block_on(async {
            let probed = ashlar_stack::assemble::probe_all(opened).await;
            ashlar_view::scan::scan(&probed, local, &disks::runtime()).await
        });
        for found in opener.decorators.maps.known() {
            let disk = found.disk.display().to_string();
            graph.amend_roots(&disk, |node| {
                let node = node.fact("map", found.map.display()).fact("unread", found.unread_bytes);
                if found.areas == 0 { node } else { node.also(found.unread()) }
            });
        }
        if self.json {
            output::print_json(&graph)?
        } else {
            output::print(&graph.to_text(width))?
        }
        Ok(ExitCode::SUCCESS)
    }
}
