//! Parsing and printing of segments.

use std::collections::HashMap;

use ashlar_block::Sectors;

use super::error::MetadataError;
use super::reader::{Reader, int, tags_node};
use super::segment::{
    Area, AreaVolume, ForeignSegment, Mirror, Raid, RaidImage, RaidLevel, Segment, SegmentKind,
    Snapshot, StripeAreas, Thin, ThinPool,
};
use crate::text::{Node, Order, Scalar, Section};

/// Index of each physical volume, by its key in the text.
pub(super) type PvKeys<'a> = HashMap<&'a str, usize>;

const COMMON: Order = Order(&["start_extent", "extent_count", "\ntype", "tags"]);
const STRIPED: Order = Order(&[
    "start_extent",
    "extent_count",
    "\ntype",
    "tags",
    "stripe_count",
    "stripe_size",
    "\nstripes",
]);
const MIRROR: Order = Order(&[
    "start_extent",
    "extent_count",
    "\ntype",
    "tags",
    "mirror_count",
    "extents_moved",
    "mirror_log",
    "region_size",
    "\nmirrors",
]);
const RAID: Order = Order(&[
    "start_extent",
    "extent_count",
    "\ntype",
    "tags",
    "stripe_count",
    "device_count",
    "data_copies",
    "region_size",
    "stripe_size",
    "writebehind",
    "min_recovery_rate",
    "max_recovery_rate",
    "data_offset",
    "\nraids",
    "\nraid0_lvs",
]);
const SNAPSHOT: Order = Order(&[
    "start_extent",
    "extent_count",
    "\ntype",
    "tags",
    "chunk_size",
    "origin",
    "cow_store",
    "merging_store",
]);
const THIN_POOL: Order = Order(&[
    "start_extent",
    "extent_count",
    "\ntype",
    "tags",
    "metadata",
    "pool",
    "transaction_id",
    "chunk_size",
    "discards",
    "zero_new_blocks",
    "crop_metadata",
]);
const THIN: Order = Order(&[
    "start_extent",
    "extent_count",
    "\ntype",
    "tags",
    "thin_pool",
    "transaction_id",
    "device_id",
    "external_origin",
    "origin",
    "merge",
]);

/// Fields of unsupported kinds that name the volumes they use.
const FOREIGN_PARTS: [(&str, &[&str]); 6] = [
    ("cache", &["cache_pool", "origin"]),
    ("cache-pool", &["data", "metadata"]),
    ("writecache", &["writecache", "origin"]),
    ("integrity", &["origin", "meta_dev"]),
    ("vdo", &["vdo_pool"]),
    ("vdo-pool", &["data"]),
];

impl Segment {
    pub(super) fn read(at: &Reader<'_>, pvs: &PvKeys<'_>) -> Result<Self, MetadataError> {
        let (start, count): (u32, u32) = (at.number("start_extent")?, at.number("extent_count")?);
        if count == 0 || start.checked_add(count).is_none() {
            return Err(at.invalid("extent_count", "a number of extents that a volume can have"));
        }
        let mut words = at.str("type")?.split('+').map(str::to_owned);
        let name = words.next().unwrap_or_default();
        let type_flags = words.collect();
        let kind = match name.as_str() {
            "striped" | "linear" => SegmentKind::Striped(striped(at, pvs, count)?),
            "mirror" => SegmentKind::Mirror(mirror(at, pvs)?),
            "snapshot" => SegmentKind::Snapshot(snapshot(at)?),
            "thin-pool" => SegmentKind::ThinPool(thin_pool(at)?),
            "thin" => SegmentKind::Thin(thin(at)?),
            "error" => SegmentKind::Error,
            "zero" => SegmentKind::Zero,
            name => match RaidLevel::from_name(name) {
                Some(level) => SegmentKind::Raid(raid(at, level)?),
                None => SegmentKind::Foreign(foreign(at, name)?),
            },
        };
        Ok(Self { start, count, kind, type_flags, tags: at.tags()?, kept: at.section.clone() })
    }

