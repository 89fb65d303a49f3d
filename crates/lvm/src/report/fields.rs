//! The fields of each report.

use ashlar_block::Sectors;

use super::{Field, Row, Units};
use crate::group::{Group, MemberState};
use crate::metadata::{
    Allocation, AreaOn, LogicalVolume, LvFlag, PvFlag, Segment, SegmentKind, VgFlag, VolumeGroup,
};
use crate::pv::PvOnDisk;
use crate::uuid::Uuid;

/// A physical volume: a present one, or one that its group misses.
pub struct PvRow {
    /// Its device; `[unknown]` if it is missing.
    pub device: String,
    /// What its label says, if it is present.
    pub label: Option<PvFacts>,
    /// Its group, and its index there.
    pub of: Option<(std::rc::Rc<Group>, usize)>,
}

/// What the label of a physical volume says.
#[derive(Clone, Debug)]
pub struct PvFacts {
    /// The identity.
    pub uuid: Uuid,
    /// The size of the device in bytes.
    pub size_bytes: u64,
    /// Whether it belongs to a group.
    pub is_used: bool,
    /// The number of metadata areas.
    pub areas: usize,
}

impl PvFacts {
    /// The facts of a physical volume.
    pub fn of(pv: &PvOnDisk) -> Self {
        let label = &pv.label;
        let (uuid, size_bytes) = (label.uuid, label.device_size);
        Self { uuid, size_bytes, is_used: label.is_used(), areas: pv.areas.len() }
    }
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
    fn is_invalid(&self) -> bool {
        self.status.ends_with(" Invalid")
    }

    /// The space of a snapshot that is in use, in hundredths of a percent (`_snapshot_percent` in LVM's
    /// `lib/snapshot/snapshot.c`).
    fn used(&self) -> Option<u64> {
        let mut words = self.status.split_ascii_whitespace().skip(2);
        if !words.next()?.starts_with("snapshot") {
            return None;
        }
        if self.is_invalid() {
            return Some(10_000);
        }
        let (used, all) = words.next()?.split_once('/')?;
        let (used, all): (u64, u64) = (used.parse().ok()?, all.parse().ok()?);
        let metadata: u64 = words.next()?.parse().ok()?;
        if used == metadata {
            return Some(0);
        }
        if used == all {
            return Some(10_000);
        }
        // Neither 0 nor 100 unless it is exactly that (`dm_percent_to_round_float`).
        let rounded = (used.checked_mul(10_000)? + all / 2).checked_div(all)?;
        Some(rounded.clamp(1, 9_999))
    }
}

/// A volume group.
pub struct VgRow(pub std::rc::Rc<Group>);

/// A logical volume, by its index in the group.
pub struct LvRow {
    /// The group.
    pub group: std::rc::Rc<Group>,
    /// Its index.
    pub index: usize,
    /// Device names of the group's physical volumes, for `devices`.
    pub devices: std::rc::Rc<Vec<String>>,
    /// Its state, if it is active.
    pub state: Option<LvState>,
}

impl PvRow {
    fn group(&self) -> Option<(&VolumeGroup, usize)> {
        self.of.as_ref().map(|(group, index)| (&group.metadata.group, *index))
    }

    fn size(&self) -> Sectors {
        match (self.group(), &self.label) {
            (Some((group, index)), _) => {
                group.pvs.get(index).map_or(Sectors::ZERO, |pv| group.sectors(pv.pe_count))
            }
            (None, Some(label)) => Sectors::from_bytes_floor(label.size_bytes),
            (None, None) => Sectors::ZERO,
        }
    }

    fn free(&self) -> Sectors {
        let Some((group, index)) = self.group() else { return self.size() };
        let extents = u32::try_from(group.free_map().on(index)).unwrap_or(u32::MAX);
        group.sectors(extents)
    }

