//! Segments: the composition of a logical volume's extents.

use ashlar_block::Sectors;

use crate::text::{Entry, Section};

/// A run of extents of a logical volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// First extent in the logical volume.
    pub start: u32,
    /// Number of extents.
    pub count: u32,
    /// Their composition.
    pub kind: SegmentKind,
    /// Suffixes of the type after plus signs (`raid5+RESHAPE`).
    pub type_flags: Vec<String>,
    /// Tags.
    pub tags: Vec<String>,
    /// As parsed, with unknown fields.
    pub(super) kept: Section,
}

/// The kind of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SegmentKind {
    /// One area (linear), or several in stripes.
    Striped(StripeAreas),
    /// An old-style mirror, with a log.
    Mirror(Mirror),
    /// Legs that are logical volumes, with dm-raid.
    Raid(Raid),
    /// The hidden volume that ties a snapshot to its origin.
    Snapshot(Snapshot),
    /// Space for thin volumes.
    ThinPool(ThinPool),
    /// A thin volume.
    Thin(Thin),
    /// All I/O fails.
    Error,
    /// Reads return zeroes, writes are discarded.
    Zero,
    /// A kind of which only the name is known.
    Foreign(ForeignSegment),
}

impl SegmentKind {
    /// LVM's name of the kind, as reports show it.
    pub fn name(&self) -> &str {
        match self {
            Self::Striped(striped) if striped.areas.len() == 1 => "linear",
            Self::Striped(_) => "striped",
            Self::Mirror(_) => "mirror",
            Self::Raid(raid) => raid.level.name(),
            Self::Snapshot(_) => "snapshot",
            Self::ThinPool(_) => "thin-pool",
            Self::Thin(_) => "thin",
            Self::Error => "error",
            Self::Zero => "zero",
            Self::Foreign(foreign) => &foreign.name,
        }
    }

    /// Its areas and their stripes, if it is linear or striped.
    pub fn as_striped(&self) -> Option<&StripeAreas> {
        if let Self::Striped(striped) = self { Some(striped) } else { None }
    }

    /// Its copies, if it is an old-style mirror.
    pub fn as_mirror(&self) -> Option<&Mirror> {
        if let Self::Mirror(mirror) = self { Some(mirror) } else { None }
    }

    /// Origin and store, if it is a snapshot.
    pub fn as_snapshot(&self) -> Option<&Snapshot> {
        if let Self::Snapshot(snapshot) = self { Some(snapshot) } else { None }
    }

    /// Its parts, if it is a pool of thin volumes.
    pub fn as_thin_pool(&self) -> Option<&ThinPool> {
        if let Self::ThinPool(pool) = self { Some(pool) } else { None }
    }

    /// Its legs, if it is a RAID.
    pub fn as_raid(&self) -> Option<&Raid> {
        if let Self::Raid(raid) = self { Some(raid) } else { None }
    }

    /// Its name, if only that is known of its kind; else nothing.
    pub fn foreign_name(&self) -> &str {
        if let Self::Foreign(foreign) = self { &foreign.name } else { "" }
    }

    /// Its pool and device ID, if it is a thin volume.
    pub fn as_thin(&self) -> Option<&Thin> {
        if let Self::Thin(thin) = self { Some(thin) } else { None }
    }
}

/// Areas, used in stripes if there are several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StripeAreas {
    /// Stripe size; `None` with one area.
    pub stripe_size: Option<Sectors>,
    /// The areas.
    pub areas: Vec<Area>,
}

/// The first extent of an area. All areas of a segment have the same length: [`Segment::area_extents`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Area {
    /// The volume that contains it.
    pub on: AreaVolume,
    /// First extent there.
    pub start: u32,
}

/// The volume that contains an area.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AreaVolume {
    /// A physical volume, by its index in the group.
    Pv(usize),
    /// A logical volume, by name.
    Lv(String),
}

