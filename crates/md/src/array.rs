//! A running array: a core, a level, and the engine of syncs, as a block device.
//!
//! Who decides what is in [`core`](crate::core), how a client's data moves in [`level`](crate::level), what the array does
//! of its own accord in [`sync`](crate::sync). Changes by a user are in [`manage`](crate::manage).

use std::ops::Range;
use std::sync::{Arc, Weak};

use ashlar_block::sync::uncancellable::Uncancellable;
use ashlar_block::{
    Bio, BioResult, BlockDevice, Disk, Extents, Features, IoFuture, Limits, LocalFuture, Runtime,
    Sector, Sectors, Status,
};
use tracing::{info, warn};

use crate::assemble::Plan;
use crate::assemble::reshape::Reshaping;
use crate::bitmap::Bitmap;
use crate::core::{Core, Ppl, Start};
use crate::level::Level;
use crate::level::mirrored::MirroredLevel;
use crate::level::parity::ParityLevel;
use crate::level::parity::settings::ParitySettings;
use crate::level::reshaped::ReshapedLevel;
use crate::level::striped::StripedLevel;
use crate::membership::slots::Members;
use crate::membership::superblocks::Superblocks;
use crate::ondisk::Level as RaidLevel;
use crate::personality::Personality;
use crate::reshape::{ReshapeStatus, Side};
use crate::sync::{Engine, SyncError, SyncRequest, SyncSettings, SyncStatus};

pub use crate::core::lifecycle::SAFE_MODE_DELAY;

/// An assembled array.
pub struct Array {
    me: Weak<Self>,
    pub(crate) core: Arc<Core>,
    level: Arc<dyn Level>,
    pub(crate) sync: Arc<Engine>,
    /// Notes of the assembly: members left out, and why.
    pub(crate) notes: Vec<String>,
    /// The reshape that is under way.
    reshape: Option<Reshaped>,
}

/// What an array under reshape has besides its level.
struct Reshaped {
    status: ReshapeStatus,
    /// The array's size.
    size: Sectors,
    /// The side of the array's core.
    side: Side,
    /// The core of the other side, unless that is empty.
    other: Option<Arc<Core>>,
}

/// The core of a plan, for an array of `size`.
fn core_of(plan: Plan, name: &str, size: Sectors, runtime: Arc<dyn Runtime>) -> Arc<Core> {
    let Plan {
        personality,
        members,
        superblocks,
        freshest,
        read_only,
        in_sync_to,
        forced,
        bitmap,
        replayed,
        reshape: _,
        notes: _,
    } = plan;
    let members = Members::new(personality.disks(), members);
    let mut limits = Limits::stacking();
    for (_, rdev) in members.iter() {
        limits.stack(rdev.limits(), rdev.data_offset().as_end());
    }
    let mut limits = limits.finish_stacking();
    if personality.is_redundant() {
        // A write-behind may be missing even on a member without a volatile cache.
        if !limits.features.contains(Features::WRITE_CACHE) {
            limits.features |= Features::FUA;
        }
        limits.features |= Features::WRITE_CACHE;
        // A member that is missing may come back, and its discards need not read as zeroes.
        if members.degraded() > 0 {
            limits.features -= Features::DISCARD_ZEROES;
        }
    }
    // The array keeps the block size it was created with, even if its members changed.
    limits.logical_block_bytes = limits.logical_block_bytes.max(freshest.logical_block_size);
    personality.narrow(&mut limits, members.slots());
    let disk = Disk::new(name, size.round_down(limits.logical_block()), limits);
    disk.set_read_only(read_only);
    let areas = members.iter().filter_map(|(_, rdev)| rdev.ppl_area());
    let area = areas.map(|area| area.end - area.start).min();
    let area = area.filter(|_| freshest.ppl.is_some() && freshest.level == RaidLevel::Raid5);
    let ppl = area.map(|area| Ppl::new(freshest.set_uuid, personality.disks(), area, replayed));
    let start = Start {
        disk,
        ppl,
        superblocks: Superblocks::new(superblocks, &members, &freshest),
        members,
        bitmap,
        in_sync_to,
        forced,
        writable: !read_only,
        dirty: !freshest.is_clean() && personality.is_redundant(),
        personality,
    };
    Core::new(start, runtime)
}

