//! The neutral form of a superblock of any version: the form that the rest of the crate reads and changes.

use core::fmt;
use core::ops::Range;

use ashlar_block::units::{Sector, Sectors};
use uuid::Uuid;
use zerocopy::IntoBytes;

use super::defect::{Defect, SuperblockError};
use super::fields::{
    DeviceFlags, Features, Level, MAX_ROLES, Role, Timestamp, Version, swap_words,
};
use super::ppl::{self, PplPlace};
use super::superblock_0_90::{self, Block090};
use super::superblock_1::{self, Block1};
use super::{text, validate};

/// The block as read.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum RawBlock {
    V1(Box<Block1>),
    V090(Box<Block090>),
}

impl fmt::Debug for RawBlock {
    /// Omits the 4 KiB: their contents are in the other fields.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let checksum = match self {
            Self::V1(block) => block.header.sb_csum,
            Self::V090(block) => block.sb_csum,
        };
        write!(f, "checksum {:#010x}", checksum.get())
    }
}

/// A superblock that passed all checks.
///
/// Fields may be changed and written back with [`encode`](Self::encode), which documents what each
/// version can record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    pub(super) raw: RawBlock,
    device: Sectors,
    read_as: Version,
    /// Version, which also determines the superblock's place.
    pub version: Version,
    /// Identity of the array.
    pub set_uuid: Uuid,
    /// Name of the array, usually `host:name`; empty in 0.90.
    pub name: String,
    /// When the array was created.
    pub ctime: Timestamp,
    /// RAID level.
    pub level: Level,
    /// Layout; its meaning depends on the level. Zero for a RAID0 that does not record it.
    pub layout: u32,
    /// Chunk size; zero for levels without chunks.
    pub chunk: Sectors,
    /// Active members of a complete array.
    pub raid_disks: u32,
    /// Sectors used of each member; meaningless for RAID0 and linear.
    pub size: Sectors,
    /// Where data begins on this member.
    pub data_offset: Sector,
    /// How much data this member can hold.
    pub data_size: Sectors,
    /// Where this superblock is.
    pub super_offset: Sector,
    /// This member's index in `roles`.
    pub dev_number: u32,
    /// The role of each member ever used, by its number.
    pub roles: Vec<Role>,
    /// Event count. Of two superblocks of an array, the one with the higher count is newer.
    pub events: u64,
    /// How much of the array (of each member, for RAID1) is known to be in sync;
    /// [`Sectors::MAX`] means the array is clean.
    pub resync_offset: Sectors,
    /// How much of this member has been rebuilt; `None` unless a rebuild is under way. Writing sets
    /// [`Features::RECOVERY_OFFSET`] to match.
    pub recovery_offset: Option<Sectors>,
    /// Feature bits.
    pub features: Features,
    /// When this superblock was last updated.
    pub utime: Timestamp,
    /// Identity of this member; nil in 0.90.
    pub device_uuid: Uuid,
    /// Flags of this member.
    pub flags: DeviceFlags,
    /// Read errors of this member corrected so far.
    pub corrected_reads: u32,
    /// Sectors from the superblock to the bitmap, if there is one. Writing sets
    /// [`Features::BITMAP_OFFSET`] to match.
    pub bitmap_offset: Option<i32>,
    /// Place of the partial parity log, if the array has one.
    pub ppl: Option<PplPlace>,
    /// Place of the bad block log, if there is one. [`Features::BAD_BLOCKS`] says whether it lists
    /// anything.
    pub bad_block_log: Option<BadBlockLogPlace>,
    /// The reshape under way, if any. Corresponds to [`Features::RESHAPE_ACTIVE`].
    pub reshape: Option<Reshape>,
    /// Logical block size of the array in bytes, 0 if not recorded.
    pub logical_block_size: u32,
    /// A big-endian machine wrote it (0.90): it is read, and not written.
    pub is_big_endian: bool,
}

