//! `ashlar serve`: the daemon.

use std::iter;
use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_commands::background;
use ashlar_disks as disks;
use ashlar_disks::options::{
    self, Assignment, BackEnd, Bytes, FileOptions, Group, Holes, Listen, LogPlace, MapFile,
    MetricsAddress, Mode, ReAddPolicy,
};
use ashlar_host::config::{Config, MAX_SPIN_US, nbd_memory};
use ashlar_host::daemon::serve;
use ashlar_host::error::{Error, Result};
use clap::Args;
use serde::Deserialize;
use serde::de::value::MapDeserializer;

use crate::output::Terminal;

/// Assemble the volumes on disks and serve them
///
/// Assembles arrays from their members, imports ZFS pools and serves their volumes, and looks into partitions and
/// volume groups, to any depth; a device without such contents is served as it is, under its own name. Runs in the
/// foreground, or with --daemon in the background, until SIGTERM, SIGINT, `ashlar stop`, or until its mount is
/// unmounted. Prints a line for each volume and then `ready`. It keeps serving while the mount is in use (an open file,
/// a loop device); a second signal forces it to end within 10 seconds: devices that have not stopped by then are left
/// as after a power cut. A third signal does that at once. Signals within a second are one, since programs such as
/// timeout send one twice. SIGHUP, from a closed terminal, counts as a first SIGTERM; under nohup it is ignored.
#[derive(Args, Debug)]
#[command(after_help = "\
The mount looks like a Linux root: DIR/dev/md0 is the volume, DIR/sys/block/md0/queue/nomerges an
attribute, DIR/proc/mdstat the state of the arrays. Partitions are named as in Linux:
DIR/dev/disk.img1, DIR/dev/md0p1; volumes of ZFS pools DIR/dev/zd0 and DIR/dev/zvol/POOL/VOLUME. Over NBD a volume's export name is md0, or md/NAME for an array
with a name; the empty name is the only volume if there is one.

A device below others, such as a disk with partitions, is not served itself: --whole
serves it, without the devices on it.

