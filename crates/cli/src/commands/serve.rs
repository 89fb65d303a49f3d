//! `ashlar serve`: the daemon.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ashlar_host::background;
use ashlar_host::config::Config;
use ashlar_host::daemon::serve;
use ashlar_host::disks::absolute;
use ashlar_host::error::{Error, Result};
use ashlar_stack::spec::{Assignment, Listen, Spec};
use clap::Args;

use super::nbd::NbdOptions;
use crate::output::Terminal;

/// The longest time to poll for completions, microseconds.
const MAX_SPIN_US: u32 = 10_000;

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
    pub(crate) allow_other: bool,

    /// Listen for NBD clients: unix:PATH or tcp:HOST:PORT (may be repeated)
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) nbd: Vec<Listen>,

    #[command(flatten)]
    pub(crate) nbd_options: NbdOptions,

    /// Write nothing to the disks, and refuse writes to the volumes
    #[arg(long, alias = "readonly", short_alias = 'o')]
    pub(crate) read_only: bool,

    /// Use the host's page cache instead of bypassing it: for disks that are read repeatedly, with
    /// memory to spare. Flushed data are as durable as without it
    #[arg(long)]
    pub(crate) buffered: bool,

    /// Start arrays with fewer members than they had last time
    #[arg(short = 'R', long)]
    pub(crate) run: bool,

    /// Start with the disks present: incomplete arrays wait for members from `ashlar md
    /// incremental`
    #[arg(short = 'I', long)]
    pub(crate) incremental: bool,

    /// Serve disks and arrays as they are: look for members of arrays, but not for partitions and
    /// volume groups
    #[arg(long)]
    pub(crate) whole: bool,

    /// Serve images of hypervisors (qcow2, vmdk, vdi, vpc, vhdx and the like) as the bytes that they are: not as
    /// the disks that their guests see, for which there is qemu-nbd
    #[arg(long)]
    pub(crate) raw: bool,

    /// Set an attribute before anything is served, as the [set] table of a configuration does: a module parameter of
    /// ZFS, sys/module/zfs/parameters/zvol_use_blk_mq=1, before pools are imported (may be repeated)
    #[arg(long, value_name = "PATH=VALUE", value_parser = assignment)]
    pub(crate) set: Vec<(String, String)>,

    /// Make logical volumes with missing physical volumes: I/O to the missing parts fails
    #[arg(short = 'P', long)]
    pub(crate) partial: bool,

    /// Threads that do the I/O [default: one for each processor, at most 4]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: Option<u16>,

    /// Microseconds that a thread with I/O in flight polls for completions before it sleeps: less
    /// latency for more processor time [default: 150, with --mount 0]
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_SPIN_US)))]
    pub(crate) spin: Option<u32>,

    /// Give disks the timing of another device: MODEL for all, DISK=MODEL for one (may be
    /// repeated). The models nvme, sata-ssd, hdd, gp2 and custom (which takes no time) are adjusted
    /// after a colon by 3000iops, burst=16, unit=256K, read=600us, write=900us, latency=1ms,
    /// flush=1ms, discard=1ms, bandwidth=250M (bytes per second), parallelism=64, jitter=10%
    #[arg(long, value_name = "[DISK=]MODEL")]
    pub(crate) model: Vec<Assignment>,

    /// The control socket [default: for root /run/ashlar.sock; for others ashlar.sock in
    /// $XDG_RUNTIME_DIR, or else in /run/user/UID or /tmp/ashlar-UID]
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,

    /// Let the members of a group control the daemon, by its name or number: the control socket belongs to it, with
    /// mode 660. Otherwise only root and the daemon's user may
    #[arg(long, value_name = "GROUP")]
    pub(crate) control_group: Option<String>,
}

impl ServeOptions {
    /// The daemon's configuration for `disks`.
    pub(crate) fn into_config(self, disks: Vec<PathBuf>) -> Config {
        let default = std::thread::available_parallelism().map_or(1, |n| n.get().min(4));
        // The users of a mount are on this machine and need its processors: as measured, a mount loses a third of its
        // rate by spinning, while NBD on a disk gains as much.
        let default_spin = if self.mount.is_some() { 0 } else { 150 };
        let spin = Duration::from_micros(self.spin.unwrap_or(default_spin).into());
        Config {
            disks,
            spin,
            mount: self.mount,
            allow_other: self.allow_other,
            nbd: self.nbd,
            nbd_options: self.nbd_options.options(),
            read_only: self.read_only,
            buffered: self.buffered,
            run: self.run,
            incremental: self.incremental,
            whole: self.whole,
            raw: self.raw,
            partial: self.partial,
            force: false,
            threads: self.threads.map_or(default, usize::from),
            control: self.control,
            control_group: self.control_group,
            models: self.model,
            set: self.set,
            background: false,
        }
    }
}

impl Serve {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let in_background = self.daemon;
        if in_background && !background::is_it() {
            return background::start(std::env::args_os());
        }
        let spec = match &self.config {
            Some(path) => Spec::load(path)
                .map_err(|error| Error::plain("cannot use the configuration", error))?,
            None => Spec::default(),
        };
        let mut config = self.merge(spec)?;
        config.background = in_background;
        serve(&config, None, None, &mut Terminal)
    }

    /// The file's settings, overridden by those of the command line. For the background all paths are absolute.
    fn merge(self, spec: Spec) -> Result<Config> {
        let mut options = self.options;
        let wrong = |why: String| Error::plain("cannot use the configuration", why);
        options.nbd_options = options.nbd_options.or(&spec).map_err(wrong)?;
        options.mount = options.mount.or(spec.mount);
        options.allow_other |= spec.allow_other;
        if options.allow_other && options.mount.is_none() {
            return Err(wrong("allow_other is for a mount, and there is none".into()));
        }
        if options.nbd.is_empty() {
            options.nbd = spec.nbd;
        }
        options.read_only |= spec.read_only;
        options.buffered |= spec.buffered;
        options.run |= spec.run;
        options.incremental |= spec.incremental;
        options.whole |= spec.whole;
        options.raw |= spec.raw;
        options.partial |= spec.partial;
        options.threads = options.threads.or(spec.threads);
        if options.threads == Some(0) {
            return Err(Error::plain("cannot use the configuration", "threads must not be 0"));
        }
        options.spin = options.spin.or(spec.spin);
        if options.spin > Some(MAX_SPIN_US) {
            return Err(wrong(format!("spin must not be above {MAX_SPIN_US}")));
        }
        options.control = options.control.or(spec.control);
        options.control_group = options.control_group.or(spec.control_group.map(|group| group.0));
        options.model.splice(0..0, spec.model);
        let mut disks: Vec<PathBuf> = spec.disks.into_iter().chain(self.disks).collect();
        if self.daemon {
            let unix = options.nbd.iter_mut().filter_map(|address| match address {
                Listen::Unix(path) => Some(path),
                Listen::Tcp(_) => None,
            });
            let modelled = options.model.iter_mut().filter_map(|model| model.disk.as_mut());
            let others = disks.iter_mut().chain(&mut options.mount).chain(&mut options.control);
            for path in others.chain(unix).chain(modelled) {
                *path = absolute(path)?;
            }
        }
        if disks.is_empty() && !options.incremental {
            let hint = "name disk images or block devices, a --config that does, or --incremental";
            return Err(Error::usage("no disks given").hint(hint));
        }
        let mut config = options.into_config(disks);
        config.force = self.force | spec.force;
        // For the same path, the later setting wins: the command line's.
        let set = spec.set.into_iter().map(|(path, value)| (path, value.0));
        config.set.splice(0..0, set);
        Ok(config)
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
