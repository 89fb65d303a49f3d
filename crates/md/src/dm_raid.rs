//! dm-raid: arrays with superblocks on separate devices, like LVM's RAID volumes.
//!
//! Each leg is a pair: a metadata device (LVM's `rmeta`) with a superblock in its first block and a
//! write-intent bitmap at 4 KiB, and a data device (`rimage`) with only data. This module converts them
//! to [`Candidate`]s with superblocks like those of md's own members, and [`crate::plan`] does the rest.
//!
//! Read-only: the converted superblocks are on no disk, and changes to them would be lost. So a plan must be
//! made with [`Options::read_only`](crate::Options::read_only), and with [`Options::run`](crate::Options::run)
//! if legs may be missing. docs/formats/dm-raid.md has the format.

use ashlar_block::{Gateway, Sector, Sectors, Status, ondisk_layout};
use thiserror::Error;
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Candidate;
use crate::ondisk::bitmap_super::{self, BitmapSuper};
use crate::ondisk::superblock_1::Block1;
use crate::ondisk::{
    DeviceFlags, Features, Level, MAGIC as MD_MAGIC, Role, Superblock, SuperblockError, Version,
};

/// "DmRd".
pub const MAGIC: u32 = 0x6452_6d44;
/// The fields from [`DmRaidSuperblock::flags`] on are valid (dm-raid 1.9.0, Linux 4.8).
pub const COMPAT_EXTENDED: u32 = 1;
/// Flag: the array is being reshaped.
pub const RESHAPE_ACTIVE: u32 = 1;
/// Most legs of an array.
pub const MAX_LEGS: usize = 253;
/// Where the bitmap is on a metadata device.
pub const BITMAP_AT: Sector = Sector(8);
/// Length of a bitmap that is read at a time: 1 MiB.
const BITMAP_STEP: Sectors = Sectors(2048);

/// The start of a metadata device (`struct dm_raid_superblock` of `drivers/md/dm-raid.c`).
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DmRaidSuperblock {
    /// [`MAGIC`].
    pub magic: U32,
    /// [`COMPAT_EXTENDED`], or 0 in old superblocks.
    pub compat_features: U32,
    /// Legs of the complete array.
    pub num_devices: U32,
    /// Index of this leg.
    pub array_position: U32,
    /// Event count. Of two superblocks of an array, the one with the higher count is newer.
    pub events: U64,
    /// A bit for each of the first 64 legs that has failed or is missing.
    pub failed_devices: U64,
    /// Sectors of this leg that have been rebuilt; all ones if it is complete.
    pub disk_recovery_offset: U64,
    /// Sectors (of a leg with raid1, of the array with raid10) whose copies are the same; all ones for
    /// everything.
    pub array_resync_offset: U64,
    /// md's number of the level.
    pub level: U32,
    /// md's layout.
    pub layout: U32,
    /// Sectors in a chunk.
    pub stripe_sectors: U32,
    /// [`RESHAPE_ACTIVE`].
    pub flags: U32,
    /// Position of a reshape.
    pub reshape_position: U64,
    /// Level that a reshape leads to.
    pub new_level: U32,
    /// Layout that a reshape leads to.
    pub new_layout: U32,
    /// Sectors in a chunk that a reshape leads to.
    pub new_stripe_sectors: U32,
    /// Legs that a reshape adds, signed.
    pub delta_disks: U32,
    /// Sectors of the array.
    pub array_sectors: U64,
    /// Where the data begins on the data device.
    pub data_offset: U64,
    /// Where the data will begin after a reshape.
    pub new_data_offset: U64,
    /// Sectors of the data device in use.
    pub sectors: U64,
    /// A bit for each further leg that has failed.
    pub extended_failed_devices: [U64; 3],
    /// Features that must be known.
    pub incompat_features: U32,
}

ondisk_layout!(DmRaidSuperblock, 148, {
    magic: 0, compat_features: 4, num_devices: 8, array_position: 12, events: 16,
    failed_devices: 24, disk_recovery_offset: 32, array_resync_offset: 40, level: 48, layout: 52,
    stripe_sectors: 56, flags: 60, reshape_position: 64, new_level: 72, new_layout: 76,
    new_stripe_sectors: 80, delta_disks: 84, array_sectors: 88, data_offset: 96,
    new_data_offset: 104, sectors: 112, extended_failed_devices: 120, incompat_features: 144,
});

