//! Makes an array: writes new superblocks to devices.
//!
//! Everything is decided and checked before the first write, so that a refusal changes nothing.
//! Superblocks of older arrays at other places of the devices are erased first; otherwise one of them
//! could be mistaken for the device's.

use std::ops::Range;

use ashlar_block::{ByteVolume, Gateway, Sectors, Status};
use thiserror::Error;

use crate::metadata::{write_empty, write_superblock, write_within};
use crate::ondisk::bitmap_super::state;
use crate::ondisk::create::{self as ondisk, CreateSpec, NewSuperblock};
use crate::ondisk::ppl::{self, Log};
use crate::ondisk::probe::probe_ranges;
use crate::ondisk::{Level, Role, Version};
use crate::personality::{Personality, PersonalityError};

/// A device to be made a member.
pub struct NewDevice {
    /// The device.
    pub gateway: Gateway,
    /// Its path, for messages.
    pub path: String,
    /// Whether all its sectors are known to read as zeroes (an image file that is one hole).
    pub known_zero: bool,
    /// Byte ranges of foreign signatures: zeroed, durably, before any device gets a superblock.
    pub wiped: Vec<Range<u64>>,
}

/// A created array.
#[derive(Clone, Debug)]
pub struct CreatedArray {
    /// Size of the array.
    pub size: Sectors,
    /// The members' superblocks, by number.
    pub superblocks: Vec<Option<NewSuperblock>>,
}

