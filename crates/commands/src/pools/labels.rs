//! Labels that are erased, so that nothing takes a disk for a member of a pool any more (`zpool labelclear`).

use std::fs::File;
use std::ops::Range;

use ashlar_block::ByteVolume;
use ashlar_stack::assemble::Disk;
use ashlar_zfs::ondisk::label::{DeviceLabels, LabelError, PoolState};
use ashlar_zfs::ondisk::layout::{LABEL_BYTES, PHYS_OFFSET, label_offset};
use rustix::fs::{FlockOperation, flock};

use crate::error::{Error, Result};

const WHAT: &str = "cannot clear the labels of";

/// Erases the ZFS labels of disks that were opened for writing, so that nobody else uses them. Nothing else on the
/// disks changes. With `force` also the labels of a pool that was not destroyed, and damaged ones.
///
/// # Errors
/// Before the first write: a disk has no labels, or other contents too, or must be forced, or a worker still uses it. A
/// disk cannot be read or written.
pub async fn clear_labels(disks: &[Disk], force: bool) -> Result<()> {
    let (mut locks, mut found) = (Vec::new(), Vec::new());
    for disk in disks {
        locks.extend(lock(disk)?);
        let labels = DeviceLabels::read(&disk.gateway).await;
        let path = disk.path.display();
        if !labels.is_any() {
            return Err(Error::new(WHAT, path, "the disk has no ZFS labels"));
        }
        if let Some(contents) = super::create::foreign(disk).await? {
            // These may be where a label was, and no rule tells the remains of a label from them.
            let hint = "nothing was changed; wipefs -t zfs_member erases signatures of pools alone";
            return Err(Error::new(WHAT, path, format!("it {contents}")).hint(hint));
        }
        if let (Some(role), false) = (role(&labels), force) {
            let hint = "nothing was changed; --force erases them: the pool has one disk less then, or is lost";
            return Err(Error::new(WHAT, path, role).hint(hint));
        }
        found.push((disk, ranges(disk, &labels)?));
    }
    for (disk, ranges) in found {
        let erased = ByteVolume::new(disk.gateway.clone()).wipe(&ranges).await;
        erased.map_err(|status| Error::new(WHAT, disk.path.display(), status))?;
    }
    drop(locks);
    Ok(())
}

/// Where a disk has labels, or remains of them.
fn ranges(disk: &Disk, labels: &DeviceLabels) -> Result<Vec<Range<u64>>> {
    let size = disk.gateway.capacity().bytes();
    let mut ranges = Vec::new();
    for (index, copy) in labels.copies.iter().enumerate() {
        let has_ring = copy.ring.good + copy.ring.damaged > 0;
        match &copy.label {
            Err(LabelError::Unreadable(status)) => {
                return Err(Error::new("cannot read", disk.path.display(), status));
            }
            Err(LabelError::Absent) if !has_ring => {}
            _ => ranges.extend(
                label_offset(size, index)
                    .map(|at| at + PHYS_OFFSET as u64..at + LABEL_BYTES as u64),
            ),
        }
    }
    Ok(ranges)
}

/// The lock by which the worker of a pool holds its disks, also after the end of its daemon. `None` for a disk that is
/// not a file or device: no worker opens it.
fn lock(disk: &Disk) -> Result<Option<File>> {
    let Ok(file) = File::open(&disk.path) else { return Ok(None) };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(_) => {
            let error = Error::new(WHAT, disk.path.display(), "an imported pool uses it");
            Err(error.hint("export the pool first"))
        }
    }
}

/// Why the labels may have to stay.
fn role(labels: &DeviceLabels) -> Option<String> {
    let Some(label) = labels.label() else { return Some("they are damaged".to_owned()) };
    let state = match label.state {
        PoolState::Destroyed => return None,
        // It was detached, or never completely added.
        _ if label.member.is_some() && label.txg() == 0 => return None,
        PoolState::Active => "potentially active".to_owned(),
        state @ (PoolState::Exported | PoolState::Spare | PoolState::L2Cache) => state.to_string(),
    };
    Some(match &label.member {
        Some(member) => format!("it is a member of {state} pool '{}'", member.pool_name),
        None => format!("it is kept as {state} of a pool"),
    })
}