impl DmRaidSuperblock {
    /// The superblock at the start of `bytes`, if there is one.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (sb, _) = Self::read_from_prefix(bytes).ok()?;
        (sb.magic.get() == MAGIC).then_some(sb)
    }

    fn is_extended(&self) -> bool {
        self.compat_features.get() & COMPAT_EXTENDED != 0
    }

    /// Whether it records the leg as failed.
    pub fn has_failed(&self, leg: usize) -> bool {
        let word = match leg / 64 {
            0 => self.failed_devices,
            further if self.is_extended() => {
                self.extended_failed_devices.get(further - 1).copied().unwrap_or_default()
            }
            _ => return false,
        };
        word.get() >> (leg % 64) & 1 == 1
    }
}

/// An array's parameters in the volume group's metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// `Raid0`, `Raid1`, `Raid5` (LVM's raid4, too), `Raid6` or `Raid10`.
    pub level: Level,
    /// Copies with raid10, in md's near layout; otherwise meaningless.
    pub copies: u8,
    /// md's layout with raid5 and raid6; otherwise meaningless.
    pub parity: u32,
    /// Sectors in a chunk (LVM's stripe size); zero with raid1.
    pub chunk: Sectors,
}

impl Shape {
    /// md's layout.
    fn layout(self) -> u32 {
        match self.level {
            Level::Raid10 => 1 << 8 | u32::from(self.copies),
            Level::Raid5 | Level::Raid6 => self.parity,
            Level::Linear
            | Level::Raid0
            | Level::Raid1
            | Level::Raid4
            | Level::Multipath
            | Level::Faulty
            | Level::Other(_) => 0,
        }
    }

    fn has_parity(self) -> bool {
        matches!(self.level, Level::Raid5 | Level::Raid6)
    }
}

/// The present devices of a leg. With raid0 `meta` may be missing; other levels need both.
#[derive(Clone, Default)]
pub struct Leg {
    /// Its metadata device.
    pub meta: Option<Gateway>,
    /// Its data device.
    pub data: Option<Gateway>,
}

/// The legs that make an array.
pub struct ArrayLegs {
    /// For [`crate::plan`], all of one array.
    pub candidates: Vec<Candidate>,
    /// Legs left out, and why.
    pub notes: Vec<String>,
}

/// Why legs cannot form an array.
#[derive(Debug, Error)]
pub enum DmRaidError {
    /// A level that is not supported.
    #[error("{0:?} volumes are not supported, only raid0, raid1, raid5, raid6 and raid10")]
    Level(Level),
    /// Too many legs, or none.
    #[error("the volume has {0} legs, but must have 1 to {MAX_LEGS}")]
    Legs(usize),
    /// No leg has a superblock.
    #[error("no leg of the volume has a dm-raid superblock: {notes}")]
    NoSuperblock {
        /// The notes about the legs.
        notes: String,
    },
    /// A reshape is under way.
    #[error("the volume is being reshaped ({path}): let the kernel finish that first")]
    Reshaping {
        /// The metadata device that says so.
        path: String,
    },
    /// The data begins after room for a reshape.
    #[error(
        "the data of the volume begins at sector {found} of its legs ({path}), as a reshape leaves it: \
         let LVM remove that room first"
    )]
    DataOffset {
        /// The metadata device that says so.
        path: String,
        /// The sector.
        found: u64,
    },
    /// Unknown features.
    #[error("{path} has unknown features (compatible {compat:#x}, incompatible {incompat:#x})")]
    Features {
        /// The metadata device.
        path: String,
        /// Compatible features: programs that do not know them may ignore them.
        compat: u32,
        /// Incompatible features.
        incompat: u32,
    },
    /// The volume group and the superblock disagree.
    #[error(
        "{path} has {what} {found}, the volume group {wanted}: let the kernel finish that conversion first"
    )]
    Disagree {
        /// The metadata device.
        path: String,
        /// What they disagree about.
        what: &'static str,
        /// The value in the superblock.
        found: u32,
        /// The value in the volume group.
        wanted: u32,
    },
    /// The parameters cannot form an array.
    #[error("leg {leg} cannot be a member of an array: {error}")]
    Impossible {
        /// The leg.
        leg: usize,
        /// Why not.
        error: SuperblockError,
    },
}

