//! The file driver on real files: data, holes, durability calls, locks, odd memory, truncation.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ashlar_block::bio::{Bio, Flags, Segments};
use ashlar_block::buffer::Buffer;
use ashlar_block::gateway::Gateway;
use ashlar_block::limits::Features;
use ashlar_block::status::Status;
use ashlar_block::units::{Sector, Sectors};
use ashlar_engine::file::Kind;
use ashlar_engine::{
    Engine, FileDevice, OpenError, OpenOptions, Reactor, ReactorConfig, open, sleep, spawn, timeout,
};

const MIB: u64 = 1 << 20;

fn run(test: impl Future<Output = ()>) {
    Reactor::new(ReactorConfig::default()).unwrap().block_on(async {
        timeout(Duration::from_secs(120), test).await.expect("the test hangs");
    });
}

/// An empty image of `bytes` in `dir`.
fn image(dir: &Path, bytes: u64) -> std::path::PathBuf {
    let path = dir.join("disk.img");
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

/// A directory on a disk (direct I/O) and one on tmpfs (if the system has one).
fn directories() -> Vec<tempfile::TempDir> {
    let mut all = vec![tempfile::tempdir().unwrap()];
    match tempfile::tempdir_in("/dev/shm") {
        Ok(dir) => all.push(dir),
        Err(error) => eprintln!("no tmpfs to test on: {error}"),
    }
    all
}

fn gateway(device: FileDevice) -> Gateway {
    Gateway::new(Arc::new(device))
}

fn open_rw(path: &Path) -> Gateway {
    gateway(open(path, &OpenOptions::default()).unwrap())
}

/// Allocated bytes.
fn allocated(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % n
    }

    fn bytes(&mut self, n: u64) -> Vec<u8> {
        (0..n).map(|_| self.below(256) as u8).collect()
    }
}

/// Random operations of every kind, compared with a vector, and with the file itself at the end.
async fn churn(path: &Path, options: &OpenOptions) {
    let sectors = fs::metadata(path).unwrap().len() / 512;
    let disk = gateway(open(path, options).unwrap());
    let mut oracle = vec![0_u8; sectors as usize * 512];
    let mut random = Random(7);
    for _ in 0..400 {
        let start = random.below(sectors);
        let len = 1 + random.below((sectors - start).min(300));
        let bytes = start as usize * 512..(start + len) as usize * 512;
        let (start, len) = (Sector(start), Sectors(len));
        let fua = if random.below(4) == 0 { Flags::FUA } else { Flags::empty() };
        match random.below(8) {
            0..3 => {
                let data = random.bytes(len.bytes());
                // Segments of any lengths, at any addresses.
                let lead = random.below(40) as usize;
                let mut padded = vec![0; lead];
                padded.extend(&data);
                let mut buffer = Buffer::from_slice(&padded);
                let mut rest = buffer.segment(lead..padded.len());
                let mut segments = Segments::new();
                while !rest.is_empty() && segments.len() < 5 {
                    let n = 1 + random.below(rest.len() as u64) as usize;
                    segments.push(rest.split_to(n));
                }
                if !rest.is_empty() {
                    segments.push(rest);
                }
                disk.submit(Bio::write(start, segments).with_flags(fua)).await.unwrap();
                oracle[bytes].copy_from_slice(&data);
            }
            3 => {
                // The contract leaves discarded data undefined; in a file they read as zeroes.
                disk.submit(Bio::discard(start, len)).await.unwrap();
                oracle[bytes].fill(0);
            }
            4 => {
                let flags =
                    fua | if random.below(2) == 0 { Flags::NOUNMAP } else { Flags::empty() };
                disk.submit(Bio::write_zeroes(start, len).with_flags(flags)).await.unwrap();
                oracle[bytes].fill(0);
            }
            5 => disk.flush().await.unwrap(),
            _ => {
                let lead = random.below(3) as usize * 4;
                let mut buffer = Buffer::alloc(lead + bytes.len());
                let all = lead..lead + bytes.len();
                disk.submit(Bio::read(start, [buffer.segment(all.clone())])).await.unwrap();
                assert!(buffer.as_slice()[all] == oracle[bytes]);
            }
        }
    }
    drop(disk);
    assert!(fs::read(path).unwrap()[..oracle.len()] == oracle);
}

