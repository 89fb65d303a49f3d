//! A member of an array.

use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use ashlar_block::shard::{SHARDS, thread_shard};
use ashlar_block::sync::until;
use ashlar_block::{
    Bio, Disk, Extents, Flags, Gateway, IoFuture, Limits, Sector, Sectors, Status, trace,
};
use bitflags::bitflags;
use event_listener::Event;
use futures_util::future::{Either, select};
use thiserror::Error;
use uuid::Uuid;

use crate::badblocks::BadBlocks;
use crate::canary::{Rule, broken};
use crate::membership::latency::Latency;
use crate::membership::read_errors::ReadErrors;
use crate::ondisk::{DeviceFlags, Superblock};

/// Where a thread's last read from a member ended, for read balancing; on separate cache lines.
#[derive(Default)]
#[repr(align(128))]
struct NextSector(AtomicU64);

bitflags! {
    /// State of a member (the kernel's `rdev->flags`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct State: u32 {
        /// Has all data.
        const IN_SYNC = 1;
        /// Failed: it missed writes, or cannot be trusted. Not cleared as long as the membership lasts.
        const FAULTY = 1 << 1;
        /// Read only if no other in-sync member has the block.
        const WRITE_MOSTLY = 1 << 2;
        /// Failed I/O on it is not retried.
        const FAILFAST = 1 << 3;
        /// The user wants it replaced as soon as there is a spare.
        const WANT_REPLACEMENT = 1 << 4;
        /// Will replace the member in its slot.
        const REPLACEMENT = 1 << 5;
        /// No longer a member: the user removed it.
        const REMOVED = 1 << 6;
        /// Had a write error in this run.
        const WRITE_ERROR = 1 << 7;
        /// Re-added: it lacks only what the bitmap marks, and only that is rebuilt.
        const RETURNS = 1 << 8;
        /// Failed because its device did not answer or was offline: it may return.
        const LOST = 1 << 9;
    }
}

/// Why a member fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub(crate) enum FailureCause {
    /// Its device returned this.
    #[error("{0}")]
    Device(Status),
    /// The user wants it to, or has had it replaced.
    #[error("set faulty")]
    User,
}

impl FailureCause {
    /// Whether the device may be online again later with its data.
    fn is_loss(self) -> bool {
        matches!(self, Self::Device(status) if status.is_gone())
    }
}

/// A member device: where its data lies, and its state.
///
/// A failed member has missed writes, so `FAULTY` is not cleared as long as the membership lasts. A write that skips the member
/// because of it must also see that the failure must be recorded (see `array`), so the two are
/// read and set in the same order.
///
/// A device that comes and goes has one membership after the other. One that has ended, and that no I/O can know any more, may
/// [become](Self::renew) a new one of the same device.
pub struct Rdev {
    gateway: Gateway,
    path: String,
    device_uuid: Uuid,
    number: u32,
    data_offset: Sectors,
    data_size: Sectors,
    state: AtomicU32,
    /// Its number among the array's memberships, in the order in which they began.
    began: AtomicU64,
    /// Notified when it fails.
    failed: Event,
    /// Sectors from the start of the data area that the member holds, if it is not in sync.
    recovered: AtomicU64,
    /// How many of them are durable, which is what the superblocks may say.
    durably_recovered: AtomicU64,
    /// The device's sector where the superblock of its bitmap is; [`u64::MAX`] for none.
    bitmap: AtomicU64,
    /// The device's sectors of the partial parity log, if the array has one.
    ppl: Option<Range<Sector>>,
    bad: BadBlocks,
    errors: ReadErrors,
    read_errors: AtomicU64,
    corrected: AtomicU64,
    /// The losses of its disk with which it was taken in, or must stay.
    accepted_losses: AtomicU64,
    latency: Latency,
    next_sectors: Box<[NextSector]>,
}

