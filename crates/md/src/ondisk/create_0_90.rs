//! New superblocks of version 0.90, as `mdadm --create` of mdadm 4.2 makes them: for kernels and boot loaders that
//! support no other version.

use ashlar_block::units::Sectors;
use zerocopy::FromZeros;

use super::bitmap_super::BitmapSuper;
use super::fields::{DeviceFlags, Level, MAGIC, Version};
use super::spec::{CreateError, CreateSpec, NewMember, NewSuperblock};
use super::superblock::{Superblock, refusal};
use super::superblock_0_90::{Block090, MAX_DISKS, disk, state};
use super::validate;

/// Sectors available for a bitmap behind the superblock: the rest of the 64 KiB at the end.
pub(super) const BITMAP_SPACE: u64 = 120;

/// The superblock counts the used size of a member in KiB, in 32 bits: less than 4 TiB.
const USED_BELOW: Sectors = Sectors(1 << 33);

/// Checks that 0.90 superblocks can describe the array, which uses `size` of each member.
pub(super) fn check(spec: &CreateSpec, size: Sectors) -> Result<(), CreateError> {
    let level = spec.level;
    if level == Level::Raid0 {
        // Kernels since 5.4 need the layout of a RAID0, and 0.90 has no field for it.
        return Err(CreateError::Old("raid0 cannot say its layout"));
    }
    if spec.data_offset.is_some_and(|offset| offset.0 != 0) {
        return Err(CreateError::Meaningless { level, what: "data offset in version 0.90" });
    }
    if spec.members.len() > MAX_DISKS {
        return Err(CreateError::Old("at most 27 members, spares among them"));
    }
    if size >= USED_BELOW {
        return Err(CreateError::Old("less than 4 TiB of each member, or a smaller size is given"));
    }
    Ok(())
}

/// The contents that all members' superblocks share.
pub(super) struct SharedContents {
    block: Block090,
    bitmap: Option<BitmapSuper>,
}

impl SharedContents {
    /// The contents for an array that uses `size` of each member.
    pub(super) fn new(
        spec: &CreateSpec,
        (size, layout, chunk): (Sectors, u32, Sectors),
        bitmap: Option<BitmapSuper>,
    ) -> Result<Self, CreateError> {
        let mut block = Block090::new_zeroed();
        block.md_magic = MAGIC.into();
        block.minor_version = 90.into();
        block.set_set_uuid(spec.set_uuid.into_bytes());
        let seconds = u32::try_from(spec.ctime);
        block.ctime = seconds.map_err(|_| CreateError::Old("no time after 2106"))?.into();
        block.utime = block.ctime;
        block.level = (spec.level.raw() as u32).into();
        block.size = ((size.0 / 2) as u32).into();
        block.raid_disks = spec.raid_devices.into();
        block.md_minor = spec.numbers.array.into();
        let clean = if spec.assume_clean { state::CLEAN } else { 0 };
        let present = if bitmap.is_some() { state::BITMAP_PRESENT } else { 0 };
        block.state = (clean | present).into();
        block.events_lo = 1.into();
        block.layout = layout.into();
        let bytes = u32::try_from(chunk.bytes());
        let too_large = |_| CreateError::Old("chunks of less than 4 GiB");
        block.chunk_size = bytes.map_err(too_large)?.into();

        let slots = spec.raid_devices as usize;
        let members = spec.members.iter().zip(block.disks.iter_mut()).enumerate();
        let present = members.filter_map(|(n, (member, entry))| Some((n, member.as_ref()?, entry)));
        for (number, member, entry) in present {
            let (major, minor) = spec.numbers.members.get(number).copied().unwrap_or_default();
            let number_word = number as u32;
            entry.number = number_word.into();
            entry.major = major.into();
            entry.minor = minor.into();
            entry.raid_disk = number_word.into();
            let active = if number < slots { disk::ACTIVE | disk::SYNC } else { 0 };
            entry.state = (active | flags(member.flags)).into();
        }
        let count = |members: &[Option<NewMember>]| members.iter().flatten().count() as u32;
        let (active, spare) = spec.members.split_at(slots.min(spec.members.len()));
        let (active, spare) = (count(active), count(spare));
        block.active_disks = active.into();
        block.working_disks = (active + spare).into();
        block.spare_disks = spare.into();
        block.failed_disks = (spec.raid_devices - active).into();
        block.nr_disks = (spec.raid_devices + spare).into();
        Ok(Self { block, bitmap })
    }

    /// The superblock and bitmap to write to a member.
    pub(super) fn member(
        &self,
        number: usize,
        member: &NewMember,
    ) -> Result<NewSuperblock, CreateError> {
        let (version, device) = (Version::V0_90, member.device);
        let too_small = || refusal(version, device)(validate::too_small(version, device));
        let mut block = Box::new(self.block.clone());
        block.this_disk = block.disks.get(number).ok_or_else(too_small)?.clone();
        block.seal();
        let superblock = Superblock::from_block_0_90(block, device)?;
        Ok(NewSuperblock { superblock, bitmap: self.bitmap.clone() })
    }
}

fn flags(flags: DeviceFlags) -> u32 {
    let write_mostly = if flags.write_mostly { disk::WRITE_MOSTLY } else { 0 };
    let failfast = if flags.failfast { disk::FAILFAST } else { 0 };
    write_mostly | failfast
}
