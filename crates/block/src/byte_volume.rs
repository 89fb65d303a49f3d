//! A volume addressed in bytes, for exports: requests of any alignment.
//!
//! Aligned requests pass unchanged. A write that covers part of a logical block becomes
//! read-modify-write, which must not lose another write to the rest of that block: writers hold the
//! locks of the [`UNIT_BYTES`] units they touch, shared if aligned, exclusively if not. The units
//! hash into [`BUCKETS`] locks that are taken in ascending order, so that two writers cannot wait for
//! each other. Reads take no lock. Discards are rounded inwards to whole blocks.
//!
//! The volume's rate limits count here ([`ByteVolume::limiter`]): requests of all clients pass this place, whatever front end they use, and
//! as they were sent, neither split nor merged. Nothing else passes it: syncs, scrubs, copies for snapshots and metadata go through
//! gateways. A request waits for its limits before it takes a lock. What counts is what `io.max` of control groups counts, with two
//! exceptions:
//!
//! | request | requests | bytes |
//! |---|---|---|
//! | read, write | 1 | its length; not what a read-modify-write adds |
//! | write of zeroes | 1 | its length if the device has no command for it (`io.max`: its length) |
//! | discard, punched hole | 1 | none (`io.max`: 512) |
//! | flush, also that of a write with FUA | none | none |
//!
//! Clients use a volume through an [`OpenVolume`], which is counted. [`ByteVolume::withdraw`] takes a volume that no client
//! has open away from later clients in the same step: a client that looked it up before cannot open it after.
//! [`ByteVolume::claim`] opens it so that no other client can, as the kernel's `bd_claim` for `O_EXCL`.

use std::ops::{Deref, Range};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use smallvec::SmallVec;

use crate::bio::{Bio, Flags, Segments};
use crate::buffer::{Buffer, footprint, gather, scatter};
use crate::device::IoFuture;
use crate::gateway::Gateway;
use crate::limiter::{Direction, Limiter};
use crate::limits::Features;
use crate::status::{BioResult, Status};
use crate::sync::rwlock::{Guard, RwLock};
use crate::units::{Sector, Sectors};

/// Bytes that share a lock.
pub const UNIT_BYTES: u64 = 1 << 20;
/// Locks of a volume.
pub const BUCKETS: usize = 64;

/// What a client's punched hole becomes on a volume whose discards need not read as zeroes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Holes {
    /// A write-zeroes, if it is fast; otherwise it is refused.
    #[default]
    Fast,
    /// A write-zeroes, if the device has a command for it, fast or not; otherwise it is refused.
    Zero,
    /// A discard: the range may read as anything afterwards.
    Discard,
}

/// A text is not a value of [`Holes`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is not fast, zero or discard")]
pub struct BadHoles(String);

impl FromStr for Holes {
    type Err = BadHoles;

    fn from_str(text: &str) -> Result<Self, BadHoles> {
        match text {
            "fast" => Ok(Self::Fast),
            "zero" => Ok(Self::Zero),
            "discard" => Ok(Self::Discard),
            _ => Err(BadHoles(text.to_owned())),
        }
    }
}

/// Byte-addressed access to a block device.
pub struct ByteVolume {
    gateway: Gateway,
    block_bytes: u64,
    locks: Arc<[RwLock]>,
    /// The number of clients that have it open, [`WITHDRAWN`] or [`CLAIMED`].
    openers: Arc<AtomicUsize>,
    limiter: Arc<Limiter>,
}

/// No client has the volume open, and none can open it.
const WITHDRAWN: usize = usize::MAX;
/// One client has the volume open, and no other can open it.
const CLAIMED: usize = usize::MAX - 1;

/// A volume that a client has open, until this is dropped. It is an opener of its own for the device: see [`Gateway`].
pub struct OpenVolume(ByteVolume);

impl Deref for OpenVolume {
    type Target = ByteVolume;

    fn deref(&self) -> &ByteVolume {
        &self.0
    }
}

