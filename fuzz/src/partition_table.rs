//! Partition tables on a hostile disk: never a panic, never an unbounded loop or allocation, and accepted partitions
//! are inside the device and do not overlap.
//!
//! Input: one byte of flags, then the start of the disk or, with `ENDS`, its start and its end in equal parts. The rest
//! is zeroes. With `RESEAL` checksums are corrected.

use ashlar_block::{Disk, Gateway, Limits, Sectors};
use ashlar_stack::partitions::{TableState, read};
use ashlar_stack::probe::signatures;

use crate::memory::{Memory, block_on};

/// The checksums of a GPT's headers and entries are corrected.
const RESEAL: u8 = 1;
/// The disk has blocks of 4096 bytes.
const LARGE: u8 = 2;
/// The second half of the input is the end of the disk.
const ENDS: u8 = 4;
/// The smallest disk.
pub const MIN_BYTES: usize = 64 << 10;

/// Checks one input against the module text; returns whether part of it was accepted.
pub fn run(data: &[u8]) -> bool {
    let Some((flags, data)) = data.split_first() else { return false };
    let (front, back) =
        if flags & ENDS == 0 { (data, &[][..]) } else { data.split_at(data.len() / 2) };
    let mut bytes = front.to_vec();
    bytes.resize(data.len().max(MIN_BYTES).next_multiple_of(4096), 0);
    let end = bytes.len() - back.len();
    bytes[end..].copy_from_slice(back);
    let block = if flags & LARGE == 0 { 512 } else { 4096 };
    if flags & RESEAL != 0 {
        let last = bytes.len() - block;
        reseal(&mut bytes, block, block);
        reseal(&mut bytes, last, block);
    }
    let len = Sectors(bytes.len() as u64 / 512);
    let limits = Limits { logical_block_bytes: block as u32, ..Limits::default() };
    let gateway = Gateway::new(Memory::for_reading(Disk::new("fuzz", len, limits), bytes));
    let found = block_on(async {
        let signatures = signatures(&gateway).await.expect("memory can be read");
        read(&gateway, &signatures).await.expect("memory can be read")
    });
    let TableState::Table(table) = found else { return false };
    let mut ranges: Vec<_> =
        table.entries.iter().map(|e| (e.start, e.end().expect("it has an end"))).collect();
    ranges.sort_unstable();
    assert!(ranges.iter().all(|(start, end)| start < end && *end <= len.as_end()));
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    !table.entries.is_empty()
}

/// Corrects the checksums of the header at `at` and, if they are there, of its entries.
fn reseal(bytes: &mut [u8], at: usize, block: usize) {
    let number = |bytes: &[u8], offset: usize| {
        u32::from_le_bytes(bytes[at + offset..][..4].try_into().expect("four bytes")) as usize
    };
    let entries = number(bytes, 72).saturating_mul(block);
    let len = number(bytes, 80).saturating_mul(number(bytes, 84));
    if let Some(entries) = bytes.get(entries..).and_then(|rest| rest.get(..len)) {
        let sum = crc32fast::hash(entries);
        bytes[at + 88..at + 92].copy_from_slice(&sum.to_le_bytes());
    }
    bytes[at + 16..at + 20].fill(0);
    let size = number(bytes, 12).min(block);
    let sum = crc32fast::hash(&bytes[at..at + size]);
    bytes[at + 16..at + 20].copy_from_slice(&sum.to_le_bytes());
}
