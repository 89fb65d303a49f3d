//! `ashlar lvm lvchange|vgchange|pvchange`: which volumes of a served group are active; tags; and where extents may be placed.

use std::collections::BTreeMap;
use std::process::ExitCode;

use ashlar_client::interface::Activate;
use ashlar_commands::lvm::Groups;
use ashlar_commands::lvm::names::{group_name, split_name};
use ashlar_daemon::error::{Error, Result};
use ashlar_lvm::command::{AllocatableChange, Command, TagChange, TagOwners};
use ashlar_lvm::group::Group;
use ashlar_lvm::metadata::parse_tag;
use clap::Args;

use super::groups::{self, Place};
use super::session::{self, asking, change, described};
use super::spellings::Refused;
use super::{ChangeOptions, Devices, yes_no};
use crate::output;

/// Which tags are added and removed.
#[derive(Args, Debug)]
struct Tags {
    /// A tag to add; may be repeated
    #[arg(long, value_name = "TAG", value_parser = parse_tag)]
    addtag: Vec<String>,

    /// A tag to remove; may be repeated. Removed before tags are added
    #[arg(long, value_name = "TAG", value_parser = parse_tag)]
    deltag: Vec<String>,
}

impl Tags {
    fn are_given(&self) -> bool {
        !self.addtag.is_empty() || !self.deltag.is_empty()
    }

    fn change(&self, of: TagOwners) -> Command {
        Command::Tag(TagChange { of, remove: self.deltag.clone(), add: self.addtag.clone() })
    }
}

/// Options of LVM's activation that make no difference here: nothing waits for udev or a lock daemon, and a daemon watches its snapshots
/// by itself.
#[derive(Args, Debug)]
struct Ineffective {
    #[arg(long, hide = true)]
    sysinit: bool,

    #[arg(long, hide = true)]
    ignoremonitoring: bool,

    #[arg(long, hide = true, value_parser = ["y", "n"])]
    monitor: Option<String>,
}

/// What lvchange and vgchange change, and where.
#[derive(Args, Debug)]
struct ActivationOptions {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    change_options: ChangeOptions,

    /// Whether they shall be active
    #[arg(short, long, value_name = "y|n", action = clap::ArgAction::Set, value_parser = activation, conflicts_with_all = ["addtag", "deltag"])]
    activate: Option<bool>,

    #[command(flatten)]
    ineffective: Ineffective,

    #[command(flatten)]
    tags: Tags,
}

/// Whether volumes shall be active. Without locks, LVM's words for kinds of activation say the same.
fn activation(text: &str) -> std::result::Result<bool, String> {
    match text {
        "ey" | "sy" | "ly" => Ok(true),
        "ln" => Ok(false),
        "ay" => {
            Err("ashlar does not know which volumes are to be active by themselves: y or n"
                .to_owned())
        }
        _ => yes_no(text),
    }
}

/// Refuses the activation of volumes on disks.
fn served_only(disks: &Devices) -> Result<()> {
    if disks.devices.is_empty() {
        return Ok(());
    }
    let hint = "omit --devices for a group that ashlar serve has";
    Err(Error::usage("only a daemon activates volumes, and --devices names disks without one")
        .hint(hint))
}

/// What is to change is missing.
fn no_change() -> Error {
    Error::usage("nothing is to be changed").hint("-a y|n, --addtag TAG or --deltag TAG")
}

/// Change tags of logical volumes, or activate or deactivate those of a served group
///
/// Clients find only active volumes. A snapshot and its origin are active together. When the group is served anew, all of
/// its volumes are active.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm lvchange -an vg/data
  ashlar lvm lvchange -ay vg/data
  ashlar lvm lvchange --devices a.img,b.img --addtag backup vg/data")]
pub(crate) struct Lvchange {
    #[command(flatten)]
    options: ActivationOptions,

    /// The volumes, all of one group; with tags, a group for all of its volumes
    #[arg(required = true, value_name = "VG/LV")]
    names: Vec<String>,
}

/// Change tags of volume groups, or activate or deactivate all logical volumes of served groups
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm vgchange -an vg
  ashlar lvm vgchange -ay
  ashlar lvm vgchange --devices a.img,b.img --deltag old --addtag new vg")]
pub(crate) struct Vgchange {
    #[command(flatten)]
    options: ActivationOptions,

    /// The groups [default: all]
    #[arg(value_name = "VG")]
    names: Vec<String>,
}

const NO_NEW_UUID: &str =
    "a physical volume keeps its UUID here; pvcreate --uuid gives one to a free disk";
const ALL_AREAS: &str = "all metadata areas are used here; pvcreate --metadatacopies 0 makes a physical volume without one";

/// Change tags of physical volumes, or whether extents may be placed on them
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm pvchange --devices a.img,b.img -x n a.img
  ashlar lvm pvchange --addtag ssd /dev/md0")]
pub(crate) struct Pvchange {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    change_options: ChangeOptions,

