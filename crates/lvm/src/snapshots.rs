//! The space of snapshots: how much of it is in use, and its extension by policy, as by `lvextend --use-policies`.

use ashlar_dm::snapshot::{Status, Usage};
use thiserror::Error;

use crate::command::{Amount, Base, Direction, NewSize, Resize, Sign};
use crate::metadata::VolumeGroup;
use crate::report::Percent;

/// The part of a snapshot's space that is in use, if it is known: nothing while there is only metadata, everything if no
/// room was left.
pub fn used_percent(status: Status) -> Option<Percent> {
    match status {
        Status::Valid(Usage { allocated, metadata, .. }) if allocated == metadata => {
            Some(Percent::NONE)
        }
        Status::Valid(Usage { allocated, total, .. }) => Percent::of(allocated.0, total.0),
        Status::Overflow | Status::Invalid => Some(Percent::ALL),
        Status::Unknown | Status::MergeFailed => None,
    }
}

/// When the space of a snapshot is extended, and by how much: LVM's `snapshot_autoextend_threshold` and
/// `snapshot_autoextend_percent`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AutoExtend {
    /// The percentage in use above which it is extended, from 50; never with 100.
    threshold: u32,
    /// The percentage of its size by which it is extended, from 1; by more if it would be above the threshold still.
    percent: u32,
}

impl Default for AutoExtend {
    /// As in LVM: never, and by 20 percent.
    fn default() -> Self {
        Self { threshold: 100, percent: 20 }
    }
}

/// Why a policy is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BadAutoExtend {
    /// LVM extends no snapshot of which less than half is in use.
    #[error("snapshot_autoextend_threshold is a percentage from 50 to 100, not {0}")]
    Threshold(u32),
    /// The extension would be none.
    #[error("snapshot_autoextend_percent is a percentage from 1, not {0}")]
    Percent(u32),
}

/// A snapshot should be extended, and its group has no room.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("volume group \"{0}\" has no free extents")]
pub struct NoFreeExtents(pub String);

impl AutoExtend {
    /// A policy; the default for what is not given.
    ///
    /// # Errors
    /// [`BadAutoExtend`].
    pub fn new(threshold: Option<u32>, percent: Option<u32>) -> Result<Self, BadAutoExtend> {
        let default = Self::default();
        let threshold = threshold.unwrap_or(default.threshold);
        let percent = percent.unwrap_or(default.percent);
        if !(50..=100).contains(&threshold) {
            return Err(BadAutoExtend::Threshold(threshold));
        }
        if percent == 0 {
            return Err(BadAutoExtend::Percent(percent));
        }
        Ok(Self { threshold, percent })
    }

    /// Whether a snapshot is ever extended.
    pub const fn is_on(&self) -> bool {
        self.threshold < 100
    }

    /// Whether so much is in use that the snapshot is to be extended.
    fn is_due(&self, usage: Usage) -> bool {
        let used = u128::from(usage.allocated.0) * 100;
        self.is_on() && used > u128::from(usage.total.0) * u128::from(self.threshold)
    }
}

impl VolumeGroup {
    /// Whether a snapshot has room for all of its origin, and so cannot overflow.
    pub fn covers_origin(&self, snapshot: &str) -> bool {
        let most = self.most_of_snapshot(snapshot);
        self.lv(snapshot).zip(most).is_some_and(|(lv, most)| lv.extents() >= most)
    }

    /// The extents that a snapshot can use at most.
    fn most_of_snapshot(&self, snapshot: &str) -> Option<u32> {
        let found = self.snapshot_in(snapshot)?;
        let origin = self.lv(&found.snapshot.origin)?;
        Some(self.most_useful(self.size(origin), found.snapshot.chunk_size))
    }

    /// The extension of a snapshot that the policy wants now, if any. It gets all free extents if there are fewer than the policy
    /// wants.
    ///
    /// # Errors
    /// [`NoFreeExtents`].
    pub fn autoextension(
        &self,
        snapshot: &str,
        usage: Usage,
        policy: AutoExtend,
    ) -> Result<Option<Resize>, NoFreeExtents> {
        let due = || {
            // It keeps its size until it is merged.
            let found = self.snapshot_in(snapshot).filter(|found| !found.snapshot.merging)?;
            Some((self.lv(&found.snapshot.cow)?.extents(), self.most_of_snapshot(snapshot)?))
        };
        let Some((extents, most)) = due().filter(|_| policy.is_due(usage)) else { return Ok(None) };
        let room = most.saturating_sub(extents);
        if room == 0 {
            return Ok(None);
        }
        let share = (u64::from(extents) * u64::from(policy.percent)).div_ceil(100);
        // So much that no more than the threshold is in use.
        let least = u128::from(usage.allocated.0) * 100;
        let least = least.div_ceil(u128::from(policy.threshold) * u128::from(self.extent_size.0));
        let least = u64::try_from(least).unwrap_or(u64::MAX).saturating_sub(extents.into());
        let wanted = u32::try_from(share.max(least)).unwrap_or(u32::MAX).min(room);
        let amount = match self.free_extents() {
            0 => return Err(NoFreeExtents(self.name.clone())),
            free if free < u64::from(wanted) => Amount::Share(100, Base::Free),
            _ => Amount::Extents(wanted),
        };
        Ok(Some(Resize {
            volume: snapshot.to_owned(),
            direction: Direction::Extend,
            size: NewSize { sign: Sign::Plus, amount },
            physical: Vec::new(),
            force: false,
        }))
    }
}
