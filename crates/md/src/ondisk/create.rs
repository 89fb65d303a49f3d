//! New superblocks, exactly as `mdadm --create` of mdadm 4.2 makes them.
//!
//! mdadm's choices are not part of the format, but users compare: an array made by ashlar has the
//! same data offset, sizes, bitmap and bad block log places as one made by mdadm, down to the checksum.
//! The golden images in `tests/images/md/create` verify that.

use ashlar_block::units::{Sector, Sectors};
use zerocopy::FromZeros;

use super::bitmap_super::{self, BitmapSuper};
use super::create_0_90::{self, SharedContents};
use super::fields::{Features, Level, MAGIC, MAX_ROLES, Role, Timestamp, Version, swap_words};
use super::ppl::MAX_MEMBERS;
use super::superblock::{Superblock, refusal, set_name_bytes};
use super::superblock_1::{Block1, HEADER_SIZE};
use super::validate;

pub use super::spec::{
    CreateError, CreateSpec, DeviceNumbers, NewBitmap, NewMember, NewSuperblock, full_name,
};

/// RAID0 layout 1: as Linux did before 3.14. The default.
pub const RAID0_ORIGINAL: u32 = 1;
/// RAID0 layout 2: as Linux does since 3.14.
pub const RAID0_ALTERNATE: u32 = 2;
/// RAID10 layout "near=2", the default.
pub const RAID10_NEAR_2: u32 = 0x102;
/// mdadm's layout of RAID 5 and 6.
pub const LEFT_SYMMETRIC: u32 = 2;
/// Chunk size of striped levels if none is given: 512 KiB.
pub const DEFAULT_CHUNK: Sectors = Sectors(1024);
/// Default seconds between clearings of bitmap bits.
pub const DEFAULT_DAEMON_SLEEP: u32 = 5;

/// Smallest bitmap chunk in bytes that mdadm chooses by default.
const USUAL_BITMAP_CHUNK: u64 = 64 << 20;
/// Member size above which mdadm adds a bitmap by default: 100 GiB.
const BITMAP_UNASKED_ABOVE: Sectors = Sectors(100 << 21);
/// Sectors of a bad block log.
pub(super) const BAD_BLOCK_LOG: u64 = 8;
/// Sectors from the superblock to the bitmap, if the superblock is before the data.
pub(super) const BITMAP_OFFSET: u64 = 8;
/// Most sectors of a bitmap with the default chunk size, and of a lockless one: 128 KiB.
pub(super) const USUAL_BITMAP_SPACE: u64 = 256;
/// Sectors of a partial parity log: 1 MiB.
const PPL_SPACE: u64 = 2048;
const ONE_MIB: u64 = 2048;
const BITMAP_SUPER_SIZE: u64 = bitmap_super::SIZE as u64;

/// Creates the superblocks of a new array, by member number; `None` for missing members.
///
/// # Errors
/// Why such an array is impossible: see [`CreateError`].
pub fn create(spec: &CreateSpec) -> Result<Vec<Option<NewSuperblock>>, CreateError> {
    let plan = Plan::new(spec)?;
    let shape = (plan.size, plan.layout, plan.chunk);
    let bitmap = plan.bitmap.as_ref().map(|(_, bitmap)| bitmap.clone());
    let old = spec.version == Version::V0_90;
    let old = old.then(|| SharedContents::new(spec, shape, bitmap)).transpose()?;
    let member = |number, member: &NewMember| match &old {
        Some(shared) => shared.member(number, member),
        None => plan.member(spec, number, member),
    };
    let numbered = spec.members.iter().enumerate();
    numbered.map(|(number, m)| m.as_ref().map(|m| member(number, m)).transpose()).collect()
}

/// What all members share.
struct Plan {
    chunk: Sectors,
    layout: u32,
    data_offset: Sectors,
    size: Sectors,
    bitmap: Option<(i32, BitmapSuper)>,
    features: Features,
}

