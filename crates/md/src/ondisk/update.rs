//! What `mdadm --assemble --update` changes in the superblock of a member.

use ashlar_block::units::Sectors;
use thiserror::Error;
use uuid::Uuid;

use super::bitmap_super::BitmapSuper;
use super::create::full_name;
use super::defect::SuperblockError;
use super::fields::{Features, Level, MdadmUuid, Version};
use super::homehost;
use super::superblock::{BadBlockLogPlace, Superblock};
use super::superblock_0_90::state;

/// A change of superblocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Update {
    /// The identity of the array.
    Uuid(Uuid),
    /// The array's name, as stored in the superblocks. Version 0.90 has none.
    Name(String),
    /// The host in front of the name; in version 0.90, the host's words in the identity.
    HomeHost(String),
    /// Copies may differ: they must be resynced.
    Resync,
    /// The data area extends to the end of the device, which has grown. Versions 1.1 and 1.2.
    DeviceSize,
    /// The bitmap is removed.
    NoBitmap,
    /// A bad block log is added, unless there is one, if there is room. Not version 0.90.
    BadBlockLog,
    /// The bad block log is removed, unless it lists bad blocks and `force` is not set.
    NoBadBlockLog {
        /// Remove it even if it lists bad blocks.
        force: bool,
    },
    /// The array's preferred minor number. Version 0.90.
    PreferredMinor(u32),
}

