//! `ashlar serve`: the daemon.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ashlar_md::AssembleError;
use ashlar_stack::assemble::Stack;
use ashlar_stack::devices::Kind;
use ashlar_stack::spec::{Assignment, Listen, Spec};
use clap::Args;

use crate::daemon::{self, Config};
use crate::error::{Error, Result};
use crate::models::Models;

/// Assemble what is on disks and serve it
///
/// Members are assembled to arrays, ZFS pools are imported and their volumes served; disks and arrays with partitions are taken apart, to any depth; what
/// holds nothing of that kind is served as it is, under its own name. Runs in the foreground until SIGTERM, SIGINT, `ashlar stop`, or until its mount is unmounted.
/// Prints a line for each volume and then `ready`. While the mount is in use (an open file, a loop
/// device) it does not end; a second signal forces it to.
#[derive(Args, Debug)]
#[command(after_help = "\
The mount looks like a Linux root: DIR/dev/md0 is the volume, DIR/sys/block/md0/queue/nomerges an
attribute, DIR/proc/mdstat the state of the arrays. Partitions are named as in Linux:
DIR/dev/disk.img1, DIR/dev/md0p1; volumes of ZFS pools DIR/dev/zd0 and DIR/dev/zvol/POOL/VOLUME. Over NBD a volume's export name is md0, or md/NAME for an array
with a name; the empty name is the only volume if there is one.

A device that others are made of, such as a disk with partitions, is not served itself: --whole
serves it, and nothing of what is in it.

Exit codes: 0 stopped in good order, 1 not started or not stopped in good order, 2 wrong usage.

Examples:
  ashlar serve disk*.img --mount /mnt/volumes
  ashlar serve disk*.img --nbd unix:/run/ashlar.nbd --nbd tcp:localhost:10809
  ashlar serve --config /etc/ashlar/stack.toml
  ashlar serve --incremental --mount /mnt/volumes
  ashlar serve disk*.img --model gp2:3000iops --model disk0.img=hdd --nbd unix:/run/ashlar.nbd
  mount -o loop /mnt/volumes/dev/md0 /mnt/data")]
pub(crate) struct Serve {
    /// Image files, block devices, or ram:SIZE for a RAM disk that ends with the daemon
    #[arg(value_name = "DISK")]
    disks: Vec<PathBuf>,

    /// Take disks and options from a file; options given here win, disks are added
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Import ZFS pools that another host has used last and not exported
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    options: ServeOptions,
}

/// How to serve.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ServeOptions {
    /// Mount the volumes and their attributes on a directory
    #[arg(long, value_name = "DIR")]
    pub(crate) mount: Option<PathBuf>,

    /// Let other users into the mount, as far as the files' modes allow
    #[arg(long, requires = "mount")]
    pub(crate) allow_other: bool,

    /// Listen for NBD clients: unix:PATH or tcp:HOST:PORT (may be repeated)
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) nbd: Vec<Listen>,

    /// Write nothing to the disks, and refuse writes to the volumes
    #[arg(long, alias = "readonly", short_alias = 'o')]
    pub(crate) read_only: bool,

    /// Go through the host's page cache, not around it: for disks that are read again and again,
    /// where memory is to spare. What was flushed is as durable as without
    #[arg(long)]
    pub(crate) buffered: bool,

    /// Start arrays with fewer members than they had last time
    #[arg(short = 'R', long)]
    pub(crate) run: bool,

    /// Start with what is there: arrays that lack members wait for them, as `ashlar md incremental`
    /// hands them in
    #[arg(short = 'I', long)]
    pub(crate) incremental: bool,

    /// Serve disks and arrays as they are: look for members of arrays, but not for partitions and
    /// volume groups
    #[arg(long)]
    pub(crate) whole: bool,

    /// Set an attribute before anything is served, as the [set] table of a configuration does: a module parameter of
    /// ZFS, sys/module/zfs/parameters/zvol_use_blk_mq=1, before pools are imported (may be repeated)
    #[arg(long, value_name = "PATH=VALUE", value_parser = assignment)]
    pub(crate) set: Vec<(String, String)>,

    /// Make logical volumes of which physical volumes are missing: I/O fails where they were
    #[arg(short = 'P', long)]
    pub(crate) partial: bool,

    /// Threads that do the I/O [default: one for each processor, at most 4]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: Option<u16>,

    /// Microseconds that a thread with I/O in flight looks for completions before it sleeps: fewer
    /// delays for more processor time [default: 150, with --mount 0]
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(..=10_000))]
    pub(crate) spin: Option<u32>,

    /// Let disks take the time of another device: MODEL for all, DISK=MODEL for one (may be repeated).
    /// There are nvme, sata-ssd, hdd, gp2 and custom (which takes no time), adjusted behind a colon by
    /// 3000iops, burst=16, unit=256K, read=600us, write=900us, latency=1ms, flush=1ms, discard=1ms,
    /// bandwidth=250M (bytes in a second), parallelism=64, jitter=10%
    #[arg(long, value_name = "[DISK=]MODEL")]
    pub(crate) model: Vec<Assignment>,

    /// The control socket [default: $XDG_RUNTIME_DIR/ashlar.sock, for root /run/ashlar.sock]
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
}

