//! How fast a volume is written and read, against what libzpool itself does, and how the time of a request depends on its
//! segments.
//!
//! `zvol-copy DIRECTORY [NAME=VALUE...]`: makes a pool in a file in the directory. Arguments set variables of libzpool of 32 bits.

#[path = "../tests/pool/mod.rs"]
mod pool;

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ashlar_zfs::protocol::{Completion, RemoteSegment, Submission, op};
use ashlar_zfs::worker::channel::Server;
use ashlar_zfs::worker::taskq::{Parameters, TaskQueues};
use ashlar_zfs::zvol::{Peer, Segments, Volume};
use pool::{NewVolume, Zpool};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use zerocopy::IntoBytes;

const MIB: usize = 1 << 20;
const TOTAL_BYTES: u64 = 256 << 20;
/// `ZIO_COMPRESS_OFF`
const COMPRESS_OFF: u64 = 2;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().expect("a directory"));
    let zpool = pool::zpool().expect("libzpool");
    for argument in arguments {
        let (name, value) = argument.split_once('=').expect("NAME=VALUE");
        // SAFETY: the caller knows what the variable is.
        unsafe { *zpool.get::<*mut u32>(name) = value.parse().unwrap() };
    }
    let file = directory.join("zvol-copy.img");
    std::fs::File::create(&file).unwrap().set_len(8 << 30).unwrap();
    zpool.create_pool("bench", std::slice::from_ref(&file), false);
    println!(
        "{:>12} {:>24} {:>10} {:>12} {:>11}",
        "volblocksize", "what", "MB/s", "until synced", "CPU per MiB"
    );
    for volblocksize_bytes in [8 << 10, 16 << 10, 128 << 10, 1 << 20] {
        let name = format!("bench/v{volblocksize_bytes}");
        let new = NewVolume { name: &name, volsize_bytes: TOTAL_BYTES, volblocksize_bytes };
        zpool.create_volume(&new, &[("compression", COMPRESS_OFF)]);
        measure(zpool, &name, volblocksize_bytes);
    }
    zpool.export("bench");
    std::fs::remove_file(file).unwrap();
}

fn measure(zpool: &Zpool, name: &str, volblocksize_bytes: u32) {
    let report = |what: &str, run: &mut dyn FnMut()| {
        zpool.sync("bench");
        let (start, start_cpu) = (Instant::now(), thread_time());
        run();
        let (done, cpu) = (start.elapsed(), thread_time().saturating_sub(start_cpu));
        zpool.sync("bench");
        let speed = |time: Duration| TOTAL_BYTES as f64 / 1e6 / time.as_secs_f64();
        println!(
            "{volblocksize_bytes:>12} {what:>24} {:>10.0} {:>12.0} {:>8.0} us",
            speed(done),
            speed(start.elapsed()),
            cpu.as_secs_f64() * 1e6 / (TOTAL_BYTES / MIB as u64) as f64
        );
    };
    let mut memory: Vec<u8> = (0..MIB).map(|at| ((at * 7919) >> 5) as u8).collect();
    // The first of each pair allocates; only what is overwritten is compared.
    for round in ["", " again"] {
        let plain = Plain::open(zpool, &std::ffi::CString::new(name).unwrap());
        report(&format!("dmu_write{round}"), &mut || plain.write_all(&memory));
        drop(plain);
        let volume = Volume::open(&zpool.library, name, false).unwrap();
        report(&format!("volume{round}"), &mut || {
            for at in 0..TOTAL_BYTES / MIB as u64 {
                let mut segments = Segments::new(Peer::this(), pieces(&mut memory, MIB));
                volume.write(at * MIB as u64, MIB as u64, &mut segments, false).unwrap();
            }
        });
    }
    let volume = Volume::open(&zpool.library, name, false).unwrap();
    report("volume read", &mut || {
        for at in 0..TOTAL_BYTES / MIB as u64 {
            let mut segments = Segments::new(Peer::this(), pieces(&mut memory, MIB));
            volume.read(at * MIB as u64, MIB as u64, &mut segments).unwrap();
        }
    });
    for segments in [1, 16, 256] {
        let list = pieces(&mut memory, MIB / segments);
        let mut best = Duration::MAX;
        for _ in 0..5 {
            let start = thread_time();
            for at in 0..64 {
                let mut segments = Segments::new(Peer::this(), list.iter().copied());
                volume.write(at * MIB as u64, MIB as u64, &mut segments, false).unwrap();
            }
            best = best.min((thread_time() - start) / 64);
        }
        println!(
            "{volblocksize_bytes:>12} {:>24} {:>7.0} us",
            format!("{segments} segments"),
            best.as_secs_f64() * 1e6
        );
    }
    let queues = Arc::new(TaskQueues::start(&Parameters::default()).unwrap());
    let mut server = Server::new(volume, queues);
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    server.attach(theirs).unwrap();
    for depth in [1, 4] {
        report(&format!("channel, depth {depth}"), &mut || {
            through(&ours, &mut memory, MIB, depth, op::WRITE)
        });
        report(&format!("channel 128K, depth {depth}"), &mut || {
            through(&ours, &mut memory, 128 << 10, depth, op::WRITE);
        });
    }
    report("channel read, depth 4", &mut || through(&ours, &mut memory, MIB, 4, op::READ));
    drop(ours);
    server.close();
}

