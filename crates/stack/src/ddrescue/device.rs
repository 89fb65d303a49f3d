//! An image without what ddrescue has not read of its disk.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, OnceLock, PoisonError};

use ashlar_block::{
    Bio, BlockDevice, Disk, Extents, Gateway, IoFuture, LocalFuture, Op, Sector, Sectors, Status,
};

/// The bytes of a sector.
const SECTOR: u64 = 512;

/// An image some of whose sectors cannot be read: a read that touches one of them fails as a whole with [`Status::Medium`], as a disk's
/// would. Name, size and limits are those of the image.
///
/// A sector that is written can be read from then on, while the device lives: neither the map nor anything else keeps that. A write
/// that failed or has not ended changes nothing, and neither does a discard.
///
/// Reads of other sectors cost a binary search, and take no lock.
pub struct RescuedDevice {
    lower: Gateway,
    disk: Disk,
    /// The sectors that were not read: not empty, in order, with something between any two.
    unread: Box<[Range<u64>]>,
    /// Those of them that were not written either, by where they begin, from the first such write on.
    left: OnceLock<Mutex<BTreeMap<u64, u64>>>,
}

impl RescuedDevice {
    /// `lower` without the bytes `unread`, which are in order; what has a byte of a sector has the sector.
    pub fn new(lower: Gateway, unread: &[Range<u64>]) -> Self {
        let below = lower.disk();
        let disk = Disk::new(below.name(), below.capacity(), *below.limits());
        disk.set_read_only(below.is_read_only());
        disk.set_shared(below.is_shared());
        let mut sectors: Vec<Range<u64>> = Vec::with_capacity(unread.len());
        for area in unread.iter().filter(|area| !area.is_empty()) {
            let area = area.start / SECTOR..area.end.div_ceil(SECTOR);
            match sectors.last_mut() {
                Some(last) if area.start <= last.end => last.end = last.end.max(area.end),
                Some(_) | None => sectors.push(area),
            }
        }
        Self { lower, disk, unread: sectors.into(), left: OnceLock::new() }
    }

    /// The first part of a range that was not read from the disk.
    fn first_unread(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let first = self.unread.partition_point(|area| area.end <= range.start);
        let area = self.unread.get(first).filter(|area| area.start < range.end)?;
        Some(area.start.max(range.start)..area.end.min(range.end))
    }

    /// The first part of a range that cannot be read.
    fn first_lost(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let unread = self.first_unread(range)?;
        let Some(left) = self.left.get() else { return Some(unread) };
        let left = left.lock().unwrap_or_else(PoisonError::into_inner);
        let before = left.range(..range.start).next_back().filter(|(_, end)| **end > range.start);
        let (start, end) = before.or_else(|| left.range(range.start..range.end).next())?;
        Some((*start).max(range.start)..(*end).min(range.end))
    }

    /// Notes that a range was written.
    fn written(&self, range: &Range<u64>) {
        let all = || self.unread.iter().map(|area| (area.start, area.end)).collect();
        let left = self.left.get_or_init(|| Mutex::new(all()));
        let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
        // Backwards from the end, so that an area that remains after the range is not looked at again.
        while let Some((start, end)) = left.range(..range.end).next_back()
            && *end > range.start
        {
            let (start, end) = (*start, *end);
            left.remove(&start);
            if end > range.end {
                left.insert(range.end, end);
            }
            if start < range.start {
                left.insert(start, range.start);
            }
        }
    }

    /// A write, after which its range can be read.
    #[cold]
    fn write(&self, bio: Bio) -> IoFuture<'_> {
        let range = sectors(&bio);
        let io = self.lower.submit(bio);
        IoFuture::boxed(async move {
            io.await?;
            self.written(&range);
            Ok(())
        })
    }
}

fn sectors(bio: &Bio) -> Range<u64> {
    bio.sector.0..bio.end().0
}

impl BlockDevice for RescuedDevice {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        match bio.op {
            Op::Read if self.first_lost(&sectors(&bio)).is_some() => {
                IoFuture::failed(Status::Medium)
            }
            Op::Write | Op::WriteZeroes if self.first_unread(&sectors(&bio)).is_some() => {
                self.write(bio)
            }
            // The contents after a discard are unknown.
            Op::Read | Op::Write | Op::WriteZeroes | Op::Discard | Op::Flush => {
                self.lower.submit(bio)
            }
        }
    }

    fn copies(&self, at: Sector, len: Sectors) -> u16 {
        self.lower.copies(at, len)
    }

    /// Its user finds out by checksums what was not read.
    fn lend(&self) -> io::Result<OwnedFd> {
        self.lower.lend()
    }

    /// A hole in the image does not stand for zeroes where the disk was not read.
    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        Box::pin(async move {
            match self.first_lost(&(at.0..(at + len).0)) {
                None => self.lower.extents(at, len).await,
                Some(lost) if lost.start == at.0 => {
                    Ok(Extents::data(at, Sectors(lost.end - lost.start)))
                }
                Some(lost) => self.lower.extents(at, Sectors(lost.start - at.0)).await,
            }
        })
    }

    fn holds_changes(&self) -> bool {
        self.lower.holds_changes()
    }

    /// Nothing else uses the image.
    fn release(&self) {
        self.lower.release();
    }
}

