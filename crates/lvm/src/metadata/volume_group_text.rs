//! Parsing and printing of groups and volumes.

use std::collections::{HashMap, HashSet};

use ashlar_block::{Sector, Sectors};

use super::error::MetadataError;
use super::logical_volume::{Allocation, Creation, LogicalVolume};
use super::reader::{Reader, int, set_flags, tags_node};
use super::segment::Segment;
use super::segment_text::PvKeys;
use super::shared_volume::{SharedVolume, TextParameters};
use super::volume_group::{Bootloader, PhysicalVolume, VolumeGroup};
use crate::text::{Entry, Form, Node, Order, Section, print_inner};

/// The key of the section with the logical volumes.
pub(super) const LVS: &str = "logical_volumes";

const GROUP: Order = Order(&[
    "id",
    "seqno",
    "format",
    "status",
    "flags",
    "tags",
    "system_id",
    "lock_type",
    "lock_args",
    "pr",
    "extent_size",
    "max_lv",
    "max_pv",
    "\nallocation_policy",
    "profile",
    "metadata_copies",
    "\nphysical_volumes",
    "\nlogical_volumes",
    "\nhistorical_logical_volumes",
]);
const PV: Order = Order(&[
    "id",
    "device",
    "\ndevice_id_type",
    "device_id",
    "\nstatus",
    "flags",
    "tags",
    "dev_size",
    "pe_start",
    "pe_count",
    "ba_start",
    "ba_size",
]);
const LV: Order = Order(&[
    "id",
    "status",
    "flags",
    "tags",
    "creation_time",
    "creation_host",
    "lock_args",
    "allocation_policy",
    "profile",
    "read_ahead",
    "major",
    "minor",
    "segment_count",
]);

/// The value of an optional field.
fn optional_str(text: Option<&str>) -> Option<Node> {
    text.map(Node::str)
}

impl VolumeGroup {
    /// Parses the section of a group; references are not checked here.
    pub(super) fn read(name: &str, mut section: Section) -> Result<Self, MetadataError> {
        // Volumes are stored separately: the group keeps the rest.
        let mut volumes = [Section::default(), Section::default()];
        for (volumes, key) in volumes.iter_mut().zip(["physical_volumes", LVS]) {
            let entry = section.entries.iter_mut().find(|entry| entry.key == key);
            if let Some(Node::Section(found)) = entry.map(|entry| &mut entry.node) {
                *volumes = std::mem::take(found);
            }
        }
        let at = Reader::new(name, &section);
        let extent_size: u32 = at.number("extent_size")?;
        let allocation = at.optional_str("allocation_policy")?.map(Allocation::parse);
        let mut group = Self {
            name: name.into(),
            id: at.uuid("id")?,
            seqno: at.number("seqno")?,
            flags: at.flags()?,
            tags: at.tags()?,
            system_id: at.optional_str("system_id")?.map(Into::into),
            lock_type: at.optional_str("lock_type")?.map(Into::into),
            extent_size: Sectors(extent_size.into()),
            max_lv: at.number("max_lv")?,
            max_pv: at.number("max_pv")?,
            allocation,
            metadata_copies: at.optional_number("metadata_copies")?.unwrap_or_default(),
            pvs: Vec::new(),
            lvs: Vec::new(),
            kept: Section::default(),
        };
        let [pvs, lvs] = &volumes;
        let keys = group.read_pvs(&at.inner("physical_volumes", pvs))?;
        group.read_lvs(&at.inner(LVS, lvs), &keys)?;
        group.kept = section;
        Ok(group)
    }

