//! Origins: the snapshots of each device.
//!
//! A write waits until every snapshot has copies of all chunks that it touches. It is not split:
//! the exceptions of all its chunks are made at the same time, and the write goes down unchanged.

use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};

use ashlar_block::sync::gate::{Gate, GateEntry};
use ashlar_block::sync::lock;
use ashlar_block::{Bio, BioResult, Flags, Gateway, IoFuture, Sector, Sectors, Status};
use event_listener::{Event, EventListener};

use super::canary::{Rule, broken};
use super::exceptions::PendingException;
use super::state::{Persistence, Snapshot};

/// All devices with snapshots: one instance for all tables with the same devices.
#[derive(Default)]
pub struct Origins {
    all: Mutex<Vec<Weak<Origin>>>,
    fills: Arc<Event>,
}

impl Origins {
    /// Ends when the use of a snapshot's COW device exceeds another full percentage, or it can take no more writes.
    pub fn listen(&self) -> EventListener {
        self.fills.listen()
    }

    /// What [`Self::listen`] waits for.
    pub(super) fn fills(&self) -> Arc<Event> {
        Arc::clone(&self.fills)
    }

    /// The state of a device.
    pub(super) fn of(&self, device: &Gateway) -> Arc<Origin> {
        let mut all = lock(&self.all);
        all.retain(|origin| origin.strong_count() > 0);
        let known = all.iter().filter_map(Weak::upgrade).find(|o| o.device.is_same(device));
        known.unwrap_or_else(|| {
            let origin = Arc::new(Origin {
                device: device.clone(),
                snapshots: RwLock::default(),
                gate: Gate::default(),
            });
            all.push(Arc::downgrade(&origin));
            origin
        })
    }

    /// Whether `cow` is the COW device of a snapshot of another device than `origin`.
    pub(super) fn is_cow_of_another(&self, cow: &Gateway, origin: &Gateway) -> bool {
        let all = lock(&self.all);
        let others = all.iter().filter_map(Weak::upgrade).filter(|o| !o.device.is_same(origin));
        others.into_iter().any(|other| other.list().iter().any(|of| of.snapshot.cow.is_same(cow)))
    }
}

/// A snapshot in its origin's list, with the number of targets that use it.
struct Entry {
    snapshot: Arc<Snapshot>,
    targets: usize,
}

impl Entry {
    fn is_other_merge(&self, snapshot: &Arc<Snapshot>) -> bool {
        !Arc::ptr_eq(&self.snapshot, snapshot) && self.snapshot.merge.is_claimed()
    }
}

/// A device that has snapshots, or may get some.
pub(super) struct Origin {
    /// The opener of its users; a merge writes through the snapshot's own.
    pub(super) device: Gateway,
    snapshots: RwLock<Vec<Entry>>,
    /// All changes of the device pass it; closed while a snapshot is taken: a change sees the
    /// snapshot, or has ended before.
    gate: Gate,
}

impl Origin {
    fn list(&self) -> RwLockReadGuard<'_, Vec<Entry>> {
        self.snapshots.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds `new` to the snapshots; returns the existing snapshot with the same COW device if there is one.
    pub(super) fn join(&self, new: Arc<Snapshot>) -> Arc<Snapshot> {
        let mut list = self.snapshots.write().unwrap_or_else(PoisonError::into_inner);
        // Those that were only waiting for their last copies.
        list.retain(|entry| entry.targets > 0 || !entry.snapshot.is_idle());
        let same = |entry: &&mut Entry| {
            entry.snapshot.cow.is_same(&new.cow)
                && (entry.snapshot.is_persistent() || entry.targets > 0)
        };
        if let Some(entry) = list.iter_mut().find(same) {
            entry.targets += 1;
            return Arc::clone(&entry.snapshot);
        }
        list.push(Entry { snapshot: Arc::clone(&new), targets: 1 });
        new
    }