/// Where the bad block log is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadBlockLogPlace {
    /// Sectors from the superblock, signed.
    pub offset: i32,
    /// Its length, at most 8 sectors.
    pub len: Sectors,
    /// log2 of its unit in sectors.
    pub shift: u8,
}

/// A reshape under way. ashlar reads such an array; the kernel must finish the reshape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reshape {
    /// Next array sector to reshape.
    pub position: Sector,
    /// Change of the number of members.
    pub delta_disks: i32,
    /// Level it leads to.
    pub new_level: Level,
    /// Layout it leads to.
    pub new_layout: u32,
    /// Chunk size it leads to.
    pub new_chunk: Sectors,
    /// Change of `data_offset`, in sectors.
    pub new_offset: i32,
}

impl Superblock {
    /// Decodes the superblock of this version from `bytes`, which were read at
    /// [`Version::super_offset`] of a device with `device` sectors. Bytes beyond 4 KiB are ignored.
    ///
    /// # Errors
    /// What is wrong with it: see [`Defect`].
    pub fn parse(version: Version, bytes: &[u8], device: Sectors) -> Result<Self, SuperblockError> {
        let refused = refusal(version, device);
        let truncated = || {
            refused(Defect::Truncated { found: bytes.len(), wanted: superblock_0_90::BLOCK_SIZE })
        };
        match version {
            Version::V0_90 => {
                let (block, is_big_endian) = Block090::from_either(bytes).ok_or_else(truncated)?;
                Ok(Self { is_big_endian, ..Self::from_block_0_90(block, device)? })
            }
            Version::V1_0 | Version::V1_1 | Version::V1_2 => {
                let block = Block1::from_bytes(bytes).ok_or_else(truncated)?;
                Self::from_block_1(block, version, device)
            }
        }
    }

    /// Decodes a version 1 block from a device with `device` sectors.
    ///
    /// # Errors
    /// What is wrong with it: see [`Defect`].
    pub fn from_block_1(
        block: Box<Block1>,
        version: Version,
        device: Sectors,
    ) -> Result<Self, SuperblockError> {
        validate::check_1(&block, version, device).map_err(|defect| SuperblockError {
            belongs: validate::belonging_1(&block, version, device),
            ..refusal(version, device)(defect)
        })?;
        let header = &block.header;
        let features = Features::from_bits_retain(header.feature_map.get());
        let has = |feature| features.contains(feature);
        Ok(Self {
            device,
            read_as: version,
            version,
            set_uuid: Uuid::from_bytes(header.set_uuid),
            name: text::c_string(&header.set_name),
            ctime: Timestamp::from_raw(header.ctime.get()),
            level: Level::from_raw(header.level.get() as i32),
            layout: header.layout.get(),
            chunk: Sectors(header.chunksize.get().into()),
            raid_disks: header.raid_disks.get(),
            size: Sectors(header.size.get()),
            data_offset: Sector(header.data_offset.get()),
            data_size: Sectors(header.data_size.get()),
            super_offset: Sector(header.super_offset.get()),
            dev_number: header.dev_number.get(),
            roles: block.roles().collect(),
            events: header.events.get(),
            resync_offset: Sectors(header.resync_offset.get()),
            recovery_offset: has(Features::RECOVERY_OFFSET)
                .then(|| Sectors(header.recovery_offset.get())),
            features,
            utime: Timestamp::from_raw(header.utime.get()),
            device_uuid: Uuid::from_bytes(header.device_uuid),
            flags: DeviceFlags::from_raw(header.devflags),
            corrected_reads: header.cnt_corrected_read.get(),
            bitmap_offset: has(Features::BITMAP_OFFSET).then(|| header.bitmap_offset.get() as i32),
            ppl: PplPlace::of(&block),
            bad_block_log: BadBlockLogPlace::of(&block),
            reshape: has(Features::RESHAPE_ACTIVE).then(|| Reshape {
                position: Sector(header.reshape_position.get()),
                delta_disks: header.delta_disks.get() as i32,
                new_level: Level::from_raw(header.new_level.get() as i32),
                new_layout: header.new_layout.get(),
                new_chunk: Sectors(header.new_chunk.get().into()),
                new_offset: match has(Features::NEW_OFFSET) {
                    true => header.new_offset.get() as i32,
                    false => 0,
                },
            }),
            logical_block_size: header.logical_block_size.get(),
            is_big_endian: false,
            raw: RawBlock::V1(block),
        })
    }