/// A leg that is present.
struct Member {
    leg: usize,
    /// May be `None` with raid0.
    sb: Option<DmRaidSuperblock>,
    data: Gateway,
}

/// The candidates of an array from its legs; slot `n` is `legs[n]`. `uuid` identifies the array: use
/// the volume's. Nothing is written.
///
/// Legs that are missing, unreadable or were never written are left out with a note. [`crate::plan`]
/// handles the state in the superblocks (a leg failed, is not rebuilt, is out of date), also with
/// notes.
///
/// # Errors
/// See [`DmRaidError`].
pub async fn candidates(uuid: Uuid, shape: Shape, legs: &[Leg]) -> Result<ArrayLegs, DmRaidError> {
    let is_known = matches!(shape.level, Level::Raid0 | Level::Raid1 | Level::Raid10);
    if !is_known && !shape.has_parity() {
        return Err(DmRaidError::Level(shape.level));
    }
    if legs.is_empty() || legs.len() > MAX_LEGS {
        return Err(DmRaidError::Legs(legs.len()));
    }
    let (mut members, mut notes) = (Vec::new(), Vec::new());
    for (number, leg) in legs.iter().enumerate() {
        match look_at(number, leg, shape.level).await {
            Ok(member) => members.push((leg, member)),
            Err(note) => notes.push(format!("leg {number} left out: {note}")),
        }
    }
    for (leg, Member { sb, leg: leg_number, .. }) in &members {
        let path = || leg.meta.as_ref().map_or_else(String::new, |meta| name(meta).to_owned());
        sb.iter().try_for_each(|sb| check(sb, path(), shape, (*leg_number, legs.len())))?;
    }
    let freshest = members.iter().filter_map(|(_, member)| member.sb.as_ref());
    let freshest = freshest.max_by_key(|sb| sb.events.get()).cloned();
    if freshest.is_none() && shape.level != Level::Raid0 {
        return Err(DmRaidError::NoSuperblock { notes: notes.join("; ") });
    }
    let size = members.iter().map(|(_, member)| member.data.capacity()).min().unwrap_or_default();
    let in_sync_to = match &freshest {
        Some(sb) => in_sync_to(sb, (shape, legs.len()), size, &members, &mut notes).await,
        None => Sectors::MAX,
    };
    let mut positions: Vec<usize> = (0..legs.len()).collect();
    for (_, member) in &members {
        if let Some(sb) = &member.sb {
            positions[member.leg] = sb.array_position.get() as usize;
        }
    }
    let array = SharedProperties { uuid, shape, legs: legs.len(), size, in_sync_to, positions };
    let candidates: Result<Vec<Candidate>, _> =
        members.iter().map(|(_, member)| array.candidate(member)).collect();
    Ok(ArrayLegs { candidates: candidates?, notes })
}

fn name(gateway: &Gateway) -> &str {
    gateway.disk().name()
}

/// The leg, or a note on why it is not used.
async fn look_at(leg: usize, of: &Leg, level: Level) -> Result<Member, String> {
    let data = of.data.clone().ok_or("its data device is missing")?;
    let Some(meta) = &of.meta else {
        // LVM's plain raid0 has no metadata devices.
        let raid0 = level == Level::Raid0;
        return if raid0 {
            Ok(Member { leg, sb: None, data })
        } else {
            Err("its metadata device is missing".to_owned())
        };
    };
    let sb = read_superblock(meta).await.map_err(|status| format!("{}: {status}", name(meta)))?;
    if sb.is_none() && level != Level::Raid0 {
        return Err(format!("{} has no superblock, so it was never written", name(meta)));
    }
    Ok(Member { leg, sb, data })
}

async fn read_superblock(meta: &Gateway) -> Result<Option<DmRaidSuperblock>, Status> {
    let block = meta.disk().limits().logical_block();
    if meta.capacity() < block {
        return Ok(None);
    }
    Ok(DmRaidSuperblock::parse(meta.read(Sector::ZERO, block).await?.as_slice()))
}

