//! The gateway: the single interface between any two layers.
//!
//! Every bio to a device passes here. Checks: range, alignment, capability, read-only.
//! Splits: to the device's limits, soft ones included (trace X). Emulates: write-zeroes by writes,
//! FUA by a flush after the write, PREFLUSH by a flush before it; on a device without a volatile
//! cache, flushes complete at once. So no layer or driver does any of this, and every bio that a
//! device receives fits it.
//!
//! Errors keep their status. The gateway waits for all started pieces of a split bio, reports
//! the first error, and starts no further piece after an error.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::bio::{Bio, CopyNumber, Flags, Op, Segments};
use crate::buffer::Buffer;
use crate::cache::{self, Cursor};
use crate::device::{BlockDevice, IoFuture};
use crate::disk::Disk;
use crate::extent::Extents;
use crate::limits::Features;
use crate::split::fitting_len;
use crate::status::{BioResult, Status};
use crate::trace::{self, Action};
use crate::units::{Sector, Sectors};

/// Pieces of one split bio in flight at a time: enough to keep any device busy, but a discard of
/// terabytes in pieces of half a megabyte does not fill the memory.
pub const SPLIT_WINDOW: usize = 128;
/// Bytes per write when write-zeroes is emulated.
pub const ZERO_BYTES: u64 = 1 << 20;
/// These writes in flight at a time.
const ZERO_WINDOW: usize = 8;

/// A handle to a block device through which bios are submitted: an opener of the device.
///
/// A flush fails if the device may have lost acknowledged writes since this opener's last flush, even if it reported that to
/// another opener before. A clone is an opener of its own, so whatever writes through a gateway should flush through the
/// same one.
pub struct Gateway {
    device: Arc<dyn BlockDevice>,
    cursor: Cursor,
}

impl Clone for Gateway {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.device))
    }
}