/// An old-style mirror.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mirror {
    /// The copies.
    pub areas: Vec<Area>,
    /// The logical volume that records the regions in sync.
    pub log: Option<String>,
    /// The size of a region.
    pub region_size: Option<Sectors>,
    /// Number of extents already moved (pvmove).
    pub extents_moved: Option<u32>,
}

/// Legs of a RAID, each a hidden logical volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Raid {
    /// Level and layout.
    pub level: RaidLevel,
    /// The legs, in order.
    pub images: Vec<RaidImage>,
    /// `None` for RAID 1.
    pub stripe_size: Option<Sectors>,
    /// The unit of the bitmap.
    pub region_size: Option<Sectors>,
    /// Copies of RAID 10.
    pub data_copies: Option<u32>,
    /// Maximum number of outstanding writes to a write-mostly leg.
    pub write_behind: Option<u32>,
    /// Minimum speed of a recovery, KiB per second.
    pub min_recovery_rate: Option<u32>,
    /// Maximum speed of a recovery, KiB per second.
    pub max_recovery_rate: Option<u32>,
}

/// One leg of a RAID.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RaidImage {
    /// The logical volume with superblock and bitmap (`_rmeta_`); RAID 0 has none.
    pub meta: Option<String>,
    /// The logical volume with the data (`_rimage_`).
    pub data: String,
}

/// The origin and the store of a snapshot. The volume with this segment is hidden; users see
/// [`cow`](Self::cow) under its name, with the size of the origin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// The origin.
    pub origin: String,
    /// The logical volume with the exception store.
    pub cow: String,
    /// The unit of copying.
    pub chunk_size: Sectors,
    /// Whether it is being merged into the origin.
    pub merging: bool,
}

/// A pool of thin volumes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThinPool {
    /// The logical volume with the kernel's tree.
    pub metadata: String,
    /// The logical volume with the data.
    pub data: String,
    /// Must equal the transaction ID in the tree.
    pub transaction_id: u64,
    /// The allocation unit.
    pub chunk_size: Sectors,
    /// `ignore`, `nopassdown` or `passdown`.
    pub discards: Option<String>,
    /// Whether new chunks read as zeroes.
    pub zero_new_blocks: bool,
}

/// A thin volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Thin {
    /// Its pool, a logical volume.
    pub pool: String,
    /// The pool's transaction that created it.
    pub transaction_id: u64,
    /// Its device ID in the pool's tree.
    pub device_id: u32,
    /// The thin volume that it is a snapshot of; it may no longer exist.
    pub origin: Option<String>,
    /// A logical volume outside of the pool with the data of unwritten blocks.
    pub external_origin: Option<String>,
    /// The thin volume into which it will be merged.
    pub merge: Option<String>,
}

/// A segment of an unknown kind, kept as parsed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForeignSegment {
    /// Its type: `cache`, `vdo`, `integrity`, or an unknown one.
    pub name: String,
    /// Logical volumes that it uses, as far as the kind is known.
    pub uses: Vec<String>,
}

macro_rules! raid_levels {
    ($($variant:ident = $name:literal, $parity:literal;)+) => {
        /// Level and layout of a RAID, by LVM's names (`_raid_types` in `lib/raid/raid.c`).
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs)]
        pub enum RaidLevel {
            $($variant,)+
        }

        impl RaidLevel {
            /// All levels.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// LVM's name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Number of legs that may be lost because of parity.
            pub fn parity(self) -> u32 {
                match self {
                    $(Self::$variant => $parity,)+
                }
            }
        }
    };
}

