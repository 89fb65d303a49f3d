//! Checks the consistency of a volume group: references and overlaps.

use std::collections::{HashMap, HashSet};

use super::error::MetadataError;
use super::logical_volume::LogicalVolume;
use super::segment::{AreaVolume, Segment, SegmentKind};
use super::volume_group::VolumeGroup;

/// Maximum of layers of logical volumes. LVM builds about six.
const MAX_LAYERS: usize = 32;
/// Maximum bytes of a name (`NAME_LEN`).
const MAX_NAME: usize = 127;
/// An extent size that is not a power of two must be a multiple of this, 128 KiB.
const ODD_EXTENT_UNIT: u64 = 256;

/// Whether LVM allows a name, of a group or of a volume.
pub fn is_valid_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_+".contains(&byte);
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(allowed)
        && !name.starts_with('-')
        && !matches!(name, "." | "..")
}

/// A tag in LVM's syntax, which may begin with `@`.
///
/// # Errors
/// The text is not a tag.
pub fn parse_tag(text: &str) -> Result<String, String> {
    let word = text.strip_prefix('@').unwrap_or(text);
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_+.-/=!:#&".contains(&byte);
    let valid = (1..=1024).contains(&word.len()) && word.bytes().all(allowed);
    if !valid || word.starts_with('-') {
        return Err(format!("`{text}` is not a tag: letters, digits and _ + . - / = ! : # &"));
    }
    Ok(word.to_owned())
}

impl VolumeGroup {
    /// Checks that the group is consistent. A parsed group has passed this; a changed one is
    /// checked before it is written.
    ///
    /// # Errors
    /// The first defect.
    pub fn check(&self) -> Result<(), MetadataError> {
        let at = || self.name.clone();
        if !is_valid_name(&self.name) {
            return Err(MetadataError::Name { at: at(), name: at() });
        }
        let size = self.extent_size.0;
        if size == 0 || !(size.is_power_of_two() || size.is_multiple_of(ODD_EXTENT_UNIT)) {
            let expected = "a power of two, or a multiple of 256 sectors";
            return Err(MetadataError::Invalid { at: at(), key: "extent_size".into(), expected });
        }
        self.check_identities()?;
        let lvs = self.by_name()?;
        for lv in &self.lvs {
            self.check_lv(lv, &lvs)?;
        }
        self.check_layers(&lvs)?;
        self.check_overlaps()
    }

    fn check_identities(&self) -> Result<(), MetadataError> {
        let mut seen = HashSet::new();
        let twice =
            |at: String, id: String| Err(MetadataError::Duplicate { at, what: "UUID", value: id });
        for pv in &self.pvs {
            if !seen.insert(pv.id) {
                return twice(format!("{}/physical_volumes", self.name), pv.id.to_string());
            }
            let end = pv.pe_start.checked_add(self.sectors(pv.pe_count));
            if end.is_none_or(|end| end.0 > i64::MAX as u64) {
                return Err(MetadataError::TooLarge { at: format!("physical volume {}", pv.id) });
            }
        }
        seen.clear();
        for lv in &self.lvs {
            if !seen.insert(lv.id) {
                return twice(format!("{}/logical_volumes", self.name), lv.id.to_string());
            }
        }
        Ok(())
    }

    fn by_name(&self) -> Result<HashMap<&str, usize>, MetadataError> {
        let mut lvs = HashMap::new();
        for (i, lv) in self.lvs.iter().enumerate() {
            let at = || format!("{}/logical_volumes", self.name);
            if !is_valid_name(&lv.name) {
                return Err(MetadataError::Name { at: at(), name: lv.name.clone() });
            }
            if lvs.insert(lv.name.as_str(), i).is_some() {
                let value = lv.name.clone();
                return Err(MetadataError::Duplicate { at: at(), what: "name", value });
            }
        }
        Ok(lvs)
    }

    fn check_lv(
        &self,
        lv: &LogicalVolume,
        lvs: &HashMap<&str, usize>,
    ) -> Result<(), MetadataError> {
        let path = || format!("{}/{}", self.name, lv.name);
        let mut expected = 0_u32;
        for segment in &lv.segments {
            if segment.start != expected {
                return Err(MetadataError::Gap { lv: path(), expected, found: segment.start });
            }
            expected = expected
                .checked_add(segment.count)
                .ok_or_else(|| MetadataError::TooLarge { at: path() })?;
            for name in segment.parts().into_iter().chain(mentions(segment)) {
                if !lvs.contains_key(name) {
                    let (at, name) = (path(), name.to_owned());
                    return Err(MetadataError::UnknownVolume { at, name });
                }
            }
            self.check_areas(lv, segment, lvs)?;
        }
        Ok(())
    }

    fn check_areas(
        &self,
        lv: &LogicalVolume,
        segment: &Segment,
        lvs: &HashMap<&str, usize>,
    ) -> Result<(), MetadataError> {
        let path = || format!("{}/{}", self.name, lv.name);
        let stripes = segment.areas().len().max(1) as u64;
        if let SegmentKind::Striped(_) = segment.kind
            && !u64::from(segment.count).is_multiple_of(stripes)
        {
            let (key, expected) = ("extent_count".into(), "a multiple of the stripe count");
            return Err(MetadataError::Invalid { at: path(), key, expected });
        }
        for area in segment.areas() {
            let (on, count) = match &area.on {
                AreaVolume::Pv(index) => match self.pvs.get(*index) {
                    Some(pv) => (format!("physical volume {}", pv.id), pv.pe_count),
                    None => {
                        let name = format!("pv{index}");
                        return Err(MetadataError::UnknownVolume { at: path(), name });
                    }
                },
                AreaVolume::Lv(name) => match lvs.get(name.as_str()) {
                    Some(index) => (name.clone(), self.lvs[*index].extents()),
                    None => {
                        let name = name.clone();
                        return Err(MetadataError::UnknownVolume { at: path(), name });
                    }
                },
            };
            let start = u64::from(area.start);
            let end = start + u64::from(segment.area_extents());
            if end > count.into() {
                return Err(MetadataError::PastTheEnd { lv: path(), on, start, end, count });
            }
        }
        Ok(())
    }

