//! Clients of one listener that are served by two threads.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use ashlar_block::bio::Bio;
use ashlar_block::byte_volume::ByteVolume;
use ashlar_block::device::{BlockDevice, IoFuture};
use ashlar_block::disk::Disk;
use ashlar_block::gateway::Gateway;

use super::super::budget::MIN_BUDGET_BYTES;
use super::super::testing::{SIZE, SlowRam, pattern};
use super::super::transmission::{Command, Header};
use super::tests::{Server, choose, connect, greet, is_closed, read, request, with_server};
use super::*;

const BLOCK: usize = 4096;

/// A device that records which thread submits what.
struct Witness {
    ram: Arc<SlowRam>,
    /// The names of threads, by block.
    seen: Mutex<Vec<Vec<String>>>,
}

impl Witness {
    fn new() -> Arc<Self> {
        let seen = Mutex::new(vec![Vec::new(); SIZE / BLOCK]);
        Arc::new(Self { ram: SlowRam::new(SIZE, 4), seen })
    }

    fn volume(self: &Arc<Self>) -> ByteVolume {
        ByteVolume::new(Gateway::new(Arc::clone(self) as Arc<dyn BlockDevice>))
    }
}

impl BlockDevice for Witness {
    fn disk(&self) -> &Disk {
        self.ram.disk()
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        let name = thread::current().name().unwrap_or_default().to_owned();
        self.seen.lock().unwrap()[bio.sector.bytes() as usize / BLOCK].push(name);
        self.ram.submit_bio(bio)
    }
}

