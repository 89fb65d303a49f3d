//! The bio: one block I/O on its way down the stack.

use bitflags::bitflags;
use smallvec::SmallVec;

use crate::buffer::{Buffer, Segment};
use crate::units::{Sector, Sectors};

/// The operation of a bio (the kernel's `REQ_OP_*`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Fill the segments from the device.
    Read,
    /// Write the segments to the device.
    Write,
    /// Make every write that was acknowledged before this bio was submitted durable.
    Flush,
    /// The range is not needed any more; its contents are undefined until it is written.
    Discard,
    /// The range reads as zeroes afterwards.
    WriteZeroes,
}

impl Op {
    /// Every operation, for tables and enumeration in tests.
    pub const ALL: [Self; 5] =
        [Self::Read, Self::Write, Self::Flush, Self::Discard, Self::WriteZeroes];

    /// Whether the operation changes stored data.
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::Discard | Self::WriteZeroes)
    }

    /// Whether the bio carries data segments.
    pub const fn has_data(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }
}

bitflags! {
    /// Modifiers of an operation.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Flags: u16 {
        /// The data is durable when the bio completes (forced unit access).
        const FUA = 1;
        /// All previously acknowledged data is durable before this bio's data is written.
        const PREFLUSH = 1 << 1;
        /// A task waits for this bio.
        const SYNC = 1 << 2;
        /// Fail with `Again` instead of waiting for a resource.
        const NOWAIT = 1 << 3;
        /// A speculative read: may fail for any reason, never retried.
        const RAHEAD = 1 << 4;
        /// Write-zeroes must keep the space allocated (the kernel's `REQ_NOUNMAP`, NBD's NO_HOLE).
        const NOUNMAP = 1 << 5;
        /// Write-zeroes only where that is faster than writing (NBD's FAST_ZERO): on devices with
        /// [`Features::FAST_ZERO`](crate::Features::FAST_ZERO). Otherwise `NotSupported`, and nothing was written.
        const FAST = 1 << 6;
        /// Metadata of a file system or of an array.
        const META = 1 << 7;
        /// Never merged with another bio.
        const NOMERGE = 1 << 8;
        /// The submitter of this read does not use its segments again if it fails (a [`Buffer`] switches to other memory
        /// itself). So the device may read into them even after the read has failed at its deadline, and nothing is copied. The
        /// gateway clears this flag on bios to layers, because a layer may read again into the same memory.
        const GIVEN = 1 << 9;
        /// Write-zeroes only by the device's own command, fast or not (the kernel's `BLKDEV_ZERO_NOFALLBACK`). Where zeroes would
        /// have to be written, `NotSupported`, and nothing was written.
        const NOFALLBACK = 1 << 10;
    }
}

impl Flags {
    /// A write-zeroes with one of these may be refused.
    pub const REFUSABLE: Self = Self::FAST.union(Self::NOFALLBACK);
}

/// The copy of its sectors that a read names: [`Self::ANY`] is a plain read, for which the layers
/// choose; from 1 on, exactly this copy, and no other instead of it.
///
/// [`Gateway::copies`](crate::Gateway::copies) says how many there are. Each layer passes the number on to the
/// device below, or answers it: a mirror by the member that holds the copy. It never changes what a
/// plain read returns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CopyNumber(pub u16);

impl CopyNumber {
    /// Whichever copy the layers choose: a plain read.
    pub const ANY: Self = Self(0);
    /// Most copies that a device counts; a reader of every copy takes that many reads.
    pub const MAX: Self = Self(64);
}

/// The data of a bio: usually one segment.
pub type Segments = SmallVec<[Segment; 1]>;

/// One block I/O. For reads and writes the segments' lengths add up to `len`; the other operations
/// carry none.
#[derive(Clone, Debug)]
pub struct Bio {
    /// The operation.
    pub op: Op,
    /// Its modifiers.
    pub flags: Flags,
    /// First sector.
    pub sector: Sector,
    /// Number of sectors (0 for a flush).
    pub len: Sectors,
    /// The data.
    pub segments: Segments,
    /// The submitter's I/O priority (`ioprio_set(2)`); bios of different priority never merge.
    pub ioprio: u16,
    /// The copy that a read names; [`CopyNumber::ANY`] for all other operations.
    pub copy: CopyNumber,
}

impl Bio {
    /// An I/O without data.
    fn bare(op: Op, sector: Sector, len: Sectors) -> Self {
        Self {
            op,
            flags: Flags::empty(),
            sector,
            len,
            segments: Segments::new(),
            ioprio: 0,
            copy: CopyNumber::ANY,
        }
    }

    fn with_data(op: Op, sector: Sector, segments: Segments) -> Self {
        let bytes: usize = segments.iter().map(Segment::len).sum();
        // A partial last sector makes the length mismatch, which the gateway refuses.
        let len = Sectors::from_bytes_floor(bytes as u64);
        Self { segments, ..Self::bare(op, sector, len) }
    }

    /// A read that fills `segments`.
    pub fn read(sector: Sector, segments: impl Into<Segments>) -> Self {
        Self::with_data(Op::Read, sector, segments.into())
    }

    /// A write of `segments`.
    pub fn write(sector: Sector, segments: impl Into<Segments>) -> Self {
        Self::with_data(Op::Write, sector, segments.into())
    }

    /// A read into one whole buffer.
    pub fn read_into(sector: Sector, buffer: &mut Buffer) -> Self {
        Self::read(sector, [buffer.whole()])
    }

