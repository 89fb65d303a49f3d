//! The data path against a fake worker in a thread, whose volume is a vector. It accesses the
//! requests' memory as a worker does, but in its own process.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::process::Command as Process;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use ashlar_block::bio::Bio;
use ashlar_block::buffer::Buffer;
use ashlar_block::device::BlockDevice;
use ashlar_block::gateway::Gateway;
use ashlar_block::status::Status;
use ashlar_block::units::Sector;
use ashlar_engine::{Engine, Reactor, spawn};
use futures_util::future::join_all;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use zerocopy::{FromBytes, IntoBytes};

use super::{Launcher, Parameters, Worker, WorkerEnds, Zvol};
use crate::control;
use crate::protocol::{
    Command, Completion, MAX_SUBMISSION_BYTES, OpenedVolume, Refusal, RemoteSegment, Reply,
    Submission, op,
};

const VOLUME_BYTES: usize = 4 << 20;

/// The state of the fake worker.
#[derive(Default)]
struct Play {
    volume: Mutex<Vec<u8>>,
    /// While set, no request completes.
    is_held: Mutex<bool>,
    released: Condvar,
    /// Numbers of packets, requests and segments seen.
    packets: AtomicUsize,
    requests: AtomicUsize,
    segments: AtomicUsize,
    channels: AtomicUsize,
}

impl Play {
    fn hold(&self, held: bool) {
        *self.is_held.lock().unwrap() = held;
        self.released.notify_all();
    }
}

/// The memory of this process.
fn memory() -> io::Result<File> {
    File::options().read(true).write(true).open("/proc/self/mem")
}

/// Serves one data channel.
fn serve(play: &Play, channel: &OwnedFd) {
    let memory = memory().unwrap();
    let mut packet = vec![0; MAX_SUBMISSION_BYTES];
    while let Ok((len @ 1.., _)) = recv(channel, &mut packet[..], RecvFlags::empty()) {
        play.packets.fetch_add(1, SeqCst);
        if play_packet(play, channel, &memory, &packet[..len]).is_err() {
            return;
        }
    }
}