#[test]
fn files_behave_like_a_vector_of_bytes() {
    for dir in directories() {
        let path = image(dir.path(), 2 * MIB);
        run(churn(&path, &OpenOptions::default()));
        fs::remove_file(&path).unwrap();
        let path = image(dir.path(), MIB + 700);
        run(churn(&path, &OpenOptions { direct: false, ..Default::default() }));
    }
}

#[test]
fn everything_works_on_the_ring_of_an_old_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), 2 * MIB);
    let config = ReactorConfig { plain_ring: true, registered_files: 0, ..Default::default() };
    let reactor = Reactor::new(config).unwrap();
    reactor.block_on(churn(&path, &OpenOptions::default()));
    let engine = Engine::with_config(2, config).unwrap();
    let other = engine.handles()[1].clone();
    let both = engine.handles()[0].spawn_on(move || async move {
        let mut sum = 0;
        for i in 0..500 {
            sum += other.spawn_on(move || async move { i }).await.unwrap();
            sleep(Duration::from_micros(i)).await;
        }
        sum
    });
    let sum = reactor.block_on(async { timeout(Duration::from_secs(60), both).await });
    assert_eq!(sum, Some(Ok(499 * 500 / 2)));
}

#[test]
fn adjacent_bios_are_merged_and_all_get_their_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), 4 * MIB);
    let data = Random(3).bytes(4 * MIB);
    fs::write(&path, &data).unwrap();
    run(async {
        let disk = open_rw(&path);
        let reads: Vec<_> = (0..1024_u64)
            .map(|i| {
                let disk = disk.clone();
                spawn(async move { disk.read(Sector(i * 8), Sectors(8)).await })
            })
            .collect();
        for (i, read) in reads.into_iter().enumerate() {
            let buffer = read.await.unwrap();
            assert!(buffer.as_slice() == &data[i * 4096..(i + 1) * 4096], "block {i}");
        }
        let merges = disk.disk().stats().totals().read.merges;
        assert!(merges >= 900, "{merges} merges");
    });
}

#[test]
fn a_request_of_more_pieces_than_a_call_takes_goes_on_with_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), MIB);
    let options = OpenOptions { direct: false, ..Default::default() };
    run(async {
        let device = open(&path, &options).unwrap();
        assert!(device.driver().kind() == Kind::Image && !device.driver().is_direct());
        let disk = gateway(device);
        let data = Random(5).bytes(1024 * 512);
        // 1024 separate pieces of one sector, then read back in pieces of 1 KiB and less.
        let mut buffers: Vec<_> = data.chunks(512).map(Buffer::from_slice).collect();
        let segments: Segments = buffers.iter_mut().map(Buffer::whole).collect();
        disk.submit(Bio::write(Sector(1), segments)).await.unwrap();
        let mut back = Buffer::alloc(data.len());
        disk.submit(Bio::read_into(Sector(1), &mut back)).await.unwrap();
        assert!(back.as_slice() == data);
    });
}

#[test]
fn discards_and_zeroes_give_space_back_unless_told_not_to() {
    for dir in directories() {
        let path = image(dir.path(), 8 * MIB);
        run(async {
            let disk = open_rw(&path);
            let mut data = Buffer::from_slice(&vec![0x5a; 8 * MIB as usize]);
            disk.write(Sector(0), &mut data, Flags::FUA).await.unwrap();
            disk.flush().await.unwrap();
            let full = allocated(&path);
            assert!(full >= 8 * MIB);
            disk.submit(Bio::discard(Sector(0), Sectors::from_bytes_floor(2 * MIB))).await.unwrap();
            assert!(allocated(&path) <= full - 2 * MIB, "a discard gives its blocks back");
            let zero = Bio::write_zeroes(Sector(4096), Sectors::from_bytes_floor(2 * MIB));
            disk.submit(zero.clone()).await.unwrap();
            let after = allocated(&path);
            assert!(after <= full - 4 * MIB, "so do zeroes");
            let at = Bio { sector: Sector(8192), ..zero };
            disk.submit(at.with_flags(Flags::NOUNMAP)).await.unwrap();
            assert!(allocated(&path) >= after, "but not with NOUNMAP");
            let read = disk.read(Sector(0), Sectors::from_bytes_floor(8 * MIB)).await.unwrap();
            let (zeroes, kept) = read.as_slice().split_at(6 * MIB as usize);
            assert!(zeroes.iter().all(|byte| *byte == 0) && kept.iter().all(|byte| *byte == 0x5a));
            assert_eq!(fs::metadata(&path).unwrap().len(), 8 * MIB, "the size stays");
        });
    }
}