    fn read_pvs<'a>(&mut self, at: &Reader<'a>) -> Result<PvKeys<'a>, MetadataError> {
        let mut keys = HashMap::new();
        for (key, section) in at.sections() {
            if keys.insert(key, self.pvs.len()).is_some() {
                let (at, value) = (at.to_string(), key.into());
                return Err(MetadataError::Duplicate { at, what: "name", value });
            }
            let at = Reader::inner(at, key, section);
            self.pvs.push(PhysicalVolume::read(&at)?);
        }
        Ok(keys)
    }

    fn read_lvs(&mut self, at: &Reader<'_>, pvs: &PvKeys<'_>) -> Result<(), MetadataError> {
        let mut names = HashSet::new();
        for (name, section) in at.sections() {
            if !names.insert(name) {
                let (at, value) = (at.to_string(), name.into());
                return Err(MetadataError::Duplicate { at, what: "name", value });
            }
            let at = Reader::inner(at, name, section);
            self.lvs.push(LogicalVolume::read(&at, name, pvs)?.into());
        }
        self.mark_unsupported();
        Ok(())
    }

    /// The section to print.
    pub(super) fn write(&self) -> Section {
        let mut section = self.write_frame();
        let lvs = self.in_order().map(|lv| lv.entry()).collect();
        fill(&mut section, LVS, lvs, false);
        section
    }

    /// The logical volumes in the order of the text: LVM writes visible volumes first.
    fn in_order(&self) -> impl Iterator<Item = &SharedVolume> {
        let seen = self.visible();
        [true, false].into_iter().flat_map(move |visible| {
            let these = self.lvs.iter().zip(seen.clone());
            these.filter_map(move |(lv, seen)| (seen == visible).then_some(lv))
        })
    }

    /// The entries of the logical volumes, printed; `frame` is the section without them.
    pub(super) fn print_lvs(&self, frame: &Section, form: Form) -> String {
        let parameters = TextParameters { form, extent_size: self.extent_size };
        let none = Section::default();
        let path = [(self.name.as_str(), frame), (LVS, &none)];
        let mut all = String::new();
        for lv in self.in_order() {
            let print = |lv: &LogicalVolume| print_inner(&lv.entry(), &path, form);
            lv.text(parameters, print, |text| all.push_str(text));
        }
        all
    }

    /// The section to print, without the logical volumes: their section, if there are any, is empty.
    pub(super) fn write_frame(&self) -> Section {
        let mut section = self.kept.clone();
        let is_new = section.entries.is_empty();
        section.set("id", Node::str(self.id.to_string()), GROUP);
        section.set("seqno", Node::int(self.seqno), GROUP);
        if is_new {
            section.set("format", Node::str("lvm2"), GROUP);
        }
        set_flags(&mut section, &self.flags, GROUP);
        section.set_or_remove("tags", tags_node(&self.tags), GROUP);
        section.set_or_remove("system_id", optional_str(self.system_id.as_deref()), GROUP);
        section.set_or_remove("lock_type", optional_str(self.lock_type.as_deref()), GROUP);
        section.set("extent_size", int(self.extent_size.0), GROUP);
        section.set("max_lv", Node::int(self.max_lv), GROUP);
        section.set("max_pv", Node::int(self.max_pv), GROUP);
        let allocation = self.allocation.as_ref().map(|allocation| Node::str(allocation.word()));
        section.set_or_remove("allocation_policy", allocation, GROUP);
        if is_new || self.metadata_copies != 0 {
            section.set("metadata_copies", Node::int(self.metadata_copies), GROUP);
        }
        let pvs = self
            .pvs
            .iter()
            .enumerate()
            .map(|(i, pv)| Entry::new(pv_key(i), pv.write()).after_blank_line());
        fill(&mut section, "physical_volumes", pvs.collect(), true);
        fill(&mut section, LVS, Vec::new(), !self.lvs.is_empty());
        // Blank lines follow the sections of volumes, even if these are left out.
        let last = section.entries.last().map_or("", |entry| entry.key.as_str());
        let blank = if last == "physical_volumes" { "\n\n" } else { "\n" };
        if last != "historical_logical_volumes" && (is_new || section.tail.trim().is_empty()) {
            section.tail = blank.into();
        }
        section
    }
}

/// LVM renumbers physical volumes at every write.
fn pv_key(index: usize) -> String {
    format!("pv{index}")
}

/// Puts volumes into their section of the group; an empty section is left out, unless it is required.
fn fill(group: &mut Section, key: &str, volumes: Vec<Entry>, always: bool) {
    let tail = group.section(key).map(|old| old.tail.clone()).unwrap_or_default();
    if volumes.is_empty() && !always {
        return group.remove(key);
    }
    let section = Section { entries: volumes, tail };
    group.set(key, Node::Section(section), GROUP);
}

