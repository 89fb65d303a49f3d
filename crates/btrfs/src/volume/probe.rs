//! Finds the file system a device belongs to, by its superblocks.
//!
//! A superblock with a good checksum may be a leftover: the last copy of a larger file system that
//! was here before, or all but the first copy of one that another format overwrote. So a copy
//! counts only if it belongs to the same device of the same file system as the first good one, and
//! lies within the size of the device recorded there; of these the newest is used.

use ashlar_block::{CopyNumber, Gateway, Sectors};
use uuid::Uuid;

use super::device::{Device, Source, SuperState};
use crate::error::OpenError;
use crate::ondisk::superblock::{OFFSETS, Owner, SUPERBLOCK_SIZE, Superblock, SuperblockError};
use crate::units::Physical;

/// The file system a device belongs to, by any of its superblocks. If they name several, it is that
/// of the first good one: [`FileSystem::open`](super::FileSystem::open) reports what is wrong.
pub async fn identify(gateway: &Gateway) -> Option<Uuid> {
    let source = Source { name: String::new(), gateway: gateway.clone() };
    match probe(source).await {
        Ok(device) => Some(device.superblock.fsid()),
        Err(OpenError::Copies { first: (_, owner), .. }) => Some(owner.fsid),
        Err(_) => None,
    }
}

/// Whether a superblock at `at` lies within the first `bytes` of a device.
fn is_within(at: Physical, bytes: u64) -> bool {
    at.0 + SUPERBLOCK_SIZE as u64 <= bytes
}

/// Reads the superblocks of a device.
pub(super) async fn probe(source: Source) -> Result<Device, OpenError> {
    let Source { name, gateway } = source;
    let mut supers = [SuperState::Absent, SuperState::Absent, SuperState::Absent];
    let capacity = gateway.capacity().bytes();
    let mut newest: Option<Box<Superblock>> = None;
    for (index, at) in OFFSETS.into_iter().enumerate() {
        // A backup's size is not trusted until it is known to be no leftover.
        let end = match &newest {
            Some(newest) if is_good(&supers[0]) => newest.dev_item.total_bytes.get(),
            Some(_) | None => u64::MAX,
        };
        if !is_within(at, capacity.min(end)) {
            continue;
        }
        let found = match read(&gateway, at).await {
            Ok(found) => found,
            Err(state) => {
                supers[index] = state;
                continue;
            }
        };
        if index > 0 && !is_within(at, found.dev_item.total_bytes.get()) {
            // It dates from before its file system shrank or was recreated with a smaller size.
            continue;
        }
        let (owner, generation) = (Owner::of(&found), found.generation.get());
        supers[index] = SuperState::Good { generation };
        match &newest {
            Some(newest) if Owner::of(newest) != owner => {
                if !is_good(&supers[0]) {
                    let first = (Physical(newest.bytenr.get()), Owner::of(newest));
                    return Err(OpenError::Copies { name, first, second: (at, owner) });
                }
                supers[index] = SuperState::Foreign { owner, generation };
            }
            Some(newest) if newest.generation.get() >= generation => {}
            Some(_) | None => newest = Some(found),
        }
    }
    let Some(superblock) = newest else {
        return Err(match &supers[0] {
            SuperState::Unreadable(status) => OpenError::Read { name, status: *status },
            SuperState::Bad(why) => OpenError::Superblock { name, why: why.clone() },
            SuperState::Absent | SuperState::Good { .. } | SuperState::Foreign { .. } => {
                OpenError::Superblock { name, why: SuperblockError::Magic }
            }
        });
    };
    let (devid, uuid) = (superblock.devid(), Uuid::from_bytes(superblock.dev_item.uuid));
    let total_bytes = superblock.dev_item.total_bytes.get();
    for (state, at) in supers.iter_mut().zip(OFFSETS).skip(1) {
        if !is_within(at, total_bytes) {
            *state = SuperState::Absent;
        }
    }
    Ok(Device { devid, uuid, name, gateway, total_bytes, supers, superblock })
}

fn is_good(state: &SuperState) -> bool {
    matches!(state, SuperState::Good { .. })
}

/// The superblock at `at`, or its state; from another copy of the device if the plain read is bad.
async fn read(gateway: &Gateway, at: Physical) -> Result<Box<Superblock>, SuperState> {
    let (sector, len) = (at.sector(), Sectors::from_bytes_floor(SUPERBLOCK_SIZE as u64));
    let read = async |copy| {
        let bytes = gateway.read_copy(sector, len, copy).await.map_err(SuperState::Unreadable)?;
        Superblock::parse(bytes.as_slice(), at).map_err(SuperState::Bad)
    };
    let plain = read(CopyNumber::ANY).await;
    if plain.is_err() {
        for copy in gateway.alternates(sector, len) {
            let found = read(copy).await;
            if found.is_ok() {
                return found;
            }
        }
    }
    plain
}