A configuration is a TOML file. Its keys are disks and the names of the options, with _ for -;
options that may be repeated are arrays, set is a table, and model may be a table by disk. Paths
are relative to the file:
  disks = [\"disk0.img\", \"disk1.img\"]
  mount = \"/mnt/volumes\"
  read_only = true
  [set]
  \"sys/block/md0/queue/nomerges\" = 2
With the Debian package, the unit ashlar@NAME.service serves /etc/ashlar/NAME.toml.

Exit codes: 0 stopped cleanly, 1 not started or not stopped cleanly, 2 wrong usage or a configuration
that cannot be read or used, 101 stopped because of a defect (a panic), as cleanly as possible.

Examples:
  ashlar serve disk*.img --mount /mnt/volumes
  ashlar serve disk*.img --nbd unix:/run/ashlar.nbd --nbd tcp:localhost:10809
  ashlar serve --config /etc/ashlar/stack.toml
  ashlar serve /dev/sd[bc] --control-group disk --mount /mnt/volumes
  ashlar serve --daemon /dev/sd[bc] --mount /mnt/volumes && ls /mnt/volumes/dev
  ashlar serve disk*.img --nbd unix:/run/ashlar.nbd --metrics tcp:9100
  ashlar serve --read-only disk*.img --map disk0.img=rescued/disk0.map --mount /mnt/volumes
  ashlar serve --incremental --mount /mnt/volumes
  ashlar serve disk*.img --model gp2:3000iops --model disk0.img=hdd --nbd unix:/run/ashlar.nbd
  mount -o loop /mnt/volumes/dev/md0 /mnt/data")]
pub(crate) struct Serve {
    /// Image files, block devices, exports of NBD servers (nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH), images
    /// of Ceph (rbd:POOL/IMAGE?conf=FILE), or ram:SIZE for a RAM disk that ends with the daemon
    #[arg(value_name = "DISK")]
    disks: Vec<PathBuf>,

    /// Serve what another host may use, and unclean degraded arrays
    ///
    /// Import ZFS pools that another host used last and did not export; write to the volumes of groups that are
    /// exported, shared or another host's by their system ID, and to members of firmware RAIDs (DDF, Intel), backing
    /// devices of DRBD, and devices of bcache and VMFS; serve arrays with parity that were not stopped cleanly and
    /// lack a member, although what is recovered of it may be wrong where writes were under way
    #[arg(long, help_heading = "Disks")]
    force: bool,

    /// Read disks and options from a file; options given here take precedence, disks are added
    #[arg(long, value_name = "FILE", help_heading = "Daemon")]
    config: Option<PathBuf>,

    /// Serve in the background: return once everything is served, or with the error and the exit code of a
    /// daemon that could not start. It belongs to no terminal, and has the system's log unless --log says otherwise. A
    /// unit of a service manager needs no --daemon (Type=notify), and has the log of the service manager
    #[arg(long, help_heading = "Daemon")]
    daemon: bool,

    #[command(flatten)]
    options: ServeOptions,
}

/// Options that the command line and a `stack.toml` may both give.
trait Over {
    /// These, which override those of a file or come after them.
    fn over(self, file: Self) -> Self;
}

impl Over for bool {
    fn over(self, file: Self) -> Self {
        self | file
    }
}

impl<T> Over for Option<T> {
    fn over(self, file: Self) -> Self {
        self.or(file)
    }
}

impl<T> Over for Vec<T> {
    fn over(self, file: Self) -> Self {
        file.into_iter().chain(self).collect()
    }
}

/// A struct of options, each of which is a field of [`Config`] with the same name.
macro_rules! options {
    ($(#[$about:meta])* pub(crate) struct $name:ident {
        $($(#[$of:meta])* $visible:vis $option:ident: $type:ty,)*
    }) => {
        $(#[$about])*
        pub(crate) struct $name {
            $($(#[$of])* $visible $option: $type,)*
        }

        impl Over for $name {
            fn over(self, file: Self) -> Self {
                Self { $($option: self.$option.over(file.$option),)* }
            }
        }

        impl From<$name> for Config {
            fn from(given: $name) -> Self {
                Self { $($option: given.$option,)* force_arrays: false, background: false }
            }
        }
    };
}

options! {
    /// How to serve: the options of the command line, and the keys of a `stack.toml`.
    #[derive(Args, Clone, PartialEq, Eq, Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub(crate) struct ServeOptions {
        // The command that has these options says what they mean there.
        #[arg(skip)]
        disks: Vec<PathBuf>,
        #[arg(skip)]
        pub(crate) force: bool,
        /// The options are those of all commands.
        #[arg(skip)]
        no_sandbox: bool,
        #[arg(skip)]
        map: Vec<MapFile>,

        /// Mount the volumes and their attributes on a directory
        #[arg(long, value_name = "DIR", help_heading = "Mount")]
        mount: Option<PathBuf>,

        /// Give other users access to the mount, as far as the files' modes allow
        #[arg(long, requires = "mount", help_heading = "Mount")]
        allow_other: bool,

        /// What becomes of a hole that a client punches into a volume of the mount, which may be a loop device's discard, where
        /// discarded ranges need not read as zeroes. fast: it is zeroed if all disks below do that without writing; zero: also
        /// if they have a command for it that may write; otherwise both refuse it. discard: it is discarded. Holes are also the write-zeroes
        /// of a loop device, and then ext4 and others rely on the zeroes: discard only if your file system does not [default: fast]
        #[arg(
            long,
            value_name = "WAY",
            requires = "mount",
            help_heading = "Mount",
            hide_short_help = true
        )]
        #[serde(deserialize_with = "options::some_parsed")]
        holes: Option<Holes>,

        /// Listen for NBD clients: unix:PATH or tcp:HOST:PORT (may be repeated); sockets that a service manager has
        /// made for the daemon (LISTEN_FDS) are served, too
        #[arg(long, value_name = "ADDRESS", help_heading = "NBD")]
        nbd: Vec<Listen>,

        /// Permissions of the NBD server's Unix sockets, in octal: users that may write to a socket can read
        /// and write the volumes [default: 600]
        #[arg(long, value_name = "MODE", help_heading = "NBD")]
        nbd_mode: Option<Mode>,

        /// NBD clients that are served at a time at each address; others are refused [default: 256]
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..), help_heading = "NBD", hide_short_help = true)]
        nbd_max_connections: Option<u16>,

        /// Close NBD connections without requests after so many seconds, 0 for never. A client with a
        /// mounted file system may have none for long [default: 0]
        #[arg(long, value_name = "SECONDS", help_heading = "NBD", hide_short_help = true)]
        nbd_idle_timeout: Option<u32>,

        /// Memory for the requests of all NBD clients together, at least 64M: while it is short, requests wait, and clients
        /// that do not take their replies are dropped [default: a quarter of what is available, at most 1G]
        #[arg(long, value_name = "SIZE", value_parser = nbd_memory, help_heading = "NBD", hide_short_help = true)]
        nbd_memory: Option<Bytes>,

        /// Serve metrics for Prometheus
        ///
        /// At http://ADDRESS:PORT/metrics: counters and states of all devices and arrays. Each client that reaches
        /// ADDRESS can read them; without ADDRESS, only programs on this machine reach it
        #[arg(long, value_name = "tcp:[ADDRESS:]PORT", help_heading = "Daemon")]
        metrics: Option<MetricsAddress>,

        /// Write nothing to the disks, and refuse writes to the volumes
        #[arg(long, alias = "readonly", short_alias = 'o', help_heading = "Disks")]
        pub(crate) read_only: bool,

        /// Use the host's page cache instead of bypassing it: for disks that are read repeatedly, with
        /// memory to spare. Flushed data are as durable as without it
        #[arg(long, help_heading = "I/O", hide_short_help = true)]
        buffered: bool,

        /// Start arrays with fewer members than they had last time
        #[arg(short = 'R', long, help_heading = "Arrays")]
        pub(crate) run: bool,

        /// The file that `mdadm --grow` was given as --backup-file, for an array whose reshape was interrupted
        #[arg(long, value_name = "FILE", help_heading = "Arrays", hide_short_help = true)]
        pub(crate) backup_file: Vec<PathBuf>,

        /// What happens when a member that was lost comes back, because its server restarts for example: auto re-adds it
        /// by the bitmap, manual waits for `ashlar md re-add` [default: auto]
        #[arg(long, value_name = "POLICY", help_heading = "Arrays", hide_short_help = true)]
        readd: Option<ReAddPolicy>,

        /// Extend the space of a snapshot when more than this percentage of it is in use, 50 to 100; 100 extends none
        /// [default: 100]
        #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(50..=100), help_heading = "LVM and ZFS", hide_short_help = true)]
        snapshot_autoextend_threshold: Option<u32>,

        /// Extend the space of a snapshot by this percentage of its size, at most to what its origin can fill [default: 20]
        #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..), help_heading = "LVM and ZFS", hide_short_help = true)]
        snapshot_autoextend_percent: Option<u32>,

        /// Start with the disks present: incomplete arrays wait for members from `ashlar md incremental`
        #[arg(short = 'I', long, help_heading = "Arrays")]
        incremental: bool,

        /// Serve disks and arrays as they are: look for members of arrays, but not for partitions and volume groups
        #[arg(long, help_heading = "Disks")]
        whole: bool,

        /// Serve images of hypervisors (qcow2, vmdk, vdi, vpc, vhdx and the like) as the bytes that they are: not as
        /// the disks that their guests see, for which there is qemu-nbd
        #[arg(long, help_heading = "Disks", hide_short_help = true)]
        raw: bool,

        /// Set an attribute before anything is served, as the [set] table of a configuration does: a module parameter of
        /// ZFS, sys/module/zfs/parameters/zvol_use_blk_mq=1, before pools are imported (may be repeated)
        #[arg(long, value_name = "PATH=VALUE", value_parser = setting, help_heading = "Daemon")]
        #[serde(deserialize_with = "options::settings")]
        set: Vec<(String, String)>,

        /// Make logical volumes with missing physical volumes: I/O to the missing parts fails
        #[arg(short = 'P', long, help_heading = "LVM and ZFS", hide_short_help = true)]
        partial: bool,

        /// Import ZFS pools for writing without their log devices: what was only in the log is lost
        /// (with --read-only they are imported without this)
        #[arg(long, help_heading = "LVM and ZFS", hide_short_help = true)]
        missing_log: bool,

        /// Threads that do the I/O [default: one for each processor that the process may use, at most 16]
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256), help_heading = "I/O")]
        threads: Option<u16>,

        /// Microseconds that a thread with I/O in flight polls for completions before it sleeps: less
        /// latency for more processor time [default: 150; with --mount or without io_uring 0]
        #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_SPIN_US)), help_heading = "I/O", hide_short_help = true)]
        spin: Option<u32>,

        /// How the kernel is asked for I/O: uring, or threads with epoll [default: uring where it is allowed]
        #[arg(long, value_name = "WAY", help_heading = "I/O", hide_short_help = true)]
        #[serde(deserialize_with = "options::some_parsed")]
        io: Option<BackEnd>,

        /// Give disks the timing of another device: MODEL for all, DISK=MODEL for one (may be
        /// repeated). The models nvme, sata-ssd, hdd (7200 turns a minute), hdd-5400, gp2 and custom (which
        /// takes no time) are adjusted after a colon by 3000iops, burst=16, unit=256K, read=600us, write=900us, latency=1ms,
        /// flush=1ms, discard=1ms, bandwidth=250M (bytes per second), parallelism=64, jitter=10%,
        /// unreadable=1M+4K (4 KiB at 1 MiB)
        #[arg(long, value_name = "[DISK=]MODEL", help_heading = "I/O")]
        #[serde(deserialize_with = "options::models")]
        model: Vec<Assignment>,

        /// Where to log: a file, to which lines are added, syslog or stderr. Lines that a slow reader has no room for are
        /// counted and left out; the daemon never waits for it. Programs that rotate the file copy and cut it (copytruncate)
        /// [default: stderr, with --daemon syslog]
        #[arg(long, value_name = "FILE|syslog|stderr", help_heading = "Daemon")]
        log: Option<LogPlace>,

        /// The control socket [default: for root /run/ashlar.sock; for others ashlar.sock in
        /// $XDG_RUNTIME_DIR, or else in /run/user/UID or /tmp/ashlar-UID]
        #[arg(long, value_name = "PATH", help_heading = "Daemon")]
        control: Option<PathBuf>,

        /// Let members of a group control the daemon
        ///
        /// The group, by its name or number, owns the control socket, with mode 660. Otherwise only root and the daemon's
        /// user may control it.
        ///
        /// Members may change, overwrite and end everything that the daemon serves, and add disks that they can open
        /// themselves. For them the daemon opens no file and connects to no server.
        #[arg(long, value_name = "GROUP", help_heading = "Daemon")]
        control_group: Option<Group>,
    }
}

