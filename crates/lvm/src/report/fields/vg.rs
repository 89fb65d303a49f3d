//! Volume groups.

use std::rc::Rc;

use super::{Field, Kind, Row, Value, field};
use crate::metadata::{Allocation, VgFlag, VolumeGroup};
use crate::report::GroupFacts;
use crate::uuid::Uuid;

/// A volume group.
pub struct VgRow(pub Rc<GroupFacts>);

pub(super) fn allocation_letter(allocation: Option<&Allocation>) -> char {
    match allocation {
        None | Some(Allocation::Normal) => 'n',
        Some(Allocation::Contiguous) => 'c',
        Some(Allocation::Cling) => 'l',
        Some(Allocation::ClingByTags) => 'C',
        Some(Allocation::Anywhere) => 'a',
        Some(Allocation::Other(_)) => '-',
    }
}

impl VgRow {
    /// Its identity.
    pub fn id(&self) -> Uuid {
        self.group().id
    }

    pub(in crate::report) fn group(&self) -> &VolumeGroup {
        self.0.metadata()
    }

    /// The number of volumes that users see.
    pub(in crate::report) fn visible(&self) -> usize {
        self.0.visible.iter().filter(|seen| **seen).count()
    }

    fn attributes(&self) -> String {
        let group = self.group();
        let has = |flag| group.flags.contains(&flag);
        let shared = match (has(VgFlag::Clustered), group.lock_manager().is_some()) {
            (true, _) => 'c',
            (false, true) => 's',
            (false, false) => '-',
        };
        [
            if self.is_writable() { 'w' } else { 'r' },
            if has(VgFlag::Resizeable) { 'z' } else { '-' },
            if has(VgFlag::Exported) { 'x' } else { '-' },
            if self.0.group.is_complete() { '-' } else { 'p' },
            allocation_letter(group.allocation.as_ref()),
            shared,
        ]
        .iter()
        .collect()
    }

    pub(in crate::report) fn is_writable(&self) -> bool {
        let flags = &self.group().flags;
        flags.contains(&VgFlag::Write) || flags.contains(&VgFlag::WriteLocked)
    }

    /// Its extents.
    pub(in crate::report) fn extents(&self) -> u32 {
        self.group().pvs.iter().fold(0, |sum: u32, pv| sum.saturating_add(pv.pe_count))
    }

    /// The extents that no volume uses.
    pub(in crate::report) fn free(&self) -> u32 {
        u32::try_from(self.group().free_map().total()).unwrap_or(u32::MAX)
    }
}

impl Row for VgRow {
    const NAME: &'static str = "vg";
    const DEFAULT: &'static [&'static str] =
        &["vg_name", "pv_count", "lv_count", "snap_count", "vg_attr", "vg_size", "vg_free"];
    const SORTED_BY: &'static str = "vg_name";
    const FIELDS: &'static [(&'static str, &'static [Field<Self>])] = &[("vg", &fields())];

    fn vg(&self) -> Option<Self> {
        Some(Self(Rc::clone(&self.0)))
    }
}

/// The fields of the group that a row belongs to; those of no group are empty.
pub(super) const fn fields<R: Row>() -> [Field<R>; 17] {
    [
        field(Kind::Text, "vg_name", "VG", "name of the group", |row: &R| {
            text(row, |vg| vg.group().name.clone())
        }),
        field(Kind::Text, "vg_uuid", "VG UUID", "identity of the group", |row: &R| {
            text(row, |vg| vg.group().id.to_string())
        }),
        field(Kind::Text, "vg_fmt", "Fmt", "format of the group", |_| Value::Text("lvm2".into())),
        field(
            Kind::Text,
            "vg_attr",
            "Attr",
            "writable, resizeable, exported, partial, allocation, clustered or shared",
            |row: &R| {
                let attributes = row.vg().map(|vg| vg.attributes());
                Value::Text(attributes.unwrap_or_else(|| "r-----".into()))
            },
        ),
        field(Kind::Size, "vg_size", "VSize", "size of the group", |row: &R| {
            size(row, |vg| vg.extents())
        }),
        field(Kind::Size, "vg_free", "VFree", "space that no volume uses", |row: &R| {
            size(row, |vg| vg.free())
        }),
        field(Kind::Size, "vg_extent_size", "Ext", "size of an extent", |row: &R| size(row, |_| 1)),
        field(Kind::Number, "vg_extent_count", "#Ext", "extents", |row: &R| {
            number(row, |vg| vg.extents().into())
        }),
        field(Kind::Number, "vg_free_count", "Free", "extents that no volume uses", |row: &R| {
            number(row, |vg| vg.free().into())
        }),
        field(Kind::Number, "pv_count", "#PV", "physical volumes", |row: &R| {
            number(row, |vg| vg.group().pvs.len() as u64)
        }),
        field(Kind::Number, "vg_missing_pv_count", "#PV Missing", "missing ones", |row: &R| {
            number(row, |vg| vg.0.group.missing().count() as u64)
        }),
        field(Kind::Number, "lv_count", "#LV", "logical volumes", |row: &R| {
            number(row, |vg| vg.visible() as u64)
        }),
        field(Kind::Number, "snap_count", "#SN", "snapshots", |row: &R| {
            number(row, |vg| vg.group().snapshots().count() as u64)
        }),
        field(Kind::Number, "vg_seqno", "Seq", "changes so far", |row: &R| {
            number(row, |vg| vg.group().seqno.into())
        }),
        field(Kind::Text, "vg_systemid", "SystemID", "the host that owns the group", |row: &R| {
            text(row, |vg| vg.group().system_id.clone().unwrap_or_default())
        }),
        field(
            Kind::Text,
            "vg_lock_type",
            "VLockType",
            "the lock manager of a shared group",
            |row: &R| text(row, |vg| vg.group().lock_manager().unwrap_or_default().to_owned()),
        ),
        field(Kind::List, "vg_tags", "VG Tags", "words for the administrator", |row: &R| {
            Value::List(row.vg().map_or_else(Vec::new, |vg| vg.group().tags.clone()))
        }),
    ]
}

fn text<R: Row>(row: &R, get: impl Fn(&VgRow) -> String) -> Value {
    Value::Text(row.vg().map_or_else(String::new, |vg| get(&vg)))
}

fn number<R: Row>(row: &R, get: impl Fn(&VgRow) -> u64) -> Value {
    Value::Number(row.vg().map_or(0, |vg| get(&vg)))
}

/// The size of `get` extents.
fn size<R: Row>(row: &R, get: impl Fn(&VgRow) -> u32) -> Value {
    let sectors = row.vg().map(|vg| vg.group().sectors(get(&vg)));
    Value::Size(sectors.unwrap_or_default())
}
