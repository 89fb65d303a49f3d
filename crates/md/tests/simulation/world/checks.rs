//! What is looked at from outside.

use std::sync::Arc;

use ashlar_block::{Bio, Flags, Sector, Sectors};
use ashlar_md::Array;
use ashlar_sim::{Rng, Value};

use super::World;
use crate::common::gateway;

impl World {
    /// Whether nothing is known of a sector.
    pub(crate) fn is_undefined(&self, sector: u64) -> bool {
        self.oracle.allowed(sector).contains(&Value::Anything)
    }

    /// Reads everything, in pieces of any size. What is undefined since the last life, and may differ
    /// from copy to copy, is written first.
    pub(crate) async fn settle(&self, array: &Arc<Array>, rng: &mut Rng) {
        let volume = gateway(array);
        // What a killed process left in the disks' caches is there for good now.
        let flush = self.oracle.begin_flush();
        self.oracle.end(flush, volume.flush().await);
        let mut at = 0;
        while let Some(from) = (at..self.size).find(|sector| self.is_undefined(*sector)) {
            at = (from..self.size).find(|at| !self.is_undefined(*at)).unwrap_or(self.size);
            let ticket = self.oracle.begin_write_zeroes(from..at, Flags::FUA);
            let zeroes = Bio::write_zeroes(Sector(from), Sectors(at - from));
            self.oracle.end(ticket, volume.submit(zeroes.with_flags(Flags::FUA)).await);
        }
        let mut at = 0;
        while at < self.size {
            let to = self.size.min(at + self.block * (1 + rng.below(200)));
            let ticket = self.oracle.begin_read(at..to);
            let data = volume.read(Sector(at), Sectors(to - at)).await;
            let data = data.unwrap_or_else(|e| panic!("{:?}: sector {at}: {e}", self.shape));
            let checked = self.oracle.check_read(ticket, data.as_slice());
            checked.unwrap_or_else(|violation| panic!("{:?}: {violation}", self.shape));
            at = to;
        }
    }

    /// All copies on members in sync are the same, but for what was discarded, and blocks that are
    /// known to be bad.
    pub(crate) fn check_copies(&self, array: &Array) {
        for sector in 0..self.size {
            let mut held = Vec::new();
            for at in array.personality().map(Sector(sector)) {
                for (_, rdev) in array.members().both(at.disk).filter(|(_, r)| r.is_in_sync()) {
                    let on_disk = at.sector + rdev.data_offset();
                    if rdev.bad_blocks().check(on_disk, Sectors(1)).is_none() {
                        let disk = self.disk_at(rdev.path());
                        held.push((disk, self.media[disk].peek(on_disk)));
                    }
                }
            }
            assert!(!held.is_empty(), "{:?}: no copy of sector {sector}", self.shape);
            let same = held.iter().all(|(_, data)| *data == held[0].1);
            let who = || held.iter().map(|(disk, _)| *disk).collect::<Vec<_>>();
            let fine = same || self.is_undefined(sector);
            assert!(fine, "{:?}: copies of sector {sector} on {:?} differ", self.shape, who());
        }
    }

    /// Nothing but what is the array's has changed.
    pub(crate) fn check_outside(&self) {
        for (disk, ((medium, places), new)) in
            self.media.iter().zip(&self.places).zip(&self.new).enumerate()
        {
            for part in medium.diff(new) {
                let beside = part.clone().find(|sector| !places.hold(*sector));
                assert!(beside.is_none(), "{:?}: {part:?} of disk {disk} changed", self.shape);
            }
        }
    }
}
