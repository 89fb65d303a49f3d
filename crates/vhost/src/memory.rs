//! The memory of a guest: the files that its front end sends, mapped, and their parts as segments of bios.
//!
//! A mapping lives until the table that has it, every queue's [`View`] of it and the last segment in flight are gone, so that no
//! table that a front end sends takes memory away from an I/O.
//!
//! **Files.** Only memory is accepted: a memfd, or a file of tmpfs or hugetlbfs. Another file's pages come from a disk or from
//! another process, for which a reactor would wait. F_GET_SEALS tells them apart without asking their file system. A file that can be
//! shortened ends this process by SIGBUS when it is: see [`Unsealed`].
#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ashlar_block::buffer::ForeignMemory;
use ashlar_block::{Segment, Segments};
use ashlar_engine::sleep;
use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};
use rustix::io::Errno;
use smallvec::SmallVec;
use vm_memory::volatile_memory::Error as BadAccess;
use vm_memory::{
    AtomicAccess, Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap,
    GuestMemoryRegion, GuestRegionMmap, GuestUsize, MmapRegion, VolatileMemory,
};

/// The most regions of a guest.
pub(crate) const MAX_REGIONS: usize = 256;
/// The pause between two looks at memory that a device still has.
const ROUND: Duration = Duration::from_millis(10);

/// What becomes of a guest whose memory its front end can shorten. QEMU seals its memfds against that; cloud-hypervisor and
/// libblkio do not, and files of tmpfs and hugetlbfs cannot be sealed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Unsealed {
    /// It is served, and the log says so: its front end (not the guest) can end this process.
    #[default]
    Serve,
    /// It is refused.
    Refuse,
}

/// Why memory was not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadMemory {
    /// The file is on a disk or belongs to another process's file system.
    #[error("a file that is not memory: only a memfd, tmpfs and hugetlbfs are")]
    NotMemory,
    /// The region does not fit the file.
    #[error("a region of {size} bytes at {offset} of a file of {file} bytes")]
    BeyondFile {
        /// The region's length.
        size: u64,
        /// Where it begins in the file.
        offset: u64,
        /// The file's length.
        file: u64,
    },
    /// Its front end could shorten it.
    #[error("a file that is not sealed against shrinking")]
    NotSealed,
    /// More regions than [`MAX_REGIONS`].
    #[error("more than {MAX_REGIONS} regions")]
    TooMany,
    /// Regions overlap, are not in the table, or lie at impossible addresses.
    #[error("a region at guest address {0:#x} that overlaps another one, or is not there")]
    BadPlace(u64),
    /// mmap(2) failed.
    #[error("mapping a region: {0}")]
    Map(io::Error),
}

/// A region as a front end describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Region {
    /// Its address in the guest.
    pub(crate) guest: u64,
    /// Its address in the front end's process.
    pub(crate) user: u64,
    /// Its length in bytes.
    pub(crate) size: u64,
    /// Where it begins in its file.
    pub(crate) offset: u64,
}

/// A table of regions. A changed table is a new value.
#[derive(Clone, Default)]
pub(crate) struct GuestMap {
    memory: GuestMemoryMmap<()>,
    regions: Vec<Region>,
}

impl fmt::Debug for GuestMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.regions.fmt(f)
    }
}

/// Maps `size` bytes of a file that holds memory; says whether it is sealed against shrinking.
///
/// # Errors
/// It is not memory, or not that long; or those of mmap(2).
pub(crate) fn map(
    file: OwnedFd,
    offset: u64,
    size: u64,
) -> Result<(MmapRegion<()>, bool), BadMemory> {
    let mut seals = fcntl_get_seals(&file).map_err(|_| BadMemory::NotMemory)?;
    if !seals.contains(SealFlags::SHRINK) {
        match fcntl_add_seals(&file, SealFlags::SHRINK) {
            Ok(()) => seals |= SealFlags::SHRINK,
            // Made without permission to seal, or opened for reading.
            Err(errno) => tracing::debug!(%errno, "sealing the memory of a guest"),
        }
    }
    let length = fstat(&file).map_err(|errno: Errno| BadMemory::Map(errno.into()))?.st_size as u64;
    let end = offset.checked_add(size);
    let Some(len) = usize::try_from(size).ok().filter(|_| end.is_some_and(|end| end <= length))
    else {
        return Err(BadMemory::BeyondFile { size, offset, file: length });
    };
    let file = FileOffset::new(File::from(file), offset);
    let error = |error| BadMemory::Map(io::Error::other(error));
    Ok((MmapRegion::from_file(file, len).map_err(error)?, seals.contains(SealFlags::SHRINK)))
}

