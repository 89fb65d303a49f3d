//! The superblocks of a running array: the causes, times and order of their writes.
//!
//! A superblock update writes the same state to every member that has not failed, with FUA, and ends
//! when all of them have it. Updates never overlap. A member that cannot take its superblock
//! has failed, and the others are rewritten to record that. Three events cause an update:
//!
//! | event | must be on disk before |
//! |---|---|
//! | clean to active | the first write goes to any member |
//! | a member failed | the write that found the failure is acknowledged |
//! | active to clean | nothing; but every write before it has ended and was flushed |
//!
//! # The event count
//!
//! Assembly accepts a member whose count is one behind the highest: the crash happened between two
//! superblock writes. So an update consists of rounds, each of which increases the count of all members by one and
//! ends before the next begins; no crash leaves a good member two behind. A member that failed must
//! be further behind than one (older kernels use only the count), so an update that records a
//! failure has enough rounds to end two above any count that the failed member may have.
//!
//! A round that a member did not take, and that member must not fail, is retried with the *same* count:
//! otherwise each try would move the others one further away from it.
//!
//! # Other hosts
//!
//! Where no lock keeps other hosts away from a member, each round first reads its superblock. If its event count is higher than
//! any that this array has written, another host has started the array and written it: then the member fails here, and if it must
//! stay, nothing is written any more (see [`elsewhere`](crate::assemble::elsewhere)).
//!
//! # Bitmap and bad blocks
//!
//! The bitmap's superblock is written before each round with the round's count: md treats a bitmap that is
//! older than the superblocks as out of date. A member's bad block log is written before its
//! superblock announces it.

use std::time::Duration;

use ashlar_block::{Bio, Buffer, Flags, Sector, Sectors, Status, rate_limited};
use tracing::error;

use crate::bitmap::{Bitmap, Store};
use crate::canary::{Rule, broken};
use crate::membership::rdev::{Rdev, State};
use crate::membership::slots::{Index, Members, Place};
use crate::metadata::write_within;
use crate::ondisk::fields::{MAX_ROLES, in_use};
use crate::ondisk::ppl::SEVERAL_LOGS;
use crate::ondisk::{Features, Role, Superblock, Timestamp};
use crate::probe::read_around;

/// The length of a superblock, at most.
const SUPERBLOCK: Sectors = Sectors(8);

/// The superblocks of an array's members.
pub(crate) struct Superblocks {
    /// By member index; array-wide fields are updated before each write.
    blocks: Vec<Superblock>,
    /// The role of each member ever used, by its number.
    roles: Vec<Role>,
    /// The event count that every member in a slot has reached.
    events: u64,
    /// The highest event count that any member may have.
    tried: u64,
    /// The event count that must be reached so that failed members are too far behind.
    goal: u64,
    /// Some member is one event behind since the last crash.
    uneven: bool,
    clean: bool,
}

/// What an update records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// The array is about to be written.
    Active,
    /// The array has been idle for a while, or stops.
    Clean,
    /// Members failed, were added or removed, or were rebuilt further.
    Members,
}

/// What an update needs to know about the array.
#[derive(Clone, Copy)]
pub(crate) struct Facts<'a> {
    /// Its members.
    pub members: &'a Members,
    /// How far its copies are known to be the same without writes under way; [`Sectors::MAX`] for all.
    pub in_sync_to: Sectors,
    /// Time since 1970.
    pub now: Duration,
    /// Its bitmap and the bitmap's store.
    pub bitmap: Option<(&'a Bitmap, &'a dyn Store)>,
}

impl Superblocks {
    /// The superblocks as read at assembly, by member index, updated in memory to the freshest's state.
    pub(crate) fn new(blocks: Vec<Superblock>, members: &Members, freshest: &Superblock) -> Self {
        let events = freshest.events;
        let placed = |index| members.place(index) != Place::Spare;
        let mut numbered = (0..).zip(&blocks);
        let uneven = numbered.any(|(index, block)| placed(index) && block.events != events);
        let roles = freshest.roles.clone();
        let mut this = Self {
            blocks,
            roles,
            events,
            tried: events,
            goal: 0,
            uneven,
            clean: freshest.is_clean(),
        };
        for block in &mut this.blocks {
            block.set_roles(&freshest.roles);
            block.events = events;
        }
        this
    }

