//! What to serve and how: the configuration of a daemon, without the syntax of a command line or a file.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use ashlar_client::access::{self, Access};
use ashlar_commands::acceptance::Asked;
use ashlar_commands::lvm::local_system_ids;
use ashlar_disks::options::{
    Assignment, BackEnd, Bytes, Group, Holes, Listen, LogPlace, MapFile, MetricsAddress, Mode,
    ReAddPolicy,
};
use ashlar_disks::{self as disks, Decorators, Models, Opener};
use ashlar_export::nbd::budget::{Budget, MIN_BUDGET_BYTES};
use ashlar_export::nbd::listen;
use ashlar_lvm::snapshots::{AutoExtend, BadAutoExtend};
use ashlar_stack::assemble::Others;
use ashlar_stack::pools;
use ashlar_zfs::client::Parameters;

use crate::error::{Error, Result};
use crate::mount_point;

/// The directory of ZFS's module parameters.
pub(crate) const PARAMETERS: &str = "sys/module/zfs/parameters/";

/// The longest time to poll for completions, microseconds.
pub const MAX_SPIN_US: u32 = 10_000;

/// The most threads that do the I/O, unless a number is given. As many have counters of their own in each device
/// (`ashlar_block::shard`); more threads share cache lines, and each may keep some ten MiB of buffers.
pub const MAX_THREADS: usize = 16;

/// The least memory for the requests of all NBD clients, bytes.
const MIN_NBD_MEMORY_BYTES: u64 = MIN_BUDGET_BYTES as u64;

/// Permissions of the NBD server's Unix sockets, unless others are given: their users can write to the volumes.
const DEFAULT_MODE: u32 = 0o600;

/// What to serve and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// Image files, block devices, URIs of NBD exports, and `ram:SIZE`. For a daemon in the background, absolute paths.
    pub disks: Vec<PathBuf>,
    /// Those of the disks that the user has called backup files of mdadm.
    pub backup_file: Vec<PathBuf>,
    /// The mount point, if volumes are mounted.
    pub mount: Option<PathBuf>,
    /// Whether other users may use the mount.
    pub allow_other: bool,
    /// What happens when a client of the mount punches a hole; by default a fast write-zeroes, or a refusal.
    pub holes: Option<Holes>,
    /// The addresses for NBD clients.
    pub nbd: Vec<Listen>,
    /// Permissions of the NBD server's Unix sockets.
    pub nbd_mode: Option<Mode>,
    /// The most NBD clients at a time at each address; others are refused.
    pub nbd_max_connections: Option<u16>,
    /// Seconds after which an NBD connection without requests is closed; 0, the default, for never.
    pub nbd_idle_timeout: Option<u32>,
    /// Memory for the requests of all NBD clients together, at least 64 MiB.
    pub nbd_memory: Option<Bytes>,
    /// The address at which metrics are served over HTTP.
    pub metrics: Option<MetricsAddress>,
    /// Whether nothing is written to the disks, and writes to the volumes are refused.
    pub read_only: bool,
    /// Whether disks are used through the host's page cache, and not with direct I/O.
    pub buffered: bool,
    /// Whether arrays start with fewer members than they had last time.
    pub run: bool,
    /// What happens when a member that was lost comes back; by default it is re-added.
    pub readd: Option<ReAddPolicy>,
    /// Snapshots get more space when more than this percentage of it is in use.
    pub snapshot_autoextend_threshold: Option<u32>,
    /// By which percentage of its size the space of a snapshot grows.
    pub snapshot_autoextend_percent: Option<u32>,
    /// Whether arrays wait for members that come later.
    pub incremental: bool,
    /// Whether disks and arrays are served as they are, without looking at their contents.
    pub whole: bool,
    /// Whether hypervisor images are served as raw bytes.
    pub raw: bool,
    /// Whether logical volumes start without missing physical volumes.
    pub partial: bool,
    /// Whether to import pools that another host used last, to write to devices and volume groups that others
    /// may be writing to, and to start arrays with parity that were not stopped cleanly and lack a member.
    pub force: bool,
    /// Whether only such arrays start, and nothing else is forced.
    pub force_arrays: bool,
    /// Whether to import pools for writing whose log devices are missing: what was only in the log is lost.
    pub missing_log: bool,
    /// The threads that do the I/O; without a number as many as there are processors for the process, at most [`MAX_THREADS`].
    pub threads: Option<u16>,
    /// Microseconds that a thread with I/O in flight polls for completions before it sleeps.
    pub spin: Option<u32>,
    /// The kernel interface for I/O; by default io_uring where it is allowed.
    pub io: Option<BackEnd>,
    /// The path of the control socket; without one, the default of this user.
    pub control: Option<PathBuf>,
    /// The group whose members may control the daemon, by its name or number.
    pub control_group: Option<Group>,
    /// Where the log goes; by default to the console, for a daemon in the background to the system's log.
    pub log: Option<LogPlace>,
    /// The device models that give disks their timing: the last one for a disk counts.
    pub model: Vec<Assignment>,
    /// The maps of ddrescue that list the unread areas of disks, besides those of the process.
    pub map: Vec<MapFile>,
    /// Attributes to set before the daemon serves anything: path and value. The last one for a path counts.
    pub set: Vec<(String, String)>,
    /// Whether the daemon stays outside of the sandbox.
    pub no_sandbox: bool,
    /// Whether this process was started by [`ashlar_commands::background::start`], whose caller waits until it serves.
    pub background: bool,
}