#[test]
fn limits_and_size_are_those_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), MIB + 4095);
    run(async {
        let disk = open_rw(&path);
        let limits = disk.disk().limits();
        assert_eq!(disk.capacity(), Sectors(2048 + 7));
        assert_eq!(limits.logical_block_bytes, 512);
        assert!(limits.features.contains(Features::WRITE_CACHE | Features::FUA));
        assert!(limits.discard_granularity_bytes >= 512 && limits.max_hw_discard.0 > 1 << 30);
        drop(disk);
        let options = OpenOptions { image_block_bytes: 4096, ..Default::default() };
        let disk = gateway(open(&path, &options).unwrap());
        assert_eq!(disk.capacity(), Sectors(2048));
        assert_eq!(disk.disk().limits().logical_block_bytes, 4096);
        drop(disk);
        let odd = OpenOptions { image_block_bytes: 520, ..Default::default() };
        assert!(matches!(open(&path, &odd), Err(OpenError::BlockSize { bytes: 520, .. })));
    });
}

#[test]
fn writers_exclude_everybody_and_readers_only_writers() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), MIB);
    let write = OpenOptions::default();
    let read = OpenOptions { read_only: true, ..Default::default() };
    let look = OpenOptions { lock: false, ..read.clone() };
    let in_use = |options| match open(&path, options) {
        Err(OpenError::InUse { path: at, .. }) => at == path,
        _ => false,
    };
    let writer = open(&path, &write).unwrap();
    assert!(in_use(&write) && in_use(&read));
    drop(open(&path, &look).unwrap());
    let text = open(&path, &write).err().unwrap().to_string();
    let own = format!("(process {}), which has locked it", std::process::id());
    assert!(text.contains("disk.img: in use by ") && text.contains(&own), "{text}");
    drop(writer);
    let (one, two) = (open(&path, &read).unwrap(), open(&path, &read).unwrap());
    assert!(in_use(&write));
    drop((one, two));
    drop(open(&path, &write).unwrap());
}

#[test]
fn a_lock_ends_with_the_device_even_after_it_was_used_by_several_reactors() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), MIB);
    let engine = Engine::start(2).unwrap();
    run(async {
        for _ in 0..20 {
            let disk = open_rw(&path);
            for handle in engine.handles() {
                let disk = disk.clone();
                let read = handle.spawn_on(move || async move {
                    disk.read(Sector(0), Sectors(8)).await.map(|_| ())
                });
                read.await.unwrap().unwrap();
            }
            drop(disk);
        }
    });
}

#[test]
fn a_device_that_is_released_is_free_for_others_though_it_is_still_referenced() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), MIB);
    let engine = Engine::start(2).unwrap();
    run(async {
        let disk = open_rw(&path);
        let mut data = Buffer::from_slice(&[7; 4096]);
        disk.write(Sector(0), &mut data, Flags::empty()).await.unwrap();
        for handle in engine.handles() {
            let disk = disk.clone();
            let read = handle.spawn_on(move || async move {
                disk.read(Sector(0), Sectors(8)).await.map(|_| ())
            });
            read.await.unwrap().unwrap();
        }
        assert!(open(&path, &OpenOptions::default()).is_err());
        disk.release();
        disk.release();
        // The rings of other threads close it when they get to it.
        let other = loop {
            match open(&path, &OpenOptions::default()) {
                Ok(other) => break gateway(other),
                Err(OpenError::InUse { .. }) => sleep(Duration::from_millis(1)).await,
                Err(error) => panic!("{error}"),
            }
        };
        let before = fs::read(&path).unwrap();
        assert!(disk.read(Sector(0), Sectors(8)).await.is_err());
        assert!(disk.write(Sector(0), &mut data, Flags::empty()).await.is_err());
        assert!(fs::read(&path).unwrap() == before, "it was written after its release");
        assert_eq!(other.read(Sector(0), Sectors(8)).await.unwrap().as_slice(), [7; 4096]);
        drop(disk);
        assert!(open(&path, &OpenOptions::default()).is_err(), "the other one's lock");
    });
}

