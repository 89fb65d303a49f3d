//! Which members are near: probes, and what reads cost because of them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ashlar_block::{Bio, Buffer, Sector, Sectors};
use futures_util::future::{Either, select};
use tracing::info;

use super::Core;
use crate::membership::slots::Index;

/// The length of a probe: a page, which every device can read.
const PROBE: Sectors = Sectors(8);

impl Core {
    /// Has reads prefer the near members, from the probes so far, and begins new ones if the array was read since the last call
    /// ([`latency`](crate::membership::latency)).
    pub(crate) fn balance_reads(&self) {
        let reads = self.disk.stats().totals().read.ios;
        if self.reads_seen.swap(reads, Relaxed) == reads || self.lifecycle.is_stopped() {
            return;
        }
        self.weigh_members();
        let Some(core) = self.me() else { return };
        for (index, rdev) in self.members.placed().filter(|(_, rdev)| !rdev.is_faulty()) {
            if rdev.latency().begin(self.runtime.now_ns()) {
                self.runtime.spawn(Box::pin(Arc::clone(&core).probe(index)));
            }
        }
    }

    fn weigh_members(&self) {
        let now_ns = self.runtime.now_ns();
        let known = || {
            let members = self.members.placed().filter(|(_, rdev)| !rdev.is_faulty());
            members.filter_map(|(_, rdev)| Some((rdev, rdev.latency().get_ns(now_ns)?)))
        };
        // A member under rebuild can be read only in part.
        let in_sync = known().filter(|(rdev, _)| rdev.is_in_sync());
        let Some(nearest_ns) = in_sync.map(|(_, ns)| ns).min() else { return };
        for (rdev, ns) in known() {
            let (array, member, latency_us) = (self.name(), rdev.path(), ns / 1000);
            let nearest_us = nearest_ns / 1000;
            match rdev.latency().weigh(ns, nearest_ns) {
                Some(true) => {
                    info!(array, member, latency_us, nearest_us, "far: reads prefer nearer members")
                }
                Some(false) => {
                    info!(array, member, latency_us, nearest_us, "near again: reads are spread")
                }
                None => {}
            }
        }
    }

    /// Reads a little from a member. This task ignores errors: a client's read will meet them, too.
    async fn probe(self: Arc<Self>, index: Index) {
        let Some(rdev) = self.members.get(index) else { return };
        let Some(mut buffer) = Buffer::try_alloc(PROBE.bytes() as usize) else {
            return rdev.latency().give_up();
        };
        let read = rdev.gateway().submit(Bio::read(Sector(0), [buffer.whole()]));
        // A task that holds the array also holds its members' devices.
        match select(read, pin!(self.lifecycle.ended())).await {
            Either::Left((Ok(()), _)) => rdev.latency().end(self.runtime.now_ns()),
            Either::Left((Err(_), _)) | Either::Right(_) => rdev.latency().give_up(),
        }
    }
}