impl Config {
    /// Checks the values.
    ///
    /// # Errors
    /// The message about the first invalid value.
    pub fn check(&self) -> Result<()> {
        let wrong = |why: &str| Err(Error::usage(format!("cannot use the configuration: {why}")));
        if let Err(why) = self.auto_extend() {
            return wrong(&why.to_string());
        }
        if self.allow_other && self.mount.is_none() {
            return wrong("allow_other needs a mount");
        }
        if self.holes.is_some() && self.mount.is_none() {
            return wrong("holes needs a mount");
        }
        if self.threads == Some(0) {
            return wrong("threads must not be 0");
        }
        if self.spin > Some(MAX_SPIN_US) {
            return wrong(&format!("spin must not be above {MAX_SPIN_US}"));
        }
        if self.nbd_max_connections == Some(0) {
            return wrong("nbd_max_connections must not be 0");
        }
        match self.nbd_memory.map(enough) {
            Some(Err(why)) => wrong(&format!("nbd_memory: {why}")),
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// The threads that do the I/O.
    pub(crate) fn threads(&self) -> usize {
        // The affinity and the quota of a control group are considered.
        let default = || available_parallelism().map_or(1, |n| n.get().min(MAX_THREADS));
        self.threads.map_or_else(default, usize::from)
    }

    /// Whether programs on this machine write to the volumes through its page cache.
    pub(crate) fn has_writers_here(&self) -> bool {
        self.mount.is_some()
    }

    /// How long a thread with I/O in flight polls for completions before it sleeps. Called when the process has a reactor.
    pub(crate) fn spin(&self) -> Duration {
        // The users of a mount are on this machine and need its processors: as measured, a mount loses a third of its
        // rate by spinning, while NBD on a disk gains as much. Threads that do the I/O need processors, too: with them NBD on a
        // disk loses a tenth of its reads and a quarter of its writes.
        let is_shared = self.has_writers_here() || BackEnd::used() == BackEnd::Threads;
        let default = if is_shared { 0 } else { 150 };
        Duration::from_micros(self.spin.unwrap_or(default).into())
    }

    /// The access mode for disks.
    pub(crate) fn access(&self) -> disks::Access {
        if self.read_only { disks::Access::Read } else { disks::Access::Write }
    }

    /// How disks are opened.
    pub(crate) fn opener(&self) -> Opener {
        let decorators = Decorators {
            maps: Decorators::of_process().maps.with(&self.map),
            models: Models::new(self.model.clone()),
        };
        let (access, direct) = (self.access(), !self.buffered);
        Opener { access, direct, decorators: Arc::new(decorators) }
    }

    /// Checks that everything needed to serve is available, before any disk is touched. Returns who may control the
    /// daemon.
    ///
    /// # Errors
    /// What is missing, and an option that avoids it.
    pub(crate) fn check_surroundings(&self) -> Result<Access> {
        if let Some(path) = &self.mount {
            mount_point::check(path)?;
        }
        let access = Access::new(self.control_group.as_ref().map(|group| &*group.0))?;
        access::place(self.control.as_deref())?;
        Ok(access)
    }

    /// When snapshots get more space, and how much.
    ///
    /// # Errors
    /// A percentage that cannot be meant, which [`Self::check`] refuses, too.
    pub(crate) fn auto_extend(&self) -> std::result::Result<AutoExtend, BadAutoExtend> {
        AutoExtend::new(self.snapshot_autoextend_threshold, self.snapshot_autoextend_percent)
    }

    /// The permissions of the NBD server's Unix sockets.
    pub(crate) fn nbd_mode(&self) -> u32 {
        self.nbd_mode.map_or(DEFAULT_MODE, |mode| mode.0)
    }

    /// The settings of each NBD listener.
    pub(crate) fn nbd_listener(&self) -> listen::Config {
        let default = listen::Config::default();
        let idle = self.nbd_idle_timeout.filter(|seconds| *seconds > 0);
        listen::Config {
            max_connections: self.nbd_max_connections.map_or(default.max_connections, usize::from),
            idle: idle.map(|seconds| Duration::from_secs(seconds.into())),
            ..default
        }
    }

    /// The memory budget that all NBD listeners share.
    pub(crate) fn nbd_budget(&self) -> Budget {
        let bytes = self.nbd_memory.map(|bytes| usize::try_from(bytes.0).unwrap_or(usize::MAX));
        bytes.map_or_else(Budget::default, Budget::new)
    }

    /// The options for assembling arrays.
    pub(crate) fn md(&self) -> ashlar_md::Options {
        let force = self.force || self.force_arrays;
        ashlar_md::Options { run: self.run, read_only: self.read_only, force }
    }

    /// What may be missing.
    pub(crate) fn asked(&self) -> Asked {
        let Self { incremental, whole, partial, .. } = *self;
        Asked { md: self.md(), incremental, whole, partial }
    }

    /// How to treat devices and volume groups that others may be writing to.
    pub(crate) fn others(&self) -> Others {
        Others { local: local_system_ids(), force: self.force }
    }

    /// The options for importing pools: with the module parameters among the settings.
    ///
    /// # Errors
    /// A parameter that does not exist, or a value that it cannot have.
    pub(crate) fn pools(&self) -> Result<pools::Options> {
        let parameters = Parameters::default();
        for (path, value) in &self.set {
            let Some(name) = path.trim_matches('/').strip_prefix(PARAMETERS) else { continue };
            let failed = |why: &str| {
                Error::new("cannot set", path, why).hint("see the [set] table of the configuration")
            };
            let value = value.parse().map_err(|_| failed("it is not a number"))?;
            match parameters.set(name, value) {
                Ok(_) => {}
                Err(None) => return Err(failed("no such attribute")),
                Err(Some(max)) => {
                    return Err(failed(&format!("out of range: 0 to {max} is possible here")));
                }
            }
        }
        let parameters = Arc::new(parameters);
        let (force, missing_log) = (self.force, self.missing_log);
        Ok(pools::Options { parameters, force, missing_log, launcher: None })
    }
}

/// The memory for the requests of all NBD clients, as a number of bytes.
///
/// # Errors
/// The message for the user: it is not a number, or not enough.
pub fn nbd_memory(text: &str) -> std::result::Result<Bytes, String> {
    text.parse::<Bytes>().map_err(|error| error.to_string()).and_then(enough)
}

fn enough(bytes: Bytes) -> std::result::Result<Bytes, String> {
    let least = MIN_NBD_MEMORY_BYTES >> 20;
    let is_enough = bytes.0 >= MIN_NBD_MEMORY_BYTES;
    is_enough.then_some(bytes).ok_or_else(|| format!("at least {least}M are needed"))
}