    /// The event count.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// Whether the superblocks on disk say that no writes are under way.
    pub(crate) fn is_clean(&self) -> bool {
        self.clean
    }

    /// The superblock of a member.
    pub(crate) fn of(&self, index: Index) -> Option<&Superblock> {
        self.blocks.get(index as usize)
    }

    /// Takes the superblock of a member that was just added to the members' table.
    pub(crate) fn put(&mut self, index: Index, block: Superblock) {
        match self.blocks.get_mut(index as usize) {
            Some(former) => *former = block,
            None => self.blocks.push(block),
        }
    }

    /// Changes every superblock: for properties of the array.
    pub(crate) fn change(&mut self, change: impl FnMut(&mut Superblock)) {
        self.blocks.iter_mut().for_each(change);
    }

    /// A number for a new member, which no member has or had; `None` if a superblock has no room for another role.
    pub(crate) fn free_number(&self, slots: usize) -> Option<u32> {
        let taken = |number: usize| self.blocks.iter().any(|b| b.dev_number as usize == number);
        let unused = |number: usize| self.roles.get(number).is_none_or(|r| *r == Role::Spare);
        let number = (slots..MAX_ROLES).find(|number| unused(*number) && !taken(*number))? as u32;
        self.have_room_for(number).then_some(number)
    }

    /// Whether all superblocks can record a role for this number.
    pub(crate) fn have_room_for(&self, number: u32) -> bool {
        self.blocks.iter().all(|block| (number as usize) < block.room())
    }

    /// How many roles a superblock must be able to record.
    pub(crate) fn roles_in_use(&self) -> usize {
        in_use(&self.roles)
    }

    /// Writes the superblock of a new member, with the others' event count, before any of their
    /// superblocks lists it.
    ///
    /// # Errors
    /// The member's error, or that it has failed by now: it must not learn that from its own superblock, which would keep it from returning.
    pub(crate) async fn introduce(&mut self, index: Index, facts: Facts<'_>) -> Result<(), Status> {
        if facts.members.get(index).is_some_and(Rdev::is_faulty) {
            return Err(Status::Offline);
        }
        if self.describe(facts, self.events) {
            self.goal = self.tried.saturating_add(2);
        }
        match (self.of(index), facts.members.get(index)) {
            (Some(block), Some(rdev)) => self.write_one(block, rdev).await,
            (_, None) | (None, _) => Ok(()),
        }
    }

    /// Writes the array's state to all members that have not failed. `fail` fails members that do not
    /// take it, or returns false if they must stay; the failures are then recorded on the others.
    ///
    /// # Errors
    /// A member that must stay did not take its superblock: nothing that depends on the change may
    /// proceed.
    pub(crate) async fn update(
        &mut self,
        facts: Facts<'_>,
        change: Change,
        fail: impl Fn(&Rdev, Status) -> bool,
    ) -> Result<(), Status> {
        // Write the state found to all members first, so that none is ever two events behind.
        while self.uneven {
            self.uneven = !self.round(self.events, facts, &fail).await?;
        }
        let before = self.clean;
        match change {
            Change::Active => self.clean = false,
            Change::Clean => self.clean = true,
            Change::Members => {}
        }
        let result = self.rounds(facts, &fail).await;
        if result.is_err() {
            // The disks have the old state or the new one: it is clean only if both are.
            self.clean &= before;
        }
        result
    }

    /// Runs rounds until all members have the state.
    async fn rounds(
        &mut self,
        facts: Facts<'_>,
        fail: &impl Fn(&Rdev, Status) -> bool,
    ) -> Result<(), Status> {
        loop {
            let number = self.events.saturating_add(1);
            if self.round(number, facts, fail).await? {
                self.events = number;
                if number >= self.goal {
                    return Ok(());
                }
            }
        }
    }