    /// The section to print. `pv` returns the key of a physical volume.
    pub(super) fn write(&self, pv: &impl Fn(usize) -> String) -> Section {
        let mut section = self.kept.clone();
        let (order, name) = match &self.kind {
            SegmentKind::Striped(_) => (STRIPED, "striped"),
            SegmentKind::Mirror(_) => (MIRROR, "mirror"),
            SegmentKind::Raid(raid) => (RAID, raid.level.name()),
            SegmentKind::Snapshot(_) => (SNAPSHOT, "snapshot"),
            SegmentKind::ThinPool(_) => (THIN_POOL, "thin-pool"),
            SegmentKind::Thin(_) => (THIN, "thin"),
            SegmentKind::Error => (COMMON, "error"),
            SegmentKind::Zero => (COMMON, "zero"),
            SegmentKind::Foreign(foreign) => (COMMON, foreign.name.as_str()),
        };
        section.set("start_extent", Node::int(self.start), order);
        section.set("extent_count", Node::int(self.count), order);
        let mut words = vec![name];
        words.extend(self.type_flags.iter().map(String::as_str));
        section.set("type", Node::str(words.join("+")), order);
        section.set_or_remove("tags", tags_node(&self.tags), order);
        let mut fields = Fields { section, order };
        match &self.kind {
            SegmentKind::Striped(striped) => {
                fields.set("stripe_count", count(striped.areas.len()));
                fields.sectors("stripe_size", striped.stripe_size);
                fields.set("stripes", areas_node(&striped.areas, pv));
            }
            SegmentKind::Mirror(mirror) => {
                fields.set("mirror_count", count(mirror.areas.len()));
                fields.number("extents_moved", mirror.extents_moved);
                fields.string("mirror_log", mirror.log.as_deref());
                fields.sectors("region_size", mirror.region_size);
                fields.set("mirrors", areas_node(&mirror.areas, pv));
            }
            SegmentKind::Raid(raid) => fields.raid(raid),
            SegmentKind::Snapshot(snapshot) => {
                fields.sectors("chunk_size", Some(snapshot.chunk_size));
                fields.string("origin", Some(&snapshot.origin));
                let (cow, merging) = (Some(&*snapshot.cow), snapshot.merging);
                fields.string("cow_store", cow.filter(|_| !merging));
                fields.string("merging_store", cow.filter(|_| merging));
            }
            SegmentKind::ThinPool(pool) => {
                fields.string("metadata", Some(&pool.metadata));
                fields.string("pool", Some(&pool.data));
                fields.set("transaction_id", int(pool.transaction_id));
                fields.sectors("chunk_size", Some(pool.chunk_size));
                fields.string("discards", pool.discards.as_deref());
                fields.flag("zero_new_blocks", pool.zero_new_blocks);
            }
            SegmentKind::Thin(thin) => {
                fields.string("thin_pool", Some(&thin.pool));
                fields.set("transaction_id", int(thin.transaction_id));
                fields.set("device_id", Node::int(thin.device_id));
                fields.string("external_origin", thin.external_origin.as_deref());
                fields.string("origin", thin.origin.as_deref());
                fields.string("merge", thin.merge.as_deref());
            }
            SegmentKind::Error | SegmentKind::Zero | SegmentKind::Foreign(_) => {}
        }
        fields.section
    }
}

/// A section being written, with the order of its keys.
struct Fields {
    section: Section,
    order: Order,
}

impl Fields {
    fn set(&mut self, key: &str, node: Node) {
        self.section.set(key, node, self.order);
    }

    fn optional(&mut self, key: &str, node: Option<Node>) {
        self.section.set_or_remove(key, node, self.order);
    }

    fn sectors(&mut self, key: &str, sectors: Option<Sectors>) {
        self.optional(key, sectors.map(|sectors| int(sectors.0)));
    }

    fn number(&mut self, key: &str, number: Option<u32>) {
        self.optional(key, number.map(Node::int));
    }

    fn string(&mut self, key: &str, text: Option<&str>) {
        self.optional(key, text.map(Node::str));
    }