/// Checks that a superblock's array can be read, and that it agrees with the volume group.
fn check(
    sb: &DmRaidSuperblock,
    path: String,
    shape: Shape,
    (leg, legs): (usize, usize),
) -> Result<(), DmRaidError> {
    let (compat, incompat) = (sb.compat_features.get(), sb.incompat_features.get());
    let extended = sb.is_extended();
    if compat & !COMPAT_EXTENDED != 0 || (extended && incompat != 0) {
        return Err(DmRaidError::Features { path, compat, incompat });
    }
    if extended {
        if sb.flags.get() & RESHAPE_ACTIVE != 0 {
            return Err(DmRaidError::Reshaping { path });
        }
        let found = sb.data_offset.get();
        if found != 0 {
            return Err(DmRaidError::DataOffset { path, found });
        }
    }
    let striped = shape.level != Level::Raid1;
    let chunk = shape.chunk.0 as u32;
    let facts = [
        ("level", true, sb.level.get(), shape.level.raw() as u32),
        ("layout", shape.layout() != 0 || shape.has_parity(), sb.layout.get(), shape.layout()),
        ("a chunk size of", striped, sb.stripe_sectors.get(), chunk),
        // Legs of raid1 can be added and removed; the number of other levels' legs is fixed.
        ("a number of legs of", striped, sb.num_devices.get(), legs as u32),
        ("the place of leg", striped, sb.array_position.get(), leg as u32),
    ];
    match facts.into_iter().find(|(_, matters, found, wanted)| *matters && found != wanted) {
        Some((what, _, found, wanted)) => Err(DmRaidError::Disagree { path, what, found, wanted }),
        None => Ok(()),
    }
}

/// How far copies are the same, or parity is right: as far as the freshest superblock says, but nowhere if a bitmap has
/// marks, because then only some copies may have the last writes.
///
/// Marks of a volume with parity that lacks a leg stay until it has one again, so they do not say whether it was stopped cleanly. As in the
/// kernel it is read then, with a note.
async fn in_sync_to(
    freshest: &DmRaidSuperblock,
    (Shape { level, .. }, legs): (Shape, usize),
    size: Sectors,
    members: &[(&Leg, Member)],
    notes: &mut Vec<String>,
) -> Sectors {
    if level == Level::Raid0 {
        return Sectors::MAX;
    }
    let known = Sectors(freshest.array_resync_offset.get());
    let sectors = Sectors(freshest.sectors.get());
    // The legs have grown, and the new part has not been synced.
    let grown = freshest.is_extended() && sectors < size;
    // The point counts sectors of the array, or with parity of the legs.
    let is_of_legs = matches!(level, Level::Raid1 | Level::Raid5 | Level::Raid6);
    let known = match (grown, is_of_legs) {
        (false, _) => known,
        (true, true) => known.min(sectors),
        (true, false) => Sectors::ZERO,
    };
    let in_sync = |sb: &DmRaidSuperblock| {
        let current = sb.events.get().saturating_add(1) >= freshest.events.get();
        let complete = sb.disk_recovery_offset.get() == u64::MAX;
        current && complete && !freshest.has_failed(sb.array_position.get() as usize)
    };
    let here = || members.iter().filter(|(_, member)| member.sb.as_ref().is_some_and(in_sync));
    for (leg, _) in here() {
        let Some(meta) = &leg.meta else { continue };
        if bitmap_is_clean(meta, freshest.events.get()).await.unwrap_or(false) {
            continue;
        }
        if !matches!(level, Level::Raid5 | Level::Raid6) || here().count() == legs {
            return Sectors::ZERO;
        }
        let text = "a leg is missing, and the bitmap has marks: if the volume was not stopped cleanly, data recovered for \
                    that leg may be wrong where writes were in flight";
        notes.push(text.to_owned());
        break;
    }
    known
}