    fn attributes(&self) -> String {
        let Some((group, index)) = self.group() else {
            let used = self.label.as_ref().is_some_and(|label| label.is_used);
            return if used { "u--" } else { "---" }.into();
        };
        let missing = self.label.is_none()
            || self.of.as_ref().is_some_and(|(group, index)| {
                matches!(
                    group.members.get(*index),
                    Some(MemberState::Missing | MemberState::Returned(_)) | None
                )
            });
        let pv = group.pvs.get(index);
        let has = |flag| pv.is_some_and(|pv| pv.flags.contains(&flag));
        let letter = |set, letter| if set { letter } else { '-' };
        [
            // A volume of a group that is not allocatable is only used.
            if has(PvFlag::Allocatable) { 'a' } else { 'u' },
            letter(group.flags.contains(&VgFlag::Exported), 'x'),
            letter(missing, 'm'),
        ]
        .iter()
        .collect()
    }
}

impl Row for PvRow {
    const NAME: &'static str = "pv";
    const DEFAULT: &'static [&'static str] =
        &["pv_name", "vg_name", "pv_fmt", "pv_attr", "pv_size", "pv_free"];
    const FIELDS: &'static [Field<Self>] = &[
        text("pv_name", "PV", "the device", |row, _| row.device.clone()),
        text("pv_uuid", "PV UUID", "the identity", |row, _| match (row.group(), &row.label) {
            (Some((group, index)), _) => {
                group.pvs.get(index).map_or(String::new(), |pv| pv.id.to_string())
            }
            (None, Some(label)) => label.uuid.to_string(),
            (None, None) => String::new(),
        }),
        text("vg_name", "VG", "its group", |row, _| {
            row.group().map_or(String::new(), |(group, _)| group.name.clone())
        }),
        text("pv_fmt", "Fmt", "the format", |_, _| "lvm2".into()),
        text("pv_attr", "Attr", "allocatable, exported, missing", |row, _| row.attributes()),
        number("pv_size", "PSize", "its size, in extents if it is in a group", |row, units| {
            units.size(row.size())
        }),
        number("pv_free", "PFree", "what no volume uses", |row, units| units.size(row.free())),
        number("pv_used", "Used", "what volumes use", |row, units| {
            units.size(row.size() - row.free())
        }),
        number("dev_size", "DevSize", "the size of the device", |row, units| {
            let size = row.label.as_ref().map_or(0, |label| label.size_bytes);
            units.size(Sectors::from_bytes_floor(size))
        }),
        number("pe_start", "1st PE", "where the first extent begins", |row, units| {
            let pv = row.group().and_then(|(group, index)| group.pvs.get(index));
            units.size(pv.map_or(Sectors::ZERO, |pv| Sectors(pv.pe_start.0)))
        }),
        number("pv_pe_count", "PE", "its extents", |row, _| {
            let pv = row.group().and_then(|(group, index)| group.pvs.get(index));
            pv.map_or(0, |pv| pv.pe_count).to_string()
        }),
        number("pv_mda_count", "#PMda", "metadata areas", |row, _| {
            row.label.as_ref().map_or(0, |label| label.areas).to_string()
        }),
        text("pv_tags", "PV Tags", "words for the administrator", |row, _| {
            let pv = row.group().and_then(|(group, index)| group.pvs.get(index));
            pv.map_or(String::new(), |pv| pv.tags.join(","))
        }),
    ];
}

fn allocation_letter(allocation: Option<&Allocation>) -> char {
    match allocation {
        None | Some(Allocation::Normal) => 'n',
        Some(Allocation::Contiguous) => 'c',
        Some(Allocation::Cling) => 'l',
        Some(Allocation::ClingByTags) => 'C',
        Some(Allocation::Anywhere) => 'a',
        Some(Allocation::Other(_)) => '-',
    }
}

impl VgRow {
    fn group(&self) -> &VolumeGroup {
        &self.0.metadata.group
    }

    fn visible(&self) -> usize {
        self.group().visible().into_iter().filter(|seen| *seen).count()
    }

