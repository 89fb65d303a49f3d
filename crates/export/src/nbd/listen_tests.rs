//! Clients on real sockets that block others.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ashlar_block::byte_volume::ByteVolume;
use ashlar_block::gateway::Gateway;
use ashlar_block::units::Sectors;
use ashlar_engine::net::BoundSocket;
use ashlar_engine::oneshot::{self, Sender};
use ashlar_engine::{Engine, RamDevice};
use ashlar_nbd::wire::FLAG_CAN_MULTI_CONN;
use futures_util::FutureExt;

use super::super::budget::MIN_BUDGET_BYTES;
use super::super::export::Export;
use super::super::transmission::{Command, Header};
use super::*;

const MIB: u32 = 1 << 20;

/// A listener on the first of two threads that serve.
pub(super) struct Server {
    pub(super) path: PathBuf,
    pub(super) placement: Arc<Placement>,
    pub(super) budget: Arc<Budget>,
    stop: Option<Sender<()>>,
}

impl Server {
    /// Begins the end.
    pub(super) fn stop(&mut self) {
        drop(self.stop.take());
    }
}

/// Runs `clients` against a listener that exports `volume` as `ram0`, and then ends it.
pub(super) fn with_server(volume: ByteVolume, config: Config, clients: impl FnOnce(&mut Server)) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let bound = BoundSocket::unix(&path, 0o600, None).unwrap();
    let engine = Engine::start(2).unwrap();
    let exports = Arc::new(Exports::new());
    exports.add(Export::new("ram0", volume).unwrap()).unwrap();
    let placement = Placement::on(engine.handles());
    let (stop, stopped) = oneshot::channel::<()>();
    // Dropping the sender is enough.
    let stopped = stopped.map(|_| ()).shared();
    let budget = Arc::new(Budget::new(MIN_BUDGET_BYTES));
    let (on, from) = (Arc::clone(&placement), Arc::clone(&budget));
    let served = engine.handles()[0]
        .spawn_on(move || listen(bound.into(), exports, from, on, config, Tls::default(), stopped));
    let mut server = Server { path, placement, budget, stop: Some(stop) };
    clients(&mut server);
    server.stop();
    wait_for(served).unwrap();
    assert_eq!(server.budget.used_bytes(), 0, "everything was returned");
    assert_eq!(server.placement.connections(), [0, 0]);
}

/// Waits for the end of a listener.
fn wait_for<T>(receiver: ashlar_engine::Receiver<io::Result<T>>) -> io::Result<T> {
    let reactor = ashlar_engine::Reactor::new(Default::default()).unwrap();
    reactor.block_on(receiver).expect("the listener does not panic")
}

/// Runs `clients` against a listener with a RAM disk, and passes it the listener's path.
fn against(config: Config, clients: impl FnOnce(&Path)) {
    let ram = RamDevice::new("ram0", Sectors(u64::from(32 * MIB) / 512)).unwrap();
    let volume = ByteVolume::new(Gateway::new(Arc::new(ram)));
    with_server(volume, config, |server| clients(&server.path));
}

/// A client in the handshake.
pub(super) fn greet(path: &Path) -> UnixStream {
    let mut client = UnixStream::connect(path).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client.read_exact(&mut [0; 18]).unwrap();
    client.write_all(&[0, 0, 0, 3]).unwrap();
    client
}

/// Chooses the export with EXPORT_NAME.
pub(super) fn choose(client: &mut UnixStream) {
    client.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\x04ram0").unwrap();
}

/// A client in transmission.
pub(super) fn connect(path: &Path) -> UnixStream {
    let mut client = greet(path);
    choose(&mut client);
    client.read_exact(&mut [0; 10]).unwrap();
    client
}

pub(super) fn request(client: &mut UnixStream, command: Command, length: u32) {
    let header = Header { flags: 0, number: command as u16, cookie: 1, offset: 0, length };
    client.write_all(&header.encode()).unwrap();
}

pub(super) fn read(client: &mut UnixStream, length: u32) {
    request(client, Command::Read, length);
    client.read_exact(&mut vec![0; 16 + length as usize]).unwrap();
}

