//! Where an array may write on a disk.

use std::ops::Range;

use ashlar_block::Sectors;
use ashlar_md::ondisk::Superblock;
use ashlar_md::ondisk::probe::probe_ranges;

/// The areas of an array on a disk.
pub(crate) struct Places {
    /// Where data begins.
    pub(crate) data: u64,
    /// All areas that may be written.
    areas: Vec<Range<u64>>,
}

/// Sectors that hold these bytes.
fn sectors(at: u64, bytes: u64) -> Range<u64> {
    at / 512..(at + bytes).div_ceil(512)
}

impl Places {
    /// The areas of a member with this superblock, with `used` sectors of data and blocks of `block`
    /// sectors.
    pub(crate) fn of(sb: &Superblock, used: u64, block: u64) -> Self {
        let (at, data) = (sb.super_offset.0, sb.data_offset.0);
        let mut areas = vec![at..at + block, data..data + used];
        let log = sb.bad_block_log_start().zip(sb.bad_block_log);
        areas.extend(log.map(|(start, log)| start.0..start.0 + log.len.0));
        areas.extend(sb.ppl_area().map(|area| area.start.0..area.end.0));
        let mut places = Self { data, areas };
        places.allow_bitmap(sb);
        places
    }

    /// Allows a bitmap at the superblock's place for it, up to the next area.
    pub(crate) fn allow_bitmap(&mut self, sb: &Superblock) {
        if let Some(start) = sb.bitmap_start() {
            self.allow_bitmap_at(start.0, sb.device_size().0);
        }
    }

    /// Allows a bitmap at this sector of a device of this size.
    pub(crate) fn allow_bitmap_at(&mut self, start: u64, device: u64) {
        let behind = self.areas.iter().map(|area| area.start).filter(|at| *at > start);
        let end = behind.min().unwrap_or(device).min(start + 64);
        self.areas.push(start..end);
    }

    /// Allows erasing superblocks at all places, which adding a disk does.
    pub(crate) fn allow_erasing(&mut self, device: Sectors) {
        let ranges = probe_ranges(device).into_iter();
        self.areas.extend(ranges.map(|(at, len)| sectors(at, len as u64)));
    }

    /// Whether a sector may be written.
    pub(crate) fn hold(&self, sector: u64) -> bool {
        self.areas.iter().any(|area| area.contains(&sector))
    }
}