impl GuestMap {
    /// The table with one more region.
    ///
    /// # Errors
    /// As [`map`]; or the region has no place.
    pub(crate) fn with(
        &self,
        region: Region,
        file: OwnedFd,
        unsealed: Unsealed,
    ) -> Result<(Self, bool), BadMemory> {
        if self.regions.len() == MAX_REGIONS {
            return Err(BadMemory::TooMany);
        }
        let (mapping, is_sealed) = map(file, region.offset, region.size)?;
        if !is_sealed && unsealed == Unsealed::Refuse {
            return Err(BadMemory::NotSealed);
        }
        let bad = BadMemory::BadPlace(region.guest);
        if region.user.checked_add(region.size).is_none() {
            return Err(bad);
        }
        let Some(mapped) = GuestRegionMmap::new(mapping, GuestAddress(region.guest)) else {
            return Err(bad);
        };
        let memory = self.memory.insert_region(Arc::new(mapped)).map_err(|_| bad)?;
        let mut regions = self.regions.clone();
        regions.push(region);
        Ok((Self { memory, regions }, is_sealed))
    }

    /// The table without a region. Its place in the file is not compared: front ends leave it out.
    ///
    /// # Errors
    /// There is no such region.
    pub(crate) fn without(&self, region: Region) -> Result<Self, BadMemory> {
        let bad = || BadMemory::BadPlace(region.guest);
        let key = |region: &Region| (region.guest, region.user, region.size);
        let same = |other: &Region| key(other) == key(&region);
        let index = self.regions.iter().position(same).ok_or_else(bad)?;
        let (guest, size) = (GuestAddress(region.guest), region.size as GuestUsize);
        let (memory, _) = self.memory.remove_region(guest, size).map_err(|_| bad())?;
        let mut regions = self.regions.clone();
        regions.remove(index);
        Ok(Self { memory, regions })
    }

    /// The mapped regions, for rings.
    pub(crate) fn memory(&self) -> &GuestMemoryMmap<()> {
        &self.memory
    }

    /// The `len` bytes at an address in the front end's process; `None` if they are not all in one region.
    pub(crate) fn area(&self, user: u64, len: usize) -> Option<Area> {
        let of = |region: &&Region| user >= region.user && user - region.user < region.size;
        let region = self.regions.iter().find(of)?;
        let start = user - region.user;
        if region.size - start < len as u64 {
            return None;
        }
        let mapped = self.memory.find_region(GuestAddress(region.guest))?;
        Some(Area { mapping: mapped.get_mmap(), start: usize::try_from(start).ok()? })
    }

    /// The table for one thread.
    pub(crate) fn view(&self) -> View {
        let mut parts: Vec<Part> = Vec::with_capacity(self.memory.num_regions());
        for region in self.memory.iter() {
            let mapping = region.get_mmap();
            // A mapping is never at address 0.
            let Some(start) = NonNull::new(mapping.as_ptr()) else { continue };
            parts.push(Part {
                start: region.start_addr().0,
                at: start,
                memory: foreign(start, &mapping),
                mapping,
            });
        }
        View(parts)
    }
}

/// A mapped region, of which bios get parts.
fn foreign(start: NonNull<u8>, mapping: &Arc<MmapRegion<()>>) -> ForeignMemory {
    // SAFETY: mapped for reading and writing until the last clone of `mapping` is dropped. Its file is sealed against shrinking, or its
    // user has accepted that shrinking it ends this process (`Unsealed`). Other access of this process is vm-memory's to rings, by
    // volatile and atomic operations through raw pointers.
    unsafe { ForeignMemory::new(start, mapping.size(), Arc::clone(mapping) as _) }
}

/// Consecutive bytes of one region, for the parts of a ring.
pub(crate) struct Area {
    mapping: Arc<MmapRegion<()>>,
    start: usize,
}

impl Area {
    /// Whether it begins at a multiple of `bytes`, at most a page, in this process.
    pub(crate) fn is_aligned(&self, bytes: usize) -> bool {
        self.start.is_multiple_of(bytes)
    }

    /// Reads a value.
    ///
    /// # Errors
    /// It is not aligned, or not in the region.
    pub(crate) fn load<T: AtomicAccess>(&self, at: usize, order: Ordering) -> Result<T, BadAccess> {
        self.mapping.as_volatile_slice().load(self.start + at, order)
    }

    /// Writes a value.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub(crate) fn store<T: AtomicAccess>(
        &self,
        at: usize,
        value: T,
        order: Ordering,
    ) -> Result<(), BadAccess> {
        self.mapping.as_volatile_slice().store(value, self.start + at, order)
    }
}

struct Part {
    /// The guest's address.
    start: u64,
    /// This process's address.
    at: NonNull<u8>,
    memory: ForeignMemory,
    mapping: Arc<MmapRegion<()>>,
}

/// A table of regions as segments, for one thread: it shares no count of references with others.
pub(crate) struct View(Vec<Part>);

impl View {
    /// Appends the `len` bytes at a guest's address; `None` if they are not all in its memory.
    pub(crate) fn segments(&self, address: u64, len: u32, to: &mut Segments) -> Option<()> {
        let (mut at, mut rest) = (address, u64::from(len));
        while rest > 0 {
            // Sorted by address, as the table is.
            let next = self.0.partition_point(|part| part.start <= at);
            let part = self.0.get(next.checked_sub(1)?)?;
            let offset = at - part.start;
            let room = (part.memory.len() as u64).checked_sub(offset).filter(|room| *room > 0)?;
            // No segment is longer than 2 GiB.
            let take = rest.min(room).min(1 << 30);
            let segment: Segment =
                part.memory.segment(offset as usize..(offset + take) as usize)?;
            to.push(segment);
            (at, rest) = (at.checked_add(take)?, rest - take);
        }
        Some(())
    }
}

