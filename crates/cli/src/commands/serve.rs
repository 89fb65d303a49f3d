//! `ashlar serve`: the daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_host::background;
use ashlar_host::config::{Config, MAX_SPIN_US};
use ashlar_host::daemon::serve;
use ashlar_host::error::{Error, Result};
use ashlar_stack::spec::{Assignment, Group, Listen, Spec};
use clap::Args;

use super::nbd::NbdOptions;
use crate::output::Terminal;

/// Assemble the volumes on disks and serve them
///
/// Assembles arrays from their members, imports ZFS pools and serves their volumes, and looks into
/// partitions and volume groups, to any depth; a device without such contents is served as it is,
/// under its own name. Runs in the foreground, or with --daemon in the background, until SIGTERM, SIGINT, `ashlar stop`, or until its
/// mount is unmounted. Prints a line for each volume and then `ready`. It keeps serving while the
/// mount is in use (an open file, a loop device); a second signal forces it to end within 10
/// seconds: devices that have not stopped by then are left as after a power cut. A third signal
/// does that at once. SIGHUP, from a closed terminal, counts as a first SIGTERM; under nohup it is
/// ignored.
#[derive(Args, Debug)]
#[command(after_help = "\
The mount looks like a Linux root: DIR/dev/md0 is the volume, DIR/sys/block/md0/queue/nomerges an
attribute, DIR/proc/mdstat the state of the arrays. Partitions are named as in Linux:
DIR/dev/disk.img1, DIR/dev/md0p1; volumes of ZFS pools DIR/dev/zd0 and DIR/dev/zvol/POOL/VOLUME. Over NBD a volume's export name is md0, or md/NAME for an array
with a name; the empty name is the only volume if there is one.

A device below others, such as a disk with partitions, is not served itself: --whole
serves it, without the devices on it.

Exit codes: 0 stopped cleanly, 1 not started or not stopped cleanly, 2 wrong usage,
101 stopped because of a defect (a panic), as cleanly as possible.

Examples:
  ashlar serve disk*.img --mount /mnt/volumes
  ashlar serve disk*.img --nbd unix:/run/ashlar.nbd --nbd tcp:localhost:10809
  ashlar serve --config /etc/ashlar/stack.toml
  ashlar serve /dev/sd[bc] --control-group disk --mount /mnt/volumes
  ashlar serve --daemon /dev/sd[bc] --mount /mnt/volumes && ls /mnt/volumes/dev
  ashlar serve --incremental --mount /mnt/volumes
  ashlar serve disk*.img --model gp2:3000iops --model disk0.img=hdd --nbd unix:/run/ashlar.nbd
  mount -o loop /mnt/volumes/dev/md0 /mnt/data")]
pub(crate) struct Serve {
    /// Image files, block devices, or ram:SIZE for a RAM disk that ends with the daemon
    #[arg(value_name = "DISK")]
    disks: Vec<PathBuf>,

    /// Read disks and options from a file; options given here take precedence, disks are added
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Import ZFS pools that another host used last and did not export
    #[arg(long)]
    force: bool,

    /// Serve in the background: return once everything is served, or with the error and the exit code of a
    /// daemon that could not start. It belongs to no terminal, and logs nowhere once it serves. Units of a service
    /// manager do without (Type=notify), and have its log
    #[arg(long)]
    daemon: bool,

    #[command(flatten)]
    options: ServeOptions,
}