fn level_of(core: &Arc<Core>) -> Arc<dyn Level> {
    match core.personality() {
        Personality::Linear { zones, .. } | Personality::Raid0(zones) => {
            Arc::new(StripedLevel::new(Arc::clone(core), zones.clone()))
        }
        Personality::Raid1 { .. } | Personality::Raid10(_) => {
            Arc::new(MirroredLevel::new(Arc::clone(core)))
        }
        Personality::Parity(geometry) => Arc::new(ParityLevel::new(Arc::clone(core), *geometry)),
    }
}

impl Array {
    /// Starts the array that `plan` describes under the name `name` (`md0`). Nothing is written:
    /// the superblocks change with the first write.
    pub fn start(mut plan: Plan, name: &str, runtime: Arc<dyn Runtime>) -> Arc<Self> {
        let reshaping = plan.reshape.take();
        let notes = std::mem::take(&mut plan.notes);
        for note in &notes {
            warn!(array = name, "{note}");
        }
        let size = reshaping.as_ref().map_or(plan.personality.size(), |reshaping| reshaping.size);
        info!(array = name, level = %plan.personality.level(), %size, "started");
        if let Some(other) = reshaping.as_ref().and_then(|reshaping| reshaping.other.as_ref()) {
            let blocks = other.members.iter().map(|(rdev, _)| rdev.limits().logical_block_bytes);
            let own = plan.freshest.logical_block_size;
            plan.freshest.logical_block_size = blocks.fold(own, u32::max);
        }
        let core = core_of(plan, name, size, Arc::clone(&runtime));
        let (level, reshape) = match reshaping {
            None => (level_of(&core), None),
            Some(reshaping) => {
                let Reshaping { status, side, other, size, saved } = *reshaping;
                let other = other.map(|plan| core_of(plan, name, size, runtime));
                let mut levels = [Some(level_of(&core)), other.as_ref().map(level_of)];
                if side == Side::After {
                    levels.reverse();
                }
                let level = ReshapedLevel::new(Arc::clone(&core), status.position, levels, saved);
                let level: Arc<dyn Level> = Arc::new(level);
                (level, Some(Reshaped { status, size, side, other }))
            }
        };
        let sync = Engine::new(Arc::clone(&core), Arc::clone(&level));
        sync.start();
        Arc::new_cyclic(|me| Self { me: me.clone(), core, level, sync, notes, reshape })
    }

    /// Whether the array was stopped.
    pub fn is_stopped(&self) -> bool {
        self.core.lifecycle.is_stopped()
    }

    /// Whether the superblocks say that writes are under way.
    pub fn is_active(&self) -> bool {
        self.core.lifecycle.is_dirty()
    }

    /// How far copies are known to be the same, except for writes under way; [`Sectors::MAX`] for
    /// all. Beyond it only the first copy of each chunk is read.
    pub fn in_sync_to(&self) -> Sectors {
        self.core.resync_offset.get()
    }

    /// The ranges in whose rows parity may be wrong, ascending: what is recovered there may be wrong, too, and without the user's `force` it is not
    /// returned. Ranges are of whole rows; with a bitmap of its chunks.
    pub fn suspects(&self) -> Vec<Range<Sector>> {
        let Some(Reshaped { status, size, side, other }) = &self.reshape else {
            return self.core.suspects();
        };
        let of = |core: &Core, side| {
            let own = status.position.range(side, *size);
            let clipped = core.suspects().into_iter();
            let clipped = clipped.map(|at| at.start.max(own.start)..at.end.min(own.end));
            clipped.filter(|range| range.start < range.end).collect::<Vec<_>>()
        };
        let mut all = of(&self.core, *side);
        all.extend(other.iter().flat_map(|core| of(core, side.other())));
        all.sort_unstable_by_key(|range| range.start);
        all
    }

