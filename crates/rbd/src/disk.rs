//! An image as a disk.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use ashlar_block::bio::{Flags, Op};
use ashlar_block::disk::Disk;
use ashlar_block::queue::{Driver, Queue};
use ashlar_block::request::Request;
use ashlar_block::sync;
use ashlar_block::units::Sectors;
use ashlar_block::{BlockDevice, Features, Limits, Status};
use ashlar_engine::{EngineRuntime, blocking, spawn};
use rustix::io::Errno;

use crate::closing;
use crate::cluster;
use crate::error::OpenError;
use crate::ffi::{CallError, Command, Image, ImageInfo, IoContext, Mode, errno};
use crate::uri::Uri;

/// An image as a disk.
pub type RbdDisk = Queue<RbdDriver>;

/// The deadline of requests unless it is changed, in milliseconds. An OSD that stops responding makes its requests wait until the others
/// have noticed that: for 20 s by default (`osd_heartbeat_grace`), and some more. Nothing is lost then, so a deadline
/// within that time would turn a pause into a failure.
const IO_TIMEOUT_MS: u64 = 60_000;
/// How long opening may take: longer than the cluster needs to find out that the owner of a lock is dead, and then some.
const PATIENCE: Duration = Duration::from_secs(75);
/// The unit of discards if librbd does not tell: its own default.
const DISCARD_UNIT_BYTES: u64 = 64 << 10;
/// The most objects of one discard or write-zeroes: librbd has an operation in flight for each.
const MAX_OBJECTS: u64 = 64;
/// The sizes of objects that librbd makes.
const OBJECT_BYTES: std::ops::RangeInclusive<u64> = 4096..=32 << 20;

/// The driver of an image. Requests must be submitted on a reactor's thread. librbd cannot cancel one: past its deadline it stays
/// overdue until the cluster answers, or the option `rados_osd_op_timeout` ends it.
pub struct RbdDriver {
    uri: Uri,
    /// Until the disk is released.
    image: ArcSwapOption<Image>,
}

/// Opens an image as a disk, which writes unless `read_only`. A writer takes the exclusive lock, if the image has that feature. Blocks for
/// at most 75 s, so a reactor runs it in the [pool](ashlar_engine::blocking::run).
///
/// # Errors
/// [`OpenError`].
pub fn open(uri: &Uri, read_only: bool) -> Result<Arc<RbdDisk>, OpenError> {
    if uri.snapshot.is_some() && !read_only {
        return Err(OpenError::Snapshot);
    }
    let mode = if read_only { Mode::Read } else { Mode::Write };
    let (sender, opened) = mpsc::channel();
    let wanted = uri.clone();
    // Some calls of librbd wait for OSDs forever. If they return after the patience is over, the image is closed again.
    let work = move || drop(sender.send(open_image(&wanted, mode)));
    let thread = thread::Builder::new().name("ashlar-rbd-open".to_owned());
    thread.spawn(work).map_err(OpenError::Thread)?;
    let opened = opened.recv_timeout(PATIENCE).map_err(|error| match error {
        RecvTimeoutError::Timeout => OpenError::Silent(PATIENCE.as_secs()),
        RecvTimeoutError::Disconnected => {
            OpenError::Thread(std::io::Error::other("it has ended by a panic"))
        }
    });
    let Opened { image, info, unit, place } = opened??;
    let limits = limits(&info, unit)?;
    let disk = Disk::new(uri.name(), capacity(info.size_bytes), limits);
    disk.set_read_only(read_only);
    disk.set_shared(!info.has_exclusive_lock());
    let driver = RbdDriver { uri: uri.clone(), image: Some(image).into() };
    let queue = Queue::with_deadline(disk, driver, Arc::new(EngineRuntime));
    let queue = Arc::new(queue);
    if let Err(error) = queue.disk().set_io_timeout_ms(IO_TIMEOUT_MS) {
        tracing::warn!(%error, "the deadline of requests");
    }
    place.get_or_init(|| Arc::downgrade(&queue));
    // It may have been resized before the watcher had the disk.
    resized(&place);
    Ok(queue)
}

