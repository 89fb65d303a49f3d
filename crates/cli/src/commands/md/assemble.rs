//! `ashlar md assemble`: puts an array together, to serve it or to see whether it can be.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_stack::arrays::Volume;
use ashlar_stack::assemble::{Options, Probed, Stack, assemble, probe_all};
use ashlar_stack::names::{parse_array_name, short_name};
use clap::Args;
use uuid::Uuid;

use crate::commands::serve::{ServeOptions, check_started};
use crate::daemon;
use crate::disks::{self, Access};
use crate::error::{Error, Result};
use crate::{output, units};

/// Assemble an array from its members
///
/// With --mount or --nbd the array is served in the foreground, as by `ashlar serve`. Without, this
/// is a trial: it says whether and how the array would start, and changes nothing on the disks.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 started or could be, 1 could not.

Examples:
  ashlar md assemble disk*.img
  ashlar md assemble --scan
  ashlar md assemble --uuid=0123abcd:0123abcd:0123abcd:0123abcd /dev/sd*1
  ashlar md assemble /dev/md0 disk0.img disk2.img --run --mount /mnt/volumes")]
pub(crate) struct Assemble {
    /// Use only members of the array with this UUID
    #[arg(short, long, value_parser = units::uuid)]
    uuid: Option<Uuid>,

    /// Use only members of the array with this name, with or without its host
    #[arg(short = 'N', long)]
    name: Option<String>,

    #[command(flatten)]
    options: ServeOptions,

    /// What to call the array, as /dev/md0, md0 or /dev/md/NAME, if other than by its own name; then
    /// the members
    #[arg(required_unless_present = "scan", value_name = "[NAME] DEVICE")]
    devices: Vec<PathBuf>,

    /// Find the members among the devices, or among all block devices if none are given
    #[arg(short, long)]
    scan: bool,
}

impl Assemble {
    /// Whether this is no trial.
    pub(crate) fn serves(&self) -> bool {
        self.options.mount.is_some() || !self.options.nbd.is_empty()
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        let (rename, mut devices) = self.split_name();
        if self.scan {
            if rename.is_some() && self.uuid.is_none() && self.name.is_none() {
                let error = Error::usage("--scan finds arrays of any name");
                return Err(error.hint("say which one is meant with --uuid or --name"));
            }
            devices = self.find(&devices)?;
        } else if devices.is_empty() {
            return Err(Error::usage("no member devices given"));
        }
        if self.serves() {
            let filter = |probed: &Probed| self.wanted(probed);
            let config = self.options.clone().into_config(devices);
            return daemon::serve(config, rename.as_deref(), Some(&filter));
        }
        let read_only = self.options.read_only;
        let access = if read_only { Access::Read } else { Access::Write };
        let opened = disks::open_all(&devices, access)?;
        let reactor = disks::reactor()?;
        reactor.block_on(async {
            let mut probed = probe_all(opened).await;
            probed.retain(|disk| self.wanted(disk));
            for disk in &probed {
                disk.candidate().map_err(|why| Error::plain(disk.disk.path.display(), why))?;
            }
            if probed.is_empty() {
                return Err(Error::usage("no member of that array among the devices"));
            }
            let md = ashlar_md::Options { run: self.options.run, read_only };
            let options = Options { md, rename, whole: true, ..Options::default() };
            let stack = assemble(&probed, options, &disks::runtime()).await;
            check_started(&stack, false)?;
            output::print(&report(&stack))
        })?;
        Ok(ExitCode::SUCCESS)
    }

    /// The members of wanted arrays among these devices, or among all there are.
    fn find(&self, among: &[PathBuf]) -> Result<Vec<PathBuf>> {
        let opened = disks::open_for_scan(among);
        let probed = disks::reactor()?.block_on(probe_all(opened));
        let members = probed.iter().filter(|probed| probed.candidate().is_ok());
        let wanted = members.filter(|probed| self.wanted(probed));
        let found: Vec<PathBuf> = wanted.map(|probed| probed.disk.path.clone()).collect();
        if found.is_empty() { Err(Error::failed("no arrays found")) } else { Ok(found) }
    }

    /// The name to give, and the devices.
    fn split_name(&self) -> (Option<String>, Vec<PathBuf>) {
        let Some(first) = self.devices.first() else { return (None, Vec::new()) };
        let exists = first.is_file();
        let name = first.to_str().and_then(parse_array_name).filter(|_| !exists);
        let name = name.map(str::to_owned);
        let devices = self.devices[usize::from(name.is_some())..].to_vec();
        (name, devices)
    }

    /// Whether `probed` is not a member of some other array than the one asked for.
    fn wanted(&self, probed: &Probed) -> bool {
        let Ok(candidate) = probed.candidate() else {
            return self.uuid.is_none() && self.name.is_none();
        };
        let sb = &candidate.sb;
        let named = |name: &String| *name == sb.name || name == short_name(&sb.name);
        self.uuid.is_none_or(|uuid| uuid == sb.set_uuid) && self.name.as_ref().is_none_or(named)
    }
}

fn report(stack: &Stack) -> String {
    let line = |volume: &Volume| {
        let status = volume.view.status();
        let working = status.raid_disks - status.degraded;
        let out_of = if status.degraded == 0 {
            String::new()
        } else {
            format!(" (out of {})", status.raid_disks)
        };
        let drives = if working == 1 { "drive" } else { "drives" };
        let mut text = format!(
            "ashlar: /dev/{} can be started with {working} {drives}{out_of}.\n",
            volume.name.device()
        );
        for note in &status.notes {
            text += &format!("ashlar: {note}\n");
        }
        text
    };
    stack.arrays.running().iter().map(line).collect()
}