    /// Called when a target that used a snapshot is gone.
    pub(super) fn leave(&self, snapshot: &Arc<Snapshot>) {
        let mut list = self.snapshots.write().unwrap_or_else(PoisonError::into_inner);
        for entry in list.iter_mut().filter(|entry| Arc::ptr_eq(&entry.snapshot, snapshot)) {
            entry.targets -= 1;
            if entry.targets == 0 {
                snapshot.deactivate();
            }
        }
        // While copies are in flight, no other snapshot may load the contents of the COW device.
        list.retain(|entry| entry.targets > 0 || !entry.snapshot.is_idle());
    }

    /// Whether another snapshot than `snapshot` is or will be merged into this device.
    pub(super) fn has_other_merge(&self, snapshot: &Arc<Snapshot>) -> bool {
        self.list().iter().any(|entry| entry.is_other_merge(snapshot))
    }

    /// The right to merge `snapshot`, if it is free, and no other snapshot is or will be merged.
    pub(super) fn claim_merge(&self, snapshot: &Arc<Snapshot>) -> Option<Claim> {
        // The lock orders two concurrent requests.
        let list = self.snapshots.write().unwrap_or_else(PoisonError::into_inner);
        let other = list.iter().any(|entry| entry.is_other_merge(snapshot));
        if other { None } else { Claim::take(snapshot) }
    }

    /// Makes later changes create exceptions in `snapshot`: it shows the device as it is now.
    pub(super) async fn activate(&self, snapshot: &Snapshot, len: Sectors, how: Persistence) {
        let _closed = self.gate.close().await;
        snapshot.activate(len, how);
    }

    /// Starts the merge of `snapshot`: its other devices get no I/O, their I/O in flight has ended,
    /// and changes make no exceptions in it.
    pub(super) async fn begin_merge(&self, snapshot: &Snapshot, len: Sectors, how: Persistence) {
        snapshot.users.close().await.keep();
        snapshot.merge.begin();
        let _closed = self.gate.close().await;
        snapshot.activate(len, how);
    }

    fn lets_change(&self, at: Sector, len: Sectors) -> bool {
        let count = if broken(Rule::AllSnapshots) { 1 } else { usize::MAX };
        self.list().iter().take(count).all(|entry| entry.snapshot.lets_change(at, len))
    }

    /// Waits until a range may change for all snapshots.
    /// It may change as long as the pass of [`Self::enter`] exists.
    pub(super) async fn ready(&self, at: Sector, len: Sectors) {
        while !self.lets_change(at, len) {
            let snapshots: Vec<_> =
                self.list().iter().map(|entry| Arc::clone(&entry.snapshot)).collect();
            let mut waits: Vec<Arc<PendingException>> = Vec::new();
            for snapshot in &snapshots {
                snapshot.prepare_change(at, len, &mut waits).await;
            }
            for pending in waits {
                pending.made().await;
            }
        }
    }

    /// Admits a change of the device: a snapshot is taken before it, or after its end.
    pub(super) fn enter(&self) -> GateEntry<'_> {
        self.gate.enter()
    }

    async fn change(&self, bio: Bio) -> BioResult {
        let _pass = self.enter().await;
        self.ready(bio.sector, bio.len).await;
        self.device.submit(bio).await
    }

    /// Submits a bio that changes the device.
    pub(super) fn submit(&self, bio: Bio) -> IoFuture<'_> {
        if bio.flags.contains(Flags::NOWAIT) && !self.lets_change(bio.sector, bio.len) {
            return IoFuture::failed(Status::Again);
        }
        IoFuture::boxed(self.change(bio))
    }
}

/// The right to merge a snapshot: one target holds it, from before its resume until its suspension.
/// Nothing changes until the merge begins, so a table that does not become live leaves no trace;
/// and no target suspends another target's merge.
pub(super) struct Claim(Arc<Snapshot>);

impl Claim {
    /// Takes the right, if it is free. [`Origin::claim_merge`] checks the origin's other snapshots.
    fn take(snapshot: &Arc<Snapshot>) -> Option<Self> {
        snapshot.merge.claim().then(|| Self(Arc::clone(snapshot)))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.merge.task.end();
        self.0.merge.release();
    }
}
