//! Sockets: echo, vectored sends, ends of streams, stale socket files.

use std::io::ErrorKind;
use std::net::Shutdown;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use ashlar_block::Buffer;
use ashlar_engine::net::{BoundSocket, Listener, Socket};
use ashlar_engine::{ChunkList, Engine, Reactor, spawn, timeout, yield_now};

fn run(test: impl Future<Output = ()>) {
    Reactor::new(Default::default()).unwrap().block_on(async {
        timeout(Duration::from_secs(60), test).await.expect("the test hangs");
    });
}

async fn echo(listener: Listener) {
    let socket = listener.accept().await.unwrap();
    let mut buf = vec![0; 1000];
    loop {
        let (got, same) = socket.recv(buf).await;
        buf = same;
        let count = got.unwrap();
        if count == 0 {
            return;
        }
        socket.send_all(buf[..count].to_vec()).await.0.unwrap();
    }
}

/// Sends far more than the sockets' buffers hold, vectored and in odd sizes, while receiving.
async fn talk(socket: Socket) {
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|i| (i * 7 % 251) as u8).collect();
    let socket = Rc::new(socket);
    let sender = {
        let (socket, bytes) = (Rc::clone(&socket), bytes.clone());
        spawn(async move {
            let mut list = ChunkList::new();
            // More chunks than one call takes, in many sizes.
            for (i, part) in bytes.chunks(1231).enumerate() {
                if i % 2 == 0 {
                    list.push_bytes(part.to_vec());
                } else {
                    list.push_segment(Buffer::from_slice(part).whole());
                }
            }
            let (sent, list) = socket.send_vectored(list).await;
            sent.unwrap();
            assert_eq!(list.len(), bytes.len());
            socket.shutdown(Shutdown::Write).await.unwrap();
        })
    };
    let mut back = Buffer::alloc(bytes.len());
    let (got, segment) = socket.recv_exact(back.whole()).await;
    got.unwrap();
    drop(segment);
    sender.await;
    assert!(back.as_slice() == bytes);
    assert_eq!(socket.recv(vec![0; 1]).await.0.unwrap(), 0);
    let (ended, _) = socket.recv_exact(vec![0; 1]).await;
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn a_unix_socket_echoes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    run(async {
        let server = spawn(echo(Listener::bind_unix(&path, 0o600).unwrap()));
        talk(Socket::connect_unix(&path).await.unwrap()).await;
        server.await;
    });
    assert!(!path.exists(), "the listener removes its socket");
}

#[test]
fn a_tcp_socket_echoes() {
    run(async {
        let listener = Listener::bind_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let server = spawn(echo(listener));
        talk(Socket::connect_tcp(address).await.unwrap()).await;
        server.await;
    });
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_or_a_file_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (path, file) = (dir.path().join("s"), dir.path().join("f"));
    std::fs::write(&file, "keep").unwrap();
    run(async {
        // What a killed process leaves: bound, but not listening.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let live = Listener::bind_unix(&path, 0o600).unwrap();
        let second = Listener::bind_unix(&path, 0o600).map(|_| ());
        assert_eq!(second.unwrap_err().kind(), ErrorKind::AddrInUse);
        let over_file = Listener::bind_unix(&file, 0o600).map(|_| ());
        assert_eq!(over_file.unwrap_err().kind(), ErrorKind::AddrInUse);
        drop(live);
    });
    assert_eq!(std::fs::read(&file).unwrap(), b"keep");
}

#[test]
fn a_listener_removes_its_own_socket_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    run(async {
        let first = Listener::bind_unix(&path, 0o600).unwrap();
        // As an administrator would, to make room for another daemon.
        std::fs::rename(&path, dir.path().join("moved")).unwrap();
        let _second = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(first);
        std::os::unix::net::UnixStream::connect(&path).unwrap();
    });
}

#[test]
fn a_socket_has_the_mode_that_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        for mode in [0o600, 0o660, 0o666] {
            let path = dir.path().join(format!("{mode:o}"));
            let _listener = Listener::bind_unix(&path, mode).unwrap();
            let found = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(found & 0o777, mode);
        }
    });
}

#[test]
fn a_socket_belongs_to_the_group_that_was_asked_for() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root gives files to any group");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    run(async {
        let _bound = BoundSocket::unix(&path, 0o660, Some(54321)).unwrap();
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.gid(), found.permissions().mode() & 0o777), (54321, 0o660));
    });
}

#[test]
fn the_kernel_looks_after_tcp_clients_that_vanish() {
    run(async {
        let listener = Listener::bind_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = listener.accept().await.unwrap();
        assert!(rustix::net::sockopt::socket_keepalive(&socket).unwrap());
        let idle = rustix::net::sockopt::tcp_keepidle(&socket).unwrap();
        assert_eq!(idle, Duration::from_secs(60));
    });
}

#[test]
fn connecting_to_nobody_is_an_error() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let missing = Socket::connect_unix(&path).await.map(|_| ());
        assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let refused = Socket::connect_unix(&path).await.map(|_| ());
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn sending_to_a_closed_peer_fails_without_a_signal() {
    run(async {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(theirs);
        let socket = Socket::from_fd(ours.into());
        let (sent, _) = socket.send_all(vec![1; 10]).await;
        assert_eq!(sent.unwrap_err().kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn a_connection_accepted_for_a_dropped_future_is_closed() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = Listener::bind_unix(&path, 0o600).unwrap();
        let mut closed = 0;
        for _ in 0..50 {
            let mut accept = Box::pin(listener.accept());
            let first = std::future::poll_fn(|cx| Poll::Ready(accept.as_mut().poll(cx))).await;
            assert!(first.is_pending());
            // Accepted (or not yet), but never collected.
            let client = Socket::connect_unix(&path).await.unwrap();
            drop(accept);
            let end = timeout(Duration::from_millis(20), client.recv(vec![0; 1])).await;
            match end {
                Some((got, _)) => {
                    assert_eq!(got.unwrap(), 0);
                    closed += 1;
                }
                // The cancel came first: the connection waits for the next accept.
                None => drop(listener.accept().await.unwrap()),
            }
        }
        assert!(closed > 0, "the case was never met");
    });
}

#[test]
fn a_socket_goes_on_at_another_reactor_unless_an_operation_is_in_flight() {
    let engine = Engine::start(1).unwrap();
    run(async {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (ours, theirs) = (Socket::from_fd(ours.into()), Socket::from_fd(theirs.into()));
        let receiving = Box::pin(theirs.recv(vec![0; 1]));
        assert!(timeout(Duration::from_millis(1), receiving).await.is_none());
        // The kernel may still use it.
        let mut theirs = theirs.into_fd().expect_err("a receive is in flight");
        let fd = loop {
            match theirs.into_fd() {
                Ok(fd) => break fd,
                Err(same) => theirs = same,
            }
            yield_now().await;
        };
        ours.send_all(vec![7; 3]).await.0.unwrap();
        let elsewhere = engine.handles()[0].spawn_on(move || async move {
            let socket = Socket::from_fd(fd);
            let (got, buf) = socket.recv_exact(vec![0; 3]).await;
            got.unwrap();
            socket.send_all(buf).await.0.unwrap();
        });
        let (got, buf) = ours.recv_exact(vec![0; 3]).await;
        got.unwrap();
        assert_eq!(buf, [7; 3]);
        elsewhere.await.unwrap();
    });
}