impl Gateway {
    /// A gateway to `device`.
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        let cursor = device.disk().cache().open();
        Self { device, cursor }
    }

    /// The device's name, size, limits, settings and counters.
    pub fn disk(&self) -> &Disk {
        self.device.disk()
    }

    /// Whether both are gateways to the same device.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.device, &other.device)
    }

    /// The device's size.
    pub fn capacity(&self) -> Sectors {
        self.disk().capacity()
    }

    /// How many copies of a range a read can name; see [`BlockDevice::copies`]. Of a range that the
    /// device does not have, 1.
    pub fn copies(&self, at: Sector, len: Sectors) -> u16 {
        let end = at.checked_add(len).filter(|end| *end > at);
        let is_here = end.is_some_and(|end| end <= self.capacity().as_end());
        if is_here { self.device.copies(at, len) } else { 1 }
    }

    /// What is known of a range without reading it; see [`BlockDevice::extents`].
    ///
    /// # Errors
    /// The device does not have the range, or failed.
    pub async fn extents(&self, at: Sector, len: Sectors) -> Result<Extents, Status> {
        let end = at.checked_add(len).filter(|end| *end > at && *end <= self.capacity().as_end());
        end.ok_or(Status::Invalid)?;
        self.device.extents(at, len).await
    }

    /// Whether the device may still execute a change of data that it did not answer in time; see
    /// [`BlockDevice::holds_changes`].
    pub fn holds_changes(&self) -> bool {
        self.device.holds_changes()
    }

    /// The open file that holds the device's data; see [`BlockDevice::lend`].
    ///
    /// # Errors
    /// As there.
    pub fn lend(&self) -> io::Result<OwnedFd> {
        self.device.lend()
    }

    /// Has the device release its system resources; see [`BlockDevice::release`].
    pub fn release(&self) {
        self.device.release();
    }

    /// The copies of a range for a reader that tries or verifies each of them; none where there is
    /// only one, which every plain read returns.
    pub fn alternates(&self, at: Sector, len: Sectors) -> impl Iterator<Item = CopyNumber> + use<> {
        let copies = self.copies(at, len);
        (1..=copies).filter(move |_| copies > 1).map(CopyNumber)
    }

    /// Submits `bio`; the future returns its status.
    pub fn submit(&self, mut bio: Bio) -> IoFuture<'_> {
        let disk = self.disk();
        if let Err(status) = check(disk, &bio) {
            return IoFuture::failed(status);
        }
        if bio.copy != CopyNumber::ANY
            && let Err(status) = self.check_copy(&mut bio)
        {
            return IoFuture::failed(status);
        }
        trace::bio(disk, Action::Queue, &bio);
        if trace::is_active() && !self.device.is_queue() {
            return self.traced(bio);
        }
        self.pass_on(bio)
    }

    /// Checks that the copy which a bio names exists. Where a device has one copy, that is the device
    /// itself and the read a plain one: so no number reaches a queue.
    #[cold]
    fn check_copy(&self, bio: &mut Bio) -> BioResult {
        let copies = self.copies(bio.sector, bio.len);
        if bio.op != Op::Read || bio.copy.0 > copies {
            return Err(Status::Invalid);
        }
        if copies == 1 {
            bio.copy = CopyNumber::ANY;
        }
        Ok(())
    }

    /// Passes on a bio to a layer, and fires the trace point of its completion.
    #[cold]
    fn traced(&self, bio: Bio) -> IoFuture<'_> {
        let range = (bio.op, bio.flags, bio.sector, bio.len);
        let io = self.pass_on(bio);
        IoFuture::boxed(async move {
            let result = io.await;
            trace::end(self.disk(), Action::Complete, range, result);
            result
        })
    }

    /// Converts a checked bio to a form that the device accepts, and submits it. Inlined, because a bio is slow to move.
    #[inline(always)]
    fn pass_on(&self, mut bio: Bio) -> IoFuture<'_> {
        let disk = self.disk();
        if !disk.limits().features.contains(Features::WRITE_CACHE) {
            bio.flags -= Flags::FUA | Flags::PREFLUSH;
            if bio.op == Op::Flush {
                return IoFuture::ready(Ok(()));
            }
        }
        match bio.op {
            // It needs no second flush.
            Op::Flush => {
                bio.flags -= Flags::FUA | Flags::PREFLUSH;
                return self.flush_cache(bio);
            }
            // It leaves nothing to make durable.
            Op::Read => {
                bio.flags -= Flags::FUA;
                if bio.flags.contains(Flags::GIVEN) && !self.device.is_queue() {
                    bio.flags -= Flags::GIVEN;
                }
            }
            Op::Write | Op::Discard | Op::WriteZeroes => {}
        }
        if bio.flags.intersects(Flags::FUA | Flags::PREFLUSH) {
            let emulated = bio.flags.contains(Flags::PREFLUSH) || !self.takes_fua(&bio);
            if emulated {
                return IoFuture::boxed(self.submit_with_flushes(bio));
            }
        }
        if bio.op == Op::WriteZeroes {
            return self.write_zeroes(bio);
        }
        if fitting_len(disk, &bio) == bio.len {
            return self.start(bio);
        }
        IoFuture::boxed(self.submit_split(bio))
    }

    #[cold]
    fn write_zeroes(&self, bio: Bio) -> IoFuture<'_> {
        let disk = self.disk();
        match (bio.is_refusable(), disk.takes_zeroes(bio.flags)) {
            (true, false) => IoFuture::failed(Status::NotSupported),
            (true, true) => IoFuture::boxed(self.try_write_zeroes(bio)),
            (false, false) => IoFuture::boxed(self.write_zeroes_by_writes(bio)),
            (false, true) if fitting_len(disk, &bio) == bio.len => {
                IoFuture::boxed(self.write_zeroes_or_emulate(bio))
            }
            (false, true) => IoFuture::boxed(self.submit_split(bio)),
        }
    }

    /// Submits a fitting bio to the device.
    #[inline(always)]
    fn start(&self, bio: Bio) -> IoFuture<'_> {
        let account = self.disk().stats().start(bio.op, bio.len);
        let mut io = self.device.submit_bio(bio);
        io.account(account);
        io
    }

    /// Flushes a device with a cache, for the opener, which learns of losses.
    fn flush_cache(&self, bio: Bio) -> IoFuture<'_> {
        let known = self.cursor.known();
        let flush = self.start(bio);
        IoFuture::boxed(async move {
            let result = self.end_flush(flush.await);
            let has_new_losses = self.cursor.check_and_advance(self.disk().cache(), known).await;
            if has_new_losses { result.and(Err(Status::Io)) } else { result }
        })
    }

    /// Notes what a flush that has ended may have lost.
    fn end_flush(&self, result: BioResult) -> BioResult {
        if let Err(status) = result
            && !self.device.is_queue()
            && cache::loses(Op::Flush, status)
        {
            self.disk().cache().note_loss();
        }
        result
    }

    /// Makes durable what this opener has written since the device had `losses` ([`Disk::losses`]). Unlike [`Self::flush`] it
    /// covers nothing else, and reports no losses to the opener: whoever wrote before still learns of them from the next flush.
    ///
    /// # Errors
    /// The flush's status; [`Status::Io`] if the device has lost something meanwhile.
    pub(crate) async fn persist(&self, losses: u64) -> BioResult {
        if !self.disk().limits().features.contains(Features::WRITE_CACHE) {
            return Ok(());
        }
        let result = self.end_flush(self.start(Bio::flush()).await);
        if self.disk().cache().settled_losses().await == losses {
            return result;
        }
        result.and(Err(Status::Io))
    }

    /// Below the gateway only writes have an FUA form; a discard or write-zeroes with FUA is followed by
    /// a flush.
    fn takes_fua(&self, bio: &Bio) -> bool {
        bio.op == Op::Write && self.disk().limits().features.contains(Features::FUA)
    }

    async fn submit_with_flushes(&self, mut bio: Bio) -> BioResult {
        if bio.flags.contains(Flags::PREFLUSH) {
            bio.flags -= Flags::PREFLUSH;
            self.flush_cache(Bio::flush()).await?;
        }
        if !bio.flags.contains(Flags::FUA) || self.takes_fua(&bio) {
            return self.pass_on(bio).await;
        }
        bio.flags -= Flags::FUA;
        let losses = self.disk().losses();
        self.pass_on(bio).await?;
        self.persist(losses).await
    }

    async fn submit_split(&self, bio: Bio) -> BioResult {
        let mut rest = Some(bio);
        let next = || {
            let mut bio = rest.take()?;
            let n = fitting_len(self.disk(), &bio);
            if n == bio.len {
                return Some(bio);
            }
            trace::split(self.disk(), &bio, n);
            let front = bio.split_front(n);
            rest = Some(bio);
            Some(front)
        };
        let pieces = std::iter::from_fn(next).map(|bio| {
            if bio.op == Op::WriteZeroes {
                IoFuture::boxed(self.write_zeroes_or_emulate(bio))
            } else {
                self.start(bio)
            }
        });
        windowed(pieces, SPLIT_WINDOW).await
    }

    /// A write-zeroes that may be refused: by its first piece. What has begun is completed, by writes if need be.
    async fn try_write_zeroes(&self, mut bio: Bio) -> BioResult {
        let (disk, flags, fitting) = (self.disk(), bio.flags, fitting_len(self.disk(), &bio));
        let is_whole = fitting == bio.len;
        if !is_whole {
            trace::split(disk, &bio, fitting);
        }
        let first = if is_whole { bio.clone() } else { bio.split_front(fitting) };
        let result = self.start(first).await;
        disk.fast_zeroes().note(flags, result);
        result?;
        if is_whole { Ok(()) } else { self.submit_split(bio.insisting()).await }
    }

    /// A device may notice only now that it cannot write zeroes (an old file system below).
    async fn write_zeroes_or_emulate(&self, bio: Bio) -> BioResult {
        match self.start(bio.clone()).await {
            Err(Status::NotSupported) => self.write_zeroes_by_writes(bio).await,
            result => result,
        }
    }

    async fn write_zeroes_by_writes(&self, bio: Bio) -> BioResult {
        let len = bio.len.bytes().min(ZERO_BYTES) as usize;
        let mut zeroes = Buffer::try_zeroed(len).ok_or(Status::Resource)?;
        let zeroes = zeroes.whole();
        let (mut at, end) = (bio.sector, bio.end());
        let flags = bio.flags & (Flags::FUA | Flags::SYNC);
        let writes = std::iter::from_fn(|| {
            let len = (end - at).min(Sectors::from_bytes_floor(ZERO_BYTES));
            if len.is_zero() {
                return None;
            }
            let data: Segments = [zeroes.slice(0..len.bytes() as usize)].into();
            let write = Bio::write(at, data).with_flags(flags);
            at += len;
            Some(write)
        });
        windowed(writes.map(|bio| self.submit(bio)), ZERO_WINDOW).await
    }

    /// Reads `len` sectors at `sector`.
    ///
    /// # Errors
    /// The read's status.
    pub async fn read(&self, sector: Sector, len: Sectors) -> Result<Buffer, Status> {
        self.read_copy(sector, len, CopyNumber::ANY).await
    }

    /// Reads `len` sectors at `sector` from `copy`.
    ///
    /// # Errors
    /// The read's status; [`Status::Invalid`] if there is no such copy.
    pub async fn read_copy(
        &self,
        sector: Sector,
        len: Sectors,
        copy: CopyNumber,
    ) -> Result<Buffer, Status> {
        let mut buffer = Buffer::try_alloc(len.bytes() as usize).ok_or(Status::Resource)?;
        self.submit(Bio::read_into(sector, &mut buffer).with_copy(copy)).await?;
        Ok(buffer)
    }

    /// Writes a whole buffer at `sector`.
    ///
    /// # Errors
    /// The write's status.
    pub async fn write(&self, sector: Sector, buffer: &mut Buffer, flags: Flags) -> BioResult {
        self.submit(Bio::write_from(sector, buffer).with_flags(flags)).await
    }

    /// The losses of the device ([`Disk::losses`]) that this opener knows of.
    #[inline]
    pub fn known_losses(&self) -> u64 {
        self.cursor.known()
    }

    /// Declares that the losses of the device so far do not concern this opener: it has no unflushed writes. Its next flush
    /// fails only for later ones.
    pub fn acknowledge_losses(&self) {
        self.cursor.acknowledge(self.disk().cache());
    }

    /// Declares that this opener knows of as many losses as `other`, an opener of the same device, in whose place it comes.
    pub fn follow_losses(&self, other: &Self) {
        self.cursor.follow(&other.cursor);
    }

    /// Makes acknowledged writes durable.
    ///
    /// # Errors
    /// The flush's status; [`Status::Io`] if the device has lost writes since this opener's last flush.
    pub async fn flush(&self) -> BioResult {
        self.submit(Bio::flush()).await
    }
}