impl View {
    /// The same parts of the memory as segments of their own: the lease says when no I/O has them any more. `None` if they are
    /// of another view.
    pub(crate) fn lease(&self, segments: &Segments) -> Option<(Segments, Lease)> {
        let mut lease: SmallVec<[(NonNull<u8>, ForeignMemory); 1]> = SmallVec::new();
        let mut leased = Segments::with_capacity(segments.len());
        for segment in segments {
            let address = segment.as_ptr().addr();
            let offset = |at: NonNull<u8>, len: usize| {
                let offset = address.checked_sub(at.addr().get())?;
                (offset < len).then_some(offset)
            };
            let is_in = |part: &&Part| offset(part.at, part.memory.len()).is_some();
            let part = self.0.iter().find(is_in)?;
            if lease.iter().all(|(at, _)| *at != part.at) {
                lease.push((part.at, foreign(part.at, &part.mapping)));
            }
            let (at, memory) = lease.iter().find(|(at, _)| *at == part.at)?;
            let start = offset(*at, memory.len())?;
            leased.push(memory.segment(start..start + segment.len())?);
        }
        Some((leased, Lease(lease.into_iter().map(|(_, memory)| memory).collect())))
    }
}

/// Memory that a request has for itself.
pub(crate) struct Lease(SmallVec<[ForeignMemory; 1]>);

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({})", self.0.len())
    }
}

impl Lease {
    /// Waits until no I/O holds a segment of it.
    pub(crate) async fn ended(&self) {
        while !self.0.iter().all(ForeignMemory::is_unused) {
            sleep(ROUND).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use ashlar_block::buffer::gather;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    fn memfd(flags: MemfdFlags, len: u64) -> OwnedFd {
        let file = memfd_create("guest", flags).unwrap();
        ftruncate(&file, len).unwrap();
        file
    }

    fn region(guest: u64, size: u64) -> Region {
        Region { guest, user: guest + 0x7000_0000, size, offset: 0 }
    }

    #[test]
    fn a_buffer_may_cross_regions_but_not_leave_them() {
        let map = GuestMap::default();
        let sealable = || memfd(MemfdFlags::ALLOW_SEALING, 8192);
        let (map, sealed) = map.with(region(4096, 8192), sealable(), Unsealed::Refuse).unwrap();
        assert!(sealed);
        let (map, _) = map.with(region(12288, 8192), sealable(), Unsealed::Refuse).unwrap();
        let view = map.view();
        let mut segments = Segments::new();
        view.segments(12286, 4, &mut segments).unwrap();
        assert_eq!(segments.iter().map(Segment::len).collect::<Vec<_>>(), [2, 2]);
        segments[1].copy_from(b"ab");
        drop(map);
        let mut bytes = [0; 4];
        gather(&segments, &mut bytes);
        assert_eq!(&bytes, b"\0\0ab");
        for (address, len) in [(4095, 1), (20479, 2), (0, u32::MAX), (u64::MAX, 2), (20480, 1)] {
            assert!(view.segments(address, len, &mut Segments::new()).is_none(), "{address} {len}");
        }
    }

    #[test]
    fn what_is_no_memory_or_too_short_or_overlaps_is_refused() {
        let map = GuestMap::default();
        let on_disk = tempfile::tempfile().unwrap();
        let is_memory = fcntl_get_seals(&on_disk).is_ok();
        on_disk.set_len(8192).unwrap();
        let result = map.with(region(0, 4096), on_disk.into(), Unsealed::Serve);
        assert!(is_memory || matches!(result, Err(BadMemory::NotMemory)));
        let short = memfd(MemfdFlags::empty(), 4096);
        let result = map.with(region(0, 8192), short, Unsealed::Serve);
        assert!(matches!(result, Err(BadMemory::BeyondFile { file: 4096, .. })));
        let file = || memfd(MemfdFlags::empty(), 8192);
        let result = map.with(region(0, 8192), file(), Unsealed::Refuse);
        assert!(matches!(result, Err(BadMemory::NotSealed)));
        let (map, sealed) = map.with(region(0, 8192), file(), Unsealed::Serve).unwrap();
        assert!(!sealed);
        for (guest, size) in [(4096, 4096), (u64::MAX - 4095, 8192)] {
            let place = Region { guest, user: 0, size, offset: 0 };
            let result = map.with(place, file(), Unsealed::Serve);
            assert!(matches!(result, Err(BadMemory::BadPlace(_))), "{result:?}");
        }
        assert!(map.area(0x7000_0000 + 4096, 4096).is_some());
        for (user, len) in [(4097, 4096), (8192, 1), (u64::MAX - 0x7000_0000, 1)] {
            assert!(map.area(0x7000_0000 + user, len).is_none());
        }
        assert!(matches!(map.without(region(0, 4096)), Err(BadMemory::BadPlace(0))));
        assert!(map.without(region(0, 8192)).unwrap().regions.is_empty());
    }
}