/// The keys of a `stack.toml`, as its parser lists them when it refuses another one.
pub(crate) fn keys() -> Vec<String> {
    let unknown = MapDeserializer::<_, serde::de::value::Error>::new(iter::once(("", "")));
    let refusal = ServeOptions::deserialize(unknown).err();
    // unknown field ``, expected one of `disks`, `force`, ...
    let text = refusal.map(|error| error.to_string()).unwrap_or_default();
    text.split('`').skip(3).step_by(2).map(str::to_owned).collect()
}

impl FileOptions for ServeOptions {
    fn paths(&mut self) -> Vec<&mut PathBuf> {
        let unix = self.nbd.iter_mut().filter_map(|address| match address {
            Listen::Unix(path) => Some(path),
            Listen::Tcp(_) => None,
        });
        let log = self.log.iter_mut().filter_map(LogPlace::file_mut);
        let modelled = self.model.iter_mut().filter_map(|model| model.disk.as_mut());
        let maps = self.map.iter_mut();
        let maps = maps.flat_map(|map| map.disk.iter_mut().chain([&mut map.file]));
        let disks = self.disks.iter_mut().chain(&mut self.backup_file);
        let others = disks.chain(&mut self.mount).chain(&mut self.control);
        others.chain(unix).chain(log).chain(modelled).chain(maps).collect()
    }
}

