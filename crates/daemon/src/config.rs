//! What to serve and how: the configuration of a daemon, which is given by a command line and a `stack.toml`.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use ashlar_block::io_max::VolumeLimit;
use ashlar_client::access::{self, Access};
use ashlar_commands::acceptance::Asked;
use ashlar_commands::lvm::local_system_ids;
use ashlar_disks::options::{self, BackEnd, Group, LogPlace, ReAddPolicy};
use ashlar_disks::{self as disks, Assignment, Decorators, MapFile, Models, Opener};
use ashlar_lvm::snapshots::{AutoExtend, BadAutoExtend};
use ashlar_stack::assemble::Others;
use ashlar_stack::pools;
use ashlar_zfs::client::Parameters;

use crate::error::{Error, Result};
use crate::front_ends::metrics::MetricsOptions;
use crate::front_ends::mount::MountOptions;
use crate::front_ends::nbd::NbdOptions;
use crate::front_ends::ublk::UblkOptions;
use crate::front_ends::vhost_user::VhostUserOptions;
use crate::options::options;

/// The directory of ZFS's module parameters.
pub(crate) const PARAMETERS: &str = "sys/module/zfs/parameters/";

/// The longest time to poll for completions, microseconds.
const MAX_SPIN_US: u32 = 10_000;

/// The most threads that do the I/O, unless a number is given. As many have counters of their own in each device
/// (`ashlar_block::shard`); more threads share cache lines, and each may keep some ten MiB of buffers.
pub const MAX_THREADS: usize = 16;

options! {
    /// What to serve and how: the options of the command line, and the keys of a `stack.toml`. For a daemon in the background, paths are
    /// absolute.
    // The texts are those of the help.
    #[allow(rustdoc::broken_intra_doc_links, rustdoc::bare_urls)]
    pub struct Config {
        // The mount is first, and so starts last: it is visible for the shortest time if another front end cannot start.
        front_ends {
            mount: MountOptions,
            nbd: NbdOptions,
            vhost_user: VhostUserOptions,
            ublk: UblkOptions,
            metrics: MetricsOptions,
        }

        // The command that has these options says what they mean there.
        /// Image files, block devices, URIs of exports, and `ram:SIZE`.
        #[arg(skip)]
        pub disks: Vec<PathBuf>,
        /// Whether to import pools that another host used last, to write to devices and volume groups that others
        /// may be writing to, and to start arrays with parity that were not stopped cleanly and lack a member.
        #[arg(skip)]
        pub force: bool,
        /// Whether the daemon stays outside of the sandbox.
        #[arg(skip)]
        pub no_sandbox: bool,
        /// The maps of ddrescue that list the unread areas of disks, besides those of the process.
        #[arg(skip)]
        pub map: Vec<MapFile>,

        /// Write nothing to the disks, and refuse writes to the volumes
        #[arg(long, alias = "readonly", short_alias = 'o', help_heading = "Disks")]
        pub read_only: bool,

        /// Use the host's page cache instead of bypassing it: for disks that are read repeatedly, with
        /// memory to spare. Flushed data are as durable as without it
        #[arg(long, help_heading = "I/O", hide_short_help = true)]
        pub buffered: bool,

        /// Start arrays with fewer members than they had last time
        #[arg(short = 'R', long, help_heading = "Arrays")]
        pub run: bool,

        /// The file that `mdadm --grow` was given as --backup-file, for an array whose reshape was interrupted
        #[arg(long, value_name = "FILE", help_heading = "Arrays", hide_short_help = true)]
        pub backup_file: Vec<PathBuf>,

        /// What happens when a member that was lost comes back, because its server restarts for example: auto re-adds it
        /// by the bitmap, manual waits for `ashlar md re-add` [default: auto]
        #[arg(long, value_name = "POLICY", help_heading = "Arrays", hide_short_help = true)]
        #[serde(deserialize_with = "options::some_parsed")]
        pub readd: Option<ReAddPolicy>,

        /// Extend the space of a snapshot when more than this percentage of it is in use, 50 to 100; 100 extends none
        /// [default: 100]
        #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(50..=100), help_heading = "LVM and ZFS", hide_short_help = true)]
        pub snapshot_autoextend_threshold: Option<u32>,

        /// Extend the space of a snapshot by this percentage of its size, at most to what its origin can fill [default: 20]
        #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..), help_heading = "LVM and ZFS", hide_short_help = true)]
        pub snapshot_autoextend_percent: Option<u32>,

        /// Start with the disks present: incomplete arrays wait for members from `ashlar md incremental`
        #[arg(short = 'I', long, help_heading = "Arrays")]
        pub incremental: bool,

        /// Serve disks and arrays as they are: look for members of arrays, but not for partitions and volume groups
        #[arg(long, help_heading = "Disks")]
        pub whole: bool,

        /// Serve images of hypervisors (qcow2, vmdk, vdi, vpc, vhdx and the like) as the bytes that they are: not as
        /// the disks that their guests see, for which there is qemu-nbd
        #[arg(long, help_heading = "Disks", hide_short_help = true)]
        pub raw: bool,

        /// Set an attribute before anything is served, as the [set] table of a configuration does: a module parameter of
        /// ZFS, sys/module/zfs/parameters/zvol_use_blk_mq=1, before pools are imported (may be repeated)
        #[arg(long, value_name = "PATH=VALUE", value_parser = setting, help_heading = "Daemon")]
        #[serde(deserialize_with = "options::settings")]
        pub set: Vec<(String, String)>,

        /// Make logical volumes with missing physical volumes: I/O to the missing parts fails
        #[arg(short = 'P', long, help_heading = "LVM and ZFS", hide_short_help = true)]
        pub partial: bool,

        /// Import ZFS pools for writing without their log devices: what was only in the log is lost
        /// (with --read-only they are imported without this)
        #[arg(long, help_heading = "LVM and ZFS", hide_short_help = true)]
        pub missing_log: bool,

        /// Threads that do the I/O [default: one for each processor that the process may use, at most 16]
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256), help_heading = "I/O")]
        pub threads: Option<u16>,

        /// Microseconds that a thread with I/O in flight polls for completions before it sleeps: less
        /// latency for more processor time [default: 150; with --mount or without io_uring 0]
        #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_SPIN_US)), help_heading = "I/O", hide_short_help = true)]
        pub spin: Option<u32>,

        /// How the kernel is asked for I/O: uring, or threads with epoll [default: uring where it is allowed]
        #[arg(long, value_name = "WAY", help_heading = "I/O", hide_short_help = true)]
        #[serde(deserialize_with = "options::some_parsed")]
        pub io: Option<BackEnd>,

        /// Give disks the timing of another device: MODEL for all, DISK=MODEL for one (may be
        /// repeated). The models nvme, sata-ssd, hdd (7200 turns a minute), hdd-5400, gp2 and custom (which
        /// takes no time) are adjusted after a colon by 3000iops, burst=16, unit=256K, read=600us, write=900us, latency=1ms,
        /// flush=1ms, discard=1ms, bandwidth=250M (bytes per second), parallelism=64, jitter=10%,
        /// unreadable=1M+4K (4 KiB at 1 MiB)
        #[arg(long, value_name = "[DISK=]MODEL", help_heading = "I/O")]
        #[serde(deserialize_with = "Assignment::list")]
        pub model: Vec<Assignment>,

        /// Limit what the clients of a volume read and write in each second: rbps and wbps are bytes, which may have K, M, G
        /// or T, riops and wiops requests, max for no limit; after a pause as much passes at once as the limits allow in
        /// burst_ms milliseconds [default: 100]. A star in the name of the volume stands for any characters; of several
        /// limits the last counts (may be repeated). `ashlar set` changes them: sys/block/NAME/queue/io_max
        #[arg(long, value_name = "VOLUME:LIMITS", help_heading = "I/O", hide_short_help = true)]
        #[serde(deserialize_with = "options::limits")]
        pub limit: Vec<VolumeLimit>,

        /// Where to log: a file, to which lines are added, syslog or stderr. Lines that a slow reader has no room for are
        /// counted and left out; the daemon never waits for it. Programs that rotate the file copy and cut it (copytruncate)
        /// [default: stderr, with --daemon syslog]
        #[arg(long, value_name = "FILE|syslog|stderr", help_heading = "Daemon")]
        pub log: Option<LogPlace>,

        /// The control socket [default: for root /run/ashlar.sock; for others ashlar.sock in
        /// $XDG_RUNTIME_DIR, or else in /run/user/UID or /tmp/ashlar-UID]
        #[arg(long, value_name = "PATH", help_heading = "Daemon")]
        pub control: Option<PathBuf>,

        /// Let members of a group control the daemon
        ///
        /// The group, by its name or number, owns the control socket, with mode 660. Otherwise only root and the daemon's
        /// user may control it.
        ///
        /// Members may change, overwrite and end everything that the daemon serves, and add disks that they can open
        /// themselves. For them the daemon opens no file and connects to no server.
        #[arg(long, value_name = "GROUP", help_heading = "Daemon")]
        pub control_group: Option<Group>,

        no_options {
            /// Whether [`Self::force`] is only meant for arrays.
            #[arg(skip)]
            #[serde(skip)]
            pub force_arrays: bool,
            /// Whether this process was started by [`ashlar_commands::background::start`], whose caller waits until it serves.
            #[arg(skip)]
            #[serde(skip)]
            pub background: bool,
        }
    }
}