/// Checks a bio against the device's contract.
fn check(disk: &Disk, bio: &Bio) -> BioResult {
    let limits = disk.limits();
    if bio.op == Op::Flush {
        let clean = bio.len.is_zero() && bio.segments.is_empty();
        return if clean { Ok(()) } else { Err(Status::Invalid) };
    }
    if bio.op.is_write() && disk.is_read_only() {
        return Err(Status::ReadOnly);
    }
    let end = bio.sector.checked_add(bio.len);
    let in_range = end.is_some_and(|end| end <= disk.capacity().as_end());
    // I/O past the end fails with EIO, as a read does in the kernel.
    if !in_range {
        return Err(Status::Io);
    }
    let aligned = limits.has_whole_blocks(bio.sector, bio.len);
    let data = if bio.op.has_data() { bio.len.bytes() } else { 0 };
    if bio.len.is_zero() || !aligned || bio.data_bytes() != data {
        return Err(Status::Invalid);
    }
    if bio.op == Op::Discard && disk.max_discard().is_zero() {
        return Err(Status::NotSupported);
    }
    Ok(())
}

/// Runs the parts of an I/O to their ends, at most `window` at a time, which the iterator starts. After an error no more
/// are started.
///
/// # Errors
/// The first status.
pub async fn windowed(
    mut parts: impl Iterator<Item = impl Future<Output = BioResult>>,
    window: usize,
) -> BioResult {
    let mut in_flight = FuturesUnordered::new();
    let mut result = Ok(());
    loop {
        while result.is_ok() && in_flight.len() < window {
            let Some(part) = parts.next() else { break };
            in_flight.push(part);
        }
        match in_flight.next().await {
            Some(done) => result = result.and(done),
            None => return result,
        }
    }
}
