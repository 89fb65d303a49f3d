//! Physical volumes.

use std::rc::Rc;

use ashlar_block::Sectors;
use serde::{Deserialize, Serialize};

use super::{Field, Item, Value, empty, flag, number, size, tags, text};
use crate::group::MemberState;
use crate::metadata::{Bootloader, PhysicalVolume, PvFlag, VgFlag, VolumeGroup};
use crate::ondisk::Range;
use crate::ondisk::layout::SECTOR_SIZE;
use crate::pv::{MetadataArea, PvOnDisk};
use crate::report::{GroupFacts, PresentVolume};

/// A physical volume.
#[derive(Clone)]
pub enum PvRow {
    /// One of a group, which may be missing.
    Member {
        /// The group.
        facts: Rc<GroupFacts>,
        /// Its index there.
        index: usize,
    },
    /// One of no group.
    Free(PresentVolume),
}

/// What the label of a physical volume says, and its metadata areas.
#[derive(Clone, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct PvFacts {
    /// The size of the device in bytes.
    pub size_bytes: u64,
    /// Whether it belongs to a group.
    pub is_used: bool,
    /// The version of the label's extension, if it has one.
    pub extension: Option<u32>,
    /// Where its data begins, in bytes.
    pub data_start: u64,
    /// The first byte and the size of the space for a boot loader.
    pub bootloader: Option<(u64, u64)>,
    /// The metadata areas.
    pub areas: Vec<AreaFacts>,
}

/// A metadata area.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct AreaFacts {
    /// Its size.
    pub size_bytes: u64,
    /// How much larger the text may grow.
    pub free_bytes: u64,
    /// Whether the group keeps no copy of its metadata there.
    pub is_ignored: bool,
}

impl AreaFacts {
    fn of(area: &MetadataArea) -> Self {
        let header = area.state.as_ref().ok().map(|contents| &contents.header);
        let size_bytes = header.map_or(area.place.size, |header| header.area.size);
        // The old and the new text share what the header leaves of the area; LVM keeps a sector of each half.
        let sector = SECTOR_SIZE as u64;
        let most = (size_bytes.saturating_sub(sector) / 2).saturating_sub(sector);
        let text = header.and_then(|header| header.current.as_ref()).map_or(0, |text| text.size);
        let free = most.saturating_sub(text) / sector * sector;
        let is_ignored = header.is_some_and(|header| header.ignored);
        Self { size_bytes, free_bytes: free, is_ignored }
    }

    pub(super) fn size(&self) -> Sectors {
        Sectors::from_bytes_floor(self.size_bytes)
    }

    pub(super) fn free(&self) -> Sectors {
        Sectors::from_bytes_floor(self.free_bytes)
    }

    /// The least of a property of areas.
    pub(super) fn least<'a>(
        areas: impl IntoIterator<Item = &'a Self>,
        get: fn(&Self) -> Sectors,
    ) -> Sectors {
        areas.into_iter().map(get).min().unwrap_or_default()
    }
}

impl PvFacts {
    /// The facts of a physical volume.
    pub fn of(pv: &PvOnDisk) -> Self {
        let label = &pv.label;
        let bootloader = label.extension.as_ref().and_then(|it| it.bootloader_areas.first());
        Self {
            size_bytes: label.device_size,
            is_used: label.is_used(),
            extension: label.extension.as_ref().map(|extension| extension.version),
            data_start: label.data_areas.first().map_or(0, |area| area.offset),
            bootloader: bootloader.map(|Range { offset, size }| (*offset, *size)),
            areas: pv.areas.iter().map(AreaFacts::of).collect(),
        }
    }

    /// The metadata areas in use.
    pub(super) fn used_areas(&self) -> impl Iterator<Item = &AreaFacts> {
        self.areas.iter().filter(|area| !area.is_ignored)
    }
}

impl PvRow {
    /// Its device; `[unknown]` if it is missing.
    pub fn device(&self) -> &str {
        match self {
            Self::Member { facts, index } => facts.device(*index),
            Self::Free(physical) => &physical.path,
        }
    }

    /// Its group, if it has one.
    pub fn facts(&self) -> Option<&GroupFacts> {
        match self {
            Self::Member { facts, .. } => Some(facts),
            Self::Free(_) => None,
        }
    }