raid_levels! {
    Raid0 = "raid0", 0;
    Raid0Meta = "raid0_meta", 0;
    Raid1 = "raid1", 0;
    Raid10 = "raid10", 0;
    Raid10Near = "raid10_near", 0;
    Raid4 = "raid4", 1;
    Raid5 = "raid5", 1;
    Raid5N = "raid5_n", 1;
    Raid5La = "raid5_la", 1;
    Raid5Ls = "raid5_ls", 1;
    Raid5Ra = "raid5_ra", 1;
    Raid5Rs = "raid5_rs", 1;
    Raid6 = "raid6", 2;
    Raid6N6 = "raid6_n_6", 2;
    Raid6Nc = "raid6_nc", 2;
    Raid6Nr = "raid6_nr", 2;
    Raid6Zr = "raid6_zr", 2;
    Raid6Ls6 = "raid6_ls_6", 2;
    Raid6Rs6 = "raid6_rs_6", 2;
    Raid6La6 = "raid6_la_6", 2;
    Raid6Ra6 = "raid6_ra_6", 2;
}

impl RaidLevel {
    /// The level with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|level| level.name() == name)
    }

    /// Whether it has no redundancy.
    pub fn is_raid0(self) -> bool {
        matches!(self, Self::Raid0 | Self::Raid0Meta)
    }
}

impl Area {
    /// An area on a physical volume.
    pub fn on_pv(index: usize, start: u32) -> Self {
        Self { on: AreaVolume::Pv(index), start }
    }

    /// The logical volume that contains it, if it is one.
    pub fn lv(&self) -> Option<&str> {
        match &self.on {
            AreaVolume::Lv(name) => Some(name),
            AreaVolume::Pv(_) => None,
        }
    }
}

/// Extents of a physical volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PvExtents {
    /// Index of the physical volume in the group.
    pub pv: usize,
    /// First extent.
    pub start: u32,
    /// Number of extents.
    pub count: u32,
}

impl Segment {
    /// A new segment.
    pub fn new(start: u32, count: u32, kind: SegmentKind) -> Self {
        let (type_flags, tags, kept) = (Vec::new(), Vec::new(), Section::default());
        Self { start, count, kind, type_flags, tags, kept }
    }

    /// A segment on one run of extents of a physical volume.
    pub fn linear(start: u32, on: PvExtents) -> Self {
        let areas = vec![Area::on_pv(on.pv, on.start)];
        Self::new(start, on.count, SegmentKind::Striped(StripeAreas { stripe_size: None, areas }))
    }

    /// A part of this segment, of `extents` of each area, on these areas.
    pub(crate) fn part(&self, start: u32, extents: u32, areas: Vec<Area>) -> Self {
        let mut part = Self { start, ..self.clone() };
        if let SegmentKind::Striped(striped) = &mut part.kind {
            let stripes = u32::try_from(areas.len()).unwrap_or(1).max(1);
            (part.count, striped.areas) = (extents.saturating_mul(stripes), areas);
        }
        part
    }

    /// A text of a key that has no field here.
    pub(crate) fn kept_text(&self, key: &str) -> Option<&str> {
        self.kept.str(key)
    }

    /// A number of a key that has no field here.
    pub(crate) fn kept_number(&self, key: &str) -> Option<u64> {
        self.kept.int(key)?.try_into().ok()
    }

    /// The numbers and words of a section that has no fields here, as `KEY=VALUE`.
    pub(crate) fn kept_settings(&self, key: &str) -> Vec<String> {
        let entries = self.kept.section(key).map_or(&[][..], |section| &section.entries);
        let setting = |entry: &Entry| {
            let value = entry.node.as_scalar()?;
            let number = value.as_int().map(|number| number.to_string());
            let text = number.or_else(|| value.as_str().map(str::to_owned))?;
            Some(format!("{}={text}", entry.key))
        };
        entries.iter().filter_map(setting).collect()
    }

    /// The end, exclusive. No overflow: a parsed or checked segment fits.
    pub fn end(&self) -> u32 {
        self.start.saturating_add(self.count)
    }

