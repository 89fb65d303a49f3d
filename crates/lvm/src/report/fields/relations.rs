//! How logical volumes are related: layout and role, components, ancestors and descendants.

use std::collections::BTreeSet;

use super::LvRow;
use crate::metadata::{LogicalVolume, LvFlag, RaidLevel, Segment, SegmentKind, VolumeGroup};

/// What a component is to the volume that it is a part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ComponentKind {
    MirrorImage,
    MirrorLog,
    RaidImage,
    RaidMetadata,
    PoolData,
    PoolMetadata,
    CachePoolData,
    CachePoolMetadata,
    CacheOrigin,
    VdoPoolData,
}

impl ComponentKind {
    fn of(name: &str, segment: &Segment) -> Option<Self> {
        let is = |key: &str| segment.kept_text(key) == Some(name);
        match &segment.kind {
            SegmentKind::Mirror(mirror) if mirror.log.as_deref() == Some(name) => {
                Some(Self::MirrorLog)
            }
            SegmentKind::Mirror(mirror) => {
                mirror.areas.iter().any(|area| area.lv() == Some(name)).then_some(Self::MirrorImage)
            }
            SegmentKind::Raid(raid) => raid.images.iter().find_map(|image| {
                if image.data == name {
                    return Some(Self::RaidImage);
                }
                (image.meta.as_deref() == Some(name)).then_some(Self::RaidMetadata)
            }),
            SegmentKind::ThinPool(pool) if pool.data == name => Some(Self::PoolData),
            SegmentKind::ThinPool(pool) => (pool.metadata == name).then_some(Self::PoolMetadata),
            SegmentKind::Foreign(foreign) => match &*foreign.name {
                "cache-pool" if is("data") => Some(Self::CachePoolData),
                "cache-pool" if is("metadata") => Some(Self::CachePoolMetadata),
                "cache" if is("origin") => Some(Self::CacheOrigin),
                "vdo-pool" if is("data") => Some(Self::VdoPoolData),
                _ => None,
            },
            SegmentKind::Striped(_)
            | SegmentKind::Snapshot(_)
            | SegmentKind::Thin(_)
            | SegmentKind::Error
            | SegmentKind::Zero => None,
        }
    }

    fn roles(self) -> &'static [&'static str] {
        match self {
            Self::MirrorImage => &["mirror", "image"],
            Self::MirrorLog => &["mirror", "log"],
            Self::RaidImage => &["raid", "image"],
            Self::RaidMetadata => &["raid", "metadata"],
            Self::PoolData => &["thin", "pool", "data"],
            Self::PoolMetadata => &["thin", "pool", "metadata"],
            Self::CachePoolData => &["cache", "pool", "data"],
            Self::CachePoolMetadata => &["cache", "pool", "metadata"],
            Self::CacheOrigin => &["cache", "origin", "cacheorigin"],
            Self::VdoPoolData => &["vdo", "pool", "data"],
        }
    }
}

/// The words for the level of a RAID.
fn raid_layout(level: RaidLevel) -> &'static [&'static str] {
    match level {
        RaidLevel::Raid0 => &["raid0"],
        RaidLevel::Raid0Meta => &[],
        RaidLevel::Raid1 => &["raid1"],
        RaidLevel::Raid10 | RaidLevel::Raid10Near => &["raid10"],
        RaidLevel::Raid4 => &["raid4"],
        RaidLevel::Raid5 | RaidLevel::Raid5Ls => &["raid5", "raid5_ls"],
        RaidLevel::Raid5La => &["raid5", "raid5_la"],
        RaidLevel::Raid5Ra => &["raid5", "raid5_ra"],
        RaidLevel::Raid5Rs => &["raid5", "raid5_rs"],
        RaidLevel::Raid5N => &["raid5"],
        RaidLevel::Raid6 | RaidLevel::Raid6Zr => &["raid6", "raid6_zr"],
        RaidLevel::Raid6Nr => &["raid6", "raid6_nr"],
        RaidLevel::Raid6Nc => &["raid6", "raid6_nc"],
        RaidLevel::Raid6N6
        | RaidLevel::Raid6Ls6
        | RaidLevel::Raid6Rs6
        | RaidLevel::Raid6La6
        | RaidLevel::Raid6Ra6 => &["raid6"],
    }
}

