//! A real file that does not answer: on FUSE, served by the test.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ashlar_block::bio::{Bio, Flags};
use ashlar_block::buffer::Buffer;
use ashlar_block::gateway::Gateway;
use ashlar_block::presence::Presence;
use ashlar_block::status::Status;
use ashlar_block::units::{Sector, Sectors};
use ashlar_engine::{OpenOptions, Reactor, ReactorConfig, open, sleep, spawn, timeout};

const SIZE: usize = 1 << 20;
const TIMEOUT_MS: u64 = 50;

// Operations of the kernel's include/uapi/linux/fuse.h.
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;

/// Bytes of a request's header, and of the arguments of a write before its data.
const HEADER: usize = 40;
const WRITE_HEADER: usize = 40;

/// A request that is not answered yet.
struct PendingRequest {
    operation: u32,
    unique: u64,
    body: Vec<u8>,
}

struct ServedFile {
    fuse: File,
    contents: Mutex<Vec<u8>>,
    silent: AtomicBool,
    held: Mutex<Vec<PendingRequest>>,
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn number32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// A struct of the protocol: values with their sizes in bytes, and zeroes up to `len`.
fn pack(values: &[(u64, usize)], len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    for (value, size) in values {
        bytes.extend(&value.to_le_bytes()[..*size]);
    }
    bytes.resize(len, 0);
    bytes
}

impl ServedFile {
    fn reply(&self, unique: u64, error: i32, body: &[u8]) {
        let len = 16 + body.len() as u64;
        let mut message = pack(&[(len, 4), (error as u32 as u64, 4), (unique, 8)], 16);
        message.extend(body);
        // The kernel has forgotten a request that it gave up.
        if let Err(error) = (&self.fuse).write_all(&message) {
            eprintln!("reply to {unique}: {error}");
        }
    }

    fn execute(&self, asked: &PendingRequest) {
        let PendingRequest { operation, unique, body } = asked;
        let mut contents = self.contents.lock().unwrap();
        let range = || {
            let (offset, size) = (number(body, 8) as usize, number32(body, 16) as usize);
            offset..(offset + size).min(SIZE)
        };
        match *operation {
            // Version 7.31, writes of 64 KiB, 16 pages.
            INIT => {
                let values = [
                    (7, 4),
                    (31, 4),
                    (0, 4),
                    (0, 4),
                    (16, 2),
                    (12, 2),
                    (65536, 4),
                    (1, 4),
                    (16, 2),
                ];
                self.reply(*unique, 0, &pack(&values, 64));
            }
            GETATTR => {
                let mode = u64::from(libc::S_IFREG | 0o600);
                let sizes = [(1, 8), (SIZE as u64, 8), (SIZE as u64 / 512, 8), (0, 24), (0, 12)];
                let mut attributes = vec![0; 16];
                attributes.extend(pack(&[sizes[0], sizes[1], sizes[2]], 60));
                attributes
                    .extend(pack(&[(mode, 4), (1, 4), (0, 4), (0, 4), (0, 4), (4096, 4)], 28));
                self.reply(*unique, 0, &attributes);
            }
            // Closing it asks for nothing (`FOPEN_NOFLUSH`): this server may have ended with its process, which would wait for it.
            OPEN => self.reply(*unique, 0, &pack(&[(0, 8), (1 << 5, 4)], 16)),
            READ => self.reply(*unique, 0, &contents[range()]),
            WRITE => {
                let range = range();
                let len = range.len();
                contents[range].copy_from_slice(&body[WRITE_HEADER..WRITE_HEADER + len]);
                self.reply(*unique, 0, &pack(&[(len as u64, 4)], 8));
            }
            RELEASE | FSYNC => self.reply(*unique, 0, &[]),
            _ => self.reply(*unique, -libc::ENOSYS, &[]),
        }
    }

    /// Until the file system is unmounted.
    fn serve(&self) {
        let mut message = vec![0; SIZE];
        while let Ok(len @ HEADER..) = (&self.fuse).read(&mut message) {
            let operation = number32(&message, 4);
            let asked = PendingRequest {
                operation,
                unique: number(&message, 8),
                body: message[HEADER..len].to_vec(),
            };
            if matches!(operation, FORGET | INTERRUPT) {
                continue;
            }
            let data = matches!(operation, READ | WRITE | FSYNC);
            if data && self.silent.load(SeqCst) {
                self.held.lock().unwrap().push(asked);
            } else {
                self.execute(&asked);
            }
        }
    }

    /// Answers what was held, and all that follows.
    fn answer(&self) {
        self.silent.store(false, SeqCst);
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        held.iter().for_each(|asked| self.execute(asked));
    }
}

/// The mounted file.
struct MountedFile {
    served: Arc<ServedFile>,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

/// A file on FUSE; `None` where that cannot be mounted.
fn mounted() -> Option<MountedFile> {
    let fuse = match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(fuse) => fuse,
        Err(error) => {
            eprintln!("skipped: /dev/fuse: {error}");
            return None;
        }
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.img");
    File::create(&path).unwrap();
    let mode = libc::S_IFREG;
    let options = format!("fd={},rootmode={mode:o},user_id=0,group_id=0", fuse.as_raw_fd());
    if let Err(error) = mount(&path, &options) {
        eprintln!("skipped: mounting FUSE: {error}");
        return None;
    }
    let served = Arc::new(ServedFile {
        fuse,
        contents: Mutex::new((0..SIZE).map(|at| (at / 512) as u8).collect()),
        silent: AtomicBool::new(false),
        held: Mutex::default(),
    });
    let serving = Arc::clone(&served);
    // It ends with the file system, which a file that is still open keeps.
    std::thread::spawn(move || serving.serve());
    // A thread that waits for the file cannot be killed: if the test hangs, it must not do so forever.
    let guarded = Arc::downgrade(&served);
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(90));
        if let Some(served) = guarded.upgrade() {
            served.answer();
        }
    });
    Some(MountedFile { served, path, _directory: directory })
}

