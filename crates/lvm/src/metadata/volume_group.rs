//! The volume group and its volumes.

use std::collections::{HashMap, HashSet};

use ashlar_block::{Sector, Sectors};

use super::flags::{FlagSet, LvFlag, PvFlag, VgFlag};
use super::segment::{PvExtents, Segment, SegmentKind, Snapshot};
use super::shared_volume::SharedVolume;
use crate::text::Section;
use crate::uuid::Uuid;

/// A volume group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeGroup {
    /// Its name; not unique among the groups that a host sees.
    pub name: String,
    /// Its identity.
    pub id: Uuid,
    /// Change counter: of two texts, the one with the higher number is current.
    pub seqno: u32,
    /// Whether it is readable, writable, resizable, shared, exported.
    pub flags: FlagSet<VgFlag>,
    /// Tags.
    pub tags: Vec<String>,
    /// The host that owns the group, if any.
    pub system_id: Option<String>,
    /// The lock manager of a shared group.
    pub lock_type: Option<String>,
    /// The allocation unit.
    pub extent_size: Sectors,
    /// Maximum number of logical volumes; 0: unlimited.
    pub max_lv: u32,
    /// Maximum number of physical volumes; 0: unlimited.
    pub max_pv: u32,
    /// Allocation policy; `None`: normal.
    pub allocation: Option<Allocation>,
    /// Maximum number of used metadata areas; 0: all.
    pub metadata_copies: u32,
    /// The physical volumes; areas refer to them by index.
    pub pvs: Vec<PhysicalVolume>,
    /// The logical volumes, including hidden ones.
    pub lvs: Vec<SharedVolume>,
    /// As parsed, without its volumes, with unknown fields.
    pub(super) kept: Section,
}

/// A physical volume of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PhysicalVolume {
    /// UUID, as in the label.
    pub id: Uuid,
    /// Its device when the text was written. Only a hint.
    pub device: Option<String>,
    /// Whether it is allocatable, or was missing.
    pub flags: FlagSet<PvFlag>,
    /// Tags.
    pub tags: Vec<String>,
    /// The device's size when it joined the group.
    pub dev_size: Option<Sectors>,
    /// First sector of the first extent.
    pub pe_start: Sector,
    /// Number of extents.
    pub pe_count: u32,
    /// Space for a boot loader.
    pub bootloader: Option<Bootloader>,
    pub(super) kept: Section,
}

/// Space for a boot loader on a physical volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bootloader {
    /// First sector.
    pub start: Sector,
    /// Size in sectors.
    pub size: Sectors,
}

/// A logical volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogicalVolume {
    /// Its name, unique in the group.
    pub name: String,
    /// Its identity in the group.
    pub id: Uuid,
    /// Whether it is readable, writable, visible.
    pub flags: FlagSet<LvFlag>,
    /// Tags.
    pub tags: Vec<String>,
    /// Time and host of its creation; missing for hidden volumes.
    pub creation: Option<Creation>,
    /// Allocation policy; `None`: the group's.
    pub allocation: Option<Allocation>,
    /// Sectors to read ahead; -1: none; `None`: the kernel's default.
    pub read_ahead: Option<i64>,
    /// Its segments, in order and without gaps.
    pub segments: Vec<Segment>,
    /// Why it is unusable: it, or a volume that it uses, has an unsupported feature.
    pub unsupported: Option<String>,
    pub(super) kept: Section,
}

/// Time and host of a logical volume's creation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Creation {
    /// Seconds since 1970.
    pub time: u64,
    /// The host's name.
    pub host: String,
}

/// Allocation policies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Allocation {
    /// In one piece, an extension directly after.
    Contiguous,
    /// An extension on the same physical volume.
    Cling,
    /// An extension on a physical volume with the same tags.
    ClingByTags,
    /// Stripes on different physical volumes.
    Normal,
    /// Anywhere.
    Anywhere,
    /// An unknown word, which LVM ignores.
    Other(String),
}