impl LvRow {
    /// What it is a part of, and as what.
    pub(super) fn part(&self) -> Option<(&LogicalVolume, ComponentKind)> {
        let name = &self.lv()?.name;
        let users = self.group().users_of(name);
        users
            .flat_map(|user| user.segments.iter().map(move |segment| (user, segment)))
            .find_map(|(user, segment)| ComponentKind::of(name, segment).map(|part| (user, part)))
    }

    /// The name of the volume that it is a component of.
    pub(super) fn parent(&self) -> String {
        let parent = self.part().filter(|(_, part)| {
            !self.is_seen()
                && !matches!(part, ComponentKind::CacheOrigin | ComponentKind::VdoPoolData)
        });
        parent.map_or_else(String::new, |(user, _)| user.name.clone())
    }

    fn is_virtual_origin(&self) -> bool {
        let zero = |lv: &LogicalVolume| {
            lv.segments.iter().all(|segment| segment.kind == SegmentKind::Zero)
        };
        self.is_origin() && self.lv().is_some_and(zero)
    }

    pub(super) fn is_origin(&self) -> bool {
        self.lv().is_some_and(|lv| self.group().snapshots_of(&lv.name).next().is_some())
    }

    /// The thin volumes with this as their origin, and those with it as their external origin.
    fn thin_snapshots(&self) -> (usize, usize) {
        let Some(lv) = self.lv() else { return (0, 0) };
        let thins = || self.group().lvs.iter().filter_map(|lv| lv.segments.first()?.kind.as_thin());
        let inside = thins().filter(|thin| thin.origin.as_ref() == Some(&lv.name)).count();
        (inside, thins().filter(|thin| thin.external_origin.as_ref() == Some(&lv.name)).count())
    }

    /// The words for what it is made of.
    pub(super) fn layout(&self) -> Vec<String> {
        let kind = self.first();
        let is = |get: fn(&SegmentKind) -> bool| kind.is_some_and(get);
        let mut words: Vec<&str> = match kind.map_or("", SegmentKind::foreign_name) {
            "cache" => vec!["cache"],
            "cache-pool" => vec!["cache", "pool"],
            "writecache" => vec!["writecache"],
            "integrity" => vec!["integrity"],
            "vdo" => vec!["vdo", "sparse"],
            "vdo-pool" => vec!["vdo", "pool"],
            "" if is(|kind| kind.as_mirror().is_some()) => vec!["mirror"],
            "" if is(|kind| kind.as_thin_pool().is_some()) => vec!["thin", "pool"],
            "" if is(|kind| kind.as_thin().is_some()) => vec!["thin", "sparse"],
            "" if self.is_virtual_origin() => vec!["virtual"],
            _ => Vec::new(),
        };
        if let Some(raid) = kind.and_then(SegmentKind::as_raid) {
            words.push("raid");
            words.extend(raid_layout(raid.level));
        }
        if words.is_empty() {
            let segments = self.lv().map_or(&[][..], |lv| &lv.segments);
            let has = |name: &str| segments.iter().any(|segment| segment.kind.name() == name);
            words = ["linear", "striped", "error", "zero"]
                .into_iter()
                .filter(|name| has(name))
                .collect();
        }
        if words.is_empty() {
            words.push("unknown");
        }
        words.into_iter().map(str::to_owned).collect()
    }

    /// The words for what it is for.
    pub(super) fn roles(&self) -> Vec<String> {
        let mut words: Vec<&str> = vec!["public"];
        let Some(lv) = self.lv() else { return vec!["public".into()] };
        let mut is_public = true;
        if lv.flags.contains(&LvFlag::PvMove) {
            words.push("pvmove");
            is_public = false;
        } else if let Some((_, part)) = self.part() {
            words.extend(part.roles());
            is_public = false;
        }
        let (inside, outside) = self.thin_snapshots();
        if inside > 0 {
            words.extend(["origin", "thinorigin"]);
        }
        if inside > 1 {
            words.push("multithinorigin");
        }
        let thin = self.first().and_then(SegmentKind::as_thin);
        if thin.is_some_and(|thin| thin.origin.is_some()) {
            words.extend(["snapshot", "thinsnapshot"]);
        }
        if outside > 0 {
            words.extend(["origin", "extthinorigin"]);
        }
        if outside > 1 {
            words.push("multiextthinorigin");
        }
        let foreign = self.first().map_or("", SegmentKind::foreign_name);
        if self.is_pool() || foreign == "cache-pool" || lv.flags.contains(&LvFlag::CacheVol) {
            is_public = false;
        }
        if self.is_spare() {
            words.extend(["pool", "spare"]);
            is_public = false;
        }
        let snapshots = self.group().snapshots_of(&lv.name).count();
        if snapshots > 0 {
            words.extend(["origin", "thickorigin"]);
            is_public &= !self.is_virtual_origin();
        } else if self.group().snapshot_in(&lv.name).is_some() {
            words.extend(["snapshot", "thicksnapshot"]);
        }
        if snapshots > 1 {
            words.push("multithickorigin");
        }
        words[0] = if is_public { "public" } else { "private" };
        words.into_iter().map(str::to_owned).collect()
    }

