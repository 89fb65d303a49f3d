//! The planner: from a volume to the devices that it is made of, each once, the lowest first.

use std::collections::{BTreeMap, BTreeSet};

use ashlar_block::{Sector, Sectors};
use ashlar_dm::text::Line;

use super::{DeviceSource, Options, Plan, PlannedDevice, RAID_KINDS, RaidParts, Refusal, dm_name};
use crate::metadata::{
    Area, AreaVolume, LogicalVolume, Segment, SegmentKind, Snapshot, SnapshotOf, StripeAreas,
    VolumeGroup,
};
use crate::moving::Move;

type Result<T> = std::result::Result<T, Refusal>;

/// Plans the devices of all visible volumes. `pv` returns the device name of the physical volume
/// with an index; `None` if it is missing.
pub fn plan(group: &VolumeGroup, options: Options, pv: &dyn Fn(usize) -> Option<String>) -> Plan {
    let visible = group.lvs.iter().zip(group.visible());
    let seen = visible.filter(|(_, seen)| *seen).map(|(lv, _)| lv.name.as_str()).collect();
    let (plan, made) = (Plan::default(), BTreeMap::new());
    let snapshots = group.snapshots().collect();
    let mut planner = Planner { group, options, pv, seen, snapshots, plan, made };
    // A move continues whether its volumes are active or not.
    for lv in group.lvs.iter().filter(|lv| Move::of(lv).is_some()) {
        planner.volume(lv).ok();
    }
    for lv in &group.lvs {
        if !planner.is_seen(lv) || is_pool(lv) {
            continue;
        }
        if let Err(why) = planner.volume(lv) {
            planner.plan.refused.push((lv.name.clone(), why));
        }
    }
    planner.plan
}

/// Whether it is a pool: pools are visible, but have no data of their own.
fn is_pool(lv: &LogicalVolume) -> bool {
    lv.segments.iter().any(|segment| matches!(segment.kind, SegmentKind::ThinPool(_)))
}

struct Planner<'a> {
    group: &'a VolumeGroup,
    options: Options,
    pv: &'a dyn Fn(usize) -> Option<String>,
    /// The volumes that users see.
    seen: BTreeSet<&'a str>,
    /// What ties snapshots to origins.
    snapshots: Vec<SnapshotOf<'a>>,
    plan: Plan,
    /// The result for each requested volume and layer: a volume may be part of several.
    made: BTreeMap<String, Result<()>>,
}

impl<'a> Planner<'a> {
    fn is_seen(&self, lv: &LogicalVolume) -> bool {
        self.seen.contains(lv.name.as_str())
    }