impl Allocation {
    const WORDS: [(Self, &'static str); 5] = [
        (Self::Contiguous, "contiguous"),
        (Self::Cling, "cling"),
        (Self::ClingByTags, "cling_by_tags"),
        (Self::Normal, "normal"),
        (Self::Anywhere, "anywhere"),
    ];

    pub(super) fn parse(word: &str) -> Self {
        let known = Self::WORDS.into_iter().find(|(_, known)| *known == word);
        known.map_or_else(|| Self::Other(word.into()), |(allocation, _)| allocation)
    }

    /// LVM's name.
    pub fn word(&self) -> &str {
        if let Self::Other(word) = self {
            return word;
        }
        Self::WORDS.iter().find(|(known, _)| known == self).map_or("", |(_, word)| word)
    }
}

/// A snapshot: its hidden volume, and the segment with origin and store.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotOf<'a> {
    /// The hidden volume.
    pub lv: &'a LogicalVolume,
    /// Origin, exception store, chunk size.
    pub snapshot: &'a Snapshot,
}

impl VolumeGroup {
    /// An empty group, as `vgcreate` makes it.
    pub fn new(name: impl Into<String>, id: Uuid, extent_size: Sectors) -> Self {
        Self {
            name: name.into(),
            id,
            seqno: 0,
            flags: FlagSet::new([VgFlag::Resizeable, VgFlag::Read, VgFlag::Write]),
            tags: Vec::new(),
            system_id: None,
            lock_type: None,
            extent_size,
            max_lv: 0,
            max_pv: 0,
            allocation: None,
            metadata_copies: 0,
            pvs: Vec::new(),
            lvs: Vec::new(),
            kept: Section::default(),
        }
    }

    /// The logical volume with this name.
    pub fn lv(&self, name: &str) -> Option<&LogicalVolume> {
        self.lvs.iter().find(|lv| lv.name == name).map(|lv| &**lv)
    }

    /// The logical volume with this name.
    pub fn lv_mut(&mut self, name: &str) -> Option<&mut LogicalVolume> {
        self.lvs.iter_mut().find(|lv| lv.name == name).map(|lv| &mut **lv)
    }

    /// Its configuration profile.
    pub fn profile(&self) -> Option<&str> {
        self.kept.str("profile")
    }

    /// What its lock manager needs to lock it.
    pub fn lock_args(&self) -> Option<&str> {
        self.kept.str("lock_args")
    }

    /// The index of the physical volume with this UUID.
    pub fn pv_index(&self, id: &Uuid) -> Option<usize> {
        self.pvs.iter().position(|pv| pv.id == *id)
    }

    /// The sectors of `extents`.
    pub fn sectors(&self, extents: u32) -> Sectors {
        // Both factors have 32 bits.
        Sectors(self.extent_size.0.saturating_mul(extents.into()))
    }

    /// The extents that hold `sectors`, rounded up; `None` on overflow.
    pub fn extents(&self, sectors: Sectors) -> Option<u32> {
        sectors.0.div_ceil(self.extent_size.0.max(1)).try_into().ok()
    }

    /// The size of a logical volume.
    pub fn size(&self, lv: &LogicalVolume) -> Sectors {
        self.sectors(lv.extents())
    }

    /// First sector of an extent on its physical volume; `None` if there is no such extent.
    pub fn extent_start(&self, on: PvExtents) -> Option<Sector> {
        let pv = self.pvs.get(on.pv).filter(|pv| on.start < pv.pe_count)?;
        pv.pe_start.checked_add(self.sectors(on.start))
    }

