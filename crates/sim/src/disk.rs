//! A simulated disk: a [`Driver`] on virtual time behind the block layer's own [`Queue`].

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ashlar_block::{
    BlockDevice, Disk, Driver, Extents, Features, Flags, Gateway, Limits, LocalFuture, Op, Queue,
    Request, RequestId, Runtime, Sector, Sectors, Status,
};

use crate::media::{Arrival, Break, Media};
use crate::model::{Clockwork, Model};
use crate::rng::{Rng, mix};
use crate::scheduler::SimRuntime;
use crate::scheduler::core::{self, Event};
use crate::state::Change;

/// The driver of a simulated disk.
pub struct SimDriver {
    media: Media,
    limits: Limits,
    clockwork: Mutex<Clockwork>,
    /// Whether it has released its resources of the system.
    is_released: Arc<AtomicBool>,
}

impl Driver for SimDriver {
    fn queue_rq(&self, rq: Request) {
        assert_fits(&rq, &self.limits, self.media.capacity());
        let core = core::current();
        if core.is_stopping() {
            return rq.complete(Err(Status::Offline));
        }
        if self.is_released.load(Relaxed) {
            return rq.complete(Err(Status::Io));
        }
        core.attach(self.media.state());
        let issued_ns = core.now_ns();
        let Arrival { slowness, covered, hangs, connection } = self.media.begin();
        let end_ns = core.rng(|rng| {
            let mut clockwork = self.clockwork.lock().unwrap_or_else(PoisonError::into_inner);
            clockwork.end_ns(issued_ns, rq.op(), rq.sector(), rq.len(), |n| rng.below(n))
        });
        let at_ns = issued_ns.saturating_add((end_ns - issued_ns).saturating_mul(slowness));
        let media = self.media.clone();
        core.at(
            at_ns,
            Box::new(PendingCommand {
                media,
                rq,
                issued_ns,
                covered,
                hangs,
                connection,
                is_late: false,
            }),
        );
    }

    /// Sectors of zeroes are holes: as they are at a moment between the call and the answer.
    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        let pause = || {
            let below_ns = |rng: &mut Rng| {
                let most_ns = [1_000, 200_000, 5_000_000][rng.index(3)];
                rng.below(most_ns)
            };
            let ns = core::current().rng(below_ns);
            SimRuntime.sleep(Duration::from_nanos(ns))
        };
        Box::pin(async move {
            pause().await;
            let found = self.media.extents(at, len);
            pause().await;
            found
        })
    }

    fn release(&self) {
        self.is_released.store(true, Relaxed);
    }

    fn abort(&self, id: RequestId) {
        if !self.media.cancels() {
            return;
        }
        let core = core::current();
        if let Some(event) = core.take_held(id) {
            event.cancel();
        }
    }
}

/// Panics if a request breaks the block layer's promises to drivers.
fn assert_fits(rq: &Request, limits: &Limits, capacity: Sectors) {
    let block = limits.logical_block();
    let max = match rq.op() {
        Op::Read | Op::Write => limits.max_hw_sectors,
        Op::Discard => limits.max_hw_discard,
        Op::WriteZeroes => limits.max_write_zeroes,
        Op::Flush => {
            assert!(rq.is_empty() && limits.features.contains(Features::WRITE_CACHE));
            return;
        }
    };
    let what = || format!("{:?} of {} at {}, {limits:?}", rq.op(), rq.len(), rq.sector());
    for (at, len) in rq.ranges() {
        assert!(at.is_aligned(block) && len.0.is_multiple_of(block.0), "not aligned: {}", what());
        assert!(!len.is_zero() && at + len <= capacity.as_end(), "out of range: {}", what());
    }
    // A limit below a block cannot be kept.
    assert!(rq.len().0 <= max.0.max(block.0), "too long: {}", what());
    let fua_known = limits.features.contains(Features::WRITE_CACHE | Features::FUA);
    assert!(fua_known || !rq.flags().contains(Flags::FUA), "FUA: {}", what());
    assert!(!rq.flags().contains(Flags::PREFLUSH), "PREFLUSH: {}", what());
    let ranges = if rq.op() == Op::Discard { rq.nr_bios() } else { 1 };
    if limits.max_discard_segments > 1 {
        assert!(ranges <= usize::from(limits.max_discard_segments), "ranges: {}", what());
    }
    if rq.op().has_data() && rq.len() > block {
        assert!(rq.nr_segments() <= limits.max_segments as usize, "segments: {}", what());
        let chunk = limits.chunk_sectors.0.max(1);
        let (first, last) = (rq.sector().0 / chunk, (rq.end().0 - 1) / chunk);
        assert!(limits.chunk_sectors.is_zero() || first == last, "crosses a chunk: {}", what());
    }
}

/// A command between its arrival and its end. It takes effect at its end; if the power fails
/// before that, it may have taken effect in part.
struct PendingCommand {
    media: Media,
    rq: Request,
    issued_ns: u64,
    covered: u64,
    /// It is held even if the disk answers others.
    hangs: bool,
    /// The connection over which it arrived.
    connection: usize,
    /// That connection has broken, and the disk still executes the command.
    is_late: bool,
}