impl ServeOptions {
    /// What the daemon is to do with `disks`.
    pub(crate) fn into_config(self, disks: Vec<PathBuf>) -> Config {
        let default = std::thread::available_parallelism().map_or(1, |n| n.get().min(4));
        // The users of a mount are on this machine, and want its processors themselves: measured, a
        // mount loses a third of its rate by spinning, while NBD on a disk gains as much.
        let default_spin = if self.mount.is_some() { 0 } else { 150 };
        let spin = Duration::from_micros(self.spin.unwrap_or(default_spin).into());
        Config {
            disks,
            spin,
            mount: self.mount,
            allow_other: self.allow_other,
            nbd: self.nbd,
            read_only: self.read_only,
            buffered: self.buffered,
            run: self.run,
            incremental: self.incremental,
            whole: self.whole,
            partial: self.partial,
            force: false,
            threads: self.threads.map_or(default, usize::from),
            control: self.control,
            models: Arc::new(Models::new(self.model)),
            set: self.set,
        }
    }
}

impl Serve {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let spec = match &self.config {
            Some(path) => Spec::load(path)
                .map_err(|error| Error::plain("cannot use the configuration", error))?,
            None => Spec::default(),
        };
        daemon::serve(self.merge(spec)?, None, None)
    }

    /// The file's settings, with those of the command line before them.
    fn merge(self, spec: Spec) -> Result<Config> {
        let mut options = self.options;
        options.mount = options.mount.or(spec.mount);
        if options.nbd.is_empty() {
            options.nbd = spec.nbd;
        }
        options.read_only |= spec.read_only;
        options.buffered |= spec.buffered;
        options.run |= spec.run;
        options.incremental |= spec.incremental;
        options.whole |= spec.whole;
        options.partial |= spec.partial;
        options.threads = options.threads.or(spec.threads);
        if options.threads == Some(0) {
            return Err(Error::plain("cannot use the configuration", "threads must not be 0"));
        }
        options.control = options.control.or(spec.control);
        options.model.splice(0..0, spec.model);
        let disks: Vec<PathBuf> = spec.disks.into_iter().chain(self.disks).collect();
        if disks.is_empty() && !options.incremental {
            let hint = "name disk images or block devices, a --config that does, or --incremental";
            return Err(Error::usage("no disks given").hint(hint));
        }
        let mut config = options.into_config(disks);
        config.force = self.force;
        // What is set later wins.
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

/// Fails if some array did not start, its name is taken, or, unless it is `read_only`, a disk is damaged.
///
/// # Errors
/// The first that did not, and what to do about it.
pub(crate) fn check_started(stack: &Stack, read_only: bool) -> Result<()> {
    let arrays = stack.arrays.running();
    let mut volumes = stack.devices.volumes();
    volumes.retain(|device| device.kind != Kind::Array);
    if let Some(disk) = volumes.iter().find(|d| arrays.iter().any(|v| v.name.device() == d.name)) {
        let why = "it is no member of an array but has the name of one: rename the file";
        return Err(Error::new("cannot serve", &disk.name, why));
    }
    // Who only reads is served what there is.
    let refused = if read_only { Vec::new() } else { stack.refused() };
    if let Some((disk, why)) = refused.into_iter().next() {
        let error = Error::new("cannot serve", disk.path, why);
        return Err(error.hint("--whole serves the disk as it is, whatever is on it"));
    }
    if let Some(pool) = stack.refused_pools.first() {
        let error = Error::plain("cannot serve a pool", &pool.why);
        return Err(match &pool.hint {
            Some(hint) => error.hint(hint),
            None => error.hint("--whole serves its disks as they are"),
        });
    }
    // What lies deeper must not hide its neighbours: the log has it.
    let Some(failure) = stack.failures.iter().find(|failure| !failure.is_nested) else {
        return Ok(());
    };
    let error = Error::new("cannot start", failure, &failure.error);
    let read_only =
        matches!(failure.error, AssembleError::BadBlocks { .. } | AssembleError::ReadOnlyMember(_));
    Err(if matches!(failure.error, AssembleError::NeedsRun { .. }) {
        error.hint("if the others are gone for good, --run starts it without them")
    } else if matches!(failure.error, AssembleError::SplitBrain { .. }) {
        error.hint("leave one out, or --run takes the one that went further")
    } else if read_only {
        error.hint("--read-only gives access to the data and changes nothing")
    } else {
        error
    })
}