fn mount(path: &Path, options: &str) -> std::io::Result<()> {
    let c_string = |text: &str| std::ffi::CString::new(text).unwrap();
    let (path, options) = (c_string(path.to_str().unwrap()), c_string(options));
    // SAFETY: all arguments are C strings that live during the call.
    let result = unsafe {
        libc::mount(c"silent".as_ptr(), path.as_ptr(), c"fuse".as_ptr(), 0, options.as_ptr().cast())
    };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

impl Drop for MountedFile {
    fn drop(&mut self) {
        self.served.answer();
        let path = std::ffi::CString::new(self.path.to_str().unwrap()).unwrap();
        // SAFETY: a C string that lives during the call.
        let unmounted = unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        assert!(unmounted == 0, "{}", std::io::Error::last_os_error());
    }
}

/// Runs with the disk of such a file, direct or through the page cache.
fn on_a_silent_file(test: impl AsyncFn(&ServedFile, &Gateway)) {
    for direct in [true, false] {
        let Some(mounted) = mounted() else { return };
        Reactor::new(ReactorConfig::default()).unwrap().block_on(async {
            let options = OpenOptions { direct, ..OpenOptions::default() };
            let disk = open(&mounted.path, &options).unwrap();
            let disk = Gateway::new(Arc::new(disk));
            disk.disk().set_io_timeout_ms(TIMEOUT_MS).unwrap();
            let test = timeout(Duration::from_secs(60), test(&mounted.served, &disk));
            test.await.expect("the test hangs");
        });
    }
}

/// Waits until the disk counts as responding: the driver has completed all overdue requests.
async fn answered(disk: &Gateway) {
    while disk.disk().presence() == Presence::Silent {
        sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_file_that_does_not_answer_fails_its_requests_and_comes_back() {
    on_a_silent_file(async |served, disk| {
        assert_eq!(disk.read(Sector(8), Sectors(8)).await.unwrap().as_slice()[0], 8);
        served.silent.store(true, SeqCst);
        let mut data = Buffer::alloc(4096);
        let memory = data.whole();
        let read = disk.submit(Bio::read(Sector(64), [memory.clone()])).await;
        assert_eq!(read, Err(Status::Timeout));
        memory.copy_from(&[7; 4096]);
        drop(memory);
        let mut durable = Buffer::from_slice(&[1; 4096]);
        let write = disk.write(Sector(0), &mut durable, Flags::FUA).await;
        assert_eq!(write, Err(Status::Timeout));
        durable.as_mut_slice().fill(2);
        served.answer();
        answered(disk).await;
        assert_eq!(data.as_slice(), [7; 4096], "changed by the late answer");
        // All of the late write, or none of it if the kernel could cancel it.
        let first = disk.read(Sector(0), Sectors(8)).await.unwrap();
        assert!([[1; 4096].as_slice(), &former()].contains(&first.as_slice()));
        assert_eq!(disk.write(Sector(0), &mut durable, Flags::empty()).await, Ok(()));
        assert_eq!(disk.read(Sector(0), Sectors(8)).await.unwrap().as_slice(), [2; 4096]);
    });
}

/// The first 4096 bytes of a new file.
fn former() -> Vec<u8> {
    (0..4096).map(|at| (at / 512) as u8).collect()
}

/// The kernel submits such operations from threads of its own, and cancels some of them.
#[test]
fn a_reactor_goes_on_while_a_file_is_silent() {
    on_a_silent_file(async |served, disk| {
        served.silent.store(true, SeqCst);
        let ticks = spawn(async {
            for _ in 0..10 {
                sleep(Duration::from_millis(1)).await;
            }
        });
        let reads: Vec<_> = (0..40).map(|n| disk.submit(read(n))).collect();
        let mut results = Vec::new();
        for read in reads {
            results.push(read.await);
        }
        ticks.await;
        assert!(results.iter().all(|result| *result == Err(Status::Timeout)));
        served.answer();
        answered(disk).await;
        assert_eq!(disk.submit(read(0)).await, Ok(()));
    });
}

/// It waits for operations in flight for half a minute, but not for those that are overdue.
#[test]
fn a_reactor_ends_though_a_file_is_silent() {
    let Some(mounted) = mounted() else { return };
    let start = Instant::now();
    Reactor::new(ReactorConfig::default()).unwrap().block_on(async {
        let disk = Gateway::new(Arc::new(open(&mounted.path, &OpenOptions::default()).unwrap()));
        disk.disk().set_io_timeout_ms(TIMEOUT_MS).unwrap();
        mounted.served.silent.store(true, SeqCst);
        assert_eq!(disk.submit(read(0)).await, Err(Status::Timeout));
    });
    assert!(start.elapsed() < Duration::from_secs(25));
}

fn read(n: u64) -> Bio {
    Bio::read_into(Sector(n * 16), &mut Buffer::alloc(4096))
}
