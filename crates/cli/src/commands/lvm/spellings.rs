//! Options that LVM's commands all take, and LVM's verbs that ashlar does not have.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use ashlar_daemon::error::{Error, Result};
use ashlar_lvm::text::{self, Node, Scalar, Section};
use clap::builder::TypedValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Args, Command};

/// LVM's exit code for a verb that does not exist (`ENO_SUCH_CMD`).
const NO_SUCH_VERB: u8 = 2;

/// Options of LVM's that are taken for scripts' sake: what they say is so in any case, or the option is refused.
#[derive(Args, Debug)]
pub(super) struct Common {
    /// Settings as of lvm.conf: those that make no difference here are taken, all others are refused
    #[arg(long, value_name = "SETTINGS", hide = true, value_parser = check_settings)]
    config: Vec<String>,

    #[arg(long, hide = true, value_parser = ["y", "n"])]
    driverloaded: Option<String>,

    #[arg(long, hide = true)]
    nolocking: bool,

    #[arg(long, hide = true)]
    ignorelockingfailure: bool,

    #[arg(long, hide = true)]
    noudevsync: bool,

    #[arg(long, hide = true)]
    nohints: bool,

    #[arg(long, hide = true)]
    lockopt: Option<String>,

    #[arg(long, hide = true)]
    journal: Option<String>,

    #[arg(short, long, hide = true, action = clap::ArgAction::Count)]
    debug: u8,

    #[arg(long, hide = true, value_parser = check_devices_file)]
    devicesfile: Option<String>,

    #[arg(long, hide = true, value_parser = Refused("ashlar has no profiles: give their settings as options"))]
    profile: Option<String>,

    #[arg(long, hide = true, value_parser = Refused("ashlar has no profiles: give their settings as options"))]
    commandprofile: Option<String>,

    #[arg(short, long, hide = true, num_args = 0, default_missing_value = "", value_parser = Refused(NO_TEST_MODE))]
    test: Option<String>,
}

const NO_TEST_MODE: &str = "ashlar has no test mode: a command that is refused changes nothing, and vgcfgrestore takes a change back";

/// An option that is refused, with the reason.
#[derive(Clone, Copy)]
pub(super) struct Refused(pub(super) &'static str);

impl TypedValueParser for Refused {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        _: &OsStr,
    ) -> std::result::Result<String, clap::Error> {
        let name = arg.and_then(Arg::get_long).unwrap_or_default();
        let text = format!("--{name} is refused: {}\n", self.0);
        Err(clap::Error::raw(ErrorKind::ValueValidation, text).with_cmd(command))
    }
}

/// A file that lists devices is not read.
fn check_devices_file(text: &str) -> std::result::Result<String, String> {
    match text.is_empty() {
        true => Ok(String::new()),
        false => {
            Err("ashlar reads no devices file: name the disks with --devices DISK,...".to_owned())
        }
    }
}

/// Whether a setting of `lvm.conf` makes no difference to ashlar, whatever its value.
fn is_without_effect(key: &str) -> bool {
    const PARTS: [&str; 6] = [
        "log/",
        "dmeventd/",
        "activation/udev_",
        "activation/reserved_",
        "devices/external_device_info_source",
        "global/use_lvm",
    ];
    const WHOLE: [&str; 19] = [
        "activation/checks",
        "activation/monitoring",
        "activation/polling_interval",
        "activation/process_priority",
        "activation/use_mlockall",
        "activation/verify_udev_operations",
        "devices/dir",
        "devices/hints",
        "devices/multipath_component_detection",
        "devices/obtain_device_list_from_udev",
        "devices/scan",
        "devices/sysfs_scan",
        "global/activation",
        "global/locking_dir",
        "global/locking_type",
        "global/notify_dbus",
        "global/prioritise_write_locks",
        "global/proc",
        "global/wait_for_locks",
    ];
    PARTS.iter().any(|part| key.starts_with(part)) || WHOLE.contains(&key)
}