impl Plan {
    fn new(spec: &CreateSpec) -> Result<Self, CreateError> {
        check_members(spec)?;
        let level = spec.level;
        let lockless = spec.bitmap == NewBitmap::Lockless;
        meaningless_if(lockless && level.has_parity(), level, LOCKLESS)?;
        let may_log = level == Level::Raid5 && spec.raid_devices as usize <= MAX_MEMBERS;
        meaningless_if(spec.ppl && !may_log, level, "partial parity log")?;
        if spec.ppl && spec.version == Version::V0_90 {
            return Err(CreateError::PplVersion);
        }
        let (chunk, layout) = match level {
            Level::Raid0 => {
                (spec.chunk.unwrap_or(DEFAULT_CHUNK), spec.layout.unwrap_or(RAID0_ORIGINAL))
            }
            Level::Raid10 => {
                (spec.chunk.unwrap_or(DEFAULT_CHUNK), spec.layout.unwrap_or(RAID10_NEAR_2))
            }
            Level::Raid1 => {
                meaningless_if(spec.chunk.is_some_and(|chunk| chunk.0 != 0), level, "chunk size")?;
                meaningless_if(spec.layout.is_some_and(|layout| layout != 0), level, "layout")?;
                (Sectors::ZERO, 0)
            }
            // What members are rounded down to.
            Level::Linear => {
                meaningless_if(spec.layout.is_some_and(|layout| layout != 0), level, "layout")?;
                (spec.chunk.unwrap_or(Sectors::ZERO), 0)
            }
            Level::Raid4 => {
                meaningless_if(spec.layout.is_some_and(|layout| layout != 0), level, "layout")?;
                (spec.chunk.unwrap_or(DEFAULT_CHUNK), 0)
            }
            Level::Raid5 | Level::Raid6 => {
                (spec.chunk.unwrap_or(DEFAULT_CHUNK), spec.layout.unwrap_or(LEFT_SYMMETRIC))
            }
            Level::Multipath | Level::Faulty | Level::Other(_) => {
                return Err(CreateError::Level(level));
            }
        };
        let first = spec.members.iter().flatten().next().ok_or(CreateError::Missing(level))?;
        let data_offset = match (spec.version, spec.data_offset) {
            (Version::V1_0, Some(offset)) if offset.0 != 0 => {
                return Err(CreateError::Meaningless { level, what: "data offset in version 1.0" });
            }
            (_, Some(offset)) => offset,
            (_, None) => choose_data_offset(spec, first.device, chunk),
        };
        let size = choose_size(spec, chunk, data_offset)?;
        if spec.version == Version::V0_90 {
            create_0_90::check(spec, size)?;
        }
        let mut plan =
            Self { chunk, layout, data_offset, size, bitmap: None, features: Features::default() };
        if spec.ppl {
            // Linux sets the other bit when it starts the array.
            plan.features |= Features::PPL;
        }
        if plan.wants_bitmap(spec)? {
            plan.bitmap = Some(plan.new_bitmap(spec)?);
            plan.features |= Features::BITMAP_OFFSET;
        }
        if level == Level::Raid0 && layout != 0 && plan.members_differ(spec) {
            plan.features |= Features::RAID0_LAYOUT;
        }
        Ok(plan)
    }

    fn wants_bitmap(&self, spec: &CreateSpec) -> Result<bool, CreateError> {
        match spec.bitmap {
            NewBitmap::None => Ok(false),
            NewBitmap::Internal { .. } | NewBitmap::Lockless if spec.ppl => {
                let what = "bitmap beside a partial parity log";
                Err(CreateError::Meaningless { level: spec.level, what })
            }
            NewBitmap::Auto if spec.ppl => Ok(false),
            NewBitmap::Auto => Ok(spec.level.is_redundant()
                && (spec.write_behind != 0 || self.size > BITMAP_UNASKED_ABOVE)),
            NewBitmap::Internal { .. } | NewBitmap::Lockless => {
                meaningless_if(!spec.level.is_redundant(), spec.level, "bitmap")?;
                Ok(true)
            }
        }
    }