impl ServeOptions {
    /// Whether clients can reach volumes.
    pub(crate) fn serves(&self) -> bool {
        self.mount.is_some() || !self.nbd.is_empty()
    }

    /// These options over those of a file. Addresses replace those of the file; all other lists follow them.
    fn over_file(self, mut file: Self) -> Self {
        if !self.nbd.is_empty() {
            file.nbd.clear();
        }
        self.over(file)
    }

    /// The daemon's configuration for `disks`, too.
    ///
    /// # Errors
    /// As [`Config::check`].
    pub(crate) fn into_config(self, disks: Vec<PathBuf>) -> Result<Config> {
        let mut config = Config::from(self);
        config.disks.extend(disks.into_iter().chain(config.backup_file.clone()));
        config.check()?;
        Ok(config)
    }
}

impl Serve {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.daemon && !background::is_it() {
            return background::start(std::env::args_os());
        }
        let given = ServeOptions { disks: self.disks, force: self.force, ..self.options };
        let mut options =
            match &self.config {
                Some(path) => given.over_file(options::load(path).map_err(|error| {
                    Error::usage(format!("cannot use the configuration: {error}"))
                })?),
                None => given,
            };
        if self.daemon {
            for path in options.paths() {
                *path = disks::absolute(path)?;
            }
        }
        let config = Config { background: self.daemon, ..options.into_config(Vec::new())? };
        if config.disks.is_empty() && !config.incremental {
            let hint = "name disk images or block devices, a --config that does, or --incremental";
            return Err(Error::usage("no disks given").hint(hint));
        }
        serve(&config, None, None, &mut Terminal)
    }
}