#[test]
fn a_read_only_device_refuses_writes() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), MIB);
    run(async {
        let options = OpenOptions { read_only: true, ..Default::default() };
        let disk = gateway(open(&path, &options).unwrap());
        let mut data = Buffer::zeroed(512);
        assert_eq!(disk.write(Sector(0), &mut data, Flags::empty()).await, Err(Status::ReadOnly));
        disk.read(Sector(0), Sectors(1)).await.unwrap();
    });
}

#[test]
fn what_is_no_disk_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let missing = open(&dir.path().join("none"), &OpenOptions::default()).err().unwrap();
    assert!(missing.to_string().contains("No such file"), "{missing}");
    let directory = open(dir.path(), &OpenOptions::default()).err().unwrap();
    assert!(matches!(directory, OpenError::NotADisk(_)));
    let device = open(Path::new("/dev/null"), &OpenOptions::default()).err().unwrap();
    assert!(matches!(device, OpenError::NotADisk(_)));
}

#[test]
fn holes_are_told_and_what_cannot_be_read_is_none() {
    run(async {
        for dir in directories() {
            let path = image(dir.path(), 64 << 20);
            let device = open_rw(&path);
            let states = async |at: u64, len: u64| {
                let found = device.extents(Sector(at), Sectors(len)).await.unwrap();
                found.iter().map(|it| (it.len.0, it.state.bits())).collect::<Vec<_>>()
            };
            let whole = 64 << 11;
            assert_eq!(states(0, whole).await, [(whole, 3)]);
            let mut data = Buffer::from_slice(&[1; 1 << 20]);
            for at in [8 << 11, 32 << 11] {
                device.write(Sector(at), &mut data, Flags::empty()).await.unwrap();
            }
            let mib = |count: u64| count << 11;
            assert_eq!(
                states(0, whole).await,
                [(mib(8), 3), (mib(1), 0), (mib(23), 3), (mib(1), 0), (mib(31), 3)]
            );
            assert_eq!(states(mib(8) + 1, 16).await, [(16, 0)]);
            assert_eq!(states(mib(8) - 8, 16).await, [(8, 3), (8, 0)]);
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(40 << 20).unwrap();
            assert_eq!(states(mib(33), mib(31)).await, [(mib(7), 3), (mib(24), 0)]);
        }
    });
}

#[test]
fn a_file_truncated_under_us_fails_reads_instead_of_inventing_data() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), MIB);
    fs::write(&path, vec![1; MIB as usize]).unwrap();
    run(async {
        let disk = open_rw(&path);
        File::options().write(true).open(&path).unwrap().set_len(4096 + 100).unwrap();
        assert_eq!(disk.read(Sector(64), Sectors(8)).await.err(), Some(Status::Io));
        assert_eq!(disk.read(Sector(0), Sectors(16)).await.err(), Some(Status::Io));
        disk.read(Sector(0), Sectors(8)).await.unwrap();
    });
}

#[test]
fn the_future_of_a_read_can_be_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), MIB);
    run(async {
        let disk = open_rw(&path);
        for _ in 0..100 {
            let mut buffer = Buffer::alloc(4096);
            drop(disk.submit(Bio::read_into(Sector(0), &mut buffer)));
            drop(buffer);
        }
        // Dropped I/O in the plug or in flight still runs; then everything is idle again.
        disk.read(Sector(8), Sectors(8)).await.unwrap();
    });
}

#[test]
fn the_end_of_a_reactor_waits_for_writes_that_were_submitted() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), MIB);
    run(async {
        let disk = open_rw(&path);
        for i in 0..256_u64 {
            // All futures are dropped, and some I/Os are still in the plug when the reactor ends.
            let mut data = Buffer::from_slice(&[(i % 251) as u8 + 1; 4096]);
            drop(disk.submit(Bio::write_from(Sector(i * 8 % 2048), &mut data)));
        }
    });
    let bytes = fs::read(&path).unwrap();
    for (i, block) in bytes.chunks(4096).enumerate() {
        assert!(block.iter().all(|byte| *byte == (i % 251) as u8 + 1), "block {i}");
    }
}

/// A loop device over an image, if we have permission.
struct Loop(String);

