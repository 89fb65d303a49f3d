//! The metadata that `mdadm --add` and `mdadm --grow` of mdadm 4.x write to the members of an existing array: the
//! superblock of a new member, the place of a bitmap.

use ashlar_block::units::Sectors;

use super::bitmap_super::BitmapSuper;
use super::create::{
    BAD_BLOCK_LOG, BITMAP_OFFSET, CreateError, DEFAULT_DAEMON_SLEEP, LOCKLESS, NewBitmap,
    NewMember, USUAL_BITMAP_SPACE, before_superblock, bitmap_chunk, lockless,
};
use super::fields::{Features, MAX_ROLES, Role, Version};
use super::superblock::{Superblock, refusal};
use super::superblock_1::Block1;
use super::validate;

/// The superblock of a device added to an array as a spare with this `number`, based on that of the
/// member `model`. Data, bitmap and bad block log have the same places as there. Bad blocks are not
/// copied (mdadm once copied the list with the superblock).
///
/// # Errors
/// [`CreateError`]: the device is too small, or the version is 0.90.
pub fn join(
    model: &Superblock,
    number: u32,
    member: &NewMember,
) -> Result<Superblock, CreateError> {
    let (version, device) = (model.version, member.device);
    let refused = refusal(version, device);
    let too_small = || refused(validate::too_small(version, device));
    let at = version.super_offset(device).ok_or_else(too_small)?;
    if version == Version::V0_90 {
        return Err(CreateError::Version(version));
    }
    let mut bytes = model.encode(512)?;
    bytes.resize(size_of::<Block1>(), 0xff);
    let mut block = Block1::from_bytes(&bytes).ok_or_else(too_small)?;
    let room = match version {
        Version::V0_90 | Version::V1_0 => at.0.saturating_sub(gap(model, at.0)),
        Version::V1_1 | Version::V1_2 => device.0.saturating_sub(model.data_offset.0),
    };
    let size = model.size;
    if room < size.0 {
        let number = number as usize;
        return Err(CreateError::TooSmall { number, room: Sectors(room), size });
    }
    let given = number as usize + 1;
    if given > MAX_ROLES {
        return Err(CreateError::TooManyMembers { given });
    }
    let header = &mut block.header;
    let has_bitmap = model.bitmap_offset.is_some();
    let logs = model.features & (Features::PPL | Features::MULTIPLE_PPLS);
    let features = logs.set_to(Features::BITMAP_OFFSET, has_bitmap);
    header.feature_map = features.bits().into();
    header.dev_number = number.into();
    header.device_uuid = member.device_uuid.into_bytes();
    header.devflags = member.flags.merge_into(0);
    header.super_offset = at.0.into();
    header.data_size = room.into();
    header.new_offset = 0.into();
    header.recovery_offset = 0.into();
    header.cnt_corrected_read = 0.into();
    let roles = block.role_count();
    if roles < given {
        block.header.max_dev = (given as u32).into();
        block.dev_roles[roles..given].fill(Role::Spare.raw().into());
    }
    block.dev_roles[number as usize] = Role::Spare.raw().into();
    block.seal();
    Ok(Superblock::from_block_1(block, version, device)?)
}

/// Sectors reserved before the superblock of a new member with version 1.0, including the data
/// offset: as many as in `model`, or fewer, down to what its bitmap and bad block log need, if the
/// array's data does not fit otherwise.
fn gap(model: &Superblock, at: u64) -> u64 {
    let data_end = model.data_offset.0 + model.data_size.0;
    let usual = model.super_offset.0.saturating_sub(data_end);
    let before = |offset: Option<i32>| u64::from(offset.unwrap_or(0).min(0).unsigned_abs());
    let ppl = model.ppl.map(|ppl| i32::from(ppl.offset));
    let least = [model.bitmap_offset, ppl, model.bad_block_log.map(|log| log.offset)];
    let least = least.into_iter().map(before).max().unwrap_or(0);
    let spare = at.saturating_sub(model.data_offset.0 + model.size.0);
    model.data_offset.0 + usual.min(spare).max(least)
}

/// A bitmap for the members of an array that has none.
#[derive(Clone, Debug)]
pub struct NewPlace {
    /// Sectors from each superblock to the bitmap, signed.
    pub offset: i32,
    /// Sectors available from there on, on every member.
    pub area: Sectors,
    /// Its superblock.
    pub superblock: BitmapSuper,
}

