//! `ashlar md assemble`: assembles an array, to serve it or to check whether it can be.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_commands::md::{MemberFilter, UpdateOptions, find_members, try_to_assemble, update};
use ashlar_daemon::config::Config;
use ashlar_daemon::error::{Error, Result};
use ashlar_daemon::serve;
use ashlar_disks as disks;
use ashlar_md::ondisk::{MdadmUuid, words};
use ashlar_stack::assemble::ProbedDisk;
use ashlar_stack::names::parse_array_name;
use clap::Args;
use uuid::Uuid;

use crate::output;
use crate::output::Terminal;

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
    #[arg(short, long, value_parser = words::uuid)]
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

    /// Start unclean arrays with parity that lack a member
    ///
    /// Arrays that were not stopped cleanly: what is recovered of the member may be wrong where writes were under
    /// way. Takes no members that are out of date, as mdadm's --force does
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    options: Config,

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
        self.options.serves()
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        let (rename, mut devices) = self.split_name();
        let mut filter = MemberFilter { uuid: self.uuid, name: self.name.clone() };
        if self.scan {
            if rename.is_some() && self.uuid.is_none() && self.name.is_none() {
                let error = Error::usage("--scan finds arrays of any name");
                return Err(error.hint("say which one is meant with --uuid or --name"));
            }
            devices = disks::reactor()?.block_on(find_members(&devices, &filter))?;
        } else if devices.is_empty() {
            return Err(Error::usage("no member devices given"));
        }
        if let Some(what) = self.update.clone() {
            let (array, homehost) = (rename.clone(), self.homehost.clone());
            let options = UpdateOptions { what, array, homehost };
            let tell =
                |uuid| output::print(&format!("ashlar: the UUID becomes {}\n", MdadmUuid(uuid)));
            let update = update(&options, &devices, &mut filter, tell);
            let (count, change) = disks::reactor()?.block_on(update)?;
            output::print(&format!("ashlar: {count} members have {change}\n"))?;
        }
        if self.serves() {
            let accepts = |probed: &ProbedDisk| filter.accepts(probed);
            // As mdadm's, it is about arrays: nothing that is on them is forced.
            let config = Config { force_arrays: self.force, ..self.options.checked(devices)? };
            return serve(&config, rename.as_deref(), Some(&accepts), &mut Terminal);
        }
        let md = ashlar_md::Options {
            run: self.options.run,
            read_only: self.options.read_only,
            force: self.force,
        };
        let tried = try_to_assemble(&devices, &self.options.backup_file, &filter, rename, md);
        let lines = disks::reactor()?.block_on(tried)?;
        output::tell(&lines.iter().map(|line| format!("ashlar: {line}\n")).collect::<String>())?;
        output::note(
            "hint: nothing was started; --mount or --nbd serves it, as ashlar serve does\n",
        );
        Ok(ExitCode::SUCCESS)
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
}