impl Drop for OpenVolume {
    fn drop(&mut self) {
        self.0.openers.fetch_sub(1, SeqCst);
    }
}

/// A volume that one client has open for itself alone, until this is dropped.
pub struct ClaimedVolume(Arc<AtomicUsize>);

impl Drop for ClaimedVolume {
    fn drop(&mut self) {
        self.0.store(0, SeqCst);
    }
}

impl ByteVolume {
    /// The volume of `gateway`'s device.
    pub fn new(gateway: Gateway) -> Self {
        let block_bytes = u64::from(gateway.disk().limits().logical_block_bytes);
        let locks = std::iter::repeat_with(RwLock::new).take(BUCKETS).collect();
        Self { gateway, block_bytes, locks, openers: Arc::default(), limiter: Arc::default() }
    }

    /// Opens the volume for a client; `None` if it is withdrawn, or claimed.
    pub fn open(&self) -> Option<OpenVolume> {
        let one_more = |openers| (openers < CLAIMED).then(|| openers + 1);
        self.openers.fetch_update(SeqCst, SeqCst, one_more).ok()?;
        let (gateway, block_bytes) = (self.gateway.clone(), self.block_bytes);
        let (locks, openers) = (Arc::clone(&self.locks), Arc::clone(&self.openers));
        let limiter = Arc::clone(&self.limiter);
        Some(OpenVolume(Self { gateway, block_bytes, locks, openers, limiter }))
    }

    /// Opens the volume for one client alone; `None` if another has it open, or it is withdrawn.
    pub fn claim(&self) -> Option<ClaimedVolume> {
        let claimed = self.openers.compare_exchange(0, CLAIMED, SeqCst, SeqCst);
        claimed.is_ok().then(|| ClaimedVolume(Arc::clone(&self.openers)))
    }

    /// Lets no client open the volume from now on, unless a client has it open: then nothing changes. Returns whether it is
    /// withdrawn.
    pub fn withdraw(&self) -> bool {
        let found = self.openers.compare_exchange(0, WITHDRAWN, SeqCst, SeqCst);
        found.is_ok() || found == Err(WITHDRAWN)
    }

    /// Whether a client has the volume open.
    pub fn is_open(&self) -> bool {
        !matches!(self.openers.load(SeqCst), 0 | WITHDRAWN)
    }

    /// Lets clients open a withdrawn volume again.
    pub fn offer(&self) {
        // Otherwise it is not withdrawn.
        let (Ok(_) | Err(_)) = self.openers.compare_exchange(WITHDRAWN, 0, SeqCst, SeqCst);
    }

    /// The device.
    pub fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    /// The rate limits of its clients' requests.
    pub fn limiter(&self) -> &Arc<Limiter> {
        &self.limiter
    }

    /// Waits until the limits let a request pass that reads or changes this many bytes.
    #[inline]
    async fn pass(&self, direction: Direction, bytes: u64) {
        if self.limiter.is_on() {
            self.limiter.pass(direction, bytes).await;
        }
    }