/// Finds the place for a bitmap that covers `covered` sectors of an array with these members, as
/// mdadm does: between the superblock and the data, which version 1.0 has in the other order.
/// `clean` says that all copies are the same.
///
/// # Errors
/// [`CreateError`]: there is no room, the chunk size is impossible, or the version is 0.90.
pub fn place_bitmap<'a>(
    members: impl IntoIterator<Item = &'a Superblock>,
    covered: Sectors,
    wanted: NewBitmap,
    clean: bool,
) -> Result<NewPlace, CreateError> {
    let mut narrowest: Option<Room> = None;
    let mut any = None;
    for sb in members {
        let room = Room::on(sb)?;
        any = Some(sb);
        narrowest = Some(match narrowest {
            Some(other) => other.and(room)?,
            None => room,
        });
    }
    let (Some(sb), Some(room)) = (any, narrowest) else {
        return Err(CreateError::NoRoomForBitmap);
    };
    let uuid = sb.bitmap_uuid();
    if wanted == NewBitmap::Lockless {
        if sb.level.has_parity() {
            return Err(CreateError::Meaningless { level: sb.level, what: LOCKLESS });
        }
        if sb.version != Version::V1_2 {
            return Err(CreateError::LocklessVersion(sb.version));
        }
        let superblock = lockless(uuid, covered, room.sectors, DEFAULT_DAEMON_SLEEP, clean)?;
        let area = Sectors(superblock.sectors_reserved.get().into());
        return Ok(NewPlace { offset: BITMAP_OFFSET as i32, area, superblock });
    }
    let asked = matches!(wanted, NewBitmap::Internal { chunk: Some(_) });
    let usable = if asked { room.sectors } else { room.sectors.min(USUAL_BITMAP_SPACE) };
    let chunk = bitmap_chunk(wanted, covered, usable)?;
    let superblock = BitmapSuper::new(uuid, covered, chunk, DEFAULT_DAEMON_SLEEP, 0);
    let (offset, area) = match room.offset {
        Some(offset) => (offset, Sectors(room.sectors)),
        None => {
            let offset = before_superblock(covered, chunk, room.behind);
            (offset, Sectors(u64::from(offset.unsigned_abs()) - room.behind))
        }
    };
    if area.0 > room.sectors {
        return Err(CreateError::NoRoomForBitmap);
    }
    Ok(NewPlace { offset, area, superblock })
}

/// The room that a member has for a bitmap.
struct Room {
    /// Where the bitmap begins; `None` to end it `behind` sectors before the superblock.
    offset: Option<i32>,
    behind: u64,
    sectors: u64,
}

impl Room {
    fn on(sb: &Superblock) -> Result<Self, CreateError> {
        let log = sb.bad_block_log;
        let (offset, behind, sectors) = match sb.version {
            Version::V0_90 => return Err(CreateError::Version(sb.version)),
            Version::V1_0 => {
                let data_end = sb.data_offset.0 + sb.data_size.0;
                let gap = sb.super_offset.0.saturating_sub(data_end);
                let before = log.map_or(0, |log| u64::from(log.offset.min(0).unsigned_abs()));
                let behind = before.max(BAD_BLOCK_LOG);
                if gap < 6 && sb.roles.len() <= 384 {
                    // 1 KiB after the superblock, where every device has 3 KiB free.
                    (Some(2), 0, 6)
                } else {
                    (None, behind, gap.saturating_sub(behind))
                }
            }
            Version::V1_1 | Version::V1_2 => {
                let end = match log {
                    Some(log) => u64::from(log.offset.max(0).unsigned_abs()),
                    None => (sb.data_offset.0 - sb.super_offset.0).saturating_sub(BAD_BLOCK_LOG),
                };
                (Some(BITMAP_OFFSET as i32), 0, end.saturating_sub(BITMAP_OFFSET))
            }
        };
        if sectors <= 1 {
            return Err(CreateError::NoRoomForBitmap);
        }
        Ok(Self { offset, behind, sectors })
    }

    /// The room that two members have in common.
    fn and(self, other: Self) -> Result<Self, CreateError> {
        // With version 1.0, some may have room before the superblock and some only after it.
        if self.offset != other.offset {
            return Err(CreateError::NoRoomForBitmap);
        }
        let behind = self.behind.max(other.behind);
        let sectors = (self.sectors + self.behind).min(other.sectors + other.behind);
        Ok(Self { behind, sectors: sectors.saturating_sub(behind), ..self })
    }
}