    /// A write of one whole buffer.
    pub fn write_from(sector: Sector, buffer: &mut Buffer) -> Self {
        Self::write(sector, [buffer.whole()])
    }

    /// A cache flush.
    pub fn flush() -> Self {
        Self::bare(Op::Flush, Sector::ZERO, Sectors::ZERO)
    }

    /// A discard.
    pub fn discard(sector: Sector, len: Sectors) -> Self {
        Self::bare(Op::Discard, sector, len)
    }

    /// A write of zeroes.
    pub fn write_zeroes(sector: Sector, len: Sectors) -> Self {
        Self::bare(Op::WriteZeroes, sector, len)
    }

    /// Adds flags.
    #[must_use]
    pub fn with_flags(mut self, flags: Flags) -> Self {
        self.flags |= flags;
        self
    }

    /// Names the copy to read.
    #[must_use]
    pub fn with_copy(mut self, copy: CopyNumber) -> Self {
        self.copy = copy;
        self
    }

    /// The same I/O at another sector of a lower device.
    #[inline]
    #[must_use]
    pub fn remapped(&self, sector: Sector) -> Self {
        let segments = match self.segments.as_slice() {
            [one] => Segments::from_buf([one.clone()]),
            all => all.iter().cloned().collect(),
        };
        let Self { op, flags, len, ioprio, copy, .. } = *self;
        Self { op, flags, sector, len, segments, ioprio, copy }
    }

    /// The sector after the last one.
    #[inline]
    pub fn end(&self) -> Sector {
        self.sector + self.len
    }

    /// Bytes in the segments.
    pub fn data_bytes(&self) -> u64 {
        self.segments.iter().map(|s| s.len() as u64).sum()
    }

    /// A bio of the same operation, flags, priority and copy for the part `[at, at + len)` of this one's range
    /// (absolute sectors), sent to `target` on a lower device.
    pub fn slice_to(&self, at: Sector, len: Sectors, target: Sector) -> Self {
        debug_assert!(at >= self.sector && at + len <= self.end());
        let segments = if self.op.has_data() {
            slice_segments(&self.segments, (at - self.sector).bytes(), len.bytes())
        } else {
            Segments::new()
        };
        let Self { op, flags, ioprio, copy, .. } = *self;
        Self { op, flags, sector: target, len, segments, ioprio, copy }
    }

    /// Splits off and returns the first `n` sectors.
    ///
    /// # Panics
    /// When the bio is not longer than `n`.
    pub fn split_front(&mut self, n: Sectors) -> Self {
        assert!(n < self.len, "split at the end of a bio");
        let front = self.slice_to(self.sector, n, self.sector);
        *self = self.slice_to(self.sector + n, self.len - n, self.sector + n);
        front
    }
}

/// The part `[skip, skip + len)`, in bytes, of a list of segments.
fn slice_segments(segments: &[Segment], skip: u64, len: u64) -> Segments {
    let (mut skip, mut left) = (skip as usize, len as usize);
    let mut out = Segments::new();
    for segment in segments {
        if left == 0 {
            break;
        }
        if skip >= segment.len() {
            skip -= segment.len();
            continue;
        }
        let take = left.min(segment.len() - skip);
        out.push(segment.slice(skip..skip + take));
        skip = 0;
        left -= take;
    }
    debug_assert_eq!(left, 0, "slice past the end of the segments");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_bio_carries_its_data_along() {
        let mut bytes = Vec::new();
        for sector in 0..8u8 {
            bytes.extend([sector; 512]);
        }
        let (mut a, mut b) =
            (Buffer::from_slice(&bytes[..1536]), Buffer::from_slice(&bytes[1536..]));
        let mut bio = Bio::write(Sector(100), Segments::from_iter([a.whole(), b.whole()]));
        assert_eq!(bio.len, Sectors(8));
        let front = bio.split_front(Sectors(5));
        assert_eq!((front.sector, front.len), (Sector(100), Sectors(5)));
        assert_eq!((bio.sector, bio.len), (Sector(105), Sectors(3)));
        assert_eq!(front.segments.len(), 2);
        assert_eq!((front.data_bytes(), bio.data_bytes()), (2560, 1536));
        let mut first = [0];
        bio.segments[0].copy_to(&mut first);
        assert_eq!(first, [5]);
    }

    #[test]
    fn every_part_of_a_read_names_the_same_copy() {
        let mut data = Buffer::alloc(4096);
        let mut bio = Bio::read_into(Sector(0), &mut data).with_copy(CopyNumber(3));
        let front = bio.split_front(Sectors(2));
        let part = bio.slice_to(Sector(4), Sectors(1), Sector(90));
        assert_eq!([front.copy, bio.copy, part.copy], [CopyNumber(3); 3]);
    }

    #[test]
    fn slices_of_every_range_find_their_bytes() {
        let all: Vec<u8> = (0..24).collect();
        let mut parts: Vec<_> = all.chunks(7).map(Buffer::from_slice).collect();
        let segments: Segments = parts.iter_mut().map(Buffer::whole).collect();
        for skip in 0..24usize {
            for len in 0..=24 - skip {
                let mut got = Vec::new();
                for s in slice_segments(&segments, skip as u64, len as u64) {
                    let mut part = vec![0; s.len()];
                    s.copy_to(&mut part);
                    got.extend(part);
                }
                assert_eq!(got, &all[skip..skip + len]);
            }
        }
    }
}