    /// The size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.gateway.capacity().bytes()
    }

    /// The unit in bytes in which requests pass unchanged.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Memory in bytes that reading or writing `[offset, offset + len)` needs besides its segments.
    pub fn bounce_bytes(&self, offset: u64, len: u64) -> usize {
        if self.is_aligned(offset, len) {
            return 0;
        }
        let outer = self.outer(offset, len);
        footprint((outer.end - outer.start) as usize)
    }

    fn is_aligned(&self, offset: u64, len: u64) -> bool {
        (offset | len) & (self.block_bytes - 1) == 0
    }

    /// The whole blocks that `[offset, offset + len)` touches.
    fn outer(&self, offset: u64, len: u64) -> Range<u64> {
        let mask = self.block_bytes - 1;
        offset & !mask..(offset + len + mask) & !mask
    }

    /// The whole blocks within `[offset, offset + len)`; may be empty.
    fn inner(&self, offset: u64, len: u64) -> Range<u64> {
        let mask = self.block_bytes - 1;
        let start = (offset + mask) & !mask;
        start..((offset + len) & !mask).max(start)
    }

    /// Checks that the range is in bounds; fails with `out` if not.
    fn check(&self, offset: u64, len: u64, out: Status) -> BioResult {
        match offset.checked_add(len) {
            Some(end) if end <= self.size_bytes() => Ok(()),
            Some(_) | None => Err(out),
        }
    }

    /// Fills `segments` from byte `offset` on. After an error the device may still write to them: the caller must not reuse them
    /// (see [`Flags::GIVEN`]).
    pub fn read(&self, offset: u64, segments: impl Into<Segments>) -> IoFuture<'_> {
        self.read_with(offset, segments, Flags::GIVEN)
    }

    /// As [`Self::read`]; without [`Flags::GIVEN`] in `flags` no device writes to the segments after an error.
    pub fn read_with(
        &self,
        offset: u64,
        segments: impl Into<Segments>,
        flags: Flags,
    ) -> IoFuture<'_> {
        let segments = segments.into();
        let len: u64 = segments.iter().map(|s| s.len() as u64).sum();
        if let Err(status) = self.check(offset, len, Status::Invalid) {
            return IoFuture::failed(status);
        }
        if len == 0 {
            return IoFuture::ready(Ok(()));
        }
        if self.limiter.is_on() {
            return self.read_limited(offset, len, segments, flags);
        }
        self.read_now(offset, len, segments, flags)
    }

    /// As [`Self::read`], for a client whose read has passed the rate limits: one that has no memory for it before
    /// ([`Limiter::pass`]).
    pub fn read_passed(&self, offset: u64, segments: impl Into<Segments>) -> IoFuture<'_> {
        let segments = segments.into();
        let len: u64 = segments.iter().map(|s| s.len() as u64).sum();
        match self.check(offset, len, Status::Invalid) {
            Err(status) => IoFuture::failed(status),
            Ok(()) if len == 0 => IoFuture::ready(Ok(())),
            Ok(()) => self.read_now(offset, len, segments, Flags::GIVEN),
        }
    }

    #[cold]
    fn read_limited(
        &self,
        offset: u64,
        len: u64,
        segments: Segments,
        flags: Flags,
    ) -> IoFuture<'_> {
        IoFuture::boxed(async move {
            self.limiter.pass(Direction::Read, len).await;
            self.read_now(offset, len, segments, flags).await
        })
    }

    /// Reads what is not empty, and in bounds. Inlined, because segments are slow to move.
    #[inline(always)]
    fn read_now(&self, offset: u64, len: u64, segments: Segments, flags: Flags) -> IoFuture<'_> {
        if self.is_aligned(offset, len) {
            let bio = Bio::read(Sector::from_bytes_floor(offset), segments);
            return self.gateway.submit(bio.with_flags(flags));
        }
        IoFuture::boxed(async move {
            let outer = self.outer(offset, len);
            let buffer = self.read_blocks(&outer).await?;
            scatter(&buffer.as_slice()[(offset - outer.start) as usize..], &segments);
            Ok(())
        })
    }

    /// Writes `segments` from byte `offset` on; with `Flags::FUA` durable when done.
    pub fn write(&self, offset: u64, segments: impl Into<Segments>, flags: Flags) -> IoFuture<'_> {
        let segments = segments.into();
        let len: u64 = segments.iter().map(|s| s.len() as u64).sum();
        if let Err(status) = self.check(offset, len, Status::NoSpace) {
            return IoFuture::failed(status);
        }
        if len == 0 {
            return IoFuture::ready(Ok(()));
        }
        if self.limiter.is_on() {
            return IoFuture::boxed(async move {
                self.limiter.pass(Direction::Write, len).await;
                self.write_locked(offset, len, segments, flags).await
            });
        }
        IoFuture::boxed(self.write_locked(offset, len, segments, flags))
    }

    async fn write_locked(
        &self,
        offset: u64,
        len: u64,
        segments: Segments,
        flags: Flags,
    ) -> BioResult {
        if self.is_aligned(offset, len) {
            let _locks = self.lock(&(offset..offset + len), true).await;
            let bio = Bio::write(Sector::from_bytes_floor(offset), segments);
            return self.gateway.submit(bio.with_flags(flags)).await;
        }
        let outer = self.outer(offset, len);
        let _locks = self.lock(&outer, false).await;
        let mut buffer = self.read_edges(&outer, offset, len).await?;
        gather(&segments, &mut buffer.as_mut_slice()[(offset - outer.start) as usize..]);
        self.gateway.write(Sector::from_bytes_floor(outer.start), &mut buffer, flags).await
    }

    /// Makes `[offset, offset + len)` read as zeroes.
    ///
    /// # Errors
    /// The first status of its parts. `NotSupported`: `flags` are among [`Flags::REFUSABLE`], and nothing was written.
    pub async fn write_zeroes(&self, offset: u64, len: u64, flags: Flags) -> BioResult {
        self.check(offset, len, Status::NoSpace)?;
        self.check_zeroes(flags)?;
        let written = if self.gateway.disk().takes_zeroes(flags) { 0 } else { len };
        self.pass(Direction::Write, written).await;
        self.write_zeroes_now(offset, len, flags).await
    }

    /// Checks that the device takes a write of zeroes with `flags`.
    fn check_zeroes(&self, flags: Flags) -> BioResult {
        if flags.intersects(Flags::REFUSABLE) && !self.gateway.disk().takes_zeroes(flags) {
            return Err(Status::NotSupported);
        }
        Ok(())
    }

    async fn write_zeroes_now(&self, offset: u64, len: u64, flags: Flags) -> BioResult {
        let losses = self.gateway.disk().losses();
        let inner = self.inner(offset, len);
        // FUA only on the last part would not cover the others: flush instead.
        let part_flags = flags - Flags::FUA;
        let edges = [offset..inner.start.min(offset + len), inner.end.max(offset)..offset + len];
        if inner.start < inner.end {
            let _locks = self.lock(&inner, true).await;
            let (at, n) = sectors(&inner);
            self.gateway.submit(Bio::write_zeroes(at, n).with_flags(part_flags)).await?;
        }
        let one_block = inner.start > offset + len;
        for edge in edges.into_iter().take(if one_block { 1 } else { 2 }) {
            if edge.start < edge.end {
                let n = edge.end - edge.start;
                let mut zeroes = Buffer::try_zeroed(n as usize).ok_or(Status::Resource)?;
                let zeroes: Segments = [zeroes.whole()].into();
                self.write_locked(edge.start, n, zeroes, part_flags).await?;
            }
        }
        if flags.contains(Flags::FUA) { self.gateway.persist(losses).await } else { Ok(()) }
    }

    /// Makes all of `ranges` read as zeroes, durably.
    ///
    /// # Errors
    /// The first status of its parts; any of the ranges may then be unchanged.
    pub async fn wipe(&self, ranges: &[Range<u64>]) -> BioResult {
        let losses = self.gateway.disk().losses();
        for range in ranges {
            let len = range.end.saturating_sub(range.start);
            self.write_zeroes(range.start, len, Flags::empty()).await?;
        }
        if ranges.is_empty() { Ok(()) } else { self.gateway.persist(losses).await }
    }

    /// Discards the whole blocks within `[offset, offset + len)`.
    ///
    /// # Errors
    /// The discard's status.
    pub async fn discard(&self, offset: u64, len: u64, flags: Flags) -> BioResult {
        self.check(offset, len, Status::Invalid)?;
        self.pass(Direction::Write, 0).await;
        self.discard_now(offset, len, flags).await
    }

    async fn discard_now(&self, offset: u64, len: u64, flags: Flags) -> BioResult {
        let inner = self.inner(offset, len);
        if inner.start >= inner.end {
            return Ok(());
        }
        let _locks = self.lock(&inner, true).await;
        let (at, n) = sectors(&inner);
        self.gateway.submit(Bio::discard(at, n).with_flags(flags)).await
    }

    /// Frees the space of `[offset, offset + len)` (fallocate(2)'s PUNCH_HOLE): a discard if discarded ranges read as zeroes,
    /// otherwise what `holes` says. See decision 2 in docs/decisions.
    ///
    /// # Errors
    /// `NotSupported`: the user has turned discards off, or the device can do it only in other ways than `holes` allows. Nothing was written.
    pub async fn punch_hole(&self, offset: u64, len: u64, holes: Holes) -> BioResult {
        let (disk, limits) = (self.gateway.disk(), self.gateway.disk().limits());
        if disk.max_discard().is_zero() && !limits.max_hw_discard.is_zero() {
            return Err(Status::NotSupported);
        }
        let zeroes = limits.features.contains(Features::DISCARD_ZEROES);
        // A discard does not change blocks that it covers only in part.
        let is_exact = zeroes && self.is_aligned(offset, len);
        let discards = is_exact || !zeroes && holes == Holes::Discard;
        let flags = if holes == Holes::Zero { Flags::NOFALLBACK } else { Flags::FAST };
        self.check(offset, len, if discards { Status::Invalid } else { Status::NoSpace })?;
        if !discards {
            self.check_zeroes(flags)?;
        }
        self.pass(Direction::Write, 0).await;
        if discards {
            match self.discard_now(offset, len, Flags::empty()).await {
                // The device has no discard.
                Err(Status::NotSupported) => {}
                result => return result,
            }
        }
        self.check_zeroes(flags)?;
        self.write_zeroes_now(offset, len, flags).await
    }

    /// Makes acknowledged writes durable.
    ///
    /// # Errors
    /// The flush's status.
    pub async fn flush(&self) -> BioResult {
        self.gateway.flush().await
    }

    async fn read_blocks(&self, range: &Range<u64>) -> Result<Buffer, Status> {
        let (at, n) = sectors(range);
        self.gateway.read(at, n).await
    }

    /// A buffer for the blocks `outer`, with the blocks read that a write of `[offset, +len)` covers
    /// only in part.
    async fn read_edges(
        &self,
        outer: &Range<u64>,
        offset: u64,
        len: u64,
    ) -> Result<Buffer, Status> {
        let size = (outer.end - outer.start) as usize;
        let block = self.block_bytes as usize;
        if size <= 2 * block {
            return self.read_blocks(outer).await;
        }
        let mut buffer = Buffer::try_alloc(size).ok_or(Status::Resource)?;
        if offset > outer.start {
            let head = self.read_blocks(&(outer.start..outer.start + self.block_bytes)).await?;
            buffer.as_mut_slice()[..block].copy_from_slice(head.as_slice());
        }
        if offset + len < outer.end {
            let tail = self.read_blocks(&(outer.end - self.block_bytes..outer.end)).await?;
            buffer.as_mut_slice()[size - block..].copy_from_slice(tail.as_slice());
        }
        Ok(buffer)
    }

    /// Locks the units that `range` touches.
    async fn lock(&self, range: &Range<u64>, shared: bool) -> SmallVec<[Guard<'_>; 1]> {
        let (first, last) = (range.start / UNIT_BYTES, (range.end - 1) / UNIT_BYTES);
        let mut wanted = 0u64;
        for unit in first..=last.min(first + BUCKETS as u64 - 1) {
            wanted |= 1 << (unit % BUCKETS as u64);
        }
        let mut guards = SmallVec::new();
        while wanted != 0 {
            let lock = &self.locks[wanted.trailing_zeros() as usize];
            wanted &= wanted - 1;
            guards.push(if shared { lock.read() } else { lock.write() }.await);
        }
        guards
    }
}

fn sectors(range: &Range<u64>) -> (Sector, Sectors) {
    (Sector::from_bytes_floor(range.start), Sectors::from_bytes_floor(range.end - range.start))
}
