//! The display of logical volumes.

use super::{EMPTY, Lines, maps};
use crate::metadata::{Allocation, LogicalVolume, RaidLevel, SegmentKind};
use crate::report::value::Percent;
use crate::report::{LvRow, LvState, Units};
use crate::text::dates;

pub(super) fn long(row: &LvRow, units: &Units, with_maps: bool) -> String {
    let (group, Some(lv)) = (row.group(), row.lv()) else { return String::new() };
    let mut lines = Lines::new("Logical volume", 23);
    if let Some(path) = row.path() {
        lines.add("LV Path", path);
    }
    lines.add(if row.is_seen() { "LV Name" } else { "Internal LV Name" }, &lv.name);
    lines.add("VG Name", &group.name);
    lines.add("LV UUID", lv.id);
    lines.add("LV Write Access", if lv.is_writable() { "read/write" } else { "read only" });
    let creation = lv.creation.as_ref();
    let creation = creation.map(|made| format!("{}, {}", made.host, dates::stamp(made.time, 0)));
    lines.add("LV Creation host, time", creation.as_deref().unwrap_or(", "));
    snapshots(row, lv, &mut lines);
    if let Some(pool) = row.first().and_then(SegmentKind::as_thin_pool) {
        lines.add("LV Pool metadata", &pool.metadata);
        lines.add("LV Pool data", &pool.data);
    }
    if let Some(thin) = row.first().and_then(SegmentKind::as_thin) {
        lines.add("LV Pool name", &thin.pool);
        if let Some(origin) = &thin.origin {
            lines.add("LV Thin origin name", origin);
        }
        if let Some(origin) = &thin.external_origin {
            lines.add("LV External origin name", origin);
        }
    }
    let is_partial = row.facts.group.needs_missing(&lv.name).is_some();
    let status = if row.state().is_some() { "available" } else { "NOT available" };
    lines.add("LV Status", format_args!("{status}{}", if is_partial { " (partial)" } else { "" }));
    if let Some(state) = row.state() {
        lines.add("# open", u8::from(state.is_open));
    }
    let snapshot = group.snapshot_in(&lv.name).map(|found| found.snapshot);
    // Users see a snapshot with the size of its origin.
    let shown = snapshot.and_then(|snapshot| group.lv(&snapshot.origin)).unwrap_or(lv);
    lines.add("LV Size", units.long(group.size(shown)));
    lines.add("Current LE", shown.extents());
    if let Some(snapshot) = snapshot {
        lines.add("COW-table size", units.long(group.size(lv)));
        lines.add("COW-table LE", lv.extents());
        if let Some(used) = row.state().filter(|state| !state.is_invalid()).and_then(LvState::used)
        {
            lines.add("Allocated to snapshot", format_args!("{}%", Percent::show(used)));
        }
        lines.add("Snapshot chunk size", units.long(snapshot.chunk_size));
    }
    if let Some(copies) = copies(row) {
        lines.add("Mirrored volumes", copies);
    }
    lines.add("Segments", lv.segments.len());
    lines.add("Allocation", allocation(lv));
    let read_ahead = lv.read_ahead.map(|sectors| sectors.max(0).to_string());
    lines.add("Read ahead sectors", read_ahead.as_deref().unwrap_or("auto"));
    if let Some((major, minor)) = lv.device_numbers() {
        lines.add("Persistent major", major);
        lines.add("Persistent minor", minor);
    }
    let maps = if with_maps { maps::of_lv(row, units) } else { String::new() };
    lines.text + EMPTY + &maps
}

/// Which snapshots an origin has, or that it is one.
fn snapshots(row: &LvRow, lv: &LogicalVolume, lines: &mut Lines) {
    let group = row.group();
    let state = |store: &str| match row.facts.states.get(store) {
        Some(state) if !state.is_invalid() => "active",
        Some(_) | None => "INACTIVE",
    };
    let mut of = group.snapshots_of(&lv.name).peekable();
    if of.peek().is_some() {
        lines.add("LV snapshot status", "source of");
    }
    for found in of {
        let store = &found.snapshot.cow;
        lines.add("", format_args!("{store} [{}]", state(store)));
    }
    if let Some(found) = group.snapshot_in(&lv.name) {
        let (state, origin) = (state(&lv.name), &found.snapshot.origin);
        lines.add("LV snapshot status", format_args!("{state} destination for {origin}"));
    }
}

/// The number of copies of a mirror.
fn copies(row: &LvRow) -> Option<usize> {
    match row.first()? {
        SegmentKind::Mirror(mirror) => Some(mirror.areas.len()),
        SegmentKind::Raid(raid) => {
            let is_mirror = matches!(raid.level, RaidLevel::Raid1 | RaidLevel::Raid10);
            is_mirror.then_some(raid.images.len())
        }
        SegmentKind::Striped(_)
        | SegmentKind::Snapshot(_)
        | SegmentKind::ThinPool(_)
        | SegmentKind::Thin(_)
        | SegmentKind::Error
        | SegmentKind::Zero
        | SegmentKind::Foreign(_) => None,
    }
}

pub(super) fn allocation(lv: &LogicalVolume) -> &str {
    lv.allocation.as_ref().map_or("inherit", Allocation::word)
}

pub(super) fn colons(row: &LvRow) -> String {
    let (group, Some(lv)) = (row.group(), row.lv()) else { return String::new() };
    let state = row.state();
    // The bits of LVM's own flags.
    let status = match (lv.is_writable(), state) {
        (true, _) => 3,
        (false, None) => 1,
        (false, Some(_)) => 5,
    };
    format!(
        "  /dev/{}/{}:{}:{status}:{}:-1:{}:{}:{}:-1:{}:{}:-1:-1\n",
        group.name,
        lv.name,
        group.name,
        u8::from(state.is_some()),
        u8::from(state.is_some_and(|state| state.is_open)),
        row.size().0,
        lv.extents(),
        if lv.allocation == Some(Allocation::Contiguous) { 2 } else { 0 },
        lv.read_ahead.map_or(-1, |sectors| sectors.max(0)),
    )
}