    pub(super) fn from_block_0_90(
        block: Box<Block090>,
        device: Sectors,
    ) -> Result<Self, SuperblockError> {
        let version = Version::V0_90;
        let refused = refusal(version, device);
        validate::check_0_90(&block, device).map_err(&refused)?;
        let at = version.super_offset(device);
        let at = at.ok_or_else(|| refused(validate::too_small(version, device)))?;
        let level = Level::from_raw(block.level.get() as i32);
        let bitmap = block.state.get() & superblock_0_90::state::BITMAP_PRESENT != 0;
        let own = block.disks.get(block.this_disk.number.get() as usize);
        let own_state = own.map_or(0, |entry| entry.state.get());
        let reshaping = block.minor_version.get() == 91 && block.reshape_position() != u64::MAX;
        Ok(Self {
            device,
            read_as: version,
            version,
            set_uuid: Uuid::from_bytes(block.set_uuid()),
            name: String::new(),
            ctime: Timestamp::from_seconds(block.ctime.get().into()),
            level,
            layout: if level == Level::Raid0 { 0 } else { block.layout.get() },
            chunk: Sectors::from_bytes_floor(block.chunk_size.get().into()),
            raid_disks: block.raid_disks.get(),
            size: Sectors(u64::from(block.size.get()) * 2),
            data_offset: Sector::ZERO,
            data_size: Sectors(at.0),
            super_offset: at,
            dev_number: block.this_disk.number.get(),
            roles: block.disks.iter().map(|entry| entry.role()).collect(),
            events: block.events(),
            resync_offset: Sectors(block.resync_offset()),
            recovery_offset: None,
            features: Features::default().set_to(Features::BITMAP_OFFSET, bitmap),
            utime: Timestamp::from_seconds(block.utime.get().into()),
            device_uuid: Uuid::nil(),
            flags: DeviceFlags {
                write_mostly: own_state & superblock_0_90::disk::WRITE_MOSTLY != 0,
                failfast: own_state & superblock_0_90::disk::FAILFAST != 0,
            },
            corrected_reads: 0,
            bitmap_offset: bitmap.then_some((superblock_0_90::BLOCK_SIZE >> 9) as i32),
            ppl: None,
            bad_block_log: None,
            reshape: reshaping.then(|| Reshape {
                position: Sector(block.reshape_position()),
                delta_disks: block.delta_disks.get() as i32,
                new_level: Level::from_raw(block.new_level.get() as i32),
                new_layout: block.new_layout.get(),
                new_chunk: Sectors::from_bytes_floor(block.new_chunk.get().into()),
                new_offset: 0,
            }),
            logical_block_size: block.logical_block_size.get(),
            is_big_endian: false,
            raw: RawBlock::V090(block),
        })
    }

    /// Copies what an update of the array may have changed from a fresher superblock of the same version: of a redundant array
    /// the number of members, the used size of each, and the place of the bitmap. [`encode`](Self::encode) cannot record
    /// changes of a 0.90 superblock, so that of the fresher member replaces the block; this one's roles, events and state stay.
    ///
    /// # Errors
    /// The fresher 0.90 superblock is impossible on this member.
    pub fn follow(&mut self, fresher: &Self) -> Result<(), SuperblockError> {
        if let (RawBlock::V090(own), RawBlock::V090(other)) = (&self.raw, &fresher.raw) {
            let is_side = self.reshape.is_none() && own.reshape_position() != u64::MAX;
            if is_side && own.minor_version.get() == 91 {
                // It is only read, as one side of the reshape.
                return Ok(());
            }
            let followed = Self::from_block_0_90(own.following(other), self.device)?;
            let roles = std::mem::take(&mut self.roles);
            let Self { events, resync_offset, utime, .. } = *self;
            *self = Self { roles, events, resync_offset, utime, ..followed };
        } else if self.level.is_redundant() {
            self.raid_disks = fresher.raid_disks;
            self.size = fresher.size;
            self.bitmap_offset = fresher.bitmap_offset;
        }
        Ok(())
    }

