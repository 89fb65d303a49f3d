//! New members (`mdadm --add`, `--add-spare`).

use std::ops::Range;
use std::sync::Arc;

use ashlar_block::{Bio, Buffer, ByteVolume, Flags, Gateway, Sector, Status};
use tracing::info;
use uuid::Uuid;

use super::ManageError;
use super::joining::forget_losses;
use crate::array::Array;
use crate::badblocks::BadBlocks;
use crate::core::Ppl;
use crate::create::erase_others;
use crate::membership::rdev::{Rdev, State};
use crate::membership::slots::{Index, Place};
use crate::membership::superblocks::Superblocks;
use crate::metadata::{write_empty, write_within};
use crate::ondisk::create::{CreateError, NewMember};
use crate::ondisk::ppl::{self, Log};
use crate::ondisk::{DeviceFlags, Superblock, change};
use crate::probe::Candidate;
use crate::probe::{ProbeError, probe};

/// How to add a device.
#[derive(Clone, Copy, Default, Debug)]
pub struct AddOptions {
    /// The UUID of the new member; should be random.
    pub device_uuid: Uuid,
    /// Write-mostly; `None` keeps the device's old flag, or no.
    pub write_mostly: Option<bool>,
    /// Fail it at the first error; `None` keeps the device's old flag, or no.
    pub failfast: Option<bool>,
    /// Do not try a re-add by the bitmap (`--add-spare`).
    pub spare_only: bool,
}

/// How a device was added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddOutcome {
    /// As a spare, which will be rebuilt entirely if there is a slot for it.
    Spare(Index),
    /// Re-added to its old slot, to copy what it lacks by the bitmap.
    Returned(Index),
}

impl AddOutcome {
    /// The new member's index.
    pub fn index(self) -> Index {
        match self {
            Self::Spare(index) | Self::Returned(index) => index,
        }
    }
}

impl AddOptions {
    pub(super) fn flags(&self, old: DeviceFlags) -> DeviceFlags {
        DeviceFlags {
            write_mostly: self.write_mostly.unwrap_or(old.write_mostly),
            failfast: self.failfast.unwrap_or(old.failfast),
        }
    }
}

impl Array {
    /// Adds a device, as `mdadm --add` does: if it was a member and lacks only what the bitmap marks,
    /// it is re-added to its slot, unless `options.spare_only`. Otherwise its data is discarded: it
    /// gets a new superblock as a spare, without bad blocks, and is rebuilt entirely where needed.
    ///
    /// # Errors
    /// [`ManageError`]. Only [`ManageError::Device`] and [`ManageError::Record`] can occur after the
    /// device was written; it is then not a member.
    pub async fn add(
        &self,
        gateway: Gateway,
        path: &str,
        options: AddOptions,
    ) -> Result<AddOutcome, ManageError> {
        let path = path.to_owned();
        let add =
            move |array: Arc<Self>| async move { array.add_now(gateway, path, options, &[]).await };
        self.change(add).await
    }

    /// As [`Self::add`], as a spare, on a device with foreign signatures in the byte ranges `wiped`.
    /// These are zeroed, durably, after all checks and before any other write.
    ///
    /// # Errors
    /// As there.
    pub async fn add_over(
        &self,
        gateway: Gateway,
        path: &str,
        options: AddOptions,
        wiped: Vec<Range<u64>>,
    ) -> Result<AddOutcome, ManageError> {
        let path = path.to_owned();
        let options = AddOptions { spare_only: true, ..options };
        let add = move |array: Arc<Self>| async move {
            array.add_now(gateway, path, options, &wiped).await
        };
        self.change(add).await
    }

    async fn add_now(
        &self,
        gateway: Gateway,
        path: String,
        options: AddOptions,
        wiped: &[Range<u64>],
    ) -> Result<AddOutcome, ManageError> {
        self.check_manageable()?;
        forget_losses(&gateway).await;
        let mut superblocks = self.superblocks_to_change().await?;
        if let Some(sb) = self.former(&superblocks, &gateway, &path).await?
            && !options.spare_only
        {
            let candidate = Candidate { gateway: gateway.clone(), path: path.clone(), sb };
            if self.slot_for(&superblocks, &candidate, None).is_ok() {
                drop(superblocks);
                match self.re_add_now(candidate, options, None).await {
                    // Another change came first, and it cannot return any more.
                    Err(ManageError::ReAdd { .. }) => {}
                    returned => return Ok(AddOutcome::Returned(returned?)),
                }
                superblocks = self.superblocks_to_change().await?;
                self.former(&superblocks, &gateway, &path).await?;
            }
        }
        self.check_recordable(&superblocks)?;
        if !self
            .core
            .personality()
            .is_readable_with(|slot| self.core.members.in_sync(slot).is_some())
        {
            return Err(ManageError::ArrayFailed { array: self.name(), path });
        }
        let index = self.add_spare(&mut superblocks, gateway, path, options, wiped).await?;
        drop(superblocks);
        self.core.sync_wakeup.wake();
        Ok(AddOutcome::Spare(index))
    }

