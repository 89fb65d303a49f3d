//! The superblocks of a running array: who writes them, when, and in what order.
//!
//! A superblock update writes the same state to every member that has not failed, with FUA, and ends
//! when all of them have it. It never runs twice at a time. A member that cannot take its superblock
//! has failed, and the others are written again to say so. Three events make an update:
//!
//! | event | must be on disk before |
//! |---|---|
//! | clean to active | the first write goes to any member |
//! | a member failed | the write that found it is acknowledged |
//! | active to clean | nothing; but every write before it has ended and was flushed |
//!
//! The event count goes up by one each time, and by two when a member fails: assembly accepts
//! a member that is one event behind (a crash between two superblock writes), and a failed member
//! must be further behind than that.
//!
//! An internal bitmap is not kept up by this version. While the array is written its bitmap has an
//! older event count than the superblocks, which md takes as "out of date: resync everything"; a clean
//! stop brings the count up again, because then every copy is the same.

use std::time::Duration;

use ashlar_block::{Bio, Buffer, Flags, Sector, Sectors, Status};
use tracing::{error, warn};

use crate::ondisk::bitmap_super::{self, BitmapSuper};
use crate::ondisk::{Role, Superblock, Timestamp};
use crate::rdev::Rdev;

/// The superblocks, in the order of the array's members (a slot without member has none).
pub struct Superblocks {
    blocks: Vec<Option<Superblock>>,
    events: u64,
    clean: bool,
}

/// What an update records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The array is about to be written.
    Active,
    /// Nothing has been written for a while, or the array stops.
    Clean,
    /// Members failed.
    Failure,
}

impl Superblocks {
    /// The superblocks as read at assembly, brought to the freshest's state in memory.
    pub fn new(mut blocks: Vec<Option<Superblock>>, freshest: &Superblock) -> Self {
        for block in blocks.iter_mut().flatten() {
            block.roles.clone_from(&freshest.roles);
            block.events = freshest.events;
        }
        Self { blocks, events: freshest.events, clean: freshest.is_clean() }
    }

    /// The event count.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Whether the superblocks on disk say clean.
    pub fn is_clean(&self) -> bool {
        self.clean
    }

    /// The superblock of the member in `slot`.
    pub fn of(&self, slot: usize) -> Option<&Superblock> {
        self.blocks.get(slot)?.as_ref()
    }

    /// Writes the array's state to all members that have not failed. Members that do not take it are
    /// marked faulty, as far as `may_fail` lets them, and the others are told.
    ///
    /// # Errors
    /// A member that may not fail did not take its superblock: nothing that depends on the change may
    /// go on.
    pub async fn update(
        &mut self,
        members: &[Option<Rdev>],
        change: Change,
        now: Duration,
        may_fail: impl Fn(&Rdev) -> bool,
    ) -> Result<(), Status> {
        match change {
            Change::Active => self.clean = false,
            Change::Clean => self.clean = true,
            Change::Failure => {}
        }
        let mut failure = change == Change::Failure;
        loop {
            self.events += if failure { 2 } else { 1 };
            self.describe(members, now);
            let failed = self.write_all(members).await;
            if failed.is_empty() {
                return Ok(());
            }
            for (rdev, status) in failed {
                error!(member = rdev.path(), %status, "superblock write failed");
                if !may_fail(rdev) {
                    // On disk the old state or the new one; the next update writes both anew.
                    self.clean = false;
                    return Err(status);
                }
                rdev.set_faulty();
            }
            failure = true;
        }
    }

    /// Puts the state into the superblocks in memory.
    fn describe(&mut self, members: &[Option<Rdev>], now: Duration) {
        let Some(mut roles) = self.blocks.iter().flatten().next().map(|b| b.roles.clone()) else {
            return;
        };
        // Whoever is recorded as active but is not here and in sync has failed, or is missing.
        for role in &mut roles {
            if let Role::Active(slot) = *role {
                let alive = members.get(usize::from(slot)).and_then(Option::as_ref);
                if !alive.is_some_and(Rdev::is_in_sync) {
                    *role = Role::Faulty;
                }
            }
        }
        let utime = Timestamp::from_seconds(now.as_secs());
        for (block, rdev) in self.blocks.iter_mut().zip(members) {
            let (Some(block), Some(rdev)) = (block, rdev) else { continue };
            block.roles.clone_from(&roles);
            block.events = self.events;
            block.utime = utime;
            block.resync_offset = if self.clean { Sectors::MAX } else { Sectors::ZERO };
            if block.block_1().is_some() {
                let corrected = u32::try_from(rdev.errors().1).unwrap_or(u32::MAX);
                block.corrected_reads = block.corrected_reads.max(corrected);
            }
        }
    }

    /// Writes every superblock; the members that did not take it.
    async fn write_all<'a>(&self, members: &'a [Option<Rdev>]) -> Vec<(&'a Rdev, Status)> {
        let writes = self.blocks.iter().zip(members).filter_map(|(block, rdev)| {
            let (block, rdev) = (block.as_ref()?, rdev.as_ref().filter(|rdev| !rdev.is_faulty())?);
            Some(async move { (rdev, self.write_one(block, rdev).await) })
        });
        let done = futures_util::future::join_all(writes).await;
        done.into_iter().filter_map(|(rdev, result)| Some((rdev, result.err()?))).collect()
    }

    async fn write_one(&self, block: &Superblock, rdev: &Rdev) -> Result<(), Status> {
        let bytes = block.encode(rdev.limits().logical_block_bytes).map_err(|defect| {
            error!(member = rdev.path(), %defect, "superblock cannot be written");
            Status::Invalid
        })?;
        if self.clean
            && let Some(at) = block.bitmap_start()
        {
            // Before the superblock: a bitmap that is newer than its superblock is never taken for
            // one that is out of date, and all copies are the same already.
            bring_up_bitmap(rdev, at, self.events).await?;
        }
        write_at(rdev, block.super_offset, &bytes).await
    }
}

/// Writes whole blocks of metadata, durably.
async fn write_at(rdev: &Rdev, at: Sector, bytes: &[u8]) -> Result<(), Status> {
    let mut buffer = Buffer::from_slice(bytes);
    let bio = Bio::write_from(at, &mut buffer).with_flags(Flags::FUA | Flags::META | Flags::SYNC);
    rdev.gateway().submit(bio).await
}

/// Gives the bitmap's superblock the event count of a clean array.
async fn bring_up_bitmap(rdev: &Rdev, at: Sector, events: u64) -> Result<(), Status> {
    let block = rdev.limits().logical_block();
    let len = Sectors::from_bytes_ceil(bitmap_super::SIZE as u64).round_up(block);
    let mut buffer = rdev.gateway().read(at, len).await?;
    let Some(mut bitmap) = BitmapSuper::from_bytes(buffer.as_slice()) else {
        warn!(member = rdev.path(), "the bitmap's superblock is damaged; left alone");
        return Ok(());
    };
    bitmap.set_events(events);
    // A member that was away meanwhile must not come back by way of bits that were never set.
    bitmap.events_cleared = events.into();
    let encoded = zerocopy::IntoBytes::as_bytes(&bitmap);
    buffer.as_mut_slice()[..encoded.len()].copy_from_slice(encoded);
    let bio = Bio::write_from(at, &mut buffer).with_flags(Flags::FUA | Flags::META);
    rdev.gateway().submit(bio).await
}