impl PhysicalVolume {
    fn read(at: &Reader<'_>) -> Result<Self, MetadataError> {
        let start: Option<u64> = at.optional_number("ba_start")?;
        let size: Option<u64> = at.optional_number("ba_size")?;
        let bootloader = match (start.unwrap_or(0), size.unwrap_or(0)) {
            (0, 0) => None,
            (0, _) => return Err(at.missing("ba_start")),
            (_, 0) => return Err(at.missing("ba_size")),
            (start, size) => Some(Bootloader { start: Sector(start), size: Sectors(size) }),
        };
        Ok(Self {
            id: at.uuid("id")?,
            device: at.optional_str("device")?.map(Into::into),
            flags: at.flags()?,
            tags: at.tags()?,
            dev_size: at.optional_sectors("dev_size")?,
            pe_start: Sector(at.number("pe_start")?),
            pe_count: at.number("pe_count")?,
            bootloader,
            kept: at.section.clone(),
        })
    }

    fn write(&self) -> Node {
        let mut section = self.kept.clone();
        section.set("id", Node::str(self.id.to_string()), PV);
        // LVM also writes a name for a missing device.
        let device = self.device.as_deref().unwrap_or("[unknown]");
        if self.device.is_some() || section.entries.len() == 1 {
            section.set("device", Node::str(device), PV);
        }
        set_flags(&mut section, &self.flags, PV);
        section.set_or_remove("tags", tags_node(&self.tags), PV);
        section.set_or_remove("dev_size", self.dev_size.map(|size| int(size.0)), PV);
        section.set("pe_start", int(self.pe_start.0), PV);
        section.set("pe_count", Node::int(self.pe_count), PV);
        let area = self.bootloader;
        section.set_or_remove("ba_start", area.map(|area| int(area.start.0)), PV);
        section.set_or_remove("ba_size", area.map(|area| int(area.size.0)), PV);
        Node::Section(section)
    }
}

impl LogicalVolume {
    fn read(at: &Reader<'_>, name: &str, pvs: &PvKeys<'_>) -> Result<Self, MetadataError> {
        let creation = match at.optional_number("creation_time")? {
            Some(time) => Some(Creation { time, host: at.str("creation_host")?.into() }),
            None => None,
        };
        let mut segments = Vec::new();
        for (key, section) in at.sections() {
            segments.push(Segment::read(&at.inner(key, section), pvs)?);
        }
        if segments.len() != at.number::<usize>("segment_count")? {
            return Err(at.invalid("segment_count", "the number of segments that follow"));
        }
        let allocation = at.optional_str("allocation_policy")?.map(Allocation::parse);
        let mut kept = at.section.clone();
        kept.entries.retain(|entry| entry.node.as_section().is_none());
        Ok(Self {
            name: name.into(),
            id: at.uuid("id")?,
            flags: at.flags()?,
            tags: at.tags()?,
            creation,
            allocation,
            read_ahead: at.optional_number("read_ahead")?,
            segments,
            unsupported: None,
            kept,
        })
    }

    /// Its entry in the section of the group.
    fn entry(&self) -> Entry {
        Entry::new(&*self.name, self.write()).after_blank_line()
    }

    fn write(&self) -> Node {
        let mut section = self.kept.clone();
        section.set("id", Node::str(self.id.to_string()), LV);
        set_flags(&mut section, &self.flags, LV);
        section.set_or_remove("tags", tags_node(&self.tags), LV);
        let creation = self.creation.as_ref();
        section.set_or_remove("creation_time", creation.map(|made| int(made.time)), LV);
        section.set_or_remove("creation_host", creation.map(|made| Node::str(&made.host)), LV);
        let allocation = self.allocation.as_ref().map(|allocation| Node::str(allocation.word()));
        section.set_or_remove("allocation_policy", allocation, LV);
        section.set_or_remove("read_ahead", self.read_ahead.map(Node::int), LV);
        section.set("segment_count", int(self.segments.len() as u64), LV);
        for (i, segment) in (1..).zip(&self.segments) {
            let mut entry =
                Entry::new(format!("segment{i}"), Node::Section(segment.write(&pv_key)));
            if i == 1 {
                entry = entry.after_blank_line();
            }
            section.entries.push(entry);
        }
        Node::Section(section)
    }
}
