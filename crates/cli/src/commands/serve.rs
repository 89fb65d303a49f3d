//! `ashlar serve`: the daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_commands::background;
use ashlar_daemon::config::Config;
use ashlar_daemon::error::{Error, Result};
use ashlar_daemon::serve;
use ashlar_disks as disks;
use ashlar_disks::options::{self, Given};
use clap::Args;

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
    /// Image files, block devices, exports of NBD servers (nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH, nbds with TLS), images
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
    options: Config,
}

impl Serve {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.daemon && !background::is_it() {
            return background::start(std::env::args_os());
        }
        let given = Config { disks: self.disks, force: self.force, ..self.options };
        let mut config =
            match &self.config {
                Some(path) => given.over(options::load(path).map_err(|error| {
                    Error::usage(format!("cannot use the configuration: {error}"))
                })?),
                None => given,
            };
        if self.daemon {
            for path in config.paths() {
                *path = disks::absolute(path)?;
            }
        }
        let config = Config { background: self.daemon, ..config }.checked(Vec::new())?;
        if config.disks.is_empty() && !config.incremental {
            let hint = "name disk images or block devices, a --config that does, or --incremental";
            return Err(Error::usage("no disks given").hint(hint));
        }
        serve(&config, None, None, &mut Terminal)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ashlar_disks::options::{Bytes, FileError, Group, Holes, Listen, LogPlace, Mode, Options};
    use ashlar_disks::{Assignment, MapFile};

    use super::*;

    fn parse(text: &str) -> std::result::Result<Config, FileError> {
        options::parse(text, Path::new("/etc/ashlar/stack.toml"))
    }

    #[test]
    fn paths_are_relative_to_the_file_unless_they_are_no_files() {
        let text = r#"disks = ["a.img", "/b", "ram:1G", "nbd://h/e", "nbd+unix:///?socket=s"]"#;
        let expected = ["/etc/ashlar/a.img", "/b", "ram:1G", "nbd://h/e", "nbd+unix:///?socket=s"];
        assert_eq!(parse(text).unwrap().disks, expected.map(PathBuf::from));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = options::load::<Config>(Path::new("/nonexistent/stack.toml")).unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent/stack.toml: "), "{error}");
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
        let keys = Config::keys();
        assert!(keys.len() > 30 && keys.contains(&"disks"), "{keys:?}");
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
            tls = "require"
            tls_dir = "pki"
            tls_verify_peer = true
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
        assert_eq!(options.nbd.nbd, [unix, Listen::Tcp("[::1]:10809".into())]);
        assert_eq!(options.nbd.nbd_mode, Some(Mode(0o660)));
        assert_eq!(
            (options.nbd.nbd_max_connections, options.nbd.nbd_idle_timeout),
            (Some(16), Some(600))
        );
        assert_eq!(options.nbd.nbd_memory, Some(Bytes(256 << 20)));
        assert_eq!(options.nbd.tls, "require".parse().ok());
        assert_eq!(options.nbd.tls_dir.as_deref(), Some(Path::new("/etc/ashlar/pki")));
        assert!(options.nbd.tls_verify_peer && options.nbd.tls_psk.is_none());
        assert_eq!(options.metrics.metrics, "tcp:127.0.0.1:9100".parse().ok());
        assert_eq!(options.log, Some(LogPlace::File("/etc/ashlar/ashlar.log".into())));
        assert_eq!(options.control.as_deref(), Some(Path::new("/etc/ashlar/control.sock")));
        assert_eq!(options.control_group, Some(Group("disk".to_owned())));
        let numbered = parse("control_group = 6").unwrap();
        assert_eq!(numbered.control_group, Some(Group("6".to_owned())));
        assert!(options.read_only && options.run && options.incremental && options.no_sandbox);
        assert!(options.whole && options.partial && options.force && options.mount.allow_other);
        assert!(options.missing_log);
        assert_eq!(options.mount.holes, Some(Holes::Discard));
        assert_eq!((options.threads, options.spin), (Some(2), Some(0)));
        let values: Vec<&str> = options.set.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, ["0.2", "524288", "1"]);
        assert_eq!(parse("").unwrap(), Config::default());
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
            ("tls = \"maybe\"\n", "1:7: `maybe` is not off, on or require"),
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
