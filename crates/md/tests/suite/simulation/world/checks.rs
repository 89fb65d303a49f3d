//! Checks of an array from outside.

use std::ops::Range;
use std::sync::Arc;

use ashlar_block::{Bio, Buffer, Flags, Sector, Sectors};
use ashlar_md::internals::bitmap::Purpose;
use ashlar_md::internals::personality::Personality;
use ashlar_md::internals::raid5::Geometry;
use ashlar_md::internals::raid10::geometry::Location;
use ashlar_md::{Array, Bitmap, SyncRequest};
use ashlar_sim::oracle::stamp;
use ashlar_sim::{Rng, Value};

use super::World;
use crate::common::gateway;
use crate::parity::{power, times};

impl World {
    /// Whether a sector may hold anything.
    pub(crate) fn is_undefined(&self, sector: u64) -> bool {
        self.oracle.allowed(sector).contains(&Value::Anything)
    }

    /// Flushes the array.
    pub(crate) async fn flush(&self, array: &Arc<Array>) {
        let flush = self.oracle.begin_flush();
        self.oracle.end(flush, gateway(array).flush().await);
    }

    /// Reads everything, in pieces of random size. Sectors that are undefined since the last life, and may
    /// differ between copies, are written first.
    pub(crate) async fn settle(&self, array: &Arc<Array>, rng: &mut Rng) {
        if self.ppl.is_some() {
            self.open_what_is_away(array);
        }
        let volume = gateway(array);
        // Makes durable what a killed process left in the disks' caches.
        self.flush(array).await;
        let mut at = 0;
        // Sectors that were only discarded may stay undefined.
        let leave = rng.chance(1, 2);
        let open = |sector: u64| {
            let allowed = self.oracle.allowed(sector);
            allowed.contains(&Value::Anything)
                && !(leave && allowed.iter().all(|value| *value == Value::Anything))
        };
        let unit = self.block;
        let open = |sector: u64| (sector - sector % unit..).take(unit as usize).any(open);
        while let Some(from) = (at..self.size).find(|sector| open(*sector)) {
            at = (from..self.size).find(|at| !open(*at)).unwrap_or(self.size);
            let ticket = self.oracle.begin_write_zeroes(from..at, Flags::FUA);
            let zeroes = Bio::write_zeroes(Sector(from), Sectors(at - from));
            self.oracle.end(ticket, volume.submit(zeroes.with_flags(Flags::FUA)).await);
        }
        let mut at = 0;
        while at < self.size {
            let to = self.size.min(at + self.block * (1 + rng.below(200)));
            let ticket = self.oracle.begin_read(at..to);
            let mut data = volume.read(Sector(at), Sectors(to - at)).await;
            if data.is_err() && self.may_lose.get() {
                self.give_up(array, at..to).await;
                data = volume.read(Sector(at), Sectors(to - at)).await;
            }
            let data = data.unwrap_or_else(|e| panic!("{:?}: sector {at}: {e}", self.shape));
            let checked = self.oracle.check_read(ticket, data.as_slice());
            checked.unwrap_or_else(|violation| panic!("{:?}: {violation}", self.shape));
            at = to;
        }
    }

    /// What was being written on a member that is away may be anything: the array started with its partial parity log.
    fn open_what_is_away(&self, array: &Array) {
        for sector in 0..self.size {
            let slot = array.personality().map(Sector(sector))[0].disk;
            let is_away = array.members().in_sync(slot).is_none();
            if is_away && self.oracle.allowed(sector).len() > 1 {
                let open = self.oracle.begin_discard(sector..sector + 1, Flags::empty());
                self.oracle.end(open, Ok(()));
            }
        }
    }

    /// Rewrites blocks that all members list as bad: their data are lost.
    async fn give_up(&self, array: &Arc<Array>, range: Range<u64>) {
        for from in range.step_by(self.block as usize) {
            let can_read = |at: Location| {
                let held = array.members().both(at.disk).filter(|(_, rdev)| rdev.is_in_sync());
                let mut held = held.map(|(_, rdev)| rdev.can_read(at.sector, Sectors(self.block)));
                held.any(|can| can)
            };
            if !array.personality().map(Sector(from)).into_iter().any(can_read) {
                let range = from..from + self.block;
                let (ticket, data) = self.oracle.begin_write(range, Flags::empty());
                let mut data = Buffer::from_slice(&data);
                let written = gateway(array).write(Sector(from), &mut data, Flags::empty()).await;
                self.oracle.end(ticket, written);
            }
        }
    }