    /// The sector of the device behind the last one that data can have.
    pub(crate) fn data_limit(&self) -> Sector {
        let end = self.device.as_end();
        if self.super_offset > self.data_offset { self.super_offset.min(end) } else { end }
    }

    /// How many roles this superblock can record: its table ends at the latest where the next structure on the device begins.
    pub fn room(&self) -> usize {
        if self.version == Version::V0_90 {
            return superblock_0_90::MAX_DISKS;
        }
        let places = [
            Some(self.data_offset),
            self.bitmap_start(),
            self.ppl_area().map(|area| area.start),
            self.bad_block_log_start(),
            Some(self.device.as_end()),
        ];
        let behind = places.into_iter().flatten().filter(|at| *at > self.super_offset).min();
        let bytes = behind.map_or(0, |end| (end - self.super_offset).bytes() as usize);
        let fit = bytes.saturating_sub(superblock_1::HEADER_SIZE) / size_of::<u16>();
        fit.min(MAX_ROLES).max(self.roles.len())
    }

    /// Sets the role of each number. Those for which there is no [`room`](Self::room) must be spares, and are left out.
    pub(crate) fn set_roles(&mut self, roles: &[Role]) {
        let room = self.room().min(roles.len());
        self.roles.clear();
        self.roles.extend_from_slice(&roles[..room]);
    }

    /// The role of the member with this number, by this superblock. A number outside the table is a spare.
    pub fn role_of(&self, dev_number: u32) -> Role {
        self.roles.get(dev_number as usize).copied().unwrap_or(Role::Spare)
    }

    /// The role of this member, by its own superblock.
    pub fn role(&self) -> Role {
        self.role_of(self.dev_number)
    }

    /// Whether the array was stopped with all its data in sync.
    pub fn is_clean(&self) -> bool {
        self.resync_offset == Sectors::MAX
    }

    /// Sectors of the device that this superblock was read from.
    pub fn device_size(&self) -> Sectors {
        self.device
    }

    /// Where the bitmap begins on this device, if there is one.
    pub fn bitmap_start(&self) -> Option<Sector> {
        let start = self.super_offset.0.checked_add_signed(self.bitmap_offset?.into())?;
        Some(Sector(start))
    }

    /// Where the bad block log begins on this device, if there is one.
    pub fn bad_block_log_start(&self) -> Option<Sector> {
        let start = self.super_offset.0.checked_add_signed(self.bad_block_log?.offset.into())?;
        Some(Sector(start))
    }

    /// The sectors of the partial parity log on this device, if there is one. As in Linux, whole blocks of 4 KiB of its place are used.
    pub fn ppl_area(&self) -> Option<Range<Sector>> {
        let place = self.ppl?;
        let start = Sector(self.super_offset.0.checked_add_signed(place.offset.into())?);
        Some(start..start + place.len.round_down(ppl::HEADER))
    }

    /// The UUID in a bitmap of this array: the array's UUID in its byte order on disk, which differs from
    /// the printed order in 0.90.
    pub fn bitmap_uuid(&self) -> [u8; 16] {
        let uuid = self.set_uuid.into_bytes();
        if self.version == Version::V0_90 { swap_words(uuid) } else { uuid }
    }

    /// The version 1 block as read, if this is one.
    pub fn block_1(&self) -> Option<&Block1> {
        match &self.raw {
            RawBlock::V1(block) => Some(block),
            RawBlock::V090(_) => None,
        }
    }

    /// The 0.90 block as read, if this is one.
    pub fn block_0_90(&self) -> Option<&Block090> {
        match &self.raw {
            RawBlock::V1(_) => None,
            RawBlock::V090(block) => Some(block),
        }
    }

