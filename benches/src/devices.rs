//! Devices for the measurements: members without data, and arrays with another barrier in front.
//!
//! md's array has its lock-free barrier built in. So another barrier is put in series with it: each I/O passes md's
//! barrier and the other one. An array with a second lock-free barrier compared with an array with a second, locked one
//! is a comparison that is fair to the locked one; the array alone shows how much time the second barrier takes.

use std::ops::Range;
use std::sync::Arc;

use ashlar_block::{
    Bio, BioResult, BlockDevice, Disk, Driver, Gateway, IoFuture, Limits, Op, Queue, Request,
    Sector, Sectors,
};
use ashlar_engine::{EngineRuntime, RamDevice};
use ashlar_md::internals::barrier::Barrier;
use ashlar_sim::{Model, modelled};

use crate::arrays::DATA_OFFSET;
use crate::common::Outcome;
use crate::locked_barrier::LockedBarrier;

/// A barrier that I/O passes before md's.
pub(crate) enum ExtraBarrier {
    /// None.
    Nothing,
    /// A lock-free one, like md's.
    LockFree(Arc<Barrier>),
    /// One lock around all buckets.
    Locked(LockedBarrier),
    /// One bucket: all I/O waits while there is sync I/O anywhere. Entering takes no lock, so its only cost is the
    /// waiting.
    Global(Arc<Barrier>),
}

/// An array behind a barrier.
pub(crate) struct GuardedArray {
    inner: Gateway,
    disk: Disk,
    extra: ExtraBarrier,
}

impl GuardedArray {
    pub(crate) fn before(inner: Gateway, extra: ExtraBarrier) -> Gateway {
        let disk = same_disk(&inner);
        Gateway::new(Arc::new(Self { inner, disk, extra }))
    }

    async fn pass(&self, bio: Bio) -> BioResult {
        let (at, len) = (bio.sector, bio.len);
        match &self.extra {
            ExtraBarrier::Nothing => self.inner.submit(bio).await,
            ExtraBarrier::LockFree(barrier) if bio.op == Op::Read => {
                let _pass = match barrier.try_wait_read(at, len) {
                    Some(pass) => pass,
                    None => barrier.wait_read(at, len).await,
                };
                self.inner.submit(bio).await
            }
            ExtraBarrier::LockFree(barrier) => {
                let _pass = match barrier.try_wait(at, len) {
                    Some(pass) => pass,
                    None => barrier.wait(at, len).await,
                };
                self.inner.submit(bio).await
            }
            ExtraBarrier::Locked(barrier) => {
                if bio.op == Op::Read {
                    barrier.wait_read(at);
                } else {
                    barrier.wait(at);
                }
                let result = self.inner.submit(bio).await;
                barrier.allow(at);
                result
            }
            ExtraBarrier::Global(barrier) => {
                let _pass = match barrier.try_wait(Sector::ZERO, Sectors(1)) {
                    Some(pass) => pass,
                    None => barrier.wait(Sector::ZERO, Sectors(1)).await,
                };
                self.inner.submit(bio).await
            }
        }
    }
}

impl BlockDevice for GuardedArray {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        IoFuture::boxed(self.pass(bio))
    }
}

/// A member that raises a global barrier for each I/O in the part where there is only sync I/O.
///
/// md keeps a window raised while it reads and writes; here the barrier is lowered between the two, which favours the
/// global barrier.
pub(crate) struct RaisingMember {
    inner: Gateway,
    disk: Disk,
    synced: Range<Sector>,
    global: Option<Arc<Barrier>>,
}

impl RaisingMember {
    pub(crate) fn over(
        inner: Gateway,
        synced: Range<Sector>,
        global: Option<Arc<Barrier>>,
    ) -> Gateway {
        let disk = same_disk(&inner);
        Gateway::new(Arc::new(Self { inner, disk, synced, global }))
    }
}

impl BlockDevice for RaisingMember {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        match &self.global {
            Some(global) if bio.op.has_data() && self.synced.contains(&bio.sector) => {
                IoFuture::boxed(async {
                    let _raised = global.raise(Sector::ZERO, Sectors(1)).await;
                    self.inner.submit(bio).await
                })
            }
            Some(_) | None => self.inner.submit(bio),
        }
    }
}

/// Ends each request at once.
pub(crate) struct NullDriver;

impl Driver for NullDriver {
    fn queue_rq(&self, rq: Request) {
        rq.complete(Ok(()));
    }
}

/// A member that stores only superblocks: data are discarded, and reads leave the buffer as it is. So only the layers
/// above take time.
pub(crate) struct HollowMember {
    disk: Disk,
    front: Gateway,
    /// What the data pass.
    queue: Option<Queue<NullDriver>>,
}

impl HollowMember {
    pub(crate) fn gateway(name: &str, capacity: Sectors) -> Outcome<Gateway> {
        Self::make(name, capacity, false)
    }

    /// One whose data pass a queue with a deadline, as those of a file do.
    pub(crate) fn queued(name: &str, capacity: Sectors) -> Outcome<Gateway> {
        Self::make(name, capacity, true)
    }

    fn make(name: &str, capacity: Sectors, is_queued: bool) -> Outcome<Gateway> {
        let front = Gateway::new(Arc::new(RamDevice::new(name, DATA_OFFSET)?));
        let limits = *front.disk().limits();
        let disk = || Disk::new(name, capacity, limits);
        let queue = || Queue::with_deadline(disk(), NullDriver, Arc::new(EngineRuntime));
        let queue = is_queued.then(queue);
        Ok(Gateway::new(Arc::new(Self { disk: disk(), front, queue })))
    }
}

impl BlockDevice for HollowMember {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        if bio.end() <= DATA_OFFSET.as_end() {
            return self.front.submit(bio);
        }
        if let Some(queue) = &self.queue {
            return queue.submit_bio(bio);
        }
        drop(bio);
        IoFuture::ready(Ok(()))
    }
}

fn same_disk(inner: &Gateway) -> Disk {
    let limits: Limits = *inner.disk().limits();
    Disk::new(inner.disk().name(), inner.capacity(), limits)
}

/// RAM disks.
///
/// # Errors
/// Out of memory.
pub(crate) fn ram(count: usize, bytes: u64) -> Outcome<Vec<Gateway>> {
    let disk = |_| {
        let ram = RamDevice::new("ram", Sectors::from_bytes_floor(bytes))?;
        Ok(Gateway::new(Arc::new(ram)))
    };
    (0..count).map(disk).collect()
}

/// A RAM disk that moves no more than this many bytes in a second, as an NVMe disk does.
///
/// # Errors
/// Out of memory.
pub(crate) fn limited_ram(bytes: u64, bytes_per_second: u64) -> Outcome<Gateway> {
    let model = Model { bytes_per_second, ..Model::nvme() };
    let lower = ram(1, bytes)?.remove(0);
    Ok(Gateway::new(Arc::new(modelled(lower, model, Vec::new(), Arc::new(EngineRuntime)))))
}