    /// The reshape that is under way. The array is only read, and the reshape does not continue.
    pub fn reshape(&self) -> Option<&ReshapeStatus> {
        self.reshape.as_ref().map(|reshape| &reshape.status)
    }

    /// The core of the other side of a reshape, unless that is empty.
    pub(crate) fn other_side(&self) -> Option<&Core> {
        self.reshape.as_ref()?.other.as_deref()
    }

    /// The array's size.
    pub(crate) fn size(&self) -> Sectors {
        self.reshape.as_ref().map_or(self.core.personality().size(), |reshape| reshape.size)
    }

    /// Whether copies may differ somewhere.
    pub fn is_unsynced(&self) -> bool {
        self.core.resync_offset.is_unsynced()
    }

    /// Whether the superblocks record all failures of members and all other changes that
    /// acknowledgements depend on.
    pub fn is_recorded(&self) -> bool {
        self.core.lifecycle.is_recorded()
    }

    /// The write-intent bitmap in use.
    pub fn bitmap(&self) -> Option<&Bitmap> {
        self.core.bitmap()
    }

    /// The running sync, and its progress.
    pub fn sync_status(&self) -> SyncStatus {
        self.sync.status()
    }

    /// The limits of a sync.
    pub fn sync_settings(&self) -> &SyncSettings {
        self.sync.settings()
    }

    /// The settings of an array with parity; `None` of other levels.
    pub fn parity_settings(&self) -> Option<&ParitySettings> {
        self.core.personality().level().has_parity().then_some(&self.core.parity)
    }

    /// Sets where a check or repair begins, and where any sync waits ([`Sectors::MAX`]: nowhere).
    ///
    /// # Errors
    /// [`SyncError::Range`] if they are not in ascending order, or not multiples of the chunk;
    /// [`SyncError::Busy`] if the upper bound would be lowered while an action runs (as in the kernel).
    pub fn set_sync_bounds(&self, min: Sectors, max: Sectors) -> Result<(), SyncError> {
        self.sync.set_bounds(min, max)
    }

    /// Starts what the user requests. Returns at once: [`Self::sync_ended`] waits.
    ///
    /// # Errors
    /// [`SyncError`].
    pub fn request_sync(&self, request: SyncRequest) -> Result<(), SyncError> {
        self.sync.request(request)
    }

    /// Has reads prefer near members. To be called about once a second.
    pub fn balance_reads(&self) {
        if self.core.is_redundant() {
            self.core.balance_reads();
        }
    }

    /// Makes the sync task check for work.
    pub fn wake_sync(&self) {
        self.core.sync_wakeup.wake();
    }

    /// Waits until nothing is being synced and no further action can begin.
    pub async fn sync_ended(&self) {
        self.sync.ended().await;
    }

    /// Runs `work` to its end, even if the future is dropped.
    pub(crate) fn uncancellable<T, F>(
        &self,
        work: impl FnOnce(Arc<Self>) -> F + 'static,
    ) -> Uncancellable<'_, T>
    where
        F: Future<Output = Result<T, Status>>,
    {
        Uncancellable::new(&self.core.runtime, &self.me, work)
    }

    /// Stops the array: refuses new I/O, waits for I/O in flight, flushes everything, and marks the
    /// superblocks clean. An array that cannot be marked clean is stopped anyway.
    ///
    /// # Errors
    /// The flush or the superblocks failed: the array will have to be resynced.
    pub async fn stop(&self) -> BioResult {
        self.core.lifecycle.refuse();
        self.uncancellable(|array| async move {
            let Self { core, sync, .. } = &*array;
            let wind_up = || async {
                let _held = sync.hold().await;
                core.wind_up().await
            };
            core.lifecycle.end(wind_up).await
        })
        .await
    }
}

impl BlockDevice for Array {
    fn disk(&self) -> &Disk {
        &self.core.disk
    }

    fn copies(&self, at: Sector, len: Sectors) -> u16 {
        self.level.copies(at, len)
    }

    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        self.level.extents(at, len)
    }

    fn holds_changes(&self) -> bool {
        self.core.has_late_changes()
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        self.level.submit(bio)
    }
}
