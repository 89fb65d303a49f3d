//! The checks a superblock must pass.
//!
//! The kernel refuses some of this when it loads a superblock, some only when a personality sets up,
//! and some not at all (the bad block log's size and shift, zero far copies: bugs fixed upstream one
//! by one). Here everything is checked before a [`Superblock`](super::Superblock) exists, so that no
//! later code can divide by zero or leave the device.

use ashlar_block::units::{Sector, Sectors};
use uuid::Uuid;
use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::U32;

use super::bad_block_log::{MAX_LOG_SECTORS, MAX_SHIFT};
use super::defect::{ArrayEvents, Defect, Misplacement};
use super::fields::{Features, Level, MAGIC, MAX_ROLES, Role, Version};
use super::ppl::{self, PplPlace};
use super::superblock_0_90::{self, Block090};
use super::superblock_1::Block1;

/// Checks a version 1 superblock found at the place of `version` on a device of this size.
///
/// # Errors
/// The first [`Defect`] found, in this order: identification, checksum, contents.
pub fn check_1(block: &Block1, version: Version, device: Sectors) -> Result<(), Defect> {
    let at = prove_1(block, version, device)?;
    check_fields_1(block)?;
    check_places_1(block, version, at, device)
}

/// The array of a version 1 superblock, regardless of other defects; `None` if it is not a superblock or
/// its checksum is wrong.
pub(super) fn belonging_1(
    block: &Block1,
    version: Version,
    device: Sectors,
) -> Option<ArrayEvents> {
    prove_1(block, version, device).ok()?;
    let header = &block.header;
    let (set_uuid, events) = (Uuid::from_bytes(header.set_uuid), header.events.get());
    Some(ArrayEvents { set_uuid, events })
}

/// The block's place, if it is a superblock with a correct checksum.
fn prove_1(block: &Block1, version: Version, device: Sectors) -> Result<Sector, Defect> {
    let at = version.super_offset(device).ok_or_else(|| too_small(version, device))?;
    identify_1(block, at)?;
    let found = block.header.max_dev.get();
    if found as usize > MAX_ROLES {
        return Err(Defect::RoleTable { found });
    }
    if !block.checksum_is_correct() {
        let found = block.header.sb_csum.get();
        return Err(Defect::Checksum { found, expected: block.checksum() });
    }
    Ok(at)
}

/// Checks that these bytes are a version 1 superblock that belongs at this sector, regardless of other
/// defects.
///
/// # Errors
/// [`Defect::NoMagic`], [`Defect::MajorVersion`] or [`Defect::SuperOffset`].
pub fn identify_1(block: &Block1, at: Sector) -> Result<(), Defect> {
    let header = &block.header;
    let found = header.magic.get();
    if found != MAGIC {
        return Err(Defect::NoMagic { found });
    }
    let found = header.major_version.get();
    if found != 1 {
        return Err(Defect::MajorVersion { found, wanted: 1 });
    }
    let found = header.super_offset.get();
    if found != at.0 {
        return Err(Defect::SuperOffset { found });
    }
    Ok(())
}

fn check_fields_1(block: &Block1) -> Result<(), Defect> {
    let header = &block.header;
    let features = Features::from_bits_retain(header.feature_map.get());
    let unknown = features.difference(Features::all());
    if unknown.bits() != 0 {
        return Err(Defect::UnknownFeatures { found: unknown.bits() });
    }
    for (start, padding) in [(12, header.pad0.as_bytes()), (228, &header.pad3[..])] {
        if let Some(index) = padding.iter().position(|byte| *byte != 0) {
            return Err(Defect::Padding { offset: start + index, found: padding[index] });
        }
    }
    let shape = Shape {
        level: Level::from_raw(header.level.get() as i32),
        layout: header.layout.get(),
        chunk_bytes: u64::from(header.chunksize.get()) << 9,
        raid_disks: header.raid_disks.get(),
        max_disks: MAX_ROLES as u32,
        size: header.size.get(),
        // A journal device holds no array data, and is usually smaller than the members.
        data_size: match block.own_role() {
            Role::Journal => u64::MAX,
            Role::Active(_) | Role::Spare | Role::Faulty => header.data_size.get(),
        },
        layout_matters: header.level.get() != 0 || features.contains(Features::RAID0_LAYOUT),
    };
    shape.check()?;
    if features.contains(Features::RAID0_LAYOUT) && shape.level != Level::Raid0 {
        return Err(Defect::Raid0LayoutFeature { level: shape.level });
    }
    check_logical_block_size(header.logical_block_size.get())?;
    let reshaping = features.contains(Features::RESHAPE_ACTIVE);
    check_own_role(block.own_role(), slots(header.raid_disks, header.delta_disks, reshaping))
}

