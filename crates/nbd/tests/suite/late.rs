//! Requests that are late: the connection that has them is left, and no other one.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ashlar_block::{Bio, Buffer, Flags, Gateway, Presence, Sector, Status, plug};
use ashlar_engine::sleep;
use ashlar_nbd::wire::{CMD_READ, FLAG_SEND_FLUSH};
use futures_util::future::{join, join_all};

use crate::disk_checks::{run, write};
use crate::violations::{Asked, handshake_with, shake_hands, with_connections};

/// Reads from here on are not answered.
const HUNG: u64 = 512 << 10;

/// A server that closes no connection.
#[derive(Default)]
struct Server {
    connections: AtomicUsize,
    /// It receives nothing.
    is_deaf: AtomicBool,
    open: Mutex<Vec<UnixStream>>,
}

impl Server {
    fn serve(&self, stream: &mut UnixStream) -> io::Result<()> {
        use std::io::Write;
        shake_hands(stream, &handshake_with(FLAG_SEND_FLUSH))?;
        self.connections.fetch_add(1, SeqCst);
        loop {
            while self.is_deaf.load(SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            let asked = Asked::receive(stream)?;
            if asked.kind != CMD_READ || asked.offset < HUNG {
                stream.write_all(&asked.reply())?;
            }
        }
    }
}

fn with_disk(work: impl AsyncFn(&Server, &Gateway)) {
    let server = Arc::new(Server::default());
    let serving = Arc::clone(&server);
    let serve = move |_, mut stream: UnixStream| {
        let server = Arc::clone(&serving);
        thread::spawn(move || {
            // What it leads to shows at the client.
            let (Ok(()) | Err(_)) = server.serve(&mut stream);
            server.open.lock().unwrap().push(stream);
        });
    };
    with_connections(serve, |uri| {
        run(async {
            let disk = Gateway::new(Arc::new(ashlar_nbd::open(uri, "disk", false).unwrap()));
            work(&server, &disk).await;
        });
    });
}

async fn read(disk: &Gateway, at: u64) -> Result<(), Status> {
    let bio = Bio::read_into(Sector::from_bytes_floor(at), &mut Buffer::alloc(512));
    disk.submit(bio.with_flags(Flags::NOMERGE)).await
}

#[test]
fn requests_that_are_late_on_an_old_connection_do_not_end_a_new_one() {
    with_disk(async |server, disk| {
        // All on the first connection, with deadlines one after the other.
        let reads = (0..4).map(|n| {
            disk.disk().set_io_timeout_ms(300 + n * 150).unwrap();
            let read = Bio::read_into(Sector((HUNG >> 9) + n * 16), &mut Buffer::alloc(512));
            let read = disk.submit(read);
            plug::flush_current();
            read
        });
        let reads = join_all(reads.collect::<Vec<_>>());
        disk.disk().set_io_timeout_ms(10_000).unwrap();
        let others = async {
            let since = Instant::now();
            while server.connections.load(SeqCst) < 2 || write(disk, 0, 1).await.is_err() {
                assert!(since.elapsed() < Duration::from_secs(10), "it does not connect again");
                sleep(Duration::from_millis(1)).await;
            }
            // Flushes report the end of the first connection, and each late request on it, once.
            let mut told = 0;
            while disk.disk().stats().totals().in_flight() > 0 {
                assert_eq!(write(disk, 8, 1).await, Ok(()));
                told += usize::from(disk.flush().await.is_err());
                sleep(Duration::from_millis(5)).await;
            }
            assert!((1..=4).contains(&told), "{told}");
        };
        let (reads, ()) = join(reads, others).await;
        assert_eq!(reads, [Err(Status::Timeout); 4]);
        assert_eq!(write(disk, 8, 1).await, Ok(()));
        assert_eq!(server.connections.load(SeqCst), 2);
    });
}

/// Has the client send until the socket is full, and then a read, with these deadlines in milliseconds.
async fn fill(server: &Server, disk: &Gateway, timeouts: [u64; 2]) -> [Result<(), Status>; 2] {
    server.is_deaf.store(true, SeqCst);
    let mut data = Buffer::from_slice(&vec![1; 512 << 10]);
    disk.disk().set_io_timeout_ms(timeouts[0]).unwrap();
    let writes: Vec<_> =
        (0..16).map(|_| disk.submit(Bio::write_from(Sector(0), &mut data))).collect();
    plug::flush_current();
    let last = async {
        sleep(Duration::from_millis(100)).await;
        disk.disk().set_io_timeout_ms(timeouts[1]).unwrap();
        let last = read(disk, 0).await;
        assert_eq!(server.connections.load(SeqCst), 1);
        if timeouts[1] < timeouts[0] {
            // It is not kept, as one would be that may still be executed.
            let since = Instant::now();
            while disk.disk().presence() != Presence::Answering {
                assert!(since.elapsed() < Duration::from_secs(2), "it is kept");
                sleep(Duration::from_millis(1)).await;
            }
        }
        server.is_deaf.store(false, SeqCst);
        last
    };
    let (writes, last) = join(join_all(writes), last).await;
    [writes.into_iter().fold(Ok(()), Result::and), last]
}

#[test]
fn a_command_that_was_never_sent_fails_alone() {
    with_disk(async |server, disk| {
        let [writes, last] = fill(server, disk, [10_000, 200]).await;
        assert_eq!((writes, last), (Ok(()), Err(Status::Timeout)));
        assert_eq!(read(disk, 0).await, Ok(()));
        assert_eq!(server.connections.load(SeqCst), 1);
    });
}

#[test]
fn what_was_not_sent_before_a_connection_is_left_fails_at_once() {
    with_disk(async |server, disk| {
        let [writes, last] = fill(server, disk, [300, 2000]).await;
        assert_eq!((writes.is_err(), last), (true, Err(Status::Transport)));
    });
}