    fn attributes(&self) -> String {
        let group = self.group();
        let has = |flag| group.flags.contains(&flag);
        let writable = has(VgFlag::Write) || has(VgFlag::WriteLocked);
        let shared = match (has(VgFlag::Clustered), has(VgFlag::Shared)) {
            (true, _) => 'c',
            (false, true) => 's',
            (false, false) => '-',
        };
        [
            if writable { 'w' } else { 'r' },
            if has(VgFlag::Resizeable) { 'z' } else { '-' },
            if has(VgFlag::Exported) { 'x' } else { '-' },
            if self.0.is_complete() { '-' } else { 'p' },
            allocation_letter(group.allocation.as_ref()),
            shared,
        ]
        .iter()
        .collect()
    }

    fn extents(&self) -> u32 {
        self.group().pvs.iter().fold(0, |sum: u32, pv| sum.saturating_add(pv.pe_count))
    }

    fn free(&self) -> u32 {
        u32::try_from(self.group().free_map().total()).unwrap_or(u32::MAX)
    }
}

impl Row for VgRow {
    const NAME: &'static str = "vg";
    const DEFAULT: &'static [&'static str] =
        &["vg_name", "pv_count", "lv_count", "snap_count", "vg_attr", "vg_size", "vg_free"];
    const FIELDS: &'static [Field<Self>] = &[
        text("vg_name", "VG", "the name", |row, _| row.group().name.clone()),
        text("vg_uuid", "VG UUID", "the identity", |row, _| row.group().id.to_string()),
        text("vg_fmt", "Fmt", "the format", |_, _| "lvm2".into()),
        text("vg_attr", "Attr", "writable, resizeable, exported, partial, allocation", |row, _| {
            row.attributes()
        }),
        number("vg_size", "VSize", "the size", |row, units| {
            units.size(row.group().sectors(row.extents()))
        }),
        number("vg_free", "VFree", "what no volume uses", |row, units| {
            units.size(row.group().sectors(row.free()))
        }),
        number("vg_extent_size", "Ext", "the size of an extent", |row, units| {
            units.size(row.group().extent_size)
        }),
        number("vg_extent_count", "#Ext", "extents", |row, _| row.extents().to_string()),
        number("vg_free_count", "Free", "extents that no volume uses", |row, _| {
            row.free().to_string()
        }),
        number("pv_count", "#PV", "physical volumes", |row, _| row.group().pvs.len().to_string()),
        number("vg_missing_pv_count", "#PV Missing", "those that are missing", |row, _| {
            row.0.missing().count().to_string()
        }),
        number("lv_count", "#LV", "logical volumes", |row, _| row.visible().to_string()),
        number("snap_count", "#SN", "snapshots", |row, _| {
            row.group().snapshots().count().to_string()
        }),
        number("vg_seqno", "Seq", "changes so far", |row, _| row.group().seqno.to_string()),
        text("vg_systemid", "SystemID", "the host that it belongs to", |row, _| {
            row.group().system_id.clone().unwrap_or_default()
        }),
        text("vg_tags", "VG Tags", "words for the administrator", |row, _| {
            row.group().tags.join(",")
        }),
    ];
}

impl LvRow {
    fn group(&self) -> &VolumeGroup {
        &self.group.metadata.group
    }

    fn lv(&self) -> Option<&LogicalVolume> {
        self.group().lvs.get(self.index)
    }

    fn is_seen(&self) -> bool {
        self.group().visible().get(self.index).is_some_and(|seen| *seen)
    }

    fn first(&self) -> Option<&SegmentKind> {
        self.lv().and_then(|lv| lv.segments.first()).map(|segment| &segment.kind)
    }

    /// Its name; in brackets for a hidden volume.
    fn name(&self) -> String {
        let Some(lv) = self.lv() else { return String::new() };
        if self.is_seen() { lv.name.clone() } else { format!("[{}]", lv.name) }
    }

