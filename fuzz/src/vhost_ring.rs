//! The rings of a guest: whatever they say, the queue takes a bounded number of requests, and changes no byte of the guest but the buffers that
//! its descriptors offer for it, the used ring and the inflight region; none outside the regions; and no byte of the disk but those that the
//! requests name.
//!
//! Input: flags (below), the size of the ring as a power of two, the index where it begins; with INFLIGHT the inflight region; then the
//! guest's memory, which begins with the available ring, the descriptors and the used ring. What may change is found here by a walk that
//! checks nothing but bounds, and so allows more than the queue does.

use std::collections::HashSet;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ashlar_block::{BlockDevice, ByteVolume, Disk, Gateway, Limits, Sectors};
use ashlar_vhost::testing::{Queue, Setup};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};

use crate::memory::{Memory, block_on};
use crate::vhost_guest::places;

pub(crate) const EVENT_IDX: u8 = 1;
pub(crate) const INDIRECT: u8 = 2;
pub(crate) const INFLIGHT: u8 = 4;
const READ_ONLY: u8 = 8;
const WRITE_THROUGH: u8 = 16;

const MAX_SHIFT: u8 = 6;
pub(crate) const INFLIGHT_BYTES: usize = 1088;
/// The guest's regions: their addresses, and their places in the file. What is between them in the file is nobody's.
const REGIONS: [(u64, Range<usize>); 2] = [(0x1000, 0x1000..0x4064), (0x8000, 0x6000..0x8034)];
const FILE_BYTES: usize = 0xa000;
/// The front end's address of the guest's byte 0.
const USER: u64 = 0x7f00_0000_0000;
/// What nobody may change.
const CANARY: u8 = 0xc5;
const DISK_BYTES: usize = 32 << 10;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const TABLE: u16 = 4;

fn memfd(bytes: &[u8]) -> OwnedFd {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&file, bytes.len() as u64).expect("a longer memfd");
    assert_eq!(pwrite(&file, bytes, 0), Ok(bytes.len()));
    file
}

fn contents(file: &OwnedFd, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    assert_eq!(pread(file, &mut bytes[..], 0), Ok(len));
    bytes
}

/// The guest's memory as it was.
struct Guest<'a>(&'a [u8]);

type Part = (u64, u64, u16);

impl Guest<'_> {
    /// The place in the file.
    fn place(address: u64) -> Option<usize> {
        REGIONS.iter().find_map(|(start, at)| {
            let offset = usize::try_from(address.checked_sub(*start)?).ok()?;
            (offset < at.len()).then_some(at.start + offset)
        })
    }

    fn bytes<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        for (byte, number) in bytes.iter_mut().zip(0..) {
            *byte = self.0[Self::place(address.checked_add(number)?)?];
        }
        Some(bytes)
    }

    /// The buffers of the chain from `head` on, until something is not there, and the tables.
    fn chain(&self, table: u64, head: u16, tables: &mut Vec<Range<u64>>) -> Vec<Part> {
        let (mut table, mut index, mut parts, mut seen) = (table, head, Vec::new(), HashSet::new());
        while seen.insert((table, index))
            && let Some(entry) = self.bytes::<16>(table.wrapping_add(16 * u64::from(index)))
        {
            let number = |range: Range<usize>| {
                entry[range].iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte))
            };
            let (address, len, flags) = (number(0..8), number(8..12), number(12..14) as u16);
            if flags & TABLE != 0 {
                tables.push(address..address.saturating_add(len));
                (table, index) = (address, 0);
                continue;
            }
            parts.push((address, len, flags));
            if flags & NEXT == 0 {
                break;
            }
            index = number(14..16) as u16;
        }
        parts
    }
}

/// What may change: places in the file, bytes of the disk.
#[derive(Default)]
struct Allowed {
    writable: Vec<Range<u64>>,
    on_disk: Vec<Range<u64>>,
    /// What the device reads to know what to do.
    vital: Vec<Range<u64>>,
}

impl Allowed {
    fn of(guest: &Guest<'_>, size: u16) -> Self {
        let mut all = Self::default();
        let [_, descriptors, _, end] = places(size);
        let start = REGIONS[0].0;
        all.vital.push(start..start + end as u64);
        for head in 0..size {
            let parts = guest.chain(start + descriptors as u64, head, &mut all.vital);
            let ends = |part: &Part| part.0..part.0.saturating_add(part.1);
            let (writable, readable): (Vec<Part>, Vec<Part>) =
                parts.into_iter().partition(|part| part.2 & WRITE != 0);
            all.writable.extend(writable.iter().map(ends));
            let mut first = Vec::new();
            for (address, len, _) in &readable {
                let head = *len.min(&(32 - first.len() as u64));
                all.vital.push(*address..address.saturating_add(head));
                first.extend(
                    (0..head).map_while(|n| guest.bytes::<1>(address.checked_add(n)?)).flatten(),
                );
            }
            all.name(&first, readable.iter().map(|part| part.1).sum());
        }
        all
    }