    /// The bitmap's offset from the member's superblock, and the bitmap's superblock.
    fn new_bitmap(&self, spec: &CreateSpec) -> Result<(i32, BitmapSuper), CreateError> {
        // A bitmap covers the members' sectors, but with RAID10 the array's.
        let covered = if spec.level == Level::Raid10 {
            let copies = u64::from((self.layout & 255) * (self.layout >> 8 & 255)).max(1);
            Sectors((self.size.0 / 2).saturating_mul(spec.raid_devices.into()) / copies * 2)
        } else {
            self.size
        };
        let (uuid, old) = (spec.set_uuid.into_bytes(), spec.version == Version::V0_90);
        let uuid = if old { swap_words(uuid) } else { uuid };
        if spec.bitmap == NewBitmap::Lockless {
            let at = spec.version.super_offset(Sectors::MAX).unwrap_or_default();
            if spec.version != Version::V1_2 {
                return Err(CreateError::LocklessVersion(spec.version));
            }
            let room = self.data_offset.0.saturating_sub(at.0 + BITMAP_OFFSET + BAD_BLOCK_LOG);
            let sb = lockless(uuid, covered, room, spec.daemon_sleep, spec.assume_clean)?;
            return Ok((BITMAP_OFFSET as i32, sb));
        }
        let room = if old { create_0_90::BITMAP_SPACE } else { bitmap_space(self.size) };
        let chunk = bitmap_chunk(spec.bitmap, covered, room)?;
        let sb = BitmapSuper::new(uuid, covered, chunk, spec.daemon_sleep, spec.write_behind);
        let offset = match spec.version {
            Version::V1_0 => before_superblock(covered, chunk, BAD_BLOCK_LOG),
            Version::V0_90 | Version::V1_1 | Version::V1_2 => BITMAP_OFFSET as i32,
        };
        Ok((offset, sb))
    }

    /// Whether a RAID0 must record its layout. mdadm compares sizes in bytes divided by the chunk size
    /// in sectors, which is finer than needed; the same is done here.
    fn members_differ(&self, spec: &CreateSpec) -> bool {
        let own_offset = spec.data_offset.unwrap_or_default().0;
        let chunk = self.chunk.0.max(1);
        let mut rows = spec
            .members
            .iter()
            .flatten()
            .map(|member| member.device.bytes().saturating_sub(own_offset) / chunk);
        let first = rows.next();
        rows.any(|other| Some(other) != first)
    }

    fn member(
        &self,
        spec: &CreateSpec,
        number: usize,
        member: &NewMember,
    ) -> Result<NewSuperblock, CreateError> {
        let refused = refusal(spec.version, member.device);
        let too_small = || refused(validate::too_small(spec.version, member.device));
        let at = spec.version.super_offset(member.device).ok_or_else(too_small)?;
        let mut block = self.shared_block(spec)?;
        let header = &mut block.header;
        header.dev_number = (number as u32).into();
        header.device_uuid = member.device_uuid.into_bytes();
        header.devflags = member.flags.merge_into(0);
        header.super_offset = at.0.into();
        header.data_offset = self.data_offset.0.into();
        let (data_size, log) = self.places(spec, at, member.device);
        header.data_size = data_size.0.into();
        if let Some(offset) = log.filter(|_| spec.bad_block_log) {
            header.bblog_size = (BAD_BLOCK_LOG as u16).into();
            header.bblog_offset = (offset as u32).into();
        }
        block.seal();
        let superblock = Superblock::from_block_1(block, spec.version, member.device)?;
        let bitmap = self.bitmap.as_ref().map(|(_, sb)| sb.clone());
        Ok(NewSuperblock { superblock, bitmap })
    }

    /// The part of the superblock that is the same on all members.
    fn shared_block(&self, spec: &CreateSpec) -> Result<Box<Block1>, CreateError> {
        let mut block = Box::new(Block1::new_zeroed());
        let header = &mut block.header;
        header.magic = MAGIC.into();
        header.major_version = 1.into();
        header.feature_map = self.features.bits().into();
        header.set_uuid = spec.set_uuid.into_bytes();
        header.set_name = set_name_bytes(&spec.name).ok_or(CreateError::Name)?;
        header.ctime = Timestamp::from_seconds(spec.ctime).raw().into();
        header.utime = header.ctime;
        header.level = (spec.level.raw() as u32).into();
        header.layout = self.layout.into();
        header.size = self.size.0.into();
        let chunk = u32::try_from(self.chunk.0);
        let level = spec.level;
        let too_large = |_| CreateError::Meaningless { level, what: "chunk of 2 TiB or more" };
        header.chunksize = chunk.map_err(too_large)?.into();
        header.raid_disks = spec.raid_devices.into();
        if let Some((offset, _)) = self.bitmap {
            header.bitmap_offset = (offset as u32).into();
        } else if spec.ppl {
            let offset = match spec.version {
                Version::V1_0 => -((PPL_SPACE + BAD_BLOCK_LOG) as i16),
                Version::V0_90 | Version::V1_1 | Version::V1_2 => BITMAP_OFFSET as i16,
            };
            let raw = (PPL_SPACE as u32) << 16 | u32::from(offset as u16);
            header.bitmap_offset = raw.into();
        }
        if spec.assume_clean || !spec.level.is_redundant() {
            header.resync_offset = u64::MAX.into();
        }
        header.max_dev = (role_table_len(spec) as u32).into();
        block.dev_roles = [Role::Spare.raw().into(); MAX_ROLES];
        let active = spec.members.iter().take(spec.raid_devices as usize);
        for ((slot, member), entry) in (0..).zip(active).zip(&mut block.dev_roles) {
            if member.is_some() {
                *entry = Role::Active(slot).raw().into();
            }
        }
        Ok(block)
    }