/// Waits until the threads serve this many connections.
#[track_caller]
fn until(server: &Server, connections: [usize; 2]) {
    for _ in 0..2000 {
        if server.placement.connections() == connections {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{:?}, and not {connections:?}", server.placement.connections());
}

fn header(command: Command, block: usize, length: usize) -> [u8; 28] {
    let (number, offset, length) = (command as u16, (block * BLOCK) as u64, length as u32);
    Header { flags: 0, number, cookie: 1, offset, length }.encode()
}

/// Receives a simple reply of success, and its data.
fn reply(client: &mut UnixStream, length: usize) -> Vec<u8> {
    let mut head = [0; 16];
    client.read_exact(&mut head).unwrap();
    assert_eq!(head[4..8], [0; 4], "an error");
    let mut data = vec![0; length];
    client.read_exact(&mut data).unwrap();
    data
}

fn write_block(client: &mut UnixStream, block: usize, data: &[u8]) {
    client.write_all(&header(Command::Write, block, data.len())).unwrap();
    client.write_all(data).unwrap();
    reply(client, 0);
}

fn read_block(client: &mut UnixStream, block: usize) -> Vec<u8> {
    client.write_all(&header(Command::Read, block, BLOCK)).unwrap();
    reply(client, BLOCK)
}

#[test]
fn connections_are_spread_over_the_threads_and_each_stays_on_one() {
    let witness = Witness::new();
    with_server(witness.volume(), Config::default(), |server| {
        // These choose no export, and count for nothing.
        let half: Vec<UnixStream> = (0..5).map(|_| greet(&server.path)).collect();
        let mut clients: Vec<UnixStream> = (0..8).map(|_| connect(&server.path)).collect();
        for _ in 0..3 {
            clients.iter_mut().enumerate().for_each(|(n, client)| drop(read_block(client, n)));
        }
        assert_eq!(server.placement.connections(), [4, 4]);
        let seen = witness.seen.lock().unwrap();
        let of = |thread: &str| seen[..8].iter().filter(|all| **all == [thread; 3]).count();
        assert_eq!((of("ashlar-0"), of("ashlar-1")), (4, 4), "{:?}", &seen[..8]);
        drop((half, clients));
    });
}

#[test]
fn the_place_of_a_connection_that_ends_is_the_next_one_s() {
    with_server(SlowRam::new(SIZE, 0).volume(), Config::default(), |server| {
        let mut clients: Vec<Option<UnixStream>> = Vec::new();
        for (n, both) in [[1, 0], [1, 1], [2, 1], [2, 2], [3, 2], [3, 3]].into_iter().enumerate() {
            clients.push(Some(connect(&server.path)));
            until(server, both);
            assert_eq!(clients.len(), n + 1);
        }
        // Those of the first thread: by DISC, within a request, and without a word.
        clients[0].as_mut().unwrap().write_all(&header(Command::Disc, 0, 0)).unwrap();
        assert!(is_closed(clients[0].as_mut().unwrap()));
        clients[2].as_mut().unwrap().write_all(&[0x25]).unwrap();
        (clients[2], clients[4]) = (None, None);
        until(server, [0, 3]);
        let _more: Vec<UnixStream> = (0..3).map(|_| connect(&server.path)).collect();
        until(server, [3, 3]);
    });
}

#[test]
fn the_limit_of_connections_counts_those_of_all_threads() {
    let config = Config { max_connections: 2, ..Config::default() };
    with_server(SlowRam::new(SIZE, 0).volume(), config, |server| {
        let clients = [connect(&server.path), connect(&server.path)];
        until(server, [1, 1]);
        let mut third = greet(&server.path);
        choose(&mut third);
        assert!(is_closed(&mut third));
        let mut others = Vec::new();
        for mut client in clients {
            client.shutdown(Shutdown::Write).unwrap();
            assert!(is_closed(&mut client));
            // Who has seen the end of a connection finds its room.
            others.push(connect(&server.path));
        }
        others.iter_mut().for_each(|client| read(client, BLOCK as u32));
    });
}

/// What a client sends behind its choice, without waiting, arrives with the acceptor.
#[test]
fn what_was_received_with_the_handshake_goes_along() {
    with_server(SlowRam::new(SIZE, 4).volume(), Config::default(), |server| {
        for (round, len) in [1, 5000, 64 << 10, 1 << 20].into_iter().cycle().take(16).enumerate() {
            let mut client = greet(&server.path);
            let data = pattern(len, round as u64);
            let mut message = b"IHAVEOPT\0\0\0\x01\0\0\0\x04ram0".to_vec();
            message.extend(header(Command::Write, round, len));
            message.extend(&data);
            message.extend(header(Command::Flush, 0, 0));
            client.write_all(&message).unwrap();
            client.read_exact(&mut [0; 10]).unwrap();
            for _ in 0..2 {
                reply(&mut client, 0);
            }
            client.write_all(&header(Command::Read, round, len)).unwrap();
            assert!(reply(&mut client, len) == data, "round {round}");
        }
    });
}

/// What CAN_MULTI_CONN promises.
#[test]
fn a_flush_on_one_thread_covers_what_another_has_acknowledged() {
    let ram = SlowRam::new(SIZE, 4);
    with_server(ram.volume(), Config::default(), |server| {
        let connect = || Mutex::new(connect(&server.path));
        let (on_first, on_second) = (connect(), connect());
        until(server, [1, 1]);
        thread::scope(|scope| {
            for (block, writer, flusher) in [(3, &on_first, &on_second), (9, &on_second, &on_first)]
            {
                let ram = &ram;
                scope.spawn(move || {
                    for round in 0..200 {
                        let data = pattern(BLOCK, round * 16 + block as u64);
                        write_block(&mut writer.lock().unwrap(), block, &data);
                        let mut flusher = flusher.lock().unwrap();
                        flusher.write_all(&header(Command::Flush, 0, 0)).unwrap();
                        reply(&mut flusher, 0);
                        // As after a power cut.
                        let durable = &ram.durable_bytes()[block * BLOCK..][..BLOCK];
                        assert!(durable == data, "round {round} of block {block}");
                    }
                });
            }
        });
    });
}

#[test]
fn the_end_waits_for_the_requests_of_all_threads() {
    let ram = SlowRam::new(SIZE, 200);
    let config = Config { grace: Duration::from_secs(3600), ..Config::default() };
    with_server(ram.volume(), config, |server| {
        let mut clients: Vec<UnixStream> = (0..4).map(|_| connect(&server.path)).collect();
        until(server, [2, 2]);
        let _half = greet(&server.path);
        for (n, client) in clients.iter_mut().enumerate() {
            client.write_all(&header(Command::Write, n, BLOCK)).unwrap();
            client.write_all(&pattern(BLOCK, n as u64)).unwrap();
        }
        // All have begun.
        while ram.counts().started < clients.len() {
            thread::yield_now();
        }
        server.stop();
        for (n, client) in clients.iter_mut().enumerate() {
            reply(client, 0);
            assert!(is_closed(client));
            assert!(ram.bytes()[n * BLOCK..][..BLOCK] == pattern(BLOCK, n as u64));
        }
    });
}

#[test]
fn the_end_does_not_wait_for_clients_that_take_no_replies() {
    let (grace, patience) = (Duration::from_millis(50), Duration::from_secs(3600));
    let config = Config { grace, patience, ..Config::default() };
    with_server(SlowRam::new(SIZE, 0).volume(), config, |server| {
        let mut clients: Vec<UnixStream> = (0..4).map(|_| connect(&server.path)).collect();
        until(server, [2, 2]);
        for client in &mut clients {
            (0..64).for_each(|_| request(client, Command::Read, 1 << 20));
        }
        // They hold what there is.
        while server.budget.used_bytes() < MIN_BUDGET_BYTES / 2 {
            thread::yield_now();
        }
        server.stop();
        until(server, [0, 0]);
    });
}