    /// The bytes of the disk that a request with these first bytes may change.
    fn name(&mut self, first: &[u8], len: u64) {
        let number = |at: usize, width: usize| {
            let bytes = first.get(at..at + width)?;
            Some(bytes.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte)))
        };
        let range = match number(0, 4) {
            Some(1) => number(8, 8).map(|sector| (sector, len.saturating_sub(16))),
            Some(11 | 13) => number(16, 8).zip(number(24, 4).map(|sectors| sectors * 512)),
            _ => None,
        };
        if let Some((sector, bytes)) = range {
            let start = sector.saturating_mul(512);
            self.on_disk.push(start..start.saturating_add(bytes));
        }
    }

    /// Whether a request may change what a later one says.
    fn changes_itself(&self) -> bool {
        let overlap = |a: &Range<u64>, b: &Range<u64>| a.start < b.end && b.start < a.end;
        self.writable.iter().any(|range| self.vital.iter().any(|vital| overlap(range, vital)))
    }
}

/// Checks one input against the module text; returns whether a request was executed.
pub fn run(data: &[u8]) -> bool {
    let [flags, shift, low, high, rest @ ..] = data else { return false };
    let has = |flag| flags & flag != 0;
    let size = 1u16 << (shift % (MAX_SHIFT + 1));
    let (mut inflight, mut image) = (vec![0; INFLIGHT_BYTES], rest);
    if has(INFLIGHT) {
        let (region, behind) = rest.split_at(rest.len().min(INFLIGHT_BYTES));
        inflight[..region.len()].copy_from_slice(region);
        image = behind;
    }
    let mut before = vec![CANARY; FILE_BYTES];
    for (_, range) in REGIONS {
        let (part, behind) = image.split_at(image.len().min(range.len()));
        before[range.clone()].fill(0);
        before[range.start..][..part.len()].copy_from_slice(part);
        image = behind;
    }
    let (file, region) = (memfd(&before), memfd(&inflight));
    let limits =
        Limits { max_write_zeroes: Sectors(64), max_hw_discard: Sectors(64), ..Limits::default() };
    let disk = Disk::new("ram0", Sectors::from_bytes_floor(DISK_BYTES as u64), limits);
    let stored: Vec<u8> = (0..DISK_BYTES).map(|at| (at / 512 * 7 + at) as u8).collect();
    let ram = Memory::writable(disk, stored.clone());
    let volume = ByteVolume::new(Gateway::new(Arc::clone(&ram) as Arc<dyn BlockDevice>));
    let start = USER + REGIONS[0].0;
    let [available, descriptors, used, end] = places(size);
    let copy = |file: &OwnedFd| file.try_clone().expect("a descriptor");
    let setup = Setup {
        regions: REGIONS
            .iter()
            .map(|(guest, range)| {
                ([*guest, USER + guest, range.len() as u64, range.start as u64], copy(&file))
            })
            .collect(),
        size,
        base: u16::from_le_bytes([*low, *high]),
        addresses: [descriptors, available, used].map(|at| start + at as u64),
        has_indirect: has(INDIRECT),
        has_event_idx: has(EVENT_IDX),
        inflight: has(INFLIGHT).then(|| (copy(&region), INFLIGHT_BYTES as u64)),
        is_read_only: has(READ_ONLY),
        is_write_through: has(WRITE_THROUGH),
    };
    let open = volume.open().expect("nobody withdraws it");
    let executed = Queue::start(setup, open).and_then(|mut queue| block_on(queue.run()));
    let after = contents(&file, FILE_BYTES);
    let allowed = Allowed::of(&Guest(&before), size);
    let is_strict = !allowed.changes_itself();
    let mut may_change = vec![false; FILE_BYTES];
    may_change[REGIONS[0].1.start + used..REGIONS[0].1.start + end].fill(true);
    for range in &allowed.writable {
        let places = range.clone().take(FILE_BYTES).map_while(Guest::place);
        places.for_each(|place| may_change[place] = true);
    }
    let in_region = |at| REGIONS.iter().any(|(_, range)| range.contains(&at));
    for at in (0..FILE_BYTES).filter(|at| before[*at] != after[*at]) {
        assert!(in_region(at), "byte {at:#x} outside the regions has changed");
        assert!(!is_strict || may_change[at], "byte {at:#x} has changed, which no buffer offers");
    }
    for at in ram.differing(&stored) {
        assert!(!has(READ_ONLY), "a disk that is read-only has changed");
        let named = allowed.on_disk.iter().any(|range| range.contains(&(at as u64)));
        assert!(!is_strict || named, "byte {at} of the disk has changed, which no request names");
    }
    executed.is_ok_and(|count| count > 0)
}