    /// Whether new extents may be placed on them
    #[arg(short = 'x', long, value_name = "y|n", action = clap::ArgAction::Set, value_parser = yes_no, conflicts_with_all = ["addtag", "deltag"])]
    allocatable: Option<bool>,

    #[command(flatten)]
    tags: Tags,

    #[arg(short, long, hide = true, num_args = 0, default_missing_value = "", value_parser = Refused(NO_NEW_UUID))]
    uuid: Option<String>,

    #[arg(long, hide = true, value_parser = Refused(ALL_AREAS))]
    metadataignore: Option<String>,

    /// The physical volumes
    #[arg(required = true, value_name = "PV")]
    names: Vec<String>,
}

impl Lvchange {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let ActivationOptions { disks, change_options, activate, tags, .. } = &self.options;
        let names: Vec<_> =
            self.names.iter().map(|name| split_name(name)).collect::<Result<_>>()?;
        let group = names[0].0;
        let is_whole = tags.are_given() && names.len() == 1 && names[0].1.is_none();
        let mut volumes = Vec::new();
        for (of, volume) in &names {
            if is_whole {
                break;
            }
            let Some(volume) = volume.filter(|_| *of == group) else {
                return Err(Error::usage("volumes of one group at a time, as VG/LV"));
            };
            volumes.push(volume.to_owned());
        }
        let Some(active) = *activate else {
            if !tags.are_given() {
                return Err(no_change());
            }
            let command = tags.change(TagOwners::Volumes(volumes));
            return change(disks, change_options, group, &command);
        };
        served_only(disks)?;
        let at = Activate { group: group.to_owned(), volumes, active };
        disks.connect()?.activate(&at)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Vgchange {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let ActivationOptions { disks, activate, .. } = &self.options;
        let Some(active) = *activate else { return self.change_tags() };
        served_only(disks)?;
        let mut client = disks.connect()?;
        let mut groups = self.names;
        if groups.is_empty() {
            for group in client.groups()?.groups {
                groups.push(described(&group)?.group.name);
            }
        }
        for name in groups {
            let group = group_name(&name).to_owned();
            let at = Activate { group: group.clone(), volumes: Vec::new(), active };
            let active = client.activate(&at)?;
            output::tell(&format!(
                "  {active} logical volume(s) in volume group \"{group}\" now active\n"
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn change_tags(&self) -> Result<ExitCode> {
        let ActivationOptions { disks, change_options: options, tags, .. } = &self.options;
        if !tags.are_given() {
            return Err(no_change());
        }
        let command = tags.change(TagOwners::Group);
        let names = |all: Vec<String>| match self.names.is_empty() {
            true => all,
            false => self.names.iter().map(|name| group_name(name).to_owned()).collect(),
        };
        if disks.devices.is_empty() {
            let mut client = disks.connect()?;
            for name in names(Groups::served(client.groups()?)?.names()) {
                session::served(&mut client, options, &name, &command)?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        let archives = options.archives()?;
        asking(&disks.devices, options.yes, async |session| {
            for name in names(Groups::on_disks(session).names()) {
                session.change(&name, &command, &archives).await?;
            }
            Ok(())
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Pvchange {
    /// The change of physical volumes of one group.
    fn command(&self, physical: Vec<String>) -> Result<Command> {
        match self.allocatable {
            Some(allocatable) => {
                Ok(Command::Allocatable(AllocatableChange { physical, allocatable }))
            }
            None if self.tags.are_given() => Ok(self.tags.change(TagOwners::Physical(physical))),
            None => Err(Error::usage("nothing is to be changed")
                .hint("-x y|n, --addtag TAG or --deltag TAG")),
        }
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        self.command(Vec::new())?;
        let options = &self.change_options;
        match groups::place(&self.disks, &self.names)? {
            Place::Daemon(groups) => {
                let mut client = self.disks.connect()?;
                // The daemon knows them by its own paths.
                let path = |name: &String| groups.path(name).unwrap_or(name).to_owned();
                for (group, names) in self.by_group(|name| groups.group_at(name))? {
                    let command = self.command(names.iter().map(path).collect())?;
                    session::served(&mut client, options, &group, &command)?;
                }
            }
            Place::Disks(disks) => {
                let archives = options.archives()?;
                asking(&disks, options.yes, async |session| {
                    for (group, names) in self.by_group(|name| session.group_at(name))? {
                        session.change(&group, &self.command(names)?, &archives).await?;
                    }
                    Ok(())
                })?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The names of the physical volumes by those of their groups.
    fn by_group<'a>(
        &self,
        group_at: impl Fn(&str) -> Result<&'a Group>,
    ) -> Result<BTreeMap<String, Vec<String>>> {
        let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in &self.names {
            let group = group_at(name)?.metadata.group.name.clone();
            groups.entry(group).or_default().push(name.clone());
        }
        Ok(groups)
    }
}
