//! `ashlar md assemble`: assembles an array, to serve it or to check whether it can be.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_host::acceptance::check_started;
use ashlar_host::daemon::serve;
use ashlar_host::disks::{self, Access};
use ashlar_host::error::{Error, Result};
use ashlar_md::ondisk::create::full_name;
use ashlar_md::ondisk::homehost::with_host;
use ashlar_md::ondisk::{MdadmUuid, Version};
use ashlar_md::update::Update;
use ashlar_stack::arrays::Volume;
use ashlar_stack::assemble::{NotAMember, Options, Probed, Stack, assemble, probe_all};
use ashlar_stack::names::{parse_array_name, short_name};
use clap::Args;
use uuid::Uuid;

use crate::commands::serve::ServeOptions;
use crate::output::Terminal;
use crate::{output, units};

/// Assemble an array from its members
///
/// With --mount or --nbd, serves the array in the foreground like `ashlar serve`. Otherwise this is
/// a trial: it reports whether and how the array would start, and does not change the disks, unless
/// --update asks for it.
///
/// --update changes one member after the other. If it is interrupted, repeat it with the same options;
/// to repeat --update=uuid, give the same --uuid.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 started or could be, 1 could not.

Examples:
  ashlar md assemble disk*.img
  ashlar md assemble --scan
  ashlar md assemble --uuid=0123abcd:0123abcd:0123abcd:0123abcd /dev/sd*1
  ashlar md assemble --update=name --name=data disk*.img
  ashlar md assemble /dev/md0 disk0.img disk2.img --run --mount /mnt/volumes")]
pub(crate) struct Assemble {
    /// Use only members of the array with this UUID; with --update=uuid the one it is to get
    #[arg(short, long, value_parser = units::uuid)]
    uuid: Option<Uuid>,

    /// Use only members of the array with this name, with or without its host; with --update=name the
    /// one it is to get
    #[arg(short = 'N', long)]
    name: Option<String>,

    /// Change all superblocks first, of an array that nobody uses: uuid, name, homehost, resync,
    /// devicesize, no-bitmap, bbl, no-bbl, force-no-bbl or super-minor
    #[arg(short = 'U', long, value_name = "WHAT", conflicts_with = "scan")]
    update: Option<String>,

    /// With --update=homehost the host to put before the name, with metadata 0.90 in the UUID [default: this host's
    /// name]
    #[arg(long, value_name = "HOST", requires = "update")]
    homehost: Option<String>,

    #[command(flatten)]
    options: ServeOptions,

    /// A name for the array instead of its own, as /dev/md0, md0 or /dev/md/NAME; then the members
    #[arg(required_unless_present = "scan", value_name = "[NAME] DEVICE")]
    devices: Vec<PathBuf>,

    /// Find the members among the devices, or among all block devices if none are given
    #[arg(short, long)]
    scan: bool,
}

impl Assemble {
    /// Whether the array is served, not only checked.
    pub(crate) fn serves(&self) -> bool {
        self.options.mount.is_some() || !self.options.nbd.is_empty()
    }

    pub(crate) fn run(mut self) -> Result<ExitCode> {
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
        if let Some(what) = self.update.clone() {
            self.update(&what, rename.as_deref(), &devices)?;
        }
        if self.serves() {
            let filter = |probed: &Probed| self.wanted(probed);
            let config = self.options.clone().into_config(devices);
            return serve(&config, rename.as_deref(), Some(&filter), &mut Terminal);
        }
        let read_only = self.options.read_only;
        let access = if read_only { Access::Read } else { Access::Write };
        let opened = disks::open_all(&devices, access)?;
        let reactor = disks::reactor()?;
        reactor.block_on(async {
            let mut probed = probe_all(opened).await;
            probed.retain(|disk| self.wanted(disk));
            for disk in &probed {
                match disk.candidate() {
                    // The array may be able to do without it.
                    Ok(_) | Err(NotAMember::Damaged(_)) => {}
                    Err(why) => return Err(Error::plain(disk.disk.path.display(), why)),
                }
            }
            if probed.is_empty() {
                return Err(Error::usage("no member of that array among the devices"));
            }
            let md = ashlar_md::Options { run: self.options.run, read_only };
            let options = Options { md, rename, whole: true, ..Options::default() };
            let stack = assemble(&probed, options, &disks::runtime()).await;
            check_started(&stack, md)?;
            output::tell(&report(&stack, md))
        })?;
        Ok(ExitCode::SUCCESS)
    }

