//! Buffers whose memory comes from slabs. A process has only one source of buffers, and the test lowers the limit on
//! the size of files: it runs in its own process.

use std::process::Command;
use std::ptr::NonNull;

use ashlar_block::buffer::{BLOCK_SIZES, Buffer, set_source};
use ashlar_engine::slabs::Slabs;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn address(buffer: &mut Buffer) -> NonNull<u8> {
    NonNull::new(buffer.whole().as_ptr()).unwrap()
}

/// Tells the process of the test that it is that process.
const ALONE_ENV: &str = "ASHLAR_TEST_SLABS_ALONE";

#[test]
fn buffers_come_from_the_source_once_it_is_set() {
    let alone = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "slabs::alone_in_its_process", "--nocapture"])
        .env(ALONE_ENV, "1")
        .output()
        .unwrap();
    assert_eq!(alone.status.code(), Some(0), "{alone:?}");
    assert!(String::from_utf8_lossy(&alone.stdout).contains("1 passed"), "{alone:?}");
}

/// Active only in the process that the test above starts.
#[test]
fn alone_in_its_process() {
    if std::env::var_os(ALONE_ENV).is_none() {
        return;
    }
    let region_bytes = 32 << 20;
    let (slabs, _) = Slabs::shared(&BLOCK_SIZES, region_bytes, 64 << 20).unwrap();
    let slabs: &'static Slabs = Box::leak(Box::new(slabs));
    let mut before = Buffer::from_slice(&[3; 5000]);
    let mut kept = Buffer::alloc(5000);
    assert!(!slabs.owns(address(&mut before)) && !slabs.owns(address(&mut kept)));
    // One block is in the thread's list, one in use.
    drop(kept);
    set_source(slabs).unwrap();
    set_source(slabs).unwrap_err();

    // The block in the list is used up, and not put back.
    drop(Buffer::alloc(5000));
    for _ in 0..3 {
        let mut buffer = Buffer::alloc(5000);
        assert!(slabs.owns(address(&mut buffer)));
    }
    assert!(before.as_slice().iter().all(|byte| *byte == 3));
    drop(before);
    let mut buffer = Buffer::alloc(5000);
    assert!(slabs.owns(address(&mut buffer)));

    // Requests beyond the region's size, or larger than any block, come from the allocator.
    let many: Vec<_> = (0..5).map(|_| Buffer::zeroed(8 << 20)).collect();
    let of_slabs = many.into_iter().map(|mut buffer| slabs.owns(address(&mut buffer)));
    assert_eq!(of_slabs.collect::<Vec<_>>(), [true, true, true, true, false]);
    assert!(!slabs.owns(address(&mut Buffer::alloc((8 << 20) + 1))));

    // Freed on another thread, the block stays in that thread's list.
    std::thread::spawn(move || drop(buffer)).join().unwrap();
    assert!(slabs.owns(address(&mut Buffer::alloc(5000))));

    // Without the check, the limit on files would end the process.
    let limit = Rlimit { current: Some(1 << 20), ..getrlimit(Resource::Fsize) };
    setrlimit(Resource::Fsize, limit).unwrap();
    let refused = Slabs::shared(&BLOCK_SIZES, region_bytes, 0).map(|_| ());
    assert_eq!(refused.unwrap_err(), Errno::FBIG);
}
