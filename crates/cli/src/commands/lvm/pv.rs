//! `ashlar lvm pvcreate` and `pvremove`: labels on disks.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ashlar_block::Sectors;
use ashlar_host::disks::Access;
use ashlar_host::error::{Error, Result};
use ashlar_host::lvm::{make_physical, new_uuid};
use ashlar_lvm::Uuid;
use ashlar_lvm::format::{Layout, erase_pv, plan};
use clap::{ArgAction, Args};

use super::session::{Place, Session, with, with_named};
use super::{Devices, confirm, sizes};
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

    /// Overwrite the contents of the disks; twice: even a physical volume of a group
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

    /// Twice: even from a physical volume of a group, which will then miss it
    #[arg(short, long, action = ArgAction::Count)]
    force: u8,

    /// Answer questions with yes
    #[arg(short, long)]
    yes: bool,

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

/// The disks of the stack, and those of `names` that are files or devices.
fn disks(devices: &Devices, names: &[String]) -> Vec<PathBuf> {
    with_named(&devices.devices, names)
}

/// The place with that name.
pub(super) fn find<'a>(session: &'a Session, name: &str) -> Result<&'a Place> {
    session.place(name).ok_or_else(|| {
        if Path::new(name).exists() {
            let why = "is used by an array or has partitions, or cannot be read";
            return Error::failed(format_args!("Cannot use {name}: it {why}"));
        }
        Error::failed(format_args!("No device found for {name}"))
    })
}

/// Refuses a physical volume that is, or may be, in a group.
pub(super) fn refuse_member(session: &Session, name: &str, what: &str) -> Result<()> {
    let Some(index) = session.pv(name) else { return Ok(()) };
    let of = session.group_of(index).map(|group| group.metadata.group.name.as_str());
    let found = &session.found;
    let text = if let Some(group) = of {
        format!("Can't {what} physical volume \"{name}\" of volume group \"{group}\" without -ff")
    } else if found.duplicates.contains(&index) {
        format!("Can't {what} \"{name}\", a copy of another physical volume, without -ff")
    } else if found.orphans.contains(&index) || !found.free.contains(&index) {
        format!("Can't {what} \"{name}\", which belongs to a group that is not known, without -ff")
    } else {
        return Ok(());
    };
    Err(Error::failed(text))
}

/// Refuses a device that is known to contain something other than a physical volume, or that cannot be read.
pub(super) fn refuse_foreign(session: &Session, place: &Place) -> Result<()> {
    let is_pv = session.pvs.iter().any(|pv| pv.gateway.is_same(&place.gateway));
    ashlar_host::lvm::refuse_foreign(&place.path, &place.contents, is_pv)
}

/// Creates physical volumes on places that were checked.
pub(super) async fn make(
    session: &Session,
    names: &[String],
    layout: &Layout,
    uuid: Option<Uuid>,
) -> Result<()> {
    let failed = |name: &str, why: &dyn std::fmt::Display| {
        Error::new("Cannot make a physical volume", name, why)
    };
    // All are checked before the first is written.
    for name in names {
        let place = find(session, name)?;
        if place.gateway.disk().is_read_only() {
            return Err(failed(name, &"it is read-only"));
        }
        plan(uuid.unwrap_or_else(new_uuid), place.gateway.capacity().bytes(), layout)
            .map_err(|error| failed(name, &error))?;
    }
    for name in names {
        let gateway = &find(session, name)?.gateway;
        make_physical(name, gateway, uuid.unwrap_or_else(new_uuid), layout).await?;
        output::tell(&format!("  Physical volume \"{name}\" successfully created.\n"))?;
    }
    Ok(())
}

impl Pvcreate {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.uuid.is_some() && self.names.len() > 1 {
            return Err(Error::usage("--uuid is for one physical volume"));
        }
        let layout = self.layout.layout();
        with(&disks(&self.disks, &self.names), Access::Write, async |session| {
            for name in &self.names {
                let place = find(session, name)?;
                if self.force < 2 {
                    refuse_member(session, name, "initialize")?;
                }
                if self.force == 0 {
                    refuse_foreign(session, place)?;
                }
            }
            let taken = self.uuid.filter(|uuid| {
                let own = |index: usize| self.names.iter().any(|n| session.pv(n) == Some(index));
                let mut pvs = session.pvs.iter().enumerate();
                pvs.any(|(index, pv)| pv.on_disk.label.uuid == *uuid && !own(index))
            });
            if let Some(uuid) = taken {
                return Err(Error::failed(format_args!("uuid {uuid} already in use")));
            }
            self.confirm(session)?;
            make(session, &self.names, &layout, self.uuid).await
        })?;
        Ok(ExitCode::SUCCESS)
    }

    /// Asks before it takes members away from their groups: the user must force this twice, and confirm it.
    fn confirm(&self, session: &Session) -> Result<()> {
        for name in &self.names {
            let question = format!("Really INITIALIZE physical volume \"{name}\" of a group?");
            let is_member = refuse_member(session, name, "initialize").is_err();
            if is_member && !confirm(&question, self.yes)? {
                return Err(Error::failed(format_args!("{name}: physical volume not initialized")));
            }
        }
        Ok(())
    }
}

impl Pvremove {
    pub(crate) fn run(self) -> Result<ExitCode> {
        with(&disks(&self.disks, &self.names), Access::Write, async |session| {
            let mut removed = Vec::new();
            for name in &self.names {
                find(session, name)?;
                let index = session.pv(name);
                let Some(index) = index else {
                    return Err(Error::failed(format_args!("No PV found on device {name}")));
                };
                if let Err(refusal) = refuse_member(session, name, "remove") {
                    let question = format!("Really WIPE LABELS from \"{name}\" of a group?");
                    if self.force < 2 || !confirm(&question, self.yes)? {
                        return Err(refusal);
                    }
                }
                removed.push(index);
            }
            for (name, index) in self.names.iter().zip(removed) {
                let Some(pv) = session.pvs.get(index) else { continue };
                let failed = |status| Error::new("Cannot remove the label", name, status);
                erase_pv(&pv.gateway, &pv.on_disk).await.map_err(failed)?;
                output::tell(&format!(
                    "  Labels on physical volume \"{name}\" successfully wiped.\n"
                ))?;
            }
            Ok(())
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
