//! Devices to measure with: members without data, and arrays with another barrier in front.
//!
//! md's array has its lock-free barrier built in, and takes no other. So other barriers are put in
//! series with it: each I/O passes md's barrier and one more. An array with one lock-free barrier more
//! beside an array with a locked one more is a comparison that does the locked one no wrong; the
//! array alone beside the latter shows how much time it takes.

use std::ops::Range;
use std::sync::Arc;

use ashlar_block::{
    Bio, BioResult, BlockDevice, Disk, Gateway, IoFuture, Limits, Op, Sector, Sectors,
};
use ashlar_engine::RamDevice;
use ashlar_md::barrier::Barrier;

use crate::arrays::DATA_OFFSET;
use crate::common::Outcome;
use crate::locked_barrier::LockedBarrier;

/// A barrier that I/O passes before md's.
pub(crate) enum Extra {
    /// None.
    Nothing,
    /// One like md's.
    LockFree(Arc<Barrier>),
    /// One lock around all buckets.
    Locked(LockedBarrier),
    /// One bucket: all I/O waits while there is sync I/O anywhere. It takes no lock to enter, so what
    /// it costs is the waiting.
    Global(Arc<Barrier>),
}

/// An array behind a barrier.
pub(crate) struct Guarded {
    inner: Gateway,
    disk: Disk,
    extra: Extra,
}

impl Guarded {
    pub(crate) fn before(inner: Gateway, extra: Extra) -> Gateway {
        let disk = same_disk(&inner);
        Gateway::new(Arc::new(Self { inner, disk, extra }))
    }

    async fn pass(&self, bio: Bio) -> BioResult {
        let (at, len) = (bio.sector, bio.len);
        match &self.extra {
            Extra::Nothing => self.inner.submit(bio).await,
            Extra::LockFree(barrier) if bio.op == Op::Read => {
                let _pass = match barrier.try_wait_read(at) {
                    Some(pass) => pass,
                    None => barrier.wait_read(at).await,
                };
                self.inner.submit(bio).await
            }
            Extra::LockFree(barrier) => {
                let _pass = match barrier.try_wait(at, len) {
                    Some(pass) => pass,
                    None => barrier.wait(at, len).await,
                };
                self.inner.submit(bio).await
            }
            Extra::Locked(barrier) => {
                if bio.op == Op::Read {
                    barrier.wait_read(at);
                } else {
                    barrier.wait(at);
                }
                let result = self.inner.submit(bio).await;
                barrier.allow(at);
                result
            }
            Extra::Global(barrier) => {
                let _pass = match barrier.try_wait(Sector::ZERO, Sectors(1)) {
                    Some(pass) => pass,
                    None => barrier.wait(Sector::ZERO, Sectors(1)).await,
                };
                self.inner.submit(bio).await
            }
        }
    }
}

impl BlockDevice for Guarded {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        IoFuture::boxed(self.pass(bio))
    }
}

/// A member that raises a global barrier for each I/O in a part of it where there is sync I/O alone.
///
/// A window of md's raises for as long as it reads and writes; here the barrier is lowered between the
/// two, which is to the global barrier's advantage.
pub(crate) struct Raising {
    inner: Gateway,
    disk: Disk,
    synced: Range<Sector>,
    global: Option<Arc<Barrier>>,
}

impl Raising {
    pub(crate) fn over(
        inner: Gateway,
        synced: Range<Sector>,
        global: Option<Arc<Barrier>>,
    ) -> Gateway {
        let disk = same_disk(&inner);
        Gateway::new(Arc::new(Self { inner, disk, synced, global }))
    }
}

impl BlockDevice for Raising {
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

/// A member that keeps superblocks and nothing else: data is forgotten, and reads leave the buffer as
/// it is. What stands above is all that it costs.
pub(crate) struct Hollow {
    disk: Disk,
    front: Gateway,
}

impl Hollow {
    pub(crate) fn gateway(name: &str, capacity: Sectors) -> Outcome<Gateway> {
        let front = Gateway::new(Arc::new(RamDevice::new(name, DATA_OFFSET)?));
        let disk = Disk::new(name, capacity, *front.disk().limits());
        Ok(Gateway::new(Arc::new(Self { disk, front })))
    }
}

impl BlockDevice for Hollow {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        if bio.end() <= DATA_OFFSET.as_end() {
            return self.front.submit(bio);
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
