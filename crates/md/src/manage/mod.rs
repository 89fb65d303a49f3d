//! Changes of a running array's members and shape: mdadm's Manage mode, and the part of its Grow mode that needs
//! no reshape.
//!
//! # Order
//!
//! Changes exclude each other: each holds the superblocks' lock from its first check to its end. Changes
//! of the array's shape (size, bitmap) first end a running sync and freeze the array, because
//! the I/O path reads both without a lock. Changes of membership freeze nothing: I/O reads the member of a slot
//! with one load after it passed the barrier, and a new member is not read
//! before recovery, which raises the barrier in each place, so that writes that did not see the member
//! have ended there before recovery copies their data. Only a member that returns for the second time and later closes the barrier for a
//! moment, at most for a second, before it takes the lock: then a former membership can be used again ([`membership::slots`](crate::membership::slots)).
//!
//! # Crashes
//!
//! A change takes effect as soon as *one* superblock with it is on disk: the next assembly trusts the
//! freshest superblock. So the promises of the new superblock are durable on all members before the
//! first one is written, and the promises of the old superblock hold
//! until the last one is overwritten:
//!
//! | change | before the superblocks | after |
//! |---|---|---|
//! | a device is added | its bitmap, bad block log, superblock as a spare | |
//! | a spare is put into a slot | its bitmap | it is rebuilt |
//! | a bitmap is added | the bitmap on all members | writes |
//! | a bitmap is removed | | it is no longer written |
//! | the array grows | | the bitmap covers the new part, writes go there |
//! | the array shrinks | no write goes beyond; the bitmap covers less | |
//!
//! A change that could not be recorded and cannot be reverted remains in force: no write is
//! acknowledged until it is recorded.
//!
//! Messages are mdadm's where they exist.

use ashlar_block::{Sectors, Status};
use futures_util::lock::MutexGuard;
use thiserror::Error;

use crate::array::Array;
use crate::bitmap::BitmapError;
use crate::core::failing::Need;
use crate::membership::rdev::Rdev;
use crate::membership::slots::Index;
use crate::membership::superblocks::{Change, Superblocks};
use crate::ondisk::create::CreateError;
use crate::ondisk::fields::MAX_ROLES;
use crate::ondisk::{Level, SuperblockError, Version};
use crate::probe::ProbeError;
use crate::raid10::geometry::GeometryError;

mod add;
mod bitmap;
mod flags;
mod grow;
mod joining;
mod remove;
mod replace;
mod returning;
mod state;

pub use add::{AddOptions, AddOutcome};
pub use flags::{FlagChange, MemberFlag};
pub use grow::GrowOptions;

