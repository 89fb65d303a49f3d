//! Logical volumes.

use std::rc::Rc;

use ashlar_block::Sectors;

use super::relations::origin_of;
use super::vg::allocation_letter;
use super::{LvState, Value};
use crate::metadata::{AreaVolume, LogicalVolume, LvFlag, SegmentKind, VolumeGroup};
use crate::moving::Move;
use crate::report::GroupFacts;
use crate::uuid::Uuid;

/// A logical volume.
#[derive(Clone)]
pub struct LvRow {
    /// Its group.
    pub facts: Rc<GroupFacts>,
    /// Its index there.
    pub index: usize,
}

impl LvRow {
    /// The identity of its group, and its name.
    pub fn id(&self) -> (Uuid, &str) {
        (self.group().id, self.lv().map_or("", |lv| &lv.name))
    }

    pub(in crate::report) fn group(&self) -> &VolumeGroup {
        self.facts.metadata()
    }

    /// Its state, if it is active.
    pub(in crate::report) fn state(&self) -> Option<&LvState> {
        self.lv().and_then(|lv| self.facts.states.get(&lv.name))
    }

    pub(in crate::report) fn lv(&self) -> Option<&LogicalVolume> {
        self.group().lvs.get(self.index).map(|lv| &**lv)
    }

    pub(in crate::report) fn is_seen(&self) -> bool {
        self.facts.visible.get(self.index).is_some_and(|seen| *seen)
    }

    pub(in crate::report) fn first(&self) -> Option<&SegmentKind> {
        self.lv().and_then(|lv| lv.segments.first()).map(|segment| &segment.kind)
    }

    /// The name of a volume of its group; in brackets if that is hidden.
    pub(super) fn named(&self, name: &str) -> Value {
        let index = self.group().lvs.iter().position(|lv| lv.name == name);
        let is_seen = index.and_then(|index| self.facts.visible.get(index));
        if is_seen == Some(&false) {
            return Value::Hidden(name.to_owned());
        }
        Value::Text(name.to_owned())
    }

    /// The identity of a volume of its group.
    pub(super) fn uuid_of(&self, name: &str) -> String {
        self.group().lv(name).map_or_else(String::new, |lv| lv.id.to_string())
    }

    pub(in crate::report) fn size(&self) -> Sectors {
        self.lv().map_or(Sectors::ZERO, |lv| self.group().size(lv))
    }

    pub(in crate::report) fn origin(&self) -> Option<&LogicalVolume> {
        origin_of(self.group(), self.lv()?)
    }

    /// The size of the origin, as snapshots and origins show it.
    pub(super) fn origin_size(&self) -> Option<Sectors> {
        let (group, lv) = (self.group(), self.lv()?);
        if let Some(found) = group.snapshot_in(&lv.name) {
            return Some(group.size(found.lv));
        }
        let thin = self.first().and_then(SegmentKind::as_thin);
        if let Some(outside) = thin.and_then(|thin| group.lv(thin.external_origin.as_ref()?)) {
            return Some(group.size(outside));
        }
        self.is_origin().then(|| group.size(lv))
    }

    /// Whether it is being merged, or a snapshot is being merged into it.
    pub(super) fn is_merging(&self) -> bool {
        let Some(lv) = self.lv() else { return false };
        let group = self.group();
        if let Some(found) = group.snapshot_in(&lv.name) {
            return found.snapshot.merging;
        }
        let mut thins = group.lvs.iter().filter_map(|lv| lv.segments.first()?.kind.as_thin());
        group.snapshots_of(&lv.name).any(|found| found.snapshot.merging)
            || self.first().and_then(SegmentKind::as_thin).is_some_and(|thin| thin.merge.is_some())
            || thins.any(|thin| thin.merge.as_ref() == Some(&lv.name))
    }

    /// The index of the physical volume that its extents leave, if it is a move.
    pub(super) fn moves_from(&self) -> Option<usize> {
        self.lv().and_then(Move::of).and_then(|moving| moving.source())
    }

    /// The name of the pool that it takes its space from.
    pub(super) fn pool(&self) -> Option<&str> {
        let kind = self.first()?;
        match kind.foreign_name() {
            "cache" => self.kept_text("cache_pool"),
            "vdo" => self.kept_text("vdo_pool"),
            _ => kind.as_thin().map(|thin| &*thin.pool),
        }
    }

    /// The names of the volumes with the data and with the metadata of a pool.
    pub(super) fn pool_parts(&self) -> [Option<&str>; 2] {
        let Some(kind) = self.first() else { return [None, None] };
        if let Some(pool) = kind.as_thin_pool() {
            return [Some(&pool.data), Some(&pool.metadata)];
        }
        match kind.foreign_name() {
            "cache-pool" => [self.kept_text("data"), self.kept_text("metadata")],
            "vdo-pool" => [self.kept_text("data"), None],
            _ => [None, None],
        }
    }

    /// A text of its first segment.
    fn kept_text(&self, key: &str) -> Option<&str> {
        self.lv()?.segments.first()?.kept_text(key)
    }

