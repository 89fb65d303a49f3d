//! Exception stores on a hostile COW device: each is read or refused, never with a panic, an endless loop or unbounded
//! memory; a store that is read refers only to existing chunks, and to each once.
//!
//! Input: a byte of flags, then the start of the device. The device is larger, and ends in zeroes.

use std::collections::HashSet;

use ashlar_block::{Disk, Gateway, Limits, Sectors};
use ashlar_dm::snapshot::examine;
use ashlar_dm::snapshot::ondisk::{Geometry, Header};
use zerocopy::IntoBytes;

use crate::memory::{Memory, block_on};

/// The header is corrected, so that the code after that check is reached; chunks have 1 to 16 sectors.
const RESEAL: u8 = 1;
/// The device has an unusual size: 2^40 sectors.
const HUGE: u8 = 2;

/// Size of the origin.
const ORIGIN: Sectors = Sectors(1 << 16);
const COW: Sectors = Sectors(1 << 12);

/// Checks one input against the module text; returns whether part of it was accepted.
pub fn run(data: &[u8]) -> bool {
    let Some((&flags, rest)) = data.split_first() else { return false };
    let mut data = rest.to_vec();
    if flags & RESEAL != 0 && data.len() >= size_of::<Header>() {
        let chunk = Sectors(1 << (flags >> 5).min(4));
        let geometry = Geometry::new(chunk, Sectors(1)).expect("a power of two");
        data[..size_of::<Header>()].copy_from_slice(Header::new(geometry, true).as_bytes());
    }
    let size = if flags & HUGE == 0 { COW } else { Sectors(1 << 40) };
    let disk = Disk::new("cow", size, Limits::default());
    let cow = Gateway::new(Memory::for_reading(disk, data));
    match block_on(examine(&cow, ORIGIN)) {
        Ok(None) => false,
        Ok(Some(found)) => {
            let geometry = Geometry::new(found.chunk, Sectors(1)).expect("checked");
            let (mut old, mut new) = (HashSet::new(), HashSet::new());
            for (from, to) in found.exceptions {
                assert!(geometry.sector(from).0 < ORIGIN.0 && old.insert(from));
                assert!(geometry.sector(to + 1).0 <= size.0 && new.insert(to));
                assert!(!geometry.is_metadata(to));
            }
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}
