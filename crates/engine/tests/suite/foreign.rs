//! Disks that read and write the memory of another owner: here a memory file, whose other side is pread and pwrite.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;

use ashlar_block::bio::Bio;
use ashlar_block::buffer::ForeignMemory;
use ashlar_block::gateway::Gateway;
use ashlar_block::units::{Sector, Sectors};
use ashlar_engine::{OpenOptions, RamDevice, Reactor, ReactorConfig, open};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The longest segment.
const GIB_2: usize = 2 << 30;
/// Some offsets need more than 32 bits.
const GUEST_BYTES: usize = 5 << 30;

struct Mapping(NonNull<u8>);

// SAFETY: the value only unmaps the memory.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is of this length, and the owner is dropped last.
        unsafe { munmap(self.0.as_ptr().cast(), GUEST_BYTES) }.unwrap();
    }
}

fn guest() -> (File, ForeignMemory) {
    let file = File::from(memfd_create(c"ashlar-test-guest", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(GUEST_BYTES as u64).unwrap();
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let start = unsafe {
        mmap(
            std::ptr::null_mut(),
            GUEST_BYTES,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::NORESERVE,
            file.as_fd(),
            0,
        )
    };
    let start = NonNull::new(start.unwrap().cast()).unwrap();
    // SAFETY: the owner keeps the mapping, the test does not shorten the file, and no reference to the memory is made.
    let foreign = unsafe { ForeignMemory::new(start, GUEST_BYTES, Arc::new(Mapping(start))) };
    (file, foreign)
}

#[test]
fn disks_read_and_write_the_memory_of_another_owner() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let (side, foreign) = guest();
    Reactor::new(ReactorConfig::default()).unwrap().block_on(async {
        let disks = [
            Gateway::new(Arc::new(RamDevice::new("ram", Sectors(2048)).unwrap())),
            Gateway::new(Arc::new(open(&path, &OpenOptions::default()).unwrap())),
        ];
        // Odd addresses go through a bounce buffer where the file is opened for direct I/O.
        for at in [0, 4096, GIB_2 - 700, 2 * GIB_2 - 512, 2 * GIB_2 + 3, GUEST_BYTES - 4096] {
            let segment = || foreign.segment(at..at + 4096).unwrap();
            for (number, disk) in disks.iter().enumerate() {
                let data = [(at % 251) as u8 + number as u8 + 1; 4096];
                side.write_all_at(&data, at as u64).unwrap();
                disk.submit(Bio::write(Sector(8), [segment()])).await.unwrap();
                side.write_all_at(&[0; 4096], at as u64).unwrap();
                disk.submit(Bio::read(Sector(8), [segment()])).await.unwrap();
                let mut seen = [0; 4096];
                side.read_exact_at(&mut seen, at as u64).unwrap();
                assert!(seen == data, "disk {number}, memory at {at}");
            }
        }
        assert!(foreign.segment(1..GIB_2 + 2).is_none(), "longer than a segment");
    });
}