    /// The size of the data area and the place of the bad block log relative to the superblock.
    fn places(&self, spec: &CreateSpec, at: Sector, device: Sectors) -> (Sectors, Option<i32>) {
        let bitmap = match &self.bitmap {
            Some((_, sb)) if sb.is_lockless() => sb.sectors_reserved.get().into(),
            Some((_, sb)) => sb.total_bytes(4096) >> 9,
            None => reserved_space(spec, self.size),
        };
        if spec.version == Version::V1_0 {
            // All space between the used size and the superblock can be reserved.
            let reserved = (bitmap + BAD_BLOCK_LOG).min(at.0.saturating_sub(self.size.0));
            let log = (reserved >= BAD_BLOCK_LOG).then_some(-(BAD_BLOCK_LOG as i32));
            return (Sectors(at.0 - reserved), log);
        }
        let data = self.data_offset.0;
        let behind_bitmap = BITMAP_OFFSET + bitmap;
        let log = if data >= at.0 + behind_bitmap + BAD_BLOCK_LOG {
            Some(behind_bitmap)
        } else if data >= at.0 + 16 {
            Some(data - BAD_BLOCK_LOG - at.0)
        } else {
            None
        };
        let log = log.and_then(|offset| i32::try_from(offset).ok());
        (Sectors(device.0.saturating_sub(data)), log)
    }
}

fn check_members(spec: &CreateSpec) -> Result<(), CreateError> {
    let given = spec.members.len();
    if given < spec.raid_devices as usize || spec.raid_devices == 0 {
        return Err(CreateError::TooFewMembers { given, needed: spec.raid_devices.max(1) });
    }
    if given > MAX_ROLES {
        return Err(CreateError::TooManyMembers { given });
    }
    if !spec.level.is_redundant() {
        if spec.members.iter().any(Option::is_none) {
            return Err(CreateError::Missing(spec.level));
        }
        if given > spec.raid_devices as usize {
            return Err(CreateError::Spares(spec.level));
        }
    }
    Ok(())
}

/// Of what was never written there is no parity, which a lockless bitmap counts as right.
pub(super) const LOCKLESS: &str = "lockless bitmap here";

fn meaningless_if(given: bool, level: Level, what: &'static str) -> Result<(), CreateError> {
    if given { Err(CreateError::Meaningless { level, what }) } else { Ok(()) }
}

/// Entries of the role table: as many as fit into the sectors that the members need.
fn role_table_len(spec: &CreateSpec) -> usize {
    let active = spec.raid_devices as usize;
    let spares = spec.members.iter().skip(active).flatten().count();
    let bytes = (HEADER_SIZE + 2 * (active + spares)).next_multiple_of(512);
    (bytes - HEADER_SIZE) / 2
}

/// A new lockless bitmap with at most `room` sectors.
pub(super) fn lockless(
    uuid: [u8; 16],
    covered: Sectors,
    room: u64,
    sleep: u32,
    clean: bool,
) -> Result<BitmapSuper, CreateError> {
    if room < BITMAP_OFFSET {
        return Err(CreateError::NoRoomForBitmap);
    }
    let reserved = room.min(USUAL_BITMAP_SPACE) as u32;
    Ok(BitmapSuper::new_lockless(uuid, covered, reserved, sleep, clean))
}

/// Bytes per bit of a bitmap that covers `covered` sectors and has `room` sectors.
pub(super) fn bitmap_chunk(
    wanted: NewBitmap,
    covered: Sectors,
    room: u64,
) -> Result<u32, CreateError> {
    if room <= 1 {
        return Err(CreateError::NoRoomForBitmap);
    }
    let max_bits = (room * 512 - BITMAP_SUPER_SIZE) * 8;
    let mut min = 4096;
    let mut bits = covered.bytes() / min + 1;
    while bits > max_bits {
        min *= 2;
        bits = bits.div_ceil(2);
    }
    if min > u64::from(u32::MAX) {
        return Err(CreateError::TooLargeForBitmap);
    }
    let chunk = match wanted {
        NewBitmap::Internal { chunk: Some(chunk) } => chunk,
        NewBitmap::Internal { chunk: None }
        | NewBitmap::Auto
        | NewBitmap::None
        | NewBitmap::Lockless => min.max(USUAL_BITMAP_CHUNK),
    };
    if chunk < min || !chunk.is_power_of_two() {
        return Err(CreateError::BitmapChunk { chunk, min });
    }
    u32::try_from(chunk).map_err(|_| CreateError::BitmapChunk { chunk, min })
}

