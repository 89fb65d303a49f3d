//! Volume groups.

use std::rc::Rc;

use super::{AreaFacts, Field, Item, PvFacts, Value, empty, flag, number, size, tags, text};
use crate::metadata::{Allocation, VgFlag, VolumeGroup};
use crate::report::GroupFacts;
use crate::report::PresentVolume;
use crate::uuid::Uuid;

/// A volume group.
#[derive(Clone)]
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

fn vg(row: &Item) -> Option<&VgRow> {
    row.vg.as_ref()
}

fn group(row: &Item) -> Option<&VolumeGroup> {
    row.vg.as_ref().map(VgRow::group)
}

fn has(row: &Item, wanted: VgFlag) -> Value {
    flag(group(row), |group| group.flags.contains(&wanted))
}

/// The size of so many extents.
fn extents(row: &Item, get: impl FnOnce(&VgRow) -> u32) -> Value {
    size(vg(row), |vg| vg.group().sectors(get(vg)))
}

/// The labels of its physical volumes.
fn labels(vg: &VgRow) -> impl Iterator<Item = &PvFacts> {
    vg.0.physical.iter().flatten().map(|PresentVolume { facts, .. }| facts)
}

fn used_areas(vg: &VgRow) -> impl Iterator<Item = &AreaFacts> {
    labels(vg).flat_map(PvFacts::used_areas)
}

/// What groups say; a physical volume of no group is shown with what LVM says of none.
pub(super) const FIELDS: &[Field<Item>] = table! { Vg;
    Text "vg_fmt" "Fmt" "metadata format"
        |row| text(vg(row), |_| "lvm2".into());
    Text "vg_uuid" "VG UUID" "UUID"
        |row| text(group(row), |group| group.id.to_string());
    Text "vg_name" "VG" "name"
        |row| text(group(row), |group| group.name.clone());
    Text "vg_attr" "Attr" "writable, resizeable, exported, partial, allocation, clustered or shared"
        |row| Value::Text(vg(row).map_or_else(|| "r-----".into(), VgRow::attributes));
    Text "vg_permissions" "VPerms" "writeable or read-only"
        |row| {
            let is_writable = vg(row).is_some_and(VgRow::is_writable);
            Value::Text(if is_writable { "writeable" } else { "read-only" }.to_owned())
        };
    Flag["extendable"] "vg_extendable" "Extendable" "physical volumes may be added"
        |row| has(row, VgFlag::Resizeable);
    Flag["exported"] "vg_exported" "Exported" "it is exported"
        |row| has(row, VgFlag::Exported);
    Flag["enabled"] "vg_autoactivation" "AutoAct" "it is activated when the host starts"
        |row| {
            let is_off = group(row).is_some_and(|it| it.flags.contains(&VgFlag::NoAutoActivate));
            Value::Flag(Some(!is_off))
        };
    Flag["partial"] "vg_partial" "Partial" "a physical volume is missing"
        |row| flag(vg(row), |vg| !vg.0.group.is_complete());
    Text "vg_allocation_policy" "AllocPol" "allocation policy"
        |row| {
            let policy = |group: &VolumeGroup| match &group.allocation {
                Some(policy) => policy.word().to_owned(),
                None => "normal".to_owned(),
            };
            Value::Text(group(row).map_or_else(|| "unknown".into(), policy))
        };
    Flag["clustered"] "vg_clustered" "Clustered" "it belongs to a cluster of the old kind"
        |row| has(row, VgFlag::Clustered);
    Flag["shared"] "vg_shared" "Shared" "hosts share it through a lock manager"
        |row| flag(group(row), |group| group.lock_manager().is_some());
    Size "vg_size" "VSize" "size"
        |row| extents(row, VgRow::extents);
    Size "vg_free" "VFree" "space that no volume uses"
        |row| extents(row, VgRow::free);
    Text "vg_sysid" "SYS ID" "same as vg_systemid"
        |row| text(group(row), |group| group.system_id.clone().unwrap_or_default());
    Text "vg_systemid" "System ID" "system ID of the host that owns it"
        |row| text(group(row), |group| group.system_id.clone().unwrap_or_default());
    Text "vg_lock_type" "LockType" "type of lock manager of a shared group"
        |row| text(group(row), |group| group.lock_manager().unwrap_or_default().to_owned());
    Text "vg_lock_args" "VLockArgs" "lock manager arguments"
        |row| text(group(row).and_then(VolumeGroup::lock_args), str::to_owned);
    Text "vg_persist" "PRSet" "persistent reservation settings; unknown here"
        empty;
    Text "vg_pr" "PR" "whether its disks are reserved; unknown here"
        empty;
    Size "vg_extent_size" "Ext" "size of an extent"
        |row| extents(row, |_| 1);
    Number "vg_extent_count" "#Ext" "number of extents"
        |row| number(vg(row), |vg| vg.extents().into());
    Number "vg_free_count" "Free" "number of extents that no volume uses"
        |row| number(vg(row), |vg| vg.free().into());
    Number "max_lv" "MaxLV" "maximum number of logical volumes; 0: no limit"
        |row| number(group(row), |group| group.max_lv.into());
    Number "max_pv" "MaxPV" "maximum number of physical volumes; 0: no limit"
        |row| number(group(row), |group| group.max_pv.into());
    Number "pv_count" "#PV" "number of physical volumes"
        |row| number(group(row), |group| group.pvs.len() as u64);
    Number "vg_missing_pv_count" "#PV Missing" "number of missing physical volumes"
        |row| number(vg(row), |vg| vg.0.group.missing().count() as u64);
    Number "lv_count" "#LV" "number of logical volumes"
        |row| number(vg(row), |vg| vg.visible() as u64);
    Number "snap_count" "#SN" "number of snapshots"
        |row| number(group(row), |group| group.snapshots().count() as u64);
    Number "vg_seqno" "Seq" "sequence number of the metadata: changes so far"
        |row| number(group(row), |group| group.seqno.into());
    List "vg_tags" "VG Tags" "tags"
        |row| tags(group(row), |group| group.tags.clone());
    Text "vg_profile" "VProfile" "configuration profile"
        |row| text(group(row).and_then(VolumeGroup::profile), str::to_owned);
    Number "vg_mda_count" "#VMda" "number of metadata areas"
        |row| number(vg(row), |vg| labels(vg).map(|it| it.areas.len() as u64).sum());
    Number "vg_mda_used_count" "#VMdaUse" "number of metadata areas in use"
        |row| number(vg(row), |vg| used_areas(vg).count() as u64);
    Size "vg_mda_free" "VMdaFree" "free space for metadata"
        |row| size(vg(row), |vg| AreaFacts::least(used_areas(vg), AreaFacts::free));
    Size "vg_mda_size" "VMdaSize" "size of the smallest metadata area in use"
        |row| size(vg(row), |vg| AreaFacts::least(used_areas(vg), AreaFacts::size));
    Number "vg_mda_copies" "#VMdaCps" "number of metadata areas to keep in use"
        |row| match group(row).map_or(0, |group| group.metadata_copies) {
            0 => Value::Undefined("unmanaged"),
            copies => Value::Number(copies.into()),
        };
};