fn check_places_1(
    block: &Block1,
    version: Version,
    at: Sector,
    device: Sectors,
) -> Result<(), Defect> {
    let header = &block.header;
    let features = Features::from_bits_retain(header.feature_map.get());
    let (data_offset, data_size) = (header.data_offset.get(), header.data_size.get());
    let end = at + Sectors::from_bytes_ceil(block.used_bytes() as u64);
    let limit = match version {
        Version::V0_90 | Version::V1_0 => at,
        Version::V1_1 | Version::V1_2 => {
            if data_offset < end.0 {
                return Err(Defect::DataInSuperblock { found: data_offset, end });
            }
            device.as_end()
        }
    };
    if data_offset.checked_add(data_size).is_none_or(|data_end| data_end > limit.0) {
        return Err(Defect::DataBeyondDevice { data_offset, data_size, limit });
    }

    let places =
        Places { superblock: at.0..end.0, data: data_offset..data_offset + data_size, device };
    if features.contains(Features::BITMAP_OFFSET) {
        let found = header.bitmap_offset.get() as i32;
        let misplaced = places.check(found, 1);
        misplaced.map_err(|place| Defect::BitmapOffset { found, place })?;
    }
    if let Some(PplPlace { offset, len }) = PplPlace::of(block) {
        check_ppl(features, &places, offset, len)?;
    }
    check_bad_block_log(block, features, &places)
}

/// As in Linux, there must be room for a header and 4 KiB of partial parity. A journal device has none, and other features exclude it.
fn check_ppl(features: Features, places: &Places, offset: i16, len: Sectors) -> Result<(), Defect> {
    let both = Features::PPL | Features::MULTIPLE_PPLS;
    let others = features & (both | Features::BITMAP_OFFSET | Features::JOURNAL);
    if others != Features::PPL && others != Features::MULTIPLE_PPLS {
        return Err(Defect::PplFeatures { found: others.bits() });
    }
    if len < Sectors(2 * ppl::HEADER.0) {
        return Err(Defect::PplSize { found: len });
    }
    let used = len.round_down(ppl::HEADER);
    places.check(offset.into(), used.0).map_err(|place| Defect::PplOffset { found: offset, place })
}

/// Checks the log's place even if the feature bit says that it is empty, because it will be written
/// there as soon as it has something to list.
fn check_bad_block_log(block: &Block1, features: Features, places: &Places) -> Result<(), Defect> {
    let header = &block.header;
    let offset = header.bblog_offset.get() as i32;
    let size = header.bblog_size.get();
    if (size == 0 || offset == 0) && !features.contains(Features::BAD_BLOCKS) {
        return Ok(());
    }
    if size == 0 || size > MAX_LOG_SECTORS {
        return Err(Defect::BadBlockLogSize { found: size });
    }
    if header.bblog_shift > MAX_SHIFT {
        return Err(Defect::BadBlockLogShift { found: header.bblog_shift });
    }
    places
        .check(offset, u64::from(size))
        .map_err(|place| Defect::BadBlockLogOffset { found: offset, place })
}

/// The places of superblock and data on a member.
struct Places {
    superblock: core::ops::Range<u64>,
    data: core::ops::Range<u64>,
    device: Sectors,
}

impl Places {
    /// Checks that `len` sectors can be at this offset from the superblock.
    fn check(&self, offset: i32, len: u64) -> Result<(), Misplacement> {
        let start = self.superblock.start.checked_add_signed(i64::from(offset));
        let start = start.ok_or(Misplacement::OffDevice)?;
        let end = start.checked_add(len).filter(|end| *end <= self.device.0);
        let end = end.ok_or(Misplacement::OffDevice)?;
        let overlaps = |other: &core::ops::Range<u64>| start < other.end && other.start < end;
        if overlaps(&self.superblock) {
            return Err(Misplacement::InSuperblock);
        }
        if overlaps(&self.data) {
            return Err(Misplacement::InData);
        }
        Ok(())
    }
}

/// Checks a 0.90 superblock found at the end of a device of this size.
///
/// # Errors
/// The first [`Defect`] found.
pub fn check_0_90(block: &Block090, device: Sectors) -> Result<(), Defect> {
    let version = Version::V0_90;
    let at = version.super_offset(device).ok_or_else(|| too_small(version, device))?;
    identify_0_90(block)?;
    let found = block.minor_version.get();
    if !(90..=91).contains(&found) {
        return Err(Defect::MinorVersion { found });
    }
    if !block.checksum_is_correct() {
        let found = block.sb_csum.get();
        return Err(Defect::Checksum { found, expected: block.checksum() });
    }
    let found = block.not_persistent.get();
    if found != 0 {
        return Err(Defect::NotPersistent { found });
    }
    let size = u64::from(block.size.get()) * 2;
    let shape = Shape {
        level: Level::from_raw(block.level.get() as i32),
        layout: block.layout.get(),
        chunk_bytes: u64::from(block.chunk_size.get()),
        raid_disks: block.raid_disks.get(),
        max_disks: superblock_0_90::MAX_DISKS as u32,
        size,
        data_size: at.0,
        layout_matters: block.level.get() != 0,
    };
    shape.check()?;
    check_logical_block_size(block.logical_block_size.get())?;
    let number = block.this_disk.number.get() as usize;
    let role = block.disks.get(number).map_or(Role::Spare, |entry| entry.role());
    let reshaping = block.minor_version.get() == 91;
    check_own_role(role, slots(block.raid_disks, block.delta_disks, reshaping))
}

