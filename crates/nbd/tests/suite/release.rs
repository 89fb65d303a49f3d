//! Disks that are no longer used: they disconnect from the server, and no connection is left.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ashlar_block::{Bio, Buffer, Gateway, Sector, Sectors, Status};
use ashlar_engine::{blocking, sleep, spawn};
use ashlar_nbd::wire::{CMD_DISC, CMD_WRITE, FLAG_CAN_MULTI_CONN, FLAG_SEND_FLUSH};
use ashlar_nbd::{ConnectError, Uri};

use crate::disk_checks::{run, write};
use crate::violations::{Asked, handshake_with, shake_hands, with_connections};

const PATIENCE: Duration = Duration::from_secs(10);

/// A connection, as the server sees it.
#[derive(Clone, Default, Debug)]
struct Seen {
    /// The commands that came.
    kinds: Vec<u16>,
    has_ended: bool,
}

impl Seen {
    fn has_left(&self) -> bool {
        self.has_ended && self.kinds.last() == Some(&CMD_DISC)
    }
}

/// A server that stores nothing.
#[derive(Default)]
struct Server {
    connections: Mutex<Vec<Seen>>,
    /// Answers no writes.
    holds_writes: AtomicBool,
    /// Closes new connections at once, and others when a command comes.
    is_away: AtomicBool,
    /// Says nothing to new connections.
    is_mute: AtomicBool,
}

impl Server {
    fn serve(&self, number: usize, stream: &mut UnixStream, flags: u16) -> io::Result<()> {
        if self.is_away.load(SeqCst) {
            return Ok(());
        }
        if self.is_mute.load(SeqCst) {
            // Until the client is gone.
            return stream.read_to_end(&mut Vec::new()).map(drop);
        }
        shake_hands(stream, &handshake_with(flags))?;
        loop {
            let asked = Asked::receive(stream)?;
            self.connections.lock().unwrap()[number].kinds.push(asked.kind);
            if asked.kind == CMD_DISC || self.is_away.load(SeqCst) {
                return Ok(());
            }
            while asked.kind == CMD_WRITE && self.holds_writes.load(SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            stream.write_all(&asked.reply())?;
        }
    }

    fn seen(&self) -> Vec<Seen> {
        self.connections.lock().unwrap().clone()
    }

    fn count(&self, kind: u16) -> usize {
        self.seen().iter().flat_map(|seen| &seen.kinds).filter(|it| **it == kind).count()
    }
}

fn with_disk<T>(flags: u16, work: impl AsyncFn(&Arc<Server>, &Uri, &Gateway) -> T) -> T {
    let server = Arc::new(Server::default());
    let serving = Arc::clone(&server);
    let serve = move |number, mut stream: UnixStream| {
        let server = Arc::clone(&serving);
        server.connections.lock().unwrap().push(Seen::default());
        thread::spawn(move || {
            // How it ends shows at the client.
            let (Ok(()) | Err(_)) = server.serve(number, &mut stream, flags);
            server.connections.lock().unwrap()[number].has_ended = true;
        });
    };
    with_connections(serve, |uri| {
        run(async {
            let disk = Gateway::new(Arc::new(ashlar_nbd::open(uri, "disk", false).unwrap()));
            work(&server, uri, &disk).await
        })
    })
}

/// Releases a disk while its thread ends, and waits until its first connection has left: the thread of the link has told all others by then.
struct ReleaseAtTheEnd {
    disk: Gateway,
    server: Arc<Server>,
}

impl Drop for ReleaseAtTheEnd {
    fn drop(&mut self) {
        self.disk.release();
        wait_until("the first one has left", || self.server.seen()[0].has_left());
    }
}

/// As [`until`], on a thread without a reactor.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "not within the time: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "not within the time: {what}");
        sleep(Duration::from_millis(1)).await;
    }
}

async fn is_offline(disk: &Gateway) {
    // Where no earlier one is overdue.
    assert_eq!(write(disk, 1024, 1).await, Err(Status::Offline));
    let read = Bio::read_into(Sector(0), &mut Buffer::alloc(512));
    assert_eq!(disk.submit(read).await, Err(Status::Offline));
    assert_eq!(disk.flush().await, Err(Status::Offline));
    assert_eq!(disk.extents(Sector(0), Sectors(8)).await, Err(Status::Offline));
}

async fn open(uri: &Uri) -> Result<Gateway, ConnectError> {
    let uri = uri.clone();
    let opened = blocking::run(move || ashlar_nbd::open(&uri, "disk", false)).await.unwrap();
    Ok(Gateway::new(Arc::new(opened?)))
}