/// Why a change was not made. Unless stated otherwise the array is unchanged.
#[derive(Debug, Error)]
pub enum ManageError {
    /// The array is read-only.
    #[error("{0} is read-only")]
    ReadOnly(String),
    /// The array was stopped.
    #[error("{0} is not running")]
    Stopped(String),
    /// The level's members cannot be changed.
    #[error("{array} is a {level}: its members and shape cannot be changed while it runs")]
    Level {
        /// The array.
        array: String,
        /// Its level.
        level: Level,
    },
    /// The metadata version cannot record the change.
    #[error("{0} has version 0.90 superblocks, which cannot record that here")]
    Version(String),
    /// There is no such member.
    #[error("{array} has no member {index}")]
    NoMember {
        /// The array.
        array: String,
        /// The requested index.
        index: Index,
    },
    /// The device is already in the array.
    #[error("{0} is a member already")]
    IsMember(String),
    /// The failed member that was to be re-added has been removed since.
    #[error("{path} was removed from {array} before it could be re-added")]
    Removed {
        /// The device.
        path: String,
        /// The array.
        array: String,
    },
    /// The device has less room than the array uses of its members.
    #[error("{0} not large enough to join array")]
    TooSmall(String),
    /// The device cannot be written.
    #[error("{0} is read-only, it cannot be a member")]
    ReadOnlyDevice(String),
    /// The array's I/O does not fit the device.
    #[error("{path} cannot join while the array runs: {why}")]
    Misfit {
        /// The device.
        path: String,
        /// What does not fit.
        why: &'static str,
    },
    /// The array has no copy of some of its data.
    #[error(
        "{array} has failed so adding {path} cannot work and might destroy data on it. You should stop \
         the array and re-assemble it"
    )]
    ArrayFailed {
        /// The array.
        array: String,
        /// The device.
        path: String,
    },
    /// The device lacks more than the bitmap marks.
    #[error("re-adding {path} to {array} is not possible: {why}; adding it rebuilds it")]
    ReAdd {
        /// The device.
        path: String,
        /// The array.
        array: String,
        /// Why not.
        why: &'static str,
    },
    /// The array cannot continue without the member.
    #[error("set device faulty failed for {path}: Device or resource busy: {why}")]
    Needed {
        /// The member.
        path: String,
        /// Why.
        why: Need,
    },
    /// Another number of members would require moving data.
    #[error(
        "{array} is a {level}: another number of devices needs a reshape, which ashlar does not do; \
         nothing was changed"
    )]
    Reshape {
        /// The array.
        array: String,
        /// Its level.
        level: Level,
    },
    /// A number of members that no array can have.
    #[error("an array cannot have {0} devices: 1 to {MAX_ROLES} are possible")]
    Devices(usize),
    /// A working member is in a slot that would be removed.
    #[error(
        "{path} is in slot {slot}, which an array of {wanted} devices does not have: fail it \
         first; nothing was changed"
    )]
    SlotInUse {
        /// The member.
        path: String,
        /// Its slot.
        slot: usize,
        /// The requested number of slots.
        wanted: usize,
    },
    /// The member is in use.
    #[error("hot remove failed for {0}: Device or resource busy")]
    InUse(String),
    /// Only working members in slots can be replaced.
    #[error("{0} is not active and so cannot be replaced")]
    NotActive(String),
    /// A failed member cannot replace another.
    #[error("{0} is faulty and cannot be a replacement")]
    FaultyReplacement(String),
    /// A member in a slot cannot replace another.
    #[error("{0} is active and cannot be a replacement")]
    ActiveReplacement(String),
    /// The member is already being replaced.
    #[error("{0} is being replaced by another member already")]
    BeingReplaced(String),
    /// A word that is not a state, or one that cannot be set now.
    #[error("a member cannot be set to '{0}'")]
    Word(String),
    /// A word that is not a state of an array, or one that cannot be set.
    #[error(
        "{array} cannot be set to '{word}': clear, inactive, readonly, read-auto, clean and active are possible"
    )]
    State {
        /// The array.
        array: String,
        /// The word.
        word: String,
    },
    /// A state of an array that runs, for one that does not.
    #[error("{array} is inactive and cannot be set to '{word}': clear is possible")]
    Inactive {
        /// The array.
        array: String,
        /// The word.
        word: String,
    },
    /// Writes are under way.
    #[error("{0} is being written")]
    Writing(String),
    /// Invalid bad blocks.
    #[error("{path}: {why}")]
    BadBlocks {
        /// The member.
        path: String,
        /// Why not.
        why: String,
    },
    /// A member has less room than the new size needs.
    #[error("{path} has room for {room} sectors, not {wanted}")]
    NoRoom {
        /// The member.
        path: String,
        /// Sectors of its data area.
        room: Sectors,
        /// Sectors needed.
        wanted: Sectors,
    },
    /// A smaller size, without the user's confirmation.
    #[error(
        "{array} would shrink from {from} to {to} sectors and lose the data beyond: to shrink it \
         nevertheless, use ashlar md grow --force"
    )]
    Shrinks {
        /// The array.
        array: String,
        /// Its size.
        from: Sectors,
        /// The size it would have.
        to: Sectors,
    },
    /// A far layout, which the kernel does not resize either.
    #[error("the size of a raid10 with far copies cannot be changed")]
    FarLayout,
    /// The size is invalid for the level.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The size is too small.
    #[error("an array cannot use {0} sectors of each member")]
    Size(Sectors),
    /// The array has a bitmap.
    #[error("bitmap already present on {0}")]
    BitmapPresent(String),
    /// The array has no bitmap.
    #[error("no bitmap found on {0}")]
    NoBitmap(String),
    /// The new member's superblock, or the place of a bitmap, is impossible.
    #[error(transparent)]
    Metadata(#[from] CreateError),
    /// The bitmap is impossible.
    #[error(transparent)]
    Bitmap(#[from] BitmapError),
    /// The device's superblock is damaged or cannot be read.
    #[error("{path}: {error}")]
    Probe {
        /// The device.
        path: String,
        /// What is wrong.
        error: ProbeError,
    },
    /// A superblock that cannot be written.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// The device could not be read or written.
    #[error("{path}: {status}")]
    Device {
        /// The device.
        path: String,
        /// Why.
        status: Status,
    },
    /// The superblocks or the bitmap could not be written. Whether the change is on the members is
    /// unknown; writing is retried before the next write is acknowledged.
    #[error("{array}: cannot record the change: {status}")]
    Record {
        /// The array.
        array: String,
        /// Why.
        status: Status,
    },
}

impl Array {
    pub(super) fn name(&self) -> String {
        self.core.name().to_owned()
    }

    /// Checks that members and shape can be changed at all.
    fn check_manageable(&self) -> Result<(), ManageError> {
        if !self.core.is_redundant() {
            let level = self.core.personality().level();
            return Err(ManageError::Level { array: self.name(), level });
        }
        if self.is_stopped() {
            return Err(ManageError::Stopped(self.name()));
        }
        if !self.core.is_writable() || self.core.disk.is_read_only() {
            return Err(ManageError::ReadOnly(self.name()));
        }
        Ok(())
    }

    /// Locks the superblocks for a change. A stop locks them last: a change that locks them later is
    /// refused. As in the kernel, a change ends the auto-read-only state as a write does.
    async fn superblocks_to_change(&self) -> Result<MutexGuard<'_, Superblocks>, ManageError> {
        self.check_manageable()?;
        let superblocks = self.core.superblocks().await;
        self.check_manageable()?;
        self.core.end_auto_read_only();
        Ok(superblocks)
    }

    /// Checks that the superblocks can record more than failures of members.
    fn check_recordable(&self, superblocks: &Superblocks) -> Result<(), ManageError> {
        match self.core.model(superblocks) {
            Some(sb) if sb.version != Version::V0_90 => Ok(()),
            Some(_) | None => Err(ManageError::Version(self.name())),
        }
    }

    /// The member with an index. Ask again after each await without the superblocks' lock: it may have been removed.
    fn member(&self, index: Index) -> Result<&Rdev, ManageError> {
        let here = self.core.members.get(index).filter(|rdev| !rdev.is_removed());
        here.ok_or_else(|| ManageError::NoMember { array: self.name(), index })
    }

    /// Runs a change to its end, even if the caller stops waiting.
    async fn change<T: 'static, F>(
        &self,
        work: impl FnOnce(std::sync::Arc<Self>) -> F + 'static,
    ) -> Result<T, ManageError>
    where
        F: Future<Output = Result<T, ManageError>>,
    {
        match self.uncancellable(|array| async move { Ok(work(array).await) }).await {
            Ok(result) => result,
            Err(status) => Err(self.not_recorded(status)),
        }
    }

    /// Writes the superblocks, with a change of the members or the shape.
    async fn record(&self, superblocks: &mut Superblocks) -> Result<(), ManageError> {
        let recorded = self.core.record(superblocks, Change::Members).await;
        recorded.map_err(|status| self.not_recorded(status))
    }

    fn not_recorded(&self, status: Status) -> ManageError {
        ManageError::Record { array: self.name(), status }
    }
}