/// Checks that these bytes are a 0.90 superblock, regardless of other defects.
///
/// # Errors
/// [`Defect::NoMagic`] or [`Defect::MajorVersion`].
pub fn identify_0_90(block: &Block090) -> Result<(), Defect> {
    let found = block.md_magic.get();
    if found != MAGIC {
        return Err(Defect::NoMagic { found });
    }
    let found = block.major_version.get();
    if found != 0 {
        return Err(Defect::MajorVersion { found, wanted: 0 });
    }
    Ok(())
}

/// The slots that a superblock describes: an array that shrinks still has the slots that it loses.
pub(super) fn slots(raid_disks: U32, delta_disks: U32, reshaping: bool) -> u32 {
    let given_up = (delta_disks.get() as i32).min(0).unsigned_abs();
    raid_disks.get().saturating_add(if reshaping { given_up } else { 0 })
}

/// The defect of a device that is too small for this version.
pub(crate) fn too_small(version: Version, device: Sectors) -> Defect {
    Defect::DeviceTooSmall { device, needed: version.min_device() }
}

fn check_own_role(role: Role, slots: u32) -> Result<(), Defect> {
    match role {
        Role::Active(role) if u32::from(role) >= slots => {
            Err(Defect::RoleBeyondArray { role, slots })
        }
        Role::Active(_) | Role::Spare | Role::Faulty | Role::Journal => Ok(()),
    }
}

fn check_logical_block_size(found: u32) -> Result<(), Defect> {
    match found {
        0 => Ok(()),
        512..=65536 if found.is_power_of_two() => Ok(()),
        _ => Err(Defect::LogicalBlockSize { found }),
    }
}

/// The geometry of an array as a superblock states it.
struct Shape {
    level: Level,
    layout: u32,
    chunk_bytes: u64,
    raid_disks: u32,
    max_disks: u32,
    size: u64,
    data_size: u64,
    layout_matters: bool,
}

impl Shape {
    fn check(&self) -> Result<(), Defect> {
        if let Level::Other(found) = self.level {
            return Err(Defect::Level { found });
        }
        if self.raid_disks == 0 || self.raid_disks > self.max_disks {
            return Err(Defect::RaidDisks { found: self.raid_disks, max: self.max_disks });
        }
        if self.data_size < 10 {
            return Err(Defect::DataSize { found: self.data_size });
        }
        if self.level.is_redundant() {
            if self.size == 0 {
                return Err(Defect::ZeroSize);
            }
            if self.size > self.data_size {
                let (size, data_size) = (self.size, self.data_size);
                return Err(Defect::SizeBeyondData { size, data_size });
            }
        }
        if self.level.is_striped() {
            self.check_chunk()?;
        }
        if self.layout_matters { self.check_layout() } else { Ok(()) }
    }

    fn check_chunk(&self) -> Result<(), Defect> {
        let (level, found) = (self.level, self.chunk_bytes);
        if found == 0 {
            return Err(Defect::ZeroChunk { level });
        }
        if found % 4096 != 0 {
            return Err(Defect::ChunkNotPages { level, found });
        }
        // Only RAID0 divides by the chunk size; the other levels shift.
        if level != Level::Raid0 && !found.is_power_of_two() {
            return Err(Defect::ChunkNotPowerOfTwo { level, found });
        }
        let room = if level.is_redundant() { self.size } else { self.data_size };
        if found >> 9 > room {
            let chunk = Sectors(found >> 9);
            return Err(Defect::ChunkTooLarge { chunk, room: Sectors(room) });
        }
        Ok(())
    }

    fn check_layout(&self) -> Result<(), Defect> {
        let (level, found) = (self.level, self.layout);
        let known = match level {
            Level::Raid10 => return self.check_raid10_layout(),
            Level::Raid0 => found <= 2,
            Level::Raid5 => super::text::parity_layout_name(false, found).is_some(),
            Level::Raid6 => super::text::parity_layout_name(true, found).is_some(),
            Level::Linear
            | Level::Raid1
            | Level::Raid4
            | Level::Multipath
            | Level::Faulty
            | Level::Other(_) => true,
        };
        if known { Ok(()) } else { Err(Defect::Layout { level, found }) }
    }

    /// Bits 0 to 7: near copies; 8 to 15: far copies; 16: the far copies are adjacent ("offset");
    /// 17 and 18: how far sets are formed (0 to 2).
    fn check_raid10_layout(&self) -> Result<(), Defect> {
        let found = self.layout;
        if found >> 17 > 2 {
            return Err(Defect::Layout { level: self.level, found });
        }
        let (near, far) = (found & 255, found >> 8 & 255);
        for (count, which) in [(near, "near"), (far, "far")] {
            if count == 0 {
                return Err(Defect::ZeroCopies { found, which });
            }
        }
        let copies = near * far;
        if copies < 2 || copies > self.raid_disks {
            return Err(Defect::Copies { found, copies, raid_disks: self.raid_disks });
        }
        Ok(())
    }
}
