//! Logical volumes.

use std::rc::Rc;

use ashlar_block::Sectors;
use ashlar_dm::snapshot::{Status, StatusLine};

use super::vg::allocation_letter;
use super::{Field, Kind, Row, Value, VgRow, field, vg};
use crate::metadata::{AreaVolume, LogicalVolume, LvFlag, Segment, SegmentKind, VolumeGroup};
use crate::moving::Move;
use crate::report::GroupFacts;
use crate::report::value::Percent;
use crate::snapshots::used_percent;
use crate::uuid::Uuid;

/// A logical volume.
pub struct LvRow {
    /// Its group.
    pub facts: Rc<GroupFacts>,
    /// Its index there.
    pub index: usize,
}

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
    fn snapshot(&self) -> Option<Status> {
        self.status.parse().ok().map(|line: StatusLine| line.status)
    }

    pub(in crate::report) fn is_invalid(&self) -> bool {
        self.snapshot() == Some(Status::Invalid)
    }

    /// The space of a snapshot that is in use.
    pub(in crate::report) fn used(&self) -> Option<Percent> {
        used_percent(self.snapshot()?)
    }
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

    /// Its name; in brackets for a hidden volume.
    fn name(&self) -> Value {
        let name = self.lv().map_or_else(String::new, |lv| lv.name.clone());
        if self.is_seen() { Value::Text(name) } else { Value::Hidden(name) }
    }

    pub(in crate::report) fn size(&self) -> Sectors {
        self.lv().map_or(Sectors::ZERO, |lv| self.group().size(lv))
    }

    pub(in crate::report) fn origin(&self) -> String {
        let Some(lv) = self.lv() else { return String::new() };
        if let Some(found) = self.group().snapshot_in(&lv.name) {
            return found.snapshot.origin.clone();
        }
        let thin = self.first().and_then(SegmentKind::as_thin);
        let origin = thin.and_then(|thin| thin.origin.as_ref().or(thin.external_origin.as_ref()));
        origin.cloned().unwrap_or_default()
    }

    /// The physical volume that its extents leave, if it is a move.
    fn moves_from(&self) -> String {
        let source = self.lv().and_then(Move::of).and_then(|moving| moving.source());
        source.map_or_else(String::new, |index| self.facts.device(index).to_owned())
    }

    pub(in crate::report) fn pool(&self) -> String {
        let thin = self.first().and_then(SegmentKind::as_thin);
        thin.map_or(String::new(), |thin| thin.pool.clone())
    }

    fn segment_type(&self) -> String {
        self.first().map_or_else(String::new, |kind| kind.name().to_owned())
    }

    /// LVM's `lv_attr` letters.
    fn attributes(&self) -> String {
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
        // Spare metadata for the repair of a pool: not used yet.
        let spare = !lv.is_visible() && lv.name.ends_with("_pmspare");
        letters.unwrap_or((if spare { 'e' } else { volume }, target))
    }

    /// Whether it is a pool of thin volumes, which is no device for users.
    pub(in crate::report) fn is_pool(&self) -> bool {
        matches!(self.first(), Some(SegmentKind::ThinPool(_)))
    }

    /// Where it is in a mount, if users see it.
    pub(in crate::report) fn path(&self) -> Option<String> {
        let lv = self.lv().filter(|_| self.is_seen() && !self.is_pool())?;
        Some(format!("/dev/{}/{}", self.group().name, lv.name))
    }

    fn stripes(&self) -> usize {
        self.lv().and_then(|lv| lv.segments.first()).map_or(0, |segment| match &segment.kind {
            SegmentKind::Raid(raid) => raid.images.len(),
            SegmentKind::Thin(_) => 0,
            SegmentKind::Striped(_)
            | SegmentKind::Mirror(_)
            | SegmentKind::Snapshot(_)
            | SegmentKind::ThinPool(_)
            | SegmentKind::Error
            | SegmentKind::Zero
            | SegmentKind::Foreign(_) => segment.areas().len().max(1),
        })
    }

    /// The device or the volume that contains an area.
    pub(in crate::report) fn place<'a>(&'a self, on: &'a AreaVolume) -> &'a str {
        match on {
            AreaVolume::Pv(index) => self.facts.device(*index),
            AreaVolume::Lv(name) => name,
        }
    }

    fn places(&self) -> Vec<String> {
        let place = |segment: &Segment| -> Vec<String> {
            if let SegmentKind::Raid(raid) = &segment.kind {
                return raid.images.iter().map(|image| format!("{}(0)", image.data)).collect();
            }
            if let SegmentKind::ThinPool(pool) = &segment.kind {
                return vec![format!("{}(0)", pool.data)];
            }
            let areas = segment.areas().iter();
            areas.map(|area| format!("{}({})", self.place(&area.on), area.start)).collect()
        };
        let segments = self.lv().map_or(&[][..], |lv| &lv.segments);
        segments.iter().flat_map(place).collect()
    }
}