    /// All snapshots of the group.
    pub fn snapshots(&self) -> impl Iterator<Item = SnapshotOf<'_>> {
        self.lvs.iter().filter_map(|lv| {
            let snapshot = lv.segments.first()?.kind.as_snapshot()?;
            Some(SnapshotOf { lv, snapshot })
        })
    }

    /// The snapshots of a logical volume.
    pub fn snapshots_of<'a>(&'a self, origin: &'a str) -> impl Iterator<Item = SnapshotOf<'a>> {
        self.snapshots().filter(move |found| found.snapshot.origin == origin)
    }

    /// The snapshot whose store is the volume `cow`: users see the store as the snapshot.
    pub fn snapshot_in(&self, cow: &str) -> Option<SnapshotOf<'_>> {
        self.snapshots().find(|found| found.snapshot.cow == cow)
    }

    /// Whether it has pools of thin volumes.
    pub fn has_thin_pools(&self) -> bool {
        let mut segments = self.lvs.iter().flat_map(|lv| &lv.segments);
        segments.any(|segment| segment.kind.as_thin_pool().is_some())
    }

    /// The logical volumes that use the volume `name`.
    pub fn users_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a LogicalVolume> {
        self.lvs.iter().map(|lv| &**lv).filter(move |lv| lv.parts().any(|part| part == name))
    }

    /// Which volumes users see, in the order of the volumes: LVM's `lv_is_visible`, which depends
    /// on more than the flag. A hidden snapshot volume has the flag; its store does not have it,
    /// and is visible as the snapshot if its origin is visible, unless it is being merged.
    pub fn visible(&self) -> Vec<bool> {
        let flagged: HashMap<&str, bool> =
            self.lvs.iter().map(|lv| (lv.name.as_str(), lv.is_visible())).collect();
        let (mut ties, mut stores) = (HashSet::new(), HashMap::new());
        for SnapshotOf { lv, snapshot } in self.snapshots() {
            let origin = snapshot.origin.as_str();
            // The zeroes below a sparse volume are hidden, the volume is not.
            let seen = origin.contains("_vorigin") || flagged.get(origin) == Some(&true);
            ties.insert(lv.name.as_str());
            stores.insert(snapshot.cow.as_str(), seen && !snapshot.merging);
        }
        let is_seen = |lv: &LogicalVolume| {
            let name = lv.name.as_str();
            !ties.contains(name) && *stores.get(name).unwrap_or(&lv.is_visible())
        };
        self.lvs.iter().map(|lv| is_seen(lv)).collect()
    }

    /// The names of the volumes that users see.
    pub fn visible_names(&self) -> Vec<String> {
        let all = self.lvs.iter().zip(self.visible());
        all.filter(|(_, seen)| *seen).map(|(lv, _)| lv.name.clone()).collect()
    }

    /// Adds a logical volume. Its position in the text depends on whether users see it.
    pub fn add_lv(&mut self, lv: LogicalVolume) {
        self.lvs.push(lv.into());
    }

    /// Removes a logical volume. Volumes that use it must be removed, too.
    pub fn remove_lv(&mut self, name: &str) -> Option<LogicalVolume> {
        let at = self.lvs.iter().position(|lv| lv.name == name)?;
        Some(self.lvs.remove(at).into_volume())
    }

    /// A name with this prefix and the lowest free number, as in LVM: `lvol0`, `snapshot3`.
    pub fn free_name(&self, prefix: &str) -> String {
        let taken: HashSet<&str> = self.lvs.iter().map(|lv| lv.name.as_str()).collect();
        let names = (0_u64..).map(|number| format!("{prefix}{number}"));
        // There are fewer volumes than numbers.
        names.into_iter().find(|name| !taken.contains(name.as_str())).unwrap_or_default()
    }

    /// Why no host may change the group as it is; `None` if the host that it belongs to may. Whose it is says
    /// [`held_elsewhere`](Self::held_elsewhere).
    pub fn write_refusal(&self) -> Option<String> {
        let name = &self.name;
        let lv_flag = self.lvs.iter().find_map(|lv| lv.flags.unknown_status());
        let pv_flag = self.pvs.iter().find_map(|pv| pv.flags.unknown_status());
        if let Some(word) = self.flags.unknown_status().or(lv_flag).or(pv_flag) {
            return Some(format!(
                "volume group {name} has the status {word:?}, which is not known"
            ));
        }
        if let Some(held) = self.given_away() {
            return Some(held.to_string());
        }
        let writable = [VgFlag::Write, VgFlag::WriteLocked];
        if !writable.iter().any(|flag| self.flags.contains(flag)) {
            return Some(format!("volume group {name} is read-only; allow with vgchange -prw"));
        }
        let missing = self.pvs.iter().find(|pv| pv.flags.contains(&PvFlag::Missing));
        missing.map(|pv| {
            format!("physical volume {} of volume group {name} is marked as missing", pv.id)
        })
    }
}

impl PhysicalVolume {
    /// A physical volume that joins a group.
    pub fn new(id: Uuid, dev_size: Sectors, pe_start: Sector, pe_count: u32) -> Self {
        Self {
            id,
            device: None,
            flags: FlagSet::new([PvFlag::Allocatable]),
            tags: Vec::new(),
            dev_size: Some(dev_size),
            pe_start,
            pe_count,
            bootloader: None,
            kept: Section::default(),
        }
    }