/// How to serve.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ServeOptions {
    /// Mount the volumes and their attributes on a directory
    #[arg(long, value_name = "DIR")]
    pub(crate) mount: Option<PathBuf>,

    /// Give other users access to the mount, as far as the files' modes allow
    #[arg(long, requires = "mount")]
    allow_other: bool,

    /// Listen for NBD clients: unix:PATH or tcp:HOST:PORT (may be repeated)
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) nbd: Vec<Listen>,

    #[command(flatten)]
    nbd_options: NbdOptions,

    /// Write nothing to the disks, and refuse writes to the volumes
    #[arg(long, alias = "readonly", short_alias = 'o')]
    pub(crate) read_only: bool,

    /// Use the host's page cache instead of bypassing it: for disks that are read repeatedly, with
    /// memory to spare. Flushed data are as durable as without it
    #[arg(long)]
    buffered: bool,

    /// Start arrays with fewer members than they had last time
    #[arg(short = 'R', long)]
    pub(crate) run: bool,

    /// Start with the disks present: incomplete arrays wait for members from `ashlar md
    /// incremental`
    #[arg(short = 'I', long)]
    incremental: bool,

    /// Serve disks and arrays as they are: look for members of arrays, but not for partitions and
    /// volume groups
    #[arg(long)]
    whole: bool,

    /// Serve images of hypervisors (qcow2, vmdk, vdi, vpc, vhdx and the like) as the bytes that they are: not as
    /// the disks that their guests see, for which there is qemu-nbd
    #[arg(long)]
    raw: bool,

    /// Set an attribute before anything is served, as the [set] table of a configuration does: a module parameter of
    /// ZFS, sys/module/zfs/parameters/zvol_use_blk_mq=1, before pools are imported (may be repeated)
    #[arg(long, value_name = "PATH=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,

    /// Make logical volumes with missing physical volumes: I/O to the missing parts fails
    #[arg(short = 'P', long)]
    partial: bool,

    /// Threads that do the I/O [default: one for each processor, at most 4]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Microseconds that a thread with I/O in flight polls for completions before it sleeps: less
    /// latency for more processor time [default: 150, with --mount 0]
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_SPIN_US)))]
    spin: Option<u32>,

    /// Give disks the timing of another device: MODEL for all, DISK=MODEL for one (may be
    /// repeated). The models nvme, sata-ssd, hdd, gp2 and custom (which takes no time) are adjusted
    /// after a colon by 3000iops, burst=16, unit=256K, read=600us, write=900us, latency=1ms,
    /// flush=1ms, discard=1ms, bandwidth=250M (bytes per second), parallelism=64, jitter=10%
    #[arg(long, value_name = "[DISK=]MODEL")]
    model: Vec<Assignment>,

    /// The control socket [default: for root /run/ashlar.sock; for others ashlar.sock in
    /// $XDG_RUNTIME_DIR, or else in /run/user/UID or /tmp/ashlar-UID]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,

    /// Let the members of a group control the daemon, by its name or number: the control socket belongs to it, with
    /// mode 660. Otherwise only root and the daemon's user may
    #[arg(long, value_name = "GROUP")]
    control_group: Option<String>,
}

impl ServeOptions {
    /// The daemon's configuration for `disks`.
    ///
    /// # Errors
    /// As [`Config::new`].
    pub(crate) fn into_config(self, disks: Vec<PathBuf>) -> Result<Config> {
        let set = self.set.clone();
        Config::new(Spec::default(), self.into_spec(disks), set)
    }

    /// The settings, but for the attributes.
    fn into_spec(self, disks: Vec<PathBuf>) -> Spec {
        let spec = Spec {
            disks,
            mount: self.mount,
            allow_other: self.allow_other,
            nbd: self.nbd,
            read_only: self.read_only,
            buffered: self.buffered,
            run: self.run,
            incremental: self.incremental,
            whole: self.whole,
            raw: self.raw,
            partial: self.partial,
            threads: self.threads,
            spin: self.spin,
            control: self.control,
            control_group: self.control_group.map(Group),
            model: self.model,
            ..Spec::default()
        };
        self.nbd_options.with(spec)
    }
}

impl Serve {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.daemon && !background::is_it() {
            return background::start(std::env::args_os());
        }
        let file = match &self.config {
            Some(path) => Spec::load(path)
                .map_err(|error| Error::plain("cannot use the configuration", error))?,
            None => Spec::default(),
        };
        let set = self.options.set.clone();
        let given = Spec { force: self.force, ..self.options.into_spec(self.disks) };
        let mut config = Config::new(file, given, set)?;
        if self.daemon {
            config = config.in_background()?;
        }
        if config.disks.is_empty() && !config.incremental {
            let hint = "name disk images or block devices, a --config that does, or --incremental";
            return Err(Error::usage("no disks given").hint(hint));
        }
        serve(&config, None, None, &mut Terminal)
    }
}

/// `PATH=VALUE`.
fn assignment(text: &str) -> std::result::Result<(String, String), String> {
    let (path, value) =
        text.split_once('=').ok_or_else(|| format!("`{text}` is not PATH=VALUE"))?;
    Ok((path.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// But the one that names the configuration, and the one that says how a command starts the daemon: a configuration
    /// is used by service units, too.
    #[test]
    fn every_option_is_a_key_of_the_configuration() {
        let command = Serve::augment_args(clap::Command::new("serve"));
        for option in command.get_arguments().filter_map(clap::Arg::get_long) {
            let key = option.replace('-', "_");
            let result = Spec::parse(&format!("{key} = {{ x = [] }}"), Path::new("stack.toml"));
            let is_unknown = result.is_err_and(|error| error.to_string().contains("unknown field"));
            assert_eq!(is_unknown, ["config", "daemon"].contains(&option), "{option}");
        }
    }
}