impl PendingCommand {
    /// Ends a command whose connection has broken.
    fn end_broken(mut self: Box<Self>, how: Break) {
        let core = core::current();
        let later = |within: Duration| {
            let most_ns = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
            core.now_ns() + core.rng(|rng| rng.below(most_ns.max(1)))
        };
        match how {
            Break::Late { within } if !self.is_late && self.rq.op().is_write() => {
                self.is_late = true;
                return core.at(later(within), self);
            }
            Break::LateAndForgotten { within } if self.rq.op().is_write() => {
                let media = self.media.clone();
                let changes = core.rng(|rng| media.changes(&self.rq, rng));
                let connection = self.connection;
                core.at(later(within), Box::new(ForgottenChange { media, changes, connection }));
            }
            Break::Ended | Break::Restart | Break::Late { .. } | Break::LateAndForgotten { .. } => {
                core.rng(|rng| self.media.end_broken(&self.rq, how, rng));
            }
        }
        let Self { rq, .. } = *self;
        core.note(digest(&rq));
        rq.complete(Err(Status::Transport));
    }
}

fn digest(rq: &Request) -> u64 {
    mix(rq.sector().0 ^ rq.len().0 << 40 ^ rq.op() as u64)
}

/// The changes of a command that the driver has abandoned and the disk still executes.
struct ForgottenChange {
    media: Media,
    changes: Vec<Change>,
    connection: usize,
}

impl Event for ForgottenChange {
    fn fire(self: Box<Self>) {
        let how = self.media.how_it_broke(self.connection);
        if how != Some(Break::Restart) && core::current().rng(|rng| rng.chance(1, 2)) {
            self.media.apply(self.changes);
        }
    }

    fn cut(self: Box<Self>) {
        self.media.strand_changes(self.changes);
    }

    fn cancel(self: Box<Self>) {}

    fn request(&self) -> Option<RequestId> {
        None
    }
}

impl Event for PendingCommand {
    fn fire(mut self: Box<Self>) {
        let core = core::current();
        if std::mem::take(&mut self.hangs) || self.media.is_silent() {
            let media = self.media.clone();
            return core.hold(media.state(), self);
        }
        if let Some(how) = self.media.how_it_broke(self.connection) {
            return self.end_broken(how);
        }
        let Self { media, rq, issued_ns, covered, .. } = *self;
        let result = core.rng(|rng| media.execute(&rq, issued_ns, covered, rng));
        core.note(digest(&rq));
        rq.complete(result);
    }

    fn cut(self: Box<Self>) {
        let Self { media, rq, .. } = *self;
        core::current().rng(|rng| media.strand(&rq, rng));
        rq.complete(Err(Status::Offline));
    }

    fn cancel(self: Box<Self>) {
        self.rq.complete(Err(Status::Io));
    }

    fn request(&self) -> Option<RequestId> {
        Some(self.rq.id())
    }
}

/// A simulated disk.
pub struct SimDisk {
    queue: Arc<Queue<SimDriver>>,
}

impl SimDisk {
    /// A disk of zeroes with the times and limits of an NVMe SSD.
    pub fn new(name: impl Into<String>, capacity: Sectors) -> Self {
        Self::over(name, Media::new(capacity))
    }

    /// Such a disk over an existing medium.
    pub fn over(name: impl Into<String>, media: Media) -> Self {
        let model = Model::nvme();
        Self::with(name, media, model.limits(), model)
    }

    /// A disk of any kind. Without `Features::WRITE_CACHE` in its limits, its writes are durable
    /// when they are acknowledged.
    pub fn with(name: impl Into<String>, media: Media, limits: Limits, model: Model) -> Self {
        let (disk, driver) = Self::parts(name, media, limits, model);
        Self { queue: Arc::new(Queue::new(disk, driver)) }
    }

    /// As [`Self::with`], with a deadline for its requests, in whole milliseconds.
    ///
    /// # Panics
    /// When it is not a valid deadline.
    pub fn with_io_timeout(
        name: impl Into<String>,
        media: Media,
        limits: Limits,
        model: Model,
        io_timeout: Duration,
    ) -> Self {
        let (disk, driver) = Self::parts(name, media, limits, model);
        let queue = Queue::with_deadline(disk, driver, Arc::new(SimRuntime));
        let timeout_ms = u64::try_from(io_timeout.as_millis()).unwrap_or(u64::MAX);
        queue.disk().set_io_timeout_ms(timeout_ms).expect("a deadline of whole milliseconds");
        Self { queue: Arc::new(queue) }
    }

    fn parts(
        name: impl Into<String>,
        media: Media,
        limits: Limits,
        model: Model,
    ) -> (Disk, SimDriver) {
        let capacity = media.capacity();
        media.set_volatile(limits.features.contains(Features::WRITE_CACHE));
        let clockwork = Mutex::new(Clockwork::new(model, capacity));
        (
            Disk::new(name, capacity, limits),
            SimDriver { media, limits, clockwork, is_released: Arc::default() },
        )
    }

    /// The gateway to submit bios to the disk.
    pub fn gateway(&self) -> Gateway {
        Gateway::new(self.device())
    }

    /// The device.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::<Queue<SimDriver>>::clone(&self.queue)
    }

    /// Name, settings, counters.
    pub fn disk(&self) -> &Disk {
        self.queue.disk()
    }

    /// Whether it has released its resources of the system, as seen from outside of its device.
    pub fn released(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.queue.driver().is_released)
    }

    /// Its contents and faults.
    pub fn media(&self) -> &Media {
        &self.queue.driver().media
    }
}