    /// Silently corrupts a copy of a sector, and repairs it.
    pub(crate) async fn repair(&self, array: &Arc<Array>) {
        let mut rng = self.rng.clone().fork();
        let sector = rng.below(self.size);
        let needed = |bitmap: &Bitmap| bitmap.needs_sync(Sector(sector), Purpose::Rebuild).needed;
        let compared = array.bitmap().is_none_or(needed) && !self.is_undefined(sector);
        if let Personality::Parity(geometry) = array.personality() {
            return self.repair_parity(array, geometry).await;
        }
        // The first copy is the source, as for reads where copies may differ.
        let mut places = array.personality().map(Sector(sector));
        places.sort_by_key(|at| array.members().counts_last(at.disk));
        let mut copies = Vec::new();
        for at in places {
            let here = array.members().both(at.disk).filter(|(_, rdev)| rdev.is_in_sync());
            copies.extend(here.map(|(_, rdev)| (rdev, at.sector + rdev.data_offset())));
        }
        let healthy = !array.is_unsynced() && !super::operator::lists_bad_blocks(array);
        if !compared || copies.len() < 2 || !healthy {
            return;
        }
        let (rdev, at) = copies[1 + rng.index(copies.len() - 1)];
        self.media[self.disk_at(rdev.path())].poke(at, &stamp(self.seed, sector, u64::MAX));
        // An interrupted check would continue at its bound: reset it.
        array.set_sync_bounds(Sectors::ZERO, Sectors::MAX).expect("nothing runs");
        let asked = array.request_sync(SyncRequest::Repair);
        assert_eq!(asked, Ok(()), "{:?}: repair", self.shape);
        array.sync_ended().await;
        let found = array.sync_status().mismatches;
        assert!(!found.is_zero(), "{:?}: nothing found at {sector}", self.shape);
        // The corruption is durable; the repair becomes durable only now.
        self.flush(array).await;
    }

    /// Silently corrupts parity, and repairs it.
    async fn repair_parity(&self, array: &Arc<Array>, geometry: &Geometry) {
        let mut rng = self.rng.clone().fork();
        let at = Sector(rng.below(geometry.used_dev_sectors().0));
        let row = geometry.row_at(at);
        let slot = row.q.filter(|_| rng.chance(1, 2)).unwrap_or(row.p);
        let healthy = !array.is_unsynced()
            && array.degraded() == 0
            && !super::operator::lists_bad_blocks(array);
        let Some(rdev) = array.members().in_sync(slot).filter(|_| healthy) else { return };
        let medium = &self.media[self.disk_at(rdev.path())];
        medium.poke(at + rdev.data_offset(), &stamp(self.seed, at.0, u64::MAX));
        array.set_sync_bounds(Sectors::ZERO, Sectors::MAX).expect("nothing runs");
        array.request_sync(SyncRequest::Repair).expect("nothing runs");
        array.sync_ended().await;
        let found = array.sync_status().mismatches;
        assert_eq!(found, Sectors(8), "{:?}: mismatches of {at}", self.shape);
        self.flush(array).await;
    }

    /// Asserts that parity fits the data of each row of which all members are there.
    fn check_parity(&self, array: &Array, geometry: &Geometry) {
        for at in (0..geometry.used_dev_sectors().0).map(Sector) {
            let row = geometry.row_at(at);
            let block = |slot: usize| {
                let rdev = array.members().in_sync(slot)?;
                let on_disk = at + rdev.data_offset();
                let is_good = rdev.bad_blocks().check(on_disk, Sectors(1)).is_none();
                is_good.then(|| self.media[self.disk_at(rdev.path())].peek(on_disk))
            };
            let blocks: Option<Vec<_>> = (0..geometry.disks()).map(block).collect();
            let Some(blocks) = blocks else { continue };
            let (mut p, mut q) = ([0; 512], [0; 512]);
            for index in 0..geometry.data_disks() {
                let slot = row.data(index);
                let factor = row.exponent(slot).map_or(0, power);
                for (at, byte) in blocks[slot].iter().enumerate() {
                    p[at] ^= byte;
                    q[at] ^= times(factor, *byte);
                }
            }
            assert!(
                blocks[row.p][..] == p[..],
                "{:?}: P of {at} on {} is wrong",
                self.shape,
                row.p
            );
            if let Some(slot) = row.q {
                assert!(
                    blocks[slot][..] == q[..],
                    "{:?}: Q of {at} on {slot} is wrong",
                    self.shape
                );
            }
        }
    }

    /// Asserts that all copies on in-sync members are the same, except for discarded sectors and known
    /// bad blocks.
    pub(crate) fn check_copies(&self, array: &Array) {
        if let Personality::Parity(geometry) = array.personality() {
            return self.check_parity(array, geometry);
        }
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
            if held.is_empty() && self.may_lose.get() {
                continue;
            }
            assert!(!held.is_empty(), "{:?}: no copy of sector {sector}", self.shape);
            let same = held.iter().all(|(_, data)| *data == held[0].1);
            let who = || held.iter().map(|(disk, _)| *disk).collect::<Vec<_>>();
            let fine = same || self.is_undefined(sector);
            assert!(fine, "{:?}: copies of sector {sector} on {:?} differ", self.shape, who());
        }
    }

    /// Asserts that nothing outside the array's areas has changed.
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