/// Why no array was created.
#[derive(Debug, Error)]
pub enum CreateError {
    /// The parameters cannot form an array.
    #[error(transparent)]
    Spec(#[from] ondisk::CreateError),
    /// The parameters cannot form an array, or form one that is not supported.
    #[error(transparent)]
    Personality(#[from] PersonalityError),
    /// A device cannot be written.
    #[error("{path} cannot be written: {status}")]
    Write {
        /// The device.
        path: String,
        /// Why.
        status: Status,
    },
}

/// Creates the array `spec` on `devices` (by number, `None` for missing members; `spec.members` must
/// describe the same devices).
///
/// `spec.assume_clean` is trusted; without it the array will be resynced when it first runs, unless
/// all its active members are known to be alike. Members from `spec.raid_devices` on are spares.
///
/// # Errors
/// See [`CreateError`]. Only [`CreateError::Write`] can occur after a write: signatures may then be
/// erased, and other written data are part of an array that does not start automatically.
pub async fn create(
    spec: &CreateSpec,
    devices: &[Option<NewDevice>],
) -> Result<CreatedArray, CreateError> {
    let created = prepare(spec, devices)?;
    if let Some(locked) = devices.iter().flatten().find(|d| d.gateway.disk().is_read_only()) {
        return Err(CreateError::Write { path: locked.path.clone(), status: Status::ReadOnly });
    }
    let failed =
        |device: &NewDevice, status| CreateError::Write { path: device.path.clone(), status };
    // A crash leaves the old owner's signatures or the array's superblock, never both on one device.
    for device in devices.iter().flatten() {
        let volume = ByteVolume::new(device.gateway.clone());
        volume.wipe(&device.wiped).await.map_err(|status| failed(device, status))?;
    }
    for (device, new) in devices.iter().zip(&created.superblocks) {
        let (Some(device), Some(new)) = (device, new) else { continue };
        write(&device.gateway, new).await.map_err(|status| failed(device, status))?;
    }
    Ok(created)
}

/// What [`create`] would create. Nothing is read or written.
///
/// # Errors
/// See [`CreateError`].
pub fn prepare(
    spec: &CreateSpec,
    devices: &[Option<NewDevice>],
) -> Result<CreatedArray, CreateError> {
    let mut spec = spec.clone();
    let believed = spec.assume_clean;
    spec.assume_clean |= is_alike(&spec, devices);
    let mut superblocks = ondisk::create(&spec)?;
    for new in superblocks.iter_mut().flatten().filter(|_| !believed) {
        // Chunks that were never written are unwritten, even if all copies are the same: new members
        // need not get them.
        let bitmap = new.bitmap.as_mut().filter(|bitmap| bitmap.is_lockless());
        if let Some(bitmap) = bitmap {
            bitmap.state = (bitmap.state.get() & !state::CLEAN).into();
        }
    }
    if !believed && let Some(slot) = recovered_first(&spec, devices) {
        for new in superblocks.iter_mut().flatten() {
            if new.superblock.role() == Role::Active(slot as u16) {
                new.superblock.recovery_offset = Some(Sectors::ZERO);
            }
        }
    }
    let size = array_size(&spec, &superblocks)?;
    Ok(CreatedArray { size, superblocks })
}

/// Whether the active members are known to hold the same data, or parity that fits them: there is one, or all read as zeroes.
fn is_alike(spec: &CreateSpec, devices: &[Option<NewDevice>]) -> bool {
    let active = || devices.iter().take(spec.raid_devices as usize);
    // As in mdadm, nothing was written yet that a missing member's parity could be wrong for.
    let lacks = spec.level.has_parity() && active().any(Option::is_none);
    let mut given = active().flatten();
    lacks || active().flatten().count() <= 1 || given.all(|device| device.known_zero)
}

/// The slot whose member is recovered first. As mdadm does of a RAID 6 that lacks one member: P and Q of what was there before need not
/// fit each other, and two members that are missing are recovered from all others, whatever they hold. Its last slot, if that has a
/// member.
fn recovered_first(spec: &CreateSpec, devices: &[Option<NewDevice>]) -> Option<usize> {
    let active = || devices.iter().take(spec.raid_devices as usize);
    let missing = active().filter(|device| device.is_none()).count();
    let is_zero = active().flatten().all(|device| device.known_zero);
    let wanted = spec.level == Level::Raid6 && missing == 1 && !is_zero;
    active().rposition(Option::is_some).filter(|_| wanted)
}

/// The size of the array; an error if its geometry is impossible.
fn array_size(
    spec: &CreateSpec,
    superblocks: &[Option<NewSuperblock>],
) -> Result<Sectors, CreateError> {
    let Some(first) = superblocks.iter().flatten().next() else {
        return Err(ondisk::CreateError::Missing(spec.level).into());
    };
    let sizes = || {
        let members = superblocks.iter().flatten();
        Ok::<_, PersonalityError>(members.map(|new| new.superblock.data_size).collect())
    };
    let personality = Personality::new(&first.superblock, spec.raid_devices as usize, sizes)?;
    if !personality.is_readable_with(|slot| superblocks.get(slot).is_some_and(Option::is_some)) {
        return Err(ondisk::CreateError::Missing(spec.level).into());
    }
    Ok(personality.size())
}

async fn write(gateway: &Gateway, new: &NewSuperblock) -> Result<(), Status> {
    let sb = &new.superblock;
    erase_others(gateway, sb.version).await?;
    if let (Some(bitmap), Some(at)) = (&new.bitmap, sb.bitmap_start()) {
        // As mdadm does; the running array clears the bits.
        write_within(gateway, at, &bitmap.all_marked()).await?;
    }
    if let Some(area) = sb.ppl_area() {
        // As mdadm does: nothing is being written.
        write_empty(gateway, area, Some(&Log::default()), ppl::signature(sb.set_uuid)).await?;
    }
    write_superblock(gateway, sb).await
}

/// Overwrites superblocks of other versions that an older array left.
pub(crate) async fn erase_others(gateway: &Gateway, version: Version) -> Result<(), Status> {
    let size = gateway.capacity();
    let probed = crate::probe::probe_all(gateway).await?;
    let found = probed
        .others
        .into_iter()
        .chain(probed.preferred.into_iter().filter_map(Result::ok).map(|sb| sb.version));
    let places = probe_ranges(size);
    for other in found.filter(|other| *other != version) {
        let Some(at) = other.super_offset(size) else { continue };
        let len = places.iter().find(|(offset, _)| *offset == at.bytes()).map_or(4096, |(_, n)| *n);
        write_within(gateway, at, &vec![0; len]).await?;
    }
    Ok(())
}