    /// Writes the state with the event count `number` to all members that have not failed; true if
    /// all took it. Members that did not are then faulty.
    async fn round(
        &mut self,
        number: u64,
        facts: Facts<'_>,
        fail: &impl Fn(&Rdev, Status) -> bool,
    ) -> Result<bool, Status> {
        for (rdev, status) in self.taken(facts.members).await {
            let member = rdev.path();
            rate_limited!(error, member, %status, "{}", why_taken(status));
            if !fail(rdev, status) {
                return Err(status);
            }
        }
        // A bitmap older than the superblocks would count as out of date.
        if let Some((bitmap, store)) = facts.bitmap {
            bitmap.write_super(number, store).await?;
        }
        if self.describe(facts, number) {
            self.goal = self.tried.saturating_add(2);
        }
        self.tried = self.tried.max(number);
        let failed = self.write_all(facts.members).await;
        let all = failed.is_empty();
        let mut result = Ok(all);
        for (rdev, status) in failed {
            rate_limited!(error, member = rdev.path(), %status, "superblock write failed");
            if !fail(rdev, status) {
                result = Err(status);
            }
        }
        result
    }

    /// The members that other hosts can write, and whose superblock has a higher event count than any that this array has written, or
    /// belongs to another array: [`Status::Conflict`]. Also those that are offline, so that their write does not wait for them once more.
    /// Another error says nothing: the write finds out.
    async fn taken<'a>(&self, members: &'a Members) -> Vec<(&'a Rdev, Status)> {
        let shared = |rdev: &Rdev| rdev.gateway().disk().is_shared() && !rdev.is_faulty();
        let reads = members.iter().filter(|(_, rdev)| shared(rdev)).filter_map(|(index, rdev)| {
            let block = self.of(index)?;
            Some(async move {
                let device = rdev.gateway();
                let read = read_around(device, block.super_offset, SUPERBLOCK);
                let bytes = match rdev.unless_failed(read).await {
                    Ok(bytes) => bytes,
                    Err(status) => return status.is_gone().then_some((rdev, status)),
                };
                let found = Superblock::parse(block.version, &bytes, device.capacity()).ok()?;
                let is_ours = found.set_uuid == block.set_uuid && found.events <= self.tried;
                (!is_ours).then_some((rdev, Status::Conflict))
            })
        });
        futures_util::future::join_all(reads).await.into_iter().flatten().collect()
    }

    /// Puts the state into the superblocks in memory; true if that records a new failure of a member.
    fn describe(&mut self, facts: Facts<'_>, number: u64) -> bool {
        let has_new_failure = self.assign_roles(facts.members);
        let utime = Timestamp::from_seconds(facts.now.as_secs());
        for (index, rdev) in facts.members.iter() {
            let Some(block) = self.blocks.get_mut(index as usize) else { continue };
            block.set_roles(&self.roles);
            block.events = number;
            block.utime = utime;
            block.resync_offset = if self.clean { facts.in_sync_to } else { Sectors::ZERO };
            if block.block_1().is_none() {
                continue;
            }
            if block.ppl.is_some_and(|ppl| ppl.len >= SEVERAL_LOGS) {
                // As Linux does: mdadm writes the other bit.
                let features = block.features.set_to(Features::PPL, false);
                block.features = features.set_to(Features::MULTIPLE_PPLS, true);
            }
            let place = facts.members.place(index);
            let rebuilding = place != Place::Spare && !rdev.is_in_sync();
            block.recovery_offset = rebuilding.then(|| rdev.durably_recovered());
            let replaces = matches!(place, Place::Replacement(_));
            block.features = block.features.set_to(Features::REPLACEMENT, replaces);
            let returns = rebuilding && rdev.state().contains(State::RETURNS);
            block.features = block.features.set_to(Features::RECOVERY_BITMAP, returns);
            let lists = !rdev.bad_blocks().is_empty();
            if !rdev.bad_blocks().changed() {
                block.features = block.features.set_to(Features::BAD_BLOCKS, lists);
            }
            block.flags = rdev.device_flags();
            block.corrected_reads = u32::try_from(rdev.errors().1).unwrap_or(u32::MAX);
        }
        has_new_failure
    }

    /// Updates the role of each number; true if an active one has failed.
    fn assign_roles(&mut self, members: &Members) -> bool {
        let mut has_new_failure = false;
        for (_, rdev) in members.iter() {
            let number = rdev.number() as usize;
            if self.roles.len() <= number {
                self.roles.resize(number + 1, Role::Spare);
            }
        }
        for (number, role) in self.roles.iter_mut().enumerate() {
            let present = members.iter().find(|(_, rdev)| rdev.number() as usize == number);
            let now = match present {
                Some((_, rdev)) if rdev.is_faulty() => Role::Faulty,
                Some((index, _)) => match members.place(index) {
                    Place::Slot(slot) | Place::Replacement(slot) => Role::Active(slot as u16),
                    Place::Spare => Role::Spare,
                },
                // A member recorded as active but not present has failed or is missing.
                None if matches!(role, Role::Active(_)) => Role::Faulty,
                None => *role,
            };
            has_new_failure |= matches!(role, Role::Active(_)) && now == Role::Faulty;
            *role = now;
        }
        has_new_failure
    }

    /// Writes every superblock; returns the members that did not take it.
    async fn write_all<'a>(&self, members: &'a Members) -> Vec<(&'a Rdev, Status)> {
        let able = |rdev: &Rdev| !rdev.state().contains(State::FAULTY);
        let writes = members.iter().filter(|(_, rdev)| able(rdev)).filter_map(|(index, rdev)| {
            let block = self.of(index)?;
            Some(async move { (rdev, self.write_one(block, rdev).await) })
        });
        let done = futures_util::future::join_all(writes).await;
        done.into_iter().filter_map(|(rdev, result)| Some((rdev, result.err()?))).collect()
    }

    /// Writes a member's superblock, and before it the bad block log if that has changed.
    async fn write_one(&self, block: &Superblock, rdev: &Rdev) -> Result<(), Status> {
        let image = match block.bad_block_log_start() {
            Some(at) if rdev.bad_blocks().changed() => rdev.bad_blocks().take_image().zip(Some(at)),
            Some(_) | None => None,
        };
        let Some((image, at)) = image else { return self.write_block(block, rdev).await };
        // A block that is no longer bad was rewritten: make that durable before the log drops it.
        rdev.submit_flush().await?;
        write_within(rdev.gateway(), at, image.bytes()).await?;
        let mut block = block.clone();
        block.features = block.features.set_to(Features::BAD_BLOCKS, !image.is_empty());
        self.write_block(&block, rdev).await?;
        rdev.bad_blocks().acknowledge(image);
        Ok(())
    }

    async fn write_block(&self, block: &Superblock, rdev: &Rdev) -> Result<(), Status> {
        let bytes = block.encode(rdev.limits().logical_block_bytes).map_err(|defect| {
            error!(member = rdev.path(), %defect, "superblock cannot be written");
            Status::Invalid
        })?;
        write_at(rdev, block.super_offset, &bytes).await
    }
}

/// What [`Superblocks::taken`] has found out about a member, for the log.
fn why_taken(status: Status) -> &'static str {
    match status == Status::Conflict {
        true => {
            "the superblock is not the one that this array wrote: another host uses the array, or the device for another array"
        }
        false => "the superblock is not written: the device is offline or not responding",
    }
}

/// Writes whole blocks of metadata, durably.
async fn write_at(rdev: &Rdev, at: Sector, bytes: &[u8]) -> Result<(), Status> {
    let mut buffer = Buffer::from_slice(bytes);
    let durable = !broken(Rule::SuperblocksAreDurable);
    let fua = if durable { Flags::FUA } else { Flags::empty() };
    let bio = Bio::write_from(at, &mut buffer).with_flags(fua | Flags::META | Flags::SYNC);
    rdev.gateway().submit(bio).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_superblock_that_was_read_is_said_to_be_another_one() {
        for status in [Status::Offline, Status::Timeout, Status::Transport] {
            assert!(status.is_gone() && why_taken(status).contains("offline"), "{status}");
        }
        assert!(!Status::Conflict.is_gone() && why_taken(Status::Conflict).contains("not the one"));
    }
}