    /// Spare metadata for the repair of a pool: not used yet.
    pub(super) fn is_spare(&self) -> bool {
        self.lv().is_some_and(|lv| !lv.is_visible() && lv.name.ends_with("_pmspare"))
    }

    /// The origin of it, the origin of that, ...
    pub(super) fn ancestors(&self) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        let mut at = self.lv();
        while let Some(origin) = at.and_then(|lv| origin_of(self.group(), lv)) {
            if found.contains(&origin.name) {
                break;
            }
            found.push(origin.name.clone());
            at = Some(origin);
        }
        found
    }

    /// Its snapshots, each followed by the snapshots of that.
    pub(super) fn descendants(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut left: Vec<&str> = self.lv().into_iter().map(|lv| &*lv.name).collect();
        let mut is_first = true;
        while let Some(name) = left.pop() {
            if !std::mem::take(&mut is_first) {
                // Hostile metadata may have a circle.
                if found.iter().any(|seen| seen == name) {
                    continue;
                }
                found.push(name.to_owned());
            }
            let group = self.group();
            let stores = group.snapshots_of(name).map(|found| &*found.snapshot.cow);
            let mut children: Vec<&str> = stores.collect();
            if children.is_empty() {
                let of = |lv: &&LogicalVolume| {
                    let thin = lv.segments.first().and_then(|segment| segment.kind.as_thin());
                    let origins = thin.map(|thin| [&thin.origin, &thin.external_origin]);
                    origins
                        .is_some_and(|origins| origins.iter().any(|it| it.as_deref() == Some(name)))
                };
                let thins = group.lvs.iter().map(|lv| &**lv).filter(of);
                children.extend(thins.map(|lv| &*lv.name));
            }
            left.extend(children.into_iter().rev());
        }
        found
    }

    /// The kernel's modules that it takes, with those of its components and of its snapshots or origin.
    pub(super) fn modules(&self) -> Vec<String> {
        let group = self.group();
        let (mut modules, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut left: Vec<&str> = self.lv().into_iter().map(|lv| &*lv.name).collect();
        while let Some(name) = left.pop() {
            let Some(lv) = group.lv(name).filter(|_| seen.insert(name)) else { continue };
            for segment in &lv.segments {
                modules.extend(module(segment));
                left.extend(segment.parts());
            }
            let mut related: Vec<&str> =
                group.snapshots_of(name).map(|found| &*found.snapshot.cow).collect();
            related.extend(group.snapshot_in(name).map(|found| &*found.snapshot.origin));
            if !related.is_empty() {
                modules.insert("snapshot");
                left.extend(related);
            }
        }
        modules.into_iter().map(str::to_owned).collect()
    }
}

/// The module for a segment; the core has those for linear and striped ones.
fn module(segment: &Segment) -> Option<&str> {
    match &segment.kind {
        SegmentKind::Striped(_) => None,
        SegmentKind::Mirror(_) => Some("mirror"),
        SegmentKind::Raid(_) => Some("raid"),
        SegmentKind::Snapshot(_) => Some("snapshot"),
        SegmentKind::ThinPool(_) => Some("thin-pool"),
        SegmentKind::Thin(_) => Some("thin"),
        SegmentKind::Error => Some("error"),
        SegmentKind::Zero => Some("zero"),
        SegmentKind::Foreign(foreign) => match &*foreign.name {
            "cache" | "writecache" | "integrity" => Some(&foreign.name),
            "vdo" | "vdo-pool" => Some("dm-vdo"),
            _ => None,
        },
    }
}

/// What a volume is a snapshot of.
pub(super) fn origin_of<'a>(
    group: &'a VolumeGroup,
    lv: &'a LogicalVolume,
) -> Option<&'a LogicalVolume> {
    if let Some(found) = group.snapshot_in(&lv.name) {
        return group.lv(&found.snapshot.origin);
    }
    let thin = lv.segments.first()?.kind.as_thin()?;
    group.lv(thin.origin.as_ref().or(thin.external_origin.as_ref())?)
}
