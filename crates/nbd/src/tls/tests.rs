//! Both sides of a session, with keys; certificates are tested with other programs (tests/interop/nbd-tls.sh).

use std::fs;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use ashlar_block::Segment;
use ashlar_block::buffer::Buffer;
use ashlar_engine::net::Socket;
use ashlar_engine::{ChunkList, Reactor, ReactorConfig};
use futures_util::future::join;
use tempfile::TempDir;

use super::*;
use crate::stream::Stream;
use crate::uri::TlsParameters;

const KEYS: &str = "alice:00112233445566778899aabbccddeeff\n";

fn run<T>(task: impl Future<Output = T>) -> T {
    Reactor::new(ReactorConfig::default()).unwrap().block_on(task)
}

/// Files of keys: of the server, and of the client.
struct Files {
    folder: TempDir,
}

impl Files {
    fn new(client: &str) -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("server"), KEYS).unwrap();
        fs::write(folder.path().join("client"), client).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn server(&self) -> ServerTls {
        ServerTls::load(&Credentials::Keys(self.path("server")), false).unwrap()
    }

    fn client(&self) -> ClientTls {
        let parameters =
            TlsParameters { psk_file: Some(self.path("client")), ..TlsParameters::default() };
        ClientTls::load(&parameters, None).unwrap()
    }
}

type End = Channel<Socket>;

/// Both ends of a connection in plain text.
fn ends() -> (End, End) {
    let (a, b) = UnixStream::pair().unwrap();
    let end = |stream: UnixStream| Channel::plain(Socket::from_fd(stream.into()));
    (end(a), end(b))
}

/// Both ends of a session.
async fn secured() -> (End, End) {
    let (files, (server, client)) = (Files::new(KEYS), ends());
    let both = join(
        server.secure(files.server().session().unwrap()),
        client.secure(files.client().session().unwrap()),
    );
    let (at_server, at_client) = both.await;
    assert_eq!(at_server.unwrap().as_deref(), Some("alice"));
    at_client.unwrap();
    (server, client)
}

/// Bytes that depend on their number.
fn bytes(from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(|at| (at * at / 251 + at) as u8).collect()
}

/// Sends `total` bytes in lists of several chunks of different lengths.
async fn send_all(end: &End, total: usize) {
    let (mut at, mut list, mut len) = (0, ChunkList::new(), 1);
    while at < total {
        list.clear();
        for _ in 0..5 {
            len = (len * 7 + 13) % 70_001;
            let part = bytes(at, len.min(total - at));
            at += part.len();
            list.push_bytes(Vec::new());
            match len % 2 {
                0 => list.push_bytes(part),
                _ => list.push_segment(Buffer::from_slice(&part).into_whole()),
            }
        }
        let (sent, same) = end.send(list).await;
        sent.unwrap();
        list = same;
    }
}

async fn recv_all(end: &End, total: usize) {
    let (mut at, mut len) = (0, 1);
    while at < total {
        len = (len * 5 + 11) % 50_021 + 1;
        let count = len.min(total - at);
        let memory = Buffer::zeroed(count).into_whole();
        let count = match len % 3 {
            0 => end.recv(memory.clone()).await.unwrap(),
            _ => end.recv_exact(memory.clone()).await.map(|()| count).unwrap(),
        };
        assert!(count > 0, "the stream has ended at {at}");
        let mut got = vec![0; count];
        memory.copy_to(&mut got);
        assert!(got == bytes(at, count), "other bytes at {at}");
        at += count;
    }
}

/// More than the sockets and the buffers hold, in both directions at the same time.
#[test]
fn what_is_sent_arrives_in_both_directions_at_once() {
    run(async {
        let (server, client) = secured().await;
        let (there, back) = (5 << 20, 3 << 20);
        let to = join(send_all(&client, there), recv_all(&server, there));
        let from = join(send_all(&server, back), recv_all(&client, back));
        join(to, from).await;
    });
}

#[test]
fn a_session_continues_on_another_thread() {
    let (file, session, client) = run(async {
        let (server, client) = secured().await;
        let (socket, session) = server.into_parts();
        let (theirs, rest) = client.into_parts();
        let fd = |socket: Socket| socket.into_fd().map_err(|_| "in use").unwrap();
        (fd(socket), session, (fd(theirs), rest))
    });
    std::thread::spawn(move || {
        run(async {
            let server = Channel::resume(Socket::from_fd(file), session);
            let client = Channel::resume(Socket::from_fd(client.0), client.1);
            assert!(server.is_secure() && client.is_secure());
            join(send_all(&server, 1 << 20), recv_all(&client, 1 << 20)).await;
        });
    })
    .join()
    .unwrap();
}

#[test]
fn another_key_and_another_user_are_refused_by_the_server() {
    let other = KEYS.replace("00", "01");
    for keys in [&*other, &KEYS.replace("alice", "eve")] {
        run(async {
            let (files, (server, client)) = (Files::new(keys), ends());
            let by_server = async {
                let result = server.secure(files.server().session().unwrap()).await;
                drop(server);
                result
            };
            let by_client = client.secure(files.client().session().unwrap());
            let (at_server, at_client) = join(by_server, by_client).await;
            assert!(matches!(at_server, Err(SecureError::Handshake(_))), "{at_server:?}");
            // It learns so by an alert.
            assert!(matches!(at_client, Err(SecureError::Handshake(_))), "{at_client:?}");
            assert!(!client.is_secure());
        });
    }
}

#[test]
fn something_else_than_tls_is_refused() {
    let files = Files::new(KEYS);
    run(async {
        for text in [&b"IHAVEOPT\0\0\0\x03\0\0\0\0"[..], b""] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(text).unwrap();
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
            let server = Channel::plain(Socket::from_fd(ours.into()));
            assert!(server.secure(files.server().session().unwrap()).await.is_err());
        }
    });
}

fn room() -> Segment {
    Buffer::zeroed(64).into_whole()
}

#[test]
fn a_connection_that_is_cut_ends_the_stream_and_no_message_is_complete() {
    run(async {
        let (server, client) = secured().await;
        client.send(ChunkList::of(bytes(0, 10))).await.0.unwrap();
        drop(client);
        let cut = server.recv_exact(room()).await.unwrap_err();
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(server.recv(room()).await.unwrap(), 0);
    });
}

#[test]
fn a_record_that_somebody_else_has_made_is_an_error() {
    run(async {
        let (server, client) = secured().await;
        let (socket, _) = client.into_parts();
        let forged = [&[23, 3, 3, 0, 40][..], &[7; 40]].concat();
        socket.send_all(forged).await.0.unwrap();
        let error = server.recv(room()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    });
}

/// The task that was sending is gone: nobody knows how much of a record the peer has.
#[test]
fn nothing_follows_a_record_that_was_sent_in_part() {
    run(async {
        let (server, client) = secured().await;
        {
            // More than the socket holds: it waits, and is dropped then.
            let sending = std::pin::pin!(client.send(ChunkList::of(bytes(0, 8 << 20))));
            let receiving = std::pin::pin!(server.recv(room()));
            futures_util::future::select(sending, receiving).await;
        }
        let error = client.send(ChunkList::of(bytes(0, 10))).await.0.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe, "{error}");
    });
}