    fn size(&self) -> Sectors {
        self.lv().map_or(Sectors::ZERO, |lv| self.group().size(lv))
    }

    fn origin(&self) -> String {
        let Some(lv) = self.lv() else { return String::new() };
        if let Some(found) = self.group().snapshot_in(&lv.name) {
            return found.snapshot.origin.clone();
        }
        let thin = self.first().and_then(SegmentKind::as_thin);
        let origin = thin.and_then(|thin| thin.origin.as_ref().or(thin.external_origin.as_ref()));
        origin.cloned().unwrap_or_default()
    }

    fn pool(&self) -> String {
        let thin = self.first().and_then(SegmentKind::as_thin);
        thin.map_or(String::new(), |thin| thin.pool.clone())
    }

    fn segment_type(&self) -> String {
        match self.first() {
            None => String::new(),
            Some(SegmentKind::Striped(striped)) if striped.areas.len() == 1 => "linear".into(),
            Some(SegmentKind::Striped(_)) => "striped".into(),
            Some(SegmentKind::Mirror(_)) => "mirror".into(),
            Some(SegmentKind::Raid(raid)) => raid.level.name().into(),
            Some(SegmentKind::Snapshot(_)) => "snapshot".into(),
            Some(SegmentKind::ThinPool(_)) => "thin-pool".into(),
            Some(SegmentKind::Thin(_)) => "thin".into(),
            Some(SegmentKind::Error) => "error".into(),
            Some(SegmentKind::Zero) => "zero".into(),
            Some(SegmentKind::Foreign(foreign)) => foreign.name.clone(),
        }
    }

