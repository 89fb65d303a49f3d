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
//! # The event count
//!
//! Assembly accepts a member whose count is one behind the highest: the crash came between two
//! superblock writes. So an update is made of rounds, each of which takes all members one up and
//! ends before the next begins; no crash leaves a good member two behind. A member that failed must
//! be further behind than one (older kernels go by the count alone), so an update that records a
//! failure has as many rounds as make it two above whatever the failed member may have.
//!
//! A round that some member did not take, which may not fail, is tried again with the *same* count
//! next time: otherwise each try would take the others one further away from it.
//!
//! # Bitmaps
//!
//! An internal bitmap is not kept up by this version. While the array is written its bitmap has an
//! older event count than the superblocks, which md takes as "out of date: resync everything".
//! After the superblocks say clean the bitmap's count is brought up, because then every copy is the
//! same; in this order, so that a bitmap is never as new as superblocks that say active.
//! `events_cleared` goes along: a member that was away meanwhile must not come back by way of bits
//! that were never set. Lockless bitmaps also say what was never written; such arrays are only read.

use std::time::Duration;

use ashlar_block::{Bio, Buffer, Flags, Sector, Sectors, Status};
use tracing::{error, warn};

use crate::ondisk::bitmap_super::{self, BitmapSuper};
use crate::ondisk::{Role, Superblock, Timestamp};
use crate::rdev::Rdev;

/// The superblocks, in the order of the array's members (a slot without member has none).
pub struct Superblocks {
    blocks: Vec<Option<Superblock>>,
    /// What every member in sync has reached.
    events: u64,
    /// The highest count that any member may have.
    tried: u64,
    /// The count to be reached so that members which failed are too far behind.
    goal: u64,
    /// Some member is one behind since the last crash.
    uneven: bool,
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
        let events = freshest.events;
        let uneven = blocks.iter().flatten().any(|block| block.events != events);
        for block in blocks.iter_mut().flatten() {
            block.roles.clone_from(&freshest.roles);
            block.events = events;
        }
        Self { blocks, events, tried: events, goal: 0, uneven, clean: freshest.is_clean() }
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
        // What was found goes to everybody first, so that nobody is two behind in what follows.
        while self.uneven {
            self.uneven = !self.round(self.events, members, now, &may_fail).await?;
        }
        match change {
            Change::Active => self.clean = false,
            Change::Clean => self.clean = true,
            Change::Failure => {}
        }
        loop {
            let number = self.events.saturating_add(1);
            if self.round(number, members, now, &may_fail).await? {
                self.events = number;
                if number >= self.goal {
                    break;
                }
            }
        }
        if self.clean {
            self.bring_up_bitmaps(members).await;
        }
        Ok(())
    }

    /// Writes the state with the event count `number` to all members that have not failed; true if
    /// all took it. Those that did not are faulty then.
    async fn round(
        &mut self,
        number: u64,
        members: &[Option<Rdev>],
        now: Duration,
        may_fail: &impl Fn(&Rdev) -> bool,
    ) -> Result<bool, Status> {
        if self.describe(members, number, now) {
            self.goal = self.tried.saturating_add(2);
        }
        self.tried = self.tried.max(number);
        let failed = self.write_all(members).await;
        let all = failed.is_empty();
        let mut result = Ok(all);
        for (rdev, status) in failed {
            error!(member = rdev.path(), %status, "superblock write failed");
            if may_fail(rdev) {
                rdev.set_faulty();
            } else {
                // On disk the old state or the new one; the next update writes it anew.
                self.clean = false;
                result = Err(status);
            }
        }
        result
    }

    /// Puts the state into the superblocks in memory; true if a member's failure is new in it.
    fn describe(&mut self, members: &[Option<Rdev>], number: u64, now: Duration) -> bool {
        let Some(mut roles) = self.blocks.iter().flatten().next().map(|b| b.roles.clone()) else {
            return false;
        };
        // Whoever is recorded as active but is not here and in sync has failed, or is missing.
        let mut news = false;
        for role in &mut roles {
            if let Role::Active(slot) = *role {
                let alive = members.get(usize::from(slot)).and_then(Option::as_ref);
                if !alive.is_some_and(Rdev::is_in_sync) {
                    *role = Role::Faulty;
                    news = true;
                }
            }
        }
        let utime = Timestamp::from_seconds(now.as_secs());
        for (block, rdev) in self.blocks.iter_mut().zip(members) {
            let (Some(block), Some(rdev)) = (block, rdev) else { continue };
            block.roles.clone_from(&roles);
            block.events = number;
            block.utime = utime;
            block.resync_offset = if self.clean { Sectors::MAX } else { Sectors::ZERO };
            if block.block_1().is_some() {
                block.corrected_reads = u32::try_from(rdev.errors().1).unwrap_or(u32::MAX);
            }
        }
        news
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
        write_at(rdev, block.super_offset, &bytes).await
    }

    /// A bitmap that stays behind is out of date and no danger, so its errors fail nobody.
    async fn bring_up_bitmaps(&self, members: &[Option<Rdev>]) {
        let writes = self.blocks.iter().zip(members).filter_map(|(block, rdev)| {
            let rdev = rdev.as_ref().filter(|rdev| rdev.is_in_sync())?;
            let at = block.as_ref()?.bitmap_start()?;
            Some(async move { (rdev, bring_up_bitmap(rdev, at, self.events).await) })
        });
        for (rdev, result) in futures_util::future::join_all(writes).await {
            if let Err(status) = result {
                warn!(member = rdev.path(), %status, "the bitmap stays out of date");
            }
        }
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
    let mut bitmap = match BitmapSuper::parse(buffer.as_slice()) {
        Ok(bitmap) => bitmap,
        Err(error) => {
            warn!(member = rdev.path(), %error, "bitmap left alone");
            return Ok(());
        }
    };
    bitmap.set_events(events);
    bitmap.events_cleared = events.into();
    let encoded = zerocopy::IntoBytes::as_bytes(&bitmap);
    buffer.as_mut_slice()[..encoded.len()].copy_from_slice(encoded);
    let bio = Bio::write_from(at, &mut buffer).with_flags(Flags::FUA | Flags::META);
    rdev.gateway().submit(bio).await
}