impl Rdev {
    /// The member at `path`, reached through `gateway`, as its superblock describes it, in `state` and what the superblock
    /// adds to that.
    pub(crate) fn new(
        gateway: Gateway,
        path: String,
        sb: &Superblock,
        mut state: State,
        bad: BadBlocks,
    ) -> Self {
        if sb.flags.write_mostly {
            state |= State::WRITE_MOSTLY;
        }
        if sb.flags.failfast {
            state |= State::FAILFAST;
        }
        let recovered = sb.recovery_offset.unwrap_or(Sectors::ZERO).0;
        let accepted_losses = gateway.known_losses();
        Self {
            gateway,
            path,
            device_uuid: sb.device_uuid,
            number: sb.dev_number,
            data_offset: Sectors(sb.data_offset.0),
            data_size: sb.data_size,
            state: AtomicU32::new(state.bits()),
            began: AtomicU64::new(0),
            failed: Event::new(),
            recovered: AtomicU64::new(recovered),
            durably_recovered: AtomicU64::new(recovered),
            bitmap: AtomicU64::new(sb.bitmap_start().map_or(u64::MAX, |at| at.0)),
            ppl: sb.ppl_area(),
            bad,
            errors: ReadErrors::default(),
            read_errors: AtomicU64::new(0),
            corrected: AtomicU64::new(0),
            accepted_losses: AtomicU64::new(accepted_losses),
            latency: Latency::default(),
            next_sectors: std::iter::repeat_with(NextSector::default).take(SHARDS).collect(),
        }
    }

    /// Whether the membership `next` has the same device, and is the same in what cannot change.
    pub(crate) fn may_become(&self, next: &Self) -> bool {
        let fixed = |rdev: &Self| {
            let place = (rdev.data_offset, rdev.data_size, rdev.ppl.clone());
            (rdev.device_uuid, rdev.number, place)
        };
        self.gateway.is_same(&next.gateway)
            && self.path == next.path
            && fixed(self) == fixed(next)
            && self.bad.is_like(&next.bad)
    }

    /// Begins the membership `next`, which this one [may become](Self::may_become), in place of this one, which has ended. The caller has the
    /// superblocks locked; this one has been in no slot since before I/O was drained.
    pub(crate) fn renew(&self, next: Self) {
        self.gateway.follow_losses(&next.gateway);
        for (own, next) in [
            (&self.recovered, &next.recovered),
            (&self.durably_recovered, &next.durably_recovered),
            (&self.bitmap, &next.bitmap),
            (&self.read_errors, &next.read_errors),
            (&self.corrected, &next.corrected),
            (&self.accepted_losses, &next.accepted_losses),
            (&self.began, &next.began),
        ] {
            own.store(next.load(SeqCst), SeqCst);
        }
        self.errors.forget();
        let state = next.state.load(SeqCst);
        self.bad.renew(next.bad);
        // Last: from here on it is a member.
        self.state.store(state, SeqCst);
    }

    /// The number of the membership, in the order in which the array's memberships began.
    pub(crate) fn began(&self) -> u64 {
        self.began.load(SeqCst)
    }

    /// Sets [`Self::began`].
    pub(crate) fn set_began(&self, number: u64) {
        self.began.store(number, SeqCst);
    }

    /// The device, addressed from its first sector: for superblocks.
    pub fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    /// Whether its device is the one with this disk.
    pub(crate) fn is_on(&self, disk: &Disk) -> bool {
        std::ptr::eq(self.gateway.disk(), disk)
    }

    /// The path of the device.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its identity; nil where the superblocks record none (version 0.90).
    pub fn device_uuid(&self) -> Uuid {
        self.device_uuid
    }

    /// Its number in the superblocks.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Where the data area begins on the device.
    pub fn data_offset(&self) -> Sectors {
        self.data_offset
    }

    /// The size of the data area.
    pub fn data_size(&self) -> Sectors {
        self.data_size
    }

    /// The device's limits.
    pub(crate) fn limits(&self) -> &Limits {
        self.gateway.disk().limits()
    }

    /// Whether the device takes a write-zeroes with `flags`.
    pub(crate) fn takes_zeroes(&self, flags: Flags) -> bool {
        self.gateway.disk().takes_zeroes(flags)
    }

    /// The device's disk.
    pub(crate) fn disk(&self) -> &Disk {
        self.gateway.disk()
    }

    /// The member's flags.
    pub fn state(&self) -> State {
        State::from_bits_retain(self.state.load(SeqCst))
    }

    /// Whether the member has all data and takes part in I/O.
    #[inline]
    pub fn is_in_sync(&self) -> bool {
        self.state() & (State::IN_SYNC | State::FAULTY) == State::IN_SYNC
    }

    /// Whether the member failed.
    #[inline]
    pub fn is_faulty(&self) -> bool {
        self.state().contains(State::FAULTY)
    }

    /// Whether the user removed it.
    pub fn is_removed(&self) -> bool {
        self.state().contains(State::REMOVED)
    }

    /// Sets flags; returns the previous ones.
    pub(crate) fn set(&self, flags: State) -> State {
        State::from_bits_retain(self.state.fetch_or(flags.bits(), SeqCst))
    }

