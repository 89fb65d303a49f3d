//! A RAM disk: sparse, volatile, and every I/O ends before its submission returns.
//!
//! The memory is one anonymous mapping, which the kernel fills as it is written; a discard returns whole pages
//! (MADV_DONTNEED) and zeroes the rest, so it reads as zeroes. The kernel is asked for huge pages: the first write to each 2 MiB
//! takes all of them, and a discard of less splits them.
//!
//! Several threads may copy to and from the contents at once, as on any disk: the contract orders nothing between I/Os
//! in flight, so overlapping reads and writes of one block may get either value. To keep that defined in Rust too, the
//! disk is an array of **atomic bytes**, as segments are ([`shared`]). Whatever tells the second submitter that the first
//! I/O has ended also orders the two.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;

use ashlar_block::bio::{Bio, Op};
use ashlar_block::buffer::shared;
use ashlar_block::device::{BlockDevice, IoFuture};
use ashlar_block::disk::Disk;
use ashlar_block::limits::{Features, Limits};
use ashlar_block::units::{Sector, Sectors};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const PAGE: usize = 4096;

/// The memory of a disk.
struct Memory {
    start: NonNull<AtomicU8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone, and all access is through atomics.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(bytes: usize) -> io::Result<Self> {
        let len = bytes.max(PAGE);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address chosen by the kernel touches no other memory.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, protection, flags | MapFlags::NORESERVE)
        }?;
        // SAFETY: the advice does not change the contents. A kernel without huge pages refuses it, and uses others.
        let (Ok(()) | Err(_)) = unsafe { madvise(start, len, Advice::LinuxHugepage) };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: the mapping has that length, contains zero or what was stored, and lives as long as `self`; it is
        // accessed as atomics only.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Releases whole pages: they read as zeroes.
    fn forget(&self, start: usize, len: usize) -> io::Result<()> {
        debug_assert!(start.is_multiple_of(PAGE) && len.is_multiple_of(PAGE));
        debug_assert!(start + len <= self.len);
        // SAFETY: the range lies in the mapping. For the atomics, replacing its pages by zero pages is a store of
        // zeroes.
        unsafe {
            let at = self.start.as_ptr().cast::<u8>().add(start);
            madvise(at.cast(), len, Advice::LinuxDontNeed)?;
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        if let Err(error) = unmapped {
            tracing::error!(%error, "unmapping a RAM disk");
        }
    }
}

/// See the module text.
pub struct RamDevice {
    disk: Disk,
    memory: Memory,
}

impl RamDevice {
    /// A RAM disk full of zeroes, with blocks of 512 bytes.
    ///
    /// # Errors
    /// `OutOfMemory` and others of mmap(2).
    pub fn new(name: impl Into<String>, capacity: Sectors) -> io::Result<Self> {
        Self::with_block(name, capacity, 512)
    }

    /// A RAM disk with logical blocks of `block_bytes`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_block(
        name: impl Into<String>,
        capacity: Sectors,
        block_bytes: u32,
    ) -> io::Result<Self> {
        let bytes = usize::try_from(capacity.bytes()).map_err(io::Error::other)?;
        let limits = Limits {
            logical_block_bytes: block_bytes,
            physical_block_bytes: block_bytes.max(PAGE as u32),
            io_min_bytes: block_bytes.max(PAGE as u32),
            max_hw_sectors: Sectors(1 << 16),
            max_segments: 1 << 16,
            dma_alignment_bytes: 1,
            max_hw_discard: Sectors(u64::from(u32::MAX)),
            discard_granularity_bytes: PAGE as u32,
            max_write_zeroes: Sectors(u64::from(u32::MAX)),
            features: Features::DISCARD_ZEROES | Features::FAST_ZERO,
            ..Limits::default()
        };
        Ok(Self { disk: Disk::new(name, capacity, limits), memory: Memory::new(bytes)? })
    }

    /// The bytes of a range that the gateway has checked.
    fn range(&self, sector: Sector, len: Sectors) -> &[AtomicU8] {
        let start = sector.bytes() as usize;
        &self.memory.bytes()[start..start + len.bytes() as usize]
    }

    /// Copies between the disk and the segments of a read or a write.
    fn transfer(&self, bio: &Bio, copy: impl Fn(&[AtomicU8], &[AtomicU8])) {
        let mut bytes = self.range(bio.sector, bio.len);
        for segment in &bio.segments {
            let (part, rest) = bytes.split_at(segment.len());
            copy(part, segment.bytes());
            bytes = rest;
        }
    }

    /// Zeroes a range, and returns whole pages to the kernel.
    fn zero(&self, sector: Sector, len: Sectors) {
        let (start, end) = (sector.bytes() as usize, (sector + len).bytes() as usize);
        let (first_page, last_page) = (start.next_multiple_of(PAGE), end - end % PAGE);
        let forgotten = first_page < last_page
            && self.memory.forget(first_page, last_page - first_page).is_ok();
        let clear = |from: usize, to: usize| shared::zero(&self.memory.bytes()[from..to]);
        if forgotten {
            clear(start, first_page);
            clear(last_page, end);
        } else {
            clear(start, end);
        }
    }
}