/// Offset of a bitmap that ends `behind` sectors before the superblock and begins on a whole page.
pub(super) fn before_superblock(covered: Sectors, chunk: u32, behind: u64) -> i32 {
    let bits = covered.bytes() / u64::from(chunk) + 1;
    let pages = (bits.div_ceil(8) + BITMAP_SUPER_SIZE).div_ceil(4096);
    -((pages * 8 + behind) as i32)
}

/// Sectors reserved for a bitmap that may be added later.
fn bitmap_space(size: Sectors) -> u64 {
    const GIB: u64 = 2 << 20;
    match size.0 {
        0..128 => 0,
        size if size - 128 >= 200 * GIB => 256,
        size if size - 8 > 8 * GIB => 128,
        _ => 8,
    }
}

/// Sectors reserved for the partial parity log, or for a bitmap.
fn reserved_space(spec: &CreateSpec, size: Sectors) -> u64 {
    if spec.ppl { PPL_SPACE } else { bitmap_space(size) }
}

/// Where data begins: after superblock, bitmap, bad block log and headroom for a later reshape, on a
/// MiB boundary. The headroom is about a thousandth of the device, at most 128 MiB, and at least two
/// chunks.
fn choose_data_offset(spec: &CreateSpec, device: Sectors, chunk: Sectors) -> Sectors {
    if matches!(spec.version, Version::V0_90 | Version::V1_0) {
        return Sectors::ZERO;
    }
    let mut headroom: u64 = 128 * ONE_MIB;
    while headroom << 10 > device.0 && (chunk.0 == 0 || headroom / 2 >= chunk.0 * 2) {
        headroom >>= 1;
    }
    Sectors((24 + reserved_space(spec, device) + headroom).next_multiple_of(ONE_MIB))
}

/// Sectors to use of each member. mdadm counts in KiB.
fn choose_size(
    spec: &CreateSpec,
    chunk: Sectors,
    data_offset: Sectors,
) -> Result<Sectors, CreateError> {
    let whole_chunks = |size: Sectors| match chunk.0 {
        0 => size,
        _ => size.round_down(chunk),
    };
    let wanted = whole_chunks(spec.size.unwrap_or_default().round_down(Sectors(2)));
    if spec.size.is_some_and(|size| size.0 != 0) && wanted.is_zero() {
        return Err(CreateError::SizeBelowChunk { chunk });
    }
    // So that a RAID1 could be reshaped to a striped level. mdadm allows a result of zero, which
    // means "all" to the kernel; such an array has at most 64 KiB.
    let granule = if spec.level == Level::Raid1 && wanted.is_zero() { 128 } else { 2 };
    let mut least = Sectors::MAX;
    for (number, member) in spec.members.iter().enumerate() {
        let Some(member) = member else { continue };
        let room = room_for_data(spec, member.device, data_offset);
        let room = whole_chunks(room.unwrap_or_default().round_down(Sectors(granule)));
        if room.is_zero() {
            return Err(CreateError::NoRoom { number, device: member.device });
        }
        if room < wanted {
            return Err(CreateError::TooSmall { number, room, size: wanted });
        }
        least = least.min(room);
    }
    if !wanted.is_zero() {
        return Ok(wanted);
    }
    if matches!(spec.level, Level::Raid0 | Level::Linear) {
        // They use all of each member, even if sizes differ.
        return Ok(Sectors::ZERO);
    }
    Ok(least)
}

fn room_for_data(spec: &CreateSpec, device: Sectors, data_offset: Sectors) -> Option<Sectors> {
    let (device, overhead) = match spec.version {
        Version::V0_90 => return spec.version.super_offset(device).map(|at| Sectors(at.0)),
        Version::V1_0 => (device.0 & !7, 16 + BAD_BLOCK_LOG + reserved_space(spec, device)),
        Version::V1_1 | Version::V1_2 => (device.0, data_offset.0),
    };
    device.checked_sub(overhead).map(Sectors)
}