impl Loop {
    fn over(path: &Path) -> Option<Self> {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(path).output();
        match made {
            Ok(made) if made.status.success() => {
                Some(Self(String::from_utf8(made.stdout).unwrap().trim().to_owned()))
            }
            Ok(made) => {
                eprintln!("no loop device: {}", String::from_utf8_lossy(&made.stderr));
                None
            }
            Err(error) => {
                eprintln!("no loop device: losetup: {error}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("losetup").args(["--detach", &self.0]).status();
        assert!(detached.is_ok_and(|status| status.success()));
    }
}

#[test]
fn a_block_device_reads_writes_discards_and_is_claimed() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), 8 * MIB);
    let Some(device) = Loop::over(&path) else { return };
    let at = Path::new(&device.0);
    run(async {
        let opened = open(at, &OpenOptions::default()).unwrap();
        assert_eq!(opened.driver().kind(), Kind::Device);
        assert!(matches!(open(at, &OpenOptions::default()), Err(OpenError::Claimed { .. })));
        let disk = gateway(opened);
        assert_eq!(disk.capacity(), Sectors(16384));
        let limits = *disk.disk().limits();
        println!("{limits:?}");
        let mut data = Buffer::from_slice(&vec![0xa5; 8 * MIB as usize]);
        disk.write(Sector(0), &mut data, Flags::FUA).await.unwrap();
        disk.flush().await.unwrap();
        let full = allocated(&path);
        if limits.max_hw_discard.is_zero() {
            eprintln!("the loop device takes no discards here");
        } else {
            let discard = Bio::discard(Sector(0), Sectors::from_bytes_floor(4 * MIB));
            disk.submit(discard).await.unwrap();
            assert!(allocated(&path) <= full - 4 * MIB);
        }
        for flags in [Flags::empty(), Flags::NOUNMAP] {
            let mut ones = Buffer::from_slice(&[0xff; 8192]);
            disk.write(Sector(8192), &mut ones, Flags::empty()).await.unwrap();
            let zero = Bio::write_zeroes(Sector(8200), Sectors(8)).with_flags(flags);
            disk.submit(zero).await.unwrap();
            let back = disk.read(Sector(8192), Sectors(17)).await.unwrap();
            assert!(back.as_slice()[..4096].iter().all(|byte| *byte == 0xff));
            assert!(back.as_slice()[4096..8192].iter().all(|byte| *byte == 0));
            assert!(back.as_slice()[8192..].iter().all(|byte| *byte == 0xa5));
        }
        // Odd memory is bounced.
        let mut odd = Buffer::alloc(4096 + 1);
        disk.submit(Bio::read(Sector(8208), [odd.segment(1..4097)])).await.unwrap();
        assert!(odd.as_slice()[1..].iter().all(|byte| *byte == 0xa5));
    });
    let file = File::open(&path).unwrap();
    let mut last = [0; 512];
    file.read_exact_at(&mut last, 8 * MIB - 512).unwrap();
    assert_eq!(last, [0xa5; 512]);
}

/// The kernel ends a ring with a delay, and with it the files that the ring has registered.
///
/// In a process of its own: a process that another test starts has the file too, until it executes its program.
#[test]
fn a_file_is_closed_everywhere_when_its_reactor_and_its_device_have_ended() {
    let alone = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "files::closed_everywhere", "--nocapture"])
        .env(ALONE_ENV, "1")
        .output()
        .unwrap();
    assert_eq!(alone.status.code(), Some(0), "{alone:?}");
    assert!(String::from_utf8_lossy(&alone.stdout).contains("1 passed"), "{alone:?}");
}

/// Tells the process of the test that it is that process.
const ALONE_ENV: &str = "ASHLAR_TEST_FILES_ALONE";

/// Active only in the process that the test above starts.
#[test]
fn closed_everywhere() {
    if std::env::var_os(ALONE_ENV).is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), MIB);
    for _ in 0..10 {
        let reactor = Reactor::new(ReactorConfig::default()).unwrap();
        let gateway = open_rw(&path);
        let mut segments = Segments::new();
        segments.push(Buffer::from_slice(&[1; 4096]).whole());
        reactor.block_on(gateway.submit(Bio::write(Sector(0), segments))).unwrap();
        drop(reactor);
        drop(gateway);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        // SAFETY: F_SETLEASE takes a number. The kernel grants a write lease only on a file that is not open elsewhere.
        let got = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
        assert_eq!(got, 0, "{}", std::io::Error::last_os_error());
    }
}