#[test]
fn all_connections_of_a_released_disk_leave_and_none_is_opened() {
    for flags in [FLAG_SEND_FLUSH, FLAG_SEND_FLUSH | FLAG_CAN_MULTI_CONN] {
        with_disk(flags, async |server, uri, disk| {
            let lanes = usize::from(flags & FLAG_CAN_MULTI_CONN != 0);
            let is_used = |seen: &Seen| seen.kinds.len() > 1;
            while server.seen().iter().filter(|seen| is_used(seen)).count() <= lanes {
                write(disk, 0, 1).await.unwrap();
            }
            disk.release();
            is_offline(disk).await;
            until("all have left", || server.seen().iter().all(Seen::has_left)).await;
            // Longer than a link or a lane waits before it connects again.
            for _ in 0..50 {
                is_offline(disk).await;
                sleep(Duration::from_millis(30)).await;
            }
            assert_eq!(server.seen().len(), 1 + lanes);
            disk.release();
            // The export can be used again.
            let again = open(uri).await.unwrap();
            assert_eq!(write(&again, 0, 1).await, Ok(()));
            assert_eq!(server.seen().len(), 2 + lanes);
            is_offline(disk).await;
        });
    }
}

#[test]
fn a_released_disk_leaves_after_what_is_in_flight() {
    for flags in [FLAG_SEND_FLUSH, FLAG_SEND_FLUSH | FLAG_CAN_MULTI_CONN] {
        with_disk(flags, async |server, uri, disk| {
            for _ in 0..200 {
                write(disk, 0, 1).await.unwrap();
            }
            server.holds_writes.store(true, SeqCst);
            let before = server.count(CMD_WRITE);
            let start = || {
                let disk = disk.clone();
                spawn(async move { write(&disk, 0, 1).await })
            };
            // The second one waits in the socket.
            let writes = [start(), start()];
            until("a write has come", || server.count(CMD_WRITE) > before).await;
            disk.release();
            is_offline(disk).await;
            let opening = spawn({
                let uri = uri.clone();
                async move { open(&uri).await }
            });
            sleep(Duration::from_millis(200)).await;
            let is_busy = |seen: &&Seen| seen.kinds.last() == Some(&CMD_WRITE) && !seen.has_ended;
            assert_eq!(server.seen().iter().filter(is_busy).count(), 1);
            assert!(!opening.is_finished());
            server.holds_writes.store(false, SeqCst);
            for write in writes {
                assert_eq!(write.await, Ok(()));
            }
            // The next one waits until the former connections have ended.
            let again = opening.await.unwrap();
            // The server notes the end of each connection on a thread of its own, perhaps after the next one has come.
            until("the former have left", || {
                server
                    .seen()
                    .split_last()
                    .is_some_and(|(_, former)| former.iter().all(Seen::has_left))
            })
            .await;
            assert!(server.seen().last().is_some_and(|last| !last.has_ended));
            assert_eq!(write(&again, 0, 1).await, Ok(()));
        });
    }
}

/// The thread waited 30 s for the server's first word, and kept the connection.
#[test]
fn a_thread_that_ends_leaves_no_connection_of_a_disk_that_is_released_meanwhile() {
    let server = with_disk(FLAG_SEND_FLUSH | FLAG_CAN_MULTI_CONN, async |server, _, disk| {
        server.is_mute.store(true, SeqCst);
        while server.seen().len() < 2 {
            write(disk, 0, 1).await.unwrap();
        }
        let release = ReleaseAtTheEnd { disk: disk.clone(), server: Arc::clone(server) };
        // It no longer runs.
        spawn(async move { drop(release) }).detach();
        Arc::clone(server)
    });
    wait_until("the connection has ended", || server.seen()[1].has_ended);
}

#[test]
fn a_disk_whose_server_is_away_connects_no_more_after_its_release() {
    with_disk(FLAG_SEND_FLUSH, async |server, uri, disk| {
        server.is_away.store(true, SeqCst);
        // Ends the first connection; those that follow end in their handshake.
        assert!(write(disk, 0, 1).await.is_err());
        until("it connects again", || server.seen().len() > 1).await;
        disk.release();
        is_offline(disk).await;
        let tried = server.seen().len();
        server.is_away.store(false, SeqCst);
        // Longer than the waits between its first attempts.
        sleep(Duration::from_secs(1)).await;
        // One may have been on its way.
        assert!(server.seen().len() <= tried + 1 && server.seen().iter().all(|it| it.has_ended));
        assert_eq!(write(&open(uri).await.unwrap(), 0, 1).await, Ok(()));
    });
}

/// Otherwise an old write could replace a newer one.
#[test]
fn an_export_is_not_opened_while_its_server_may_execute_writes_of_a_released_disk() {
    with_disk(FLAG_SEND_FLUSH, async |server, uri, disk| {
        server.holds_writes.store(true, SeqCst);
        disk.disk().set_io_timeout_ms(200).unwrap();
        assert_eq!(write(disk, 0, 1).await, Err(Status::Timeout));
        disk.release();
        is_offline(disk).await;
        assert!(matches!(open(uri).await, Err(ConnectError::Late(_))));
        // The server executes it, and closes the connection.
        server.holds_writes.store(false, SeqCst);
        assert_eq!(write(&open(uri).await.unwrap(), 0, 1).await, Ok(()));
        assert!(server.seen()[0].has_ended);
    });
}
