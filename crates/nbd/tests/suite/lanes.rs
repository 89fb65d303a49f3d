//! Several connections of a disk: what one acknowledged, and what its end means for the others.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ashlar_block::{Bio, Buffer, Flags, Gateway, Presence, Sector, Status};
use ashlar_engine::{sleep, spawn, timeout};
use ashlar_nbd::Uri;
use ashlar_nbd::wire::{CMD_FLUSH, FLAG_CAN_MULTI_CONN, FLAG_SEND_FLUSH};

use crate::disk_checks::run;
use crate::kit::directory;
use crate::violations::{Asked, handshake_with, shake_hands};

const PATIENCE: Duration = Duration::from_secs(10);
const SHARED: u16 = FLAG_SEND_FLUSH | FLAG_CAN_MULTI_CONN;
/// A write here is acknowledged, and then its connection ends.
const LAST: u64 = 4096;
/// The server holds replies to requests here until the test releases them.
const HELD: u64 = 8192;
/// Half of the reply to a read here is sent at once.
const HALF: u64 = 16384;
/// The header of a chunk, and not where its data belong, is sent at once in reply to a read here.
const HEADER: u64 = 512 << 10;

/// A server that stores nothing, and counts its connections and the requests of each.
#[derive(Default)]
struct Server {
    connections: Mutex<Vec<UnixStream>>,
    requests: [AtomicUsize; 8],
    /// Ends a connection after the reply to a flush.
    ends_after_flush: AtomicBool,
    /// Answers nothing on the first connection, as a server of which the client has not heard that it is gone.
    is_first_silent: AtomicBool,
    answers_held: AtomicBool,
    /// Ends all connections but the first one, as a server that accepts no more clients: at their first request, or at once.
    ends_others: AtomicBool,
    ends_at_once: AtomicBool,
}

impl Server {
    fn serve(&self, mut stream: UnixStream, flags: u16) -> std::io::Result<()> {
        shake_hands(&mut stream, &handshake_with(flags))?;
        let number = {
            let mut connections = self.connections.lock().unwrap();
            connections.push(stream.try_clone()?);
            connections.len() - 1
        };
        loop {
            if number > 0 && self.ends_others.load(SeqCst) && self.ends_at_once.load(SeqCst) {
                return stream.shutdown(Shutdown::Both);
            }
            let asked = Asked::receive(&mut stream)?;
            if number > 0 && self.ends_others.load(SeqCst) {
                return stream.shutdown(Shutdown::Both);
            }
            let is_at = |offset| asked.offset == offset;
            self.requests[number].fetch_add(1, SeqCst);
            while (is_at(HELD) && !self.answers_held.load(SeqCst))
                || (number == 0 && self.is_first_silent.load(SeqCst))
            {
                thread::sleep(Duration::from_millis(1));
            }
            let reply = asked.reply();
            let part = match asked.offset {
                HALF => reply.len() / 2,
                HEADER => 24,
                _ => 0,
            };
            let (first, rest) = reply.split_at(part);
            stream.write_all(first)?;
            while part > 0 && !self.answers_held.load(SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            stream.write_all(rest)?;
            let ends_after_flush = self.ends_after_flush.load(SeqCst);
            if is_at(LAST) || (asked.kind == CMD_FLUSH && ends_after_flush) {
                return stream.shutdown(Shutdown::Both);
            }
        }
    }

    fn connections(&self) -> usize {
        self.connections.lock().unwrap().len()
    }

    /// The requests of a connection.
    fn of(&self, connection: usize) -> usize {
        self.requests[connection].load(SeqCst)
    }
}

/// Runs with a server that has these flags, and a disk of it.
fn with_disk(flags: u16, work: impl AsyncFn(&Server, &Gateway)) {
    let dir = directory();
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = Arc::new(Server::default());
    let serving = Arc::clone(&server);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let server = Arc::clone(&serving);
            // It ends with the connection.
            thread::spawn(move || server.serve(stream, flags).err());
        }
    });
    let uri = Uri::parse(&format!("nbd+unix:///?socket={}", socket.display())).unwrap();
    run(async {
        let disk = Gateway::new(Arc::new(ashlar_nbd::open(&uri, "disk", false).unwrap()));
        work(&server, &disk).await;
    });
}

async fn write(disk: &Gateway, at: u64) {
    let mut data = Buffer::from_slice(&[1; 512]);
    disk.write(Sector::from_bytes_floor(at), &mut data, Flags::empty()).await.unwrap();
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "not within the time: {what}");
        sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until requests go over the second connection.
async fn until_second(server: &Server, disk: &Gateway) {
    let since = Instant::now();
    // The first one is the client's own.
    while server.of(1) < 2 {
        assert!(since.elapsed() < PATIENCE, "there is no second connection");
        write(disk, 0).await;
        sleep(Duration::from_millis(1)).await;
    }
}