    fn lv(&self, name: &str) -> Result<&'a LogicalVolume> {
        let unknown = || Refusal::Unsupported(format!("there is no volume {name}"));
        self.group.lv(name).ok_or_else(unknown)
    }

    fn is_read_only(&self, lv: &LogicalVolume) -> bool {
        self.options.read_only || !lv.is_writable()
    }

    /// Plans the visible device of a volume, with its parts; returns its name.
    fn volume(&mut self, lv: &'a LogicalVolume) -> Result<String> {
        let name = dm_name(&self.group.name, &lv.name, None);
        self.once(name, |planner, name| planner.make_volume(lv, name))
    }

    fn once(
        &mut self,
        name: String,
        make: impl FnOnce(&mut Self, &str) -> Result<()>,
    ) -> Result<String> {
        if !self.made.contains_key(&name) {
            let before = self.plan.devices.len();
            let made = make(self, &name);
            if made.is_err() {
                // Parts without other users are not made either.
                self.forget(before);
            }
            self.made.insert(name.clone(), made);
        }
        match &self.made[&name] {
            Ok(()) => Ok(name),
            Err(why) => Err(why.clone()),
        }
    }

    /// Removes the devices from `before` on, unless they are volumes or parts of such.
    fn forget(&mut self, before: usize) {
        let mut wanted = BTreeSet::new();
        let mut kept = Vec::new();
        for device in self.plan.devices.drain(before..).rev() {
            if device.volume.is_some() || wanted.contains(&device.name) {
                wanted.extend(device.made_of.parts().into_iter().map(str::to_owned));
                kept.push(device);
            } else {
                self.made.remove(&device.name);
            }
        }
        self.plan.devices.extend(kept.into_iter().rev());
    }

    fn make_volume(&mut self, lv: &'a LogicalVolume, name: &str) -> Result<()> {
        if let Some(why) = &lv.unsupported {
            return Err(Refusal::Unsupported(why.clone()));
        }
        if let Some(snapshot) = self.snapshots.iter().find(|found| found.snapshot.cow == lv.name) {
            return self.snapshot(lv, snapshot.snapshot, name);
        }
        if self.snapshots.iter().any(|found| found.snapshot.origin == lv.name) {
            return self.origin(lv, name);
        }
        let made_of = self.segments(lv)?;
        self.add(lv, name, made_of);
        Ok(())
    }

    fn add(&mut self, lv: &LogicalVolume, name: &str, made_of: DeviceSource) {
        self.plan.devices.push(PlannedDevice {
            name: name.to_owned(),
            volume: self.is_seen(lv).then(|| lv.name.clone()),
            uuid: self.is_seen(lv).then_some(lv.id),
            size: self.group.size(lv),
            read_only: self.is_read_only(lv),
            made_of,
        });
    }

    /// Plans a layer below a volume: the volume's segments, under a separate name.
    fn layer(&mut self, lv: &'a LogicalVolume, layer: &str) -> Result<String> {
        let name = dm_name(&self.group.name, &lv.name, Some(layer));
        self.once(name, |planner, name| {
            let made_of = planner.segments(lv)?;
            let size = planner.group.size(lv);
            // An origin may be writable though its snapshot is not, and a store although nothing
            // writes to the snapshot: the layers above decide what is writable.
            let read_only = planner.options.read_only;
            let name = name.to_owned();
            planner.plan.devices.push(PlannedDevice {
                name,
                volume: None,
                uuid: None,
                size,
                read_only,
                made_of,
            });
            Ok(())
        })
    }

    fn snapshot_line(&mut self, kind: &str, snapshot: &'a Snapshot, size: Sectors) -> Result<Line> {
        let (origin, cow) = (self.lv(&snapshot.origin)?, self.lv(&snapshot.cow)?);
        let args = vec![
            self.layer(origin, "real")?,
            self.layer(cow, "cow")?,
            "P".to_owned(),
            snapshot.chunk_size.to_string(),
        ];
        Ok(Line { start: Sector::ZERO, len: size, kind: kind.to_owned(), args })
    }

    fn snapshot(&mut self, lv: &LogicalVolume, snapshot: &'a Snapshot, name: &str) -> Result<()> {
        let size = self.group.size(self.lv(&snapshot.origin)?);
        let line = self.snapshot_line("snapshot", snapshot, size)?;
        self.add(lv, name, DeviceSource::Table(vec![line]));
        if let Some(made) = self.plan.devices.last_mut() {
            made.size = size;
        }
        Ok(())
    }

    /// An origin comes after its snapshots: it is not written, and nothing is merged into it,
    /// before they exist to preserve its data. If one of them is unusable, the origin is read-only.
    fn origin(&mut self, lv: &'a LogicalVolume, name: &str) -> Result<()> {
        let group = self.group;
        let size = group.size(lv);
        let mut lost = Vec::new();
        for found in group.snapshots_of(&lv.name).filter(|found| !found.snapshot.merging) {
            let snapshot = self.lv(&found.snapshot.cow)?;
            if self.volume(snapshot).is_err() {
                lost.push(snapshot.name.clone());
            }
        }
        let merging = group.snapshots_of(&lv.name).find(|found| found.snapshot.merging);
        let line = match merging {
            // Unmerged data is read from the store, the rest is already in the origin.
            Some(found) if self.is_read_only(lv) || !lost.is_empty() => {
                self.snapshot_line("snapshot", found.snapshot, size)?
            }
            Some(found) => self.snapshot_line("snapshot-merge", found.snapshot, size)?,
            None => {
                let args = vec![self.layer(lv, "real")?];
                Line { start: Sector::ZERO, len: size, kind: "snapshot-origin".to_owned(), args }
            }
        };
        self.add(lv, name, DeviceSource::Table(vec![line]));
        if let Some(made) = self.plan.devices.last_mut()
            && !lost.is_empty()
        {
            made.read_only = true;
            let text = format!(
                "can only be read: its snapshot {} cannot be used now, and writes would \
                 invalidate it; to write nevertheless, remove the snapshot with lvremove",
                lost.join(", ")
            );
            self.plan.notes.push((lv.name.clone(), text));
        }
        Ok(())
    }

    /// Converts the segments of a volume.
    fn segments(&mut self, lv: &'a LogicalVolume) -> Result<DeviceSource> {
        if let Some(why) = &lv.unsupported {
            return Err(Refusal::Unsupported(why.clone()));
        }
        if let [segment] = &lv.segments[..]
            && let Some(made_of) = self.whole(lv, segment)?
        {
            return Ok(made_of);
        }
        let mut lines = Vec::with_capacity(lv.segments.len());
        for (index, segment) in lv.segments.iter().enumerate() {
            lines.push(self.line(lv, index, segment)?);
        }
        Ok(DeviceSource::Table(lines))
    }

    /// Converts a segment that is more than a line of a table; such a volume has no other segments.
    fn whole(&mut self, lv: &LogicalVolume, segment: &'a Segment) -> Result<Option<DeviceSource>> {
        Ok(Some(match &segment.kind {
            SegmentKind::Raid(raid) => {
                let known = RAID_KINDS.iter().find(|(level, _)| *level == raid.level);
                let Some((_, kind)) = known else {
                    let level = raid.level.name();
                    return Err(Refusal::Unsupported(format!("{level} is not supported")));
                };
                let mut legs = Vec::with_capacity(raid.images.len());
                for image in &raid.images {
                    let meta = image.meta.as_deref().map(|name| self.leg(name)).transpose()?;
                    legs.push((meta.flatten(), self.leg(&image.data)?));
                }
                let (stripe, copies) = (raid.stripe_size, raid.data_copies);
                DeviceSource::Raid(RaidParts { kind: *kind, legs, stripe, copies })
            }
            SegmentKind::ThinPool(pool) => DeviceSource::ThinPool {
                metadata: self.part(&pool.metadata)?,
                data: self.part(&pool.data)?,
                chunk: pool.chunk_size,
            },
            SegmentKind::Thin(thin) => {
                if thin.merge.is_some() {
                    let name = &lv.name;
                    let why = format!("{name} is being merged, which is not supported");
                    return Err(Refusal::Unsupported(why));
                }
                let pool = self.lv(&thin.pool)?;
                let external = thin.external_origin.as_deref();
                DeviceSource::Thin {
                    pool: self.layer(pool, "tpool").map_err(|why| of_part(&pool.name, why))?,
                    device_id: thin.device_id,
                    external_origin: external.map(|name| self.part(name)).transpose()?,
                }
            }
            SegmentKind::Striped(_)
            | SegmentKind::Mirror(_)
            | SegmentKind::Snapshot(_)
            | SegmentKind::Error
            | SegmentKind::Zero
            | SegmentKind::Foreign(_) => return Ok(None),
        }))
    }

    /// A leg of a RAID; `None` if it is missing, because the RAID may run without it.
    fn leg(&mut self, name: &str) -> Result<Option<String>> {
        let partial = std::mem::replace(&mut self.options.partial, false);
        let made = self.part(name);
        self.options.partial = partial;
        match made {
            Ok(name) => Ok(Some(name)),
            Err(Refusal::Part { why, .. }) if matches!(*why, Refusal::Missing(_)) => Ok(None),
            Err(why) => Err(why),
        }
    }

    fn part(&mut self, name: &str) -> Result<String> {
        let lv = self.lv(name)?;
        self.volume(lv).map_err(|why| of_part(name, why))
    }

    fn line(&mut self, lv: &LogicalVolume, index: usize, segment: &'a Segment) -> Result<Line> {
        let (start, len) = (self.group.sectors(segment.start), self.group.sectors(segment.count));
        let line =
            |kind: &str, args| Line { start: start.as_end(), len, kind: kind.to_owned(), args };
        let unsupported = |what: String| Err(Refusal::Unsupported(what));
        match &segment.kind {
            SegmentKind::Striped(striped) => {
                let mut args = Vec::new();
                if striped.areas.len() > 1 {
                    args.push(striped.areas.len().to_string());
                    args.push(stripe_size(striped).to_string());
                }
                for (number, area) in striped.areas.iter().enumerate() {
                    match self.area(area, segment)? {
                        Some(place) => args.extend(place),
                        None if striped.areas.len() == 1 => return Ok(line("error", Vec::new())),
                        None => args.extend(self.error_device(lv, index, number, segment)),
                    }
                }
                let kind = if striped.areas.len() > 1 { "striped" } else { "linear" };
                Ok(line(kind, args))
            }
            SegmentKind::Error => Ok(line("error", Vec::new())),
            SegmentKind::Zero => Ok(line("zero", Vec::new())),
            SegmentKind::Mirror(_) => match Move::of(lv) {
                Some(moving) => {
                    let (kind, args) = self.piece(moving, index, segment)?;
                    Ok(line(kind, args))
                }
                None => {
                    unsupported("mirrors of the old kind are not supported (raid1 is)".to_owned())
                }
            },
            SegmentKind::Snapshot(_) => unsupported("it only ties a snapshot".to_owned()),
            SegmentKind::Raid(_) | SegmentKind::ThinPool(_) | SegmentKind::Thin(_) => {
                unsupported("a RAID or thin segment beside another one".to_owned())
            }
            SegmentKind::Foreign(foreign) => {
                unsupported(format!("segments of type {} are not known", foreign.name))
            }
        }
    }

    /// A piece of a move: one is copied at a time, the others are where they count.
    fn piece(
        &mut self,
        moving: Move<'_>,
        index: usize,
        segment: &Segment,
    ) -> Result<(&'static str, Vec<String>)> {
        let unknown = || Refusal::Unsupported("a piece of a move without its place".to_owned());
        let piece = moving.pieces().nth(index).ok_or_else(unknown)?;
        let runs = moving.running().is_some_and(|running| std::ptr::eq(running.segment(), segment));
        if !runs || self.options.read_only {
            return Ok(match self.area(piece.place(), segment)? {
                Some(place) => ("linear", place.to_vec()),
                None => ("error", Vec::new()),
            });
        }
        let mut args = vec!["core".to_owned(), "1".to_owned(), piece.region().to_string()];
        args.push(piece.areas().len().to_string());
        for area in piece.areas() {
            match self.area(area, segment)? {
                Some(place) => args.extend(place),
                // Nothing can be copied.
                None => return Ok(("error", Vec::new())),
            }
        }
        Ok(("mirror", args))
    }

    /// Device and first sector of an area; `None` if it is missing and `partial` is set.
    fn area(&mut self, area: &Area, segment: &Segment) -> Result<Option<[String; 2]>> {
        match &area.on {
            AreaVolume::Lv(name) => {
                let start = self.group.sectors(area.start);
                Ok(Some([self.part(name)?, start.to_string()]))
            }
            AreaVolume::Pv(index) => {
                let on = crate::metadata::PvExtents {
                    pv: *index,
                    start: area.start,
                    count: segment.area_extents(),
                };
                let (Some(pv), Some(start)) =
                    (self.group.pvs.get(*index), self.group.extent_start(on))
                else {
                    return Err(Refusal::Unsupported("an extent beyond its disk".to_owned()));
                };
                match (self.pv)(*index) {
                    Some(device) => Ok(Some([device, start.to_string()])),
                    None if self.options.partial => Ok(None),
                    None => Err(Refusal::Missing(pv.id)),
                }
            }
        }
    }

    /// A device in place of a missing stripe, on which all I/O fails.
    fn error_device(
        &mut self,
        lv: &LogicalVolume,
        segment: usize,
        area: usize,
        of: &Segment,
    ) -> [String; 2] {
        let layer = format!("missing_{segment}_{area}");
        let name = dm_name(&self.group.name, &lv.name, Some(&layer));
        let size = self.group.sectors(of.area_extents());
        let kind = "error".to_owned();
        let line = Line { start: Sector::ZERO, len: size, kind, args: Vec::new() };
        self.plan.devices.push(PlannedDevice {
            name: name.clone(),
            volume: None,
            uuid: None,
            size,
            read_only: self.options.read_only,
            made_of: DeviceSource::Table(vec![line]),
        });
        [name, "0".to_owned()]
    }
}

fn stripe_size(striped: &StripeAreas) -> Sectors {
    striped.stripe_size.unwrap_or(Sectors::ZERO)
}

fn of_part(name: &str, why: Refusal) -> Refusal {
    match why {
        // Report the innermost part: that is where the user must act.
        Refusal::Part { .. } => why,
        Refusal::Unsupported(_) | Refusal::Missing(_) => {
            Refusal::Part { part: name.to_owned(), why: Box::new(why) }
        }
    }
}