#[cfg(test)]
mod tests {
    use ashlar_block::{BioResult, Buffer, ExtentState, Flags, Limits};
    use ashlar_sim::Rng;
    use futures_util::FutureExt;

    use super::*;
    use std::sync::Arc;

    const SIZE: u64 = 96;

    /// A device of holes whose I/O ends at once, and whose writes fail if they touch sector 95.
    struct Holes(Disk);

    impl BlockDevice for Holes {
        fn disk(&self) -> &Disk {
            &self.0
        }

        fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
            let fails = bio.op.is_write() && bio.end().0 == SIZE;
            IoFuture::ready(if fails { Err(Status::Io) } else { Ok(()) })
        }

        fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
            let mut extents = Extents::new(at);
            extents.extend_to(at + len, ExtentState::HOLE | ExtentState::ZERO);
            Box::pin(std::future::ready(Ok(extents)))
        }
    }

    fn device(unread: &[Range<u64>]) -> Gateway {
        let limits = Limits {
            max_write_zeroes: Sectors(64),
            max_hw_discard: Sectors(64),
            discard_granularity_bytes: 512,
            ..Limits::default()
        };
        let lower = Gateway::new(Arc::new(Holes(Disk::new("d", Sectors(SIZE), limits))));
        Gateway::new(Arc::new(RescuedDevice::new(lower, unread)))
    }

    fn done<T>(future: impl Future<Output = T>) -> T {
        future.now_or_never().expect("it has ended")
    }

    fn read(gateway: &Gateway, range: Range<u64>) -> BioResult {
        done(gateway.read(Sector(range.start), Sectors(range.end - range.start))).map(drop)
    }

    fn write(gateway: &Gateway, range: Range<u64>) -> BioResult {
        let mut data = Buffer::try_zeroed(((range.end - range.start) * 512) as usize).unwrap();
        done(gateway.write(Sector(range.start), &mut data, Flags::empty()))
    }

    #[test]
    fn a_sector_of_which_a_byte_was_not_read_is_not_read() {
        let gateway = device(&[1023..1025, 4096..4608, 5000..5001]);
        let lost: Vec<u64> =
            (0..SIZE).filter(|n| read(&gateway, *n..n + 1) == Err(Status::Medium)).collect();
        assert_eq!(lost, [1, 2, 8, 9]);
        assert_eq!(read(&gateway, 3..8), Ok(()));
        assert_eq!(read(&gateway, 0..2), Err(Status::Medium));
        assert_eq!(read(&gateway, 9..12), Err(Status::Medium));
    }

    /// Against a bit for each sector: all that was not read fails, until it is written.
    #[test]
    fn reads_and_writes_agree_with_a_bit_for_each_sector() {
        let mut rng = Rng::new(1);
        for _ in 0..300 {
            let mut lost = vec![false; SIZE as usize];
            let mut areas: Vec<Range<u64>> = Vec::new();
            let mut at = rng.below(5);
            while at < SIZE {
                let end = (at + 1 + rng.below(9)).min(SIZE);
                lost[at as usize..end as usize].fill(true);
                areas.push(at * 512..end * 512);
                at = end + 1 + rng.below(9);
            }
            let gateway = device(&areas);
            for _ in 0..60 {
                let start = rng.below(SIZE);
                let end = start + 1 + rng.below((SIZE - start).min(20));
                let bits = start as usize..end as usize;
                match rng.below(6) {
                    0..3 => {
                        let is_lost = lost[bits].contains(&true);
                        let expected = if is_lost { Err(Status::Medium) } else { Ok(()) };
                        assert_eq!(read(&gateway, start..end), expected);
                    }
                    3 => {
                        let wrote = write(&gateway, start..end);
                        assert_eq!(wrote.is_ok(), end < SIZE);
                        if wrote.is_ok() {
                            lost[bits].fill(false);
                        }
                    }
                    4 => {
                        let (sector, len) = (Sector(start), Sectors(end - start));
                        if done(gateway.submit(Bio::write_zeroes(sector, len))).is_ok() {
                            lost[bits].fill(false);
                        }
                    }
                    // It says nothing of the contents.
                    _ => {
                        let (sector, len) = (Sector(start), Sectors(end - start));
                        let (Ok(()) | Err(_)) = done(gateway.submit(Bio::discard(sector, len)));
                    }
                }
            }
            // Nothing lost is said to be zeroes, and everything else is.
            let mut at = 0;
            while at < SIZE {
                let extents = done(gateway.extents(Sector(at), Sectors(SIZE - at))).unwrap();
                for extent in extents.iter() {
                    let is_zero = extent.state.contains(ExtentState::ZERO);
                    let bits = &lost[at as usize..(at + extent.len.0) as usize];
                    assert!(bits.iter().all(|lost| *lost != is_zero), "{at} {extent:?}");
                    at += extent.len.0;
                }
            }
        }
    }
}