async fn until_flushed(disk: &Gateway) {
    let since = Instant::now();
    while disk.flush().await.is_err() {
        assert!(since.elapsed() < PATIENCE, "no flush succeeds");
        sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_thread_has_its_own_connection_if_the_server_promises_one_cache() {
    with_disk(SHARED, async |server, disk| {
        until_second(server, disk).await;
        let first = server.of(0);
        for _ in 0..100 {
            write(disk, 0).await;
        }
        assert_eq!(server.of(0), first);
    });
    with_disk(FLAG_SEND_FLUSH, async |server, disk| {
        for _ in 0..200 {
            write(disk, 0).await;
        }
        assert_eq!(server.connections(), 1);
    });
}

#[test]
fn a_disk_of_which_little_is_read_has_one_connection() {
    with_disk(SHARED, async |server, disk| {
        for _ in 0..20 {
            write(disk, 0).await;
        }
        sleep(Duration::from_millis(100)).await;
        assert_eq!(server.connections(), 1);
    });
}

#[test]
fn what_a_connection_had_acknowledged_fails_the_next_flush_on_its_successor() {
    with_disk(SHARED, async |server, disk| {
        until_second(server, disk).await;
        disk.flush().await.unwrap();
        let (first, losses) = (server.of(0), disk.disk().losses());
        write(disk, LAST).await;
        assert_eq!(server.of(0), first, "it was sent on the second one");
        until("a loss", || disk.disk().losses() > losses).await;
        // All connections end, so that none can settle it.
        until("connected again", || server.connections() == 3).await;
        assert!(disk.flush().await.is_err());
        until_flushed(disk).await;
        assert_eq!(server.of(0), first, "the link's has ended, too");
    });
}

#[test]
fn a_connection_that_ends_before_it_is_used_does_not_end_the_others() {
    for at_once in [false, true] {
        with_disk(SHARED, async |server, disk| {
            server.ends_at_once.store(at_once, SeqCst);
            server.ends_others.store(true, SeqCst);
            let losses = disk.disk().losses();
            for _ in 0..40 {
                write(disk, 0).await;
            }
            until("a second connection", || server.connections() == 2).await;
            for _ in 0..100 {
                write(disk, 0).await;
                sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(disk.disk().losses(), losses);
            assert_eq!(disk.flush().await, Ok(()));
            // The thread tries again.
            server.ends_others.store(false, SeqCst);
            let since = Instant::now();
            while (1..8).all(|connection| server.of(connection) < 2) {
                assert!(since.elapsed() < PATIENCE, "there is no second connection");
                write(disk, 0).await;
                sleep(Duration::from_millis(1)).await;
            }
        });
    }
}

#[test]
fn a_flush_on_one_connection_covers_the_others() {
    with_disk(SHARED, async |server, disk| {
        until_second(server, disk).await;
        // What both have acknowledged. The second one ends after the flush, with nothing at risk.
        server.ends_after_flush.store(true, SeqCst);
        let losses = disk.disk().losses();
        disk.flush().await.unwrap();
        until("connected again", || server.connections() == 3).await;
        assert_eq!(disk.disk().losses(), losses);
        server.ends_after_flush.store(false, SeqCst);
        until_flushed(disk).await;
    });
}

#[test]
fn a_new_connection_is_not_used_before_the_first_one_has_answered() {
    with_disk(SHARED, async |server, disk| {
        for _ in 0..31 {
            write(disk, 0).await;
        }
        // As if the server had been restarted: what the first connection has had acknowledged is lost, which it does not tell yet.
        server.is_first_silent.store(true, SeqCst);
        let begin = || {
            let disk = disk.clone();
            spawn(async move { write(&disk, 0).await })
        };
        let mut writes: Vec<_> = (0..8).map(|_| begin()).collect();
        until("a second connection", || server.connections() == 2).await;
        sleep(Duration::from_millis(100)).await;
        writes.extend((0..8).map(|_| begin()));
        sleep(Duration::from_millis(100)).await;
        assert_eq!(server.of(1), 0);
        server.is_first_silent.store(false, SeqCst);
        for write in writes {
            write.await;
        }
        until_second(server, disk).await;
    });
}

#[test]
fn what_is_acknowledged_after_another_connection_has_ended_is_a_loss() {
    with_disk(SHARED, async |server, disk| {
        until_second(server, disk).await;
        disk.flush().await.unwrap();
        let losses = disk.disk().losses();
        let held = spawn({
            let disk = disk.clone();
            async move { write(&disk, HELD).await }
        });
        let sent = server.of(1);
        until("the write has come", || server.of(1) > sent).await;
        // Nothing is at risk when the first one ends.
        server.connections.lock().unwrap()[0].shutdown(Shutdown::Both).unwrap();
        until("connected again", || server.connections() == 3).await;
        assert_eq!(disk.disk().losses(), losses);
        server.answers_held.store(true, SeqCst);
        held.await;
        assert!(disk.disk().losses() > losses);
        assert!(disk.flush().await.is_err());
    });
}

/// The connection of a thread reads into the submitters' memory.
#[test]
fn memory_of_a_read_is_not_touched_after_its_deadline() {
    for (at, len) in [(HELD, 512), (HELD, 65536), (HALF, 512), (HALF, 65536), (HEADER, 512)] {
        with_disk(SHARED, async |server, disk| {
            until_second(server, disk).await;
            let sent = server.of(1);
            disk.disk().set_io_timeout_ms(200).unwrap();
            let mut memory = Buffer::from_slice(&vec![1; len]);
            let read = disk.submit(Bio::read_into(Sector::from_bytes_floor(at), &mut memory));
            let read = timeout(PATIENCE, read).await.expect("it ends");
            assert!(
                read == Err(Status::Timeout) || at != HELD && read == Err(Status::Transport),
                "{read:?}"
            );
            assert_eq!(server.of(1), sent + 1);
            memory.as_mut_slice().fill(5);
            server.answers_held.store(true, SeqCst);
            until("all is answered", || disk.disk().presence() != Presence::Silent).await;
            until_flushed(disk).await;
            assert!(memory.as_slice() == vec![5; len], "{at} {len}");
            // At first over the link's connection, and soon over one of the thread's own.
            let since = Instant::now();
            while server.connections() < 4 || server.of(3) < 2 {
                assert!(since.elapsed() < PATIENCE, "there is no further connection");
                let read = Bio::read_into(Sector(1), &mut memory);
                if disk.submit(read).await.is_ok() {
                    assert!(memory.as_slice() == vec![7; len]);
                }
                sleep(Duration::from_millis(1)).await;
            }
        });
    }
}
