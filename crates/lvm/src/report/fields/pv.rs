//! Physical volumes.

use std::rc::Rc;

use ashlar_block::Sectors;

use super::{Field, Kind, Row, Value, VgRow, field, vg};
use crate::group::MemberState;
use crate::metadata::{PhysicalVolume, PvFlag, VgFlag, VolumeGroup};
use crate::pv::PvOnDisk;
use crate::report::{GroupFacts, PresentVolume};
use crate::uuid::Uuid;

/// A physical volume.
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

    /// What its label says, if it is present.
    pub(in crate::report) fn label(&self) -> Option<&PvFacts> {
        match self {
            Self::Member { facts, index } => {
                facts.physical.get(*index)?.as_ref().map(|physical| &physical.facts)
            }
            Self::Free(physical) => Some(&physical.facts),
        }
    }

    pub(in crate::report) fn uuid(&self) -> String {
        let id = self.member().map(|pv| pv.id).or(self.label().map(|label| label.uuid));
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
        let Some((group, _)) = self.group() else {
            let used = self.label().is_some_and(|label| label.is_used);
            return if used { "u--" } else { "---" }.into();
        };
        let has = |flag| self.member().is_some_and(|pv| pv.flags.contains(&flag));
        let letter = |set, letter| if set { letter } else { '-' };
        [
            // A volume of a group that is not allocatable is only used.
            if has(PvFlag::Allocatable) { 'a' } else { 'u' },
            letter(group.flags.contains(&VgFlag::Exported), 'x'),
            letter(self.is_missing(), 'm'),
        ]
        .iter()
        .collect()
    }
}

impl Row for PvRow {
    const NAME: &'static str = "pv";
    const DEFAULT: &'static [&'static str] =
        &["pv_name", "vg_name", "pv_fmt", "pv_attr", "pv_size", "pv_free"];
    const SORTED_BY: &'static str = "pv_name";
    const FIELDS: &'static [(&'static str, &'static [Field<Self>])] =
        &[("pv", FIELDS), ("vg", &vg::fields())];

    fn vg(&self) -> Option<VgRow> {
        match self {
            Self::Member { facts, .. } => Some(VgRow(Rc::clone(facts))),
            Self::Free(_) => None,
        }
    }
}

const FIELDS: &[Field<PvRow>] = &[
    field(Kind::Text, "pv_name", "PV", "the device", |row| Value::Text(row.device().to_owned())),
    field(Kind::Text, "pv_uuid", "PV UUID", "the identity", |row| Value::Text(row.uuid())),
    field(Kind::Text, "pv_fmt", "Fmt", "the format", |_| Value::Text("lvm2".into())),
    field(Kind::Text, "pv_attr", "Attr", "allocatable, exported, missing", |row| {
        Value::Text(row.attributes())
    }),
    field(Kind::Size, "pv_size", "PSize", "the size, in extents if it is in a group", |row| {
        Value::Size(row.size())
    }),
    field(Kind::Size, "pv_free", "PFree", "what no volume uses", |row| Value::Size(row.free())),
    field(Kind::Size, "pv_used", "Used", "what volumes use", |row| {
        Value::Size(row.size() - row.free())
    }),
    field(Kind::Size, "dev_size", "DevSize", "the size of the device", |row| {
        Value::Size(row.device_size())
    }),
    field(Kind::Size, "pe_start", "1st PE", "where the first extent begins", |row| {
        Value::Size(row.member().map_or(Sectors::ZERO, |pv| Sectors(pv.pe_start.0)))
    }),
    field(Kind::Number, "pv_pe_count", "PE", "its extents", |row| {
        Value::Number(row.extents().into())
    }),
    field(Kind::Number, "pv_mda_count", "#PMda", "metadata areas", |row| {
        Value::count(row.label().map_or(0, |label| label.areas))
    }),
    field(Kind::List, "pv_tags", "PV Tags", "words for the administrator", |row| {
        Value::List(row.member().map_or_else(Vec::new, |pv| pv.tags.clone()))
    }),
];