    pub(in crate::report) fn group(&self) -> Option<(&VolumeGroup, usize)> {
        match self {
            Self::Member { facts, index } => Some((facts.metadata(), *index)),
            Self::Free(_) => None,
        }
    }

    /// As its group describes it.
    pub(in crate::report) fn member(&self) -> Option<&PhysicalVolume> {
        self.group().and_then(|(group, index)| group.pvs.get(index))
    }

    fn present(&self) -> Option<&PresentVolume> {
        match self {
            Self::Member { facts, index } => facts.physical.get(*index)?.as_ref(),
            Self::Free(physical) => Some(physical),
        }
    }

    /// What its label says, if it is present.
    pub(in crate::report) fn label(&self) -> Option<&PvFacts> {
        self.present().map(|physical| &physical.facts)
    }

    /// Where its data begins.
    fn data_start(&self) -> Sectors {
        let label = self.label().map(|label| Sectors::from_bytes_floor(label.data_start));
        self.member().map_or(label.unwrap_or_default(), |pv| Sectors(pv.pe_start.0))
    }

    /// The first sector and the size of the space for a boot loader.
    fn bootloader(&self) -> (Sectors, Sectors) {
        if let Some(member) = self.member() {
            let space = member.bootloader.as_ref();
            return space.map_or_else(Default::default, |Bootloader { start, size }| {
                (Sectors(start.0), *size)
            });
        }
        let (start, size) = self.label().and_then(|label| label.bootloader).unwrap_or_default();
        (Sectors::from_bytes_floor(start), Sectors::from_bytes_floor(size))
    }

    fn has(&self, flag: PvFlag) -> bool {
        self.member().is_some_and(|pv| pv.flags.contains(&flag))
    }

    fn is_exported(&self) -> bool {
        self.group().is_some_and(|(group, _)| group.flags.contains(&VgFlag::Exported))
    }

    fn is_in_use(&self) -> bool {
        self.group().is_some() || self.label().is_some_and(|label| label.is_used)
    }

    pub(in crate::report) fn uuid(&self) -> String {
        let id = self.member().map(|pv| pv.id).or(self.present().map(|physical| physical.uuid));
        id.map_or_else(String::new, |id| id.to_string())
    }

    pub(in crate::report) fn size(&self) -> Sectors {
        match self.group() {
            Some((group, _)) => group.sectors(self.extents()),
            None => self.device_size(),
        }
    }

    /// The size of its device, as its label says.
    pub(in crate::report) fn device_size(&self) -> Sectors {
        Sectors::from_bytes_floor(self.label().map_or(0, |label| label.size_bytes))
    }

    pub(in crate::report) fn extents(&self) -> u32 {
        self.member().map_or(0, |pv| pv.pe_count)
    }

    /// The extents that no volume uses.
    pub(in crate::report) fn free_extents(&self) -> u32 {
        let free = self.group().map_or(0, |(group, index)| group.free_map().on(index));
        u32::try_from(free).unwrap_or(u32::MAX)
    }

    pub(in crate::report) fn free(&self) -> Sectors {
        match self.group() {
            Some((group, _)) => group.sectors(self.free_extents()),
            None => self.size(),
        }
    }

    pub(in crate::report) fn is_missing(&self) -> bool {
        match self {
            Self::Member { facts, index } => matches!(
                facts.group.members.get(*index),
                Some(MemberState::Missing | MemberState::Returned(_)) | None
            ),
            Self::Free(_) => false,
        }
    }

    fn attributes(&self) -> String {
        if self.group().is_none() {
            return if self.is_in_use() { "u--" } else { "---" }.into();
        }
        let letter = |set, letter| if set { letter } else { '-' };
        [
            // A volume of a group that is not allocatable is only used.
            if self.has(PvFlag::Allocatable) { 'a' } else { 'u' },
            letter(self.is_exported(), 'x'),
            letter(self.is_missing(), 'm'),
        ]
        .iter()
        .collect()
    }
}

fn pv(row: &Item) -> Option<&PvRow> {
    row.pv.as_ref()
}

fn label(row: &Item) -> Option<&PvFacts> {
    row.pv.as_ref()?.label()
}

