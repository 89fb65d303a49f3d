//! Physical volumes: labels that are made and removed (`pvcreate`, `pvremove`).

use std::path::Path;

use ashlar_lvm::Uuid;
use ashlar_lvm::format::{Layout, erase_pv, plan};

use super::session::{Place, Session};
use super::{make_physical, new_uuid, refuse_foreign};
use crate::error::{Error, Result};

/// Which contents of a disk a command may overwrite when it makes or removes the disk's label.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum OverwritePermission {
    /// Nothing but a free physical volume.
    Nothing,
    /// Also contents that are not LVM's.
    Foreign,
    /// Also a physical volume of a group.
    Members,
}

impl Session {
    /// Makes physical volumes of the disks with these names.
    ///
    /// # Errors
    /// A disk has contents that must stay, the user did not agree, or a disk cannot be written. Refusals come before the first
    /// write.
    pub async fn create_physical(
        &self,
        names: &[String],
        layout: &Layout,
        uuid: Option<Uuid>,
        overwriting: OverwritePermission,
    ) -> Result<()> {
        for name in names {
            let place = self.find(name)?;
            if overwriting < OverwritePermission::Members {
                self.refuse_member(name, "initialize")?;
            }
            if overwriting == OverwritePermission::Nothing {
                self.refuse_foreign(place)?;
            }
        }
        let taken = uuid.filter(|uuid| {
            let own = |index: usize| names.iter().any(|name| self.pv(name) == Some(index));
            let mut pvs = self.pvs.iter().enumerate();
            pvs.any(|(index, pv)| pv.on_disk.label.uuid == *uuid && !own(index))
        });
        if let Some(uuid) = taken {
            return Err(Error::failed(format_args!("uuid {uuid} already in use")));
        }
        for name in names {
            let question = format!("Really INITIALIZE physical volume \"{name}\" of a group?");
            let is_member = self.refuse_member(name, "initialize").is_err();
            if is_member && !self.dialogue.confirm(&question)? {
                return Err(Error::failed(format_args!("{name}: physical volume not initialized")));
            }
        }
        self.label(names, layout, uuid).await
    }

    /// Removes the labels of the physical volumes with these names.
    ///
    /// # Errors
    /// One is not a physical volume, or is in a group and must stay there; or it cannot be written.
    pub async fn remove_physical(
        &self,
        names: &[String],
        overwriting: OverwritePermission,
    ) -> Result<()> {
        let mut removed = Vec::new();
        for name in names {
            self.find(name)?;
            let Some(index) = self.pv(name) else {
                return Err(Error::failed(format_args!("No PV found on device {name}")));
            };
            if let Err(refusal) = self.refuse_member(name, "remove") {
                let question = format!("Really WIPE LABELS from \"{name}\" of a group?");
                if overwriting < OverwritePermission::Members
                    || !self.dialogue.confirm(&question)?
                {
                    return Err(refusal);
                }
            }
            removed.push(index);
        }
        for (name, index) in names.iter().zip(removed) {
            let Some(pv) = self.pvs.get(index) else { continue };
            let failed = |status| Error::new("Cannot remove the label", name, status);
            erase_pv(&pv.gateway, &pv.on_disk).await.map_err(failed)?;
            let line = format!("  Labels on physical volume \"{name}\" successfully wiped.");
            self.dialogue.tell(&[line])?;
        }
        Ok(())
    }

    /// Makes physical volumes of these disks. The caller has checked their contents.
    pub(super) async fn label(
        &self,
        names: &[String],
        layout: &Layout,
        uuid: Option<Uuid>,
    ) -> Result<()> {
        let failed = |name: &str, why: &dyn std::fmt::Display| {
            Error::new("Cannot make a physical volume", name, why)
        };
        // All are checked before the first is written.
        for name in names {
            let place = self.find(name)?;
            if place.gateway.disk().is_read_only() {
                return Err(failed(name, &"it is read-only"));
            }
            plan(uuid.unwrap_or_else(new_uuid), place.gateway.capacity().bytes(), layout)
                .map_err(|error| failed(name, &error))?;
        }
        for name in names {
            let gateway = &self.find(name)?.gateway;
            make_physical(name, gateway, uuid.unwrap_or_else(new_uuid), layout).await?;
            let line = format!("  Physical volume \"{name}\" successfully created.");
            self.dialogue.tell(&[line])?;
        }
        Ok(())
    }

    /// The place with that name.
    pub(super) fn find(&self, name: &str) -> Result<&Place> {
        self.place(name).ok_or_else(|| {
            if Path::new(name).exists() {
                let why = "is used by an array or has partitions, or cannot be read";
                return Error::failed(format_args!("Cannot use {name}: it {why}"));
            }
            Error::failed(format_args!("No device found for {name}"))
        })
    }

    /// Refuses a physical volume that is, or may be, in a group.
    fn refuse_member(&self, name: &str, what: &str) -> Result<()> {
        let Some(index) = self.pv(name) else { return Ok(()) };
        let of = self.group_of(index).map(|group| group.metadata.group.name.as_str());
        let found = &self.found;
        let whose = if let Some(group) = of {
            format!("physical volume \"{name}\" of volume group \"{group}\"")
        } else if found.duplicates.contains(&index) {
            format!("\"{name}\", a copy of another physical volume,")
        } else if found.orphans.contains(&index) || !found.free.contains(&index) {
            format!("\"{name}\", which belongs to a group that is not known,")
        } else {
            return Ok(());
        };
        Err(Error::failed(format_args!("Can't {what} {whose} without -ff")))
    }

    /// Refuses a device that is known to contain something other than a physical volume, or that cannot be read.
    pub(super) fn refuse_foreign(&self, place: &Place) -> Result<()> {
        let is_pv = self.pvs.iter().any(|pv| pv.gateway.is_same(&place.gateway));
        refuse_foreign(&place.path, &place.contents, is_pv)
    }
}