/// What to use in place of a setting.
fn instead(key: &str) -> &'static str {
    match key.split_once('/').unwrap_or((key, "")) {
        ("backup", _) => "-A n keeps no copies of descriptions",
        ("devices", "filter" | "global_filter" | "types" | "use_devicesfile" | "devicesfile") => {
            "--devices DISK,... names the disks"
        }
        ("activation", name) if name.starts_with("snapshot_autoextend") => {
            "ashlar serve --snapshot-autoextend-threshold and its like"
        }
        ("global", "units") => "--units UNIT",
        ("global", "suffix") => "--nosuffix",
        ("report", _) => "the options of pvs, vgs and lvs, such as -o, -O and --separator",
        ("allocation", _) => "options such as lvcreate --alloc and pvcreate --dataalignment",
        _ => "omit it, and see the options of the command",
    }
}

/// Checks the settings of `--config`.
fn check_settings(text: &str) -> std::result::Result<String, String> {
    let section = text::parse(text.as_bytes()).map_err(|error| error.to_string())?;
    check_section("", &section)?;
    Ok(text.to_owned())
}

fn check_section(path: &str, section: &Section) -> std::result::Result<(), String> {
    for entry in &section.entries {
        let key = match path {
            "" => entry.key.clone(),
            _ => format!("{path}/{}", entry.key),
        };
        let is_off = matches!(&entry.node, Node::Scalar(Scalar::Int(0)));
        match &entry.node {
            Node::Section(inner) => check_section(&key, inner)?,
            // Devices files are not read, and lock daemons are not asked.
            _ if is_off && matches!(&*key, "devices/use_devicesfile" | "global/use_lvmlockd") => {}
            _ if key != "global/use_lvmlockd" && is_without_effect(&key) => {}
            Node::Scalar(_) | Node::Array(_) => {
                return Err(format!("{key} cannot be set in ashlar; instead: {}", instead(&key)));
            }
        }
    }
    Ok(())
}

/// LVM's verbs that ashlar does not have, why, and what to use instead.
const VERBS: &[(&[&str], &str, &str)] = &[
    (
        &["lvmconfig", "config", "dumpconfig"],
        "ashlar reads nothing from lvm.conf but the system ID of this host",
        "ashlar lvm VERB --help lists what can be set, and ashlar serve --help what a daemon takes",
    ),
    (
        &["lvmdump"],
        "it collects the state of the kernel's device mapper, which ashlar does not use",
        "ashlar status and ashlar get show a daemon's state, ashlar lvm pvck --dump metadata a disk's",
    ),
    (
        &["lvmdiskscan", "devtypes"],
        "ashlar looks only at disks that are named",
        "ashlar scan DISK... says what is on disks",
    ),
    (
        &["lvmdevices", "vgimportdevices"],
        "ashlar has no devices file",
        "--devices DISK,... names the disks of a command, and ashlar serve those of a daemon",
    ),
    (
        &["vgmknodes"],
        "ashlar makes no device nodes in /dev",
        "ashlar serve --mount DIRECTORY has the volumes as files, and --nbd as exports",
    ),
    (
        &["vgimportclone"],
        "ashlar gives copied physical volumes no new UUIDs",
        "use the copies on another host, or without the originals; LVM's own vgimportclone changes their UUIDs",
    ),
    (
        &["vgconvert"],
        "ashlar knows only the format lvm2, and keeps the size of metadata areas",
        "vgcfgbackup keeps the description of a group; pvcreate --metadatasize makes other areas",
    ),
    (
        &["lvmsadc", "lvmsar"],
        "ashlar collects no activity data in files",
        "ashlar top shows the activity of a daemon",
    ),
    (
        &["lvpoll", "lvmpolld"],
        "a daemon carries moves and merges on by itself",
        "without a daemon, lvconvert --merge and pvmove carry them on; ashlar jobs shows those of a daemon",
    ),
    (
        &["lvmlockd", "lvmlockctl", "lvmpersist", "sanlock"],
        "ashlar does not share groups with other hosts",
        "vgexport and vgimport hand a group over",
    ),
    (
        &["fsadm"],
        "ashlar resizes volumes, and no file systems in them",
        "resize2fs, xfs_growfs or btrfs filesystem resize",
    ),
    (
        &["fullreport"],
        "ashlar has no report of everything at once",
        "pvs, vgs and lvs, with -o and --json",
    ),
    (
        &["lastlog", "lvmchange", "pvdata", "vgdata"],
        "LVM itself does nothing for it any more",
        "the output of the command itself",
    ),
    (
        &["segtypes", "formats", "tags"],
        "ashlar has no list of it",
        "ashlar lvm lvs -o +segtype, vgs -o +vg_fmt and -o +tags show those of groups",
    ),
    (&["systemid"], "ashlar shows it only of groups", "ashlar lvm vgs -o +vg_systemid"),
    (&["version"], "it is an option", "ashlar --version"),
    (
        &["dmsetup", "dmstats", "blkdeactivate", "dmeventd"],
        "it is for the kernel's device mapper, which ashlar does not use",
        "ashlar status, ashlar get and ashlar lvm lvchange -a",
    ),
];