    /// A new physical volume from its label, for a group with this extent size, with LVM's number
    /// of extents; `None` if there are too many.
    pub fn of_label(label: &crate::ondisk::PvLabel, extent_size: Sectors) -> Option<Self> {
        let dev_size = Sectors::from_bytes_floor(label.device_size);
        let start = Sector::from_bytes_floor(label.data_areas.first()?.offset);
        // The second metadata area is at the end of the device.
        let behind = label.metadata_areas.get(1).map_or(0, |area| area.size >> 9);
        let room = dev_size.0.saturating_sub(start.0).saturating_sub(behind);
        let count = room.checked_div(extent_size.0)?.try_into().ok()?;
        let mut pv = Self::new(label.uuid, dev_size, start, count);
        let areas = label.extension.as_ref().map(|extension| &extension.bootloader_areas);
        pv.bootloader = areas.and_then(|areas| areas.first()).map(|area| Bootloader {
            start: Sector::from_bytes_floor(area.offset),
            size: Sectors::from_bytes_floor(area.size),
        });
        Some(pv)
    }

    /// Whether new volumes may be placed on it.
    pub fn is_allocatable(&self) -> bool {
        self.flags.contains(&PvFlag::Allocatable) && !self.flags.contains(&PvFlag::Missing)
    }
}

impl LogicalVolume {
    /// A readable and writable logical volume, visible or hidden.
    pub fn new(name: impl Into<String>, id: Uuid, visible: bool, segments: Vec<Segment>) -> Self {
        let mut flags = FlagSet::new([LvFlag::Read, LvFlag::Write]);
        if visible {
            flags.insert(LvFlag::Visible);
        }
        Self {
            name: name.into(),
            id,
            flags,
            tags: Vec::new(),
            creation: None,
            allocation: None,
            read_ahead: None,
            segments,
            unsupported: None,
            kept: Section::default(),
        }
    }

    /// Whether it has the flag for users' volumes. [`VolumeGroup::visible`] also handles snapshots.
    pub fn is_visible(&self) -> bool {
        self.flags.contains(&LvFlag::Visible)
    }

    /// Whether it is writable.
    pub fn is_writable(&self) -> bool {
        self.flags.contains(&LvFlag::Write) || self.flags.contains(&LvFlag::WriteLocked)
    }

    /// Its configuration profile.
    pub fn profile(&self) -> Option<&str> {
        self.kept.str("profile")
    }

    /// What its lock manager needs to lock it.
    pub fn lock_args(&self) -> Option<&str> {
        self.kept.str("lock_args")
    }

    /// Its fixed device numbers, major and minor, if it has any.
    pub fn device_numbers(&self) -> Option<(i64, i64)> {
        let number = |key| self.kept.node(key)?.as_scalar()?.as_int();
        Some((number("major").unwrap_or(-1), number("minor")?))
    }

    /// Number of extents.
    pub fn extents(&self) -> u32 {
        self.segments.last().map_or(0, Segment::end)
    }

    /// The logical volumes that it uses.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().flat_map(Segment::parts)
    }

    /// Its extents on physical volumes, in order.
    pub fn pv_extents(&self) -> impl Iterator<Item = PvExtents> {
        self.segments.iter().flat_map(Segment::pv_extents)
    }

    /// Keeps the first `extents`, at a boundary of segments or of rows of stripes.
    pub(crate) fn truncate(&mut self, extents: u32) {
        self.segments.retain(|segment| segment.start < extents);
        if let Some(last) = self.segments.last_mut() {
            last.count = last.count.min(extents - last.start);
        }
    }

    /// Appends segments and sets their starts. A segment that continues the last one, on the same
    /// stripes, is merged into it, as in LVM.
    pub fn extend(&mut self, segments: impl IntoIterator<Item = Segment>) {
        for mut segment in segments {
            segment.start = self.extents();
            match self.segments.last_mut() {
                Some(last) if last.is_followed_by(&segment) => last.count += segment.count,
                Some(_) | None => self.segments.push(segment),
            }
        }
    }
}

impl Segment {
    /// Whether `next` continues this segment in each area.
    fn is_followed_by(&self, next: &Self) -> bool {
        let (SegmentKind::Striped(a), SegmentKind::Striped(b)) = (&self.kind, &next.kind) else {
            return false;
        };
        let len = self.area_extents();
        let goes_on = |(a, b): (&super::segment::Area, &super::segment::Area)| {
            a.on == b.on && a.start.checked_add(len) == Some(b.start)
        };
        a.stripe_size == b.stripe_size
            && a.areas.len() == b.areas.len()
            && a.areas.iter().zip(&b.areas).all(goes_on)
            && self.type_flags == next.type_flags
            && self.tags == next.tags
            && self.count.checked_add(next.count).is_some()
    }
}