    /// Clears flags; returns the previous ones. Not `FAULTY`.
    pub(crate) fn clear(&self, flags: State) -> State {
        debug_assert!(!flags.contains(State::FAULTY), "a failed member does not come back");
        State::from_bits_retain(self.state.fetch_and(!flags.bits(), SeqCst))
    }

    /// Marks the member failed; true if it was not before.
    pub(crate) fn set_faulty(&self, why: FailureCause) -> bool {
        let lost = if why.is_loss() { State::LOST } else { State::empty() };
        let was_faulty = self.set(State::FAULTY | lost).contains(State::FAULTY);
        self.failed.notify(usize::MAX);
        !was_faulty
    }

    /// Waits for a read or a flush, but only until the member fails: a member that does not respond would delay what does
    /// not need its answer any more. Not for changes, which a member that returns must not have in flight.
    ///
    /// # Errors
    /// [`Status::Offline`]: the member has failed.
    pub(crate) async fn unless_failed<T>(
        &self,
        io: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let failed = until(&self.failed, || self.is_faulty());
        match select(pin!(io), pin!(failed)).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(Status::Offline),
        }
    }

    /// Write-mostly: read only if no other in-sync member has the block.
    pub fn is_write_mostly(&self) -> bool {
        self.state().contains(State::WRITE_MOSTLY)
    }

    /// The flags that its superblock stores.
    pub fn device_flags(&self) -> DeviceFlags {
        let state = self.state();
        DeviceFlags {
            write_mostly: state.contains(State::WRITE_MOSTLY),
            failfast: state.contains(State::FAILFAST),
        }
    }

    /// How far it has been rebuilt; [`Sectors::MAX`] if it is in sync.
    pub fn recovered(&self) -> Sectors {
        if self.state().contains(State::IN_SYNC) {
            return Sectors::MAX;
        }
        Sectors(self.recovered.load(SeqCst))
    }

    /// Notes how far it has been rebuilt.
    pub(crate) fn set_recovered(&self, to: Sectors) {
        self.recovered.store(to.0, SeqCst);
    }

    /// How far the rebuilt data would survive a power cut.
    pub(crate) fn durably_recovered(&self) -> Sectors {
        Sectors(self.durably_recovered.load(SeqCst)).min(self.recovered())
    }

    /// Notes that the rebuilt data up to `to` has been flushed.
    pub(crate) fn set_durably_recovered(&self, to: Sectors) {
        self.durably_recovered.store(to.0, SeqCst);
    }

    /// Whether it may be read up to `end`, a sector of its data area: it has not failed, and is in
    /// sync or was rebuilt that far.
    #[inline]
    pub(crate) fn holds(&self, end: Sector) -> bool {
        let state = self.state();
        !state.contains(State::FAULTY)
            && (state.contains(State::IN_SYNC)
                || self.recovered.load(SeqCst) >= end.0
                || broken(Rule::RebuildingIsNotRead))
    }

    /// Sector of its bitmap's superblock, from the start of the device.
    pub(crate) fn bitmap_start(&self) -> Option<Sector> {
        let at = self.bitmap.load(SeqCst);
        (at != u64::MAX).then_some(Sector(at))
    }

    /// Sets where its bitmap is, if it has one.
    pub(crate) fn set_bitmap_start(&self, at: Option<Sector>) {
        self.bitmap.store(at.map_or(u64::MAX, |at| at.0), SeqCst);
    }

    /// The device's sectors of the partial parity log, if the array has one.
    pub(crate) fn ppl_area(&self) -> Option<Range<Sector>> {
        self.ppl.clone()
    }

    /// Its bad blocks, from the start of the device.
    pub fn bad_blocks(&self) -> &BadBlocks {
        &self.bad
    }

    /// Whether a range of its data area can be read: the member holds it and no block
    /// in it is known to be bad.
    #[inline]
    pub fn can_read(&self, at: Sector, len: Sectors) -> bool {
        self.holds(at + len)
            && (self.bad.is_empty()
                || self.bad.check(at + self.data_offset, len).is_none()
                || broken(Rule::BadBlocksAreNotRead))
    }

    /// The copies of a range of its data area that a read can name.
    pub(crate) fn copies(&self, at: Sector, len: Sectors) -> u16 {
        self.gateway.copies(at + self.data_offset, len)
    }

    /// What is known of a range of its data area without reading it, as far as the device goes.
    ///
    /// # Errors
    /// The device's; [`Status::Offline`]: the member has failed.
    pub(crate) async fn extents(&self, at: Sector, len: Sectors) -> Result<Extents, Status> {
        let from = at + self.data_offset;
        let len = len.min(self.gateway.capacity().as_end() - from);
        let found = self.unless_failed(self.gateway.extents(from, len)).await?;
        Ok(found.moved_to(at))
    }

    /// Nanoseconds in which its device answered a small read lately; zero if it was not asked.
    pub fn latency_ns(&self) -> u64 {
        self.latency.least_ns().unwrap_or(0)
    }

    /// How fast its device answers.
    pub(crate) fn latency(&self) -> &Latency {
        &self.latency
    }

    /// Its budget of read errors.
    pub(crate) fn read_errors(&self) -> &ReadErrors {
        &self.errors
    }

    /// Read errors seen, and sectors corrected by rewriting.
    pub fn errors(&self) -> (u64, u64) {
        (self.read_errors.load(Relaxed), self.corrected.load(Relaxed))
    }

    /// Counts a read error.
    pub(crate) fn count_read_error(&self) {
        self.read_errors.fetch_add(1, Relaxed);
    }

    /// Counts sectors that were rewritten.
    pub(crate) fn count_corrected(&self, sectors: Sectors) {
        self.corrected.fetch_add(sectors.0, Relaxed);
    }

    /// Whether writes to its slot go to it: it has not failed. Members under rebuild are written too.
    pub(crate) fn is_written(&self) -> bool {
        !self.is_faulty() && (self.is_in_sync() || !broken(Rule::RebuildingIsWritten))
    }

    /// Submits a write of the array `above` to sector `at` of the data area, if writes go to this member.
    pub(crate) fn write(&self, above: &Disk, bio: &Bio, at: Sector) -> Option<IoFuture<'_>> {
        self.is_written().then(|| self.submit_from(above, bio.sector, bio.remapped(at)))
    }

    /// Submits a bio whose sectors count from the start of the data area.
    pub(crate) fn submit(&self, mut bio: Bio) -> IoFuture<'_> {
        self.to_device(&mut bio);
        self.gateway.submit(bio)
    }

    /// Submits like [`Self::submit`], and traces the remap (A) from sector `from` of the array
    /// `above`.
    #[inline]
    pub(crate) fn submit_from(&self, above: &Disk, from: Sector, mut bio: Bio) -> IoFuture<'_> {
        self.to_device(&mut bio);
        trace::remap(self.gateway.disk(), &bio, above, from);
        self.gateway.submit(bio)
    }

    /// Changes a bio to device sectors. The data offset is added only here.
    #[inline]
    fn to_device(&self, bio: &mut Bio) {
        bio.sector += self.data_offset;
    }

    /// Whether its disk has lost writes, so that the member is not to be read: also if a flush has reported that, until the
    /// member has failed, which takes a while.
    #[inline]
    pub(crate) fn has_lost_writes(&self) -> bool {
        self.gateway.disk().losses() != self.accepted_losses.load(SeqCst)
    }

    /// Accepts what the disk has lost: the member must stay, and what it holds now is the data.
    pub(crate) fn accept_losses(&self) {
        self.accepted_losses.store(self.gateway.disk().losses(), SeqCst);
    }

    /// Flushes the member's cache.
    pub(crate) fn submit_flush(&self) -> IoFuture<'_> {
        self.gateway.submit(Bio::flush())
    }

    /// The cost of a read at `sector` from this member; the member with the lowest cost is read. It is the number of I/Os that
    /// the current thread has in flight there (the kernel counts those of all threads, `nr_pending`). `shard` is the thread's
    /// [`thread_shard`]. A member from which this thread last read up to `sector` costs less by `SEQUENTIAL_BONUS` I/Os: its disk
    /// reads ahead and its queue merges, which is worth more than an even spread. A read from a far member costs as many times
    /// more as the member is farther ([`latency`](crate::membership::latency)).
    #[inline]
    pub(crate) fn read_cost(&self, shard: usize, sector: Sector) -> u32 {
        const SEQUENTIAL_BONUS: u32 = 64;
        let pending = self.gateway.disk().stats().in_flight_here().min(1 << 16) as u32;
        let weight = self.latency.weight();
        let sequential = self.next_sectors[shard].0.load(Relaxed) == sector.0 && weight == 1;
        let cost = if sequential { pending } else { (pending + SEQUENTIAL_BONUS) * weight };
        if self.is_write_mostly() { cost | 1 << 30 } else { cost }
    }

    /// Notes that the current thread reads up to `end`.
    #[inline]
    pub(crate) fn note_read(&self, end: Sector) {
        self.next_sectors[thread_shard()].0.store(end.0, Relaxed);
    }
}