    /// No volume may be a part of itself, directly or indirectly.
    fn check_layers(&self, lvs: &HashMap<&str, usize>) -> Result<(), MetadataError> {
        let mut layers = vec![None; self.lvs.len()];
        for start in 0..self.lvs.len() {
            self.visit(start, lvs, &mut layers, 0)?;
        }
        Ok(())
    }

    /// `layers`: `None` not visited yet, `Some(None)` being visited, `Some(Some(n))` is on `n`
    /// layers. The recursion ends at [`MAX_LAYERS`].
    fn visit(
        &self,
        index: usize,
        lvs: &HashMap<&str, usize>,
        layers: &mut [Option<Option<usize>>],
        depth: usize,
    ) -> Result<usize, MetadataError> {
        let lv = &self.lvs[index];
        match layers[index] {
            Some(Some(below)) => return Ok(below),
            Some(None) => return Err(MetadataError::Cycle(format!("{}/{}", self.name, lv.name))),
            None => {}
        }
        let too_deep = || MetadataError::TooDeep(format!("{}/{}", self.name, lv.name));
        if depth >= MAX_LAYERS {
            return Err(too_deep());
        }
        layers[index] = Some(None);
        let mut below = 0;
        for part in lv.parts().filter_map(|name| lvs.get(name)) {
            below = below.max(1 + self.visit(*part, lvs, layers, depth + 1)?);
        }
        if below >= MAX_LAYERS {
            return Err(too_deep());
        }
        layers[index] = Some(Some(below));
        Ok(below)
    }

    /// No extent may be used twice.
    fn check_overlaps(&self) -> Result<(), MetadataError> {
        let used = |lv: usize| move |on: super::segment::PvExtents| (on, lv);
        let mut areas: Vec<_> =
            self.lvs.iter().enumerate().flat_map(|(i, lv)| lv.pv_extents().map(used(i))).collect();
        areas.sort_unstable();
        for pair in areas.windows(2) {
            let [(a, first), (b, second)] = pair else { continue };
            // Sorted, so `b` does not begin before `a`; checked before, so the ends do not overflow.
            if a.pv == b.pv && b.start < a.start.saturating_add(a.count) {
                return Err(MetadataError::Overlap {
                    on: format!("physical volume {}", self.pvs[a.pv].id),
                    extent: b.start,
                    first: self.lvs[*first].name.clone(),
                    second: self.lvs[*second].name.clone(),
                });
            }
        }
        Ok(())
    }

    /// Records for each unusable volume the reason.
    pub(super) fn mark_unsupported(&mut self) {
        let reasons: Vec<Option<String>> = self.lvs.iter().map(|lv| lv.own_defect()).collect();
        let index: HashMap<&str, usize> =
            self.lvs.iter().enumerate().map(|(i, lv)| (lv.name.as_str(), i)).collect();
        // From each unusable volume up to its users, each at most once.
        let mut users = vec![Vec::new(); self.lvs.len()];
        for (user, lv) in self.lvs.iter().enumerate() {
            // A snapshot of an unusable volume does not make that volume unusable; only the
            // snapshot is affected.
            for part in lv.parts().filter_map(|name| index.get(name)) {
                users[*part].push(user);
            }
        }
        let mut marks = reasons.clone();
        let mut work: Vec<usize> = (0..marks.len()).filter(|i| marks[*i].is_some()).collect();
        while let Some(part) = work.pop() {
            for user in &users[part] {
                if marks[*user].is_none() {
                    let why = marks[part].clone().unwrap_or_default();
                    let is_own = reasons[part].is_some();
                    let name = &self.lvs[part].name;
                    marks[*user] =
                        Some(if is_own { format!("of its part {name}: {why}") } else { why });
                    work.push(*user);
                }
            }
        }
        for (lv, mark) in self.lvs.iter_mut().zip(marks) {
            if lv.unsupported != mark {
                lv.unsupported = mark;
            }
        }
    }
}

/// Volumes that a segment names although they are not parts of it.
fn mentions(segment: &Segment) -> impl Iterator<Item = &str> {
    let thin = match &segment.kind {
        SegmentKind::Thin(thin) => Some(thin),
        SegmentKind::Striped(_)
        | SegmentKind::Mirror(_)
        | SegmentKind::Raid(_)
        | SegmentKind::Snapshot(_)
        | SegmentKind::ThinPool(_)
        | SegmentKind::Error
        | SegmentKind::Zero
        | SegmentKind::Foreign(_) => None,
    };
    let origin = thin.and_then(|thin| thin.origin.as_deref());
    origin.into_iter().chain(thin.and_then(|thin| thin.merge.as_deref()))
}

impl LogicalVolume {
    /// The volume's own unsupported feature.
    fn own_defect(&self) -> Option<String> {
        if let Some(word) = self.flags.unknown_status() {
            return Some(format!("its status {word:?} is not known"));
        }
        self.segments.iter().find_map(Segment::unsupported)
    }
}
