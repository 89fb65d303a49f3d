//! The logical volume.

use super::flags::{FlagSet, LvFlag};
use super::segment::{Area, PvExtents, Segment, SegmentKind};
use crate::text::Section;
use crate::uuid::Uuid;

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

    /// Whether it has the flag for users' volumes. [`VolumeGroup::visible`](super::VolumeGroup::visible) also handles snapshots.
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
        let goes_on =
            |(a, b): (&Area, &Area)| a.on == b.on && a.start.checked_add(len) == Some(b.start);
        a.stripe_size == b.stripe_size
            && a.areas.len() == b.areas.len()
            && a.areas.iter().zip(&b.areas).all(goes_on)
            && self.type_flags == next.type_flags
            && self.tags == next.tags
            && self.count.checked_add(next.count).is_some()
    }
}