    /// Its areas, for kinds with areas.
    pub fn areas(&self) -> &[Area] {
        match &self.kind {
            SegmentKind::Striped(striped) => &striped.areas,
            SegmentKind::Mirror(mirror) => &mirror.areas,
            SegmentKind::Raid(_)
            | SegmentKind::Snapshot(_)
            | SegmentKind::ThinPool(_)
            | SegmentKind::Thin(_)
            | SegmentKind::Error
            | SegmentKind::Zero
            | SegmentKind::Foreign(_) => &[],
        }
    }

    /// The same, to be changed.
    pub(crate) fn areas_mut(&mut self) -> &mut [Area] {
        match &mut self.kind {
            SegmentKind::Striped(striped) => &mut striped.areas,
            SegmentKind::Mirror(mirror) => &mut mirror.areas,
            SegmentKind::Raid(_)
            | SegmentKind::Snapshot(_)
            | SegmentKind::ThinPool(_)
            | SegmentKind::Thin(_)
            | SegmentKind::Error
            | SegmentKind::Zero
            | SegmentKind::Foreign(_) => &mut [],
        }
    }

    /// Extents of each area.
    pub fn area_extents(&self) -> u32 {
        let stripes = self.kind.as_striped().map_or(1, |striped| striped.areas.len());
        self.count / u32::try_from(stripes).unwrap_or(1).max(1)
    }

    /// Its areas on physical volumes.
    pub fn pv_extents(&self) -> impl Iterator<Item = PvExtents> {
        let count = self.area_extents();
        self.areas().iter().filter_map(move |area| match area.on {
            AreaVolume::Pv(pv) => Some(PvExtents { pv, start: area.start, count }),
            AreaVolume::Lv(_) => None,
        })
    }

    /// The logical volumes that it uses.
    pub fn parts(&self) -> Vec<&str> {
        let mut parts: Vec<&str> = Vec::new();
        match &self.kind {
            SegmentKind::Striped(striped) => {
                parts.extend(striped.areas.iter().filter_map(Area::lv))
            }
            SegmentKind::Mirror(mirror) => {
                parts.extend(mirror.areas.iter().filter_map(Area::lv));
                parts.extend(mirror.log.as_deref());
            }
            SegmentKind::Raid(raid) => {
                for image in &raid.images {
                    parts.extend(image.meta.as_deref());
                    parts.push(&image.data);
                }
            }
            SegmentKind::Snapshot(snapshot) => parts.extend([&*snapshot.origin, &*snapshot.cow]),
            SegmentKind::ThinPool(pool) => parts.extend([&*pool.metadata, &*pool.data]),
            SegmentKind::Thin(thin) => {
                parts.push(&thin.pool);
                parts.extend(thin.external_origin.as_deref());
            }
            SegmentKind::Error | SegmentKind::Zero => {}
            SegmentKind::Foreign(foreign) => {
                parts.extend(foreign.uses.iter().map(String::as_str));
            }
        }
        parts
    }

    /// Why volumes with this segment are unusable; `None` if it is supported.
    pub(super) fn unsupported(&self) -> Option<String> {
        const KNOWN_FLAGS: [&str; 2] = ["METADATA_FORMAT", "CROP_METADATA"];
        if let SegmentKind::Foreign(foreign) = &self.kind {
            return Some(match foreign.name.as_str() {
                "cache" | "cache-pool" => "it is cached, and dm-cache is not supported".into(),
                "writecache" => "it is cached, and dm-writecache is not supported".into(),
                "vdo" | "vdo-pool" => "it is deduplicated, and VDO is not supported".into(),
                "integrity" => "it has checksums, and dm-integrity is not supported".into(),
                name => format!("segments of type {name:?} are not known"),
            });
        }
        let unknown = |flag: &&String| !KNOWN_FLAGS.contains(&flag.as_str());
        let flag = self.type_flags.iter().find(unknown)?;
        Some(if flag.contains("RESHAPE") {
            "it is being reshaped, which is not supported".into()
        } else {
            format!("segments with the flag {flag:?} are not known")
        })
    }
}