/// Why a superblock is not changed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum UpdateError {
    /// The version has no place for it.
    #[error("version {0} superblocks have no {1}")]
    Version(Version, &'static str),
    /// The change is useless or harmful for the level.
    #[error("{0} {1}")]
    Level(Level, &'static str),
    /// No room for a bad block log.
    #[error("there is no room for a bad block log")]
    NoRoom,
    /// The log lists bad blocks.
    #[error("its bad block log lists bad blocks, which would count as good without it")]
    Listed,
    /// A name that does not fit.
    #[error("the name is longer than 31 bytes or has a zero byte")]
    Name,
    /// The result would be refused when it is read.
    #[error(transparent)]
    Impossible(#[from] SuperblockError),
}

/// The changed superblock. `bitmap` is the superblock of the member's bitmap, if it has one that can be read.
///
/// # Errors
/// [`UpdateError`].
pub fn updated(
    sb: &Superblock,
    update: &Update,
    bitmap: Option<&BitmapSuper>,
) -> Result<Superblock, UpdateError> {
    let mut new = match sb.version {
        Version::V0_90 => return updated_0_90(sb, update),
        Version::V1_0 | Version::V1_1 | Version::V1_2 => sb.clone(),
    };
    match update {
        Update::Uuid(uuid) => new.set_uuid = *uuid,
        Update::Name(name) => new.name = checked(name.clone())?,
        Update::HomeHost(host) => {
            let short = sb.name.split_once(':').map_or(sb.name.as_str(), |(_, name)| name);
            new.name = checked(full_name(Some(host), short))?;
        }
        Update::Resync => {
            redundant(sb.level, "has no copies to make equal")?;
            new.resync_offset = Sectors::ZERO;
        }
        Update::DeviceSize => {
            if sb.version == Version::V1_0 {
                return Err(UpdateError::Version(
                    sb.version,
                    "room for more data behind their data",
                ));
            }
            redundant(sb.level, "places its data differently if its members have other sizes")?;
            let behind = sb.device_size().0.saturating_sub(sb.data_offset.0);
            new.data_size = Sectors(behind).max(sb.data_size);
        }
        Update::NoBitmap => new.bitmap_offset = None,
        Update::BadBlockLog if sb.bad_block_log.is_some() => {}
        Update::BadBlockLog => {
            let offset = log_offset(sb, bitmap).ok_or(UpdateError::NoRoom)?;
            new.bad_block_log = Some(BadBlockLogPlace { offset, len: LOG, shift: 0 });
            new.features -= Features::BAD_BLOCKS;
        }
        Update::NoBadBlockLog { force } => {
            if sb.features.contains(Features::BAD_BLOCKS) && !force {
                return Err(UpdateError::Listed);
            }
            new.bad_block_log = None;
            new.features -= Features::BAD_BLOCKS;
        }
        Update::PreferredMinor(_) => {
            return Err(UpdateError::Version(sb.version, "preferred minor number"));
        }
    }
    // Find a change that cannot be written now, not after other members were written.
    new.encode(512)?;
    Ok(new)
}

const LOG: Sectors = Sectors(8);

/// Where mdadm puts a new bad block log: after superblock and bitmap with room for either to grow, or
/// directly before the superblock.
fn log_offset(sb: &Superblock, bitmap: Option<&BitmapSuper>) -> Option<i32> {
    let bitmap_len = match (sb.bitmap_offset, bitmap) {
        (Some(_), Some(bitmap)) if bitmap.is_lockless() => bitmap.sectors_reserved.get().into(),
        (Some(_), Some(bitmap)) => bitmap.total_bytes(4096) >> 9,
        // The bitmap's length is unknown.
        (Some(_), None) => return None,
        (None, _) => 0,
    };
    let bitmap_at = i64::from(sb.bitmap_offset.unwrap_or(0));
    // Either of them, never both.
    let (bitmap_at, bitmap_len) = match sb.ppl {
        Some(ppl) => (i64::from(ppl.offset), ppl.len.0),
        None => (bitmap_at, bitmap_len),
    };
    if sb.version == Version::V1_0 {
        let data_end = sb.data_offset.0 + sb.data_size.0;
        let free = match bitmap_at {
            ..0 => bitmap_at.unsigned_abs().saturating_sub(bitmap_len),
            0.. => sb.super_offset.0.saturating_sub(data_end),
        };
        return (free >= LOG.0).then_some(-(LOG.0 as i32));
    }
    let room = sb.data_offset.0.checked_sub(sb.super_offset.0)?;
    let mut offset = (bitmap_at.unsigned_abs() + bitmap_len).max(8).next_multiple_of(8);
    while offset < 8 + 64 && offset + 2 * LOG.0 <= room {
        offset += 8;
    }
    let offset = i32::try_from(offset).ok()?;
    (offset as u64 + LOG.0 <= room).then_some(offset)
}

fn checked(name: String) -> Result<String, UpdateError> {
    let fits = name.len() < 32 && !name.contains('\0');
    if fits { Ok(name) } else { Err(UpdateError::Name) }
}

fn redundant(level: Level, else_it: &'static str) -> Result<(), UpdateError> {
    if level.is_redundant() { Ok(()) } else { Err(UpdateError::Level(level, else_it)) }
}

fn updated_0_90(sb: &Superblock, update: &Update) -> Result<Superblock, UpdateError> {
    let version = sb.version;
    let lacks = |what| Err(UpdateError::Version(version, what));
    let mut block = match sb.block_0_90() {
        Some(block) => Box::new(block.clone()),
        None => return lacks("block"),
    };
    match update {
        Update::Uuid(uuid) => block.set_set_uuid(uuid.into_bytes()),
        Update::Resync => {
            redundant(sb.level, "has no copies to be made the same")?;
            block.set_resync_offset(0);
        }
        Update::NoBitmap => block.state = (block.state.get() & !state::BITMAP_PRESENT).into(),
        Update::PreferredMinor(number) => block.md_minor = (*number).into(),
        Update::Name(_) => return lacks("name"),
        Update::HomeHost(host) => {
            block.set_set_uuid(homehost::with_host(sb.set_uuid, host).into_bytes());
        }
        Update::DeviceSize => return lacks("size of the device"),
        Update::BadBlockLog | Update::NoBadBlockLog { .. } => return lacks("bad block log"),
    }
    block.seal();
    Ok(Superblock::from_block_0_90(block, sb.device_size())?)
}

impl Update {
    /// The change in words, for the user.
    pub fn describe(&self) -> String {
        match self {
            Self::Uuid(uuid) => format!("UUID {}", MdadmUuid(*uuid)),
            Self::Name(name) => format!("name {name}"),
            Self::HomeHost(host) => format!("host {host}"),
            Self::Resync => "to be resynced".to_owned(),
            Self::DeviceSize => "size of the device".to_owned(),
            Self::NoBitmap => "no bitmap".to_owned(),
            Self::BadBlockLog => "a bad block log".to_owned(),
            Self::NoBadBlockLog { .. } => "no bad block log".to_owned(),
            Self::PreferredMinor(number) => format!("preferred minor {number}"),
        }
    }
}