impl Row for LvRow {
    const NAME: &'static str = "lv";
    const DEFAULT: &'static [&'static str] = &[
        "lv_name",
        "vg_name",
        "lv_attr",
        "lv_size",
        "pool_lv",
        "origin",
        "data_percent",
        "move_pv",
    ];
    const SORTED_BY: &'static str = "vg_name,lv_name";
    const FIELDS: &'static [(&'static str, &'static [Field<Self>])] =
        &[("lv", FIELDS), ("vg", &vg::fields())];

    fn vg(&self) -> Option<VgRow> {
        Some(VgRow(Rc::clone(&self.facts)))
    }
}

const FIELDS: &[Field<LvRow>] = &[
    field(Kind::Text, "lv_name", "LV", "the name; in brackets if it is a part", |row| row.name()),
    field(Kind::Text, "lv_uuid", "LV UUID", "the identity", |row| {
        Value::Text(row.lv().map_or_else(String::new, |lv| lv.id.to_string()))
    }),
    field(Kind::Text, "lv_full_name", "LV", "with its group", |row| {
        let name = row.lv().map_or("", |lv| &lv.name);
        Value::Text(format!("{}/{name}", row.group().name))
    }),
    field(Kind::Text, "lv_path", "Path", "where it is in a mount", |row| {
        Value::Text(row.path().unwrap_or_default())
    }),
    field(Kind::Text, "lv_attr", "Attr", "kind, permissions, allocation, ...: see lvs(8)", |row| {
        Value::Text(row.attributes())
    }),
    field(Kind::Size, "lv_size", "LSize", "the size; of a snapshot that of its store", |row| {
        Value::Size(row.size())
    }),
    field(Kind::Text, "pool_lv", "Pool", "its pool", |row| Value::Text(row.pool())),
    field(Kind::Text, "origin", "Origin", "what it is a snapshot of", |row| {
        Value::Text(row.origin())
    }),
    field(Kind::Percent, "data_percent", "Data%", "the used part of a snapshot's space", |row| {
        Value::Percent(row.state().and_then(LvState::used))
    }),
    field(Kind::Text, "move_pv", "Move", "of a move: the physical volume that is left", |row| {
        Value::Text(row.moves_from())
    }),
    field(Kind::Text, "lv_active", "Active", "active, or nothing", |row| {
        Value::Text(row.state().map_or("", |_| "active").to_owned())
    }),
    field(Kind::Text, "segtype", "Type", "what it is made of", |row| {
        Value::Text(row.segment_type())
    }),
    field(Kind::Number, "seg_count", "#Seg", "in how many pieces", |row| {
        Value::count(row.lv().map_or(0, |lv| lv.segments.len()))
    }),
    field(Kind::Number, "stripes", "#Str", "stripes or copies", |row| Value::count(row.stripes())),
    field(Kind::Size, "chunk_size", "Chunk", "the chunk size of a snapshot or pool", |row| {
        let of = row.lv().and_then(|lv| row.group().snapshot_in(&lv.name));
        let pool = row.first().and_then(SegmentKind::as_thin_pool);
        let pool = pool.map_or(Sectors::ZERO, |pool| pool.chunk_size);
        Value::Size(of.map_or(pool, |found| found.snapshot.chunk_size))
    }),
    field(Kind::List, "devices", "Devices", "where its extents are", |row| {
        Value::List(row.places())
    }),
    field(Kind::List, "lv_tags", "LV Tags", "words for the administrator", |row| {
        Value::List(row.lv().map_or_else(Vec::new, |lv| lv.tags.clone()))
    }),
    field(Kind::Text, "lv_problem", "Problem", "why it cannot be used", |row| {
        Value::Text(row.lv().and_then(|lv| lv.unsupported.clone()).unwrap_or_default())
    }),
];