    /// LVM's `lv_attr` letters.
    fn attributes(&self) -> String {
        let (group, Some(lv)) = (self.group(), self.lv()) else { return String::new() };
        let store = group.snapshot_in(&lv.name);
        let merging_into = group.snapshots_of(&lv.name).any(|found| found.snapshot.merging);
        let is_origin = group.snapshots_of(&lv.name).next().is_some();
        let unsynced = lv.flags.contains(&LvFlag::NotSynced);
        let (volume, target) = match (store, self.first()) {
            (Some(found), _) => (if found.snapshot.merging { 'S' } else { 's' }, 's'),
            (None, _) if is_origin => (if merging_into { 'O' } else { 'o' }, 's'),
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
        let has = |flag| lv.flags.contains(&flag);
        let pool = match self.first().and_then(SegmentKind::as_thin) {
            Some(thin) => group.lv(&thin.pool).and_then(|pool| pool.segments.first()),
            None => lv.segments.first(),
        };
        let pool = pool.and_then(|segment| segment.kind.as_thin_pool());
        let zero = pool.is_some_and(|pool| pool.zero_new_blocks);
        let health = if self.group.needs_missing(&lv.name).is_some() { 'p' } else { '-' };
        [
            volume,
            if lv.is_writable() { 'w' } else { 'r' },
            if locked { allocation.to_ascii_uppercase() } else { allocation },
            if has(LvFlag::FixedMinor) { 'm' } else { '-' },
            match &self.state {
                None => '-',
                Some(state) if state.is_invalid() => 'I',
                Some(_) => 'a',
            },
            if self.state.as_ref().is_some_and(|state| state.is_open) { 'o' } else { '-' },
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
    fn is_pool(&self) -> bool {
        matches!(self.first(), Some(SegmentKind::ThinPool(_)))
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

    fn places(&self) -> String {
        let place = |segment: &Segment| -> Vec<String> {
            if let SegmentKind::Raid(raid) = &segment.kind {
                return raid.images.iter().map(|image| format!("{}(0)", image.data)).collect();
            }
            if let SegmentKind::ThinPool(pool) = &segment.kind {
                return vec![format!("{}(0)", pool.data)];
            }
            let on = |on: &AreaOn| match on {
                AreaOn::Pv(index) => {
                    self.devices.get(*index).cloned().unwrap_or_else(|| "[unknown]".into())
                }
                AreaOn::Lv(name) => name.clone(),
            };
            let areas = segment.areas().iter();
            areas.map(|area| format!("{}({})", on(&area.on), area.start)).collect()
        };
        let segments = self.lv().map_or(&[][..], |lv| &lv.segments);
        segments.iter().flat_map(place).collect::<Vec<_>>().join(",")
    }
}

impl Row for LvRow {
    const NAME: &'static str = "lv";
    const DEFAULT: &'static [&'static str] =
        &["lv_name", "vg_name", "lv_attr", "lv_size", "pool_lv", "origin", "data_percent"];
    const FIELDS: &'static [Field<Self>] = &[
        text("lv_name", "LV", "the name; in brackets if it is a part", |row, _| row.name()),
        text("lv_uuid", "LV UUID", "the identity", |row, _| {
            row.lv().map_or(String::new(), |lv| lv.id.to_string())
        }),
        text("lv_full_name", "LV", "with its group", |row, _| {
            format!("{}/{}", row.group().name, row.lv().map_or("", |lv| &lv.name))
        }),
        text("lv_path", "Path", "where it is in a mount", |row, _| match row.lv() {
            Some(lv) if row.is_seen() && !row.is_pool() => {
                format!("/dev/{}/{}", row.group().name, lv.name)
            }
            Some(_) | None => String::new(),
        }),
        text("vg_name", "VG", "its group", |row, _| row.group().name.clone()),
        text("lv_attr", "Attr", "kind, permissions, allocation, ...: see lvs(8)", |row, _| {
            row.attributes()
        }),
        number("lv_size", "LSize", "the size; of a snapshot that of its store", |row, units| {
            units.size(row.size())
        }),
        text("pool_lv", "Pool", "its pool", |row, _| row.pool()),
        text("origin", "Origin", "what it is a snapshot of", |row, _| row.origin()),
        number("data_percent", "Data%", "of a snapshot, the used part of its space", |row, _| {
            let used = row.state.as_ref().and_then(LvState::used);
            used.map_or(String::new(), |used| format!("{}.{:02}", used / 100, used % 100))
        }),
        text("lv_active", "Active", "active, or nothing", |row, _| match &row.state {
            Some(_) => "active".into(),
            None => String::new(),
        }),
        text("segtype", "Type", "what it is made of", |row, _| row.segment_type()),
        number("seg_count", "#Seg", "in how many pieces", |row, _| {
            row.lv().map_or(0, |lv| lv.segments.len()).to_string()
        }),
        number("stripes", "#Str", "stripes or copies", |row, _| row.stripes().to_string()),
        number("chunk_size", "Chunk", "the chunk size of a snapshot or pool", |row, units| {
            let of = row.lv().and_then(|lv| row.group().snapshot_in(&lv.name));
            let pool = row.first().and_then(SegmentKind::as_thin_pool);
            let pool = pool.map_or(Sectors::ZERO, |pool| pool.chunk_size);
            units.size(of.map_or(pool, |found| found.snapshot.chunk_size))
        }),
        text("devices", "Devices", "where its extents are", |row, _| row.places()),
        text("lv_tags", "LV Tags", "words for the administrator", |row, _| {
            row.lv().map_or(String::new(), |lv| lv.tags.join(","))
        }),
        text("lv_problem", "Problem", "why it cannot be used", |row, _| {
            row.lv().and_then(|lv| lv.unsupported.clone()).unwrap_or_default()
        }),
    ];
}

const fn text<R>(
    name: &'static str,
    heading: &'static str,
    about: &'static str,
    get: fn(&R, &Units) -> String,
) -> Field<R> {
    Field { name, heading, right: false, about, get }
}

const fn number<R>(
    name: &'static str,
    heading: &'static str,
    about: &'static str,
    get: fn(&R, &Units) -> String,
) -> Field<R> {
    Field { name, heading, right: true, about, get }
}
