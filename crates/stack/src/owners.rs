//! Two owners of one device.
//!
//! md, LVM and ZFS each recognize their devices by signatures. If one owner is inside what the
//! other holds, they form a stack. If neither is, one signature is stale, and nothing on the device
//! says which: assembling the wrong one overwrites the other's data. So ashlar does not guess and
//! does not write to this device until the user has decided.
//!
//! What is inside what: a member of an array whose data begins at sector 0 (metadata 1.0 and 0.90)
//! shows the contents of the array, as far as they are in the member's data area. The checksum of a
//! ZFS label depends on the byte offset at which it was written, and an LVM label records the size
//! of its device.

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

/// The two owners of a device: the one ashlar would use, and the other, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rivals {
    /// The owner that would be used.
    pub used: String,
    /// The other owner.
    pub other: String,
    /// The signature type of `used`, as wipefs names it.
    used_type: &'static str,
    /// The signature type of `other`, as wipefs names it.
    other_type: &'static str,
    /// The byte offset of one of the other's signatures: further signatures of that type may be legitimate.
    other_offset: u64,
}

impl std::fmt::Display for Rivals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { used, other, .. } = self;
        write!(f, "has two owners, of which neither is inside the other: {used}, and {other}")
    }
}

impl Rivals {
    /// What the user can do about it.
    pub fn way_out(&self) -> String {
        let Self { used, used_type, other, other_type, other_offset } = self;
        format!(
            "remove the signatures of {other} with wipefs -a -t {other_type} (one is at {other_offset:#x}), or those of {used} \
             with wipefs -a -t {used_type}; use ashlar serve --read-only to read the device as {used}, or ashlar serve --whole to \
             look only for members of arrays"
        )
    }
}

/// The two owners of a device with these `contents`; `None` if there are fewer.
///
/// # Errors
/// It cannot be read.
pub async fn rivals(gateway: &Gateway, contents: &Contents) -> Result<Option<Rivals>, Status> {
    let claim = claim::read(gateway, contents, false).await?.claim;
    of_claim(gateway, contents, &claim).await
}

/// The same, for a device that would be used as `claim` says.
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
        // Only the first label counts: fdisk and similar tools may leave the other labels of an old
        // pool. The first one overlaps the entries of a GPT, and follows an MBR directly.
        Claim::Table(table) => {
            let used = format!("a {} partition table", table.scheme.name());
            pool(&|place| place.start > 0).map(|other| other.beside(used, table.scheme.name()))
        }
        Claim::Volume | Claim::Refused(_) => None,
    })
}

/// Bytes from LVM's label to the type field in it, where wipefs reports the signature.
const TYPE_OFFSET: u64 = 24;

/// A pool that owns a device.
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

/// The pool that owns the device by a valid label that is not `inside` what another owner holds.
fn pool_outside(
    labels: &DeviceLabels,
    size: u64,
    inside: &dyn Fn(&Range<u64>) -> bool,
) -> Option<PoolOwner> {
    labels.copies.iter().enumerate().find_map(|(index, copy)| {
        let start = label_offset(size, index)?;
        let Ok(Label { member: Some(member), state, .. }) = &copy.label else { return None };
        // A destroyed pool, or a member that was never completely added, is not an owner.
        let owns = matches!(state, PoolState::Active | PoolState::Exported) && member.txg != 0;
        let is_owner = owns && !inside(&(start..start + LABEL_BYTES as u64));
        is_owner.then(|| PoolOwner {
            name: member.pool_name.clone(),
            guid: member.pool_guid,
            label_offset: start,
        })
    })
}

/// The array's data area on a member, in bytes.
fn data_area(sb: &Superblock) -> Range<u64> {
    let start = sb.data_offset.bytes();
    start..start.saturating_add(sb.data_size.bytes())
}

/// LVM's label, and its offset.
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
        // LVM ignores a damaged label too.
        Err(ReadError::Label(_)) => Ok(None),
    }
}

/// Whether an LVM label at `offset` of a member may belong to the contents of the array.
fn is_inside(label: &PvLabel, offset: u64, sb: &Superblock, size: u64) -> bool {
    let data = data_area(sb);
    // A mirror's label has the array's size, at most the data area; a stripe set's has more than
    // the member's size.
    let of_the_disk = (data.end - data.start + 1..=size).contains(&label.device_size);
    data.contains(&offset) && !of_the_disk
}