/// Whether the server closes the connection, after everything it sent was read.
pub(super) fn is_closed(client: &mut UnixStream) -> bool {
    match client.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        // A reset: the server closed with requests not received.
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn clients_that_take_no_replies_go_when_others_need_their_memory() {
    let patience = Duration::from_millis(50);
    against(Config { patience, ..Config::default() }, |path| {
        let mut stuck: Vec<UnixStream> = (0..4).map(|_| connect(path)).collect();
        for client in &mut stuck {
            (0..64).for_each(|_| request(client, Command::Read, MIB));
        }
        // A client that is as slow, but holds hardly any memory.
        let mut small = connect(path);
        request(&mut small, Command::Read, 4096);
        let mut client = connect(path);
        // Small requests continue all the time, and a large one runs when its turn comes.
        (0..100).for_each(|_| read(&mut client, 4096));
        read(&mut client, 32 * MIB);
        small.read_exact(&mut [0; 16 + 4096]).unwrap();
        read(&mut small, 4096);
    });
}

#[test]
fn clients_that_stop_within_a_payload_go_when_others_need_their_memory() {
    let patience = Duration::from_millis(50);
    against(Config { patience, ..Config::default() }, |path| {
        let mut stuck: Vec<UnixStream> = (0..64).map(|_| connect(path)).collect();
        for client in &mut stuck {
            request(client, Command::Write, MIB);
            client.write_all(&[1]).unwrap();
        }
        read(&mut connect(path), 32 * MIB);
    });
}

#[test]
fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    let idle = Some(Duration::from_millis(200));
    against(Config { idle, ..Config::default() }, |path| {
        let (mut silent, mut busy) = (connect(path), connect(path));
        let closed = std::thread::spawn(move || is_closed(&mut silent));
        while !closed.is_finished() {
            read(&mut busy, 4096);
        }
        assert!(closed.join().unwrap());
        read(&mut busy, 4096);
    });
}

#[test]
fn several_connections_are_offered_where_there_is_room_for_them() {
    for (max_connections, is_offered) in [(1, false), (2, true), (256, true)] {
        against(Config { max_connections, ..Config::default() }, |path| {
            let mut client = greet(path);
            choose(&mut client);
            let mut export = [0; 10];
            client.read_exact(&mut export).unwrap();
            let flags = u16::from_be_bytes([export[8], export[9]]);
            assert_eq!(flags & FLAG_CAN_MULTI_CONN != 0, is_offered, "{max_connections}");
        });
    }
}

#[test]
fn half_handshakes_keep_no_client_out() {
    let config = Config { max_connections: 2, max_handshakes: 3, ..Config::default() };
    against(config, |path| {
        let mut half: Vec<UnixStream> = (0..3).map(|_| greet(path)).collect();
        let (mut first, mut second) = (connect(path), connect(path));
        read(&mut first, 4096);
        read(&mut second, 4096);
        let _more = [greet(path), greet(path)];
        assert!(is_closed(&mut half[0]) && is_closed(&mut half[1]));
        // The youngest may continue, but there is no room: EXPORT_NAME closes, GO is refused.
        let mut third = half.pop().unwrap();
        third.write_all(b"IHAVEOPT\0\0\0\x07\0\0\0\x0a\0\0\0\x04ram0\0\0").unwrap();
        let mut head = [0; 20];
        third.read_exact(&mut head).unwrap();
        assert_eq!(head[12..16], [0x80, 0, 0, 2], "ERR_POLICY");
        let mut message = vec![0; usize::from(head[19])];
        third.read_exact(&mut message).unwrap();
        assert!(message.starts_with(b"the maximum number"));
        choose(&mut third);
        assert!(is_closed(&mut third));
        drop(first);
        // Retry until the server has noticed.
        let is_served = |mut client: UnixStream| {
            choose(&mut client);
            client.read_exact(&mut [0; 10]).is_ok()
        };
        while !is_served(greet(path)) {}
    });
}
