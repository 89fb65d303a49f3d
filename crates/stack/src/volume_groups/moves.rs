//! Moves of extents while their volumes are exported: `pvmove`.
//!
//! The group's metadata says what moves ([`ashlar_lvm::moving`]), so a move continues when the group is served again, also by the
//! kernel. The mapper's mirror copies one piece at a time. Once it is in sync, a change like any other commits the next metadata:
//! the devices above are suspended, the mirror flushes the new place and reports that it is complete, and only then the metadata
//! names that place. Until then every write goes to the old place, too. If it is unknown whether the commit took place, the
//! mirror stays: both places then have all writes.

use std::sync::Arc;

use ashlar_block::Sectors;
use ashlar_lvm::Uuid;
use ashlar_lvm::activate::dm_name;

use super::copying::CopyControl;
use super::{Change, Site, VolumeGroups};

/// A move under way.
#[derive(Clone)]
pub struct ServedMove {
    id: Uuid,
    /// The group.
    pub group: String,
    /// Its volume: `pvmove0`.
    pub name: String,
    /// The device that it leaves.
    pub source: String,
    /// What was copied.
    pub done: Sectors,
    /// What moves.
    pub total: Sectors,
    /// The state of the piece that is being copied.
    pub state: MovingState,
    /// The mirror of the piece.
    pub copying: CopyControl,
}

/// The state of a move's piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MovingState {
    /// It is being copied.
    Copying,
    /// Both places have everything: the new one can be relied upon once that is recorded.
    Copied,
    /// A place has failed.
    Failed,
    /// It could not be recorded, and the user was told.
    NotRecorded,
}

/// How far a mirror has been copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MirrorProgress {
    /// Regions that all legs have.
    pub synced: u64,
    /// All regions.
    pub regions: u64,
    /// Whether every leg but the first one works. The first one may have failed a read and be copied nevertheless.
    pub is_alive: bool,
}

impl MirrorProgress {
    /// Whether all legs have everything.
    pub fn is_synced(&self) -> bool {
        self.synced == self.regions
    }

    /// The share of `whole` that is copied.
    pub fn of(&self, whole: u64) -> u64 {
        whole * self.synced / self.regions.max(1)
    }
}

/// Reads a status line such as `0 8192 mirror 2 /dev/loop0 /dev/loop1 3/16 1 AA 1 core`; `None` if it is not a mirror's.
pub fn mirror_progress(line: &str) -> Option<MirrorProgress> {
    let mut words = line.split_ascii_whitespace().skip(2);
    if words.next()? != "mirror" {
        return None;
    }
    let legs = words.next()?.parse().ok()?;
    let (synced, regions) = words.nth(legs)?.split_once('/')?;
    let is_alive = words.nth(1)?.chars().skip(1).all(|leg| leg == 'A');
    Some(MirrorProgress { synced: synced.parse().ok()?, regions: regions.parse().ok()?, is_alive })
}

impl ServedMove {
    /// What it is called: `vg/pvmove0`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.group, self.name)
    }

    /// Whether the copying has ended early.
    pub async fn has_failed(&self) -> bool {
        self.state == MovingState::Failed
            || self.copying.tell("has_failed").await.as_deref() == Ok("1")
    }
}

impl VolumeGroups {
    /// The moves of active groups.
    pub(crate) fn moving(&self) -> Vec<ServedMove> {
        // Parsed texts are searched only if a device says that there is one.
        if !self.active.values().any(|active| active.devices.iter().any(super::LiveDevice::moves)) {
            return Vec::new();
        }
        let groups = self.found().groups;
        let mut all = Vec::new();
        for group in &groups {
            let (vg, place) = (&group.metadata.group, self.place(group));
            let Some(active) = self.active.get(&vg.id) else { continue };
            for moving in vg.moves() {
                let live = active.find(&dm_name(&vg.name, moving.name(), None));
                let Some((live, mapped)) = live.and_then(|it| Some((it, it.mapped.as_ref()?)))
                else {
                    continue;
                };
                let Some(running) = moving.running().map(|piece| piece.segment()) else { continue };
                let status = mapped.status();
                let progress = status.lines().find_map(mirror_progress);
                let piece = vg.sectors(running.count);
                let copied = progress.map_or(0, |progress| progress.of(piece.0));
                let state = match progress {
                    _ if live.is_told => MovingState::NotRecorded,
                    Some(progress) if !progress.is_alive => MovingState::Failed,
                    Some(progress) if progress.is_synced() => MovingState::Copied,
                    Some(_) => MovingState::Copying,
                    None => MovingState::Failed,
                };
                let source = moving.source().and_then(|index| place.path(index));
                all.push(ServedMove {
                    id: vg.id,
                    group: vg.name.clone(),
                    name: moving.name().to_owned(),
                    source: source.unwrap_or_else(|| "[unknown]".to_owned()),
                    done: vg.sectors(moving.moved()) + Sectors(copied),
                    total: vg.sectors(moving.extents()),
                    state,
                    copying: CopyControl {
                        mapped: Arc::clone(mapped),
                        at: vg.sectors(running.start).as_end(),
                    },
                });
            }
        }
        all
    }

    /// Plans that the piece which was copied counts at its new place.
    ///
    /// # Errors
    /// It is refused: the reason.
    pub(crate) fn prepare_advance(
        &self,
        moving: &ServedMove,
        site: &Site<'_>,
    ) -> Result<Change, String> {
        let mut change = self.prepare_with(&self.found(), moving.id, site, |group| {
            group.advance_move(&moving.name).map(drop).map_err(|error| error.to_string())
        })?;
        change.verify = Some((dm_name(&moving.group, &moving.name, None), moving.copying.at));
        // With the mirror both places have what is written later; without it only the new one.
        change.is_safe_ahead = false;
        Ok(change)
    }
}

#[cfg(test)]
mod tests {
    use super::mirror_progress;

    #[test]
    fn the_progress_is_read_from_the_line_of_a_mirror() {
        let mirror = |rest: &str| {
            let progress = mirror_progress(&format!("0 8192 mirror {rest}"))?;
            Some((progress.synced, progress.regions, progress.is_alive))
        };
        assert_eq!(mirror("2 /dev/a /dev/b 3/16 1 AA 1 core"), Some((3, 16, true)));
        assert_eq!(mirror("2 /dev/a /dev/b 3/16 1 RA 1 core"), Some((3, 16, true)));
        assert_eq!(mirror("2 /dev/a /dev/b 3/16 1 AD 1 core"), Some((3, 16, false)));
        assert_eq!(mirror("2 /dev/a /dev/b 3"), None);
        assert_eq!(mirror_progress("0 8192 linear "), None);
    }
}