/// `PATH=VALUE`.
fn setting(text: &str) -> std::result::Result<(String, String), String> {
    let (path, value) =
        text.split_once('=').ok_or_else(|| format!("`{text}` is not PATH=VALUE"))?;
    Ok((path.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ashlar_disks::options::FileError;

    use super::*;

    fn parse(text: &str) -> std::result::Result<ServeOptions, FileError> {
        options::parse(text, Path::new("/etc/ashlar/stack.toml"))
    }

    /// But the one that names the configuration, and the one that says how a command starts the daemon: a configuration
    /// is used by service units, too.
    #[test]
    fn every_option_is_a_key_of_the_configuration() {
        let command = Serve::augment_args(clap::Command::new("serve"));
        for option in command.get_arguments().filter_map(clap::Arg::get_long) {
            let key = option.replace('-', "_");
            let result = parse(&format!("{key} = {{ x = [] }}"));
            let is_unknown = result.is_err_and(|error| error.to_string().contains("unknown field"));
            assert_eq!(is_unknown, ["config", "daemon"].contains(&option), "{option}");
        }
    }

    #[test]
    fn every_key_is_on_the_manual_page() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/man/ashlar-stack.toml.5");
        let page = std::fs::read_to_string(page).unwrap();
        let keys = keys();
        assert!(keys.len() > 30 && keys.contains(&"disks".to_owned()), "{keys:?}");
        for key in keys {
            assert!(page.contains(&format!("\n\\fB{key}\\fR = ")), "{key}");
        }
    }

    #[test]
    fn the_example_of_the_package_is_a_configuration() {
        assert!(
            !parse(include_str!("../../../../packaging/examples/vol.toml"))
                .unwrap()
                .disks
                .is_empty()
        );
    }

    #[test]
    fn a_full_file_is_understood_and_its_paths_are_relative_to_it() {
        let options = parse(
            r#"
            disks = ["a.img", "/dev/sdb"]
            map = ["a.img=maps/a", "/dev/sdb=/b.map"]
            read_only = true
            run = true
            incremental = true
            whole = true
            partial = true
            missing_log = true
            force = true
            no_sandbox = true
            mount = "/srv"
            allow_other = true
            holes = "discard"
            nbd = ["unix:nbd.sock", "tcp:[::1]:10809"]
            nbd_mode = "660"
            nbd_max_connections = 16
            nbd_idle_timeout = 600
            nbd_memory = "256M"
            metrics = "tcp:9100"
            log = "ashlar.log"
            control = "control.sock"
            control_group = "disk"
            threads = 2
            spin = 0
            [set]
            "sys/block/md0/queue/discard_max_bytes" = 524288
            "sys/block/md0/md/safe_mode_delay" = "0.2"
            "sys/block/md0/queue/nomerges" = true
            "#,
        )
        .unwrap();
        assert_eq!(options.disks, [Path::new("/etc/ashlar/a.img"), Path::new("/dev/sdb")]);
        let maps: Vec<String> = options.map.iter().map(MapFile::to_string).collect();
        assert_eq!(maps, ["/etc/ashlar/a.img=/etc/ashlar/maps/a", "/dev/sdb=/b.map"]);
        let unix = Listen::Unix("/etc/ashlar/nbd.sock".into());
        assert_eq!(options.nbd, [unix, Listen::Tcp("[::1]:10809".into())]);
        assert_eq!(options.nbd_mode, Some(Mode(0o660)));
        assert_eq!((options.nbd_max_connections, options.nbd_idle_timeout), (Some(16), Some(600)));
        assert_eq!(options.nbd_memory, Some(Bytes(256 << 20)));
        assert_eq!(options.metrics, "tcp:127.0.0.1:9100".parse().ok());
        assert_eq!(options.log, Some(LogPlace::File("/etc/ashlar/ashlar.log".into())));
        assert_eq!(options.control.as_deref(), Some(Path::new("/etc/ashlar/control.sock")));
        assert_eq!(options.control_group, Some(Group("disk".to_owned())));
        let numbered = parse("control_group = 6").unwrap();
        assert_eq!(numbered.control_group, Some(Group("6".to_owned())));
        assert!(options.read_only && options.run && options.incremental && options.no_sandbox);
        assert!(options.whole && options.partial && options.force && options.allow_other);
        assert!(options.missing_log);
        assert_eq!(options.holes, Some(Holes::Discard));
        assert_eq!((options.threads, options.spin), (Some(2), Some(0)));
        let values: Vec<&str> = options.set.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, ["0.2", "524288", "1"]);
        assert_eq!(parse("").unwrap(), ServeOptions::default());
    }

    #[test]
    fn a_model_is_for_all_disks_or_by_disk_with_paths_relative_to_the_file() {
        let models = |text: &str| {
            let options = parse(text).unwrap();
            options.model.iter().map(Assignment::to_string).collect::<Vec<_>>()
        };
        assert_eq!(models("model = \"gp2:3000iops\""), ["gp2:3000iops"]);
        let table = "[model]\n\"a.img\" = \"hdd\"\n\"/dev/sdb\" = \"nvme:read=1ms\"";
        assert_eq!(models(table), ["/dev/sdb=nvme:read=1ms", "/etc/ashlar/a.img=hdd"]);
        assert_eq!(models("disks = [\"a\"]"), [""; 0]);
    }

    #[test]
    fn errors_say_file_line_and_column() {
        let cases = [
            ("disks = [\"a\"]\nread-only = true\n", "2:1: unknown field `read-only`"),
            ("threads = -1\n", "1:11: invalid value"),
            ("threads = 70000\n", "1:11: invalid value"),
            ("disks = [\n  \"a\"\n", "2:6: unclosed array"),
            ("read_only = 1\n", "1:13: invalid type: integer `1`, expected a boolean"),
            ("nbd = [\"unix:/a\", \"udp:1\"]\n", "1:7: `udp:1` is neither unix:PATH"),
            ("disks = []\nmodel = \"gp2:fast\"\n", "2:9: a device model has no `fast`"),
            ("[model]\n\"a.img\" = \"floppy\"\n", "1:1: there is no device model `floppy`"),
            ("model = 5\n", "1:9: a device model, or a table of device models by disk"),
            ("control_group = true\n", "1:17: the name or the number of a group"),
            ("control_group = -1\n", "1:17: the name or the number of a group"),
            ("nbd_mode = 660\n", "1:12: invalid type: integer `660`, expected a string"),
            ("metrics = \"tcp:\"\n", "1:11: `tcp:` is neither tcp:PORT nor tcp:ADDRESS:PORT"),
            ("nbd_memory = \"much\"\n", "1:14: `much` is not a number of bytes"),
            ("[set]\nx = [1]\n", "2:5: a string, an integer or a boolean"),
            ("# \u{e9}\u{e9}\n\u{e9} = 1", "2:1: "),
        ];
        for (text, expected) in cases {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with("/etc/ashlar/stack.toml:"), "{error}");
            assert!(error.contains(expected), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{error:?}");
        }
    }
}
