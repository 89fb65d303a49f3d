//! What the devices of logical volumes say of themselves.

use ashlar_dm::snapshot::{Status, StatusLine};

use crate::report::value::Percent;
use crate::snapshots::used_percent;

/// The state of a volume that has a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LvState {
    /// Whether the device is in use.
    pub is_open: bool,
    /// Its status, as `dmsetup status` prints it.
    pub status: String,
}

impl LvState {
    /// The state of the snapshot that it is, or that is merged into it.
    pub(super) fn snapshot(&self) -> Option<Status> {
        self.status.parse().ok().map(|line: StatusLine| line.status)
    }

    pub(in crate::report) fn is_invalid(&self) -> bool {
        self.snapshot() == Some(Status::Invalid)
    }

    /// The space of a snapshot that is in use.
    pub(in crate::report) fn used(&self) -> Option<Percent> {
        used_percent(self.snapshot()?)
    }

    /// The words of its status behind the name of its target, if it is this one.
    pub(super) fn words(&self, target: &str) -> Option<Vec<&str>> {
        let mut words = self.status.split_ascii_whitespace().skip(2);
        (words.next() == Some(target)).then(|| words.collect())
    }

    /// How much of it is in sync, if it is a RAID or a mirror.
    pub(super) fn synced(&self) -> Option<Percent> {
        if let Some(words) = self.words("raid") {
            return ratio(words.get(3)?);
        }
        // The number of legs, and these, are before it.
        let words = self.words("mirror")?;
        let legs: usize = words.first()?.parse().ok()?;
        ratio(words.get(legs.checked_add(1)?)?)
    }
}

/// The part of the whole in `PART/WHOLE`.
pub(super) fn ratio(text: &str) -> Option<Percent> {
    let (part, whole) = text.split_once('/')?;
    Percent::of(part.parse().ok()?, whole.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_of_raids_and_mirrors_is_known() {
        let synced = |status: &str| LvState { is_open: false, status: status.into() }.synced();
        assert_eq!(synced("0 16384 raid raid1 2 Aa 4/16 resync 0 0 -"), Percent::of(1, 4));
        assert_eq!(synced("0 8192 mirror 2 252:1 252:2 1/8 1 AA 1 core"), Percent::of(1, 8));
        for none in ["0 8192 linear", "0 8192 mirror 99999999999999999999 1/8", "0 8 raid", ""] {
            assert_eq!(synced(none), None, "{none}");
        }
    }
}