impl Config {
    /// Checks the values.
    ///
    /// # Errors
    /// The message about the first invalid value.
    fn check(&self) -> Result<()> {
        let wrong = |why: &str| Err(Error::usage(format!("cannot use the configuration: {why}")));
        if let Err(why) = self.auto_extend() {
            return wrong(&why.to_string());
        }
        if self.threads == Some(0) {
            return wrong("threads must not be 0");
        }
        if self.spin > Some(MAX_SPIN_US) {
            return wrong(&format!("spin must not be above {MAX_SPIN_US}"));
        }
        self.front_ends()
            .into_iter()
            .try_for_each(|front_end| front_end.check().or_else(|why| wrong(&why)))
    }

    /// The configuration with `disks`, too.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn checked(mut self, disks: Vec<PathBuf>) -> Result<Self> {
        self.disks.extend(disks.into_iter().chain(self.backup_file.clone()));
        self.check()?;
        Ok(self)
    }

    /// Whether clients can reach volumes.
    pub fn serves(&self) -> bool {
        self.front_ends().iter().any(|front_end| front_end.serves())
    }

    /// The threads that do the I/O.
    pub(crate) fn threads(&self) -> usize {
        // The affinity and the quota of a control group are considered.
        let default = || available_parallelism().map_or(1, |n| n.get().min(MAX_THREADS));
        self.threads.map_or_else(default, usize::from)
    }

    /// Whether programs on this machine write to the volumes through its page cache.
    pub(crate) fn has_writers_here(&self) -> bool {
        self.front_ends().iter().any(|front_end| front_end.has_writers_here())
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
        self.front_ends().iter().try_for_each(|front_end| front_end.check_surroundings())?;
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

/// `PATH=VALUE`.
fn setting(text: &str) -> std::result::Result<(String, String), String> {
    let (path, value) =
        text.split_once('=').ok_or_else(|| format!("`{text}` is not PATH=VALUE"))?;
    Ok((path.to_owned(), value.to_owned()))
}
