//! The faults of a disk: kept apart from its contents, so that tests can compare stored data with
//! read data.

use std::collections::BTreeMap;
use std::ops::Range;

use ashlar_block::{BioResult, Op, Status};
use rangemap::RangeSet;

use crate::store::{Fill, SectorData, Store};

/// How a sector returns wrong contents until it is written again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Corruption {
    /// One byte differs: `mask` is xored to the byte at this offset.
    Flip {
        /// Index of the byte in the sector.
        byte: usize,
        /// The bits to flip.
        mask: u8,
    },
    /// The contents of another sector are returned (a misdirected read, or the result of a
    /// misdirected write).
    Misdirected {
        /// The sector whose contents are returned.
        from: u64,
    },
    /// Bytes that were never written.
    Garbage {
        /// Seed of the bytes.
        seed: u64,
    },
}

/// The fault overlay of a disk.
#[derive(Clone, Default)]
pub(crate) struct Faults {
    /// Reads fail until the sector is written.
    pub(crate) latent: RangeSet<u64>,
    /// Writes fail.
    pub(crate) unwritable: RangeSet<u64>,
    /// Reads that succeed before one fails.
    pub(crate) fail_read_in: Option<u64>,
    /// Writes that succeed before one fails.
    pub(crate) fail_write_in: Option<u64>,
    /// Flushes that succeed before one fails and loses the cache.
    pub(crate) fail_flush_in: Option<u64>,
    /// Writes with FUA that succeed before one fails and loses the cache.
    pub(crate) fail_fua_in: Option<u64>,
    /// It has happened.
    pub(crate) dropped_cache: bool,
    /// Commands do not end.
    pub(crate) silent: bool,
    /// Commands that end before one hangs.
    pub(crate) hang_in: Option<u64>,
    pub(crate) corrupt: BTreeMap<u64, Corruption>,
    pub(crate) unsupported: Vec<Op>,
    pub(crate) dead: bool,
    /// There is no connection to it.
    pub(crate) cut_off: bool,
    pub(crate) lies_about_flush: bool,
    /// Factor by which commands take longer; 0 means 1.
    pub(crate) slowness: u64,
}

/// Counts down; true once, when it reaches the end.
pub(crate) fn countdown(left: &mut Option<u64>) -> bool {
    match left {
        Some(0) => {
            *left = None;
            true
        }
        Some(n) => {
            *n -= 1;
            false
        }
        None => false,
    }
}

impl Faults {
    /// The error, if any, of all commands of this kind.
    pub(crate) fn check(&self, op: Op) -> BioResult {
        if self.dead {
            return Err(Status::Offline);
        }
        if self.cut_off {
            return Err(Status::Transport);
        }
        if self.unsupported.contains(&op) { Err(Status::NotSupported) } else { Ok(()) }
    }

    /// The part of `range` that a write reaches: all of it, or up to a bad sector.
    pub(crate) fn writable(&mut self, range: Range<u64>) -> Range<u64> {
        if countdown(&mut self.fail_write_in) {
            return range.start..range.start;
        }
        match self.unwritable.overlapping(&range).next() {
            Some(bad) => range.start..bad.start.max(range.start),
            None => range,
        }
    }

    /// A new write clears the read faults of the old contents.
    pub(crate) fn rewritten(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.latent.remove(range.clone());
        let healed: Vec<u64> = self.corrupt.range(range).map(|(sector, _)| *sector).collect();
        for sector in healed {
            self.corrupt.remove(&sector);
        }
    }

    /// Appends what a read of `range` returns to `out`.
    pub(crate) fn read(&self, store: &Store, range: Range<u64>, out: &mut Vec<u8>) {
        let mut at = range.start;
        for (&bad, _) in self.corrupt.range(range.clone()) {
            store.read(at..bad, out);
            out.extend_from_slice(&self.look(store, bad));
            at = bad + 1;
        }
        store.read(at..range.end, out);
    }

    /// What a read of `sector` returns.
    fn look(&self, store: &Store, sector: u64) -> SectorData {
        match self.corrupt.get(&sector) {
            None => store.get(sector),
            Some(Corruption::Misdirected { from }) => store.get(*from),
            Some(Corruption::Garbage { seed }) => Fill::Noise(*seed).sector(sector),
            Some(Corruption::Flip { byte, mask }) => {
                let mut data = store.get(sector);
                data[byte % 512] ^= mask;
                data
            }
        }
    }
}