/// Where the watcher of an image finds its disk.
type DiskPlace = Arc<OnceLock<Weak<RbdDisk>>>;

struct Opened {
    image: Arc<Image>,
    info: ImageInfo,
    /// The unit of discards, in bytes.
    unit: u64,
    place: DiskPlace,
}

fn open_image(uri: &Uri, mode: Mode) -> Result<Opened, OpenError> {
    closing::wait_for(&uri.to_string(), PATIENCE);
    let connection = cluster::connection(&uri.access)?;
    let opened = open_with(Arc::clone(&connection), uri, mode);
    let is_fenced =
        |error: &OpenError| matches!(error, OpenError::Call { source: Errno::SHUTDOWN, .. });
    if opened.as_ref().is_err_and(is_fenced) {
        // The cluster refuses the process's connection, but a new one is another client.
        connection.set_fenced();
        drop(connection);
        return open_with(cluster::connection(&uri.access)?, uri, mode);
    }
    opened
}

fn open_with(
    connection: Arc<crate::ffi::Connection>,
    uri: &Uri,
    mode: Mode,
) -> Result<Opened, OpenError> {
    let unit = connection.number("rbd_discard_granularity_bytes");
    let missing = |error: CallError, none: OpenError| match error.errno {
        Errno::NOENT => none,
        _ => error.into(),
    };
    let io = IoContext::new(connection, &uri.pool, &uri.namespace)
        .map_err(|error| missing(error, OpenError::NoPool(uri.pool.clone())))?;
    let mut image = Image::open(io, &uri.image, uri.snapshot.as_deref(), mode)
        .map_err(|error| missing(error, OpenError::NoImage(uri.to_string())))?;
    let info = image.info()?;
    let place = DiskPlace::default();
    if mode == Mode::Write {
        if info.has_exclusive_lock() {
            lock(&image)?;
        }
        let disk = Arc::clone(&place);
        image.watch(Box::new(move || {
            let disk = Arc::clone(&disk);
            drop(blocking::run(move || resized(&disk)));
        }))?;
    }
    let unit = unit.unwrap_or(DISCARD_UNIT_BYTES);
    Ok(Opened { image: Arc::new(image), info, unit, place })
}

fn lock(image: &Image) -> Result<(), OpenError> {
    let Err(error) = image.lock() else { return Ok(()) };
    if error.errno != Errno::ROFS {
        return Err(error.into());
    }
    let owners = image.owners().unwrap_or_default();
    let owner = if owners.is_empty() { "another client".to_owned() } else { owners.join(", ") };
    Err(OpenError::Locked(owner))
}

/// The image has changed: its disk gets its size.
fn resized(place: &DiskPlace) {
    /// So that the size that is asked for last is set last.
    static TURN: Mutex<()> = Mutex::new(());
    let Some(disk) = place.get().and_then(Weak::upgrade) else { return };
    let turn = sync::lock(&TURN);
    let Some(image) = disk.driver().image.load_full() else { return };
    let before = disk.disk().capacity();
    let now = match image.ask_size() {
        Ok(size) => capacity(size),
        Err(error) => {
            return tracing::warn!(image = disk.disk().name(), ?error, "cannot ask for the size");
        }
    };
    if now < before {
        let image = disk.disk().name();
        tracing::error!(image, %before, %now, "the image has become smaller: data beyond its new end is lost");
    }
    disk.disk().set_capacity(now);
    drop(turn);
}

/// Whole logical blocks.
fn capacity(bytes: u64) -> Sectors {
    Sectors::from_bytes_floor(bytes)
}

