//! Two owners of one device.
//!
//! md, LVM and ZFS each take a device for theirs by what is written on it. Where one lies in what the other holds, that is a stack. Where
//! neither does, one of them is a remain of the past, and nothing on the device says which: assembling the wrong one writes over the
//! data of the other. So such a device is not written to, by nobody's guess, until its user has decided.
//!
//! What is inside of what: a member of an array whose data begins at sector 0 (metadata 1.0 and 0.90) shows what the array holds, as far
//! as it lies in the member's data area. A label of ZFS says in its checksum at which byte of its device it was written, and that of LVM
//! how large its device was.

use std::ops::Range;

use ashlar_block::{Gateway, Status};
use ashlar_lvm::ondisk::PvLabel;
use ashlar_lvm::{ReadError, read_pv};
use ashlar_md::ondisk::{MdadmUuid, Superblock};
use ashlar_zfs::ondisk::label::{DeviceLabels, Label, PoolState};
use ashlar_zfs::ondisk::layout::{LABEL_BYTES, label_offset};

use crate::claim::{self, Claim};
use crate::probe::{Contents, display_name};
use crate::signature::ZFS_MEMBER;

/// The type of members of arrays.
const MD_MEMBER: &str = "linux_raid_member";
/// The type of physical volumes.
const LVM_MEMBER: &str = "LVM2_member";

/// What the device would be used as, and what it is besides: the owners, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rivals {
    /// As what it would be used.
    pub used: String,
    /// What has it, too.
    pub other: String,
    /// The type of what it would be used as, as wipefs names it.
    used_type: &'static str,
    /// The type of the other, as wipefs names it.
    other_type: &'static str,
    /// The place of one of the other's signatures, in bytes: others of its type may be legitimate.
    other_offset: u64,
}

impl std::fmt::Display for Rivals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { used, other, .. } = self;
        write!(f, "has two owners, of which neither is inside the other: {used}, and {other}")
    }
}

impl Rivals {
    /// What its user can do about it.
    pub fn way_out(&self) -> String {
        let Self { used, used_type, other, other_type, other_offset } = self;
        format!(
            "wipefs -a -t {other_type} removes the signatures of {other} for good (one is at {other_offset:#x}), wipefs -a -t \
             {used_type} those of {used}; ashlar serve --read-only uses the device as {used} and writes nothing; ashlar serve --whole \
             looks only for members of arrays"
        )
    }
}

/// The owners of a device with these `contents`; `None` if there are not two of them.
///
/// # Errors
/// It cannot be read.
pub async fn rivals(gateway: &Gateway, contents: &Contents) -> Result<Option<Rivals>, Status> {
    let claim = claim::read(gateway, contents, false).await?.claim;
    of_claim(gateway, contents, &claim).await
}

/// The same, of a device that would be used as `claim` says.
pub(crate) async fn of_claim(
    gateway: &Gateway,
    contents: &Contents,
    claim: &Claim,
) -> Result<Option<Rivals>, Status> {
    let size = gateway.capacity().bytes();
    let pool = |inside: &dyn Fn(&Range<u64>) -> bool| {
        contents.zfs.as_deref().and_then(|labels| pool_outside(labels, size, inside))
    };
    Ok(match claim {
        Claim::Member(sb) => {
            let used = format!(
                "the md array {} ({}, {})",
                display_name(sb),
                sb.level,
                MdadmUuid(sb.set_uuid)
            );
            let data = data_area(sb);
            match pool(&|label| data.start <= label.start && label.end <= data.end) {
                Some(other) => Some(other.beside(used, MD_MEMBER)),
                None => match read_label(gateway, contents).await? {
                    Some((label, offset)) if !is_inside(&label, offset, sb, size) => {
                        let other = format!("an LVM physical volume ({})", label.uuid);
                        let (other_type, other_offset) = (LVM_MEMBER, offset + TYPE_OFFSET);
                        Some(Rivals { used, used_type: MD_MEMBER, other, other_type, other_offset })
                    }
                    Some(_) | None => None,
                },
            }
        }
        Claim::PhysicalVolume => match read_label(gateway, contents).await? {
            Some((label, _)) => {
                let data = label.data_areas.first().map_or(u64::MAX, |area| area.offset);
                let found = pool(&|place| data <= place.start);
                let used = format!("an LVM physical volume ({})", label.uuid);
                found.map(|other| other.beside(used, LVM_MEMBER))
            }
            None => None,
        },
        // Only the first label is looked for: all that fdisk and its like leave of an old pool may be the others. It lies on the entries
        // of a GPT, and right behind an MBR.
        Claim::Table(table) => {
            let used = format!("a {} partition table", table.scheme.name());
            pool(&|place| place.start > 0).map(|other| other.beside(used, table.scheme.name()))
        }
        Claim::Volume | Claim::Refused(_) => None,
    })
}

/// Bytes from LVM's label to the type in it, where wipefs sees it.
const TYPE_OFFSET: u64 = 24;

/// A pool that has a device.
struct PoolOwner {
    name: String,
    guid: u64,
    label_offset: u64,
}

impl PoolOwner {
    fn beside(self, used: String, used_type: &'static str) -> Rivals {
        let Self { name, guid, label_offset } = self;
        let other = format!("the ZFS pool {name} ({guid})");
        Rivals { used, used_type, other, other_type: ZFS_MEMBER, other_offset: label_offset }
    }
}

/// The pool of which the device is a member by a sound label that is not `inside` what another owner holds.
fn pool_outside(
    labels: &DeviceLabels,
    size: u64,
    inside: &dyn Fn(&Range<u64>) -> bool,
) -> Option<PoolOwner> {
    labels.copies.iter().enumerate().find_map(|(index, copy)| {
        let start = label_offset(size, index)?;
        let Ok(Label { member: Some(member), state, .. }) = &copy.label else { return None };
        // One that was destroyed, or never taken in to the end, is no owner.
        let owns = matches!(state, PoolState::Active | PoolState::Exported) && member.txg != 0;
        let is_owner = owns && !inside(&(start..start + LABEL_BYTES as u64));
        is_owner.then(|| PoolOwner {
            name: member.pool_name.clone(),
            guid: member.pool_guid,
            label_offset: start,
        })
    })
}

/// Where the array's data is on a member, in bytes.
fn data_area(sb: &Superblock) -> Range<u64> {
    let start = sb.data_offset.bytes();
    start..start.saturating_add(sb.data_size.bytes())
}

/// The label of LVM, and where it is.
async fn read_label(
    gateway: &Gateway,
    contents: &Contents,
) -> Result<Option<(PvLabel, u64)>, Status> {
    if !contents.foreign.iter().any(|found| found.name == LVM_MEMBER) {
        return Ok(None);
    }
    match read_pv(gateway).await {
        Ok(found) => Ok(found.map(|pv| (pv.label, u64::from(pv.label_sector) * 512))),
        Err(ReadError::Read(status)) => Err(status),
        // LVM does not take it either.
        Err(ReadError::Label(_)) => Ok(None),
    }
}

/// Whether a label of LVM at this `offset` of a member may be that of what its array holds.
fn is_inside(label: &PvLabel, offset: u64, sb: &Superblock, size: u64) -> bool {
    let data = data_area(sb);
    // Of a mirror it says the array's size, which is no more than the data area; of stripes more than the member's.
    let of_the_disk = (data.end - data.start + 1..=size).contains(&label.device_size);
    data.contains(&offset) && !of_the_disk
}