    /// The array's preferred minor number (`0` for `md0`); only 0.90 has one.
    pub fn preferred_minor(&self) -> Option<u32> {
        self.block_0_90().map(|block| block.md_minor.get())
    }

    /// The bytes to write at [`super_offset`](Self::super_offset); their length is a multiple of
    /// `block_size`. An unchanged superblock returns the bytes that it was read from.
    ///
    /// Version 1 records every field except `version`, `super_offset`, `reshape` and
    /// `logical_block_size`. 0.90 records `events`, `resync_offset`, whole seconds of `utime`,
    /// members that turned [`Role::Faulty`], and active ones that are a [`Role::Spare`].
    ///
    /// # Errors
    /// [`Defect::NotRecordable`] for a change the version cannot record; any other defect if the
    /// result would be refused when it is read.
    pub fn encode(&self, block_size: u32) -> Result<Vec<u8>, SuperblockError> {
        let refused = refusal(self.version, self.device);
        let encoded = match &self.raw {
            RawBlock::V1(block) => self.encode_1(block).map(|block| {
                let used = block.used_bytes().next_multiple_of(block_size.max(512) as usize);
                let mut bytes = block.as_bytes().to_vec();
                bytes.resize(used, 0);
                bytes
            }),
            RawBlock::V090(_) if self.is_big_endian => Err(Defect::ForeignByteOrder),
            RawBlock::V090(block) => self.encode_0_90(block).map(|block| block.as_bytes().to_vec()),
        };
        encoded.map_err(refused)
    }

    fn encode_1(&self, old: &Block1) -> Result<Box<Block1>, Defect> {
        let was = Self::from_block_1(Box::new(old.clone()), self.read_as, self.device)
            .map_err(|error| error.defect)?;
        let not_recordable = |what| Defect::NotRecordable { what, version: self.version };
        let fixed = (self.version, self.super_offset, self.reshape, self.logical_block_size);
        if fixed != (was.version, was.super_offset, was.reshape, was.logical_block_size) {
            return Err(not_recordable("a change of place, reshape or logical block size"));
        }
        let found = u32::try_from(self.roles.len()).unwrap_or(u32::MAX);
        if self.roles.len() > MAX_ROLES {
            return Err(Defect::RoleTable { found });
        }

        let mut block = Box::new(old.clone());
        let header = &mut block.header;
        header.set_uuid = self.set_uuid.into_bytes();
        if self.name != was.name {
            header.set_name = set_name_bytes(&self.name)
                .ok_or(not_recordable("a name of more than 31 bytes or with a zero byte"))?;
        }
        header.ctime = self.ctime.raw().into();
        header.level = (self.level.raw() as u32).into();
        header.layout = self.layout.into();
        let chunk = u32::try_from(self.chunk.0);
        header.chunksize = chunk.map_err(|_| not_recordable("a chunk of 2 TiB or more"))?.into();
        header.raid_disks = self.raid_disks.into();
        header.size = self.size.0.into();
        header.data_offset = self.data_offset.0.into();
        header.data_size = self.data_size.0.into();
        header.dev_number = self.dev_number.into();
        header.events = self.events.into();
        header.resync_offset = self.resync_offset.0.into();
        header.utime = self.utime.raw().into();
        header.device_uuid = self.device_uuid.into_bytes();
        header.devflags = self.flags.merge_into(header.devflags);
        header.cnt_corrected_read = self.corrected_reads.into();
        header.feature_map = self
            .features
            .set_to(Features::RECOVERY_OFFSET, self.recovery_offset.is_some())
            .set_to(Features::BITMAP_OFFSET, self.bitmap_offset.is_some())
            .set_to(Features::RESHAPE_ACTIVE, self.reshape.is_some())
            .bits()
            .into();
        // The field is shared with the journal's tail, so it changes only for a rebuild.
        if self.recovery_offset != was.recovery_offset {
            header.recovery_offset = self.recovery_offset.unwrap_or(Sectors::ZERO).0.into();
        }
        // One field for both: an array has a bitmap or a partial parity log.
        if let Some(offset) = self.bitmap_offset {
            header.bitmap_offset = (offset as u32).into();
        } else if self.ppl != was.ppl {
            let place = self.ppl.unwrap_or(PplPlace { offset: 0, len: Sectors::ZERO });
            let len = u16::try_from(place.len.0);
            let len = len.map_err(|_| not_recordable("a longer partial parity log"))?;
            header.bitmap_offset = (u32::from(len) << 16 | u32::from(place.offset as u16)).into();
        }
        if self.bad_block_log != was.bad_block_log {
            let (offset, len, shift) = self
                .bad_block_log
                .map_or((0, Sectors::ZERO, 0), |log| (log.offset, log.len, log.shift));
            let size = u16::try_from(len.0);
            header.bblog_size = size.map_err(|_| not_recordable("a longer bad block log"))?.into();
            header.bblog_offset = (offset as u32).into();
            header.bblog_shift = shift;
        }
        header.max_dev = header.max_dev.get().max(found).into();
        let roles = self.roles.iter().copied().chain(core::iter::repeat(Role::Spare));
        let count = block.role_count();
        for (entry, role) in block.dev_roles[..count].iter_mut().zip(roles) {
            *entry = role.raw().into();
        }
        block.seal();
        validate::check_1(&block, self.version, self.device)?;
        Ok(block)
    }