/// Whether the bitmap on a metadata device says that no write was under way. False if it is out of
/// date.
async fn bitmap_is_clean(meta: &Gateway, events: u64) -> Result<bool, Status> {
    let len = Sectors::from_bytes_ceil(bitmap_super::SIZE as u64)
        .round_up(meta.disk().limits().logical_block());
    let end = meta.capacity().as_end();
    if BITMAP_AT + len > end {
        return Ok(false);
    }
    let head = meta.read(BITMAP_AT, len).await?;
    let Ok(bitmap) = BitmapSuper::parse(head.as_slice()) else { return Ok(false) };
    let stale =
        bitmap.state.get() & bitmap_super::state::STALE != 0 || bitmap.events.get() < events;
    let bytes = (bitmap_super::SIZE as u64).saturating_add(bitmap.bits().div_ceil(8));
    let last = BITMAP_AT + Sectors::from_bytes_ceil(bytes);
    if stale || bitmap.is_lockless() || last > end {
        return Ok(false);
    }
    let last = last.round_up(meta.disk().limits().logical_block()).min(end);
    let mut at = BITMAP_AT;
    let (mut skip, mut left) = (bitmap_super::SIZE, bytes - bitmap_super::SIZE as u64);
    while at < last {
        let step = BITMAP_STEP.min(last - at);
        let read = meta.read(at, step).await?;
        let marks = &read.as_slice()[skip..];
        let marks = &marks[..marks.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
        if marks.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        (skip, left) = (0, left - marks.len() as u64);
        at += step;
    }
    Ok(true)
}

/// Properties that the superblocks of all members share.
struct SharedProperties {
    uuid: Uuid,
    shape: Shape,
    legs: usize,
    size: Sectors,
    in_sync_to: Sectors,
    /// The position of each leg when its superblock was written: legs of raid1 may change places, and
    /// superblocks record failures by the old positions.
    positions: Vec<usize>,
}

impl SharedProperties {
    /// A data offset that leaves room for md's superblock.
    const DATA_OFFSET: Sectors = Sectors(16);

    fn candidate(&self, member: &Member) -> Result<Candidate, DmRaidError> {
        let mut block = Block1::new_zeroed();
        let (header, shape) = (&mut block.header, self.shape);
        let capacity = member.data.capacity();
        header.magic = MD_MAGIC.into();
        header.major_version = 1.into();
        header.set_uuid = self.uuid.into_bytes();
        header.level = (shape.level.raw() as u32).into();
        header.layout = shape.layout().into();
        header.size = if shape.level == Level::Raid0 { 0 } else { self.size.0 }.into();
        header.chunksize = (shape.chunk.0 as u32).into();
        header.raid_disks = (self.legs as u32).into();
        header.data_offset = Self::DATA_OFFSET.0.into();
        header.data_size = capacity.0.into();
        header.dev_number = (member.leg as u32).into();
        header.device_uuid = Uuid::from_u128(member.leg as u128 + 1).into_bytes();
        header.resync_offset = self.in_sync_to.0.into();
        header.max_dev = (self.legs as u32).into();
        // A leg of raid0 cannot be out of date, and cannot be left out as failed.
        let sb = member.sb.as_ref().filter(|_| shape.level != Level::Raid0);
        if let Some(sb) = sb {
            header.events = sb.events.get().into();
            let rebuilt = sb.disk_recovery_offset.get();
            if rebuilt != u64::MAX {
                header.feature_map = Features::RECOVERY_OFFSET.bits().into();
                header.recovery_offset = rebuilt.into();
            }
        }
        let failed = |leg| sb.is_some_and(|sb| sb.has_failed(self.positions[leg]));
        for (leg, role) in block.dev_roles.iter_mut().enumerate().take(self.legs) {
            let of = if failed(leg) { Role::Faulty } else { Role::Active(leg as u16) };
            *role = of.raw().into();
        }
        block.seal();
        let device = Self::DATA_OFFSET + capacity;
        let sb = Superblock::from_block_1(Box::new(block), Version::V1_1, device);
        let mut sb = sb.map_err(|error| DmRaidError::Impossible { leg: member.leg, error })?;
        sb.data_offset = Sector::ZERO;
        sb.flags = DeviceFlags::default();
        let path = name(&member.data).to_owned();
        Ok(Candidate { gateway: member.data.clone(), path, sb: Box::new(sb) })
    }
}
