//! The volume group and what is in it.

use std::collections::{HashMap, HashSet};

use ashlar_block::{Sector, Sectors};

use super::flags::{FlagSet, LvFlag, PvFlag, VgFlag};
use super::segment::{PvExtents, Segment, SegmentKind, Snapshot};
use crate::text::Section;
use crate::uuid::Uuid;

/// A volume group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeGroup {
    /// Its name; not unique among the groups that a host sees.
    pub name: String,
    /// Its identity.
    pub id: Uuid,
    /// Counts the changes: of two texts the one with the higher number counts.
    pub seqno: u32,
    /// May it be read, written, resized; is it shared, exported.
    pub flags: FlagSet<VgFlag>,
    /// Words for the administrator.
    pub tags: Vec<String>,
    /// The host that the group belongs to, if it belongs to one.
    pub system_id: Option<String>,
    /// The lock manager of a shared group.
    pub lock_type: Option<String>,
    /// The unit in which space is given out.
    pub extent_size: Sectors,
    /// Logical volumes at most; 0: any number.
    pub max_lv: u32,
    /// Physical volumes at most; 0: any number.
    pub max_pv: u32,
    /// How volumes are placed; `None`: normal.
    pub allocation: Option<Allocation>,
    /// Metadata areas in use at most; 0: all.
    pub metadata_copies: u32,
    /// The physical volumes; areas refer to them by index.
    pub pvs: Vec<PhysicalVolume>,
    /// The logical volumes, hidden ones too.
    pub lvs: Vec<LogicalVolume>,
    /// As read, without its volumes, with the fields that have no place here.
    pub(super) kept: Section,
}

/// A physical volume of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PhysicalVolume {
    /// Identity: the label's.
    pub id: Uuid,
    /// Where it was when the text was written. A hint, no more.
    pub device: Option<String>,
    /// May be allocated; was missing.
    pub flags: FlagSet<PvFlag>,
    /// Words for the administrator.
    pub tags: Vec<String>,
    /// The device's size when it joined the group.
    pub dev_size: Option<Sectors>,
    /// First sector of the first extent.
    pub pe_start: Sector,
    /// Extents.
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
    /// Sectors.
    pub size: Sectors,
}

/// A logical volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogicalVolume {
    /// Its name, unique in the group.
    pub name: String,
    /// Its identity in the group.
    pub id: Uuid,
    /// May be read, written; is it one for users.
    pub flags: FlagSet<LvFlag>,
    /// Words for the administrator.
    pub tags: Vec<String>,
    /// When and where it was made; not known of hidden volumes.
    pub creation: Option<Creation>,
    /// How it is placed; `None`: as the group.
    pub allocation: Option<Allocation>,
    /// Sectors to read ahead; -1: none; `None`: as the kernel likes.
    pub read_ahead: Option<i64>,
    /// What it is made of, in order and without gaps.
    pub segments: Vec<Segment>,
    /// Why it cannot be used: something about it, or about a volume that it is made of, is not known here.
    pub unsupported: Option<String>,
    pub(super) kept: Section,
}

/// When and where a logical volume was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Creation {
    /// Seconds since 1970.
    pub time: u64,
    /// The host's name.
    pub host: String,
}

/// How volumes are placed on physical volumes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Allocation {
    /// In one piece, an extension right behind.
    Contiguous,
    /// An extension on the same physical volume.
    Cling,
    /// The same by tags.
    ClingByTags,
    /// Sensibly: stripes on different physical volumes.
    Normal,
    /// Anywhere.
    Anywhere,
    /// A word that is not known here, which LVM passes over.
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

    /// LVM's word.
    pub fn word(&self) -> &str {
        if let Self::Other(word) = self {
            return word;
        }
        Self::WORDS.iter().find(|(known, _)| known == self).map_or("", |(_, word)| word)
    }
}