fn limits(info: &ImageInfo, unit: u64) -> Result<Limits, OpenError> {
    let ImageInfo { object_bytes: object, stripe_unit_bytes: stripe, stripe_count: count, .. } =
        *info;
    let is_usual = object.is_power_of_two() && OBJECT_BYTES.contains(&object);
    if !is_usual || stripe == 0 || stripe > object || count == 0 {
        return Err(OpenError::Objects(object));
    }
    let is_striped = count > 1;
    // librbd keeps the data of units that a discard covers in part. Units begin with objects, and those that are longer than
    // a stripe have their parts in a row of objects.
    let unit = unit.clamp(512, object);
    let unit = if is_striped && unit > stripe { unit.saturating_mul(count) } else { unit };
    let best = if is_striped { stripe.saturating_mul(count) } else { object };
    let bytes = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    let many = Sectors::from_bytes_floor(object * MAX_OBJECTS);
    Ok(Limits {
        logical_block_bytes: 512,
        physical_block_bytes: 4096,
        io_min_bytes: 4096,
        io_opt_bytes: bytes(best),
        max_hw_sectors: Sectors::from_bytes_floor(object.max(128 << 10)),
        dma_alignment_bytes: 1,
        max_hw_discard: many,
        discard_granularity_bytes: bytes(unit),
        max_write_zeroes: many,
        // Without librbd's cache an acknowledged write is on its OSDs, and a flush only waits for writes in flight. But an
        // administrator can turn the cache on for an image, or add a journal (`rbd config image set`), and then writes need it.
        // Zeroing removes objects, or truncates them.
        features: Features::WRITE_CACHE | Features::FAST_ZERO,
        ..Limits::default()
    })
}

impl Driver for RbdDriver {
    fn queue_rq(&self, rq: Request) {
        let Some(image) = self.image.load_full() else {
            return rq.complete(Err(Status::Offline));
        };
        let (offset, len) = (rq.sector().bytes(), rq.len().bytes());
        // To keep a range allocated, librbd writes it.
        if rq.flags().contains(Flags::FAST | Flags::NOUNMAP) {
            return rq.complete(Err(Status::NotSupported));
        }
        let command = match rq.op() {
            Op::Read => Command::Read,
            Op::Write => Command::Write,
            Op::Flush => Command::Flush,
            Op::Discard => Command::Discard,
            Op::WriteZeroes => {
                Command::WriteZeroes { keep_allocated: rq.flags().contains(Flags::NOUNMAP) }
            }
        };
        // librbd cuts silently what crosses the end. (If the image becomes smaller after this: as if it had been right after
        // the request.)
        if command != Command::Flush && offset + len > image.size_bytes() {
            return rq.complete(Err(Status::Io));
        }
        let segments = rq.segments().cloned().collect();
        let ended = image.submit(command, offset, len, segments);
        // On the thread of the submitter, as the block layer wants; librbd ends the operation on its own.
        spawn(async move {
            let result =
                match ended.await {
                    Ok(result) if command == Command::Read && result >= 0 => {
                        if result as u64 == len { Ok(()) } else { Err(Status::Io) }
                    }
                    Ok(result) => errno(result).map_or(Ok(()), |errno| Err(failure(&image, errno))),
                    // librbd has lost it.
                    Err(_) => Err(Status::Io),
                };
            rq.complete(result);
        })
        .detach();
    }

    /// The image is closed, on a thread of its own, once its operations have ended.
    fn release(&self) {
        if let Some(image) = self.image.swap(None) {
            image.end_soon(&self.uri);
        }
    }
}

fn failure(image: &Image, errno: Errno) -> Status {
    match errno {
        // Another client has taken the lock away, and before that it has the cluster refuse this one.
        Errno::SHUTDOWN | Errno::ROFS => {
            if image.io().connection().set_fenced() {
                tracing::error!(
                    %errno,
                    "the cluster refuses this client: another one has taken the exclusive lock of an image"
                );
            }
            Status::Offline
        }
        // The range was right before the image became smaller.
        Errno::INVAL => Status::Io,
        other => Status::from_errno(other.raw_os_error()),
    }
}
