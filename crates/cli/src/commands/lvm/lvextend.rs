//! `ashlar lvm lvextend`: enlarges volumes, and the space of snapshots.

use std::process::ExitCode;

use ashlar_block::Sectors;
use ashlar_lvm::VolumeGroup;
use ashlar_lvm::alloc::Wish;
use clap::{ArgAction, Args};

use super::archive::Archives;
use super::session::{Draft, Session, with};
use super::sizes::{self, Extents, Of, Resize};
use super::{Changing, Devices, lvcreate, volume_name};
use crate::disks::Access;
use crate::error::{Error, Result};
use crate::output;

/// Extend a logical volume, or the space for changes of a snapshot
///
/// The contents of the volume do not grow by themselves: a file system has its own command for
/// that.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm lvextend --devices a.img,b.img -L +1G vg/data
  ashlar lvm lvextend --devices a.img,b.img -l +100%FREE vg/data")]
pub(crate) struct Lvextend {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    changing: Changing,

    #[command(flatten)]
    size: NewSize,

    /// The volume
    #[arg(value_name = "VG/LV")]
    name: String,

    /// Physical volumes to place the new part on [default: any of the group's]
    #[arg(value_name = "PV")]
    pvs: Vec<String>,
}

/// How large, or by how much larger.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct NewSize {
    /// New size, or with + the increase, in MiB or with a unit; rounded up to extents
    #[arg(short = 'L', long = "size", value_name = "[+]SIZE", action = ArgAction::Set, value_parser = sizes::new_size)]
    size: Option<Resize<Sectors>>,

    /// The same in extents, or a share of something: COUNT, N%VG, N%FREE, N%PVS, N%ORIGIN, N%LV
    #[arg(short = 'l', long = "extents", value_name = "[+]COUNT", action = ArgAction::Set, value_parser = sizes::new_extents)]
    extents: Option<Resize<Extents>>,
}

impl Lvextend {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (group, name) = volume_name(&self.name)?;
        let archives = Archives::new(self.changing.autobackup)?;
        with(&self.disks.devices, Access::Write, async |session| {
            let mut draft = session.draft(group).await?;
            let text = self.grow(session, &mut draft, name)?;
            session.commit(draft, &[], &archives).await?;
            output::tell(&text)
        })?;
        Ok(ExitCode::SUCCESS)
    }

    /// Changes the description; returns the message about it.
    fn grow(&self, session: &Session, draft: &mut Draft, name: &str) -> Result<String> {
        let only = draft.named(session, &self.pvs)?;
        let group = &mut draft.group;
        let Some(lv) = group.lv(name) else {
            let text = format!("Failed to find logical volume \"{}/{name}\"", group.name);
            return Err(Error::failed(text));
        };
        let before = lv.extents();
        let policy = lvcreate::policy(lv.allocation.as_ref().or(group.allocation.as_ref()));
        // A new segment has the layout of the last one.
        let last = lv.segments.last().and_then(|segment| segment.kind.as_striped());
        let (stripes, stripe_size) = last.map_or((1, Sectors::ZERO), |striped| {
            (striped.areas.len(), striped.stripe_size.unwrap_or(Sectors::ZERO))
        });
        let stripes = u32::try_from(stripes).unwrap_or(1).max(1);
        let (wanted, is_share) = self.extents(group, name, before, &only)?;
        let Some(by) = wanted.checked_sub(before).filter(|by| *by > 0) else {
            let text = format!(
                "New size given ({wanted} extents) not larger than existing size ({before} extents)"
            );
            return Err(Error::failed(text));
        };
        let by = lvcreate::whole_rows(group, by, stripes, is_share)?;
        let wish = Wish { extents: by, stripes, stripe_size, policy, only };
        let failed = |error| Error::new("Cannot extend the volume", name, error);
        let grown = group.grow(name, &wish).map_err(failed)?;
        let (of, after) = (&group.name, before + grown);
        let size = |extents| sizes::long(group.sectors(extents));
        Ok(format!(
            "  Size of logical volume {of}/{name} changed from {} ({before} extents) to {} ({after} \
             extents).\n  Logical volume {of}/{name} successfully resized.\n",
            size(before),
            size(after),
        ))
    }

    /// The new number of extents, and whether it is a share.
    fn extents(
        &self,
        group: &VolumeGroup,
        name: &str,
        before: u32,
        only: &[usize],
    ) -> Result<(u32, bool)> {
        let (adds, extents, is_share) = match (self.size.size, self.size.extents) {
            (Some(size), _) => (size.adds, lvcreate::to_extents(group, size.amount)?, false),
            (None, Some(Resize { adds, amount: Extents::Count(count) })) => (adds, count, false),
            (None, Some(Resize { adds, amount: Extents::Share(percent, of) })) => {
                let of_volume = || {
                    let origin = group.snapshot_in(name).map(|found| &*found.snapshot.origin);
                    let extents = match (of, origin.and_then(|origin| group.lv(origin))) {
                        (Of::Volume, _) => before,
                        (Of::Origin, Some(origin)) => origin.extents(),
                        _ => return Err(Error::usage("that share is of nothing here")),
                    };
                    Ok(sizes::share(percent, of, extents.into()))
                };
                let share = lvcreate::share_of_group(group, percent, of, only);
                let share = share.map_or_else(of_volume, Ok)?;
                // A share of the free extents is added to the volume's size.
                (adds || of == Of::Free, share, true)
            }
            (None, None) => return Err(Error::usage("no size is given")),
        };
        let too_large = || Error::failed("The size is too large");
        let all = if adds { before.checked_add(extents) } else { Some(extents) };
        Ok((all.ok_or_else(too_large)?, is_share))
    }
}