/// A snapshot: the hidden volume that ties, and what it ties.
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

    /// The logical volume of that name.
    pub fn lv(&self, name: &str) -> Option<&LogicalVolume> {
        self.lvs.iter().find(|lv| lv.name == name)
    }

    /// The logical volume of that name.
    pub fn lv_mut(&mut self, name: &str) -> Option<&mut LogicalVolume> {
        self.lvs.iter_mut().find(|lv| lv.name == name)
    }

    /// The index of the physical volume with that identity.
    pub fn pv_index(&self, id: &Uuid) -> Option<usize> {
        self.pvs.iter().position(|pv| pv.id == *id)
    }

    /// Sectors of so many extents.
    pub fn sectors(&self, extents: u32) -> Sectors {
        // Both are of 32 bits.
        Sectors(self.extent_size.0.saturating_mul(extents.into()))
    }

    /// The extents that hold so many sectors, rounded up; `None` if there cannot be as many.
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

    /// The snapshot whose exception store that logical volume is: what users know as the snapshot.
    pub fn snapshot_in(&self, cow: &str) -> Option<SnapshotOf<'_>> {
        self.snapshots().find(|found| found.snapshot.cow == cow)
    }

    /// The logical volumes that are made of that one.
    pub fn users_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a LogicalVolume> {
        self.lvs.iter().filter(move |lv| lv.parts().any(|part| part == name))
    }

    /// Which of the volumes users see, in the order of the volumes: LVM's `lv_is_visible`, which goes by more
    /// than the flag. A volume that ties a snapshot has the flag and is hidden; an exception store has not,
    /// and is seen as the snapshot if its origin is, unless it is being merged.
    pub fn visible(&self) -> Vec<bool> {
        let flagged: HashMap<&str, bool> =
            self.lvs.iter().map(|lv| (lv.name.as_str(), lv.is_visible())).collect();
        let (mut ties, mut stores) = (HashSet::new(), HashMap::new());
        for SnapshotOf { lv, snapshot } in self.snapshots() {
            let origin = snapshot.origin.as_str();
            // The zeroes under a sparse volume are hidden, the volume is not.
            let seen = origin.contains("_vorigin") || flagged.get(origin) == Some(&true);
            ties.insert(lv.name.as_str());
            stores.insert(snapshot.cow.as_str(), seen && !snapshot.merging);
        }
        let is_seen = |lv: &LogicalVolume| {
            let name = lv.name.as_str();
            !ties.contains(name) && *stores.get(name).unwrap_or(&lv.is_visible())
        };
        self.lvs.iter().map(is_seen).collect()
    }

    /// Adds a logical volume. Where it stands in the text follows from whether users see it.
    pub fn add_lv(&mut self, lv: LogicalVolume) {
        self.lvs.push(lv);
    }

    /// Takes a logical volume out. Volumes that are made of it must go, too.
    pub fn remove_lv(&mut self, name: &str) -> Option<LogicalVolume> {
        let at = self.lvs.iter().position(|lv| lv.name == name)?;
        Some(self.lvs.remove(at))
    }

    /// A name with that beginning and the lowest number that is free, as LVM finds names: `lvol0`,
    /// `snapshot3`.
    pub fn free_name(&self, prefix: &str) -> String {
        let taken: HashSet<&str> = self.lvs.iter().map(|lv| lv.name.as_str()).collect();
        let names = (0_u64..).map(|number| format!("{prefix}{number}"));
        // There are fewer volumes than numbers.
        names.into_iter().find(|name| !taken.contains(name.as_str())).unwrap_or_default()
    }

    /// Why the group must not be changed here; `None` if it may be.
    pub fn write_refusal(&self) -> Option<String> {
        let name = &self.name;
        let lv_flag = self.lvs.iter().find_map(|lv| lv.flags.unknown_status());
        let pv_flag = self.pvs.iter().find_map(|pv| pv.flags.unknown_status());
        if let Some(word) = self.flags.unknown_status().or(lv_flag).or(pv_flag) {
            return Some(format!(
                "volume group {name} has the status {word:?}, which is not known"
            ));
        }
        if self.flags.contains(&VgFlag::Exported) {
            return Some(format!("volume group {name} is exported; import it with vgimport"));
        }
        let shared = [VgFlag::Clustered, VgFlag::Shared];
        if self.lock_type.as_deref().is_some_and(|lock| lock != "none")
            || shared.iter().any(|flag| self.flags.contains(flag))
        {
            return Some(format!(
                "volume group {name} is shared; only LVM with its locks may write"
            ));
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

    /// The physical volume of a label that joins a group with extents of that size, as LVM counts them;
    /// `None` if there are too many.
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
    /// A logical volume that may be read and written; for users, or hidden.
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

    /// Whether it is marked as one for users. What users see of snapshots is another matter:
    /// [`VolumeGroup::visible`].
    pub fn is_visible(&self) -> bool {
        self.flags.contains(&LvFlag::Visible)
    }

    /// Whether it may be written.
    pub fn is_writable(&self) -> bool {
        self.flags.contains(&LvFlag::Write) || self.flags.contains(&LvFlag::WriteLocked)
    }

    /// Its extents.
    pub fn extents(&self) -> u32 {
        self.segments.last().map_or(0, Segment::end)
    }

    /// The logical volumes that it is made of.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().flat_map(Segment::parts)
    }

    /// Its extents on physical volumes, in order.
    pub fn pv_extents(&self) -> impl Iterator<Item = PvExtents> {
        self.segments.iter().flat_map(Segment::pv_extents)
    }

    /// Adds segments at the end; their starts are set. One that goes on where the last one ends, on the
    /// same stripes, becomes a part of it, as LVM merges them.
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
    /// Whether `next` goes on in each area where this one ends.
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