    /// Changes the superblocks on `devices`. A new UUID or name no longer selects members afterwards.
    fn update(&mut self, what: &str, array: Option<&str>, devices: &[PathBuf]) -> Result<()> {
        let is_named = self.uuid.is_some();
        let mut update = self.parse_update(what, array)?;
        let opened = disks::open_all(devices, Access::Write)?;
        let text = disks::reactor()?.block_on(async {
            let mut members = Vec::new();
            for probed in probe_all(opened).await {
                if self.wanted(&probed) {
                    let path = probed.disk.path.display();
                    members.push(probed.candidate().map_err(|why| Error::plain(path, why))?);
                }
            }
            if members.is_empty() {
                return Err(Error::usage("no member of that array among the devices"));
            }
            let has_host = members[0].sb.version == Version::V0_90;
            if let Update::Uuid(uuid) = &mut update
                && let Some(host) = super::create::homehost(self.homehost.as_deref())
                && has_host
                && !is_named
            {
                *uuid = with_host(*uuid, &host);
            }
            if has_host && matches!(update, Update::HomeHost(_)) {
                // It has another one from then on.
                self.uuid = None;
            }
            if let Update::Uuid(uuid) = update {
                // If this is interrupted, the user needs the UUID to continue.
                output::print(&format!("ashlar: the UUID becomes {}\n", MdadmUuid(uuid)))?;
            }
            let changed = ashlar_md::update::update(&members, &update).await;
            changed.map_err(|error| Error::plain("cannot update", error))?;
            Ok(format!("ashlar: {} members have {}\n", members.len(), update.describe()))
        })?;
        output::print(&text)
    }

    /// The change for mdadm's word `what`.
    fn parse_update(&mut self, what: &str, array: Option<&str>) -> Result<Update> {
        Ok(match what {
            "uuid" => Update::Uuid(self.uuid.take().unwrap_or_else(Uuid::new_v4)),
            "name" => {
                let name = self.name.take().or(array.map(str::to_owned));
                let name = name.ok_or_else(|| Error::usage("--update=name needs a --name"))?;
                let host = super::create::homehost(self.homehost.as_deref());
                Update::Name(full_name(host.as_deref(), &name))
            }
            "homehost" => {
                let host = super::create::homehost(self.homehost.as_deref());
                Update::HomeHost(host.ok_or_else(|| Error::usage("no host name: give --homehost"))?)
            }
            "resync" => Update::Resync,
            "devicesize" => Update::DeviceSize,
            "no-bitmap" => Update::NoBitmap,
            "bbl" => Update::BadBlockLog,
            "no-bbl" => Update::NoBadBlockLog { force: false },
            "force-no-bbl" => Update::NoBadBlockLog { force: true },
            "super-minor" => {
                let number = array.and_then(|name| name.parse().ok());
                let needs = || Error::usage("--update=super-minor needs the array's number");
                Update::PreferredMinor(
                    number.ok_or_else(|| needs().hint("name it first, as /dev/md0"))?,
                )
            }
            "sparc2.2" | "summaries" | "nodes" | "home-cluster" | "byteorder" | "ppl"
            | "no-ppl" | "layout-original" | "layout-alternate" | "layout-unspecified"
            | "metadata" | "revert-reshape" => {
                let why = format_args!("--update={what} is not supported; nothing was changed");
                return Err(Error::usage(why).hint("mdadm does it"));
            }
            _ => {
                let error = Error::usage(format_args!("--update={what}: no such change"));
                return Err(error.hint(
                    "uuid, name, homehost, resync, devicesize, no-bitmap, bbl, no-bbl, force-no-bbl or \
                     super-minor",
                ));
            }
        })
    }

    /// The members of the selected arrays among these devices, or among all devices.
    fn find(&self, among: &[PathBuf]) -> Result<Vec<PathBuf>> {
        let opened = disks::open_for_scan(among);
        let probed = disks::reactor()?.block_on(probe_all(opened));
        let members = probed.iter().filter(|probed| probed.candidate().is_ok());
        let wanted = members.filter(|probed| self.wanted(probed));
        let found: Vec<PathBuf> = wanted.map(|probed| probed.disk.path.clone()).collect();
        if found.is_empty() { Err(Error::failed("no arrays found")) } else { Ok(found) }
    }

    /// The name given, and the devices.
    fn split_name(&self) -> (Option<String>, Vec<PathBuf>) {
        let Some(first) = self.devices.first() else { return (None, Vec::new()) };
        let exists = first.is_file();
        let name = first.to_str().and_then(parse_array_name).filter(|_| !exists);
        let name = name.map(str::to_owned);
        let devices = self.devices[usize::from(name.is_some())..].to_vec();
        (name, devices)
    }

    /// Whether `probed` may belong to the selected array.
    fn wanted(&self, probed: &Probed) -> bool {
        let Ok(candidate) = probed.candidate() else {
            return self.uuid.is_none() && self.name.is_none();
        };
        let sb = &candidate.sb;
        let named = |name: &String| *name == sb.name || name == short_name(&sb.name);
        self.uuid.is_none_or(|uuid| uuid == sb.set_uuid) && self.name.as_ref().is_none_or(named)
    }
}

fn report(stack: &Stack, md: ashlar_md::Options) -> String {
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
    let arrays: String = stack.arrays.running().iter().map(line).collect();
    let refused = stack.refused(md.run);
    let left_out =
        refused.iter().map(|disk| format!("ashlar: {} left out: {}\n", disk.path, disk.why));
    arrays + &left_out.collect::<String>()
}
