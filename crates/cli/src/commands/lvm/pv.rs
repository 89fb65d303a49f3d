//! `ashlar lvm pvcreate`, `pvremove` and `pvresize`: labels on disks, and their sizes.

use std::process::ExitCode;

use ashlar_block::Sectors;
use ashlar_commands::lvm::{OverwritePermission, with_named};
use ashlar_daemon::error::{Error, Result};
use ashlar_lvm::command::Membership;
use ashlar_lvm::format::Layout;
use ashlar_lvm::{Uuid, sizes};
use clap::{ArgAction, Args};

use super::groups::{self, Place};
use super::session::{asking, served_members};
use super::{ChangeOptions, Devices};
use crate::output;

/// Make physical volumes of disks
///
/// Disks with known contents (a file system, a partition table, a member of an array) are refused
/// without --force; a refusal changes nothing.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm pvcreate a.img b.img
  ashlar lvm pvcreate --dataalignment 4M --metadatacopies 2 a.img
  ashlar lvm pvcreate --devices d0.img,d1.img /dev/md0")]
pub(crate) struct Pvcreate {
    #[command(flatten)]
    disks: Devices,

    /// Overwrite the contents of the disks
    ///
    /// Given twice, even a physical volume of a group
    #[arg(short, long, action = ArgAction::Count)]
    force: u8,

    /// Answer questions with yes
    #[arg(short, long)]
    yes: bool,

    /// The identity, instead of a random one; of one physical volume
    #[arg(short, long)]
    uuid: Option<Uuid>,

    /// Taken for LVM's sake: --uuid needs no backup here
    #[arg(long, hide = true)]
    norestorefile: bool,

    #[command(flatten)]
    layout: PvLayout,

    /// The disks
    #[arg(required = true, value_name = "DISK")]
    names: Vec<String>,
}

/// Where things are on a physical volume.
#[derive(Args, Debug)]
pub(super) struct PvLayout {
    /// Data begins at a multiple of this, in KiB or with a unit [default: 1M]
    #[arg(long, value_name = "SIZE", value_parser = sizes::small_size)]
    dataalignment: Option<Sectors>,

    /// Size of each metadata area, in MiB or with a unit; rounded up to the start of the data
    #[arg(long, value_name = "SIZE", value_parser = sizes::size)]
    metadatasize: Option<Sectors>,

    /// Metadata areas: 0, 1, or 2 with one at the end of the disk
    #[arg(long, visible_alias = "metadatacopies", value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(..=2))]
    pvmetadatacopies: u8,

    /// Space for a boot loader in front of the data, in MiB or with a unit
    #[arg(long, value_name = "SIZE", value_parser = sizes::size)]
    bootloaderareasize: Option<Sectors>,
}

/// Remove the labels of physical volumes
///
/// The disks are no longer physical volumes; their data are not changed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm pvremove a.img b.img")]
pub(crate) struct Pvremove {
    #[command(flatten)]
    disks: Devices,

    /// Given twice: even a physical volume of a group
    ///
    /// The group will then miss it
    #[arg(short, long, action = ArgAction::Count)]
    force: u8,

    /// Answer questions with yes
    #[arg(short, long)]
    yes: bool,

    /// The physical volumes
    #[arg(required = true, value_name = "PV")]
    names: Vec<String>,
}

/// Have physical volumes get the size that their disks have now, or a smaller one
///
/// A smaller size is refused if a logical volume has extents beyond it: pvmove moves them.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm pvresize /dev/md0
  ashlar lvm pvresize --devices a.img,b.img a.img
  ashlar lvm pvresize --devices a.img,b.img --setphysicalvolumesize 40G a.img")]
pub(crate) struct Pvresize {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    change_options: ChangeOptions,

    /// The size that the physical volumes get, in MiB or with a unit; at most that of their disks, which stay as they are
    #[arg(long, value_name = "SIZE", value_parser = sizes::size)]
    setphysicalvolumesize: Option<Sectors>,

    /// The physical volumes
    #[arg(required = true, value_name = "PV")]
    names: Vec<String>,
}

impl PvLayout {
    pub(super) fn layout(&self) -> Layout {
        let usual = Layout::default();
        Layout {
            data_alignment: self.dataalignment.unwrap_or(usual.data_alignment),
            metadata_copies: self.pvmetadatacopies,
            metadata_size: self.metadatasize.unwrap_or(usual.metadata_size),
            bootloader: self.bootloaderareasize.unwrap_or(usual.bootloader),
        }
    }
}

/// What may be overwritten when it is forced this many times.
const fn overwriting(force: u8) -> OverwritePermission {
    match force {
        0 => OverwritePermission::Nothing,
        1 => OverwritePermission::Foreign,
        _ => OverwritePermission::Members,
    }
}

impl Pvcreate {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.uuid.is_some() && self.names.len() > 1 {
            return Err(Error::usage("--uuid is for one physical volume"));
        }
        let (layout, overwriting) = (self.layout.layout(), overwriting(self.force));
        asking(&with_named(&self.disks.devices, &self.names), self.yes, async |session| {
            session.create_physical(&self.names, &layout, self.uuid, overwriting).await
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Pvremove {
    pub(crate) fn run(self) -> Result<ExitCode> {
        asking(&with_named(&self.disks.devices, &self.names), self.yes, async |session| {
            session.remove_physical(&self.names, overwriting(self.force)).await
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Pvresize {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (size, options) = (self.setphysicalvolumesize, &self.change_options);
        match groups::place(&self.disks, &self.names)? {
            Place::Daemon(groups) => {
                for name in &self.names {
                    let group = &groups.group_at(name)?.metadata.group.name;
                    let (physical, sectors) = (name.clone(), size.map(|size| size.0));
                    let command = Membership::Resize { physical, sectors };
                    served_members(&self.disks, options, group, &command)?;
                }
            }
            Place::Disks(disks) => {
                let archives = options.archives()?;
                asking(&disks, options.yes, async |session| {
                    for name in &self.names {
                        session.resize_physical(name, size, &archives).await?;
                    }
                    Ok(())
                })?;
            }
        }
        let count = self.names.len();
        output::tell(&format!(
            "  {count} physical volume(s) resized or updated / 0 physical volume(s) not resized\n"
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}