    /// A field that LVM writes only if it is true; an existing false one stays.
    fn flag(&mut self, key: &str, set: bool) {
        let says = self.section.int(key).is_some_and(|value| value != 0);
        if set != says {
            self.optional(key, set.then(|| Node::int(1)));
        }
    }

    fn raid(&mut self, raid: &Raid) {
        let raid0 = raid.level.is_raid0();
        let legs = count(raid.images.len());
        self.set(if raid0 { "stripe_count" } else { "device_count" }, legs);
        self.sectors("stripe_size", raid.stripe_size);
        self.sectors("region_size", raid.region_size);
        self.number("data_copies", raid.data_copies);
        self.number("writebehind", raid.write_behind);
        self.number("min_recovery_rate", raid.min_recovery_rate);
        self.number("max_recovery_rate", raid.max_recovery_rate);
        let mut items = Vec::new();
        for image in &raid.images {
            items.extend(image.meta.as_deref().map(Scalar::str));
            items.push(Scalar::str(&*image.data));
        }
        let per_line = if raid.images.iter().any(|image| image.meta.is_some()) { 2 } else { 1 };
        self.set(images_key(raid.level), Node::rows(items, per_line));
    }
}

fn count(len: usize) -> Node {
    int(len as u64)
}

fn images_key(level: RaidLevel) -> &'static str {
    if level == RaidLevel::Raid0 { "raid0_lvs" } else { "raids" }
}

fn areas_node(areas: &[Area], pv: &impl Fn(usize) -> String) -> Node {
    let mut items = Vec::with_capacity(2 * areas.len());
    for area in areas {
        items.push(match &area.on {
            AreaVolume::Pv(index) => Scalar::Str(pv(*index)),
            AreaVolume::Lv(name) => Scalar::str(name),
        });
        items.push(Scalar::Int(area.start.into()));
    }
    Node::rows(items, 2)
}

/// `count` pairs of a volume's name and an extent.
fn areas(
    at: &Reader<'_>,
    key: &str,
    count: &str,
    pvs: &PvKeys<'_>,
) -> Result<Vec<Area>, MetadataError> {
    let list = at.list(key)?.ok_or_else(|| at.missing(key))?;
    let expected: usize = at.number(count)?;
    let (pairs, rest) = list.as_chunks::<2>();
    if pairs.len() != expected || pairs.is_empty() || !rest.is_empty() {
        return Err(at.invalid(key, "as many pairs of volume and extent as there are areas"));
    }
    let area = |[name, start]: &[Scalar; 2]| {
        let name = name.as_str()?;
        let start = start.as_int()?.try_into().ok()?;
        let pv = pvs.get(name).map(|index| AreaVolume::Pv(*index));
        Some(Area { on: pv.unwrap_or_else(|| AreaVolume::Lv(name.into())), start })
    };
    let areas: Option<_> = pairs.iter().map(area).collect();
    areas.ok_or_else(|| at.invalid(key, "a list of volumes and extents"))
}

fn striped(at: &Reader<'_>, pvs: &PvKeys<'_>, count: u32) -> Result<StripeAreas, MetadataError> {
    let areas = areas(at, "stripes", "stripe_count", pvs)?;
    let stripe_size = at.optional_sectors("stripe_size")?;
    if areas.len() > 1 {
        let size = stripe_size.ok_or_else(|| at.missing("stripe_size"))?;
        if !size.0.is_power_of_two() {
            return Err(at.invalid("stripe_size", "a power of two"));
        }
        if !(count as usize).is_multiple_of(areas.len()) {
            return Err(at.invalid("extent_count", "a multiple of the stripe count"));
        }
    }
    Ok(StripeAreas { stripe_size, areas })
}

fn mirror(at: &Reader<'_>, pvs: &PvKeys<'_>) -> Result<Mirror, MetadataError> {
    Ok(Mirror {
        areas: areas(at, "mirrors", "mirror_count", pvs)?,
        log: at.optional_str("mirror_log")?.map(Into::into),
        region_size: at.optional_sectors("region_size")?,
        extents_moved: at.optional_number("extents_moved")?,
    })
}

