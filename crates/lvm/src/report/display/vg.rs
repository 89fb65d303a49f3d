//! The display of groups.

use super::{EMPTY, Lines, lv};
use crate::metadata::VgFlag;
use crate::report::{Units, VgRow};

/// What both forms say.
struct Numbers {
    open: usize,
    present: usize,
    all: u32,
    free: u32,
}

impl Numbers {
    fn of(row: &VgRow) -> Self {
        let group = row.group();
        let is_open = |name: &str| row.0.states.get(name).is_some_and(|state| state.is_open);
        let seen = group.lvs.iter().zip(&row.0.visible).filter(|(_, seen)| **seen);
        Self {
            open: seen.filter(|(lv, _)| is_open(&lv.name)).count(),
            present: row.0.physical.iter().flatten().count(),
            all: row.extents(),
            free: row.free(),
        }
    }

    fn used(&self) -> u32 {
        self.all.saturating_sub(self.free)
    }
}

pub(super) fn long(row: &VgRow, units: &Units) -> String {
    let group = row.group();
    let has = |flag| group.flags.contains(&flag);
    let numbers = Numbers::of(row);
    let size = |extents| units.long(group.sectors(extents));
    let areas: usize = row.0.physical.iter().flatten().map(|pv| pv.facts.areas.len()).sum();
    let mut lines = Lines::new("Volume group", 22);
    lines.add("VG Name", &group.name);
    lines.add("System ID", group.system_id.as_deref().unwrap_or_default());
    lines.add("Format", "lvm2");
    lines.add("Metadata Areas", areas);
    lines.add("Metadata Sequence No", group.seqno);
    lines.add("VG Access", if row.is_writable() { "read/write" } else { "read" });
    let exported = if has(VgFlag::Exported) { "exported/" } else { "" };
    let resizable = if has(VgFlag::Resizeable) { "resizable" } else { "NOT resizable" };
    lines.add("VG Status", format_args!("{exported}{resizable}"));
    lines.add("MAX LV", group.max_lv);
    lines.add("Cur LV", row.visible());
    lines.add("Open LV", numbers.open);
    lines.add("Max PV", group.max_pv);
    lines.add("Cur PV", group.pvs.len());
    lines.add("Act PV", numbers.present);
    lines.add("VG Size", size(numbers.all));
    lines.add("PE Size", size(1));
    lines.add("Total PE", numbers.all);
    let (used, free) = (numbers.used(), numbers.free);
    lines.add("Alloc PE / Size", format_args!("{used} / {}", size(used)));
    lines.add("Free  PE / Size", format_args!("{free} / {}", size(free)));
    lines.add("VG UUID", group.id);
    lines.text + EMPTY
}

/// A group, its volumes, and its physical volumes.
pub(super) fn whole(row: &VgRow, units: &Units) -> String {
    let volumes: String = row.0.lvs(false).map(|row| lv::long(&row, units, false)).collect();
    let mut lines = Lines::new("Physical volumes", 22);
    for pv in row.0.pvs() {
        let is_allocatable = pv.member().is_some_and(|pv| pv.is_allocatable());
        lines.add("PV Name", format_args!("{}     ", pv.device()));
        lines.add("PV UUID", pv.uuid());
        lines.add("PV Status", if is_allocatable { "allocatable" } else { "NOT allocatable" });
        let numbers = format_args!("{} / {}", pv.extents(), pv.free_extents());
        lines.add("Total PE / Free PE", numbers);
        lines.text += EMPTY;
    }
    format!("{}{volumes}{}", long(row, units), lines.text)
}

pub(super) fn short(row: &VgRow, units: &Units) -> String {
    let (group, numbers) = (row.group(), Numbers::of(row));
    let size = |extents| units.long(group.sectors(extents));
    format!(
        "  \"{}\" {} [{} used / {} free]\n",
        group.name,
        size(numbers.all),
        size(numbers.used()),
        size(numbers.free),
    )
}

pub(super) fn colons(row: &VgRow) -> String {
    let (group, numbers) = (row.group(), Numbers::of(row));
    // The bits of LVM's own flags.
    let bits = [
        (VgFlag::Exported, 2),
        (VgFlag::Resizeable, 4),
        (VgFlag::Read, 0x100),
        (VgFlag::Write, 0x200),
    ];
    let status: u32 =
        bits.iter().filter(|(flag, _)| group.flags.contains(flag)).map(|(_, bit)| bit).sum();
    let kib = |extents| group.sectors(extents).0 / 2;
    format!(
        "  {}:{}:{status}:-1:{}:{}:{}:-1:{}:{}:{}:{}:{}:{}:{}:{}:{}\n",
        group.name,
        if row.is_writable() { "r/w" } else { "r" },
        group.max_lv,
        row.visible(),
        numbers.open,
        group.max_pv,
        group.pvs.len(),
        numbers.present,
        kib(numbers.all),
        kib(1),
        numbers.all,
        numbers.used(),
        numbers.free,
        group.id,
    )
}
