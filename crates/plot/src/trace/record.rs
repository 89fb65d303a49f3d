//! One event in blktrace's form.

use ashlar_block::Sector;
use ashlar_block::disk::DeviceNumber;
use ashlar_block::trace::{Action, Detail, Event};

use super::categories::Categories;

/// An event, with the fields of the kernel's `struct blk_io_trace`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Counts the events of its device on its thread, from 1. A gap means lost events.
    pub sequence: u32,
    /// Time in nanoseconds, on the clock of the recording host.
    pub time_ns: u64,
    /// Start sector.
    pub sector: u64,
    /// Length.
    pub bytes: u32,
    /// The action.
    pub action: Action,
    /// The kind of action and I/O.
    pub categories: Categories,
    /// The thread.
    pub pid: u32,
    /// The device.
    pub device: DeviceNumber,
    /// The index of the thread, from 0: blktrace has a CPU here.
    pub thread: u32,
    /// The result: 0, or a negative errno in 16 bits.
    pub error: u16,
    /// Further data.
    pub payload: Payload,
}

/// The data after the record of some actions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload {
    /// Nothing.
    None,
    /// For `U` the number of requests, for `X` the sector where the rest begins.
    Number(u64),
    /// For `A`.
    Remap {
        /// The device above.
        from: DeviceNumber,
        /// The device below, which is the record's.
        to: DeviceNumber,
        /// The sector above.
        sector: u64,
    },
}

/// The longest length that 32 bits hold in bytes: longer ranges (discards) are cut to it.
const MAX_BYTES: u64 = u32::MAX as u64 & !511;

impl Record {
    /// The record of an event, without the fields that only its recorder knows.
    pub(crate) fn of(event: &Event<'_>, device: DeviceNumber, categories: Categories) -> Self {
        let (error, payload) = match event.detail {
            Detail::None => (0, Payload::None),
            Detail::From { device: from, sector: Sector(sector) } => {
                (0, Payload::Remap { from, to: device, sector })
            }
            Detail::Requests(count) => (0, Payload::Number(count.into())),
            Detail::Rest(Sector(sector)) => (0, Payload::Number(sector)),
            // The kernel stores the negative number in an unsigned field.
            Detail::Failed(status) => ((-status.errno()) as u16, Payload::None),
        };
        Self {
            sequence: 0,
            time_ns: 0,
            sector: event.sector.0,
            bytes: event.len.0.saturating_mul(512).min(MAX_BYTES) as u32,
            action: event.action,
            categories,
            pid: 0,
            device,
            thread: 0,
            error,
            payload,
        }
    }

    /// blkparse's letters for the kind of I/O.
    pub fn rwbs(&self) -> String {
        let has = |category| self.categories.contains(category);
        let kind = match () {
            () if has(Categories::DISCARD) => 'D',
            () if has(Categories::WRITE) => 'W',
            () if self.bytes != 0 => 'R',
            () => 'N',
        };
        [
            has(Categories::FLUSH).then_some('F'),
            Some(kind),
            has(Categories::FUA).then_some('F'),
            has(Categories::AHEAD).then_some('A'),
            has(Categories::SYNC).then_some('S'),
            has(Categories::META).then_some('M'),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// The length, sectors.
    pub fn sectors(&self) -> u32 {
        self.bytes / 512
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::text::tests::record;

    #[test]
    fn letters_are_those_of_blkparse() {
        let rwbs = |categories, bytes| Record { categories, bytes, ..record() }.rwbs();
        let (read, write) = (Categories::READ, Categories::WRITE);
        for (categories, bytes, letters) in [
            (read, 4096, "R"),
            (read, 0, "N"),
            (read | Categories::AHEAD, 4096, "RA"),
            (read | Categories::SYNC | Categories::META, 4096, "RSM"),
            (write, 4096, "W"),
            (write | Categories::FLUSH, 0, "FW"),
            (write | Categories::FLUSH | Categories::FUA | Categories::SYNC, 512, "FWFS"),
            (write | Categories::DISCARD, 4096, "D"),
        ] {
            assert_eq!(rwbs(categories, bytes), letters, "{categories:?}");
        }
    }
}