/// The options of a verb that begin like one which the parser refused as unknown, if there are several: none of them is meant for
/// sure.
pub(crate) fn candidates(error: &clap::Error, lvm: &Command, verb: &str) -> Option<String> {
    let refused =
        error.get(ContextKind::InvalidArg).filter(|_| error.kind() == ErrorKind::UnknownArgument);
    let Some(ContextValue::String(text)) = refused else { return None };
    let start = text.strip_prefix("--")?.split('=').next()?;
    let arguments = lvm.find_subcommand(verb)?.get_arguments().filter_map(Arg::get_long);
    let found: Vec<String> =
        arguments.filter(|long| long.starts_with(start)).map(|long| format!("--{long}")).collect();
    (found.len() > 1).then(|| format!("--{start} may be {}", found.join(" or ")))
}

/// Refuses a verb that ashlar does not have.
///
/// # Errors
/// The reason, and what to use instead.
pub(super) fn unknown_verb(words: &[OsString]) -> Result<ExitCode> {
    let verb = words.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    let known = VERBS.iter().find(|(verbs, ..)| verbs.contains(&verb.as_str()));
    let error = match known {
        Some((_, why, instead)) => {
            Error::failed(format_args!("ashlar lvm has no {verb}: {why}")).hint(instead)
        }
        None => Error::failed(format_args!("ashlar lvm has no command `{verb}`"))
            .hint("ashlar lvm --help lists the commands"),
    };
    Err(error.code(NO_SUCH_VERB))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_taken_if_they_make_no_difference() {
        for taken in [
            "log/level=7",
            "devices { use_devicesfile=0 scan=[\"/dev\"] } activation { udev_sync=0 monitoring=0 }",
            "global/use_lvmpolld=1 global/use_lvmlockd=0",
            "",
        ] {
            assert_eq!(check_settings(taken), Ok(taken.to_owned()));
        }
        for (refused, part) in [
            ("backup/archive=0", "backup/archive cannot be set in ashlar; instead: -A n"),
            ("backup { backup=0 }", "-A n"),
            ("devices{filter=[\"a|x|\"]}", "--devices DISK"),
            ("devices/use_devicesfile=1", "--devices DISK"),
            ("global/use_lvmlockd=1", "omit it"),
            ("log/level=7 global/units=\"b\"", "--units"),
            ("nonsense", "'='"),
        ] {
            let why = check_settings(refused).unwrap_err();
            assert!(why.contains(part), "{refused}: {why}");
        }
    }

    #[test]
    fn no_verb_is_refused_that_ashlar_has() {
        use clap::Subcommand;
        for verb in VERBS.iter().flat_map(|(verbs, ..)| *verbs) {
            let mut command = super::super::Lvm::augment_subcommands(Command::new("lvm"));
            assert!(command.find_subcommand(verb).is_none(), "{verb}");
            command.build();
        }
    }
}
