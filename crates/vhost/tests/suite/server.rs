//! A device on a socket, over a RAM disk that can hold its I/O back.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ashlar_block::{
    Bio, BlockDevice, ByteVolume, Disk, Features, Gateway, IoFuture, Limits, Op, Sectors, Segments,
    Status,
};
use ashlar_engine::net::BoundSocket;
use ashlar_engine::oneshot::{self, Sender};
use ashlar_engine::{Engine, RamDevice, Reactor, Receiver, sleep};
use ashlar_vhost::{Config, Export, listen};
use futures_util::FutureExt;
use tempfile::TempDir;

pub(crate) const DISK_BYTES: u64 = 64 << 20;

/// A RAM disk whose reads and writes wait while it is held.
pub(crate) struct Slow {
    ram: RamDevice,
    pub(crate) is_held: AtomicBool,
    /// Reads and writes that have begun.
    pub(crate) begun: AtomicUsize,
    pub(crate) written: AtomicUsize,
    /// Reads fail, and their memory is kept here: as of a device that has not answered in time.
    pub(crate) kept: Mutex<Option<Vec<Segments>>>,
}

impl Slow {
    pub(crate) fn new() -> Arc<Self> {
        let ram = RamDevice::new("ram0", Sectors::from_bytes_floor(DISK_BYTES)).unwrap();
        let (is_held, begun, written, kept) = Default::default();
        Arc::new(Self { ram, is_held, begun, written, kept })
    }

    pub(crate) fn volume(self: &Arc<Self>) -> Arc<ByteVolume> {
        Arc::new(ByteVolume::new(Gateway::new(Arc::clone(self) as _)))
    }
}

impl BlockDevice for Slow {
    fn disk(&self) -> &Disk {
        self.ram.disk()
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        self.begun.fetch_add(1, SeqCst);
        if bio.op == Op::Read
            && let Some(kept) = &mut *self.kept.lock().unwrap()
        {
            kept.push(bio.segments);
            return IoFuture::failed(Status::Timeout);
        }
        if !self.is_held.load(SeqCst) {
            return self.ram.submit_bio(bio);
        }
        IoFuture::boxed(async move {
            while self.is_held.load(SeqCst) {
                sleep(Duration::from_millis(1)).await;
            }
            if bio.op == Op::Write {
                self.written.fetch_add(1, SeqCst);
            }
            self.ram.submit_bio(bio).await
        })
    }
}

/// A RAM disk that says it has a volatile cache, and lists the operations it gets.
pub(crate) struct Cached {
    ram: RamDevice,
    disk: Disk,
    pub(crate) operations: Mutex<Vec<Op>>,
}

impl Cached {
    pub(crate) fn new() -> Arc<Self> {
        let capacity = Sectors::from_bytes_floor(DISK_BYTES);
        let ram = RamDevice::new("ram0", capacity).unwrap();
        let limits = ram.disk().limits();
        let features = limits.features | Features::WRITE_CACHE;
        let disk = Disk::new("ram0", capacity, Limits { features, ..*limits });
        Arc::new(Self { ram, disk, operations: Mutex::default() })
    }
}

impl BlockDevice for Cached {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        self.operations.lock().unwrap().push(bio.op);
        self.ram.submit_bio(bio)
    }
}

/// A RAM disk of which some sectors are written by nobody.
pub(crate) struct Spared {
    ram: RamDevice,
    spared: Range<u64>,
    /// Writes that touched them.
    pub(crate) touched: AtomicUsize,
}

impl Spared {
    pub(crate) fn new(spared: Range<u64>) -> Arc<Self> {
        let ram = RamDevice::new("ram0", Sectors::from_bytes_floor(DISK_BYTES)).unwrap();
        Arc::new(Self { ram, spared, touched: AtomicUsize::new(0) })
    }
}

impl BlockDevice for Spared {
    fn disk(&self) -> &Disk {
        self.ram.disk()
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        let end = bio.sector.0 + bio.len.0;
        if bio.op == Op::Write && bio.sector.0 < self.spared.end && end > self.spared.start {
            self.touched.fetch_add(1, SeqCst);
        }
        self.ram.submit_bio(bio)
    }
}

pub(crate) struct Server {
    engine: Option<Engine>,
    stop: Option<Sender<()>>,
    served: Option<Receiver<std::io::Result<()>>>,
    pub(crate) export: Arc<Export>,
    pub(crate) path: PathBuf,
    _directory: TempDir,
}

impl Server {
    pub(crate) fn of(volume: Arc<ByteVolume>) -> Self {
        Self::start(Export::new("ram0", volume), Config { queues: 4, ..Config::default() })
    }

    pub(crate) fn start(export: Export, config: Config) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let bound = BoundSocket::unix(&path, 0o600, None).unwrap();
        let engine = Engine::start(2).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let export = Arc::new(export);
        let (shared, threads) = (Arc::clone(&export), engine.handles().into());
        let served = engine.handles()[0].spawn_on(move || {
            let stop = stopped.map(|_| ()).shared();
            listen(bound.into(), shared, threads, config, std::future::pending(), stop)
        });
        let (engine, stop, served) = (Some(engine), Some(stop), Some(served));
        Self { engine, stop, served, export, path, _directory: directory }
    }

    /// Ends in order: everything that was taken has ended.
    pub(crate) fn stop(mut self) {
        drop(self.stop.take());
        let served = self.served.take().unwrap();
        let reactor = Reactor::new(Default::default()).unwrap();
        reactor.block_on(served).expect("the listener does not panic").unwrap();
    }

    /// Ends as a process that is killed: nothing that was taken is completed.
    pub(crate) fn kill(mut self) {
        drop(self.engine.take());
    }
}