    /// LVM's `lv_attr` letters.
    pub(super) fn attributes(&self) -> String {
        let (group, Some(lv)) = (self.group(), self.lv()) else { return String::new() };
        let store = group.snapshot_in(&lv.name);
        let merging_into = group.snapshots_of(&lv.name).any(|found| found.snapshot.merging);
        let is_origin = group.snapshots_of(&lv.name).next().is_some();
        let has = |flag| lv.flags.contains(&flag);
        let unsynced = lv.flags.contains(&LvFlag::NotSynced);
        let (volume, target) = match (store, self.first()) {
            (Some(found), _) => (if found.snapshot.merging { 'S' } else { 's' }, 's'),
            (None, _) if is_origin => (if merging_into { 'O' } else { 'o' }, 's'),
            (None, Some(SegmentKind::Mirror(_))) if has(LvFlag::PvMove) => ('p', 'm'),
            (None, Some(SegmentKind::Mirror(_))) => (if unsynced { 'M' } else { 'm' }, 'm'),
            (None, Some(SegmentKind::Raid(_))) => (if unsynced { 'R' } else { 'r' }, 'r'),
            (None, Some(SegmentKind::ThinPool(_))) => ('t', 't'),
            (None, Some(SegmentKind::Thin(_))) => ('V', 't'),
            (None, Some(SegmentKind::Snapshot(_))) => ('v', '-'),
            (None, Some(SegmentKind::Foreign(_))) => self.part_or('-', 'u'),
            (None, Some(SegmentKind::Error | SegmentKind::Zero)) => ('v', 'v'),
            (None, Some(SegmentKind::Striped(_)) | None) => self.part_or('-', '-'),
        };
        let allocation = match &lv.allocation {
            None => 'i',
            some => allocation_letter(some.as_ref()),
        };
        let locked = lv.flags.contains(&LvFlag::Locked);
        let pool = match self.first().and_then(SegmentKind::as_thin) {
            Some(thin) => group.lv(&thin.pool).and_then(|pool| pool.segments.first()),
            None => lv.segments.first(),
        };
        let pool = pool.and_then(|segment| segment.kind.as_thin_pool());
        let zero = pool.is_some_and(|pool| pool.zero_new_blocks);
        let health = if self.facts.group.needs_missing(&lv.name).is_some() { 'p' } else { '-' };
        [
            volume,
            match (has(LvFlag::PvMove), lv.is_writable()) {
                (true, _) => '-',
                (false, true) => 'w',
                (false, false) => 'r',
            },
            if locked { allocation.to_ascii_uppercase() } else { allocation },
            if has(LvFlag::FixedMinor) { 'm' } else { '-' },
            match self.state() {
                None => '-',
                Some(state) if state.is_invalid() => 'I',
                Some(_) => 'a',
            },
            if self.state().is_some_and(|state| state.is_open) { 'o' } else { '-' },
            target,
            if zero { 'z' } else { '-' },
            health,
            if has(LvFlag::ActivationSkip) { 'k' } else { '-' },
        ]
        .iter()
        .collect()
    }

    /// The letters of a part of another volume. Whether a copy is in sync is only known while it is
    /// active; otherwise it is shown as not in sync.
    fn part_or(&self, volume: char, target: char) -> (char, char) {
        let Some(lv) = self.lv() else { return (volume, target) };
        let mut users = self.group().users_of(&lv.name).flat_map(|user| &user.segments);
        let letters = users.find_map(|segment| match &segment.kind {
            SegmentKind::Raid(raid) => {
                let image = raid.images.iter().any(|image| image.data == lv.name);
                Some((if image { 'I' } else { 'e' }, 'r'))
            }
            SegmentKind::ThinPool(pool) => {
                Some((if pool.data == lv.name { 'T' } else { 'e' }, '-'))
            }
            SegmentKind::Mirror(mirror) => {
                Some((if mirror.log.as_ref() == Some(&lv.name) { 'l' } else { 'I' }, 'm'))
            }
            SegmentKind::Striped(_)
            | SegmentKind::Snapshot(_)
            | SegmentKind::Thin(_)
            | SegmentKind::Error
            | SegmentKind::Zero
            | SegmentKind::Foreign(_) => None,
        });
        letters.unwrap_or((if self.is_spare() { 'e' } else { volume }, target))
    }

    /// Whether it is a pool of thin volumes, which is not a device for users.
    pub(in crate::report) fn is_pool(&self) -> bool {
        matches!(self.first(), Some(SegmentKind::ThinPool(_)))
    }

    /// Where it is in a mount, if users see it.
    pub(in crate::report) fn path(&self) -> Option<String> {
        let lv = self.lv().filter(|_| self.is_seen() && !self.is_pool())?;
        Some(format!("/dev/{}/{}", self.group().name, lv.name))
    }

    /// The device or the volume that contains an area.
    pub(in crate::report) fn place<'a>(&'a self, on: &'a AreaVolume) -> &'a str {
        match on {
            AreaVolume::Pv(index) => self.facts.device(*index),
            AreaVolume::Lv(name) => name,
        }
    }
}