impl BlockDevice for RamDevice {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        match bio.op {
            Op::Read => self.transfer(&bio, shared::copy),
            Op::Write => self.transfer(&bio, |disk, data| shared::copy(data, disk)),
            Op::Discard | Op::WriteZeroes => self.zero(bio.sector, bio.len),
            Op::Flush => {}
        }
        // The device drops its reference to the data before the I/O ends.
        drop(bio);
        IoFuture::ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_block::bio::Segments;
    use ashlar_block::buffer::Buffer;
    use ashlar_block::gateway::Gateway;
    use std::sync::Arc;

    fn now<T>(future: impl Future<Output = T>) -> T {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::pin!(future).poll(&mut cx) {
            std::task::Poll::Ready(output) => output,
            std::task::Poll::Pending => panic!("a RAM disk does not wait"),
        }
    }

    #[test]
    fn a_disk_behaves_like_a_vector_of_bytes() {
        const SECTORS: u64 = 64;
        let ram = Gateway::new(Arc::new(RamDevice::new("ram", Sectors(SECTORS)).unwrap()));
        let mut oracle = vec![0_u8; SECTORS as usize * 512];
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..3000 {
            let start = random(SECTORS);
            let len = 1 + random(SECTORS - start);
            let bytes = start as usize * 512..(start + len) as usize * 512;
            match random(4) {
                0 | 1 => {
                    let data: Vec<u8> = bytes.clone().map(|_| random(256) as u8).collect();
                    // Cut at any byte: this tests segments of odd lengths too.
                    let cut = random(data.len() as u64) as usize;
                    let mut buffer = Buffer::from_slice(&data);
                    let mut rest = buffer.whole();
                    let segments = Segments::from_iter([rest.split_to(cut), rest]);
                    now(ram.submit(Bio::write(Sector(start), segments))).unwrap();
                    oracle[bytes].copy_from_slice(&data);
                }
                2 => {
                    let zero = if random(2) == 0 { Bio::discard } else { Bio::write_zeroes };
                    now(ram.submit(zero(Sector(start), Sectors(len)))).unwrap();
                    oracle[bytes].fill(0);
                }
                _ => {
                    let mut buffer = Buffer::alloc(bytes.len());
                    let mut rest = buffer.whole();
                    let front = rest.split_to(random(bytes.len() as u64) as usize);
                    let segments = Segments::from_iter([front, rest]);
                    now(ram.submit(Bio::read(Sector(start), segments))).unwrap();
                    assert!(buffer.as_slice() == &oracle[bytes]);
                }
            }
        }
    }

    #[test]
    fn a_huge_disk_costs_only_what_is_written() {
        let ram = RamDevice::new("big", Sectors::from_bytes_floor(1 << 40)).unwrap();
        let ram = Gateway::new(Arc::new(ram));
        let mut data = Buffer::from_slice(&[7; 512]);
        let last = Sector((1 << 31) - 1);
        now(ram.write(last, &mut data, Default::default())).unwrap();
        assert_eq!(now(ram.read(last, Sectors(1))).unwrap().as_slice(), [7; 512]);
        now(ram.submit(Bio::discard(Sector(0), Sectors(1 << 31)))).unwrap();
        assert_eq!(now(ram.read(last, Sectors(1))).unwrap().as_slice(), [0; 512]);
    }
}