    fn encode_0_90(&self, old: &Block090) -> Result<Box<Block090>, Defect> {
        let was = Self::from_block_0_90(Box::new(old.clone()), self.device)
            .map_err(|error| error.defect)?;
        if self == &was {
            return Ok(Box::new(old.clone()));
        }
        let not_recordable = |what| Defect::NotRecordable { what, version: self.version };
        let mut recordable = was.clone();
        recordable.events = self.events;
        recordable.resync_offset = self.resync_offset;
        recordable.utime = self.utime;
        recordable.roles.clone_from(&self.roles);
        if self != &recordable {
            return Err(not_recordable(
                "a change of more than events, state, time and failed members",
            ));
        }
        if self.roles.len() != was.roles.len() {
            return Err(not_recordable("a role table of another size"));
        }

        let mut block = Box::new(old.clone());
        for (number, (role, old_role)) in self.roles.iter().zip(&was.roles).enumerate() {
            if role == old_role {
                continue;
            }
            match (role, old_role) {
                (Role::Faulty, _) => block.fail_member(number),
                (Role::Spare, Role::Active(_)) => block.make_spare(number),
                (Role::Active(_) | Role::Spare | Role::Journal, _) => {
                    return Err(not_recordable("a member that became active, or a spare again"));
                }
            }
        }
        if let Some(own) = block.disks.get(self.dev_number as usize) {
            block.this_disk = own.clone();
        }
        let seconds = u32::try_from(self.utime.seconds);
        block.utime = seconds.map_err(|_| not_recordable("a time after 2106"))?.into();
        block.set_events(self.events);
        block.set_resync_offset(self.resync_offset.0);
        block.seal();
        validate::check_0_90(&block, self.device)?;
        Ok(block)
    }
}

impl BadBlockLogPlace {
    fn of(block: &Block1) -> Option<Self> {
        let header = &block.header;
        let (offset, size) = (header.bblog_offset.get() as i32, header.bblog_size.get());
        (offset != 0 && size != 0).then(|| Self {
            offset,
            len: Sectors(size.into()),
            shift: header.bblog_shift,
        })
    }
}

/// The field `set_name` for a name; `None` if it does not fit with a terminating zero.
pub(super) fn set_name_bytes(name: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if name.len() >= bytes.len() || name.contains('\0') {
        return None;
    }
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    Some(bytes)
}

/// Adds to a defect the version and place of the superblock.
pub(super) fn refusal(version: Version, device: Sectors) -> impl Fn(Defect) -> SuperblockError {
    let at = version.super_offset(device).unwrap_or_default();
    move |defect| SuperblockError { version, at, defect, belongs: None }
}