/// What labels say.
pub(super) const LABEL: &[Field<Item>] = table! { Pv;
    Text "pv_fmt" "Fmt" "metadata format"
        |_| Value::Text("lvm2".into());
    Text "pv_uuid" "PV UUID" "UUID"
        |row| text(pv(row), PvRow::uuid);
    Size "dev_size" "DevSize" "size of the device"
        |row| size(pv(row), PvRow::device_size);
    Text "pv_name" "PV" "device"
        |row| text(pv(row), |pv| pv.device().to_owned());
    Number "pv_major" "Maj" "major number of the device; 0 for a file"
        |row| number(pv(row).and_then(PvRow::present), |it| it.numbers.0.into());
    Number "pv_minor" "Min" "minor number of the device; 0 for a file"
        |row| number(pv(row).and_then(PvRow::present), |it| it.numbers.1.into());
    Size "pv_mda_free" "PMdaFree" "free space for metadata"
        |row| size(label(row), |it| AreaFacts::least(&it.areas, AreaFacts::free));
    Size "pv_mda_size" "PMdaSize" "size of the smallest metadata area"
        |row| size(label(row), |it| AreaFacts::least(&it.areas, AreaFacts::size));
    Number "pv_ext_vsn" "PExtVsn" "version of the label's extension"
        |row| Value::defined(label(row).map(|label| label.extension.unwrap_or(0).into()));
};

/// What groups say of their members.
pub(super) const VOLUME: &[Field<Item>] = table! { Pv;
    Size "pe_start" "1st PE" "offset of the first extent"
        |row| size(pv(row), PvRow::data_start);
    Size "pv_size" "PSize" "size; in a group, that of its extents"
        |row| size(pv(row), PvRow::size);
    Size "pv_free" "PFree" "space that no volume uses"
        |row| size(pv(row), PvRow::free);
    Size "pv_used" "Used" "space that volumes use"
        |row| size(pv(row), |pv| pv.size() - pv.free());
    Text "pv_attr" "Attr" "allocatable, exported, missing"
        |row| text(pv(row), PvRow::attributes);
    Flag["allocatable"] "pv_allocatable" "Allocatable" "extents may be allocated on it"
        |row| flag(pv(row), |pv| pv.has(PvFlag::Allocatable));
    Flag["exported"] "pv_exported" "Exported" "its group is exported"
        |row| flag(pv(row), PvRow::is_exported);
    Flag["missing"] "pv_missing" "Missing" "it is missing"
        |row| flag(pv(row), PvRow::is_missing);
    Number "pv_pe_count" "PE" "number of extents"
        |row| number(pv(row), |pv| pv.extents().into());
    Number "pv_pe_alloc_count" "Alloc" "number of extents that volumes use"
        |row| number(pv(row), |pv| pv.extents().saturating_sub(pv.free_extents()).into());
    List "pv_tags" "PV Tags" "tags"
        |row| tags(pv(row).and_then(PvRow::member), |pv| pv.tags.clone());
    Number "pv_mda_count" "#PMda" "number of metadata areas"
        |row| number(label(row), |label| label.areas.len() as u64);
    Number "pv_mda_used_count" "#PMdaUse" "number of metadata areas in use"
        |row| number(label(row), |label| label.used_areas().count() as u64);
    Size "pv_ba_start" "BA Start" "offset of the boot loader area"
        |row| size(pv(row), |pv| pv.bootloader().0);
    Size "pv_ba_size" "BA Size" "size of the boot loader area"
        |row| size(pv(row), |pv| pv.bootloader().1);
    Flag["used" "in use"] "pv_in_use" "PInUse" "it belongs to a group"
        |row| flag(pv(row), PvRow::is_in_use);
    Flag["duplicate"] "pv_duplicate" "Duplicate" "it is a copy of another physical volume: copies are not listed"
        |_| Value::Flag(Some(false));
    Text "pv_device_id" "DeviceID" "ID in the devices file, which is not read"
        empty;
    Text "pv_device_id_type" "DeviceIDType" "type of that ID"
        empty;
};

/// Extents of physical volumes.
pub(super) const PIECE: &[Field<Item>] = table! { Piece;
    Number "pvseg_start" "Start" "first extent"
        |row| number(row.piece, |piece| piece.start.into());
    Number "pvseg_size" "SSize" "number of extents"
        |row| number(row.piece, |piece| piece.count.into());
};