/// Executes and completes all requests of a packet.
fn play_packet(
    play: &Play,
    channel: &OwnedFd,
    memory: &File,
    packet: &[u8],
) -> rustix::io::Result<()> {
    let mut left = packet;
    while !left.is_empty() {
        let (header, rest) = Submission::read_from_prefix(left).unwrap();
        let count = usize::from(header.segments);
        let (segments, rest) = <[RemoteSegment]>::ref_from_prefix_with_elems(rest, count).unwrap();
        left = rest;
        play.requests.fetch_add(1, SeqCst);
        play.segments.fetch_add(segments.len(), SeqCst);
        let mut at = header.offset_bytes as usize;
        drop(play.released.wait_while(play.is_held.lock().unwrap(), |held| *held).unwrap());
        let mut volume = play.volume.lock().unwrap();
        for segment in segments {
            let range = at..at + segment.len_bytes as usize;
            match header.op {
                op::READ => memory.write_all_at(&volume[range.clone()], segment.address).unwrap(),
                _ => memory.read_exact_at(&mut volume[range.clone()], segment.address).unwrap(),
            }
            at = range.end;
        }
        // The first sector of the second half is bad.
        let bad = header.op == op::READ && header.offset_bytes == (VOLUME_BYTES / 2) as u64;
        let errno = if bad { 5 } else { 0 };
        let end = Completion { tag: header.tag, errno, reserved: 0 };
        send(channel, end.as_bytes(), SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

/// How a worker reaches the data of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    /// In the memory of this process.
    All,
    /// In windows.
    Windows,
}

/// "Starts" workers that tests play.
#[derive(Debug)]
struct Stage(Mutex<mpsc::Sender<WorkerEnds>>);

impl Launcher for Stage {
    fn launch(&self, ends: WorkerEnds) -> io::Result<u32> {
        static LAST: AtomicU32 = AtomicU32::new(0);
        self.0.lock().unwrap().send(ends).unwrap();
        Ok(LAST.fetch_add(1, SeqCst))
    }
}

/// A launched worker that a test plays, with the test's ends.
fn launched() -> (Worker, WorkerEnds) {
    let (sender, ends) = mpsc::channel();
    let worker = Worker::launched_by(&Stage(Mutex::new(sender))).unwrap();
    (worker, ends.recv().unwrap())
}

/// A fake worker that knows volume 7, and accepts channels for it.
fn play(play: &Arc<Play>, reach: Reach) -> Arc<Worker> {
    play.volume.lock().unwrap().resize(VOLUME_BYTES, 0);
    let (worker, theirs, others) = match reach {
        Reach::All => {
            let (worker, theirs) = Worker::played_by(Process::new("sleep").arg("60"));
            (worker, theirs, None)
        }
        Reach::Windows => {
            let (worker, WorkerEnds { control, words, watch }) = launched();
            (worker, control, Some((words, watch)))
        }
    };
    let play = Arc::clone(play);
    thread::spawn(move || {
        let _others = others;
        let mut windows = Vec::new();
        while let Some(message) = control::receive(&theirs).unwrap() {
            let command: Command = serde_json::from_slice(&message.bytes).unwrap();
            let reply: Result<Reply, Refusal> = if let Command::Window { window, .. } = command {
                windows.push(window);
                Ok(Reply::Done)
            } else if let Command::Attach { volume: 7, window } = command {
                assert_eq!(window.is_some(), reach == Reach::Windows);
                assert!(window.is_none_or(|window| windows.contains(&window)));
                let (play, channel) = (Arc::clone(&play), message.descriptor.unwrap());
                play.channels.fetch_add(1, SeqCst);
                thread::spawn(move || serve(&play, &channel));
                Ok(Reply::Done)
            } else {
                Err(Refusal { message: format!("{command:?}"), hint: None, errno: 22 })
            };
            control::send(&theirs, &serde_json::to_vec(&reply).unwrap(), None).unwrap();
        }
    });
    Arc::new(worker)
}

fn zvol(worker: &Arc<Worker>, number: u32) -> Arc<Zvol> {
    let opened = OpenedVolume {
        volume: number,
        volsize_bytes: VOLUME_BYTES as u64,
        volblocksize_bytes: 16 << 10,
        read_only: false,
        guid: 7,
    };
    let (worker, parameters) = (Arc::clone(worker), Parameters::default());
    Arc::new(Zvol::new(worker, "tank/vol", opened, false, ("zd0", 0), &parameters))
}

#[test]
fn what_is_written_is_read_back() {
    written_is_read_back(Reach::All);
    written_is_read_back(Reach::Windows);
}

fn written_is_read_back(reach: Reach) {
    let played = Arc::new(Play::default());
    let worker = play(&played, reach);
    let gateway = Gateway::new(zvol(&worker, 7));
    Reactor::new(Default::default()).unwrap().block_on(async {
        let mut data =
            Buffer::from_slice(&(0..64 << 10).map(|at: u32| (at / 7) as u8).collect::<Vec<_>>());
        gateway.submit(Bio::write_from(Sector(3), &mut data)).await.unwrap();
        gateway.submit(Bio::flush()).await.unwrap();
        let mut back = Buffer::zeroed(64 << 10);
        gateway.submit(Bio::read_into(Sector(3), &mut back)).await.unwrap();
        assert!(back.as_slice() == data.as_slice());
        let mut bad = Buffer::zeroed(512);
        let sector = (VOLUME_BYTES / 2 / 512) as u64;
        assert_eq!(gateway.submit(Bio::read_into(Sector(sector), &mut bad)).await, Err(Status::Io));
    });
    assert_eq!(played.channels.load(SeqCst), 1);
    worker.kill();
}

/// More requests than fit in the socket, from two threads: all complete, and each thread has its channel.
#[test]
fn back_pressure_loses_nothing() {
    pressed_back(Reach::All);
    pressed_back(Reach::Windows);
}

fn pressed_back(reach: Reach) {
    let played = Arc::new(Play::default());
    let worker = play(&played, reach);
    let zvol = zvol(&worker, 7);
    zvol.disk().set_nr_requests(65536).unwrap();
    let engine = Engine::start(2).unwrap();
    let gateway = Gateway::new(Arc::clone(&zvol) as _);
    played.hold(true);
    let mut ends = Vec::new();
    const EACH: u64 = 2000;
    // Enough to overflow the socket, even in few packets.
    const ROUNDS: u64 = 10;
    for (number, handle) in engine.handles().iter().enumerate() {
        let gateway = gateway.clone();
        ends.push(handle.spawn_on(move || async move {
            let start = number as u64 * EACH;
            let writes = (0..ROUNDS).flat_map(|_| start..start + EACH).map(|sector| {
                let gateway = gateway.clone();
                async move {
                    let mut data = Buffer::from_slice(&[sector as u8; 512]);
                    gateway.submit(Bio::write_from(Sector(sector), &mut data)).await
                }
            });
            join_all(writes).await
        }));
    }
    // Time for the sockets to fill. (A busy machine makes each of the two threads wait for its turn.)
    let begun = std::time::Instant::now();
    while played.requests.load(SeqCst) < 2 {
        assert!(begun.elapsed() < Duration::from_secs(60), "a channel has no request");
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(50));
    assert_eq!(played.requests.load(SeqCst), 2, "each channel has one request that waits");
    played.hold(false);
    Reactor::new(Default::default()).unwrap().block_on(async {
        for end in ends {
            assert!(end.await.unwrap().into_iter().all(|result| result.is_ok()));
        }
    });
    engine.shutdown();
    let volume = played.volume.lock().unwrap();
    for sector in 0..2 * EACH as usize {
        assert!(volume[sector * 512..][..512].iter().all(|byte| *byte == sector as u8), "{sector}");
    }
    drop(volume);
    // Each bio is a request: `use_blk_mq` is off.
    assert_eq!(played.requests.load(SeqCst), (2 * EACH * ROUNDS) as usize);
    worker.kill();
}

#[test]
fn bios_are_merged_into_requests_of_so_many_blocks() {
    let played = Arc::new(Play::default());
    let worker = play(&played, Reach::All);
    let zvol = zvol(&worker, 7);
    zvol.set_use_blk_mq(true);
    let gateway = Gateway::new(Arc::clone(&zvol) as _);
    Reactor::new(Default::default()).unwrap().block_on(async {
        let write = |sectors: std::ops::Range<u64>| {
            let gateway = gateway.clone();
            async move {
                let mut buffers: Vec<Buffer> = sectors
                    .clone()
                    .map(|sector| Buffer::from_slice(&[sector as u8; 512]))
                    .collect();
                let writes = buffers
                    .iter_mut()
                    .zip(sectors)
                    .map(|(data, sector)| gateway.submit(Bio::write_from(Sector(sector), data)));
                assert!(join_all(writes).await.into_iter().all(|result| result.is_ok()));
            }
        };
        write(0..512).await;
        assert_eq!(
            played.requests.swap(0, SeqCst),
            2,
            "256 KiB are two requests of 8 blocks of 16 KiB"
        );
        assert_eq!(played.segments.load(SeqCst), 512, "and no segment is lost");
        zvol.set_blocks_per_thread(4).unwrap();
        write(0..512).await;
        assert_eq!(played.requests.swap(0, SeqCst), 4);
        zvol.set_use_blk_mq(false);
        played.packets.store(0, SeqCst);
        write(0..16).await;
        assert_eq!(played.requests.swap(0, SeqCst), 16);
        assert_eq!(played.packets.swap(0, SeqCst), 1, "what is submitted at a time is one packet");
    });
    let volume = played.volume.lock().unwrap();
    for sector in 0..512 {
        assert!(volume[sector * 512..][..512].iter().all(|byte| *byte == sector as u8), "{sector}");
    }
    worker.kill();
}

/// More data than fit into a window: the requests wait for each other, and each gets its own.
#[test]
fn requests_wait_for_room_in_the_window() {
    let played = Arc::new(Play::default());
    let worker = play(&played, Reach::Windows);
    let zvol = zvol(&worker, 7);
    for (at, byte) in played.volume.lock().unwrap().iter_mut().enumerate() {
        *byte = (at / 512) as u8;
    }
    let gateway = Gateway::new(Arc::clone(&zvol) as _);
    // The sector that is bad begins at half of the volume.
    let (count, sectors) = (40, 4000);
    Reactor::new(Default::default()).unwrap().block_on(async {
        let mut buffers: Vec<Buffer> = (0..count).map(|_| Buffer::zeroed(sectors * 512)).collect();
        let reads = buffers
            .iter_mut()
            .zip(0..)
            .map(|(data, at)| gateway.submit(Bio::read_into(Sector(at), data)));
        assert!(join_all(reads).await.into_iter().all(|result| result.is_ok()));
        for (first, buffer) in buffers.iter().enumerate() {
            for (at, sector) in buffer.as_slice().chunks(512).enumerate() {
                assert!(sector.iter().all(|byte| *byte == (first + at) as u8), "{first} {at}");
            }
        }
    });
    assert_eq!(played.requests.load(SeqCst), count as usize);
    worker.kill();
}

/// It asks its launcher to kill it, and learns from it how it ended.
#[test]
fn a_launched_worker_is_killed_and_its_end_is_told() {
    let (worker, WorkerEnds { control, words, watch }) = launched();
    worker.kill();
    let mut asked = [0; 4];
    assert!(matches!(recv(&watch, &mut asked[..], RecvFlags::empty()), Ok((1, _))));
    send(&watch, &9_i32.to_ne_bytes(), SendFlags::NOSIGNAL).unwrap();
    drop((control, words));
    worker.stop();
    assert_eq!(worker.end().as_deref(), Some("by signal 9"));
}

/// When the data channel ends, all I/O in flight fails, and all later I/O.
#[test]
fn a_dead_worker_fails_all_io() {
    let script = "exec sleep 60";
    let (worker, theirs) = Worker::played_by(Process::new("sh").args(["-c", script]));
    let player = thread::spawn(move || {
        let message = control::receive(&theirs).unwrap().unwrap();
        control::send(&theirs, &serde_json::to_vec(&Ok::<_, Refusal>(Reply::Done)).unwrap(), None)
            .unwrap();
        let channel = message.descriptor.unwrap();
        let mut packet = vec![0; MAX_SUBMISSION_BYTES];
        recv(&channel, &mut packet[..], RecvFlags::empty()).unwrap();
        // The worker dies with a request in flight.
    });
    let worker = Arc::new(worker);
    let gateway = Gateway::new(zvol(&worker, 7));
    Reactor::new(Default::default()).unwrap().block_on(async {
        let mut data: Vec<Buffer> = (0..4).map(|_| Buffer::zeroed(4096)).collect();
        let writes = data
            .iter_mut()
            .zip(0..)
            .map(|(data, at)| gateway.submit(Bio::write_from(Sector(at * 64), data)));
        let results = join_all(writes).await;
        assert_eq!(results, [Err(Status::Io); 4]);
        worker.kill();
        assert_eq!(gateway.submit(Bio::flush()).await, Err(Status::Io));
    });
    player.join().unwrap();
}

#[test]
fn a_volume_that_the_worker_does_not_know_fails() {
    let played = Arc::new(Play::default());
    let worker = play(&played, Reach::All);
    let zvol = zvol(&worker, 8);
    let gateway = Gateway::new(Arc::clone(&zvol) as _);
    Reactor::new(Default::default()).unwrap().block_on(async {
        let mut data = Buffer::zeroed(4096);
        assert_eq!(gateway.submit(Bio::read_into(Sector(0), &mut data)).await, Err(Status::Io));
        assert_eq!(zvol.shut(), Some(8));
        assert_eq!(gateway.submit(Bio::read_into(Sector(0), &mut data)).await, Err(Status::Io));
        // The worker knows the volume by another number.
        zvol.reopen(7);
        assert_eq!(gateway.submit(Bio::read_into(Sector(0), &mut data)).await, Ok(()));
    });
    worker.kill();
}

/// A reactor that ends waits for the worker: the memory of requests in flight must not be reused.
#[test]
fn the_end_of_a_thread_waits_for_its_requests() {
    thread_ends(Reach::All);
    thread_ends(Reach::Windows);
}

fn thread_ends(reach: Reach) {
    let played = Arc::new(Play::default());
    let worker = play(&played, reach);
    let gateway = Gateway::new(zvol(&worker, 7));
    played.hold(true);
    let playing = Arc::clone(&played);
    let reactor = Reactor::new(Default::default()).unwrap();
    reactor.block_on(async {
        let given = Arc::clone(&playing);
        let write = spawn(async move {
            let mut data = Buffer::from_slice(&[42; 4096]);
            gateway.submit(Bio::write_from(Sector(0), &mut data)).await
        });
        while given.requests.load(SeqCst) == 0 {
            ashlar_engine::sleep(Duration::from_millis(1)).await;
        }
        // The future is dropped, the request remains.
        drop(write);
    });
    let release = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        playing.hold(false);
    });
    drop(reactor);
    assert!(played.volume.lock().unwrap()[..4096].iter().all(|byte| *byte == 42));
    release.join().unwrap();
    worker.kill();
}