    /// Checks that a device is not a member, and that the array's I/O fits it; returns its superblock.
    async fn former(
        &self,
        superblocks: &Superblocks,
        gateway: &Gateway,
        path: &str,
    ) -> Result<Option<Box<Superblock>>, ManageError> {
        self.check_device(gateway, path, None)?;
        let old = match probe(gateway).await {
            Ok(old) => old,
            // A damaged superblock is overwritten.
            Err(ProbeError::Superblock(_)) => None,
            Err(error @ ProbeError::Read(_)) => {
                return Err(ManageError::Probe { path: path.to_owned(), error });
            }
        };
        if let Some(sb) = &old {
            self.check_new(superblocks, sb, path, None)?;
        }
        Ok(old)
    }

    /// Writes a new member's metadata, durably, its superblock last, and records it on the others.
    async fn add_spare(
        &self,
        superblocks: &mut Superblocks,
        gateway: Gateway,
        path: String,
        options: AddOptions,
        wiped: &[Range<u64>],
    ) -> Result<Index, ManageError> {
        let member = NewMember {
            device: gateway.capacity(),
            device_uuid: options.device_uuid,
            flags: options.flags(DeviceFlags::default()),
        };
        let model =
            self.core.model(superblocks).ok_or_else(|| ManageError::Version(self.name()))?;
        let number = superblocks.free_number(self.core.members.slots());
        let number = number.ok_or_else(|| {
            let why = "the superblocks of the members have no room for another one";
            ManageError::Misfit { path: path.clone(), why }
        })?;
        let sb = change::join(model, number, &member).map_err(|error| {
            if matches!(error, CreateError::TooSmall { .. }) {
                ManageError::TooSmall(path.clone())
            } else {
                ManageError::Metadata(error)
            }
        })?;
        if !sb.data_offset.is_aligned(gateway.disk().limits().logical_block()) {
            let why = "the data of the members begins within one of its blocks";
            return Err(ManageError::Misfit { path, why });
        }
        let failed = |status| ManageError::Device { path: path.clone(), status };
        ByteVolume::new(gateway.clone()).wipe(wiped).await.map_err(failed)?;
        self.write_metadata(&gateway, &sb).await.map_err(failed)?;
        let bad = match &sb.bad_block_log {
            Some(place) => BadBlocks::empty(place).map_err(|_| failed(Status::Invalid))?,
            None => BadBlocks::none(),
        };
        info!(array = self.core.name(), member = path, "added");
        let rdev = Rdev::new(gateway, path, &sb, State::empty(), bad);
        let index = self.join(superblocks, rdev, None, Place::Spare, sb)?;
        if let Err(error) = self.record(superblocks).await {
            self.drop_member(index);
            return Err(error);
        }
        Ok(index)
    }

    async fn write_metadata(&self, gateway: &Gateway, sb: &Superblock) -> Result<(), Status> {
        erase_others(gateway, sb.version).await?;
        if let (Some(bitmap), Some(at)) = (self.bitmap(), sb.bitmap_start()) {
            write_within(gateway, at, &bitmap.encode()).await?;
        }
        if let (Some(place), Some(at)) = (sb.bad_block_log, sb.bad_block_log_start()) {
            // The old bytes may look like a log.
            write_within(gateway, at, &vec![0xff; place.len.bytes() as usize]).await?;
        }
        if let Some(area) = sb.ppl_area() {
            // What an earlier array has logged there must not be applied to this one.
            let empty = Log::default();
            let valid = self.core.ppl().is_some_and(Ppl::is_on).then_some(&empty);
            write_empty(gateway, area, valid, ppl::signature(sb.set_uuid)).await?;
        }
        let block = gateway.disk().limits().logical_block_bytes;
        let bytes = sb.encode(block).map_err(|_| Status::Invalid)?;
        write_block(gateway, sb.super_offset, &bytes).await
    }
}

/// Writes whole blocks, durably.
async fn write_block(gateway: &Gateway, at: Sector, bytes: &[u8]) -> Result<(), Status> {
    let mut buffer = Buffer::from_slice(bytes);
    let bio = Bio::write_from(at, &mut buffer).with_flags(Flags::FUA | Flags::META);
    gateway.submit(bio).await
}