/// What this thread has computed: what others do on the machine does not matter.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn pieces(memory: &mut [u8], len: usize) -> Vec<RemoteSegment> {
    let segments = memory.chunks_mut(len).map(|chunk| RemoteSegment {
        address: chunk.as_mut_ptr() as u64,
        len_bytes: chunk.len() as u64,
    });
    segments.collect()
}

/// All of the volume through a channel, so many requests at a time.
fn through(socket: &OwnedFd, memory: &mut [u8], len: usize, depth: u64, op: u8) {
    let requests = TOTAL_BYTES / len as u64;
    let (mut sent, mut done) = (0, 0);
    let mut started = HashMap::new();
    while done < requests {
        while sent < requests && sent - done < depth {
            let submission = Submission {
                tag: sent,
                offset_bytes: sent * len as u64,
                len_bytes: len as u64,
                op,
                flags: 0,
                segments: 1,
                reserved: 0,
            };
            let mut packet = submission.as_bytes().to_vec();
            packet.extend_from_slice(pieces(&mut memory[..len], len).as_bytes());
            send(socket, &packet, SendFlags::empty()).unwrap();
            started.insert(sent, Instant::now());
            sent += 1;
        }
        let mut packet = [0_u8; size_of::<Completion>()];
        recv(socket, &mut packet, RecvFlags::empty()).unwrap();
        let completion: Completion = zerocopy::transmute!(packet);
        assert_eq!(completion.errno, 0);
        started.remove(&completion.tag).unwrap();
        done += 1;
    }
}

/// A volume written by dmu_write_by_dnode(), one transaction for each MiB: what libzpool itself does.
struct Plain<'a> {
    zpool: &'a Zpool,
    os: *mut c_void,
    dnode: *mut c_void,
}

const TAG: *const c_void = c"plain".as_ptr().cast();

impl<'a> Plain<'a> {
    fn open(zpool: &'a Zpool, name: &CStr) -> Self {
        let (mut os, mut dnode) = (null_mut(), null_mut());
        // SAFETY: as sys/dmu.h has them.
        unsafe {
            type Own = unsafe extern "C" fn(
                *const c_char,
                c_int,
                c_int,
                c_int,
                *const c_void,
                *mut *mut c_void,
            ) -> c_int;
            assert_eq!(
                zpool.get::<Own>("dmu_objset_own")(name.as_ptr(), 3, 0, 1, TAG, &raw mut os),
                0
            );
            type Hold =
                unsafe extern "C" fn(*mut c_void, u64, *const c_void, *mut *mut c_void) -> c_int;
            assert_eq!(zpool.get::<Hold>("dnode_hold")(os, 1, TAG, &raw mut dnode), 0);
        }
        Self { zpool, os, dnode }
    }

    fn write_all(&self, memory: &[u8]) {
        let zpool = self.zpool;
        // SAFETY: as sys/dmu.h has them; the objset is owned and the dnode held.
        unsafe {
            type OfTx<R> = unsafe extern "C" fn(*mut c_void) -> R;
            let create: OfTx<*mut c_void> = zpool.get("dmu_tx_create");
            let commit: OfTx<()> = zpool.get("dmu_tx_commit");
            let hold: unsafe extern "C" fn(*mut c_void, *mut c_void, u64, c_int) =
                zpool.get("dmu_tx_hold_write_by_dnode");
            let assign: unsafe extern "C" fn(*mut c_void, u64) -> c_int =
                zpool.get("dmu_tx_assign");
            let write: unsafe extern "C" fn(
                *mut c_void,
                u64,
                u64,
                *const c_void,
                *mut c_void,
                u32,
            ) = zpool.get("dmu_write_by_dnode");
            for at in 0..TOTAL_BYTES / MIB as u64 {
                let tx = create(self.os);
                hold(tx, self.dnode, at * MIB as u64, MIB as c_int);
                assert_eq!(assign(tx, 1), 0);
                write(self.dnode, at * MIB as u64, MIB as u64, memory.as_ptr().cast(), tx, 0);
                commit(tx);
            }
        }
    }
}

impl Drop for Plain<'_> {
    fn drop(&mut self) {
        // SAFETY: as above; nothing uses them any more.
        unsafe {
            self.zpool.get::<unsafe extern "C" fn(*mut c_void, *const c_void)>("dnode_rele")(
                self.dnode, TAG,
            );
            type Disown = unsafe extern "C" fn(*mut c_void, c_int, *const c_void);
            self.zpool.get::<Disown>("dmu_objset_disown")(self.os, 1, TAG);
        }
    }
}