fn raid(at: &Reader<'_>, level: RaidLevel) -> Result<Raid, MetadataError> {
    let legs: Option<usize> = at.optional_number("device_count")?;
    let legs = match legs {
        Some(legs) => legs,
        None => at.number("stripe_count")?,
    };
    let key = images_key(level);
    let names = at.strings(key)?.ok_or_else(|| at.missing(key))?;
    // A volume with `_rmeta_` in its name has the metadata of the next one.
    let mut images = Vec::new();
    let mut names = names.into_iter();
    while let Some(name) = names.next() {
        let (meta, data) = if name.contains("_rmeta_") {
            (Some(name.to_owned()), names.next().ok_or_else(|| at.invalid(key, "pairs"))?)
        } else {
            (None, name)
        };
        images.push(RaidImage { meta, data: data.into() });
    }
    if images.is_empty() || images.len() != legs || images.len() <= level.parity() as usize {
        return Err(at.invalid(key, "as many volumes as the RAID has legs"));
    }
    Ok(Raid {
        level,
        images,
        stripe_size: at.optional_sectors("stripe_size")?,
        region_size: at.optional_sectors("region_size")?,
        data_copies: at.optional_number("data_copies")?,
        write_behind: at.optional_number("writebehind")?,
        min_recovery_rate: at.optional_number("min_recovery_rate")?,
        max_recovery_rate: at.optional_number("max_recovery_rate")?,
    })
}

fn snapshot(at: &Reader<'_>) -> Result<Snapshot, MetadataError> {
    let merging = at.optional_str("merging_store")?;
    let cow = match (merging, at.optional_str("cow_store")?) {
        (Some(_), Some(_)) => return Err(at.invalid("cow_store", "left out of a merge")),
        (Some(cow), None) | (None, Some(cow)) => cow,
        (None, None) => return Err(at.missing("cow_store")),
    };
    let chunk_size: u32 = at.number("chunk_size")?;
    if !chunk_size.is_power_of_two() {
        return Err(at.invalid("chunk_size", "a power of two"));
    }
    Ok(Snapshot {
        origin: at.str("origin")?.into(),
        cow: cow.into(),
        chunk_size: Sectors(chunk_size.into()),
        merging: merging.is_some(),
    })
}

fn thin_pool(at: &Reader<'_>) -> Result<ThinPool, MetadataError> {
    let chunk_size: u32 = at.number("chunk_size")?;
    // 64 KiB to 1 GiB.
    if !(128..=2_097_152).contains(&chunk_size) {
        return Err(at.invalid("chunk_size", "from 128 to 2097152 sectors"));
    }
    let zero: Option<u32> = at.optional_number("zero_new_blocks")?;
    Ok(ThinPool {
        metadata: at.str("metadata")?.into(),
        data: at.str("pool")?.into(),
        transaction_id: at.number("transaction_id")?,
        chunk_size: Sectors(chunk_size.into()),
        discards: at.optional_str("discards")?.map(Into::into),
        zero_new_blocks: zero.is_some_and(|zero| zero != 0),
    })
}

fn thin(at: &Reader<'_>) -> Result<Thin, MetadataError> {
    let device_id: u32 = at.number("device_id")?;
    if device_id >= 1 << 24 {
        return Err(at.invalid("device_id", "a number of 24 bits"));
    }
    let name = |key| Ok::<_, MetadataError>(at.optional_str(key)?.map(Into::into));
    Ok(Thin {
        pool: at.str("thin_pool")?.into(),
        transaction_id: at.number("transaction_id")?,
        device_id,
        origin: name("origin")?,
        external_origin: name("external_origin")?,
        merge: name("merge")?,
    })
}

fn foreign(at: &Reader<'_>, name: &str) -> Result<ForeignSegment, MetadataError> {
    let keys =
        FOREIGN_PARTS.iter().find(|(kind, _)| *kind == name).map_or(&[][..], |(_, keys)| keys);
    let mut uses = Vec::new();
    for key in keys {
        uses.extend(at.optional_str(key)?.map(str::to_owned));
    }
    Ok(ForeignSegment { name: name.into(), uses })
}
