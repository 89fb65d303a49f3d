//! Sockets.

use std::net::TcpListener;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::io::{FdFlags, fcntl_getfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use super::*;

fn socket(family: AddressFamily) -> OwnedFd {
    socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

fn accept(from: &impl AsRawFd) -> squeue::Entry {
    let nothing = std::ptr::null_mut::<u32>();
    opcode::Accept::new(fd(from), nothing.cast(), nothing).flags(libc::SOCK_CLOEXEC).build()
}

fn shutdown(of: &OwnedFd, how: i32) -> squeue::Entry {
    opcode::Shutdown::new(fd(of), how).build()
}

fn unix_address(path: &Path) -> libc::sockaddr_un {
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as _, sun_path: [0; 108] };
    for (to, from) in address.sun_path.iter_mut().zip(path.as_os_str().as_bytes()) {
        *to = *from as _;
    }
    address
}

fn connect<T>(of: &OwnedFd, address: &T) -> squeue::Entry {
    let size = size_of::<T>() as libc::socklen_t;
    opcode::Connect::new(fd(of), std::ptr::from_ref(address).cast(), size).build()
}

fn tcp_address(port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as _,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_be_bytes([127, 0, 0, 1]).to_be() },
        sin_zero: [0; 8],
    }
}

#[test]
fn bytes_are_received_as_they_come() {
    on_both(|rig| {
        let ((one, other), mut four) = (pair(), [0; 4]);
        write(&other, b"abcdef");
        rig.recv(1, &one, &mut four);
        assert_eq!(rig.wait(1), 4);
        rig.recv(2, &one, &mut four);
        assert_eq!(rig.wait(2), 2);
        assert_eq!(&four, b"efcd");
        rig.recv(3, &one, &mut four);
        assert!(!rig.look(Some(3)));
        write(&other, b"xyz");
        assert_eq!(rig.wait(3), 3);
        assert_eq!(&four, b"xyzd");
        let entry = opcode::Recv::new(fd(&one), four.as_mut_ptr(), 4);
        assert_eq!(rig.run(entry.flags(libc::MSG_DONTWAIT).build()), -libc::EAGAIN);
        rig.recv(4, &one, &mut four);
        assert!(!rig.look(Some(4)));
        drop(other);
        assert_eq!(rig.wait(4), 0);
        rig.send(5, &one, b"abc");
        assert_eq!(rig.wait(5), -libc::EPIPE);
        let unconnected = socket(AddressFamily::INET);
        rig.recv(6, &unconnected, &mut four);
        assert_eq!(rig.wait(6), -libc::ENOTCONN);
    });
}

/// With MSG_WAITALL the kernel's ring continues until the memory is full. Threads receive and send a part, as recv(2) and send(2)
/// may at any time: the callers of the rings continue themselves.
#[test]
fn msg_waitall_may_end_early() {
    on_both(|rig| {
        let ((one, other), mut four) = (pair(), [0; 4]);
        write(&other, b"ab");
        let entry = opcode::Recv::new(fd(&one), four.as_mut_ptr(), 4);
        rig.push(1, entry.flags(libc::MSG_WAITALL).build());
        let is_early = rig.look(Some(1));
        assert_eq!(is_early, !rig.is_kernel());
        write(&other, b"cd");
        assert_eq!(rig.wait(1), if is_early { 2 } else { 4 });
        assert_eq!(&four[..2], b"ab");
    });
}

#[test]
fn a_full_socket_takes_a_part_and_then_waits() {
    on_both(|rig| {
        let (one, other) = pair();
        sockopt::set_socket_send_buffer_size(&one, 64 << 10).unwrap();
        let bytes = vec![9; 1 << 20];
        rig.send(1, &one, &bytes);
        let part = rig.wait(1);
        assert!((1..1 << 20).contains(&part), "{part}");
        rig.send(2, &one, &bytes);
        assert!(!rig.look(Some(2)));
        let mut received = drain(&other);
        assert_eq!(received, part as usize);
        let more = rig.wait(2);
        assert!(more > 0);
        received = drain(&other);
        assert_eq!(received, more as usize);
        // A message in pieces.
        let piece = |bytes: &[u8]| libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let mut pieces = [piece(b"abc"), piece(b"de")];
        // SAFETY: all zeroes are a message without anything.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (pieces.as_mut_ptr(), 2);
        let sendmsg = opcode::SendMsg::new(fd(&one), &raw const message);
        assert_eq!(rig.run(sendmsg.flags(libc::MSG_NOSIGNAL as u32).build()), 5);
        let mut five = [0; 8];
        rig.recv(3, &other, &mut five);
        assert_eq!((rig.wait(3), &five[..5]), (5, &b"abcde"[..]));
    });
}

#[test]
fn both_directions_of_a_socket_wait_on_their_own() {
    on_both(|rig| {
        let ((one, other), mut four) = (pair(), [0; 4]);
        let bytes = vec![9; 4 << 20];
        rig.send(1, &one, &bytes);
        assert!(rig.wait(1) > 0);
        rig.recv(2, &one, &mut four);
        rig.send(3, &one, &bytes);
        rig.poll(4, &one, IN);
        assert!(!rig.look(Some(2)) && !rig.posted.contains_key(&3) && !rig.posted.contains_key(&4));
        drain(&other);
        assert!(rig.wait(3) > 0);
        assert!(!rig.look(Some(2)) && !rig.posted.contains_key(&4));
        write(&other, b"abc");
        assert_eq!(rig.wait(2), 3);
        // Both rings may look at the data before they have been received, or after.
        if !rig.look(Some(4)) {
            write(&other, b"d");
        }
        assert_eq!(rig.wait(4), IN);
    });
}

#[test]
fn connections_are_accepted() {
    on_both(|rig| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        rig.push(1, accept(&listener));
        rig.push(2, accept(&listener));
        assert!(!rig.look(Some(1)));
        let client = socket(AddressFamily::UNIX);
        assert_eq!(rig.run(connect(&client, &unix_address(&path))), 0);
        // Either of the two.
        let end = Instant::now() + LONG;
        let first = loop {
            assert!(Instant::now() < end);
            if let Some(first) = [1, 2].into_iter().find(|number| rig.look(Some(*number))) {
                break first;
            }
        };
        let number = rig.wait(first);
        assert!(number >= 0, "{number}");
        // SAFETY: the descriptor is new.
        let accepted = unsafe { OwnedFd::from_raw_fd(number) };
        assert!(fcntl_getfd(&accepted).unwrap().contains(FdFlags::CLOEXEC));
        write(&client, b"abc");
        let mut four = [0; 4];
        rig.recv(4, &accepted, &mut four);
        assert_eq!(rig.wait(4), 3);
        let second = 3 - first;
        assert!(!rig.look(Some(second)));
        rig.cancel(second);
        assert_eq!(rig.wait(second), -libc::ECANCELED);
        // Threads make calls on the listening socket fail that would wait: by design.
        let flags = rustix::fs::fcntl_getfl(&listener).unwrap();
        assert_eq!(flags.contains(rustix::fs::OFlags::NONBLOCK), !rig.is_kernel());
    });
}

#[test]
fn connections_are_made_or_refused() {
    on_both(|rig| {
        let dir = tempfile::tempdir().unwrap();
        let (path, none) = (dir.path().join("socket"), dir.path().join("none"));
        drop(UnixListener::bind(&path).unwrap());
        let client = socket(AddressFamily::UNIX);
        assert_eq!(rig.run(connect(&client, &unix_address(&path))), -libc::ECONNREFUSED);
        assert_eq!(rig.run(connect(&client, &unix_address(&none))), -libc::ENOENT);

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = socket(AddressFamily::INET);
        assert_eq!(rig.run(connect(&client, &tcp_address(port))), 0);
        assert_eq!(rig.run(connect(&client, &tcp_address(port))), -libc::EISCONN);
        let (accepted, _) = listener.accept().unwrap();
        write(&accepted.into(), b"abc");
        let mut four = [0; 4];
        rig.recv(1, &client, &mut four);
        assert_eq!(rig.wait(1), 3);
        // The socket is as it was.
        let flags = rustix::fs::fcntl_getfl(&client).unwrap();
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
        drop(listener);
        let client = socket(AddressFamily::INET);
        assert_eq!(rig.run(connect(&client, &tcp_address(port))), -libc::ECONNREFUSED);
        let flags = rustix::fs::fcntl_getfl(&client).unwrap();
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
    });
}

/// The server does not accept, and its queue is full: the last client gets no answer.
#[test]
fn a_connection_in_progress_is_cancelled() {
    on_both(|rig| {
        let server = socket(AddressFamily::INET);
        rustix::net::bind(&server, &"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap())
            .unwrap();
        rustix::net::listen(&server, 0).unwrap();
        let address: std::net::SocketAddr =
            rustix::net::getsockname(&server).unwrap().try_into().unwrap();
        let address = tcp_address(address.port());
        let clients: Vec<_> = (0..4).map(|_| socket(AddressFamily::INET)).collect();
        for (number, client) in clients.iter().enumerate() {
            rig.push(number as u64, connect(client, &address));
        }
        assert_eq!(rig.wait(0), 0);
        assert!(!rig.look(Some(3)));
        rig.cancel(3);
        assert_eq!(rig.wait(3), -libc::ECANCELED);
        for number in 1..3 {
            rig.cancel(number);
            let result = rig.wait(number);
            assert!([0, -libc::ECANCELED].contains(&result), "{number}: {result}");
        }
    });
}

#[test]
fn a_shutdown_ends_what_waits() {
    on_both(|rig| {
        let ((one, _other), mut four) = (pair(), [0; 4]);
        rig.recv(1, &one, &mut four);
        assert!(!rig.look(Some(1)));
        assert_eq!(rig.run(shutdown(&one, libc::SHUT_RDWR)), 0);
        assert_eq!(rig.wait(1), 0);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rig.push(2, accept(&listener));
        assert!(!rig.look(Some(2)));
        let listener = OwnedFd::from(listener);
        assert_eq!(rig.run(shutdown(&listener, libc::SHUT_RDWR)), 0);
        assert_eq!(rig.wait(2), -libc::EINVAL);
        let unconnected = socket(AddressFamily::INET);
        assert_eq!(rig.run(shutdown(&unconnected, libc::SHUT_RDWR)), -libc::ENOTCONN);
    });
}

/// Its queue is full, and epoll cannot tell when it is not.
#[test]
fn a_unix_server_that_does_not_accept() {
    on_both(|rig| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let server = socket(AddressFamily::UNIX);
        rustix::net::bind(&server, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&server, 0).unwrap();
        let address = unix_address(&path);
        let clients: Vec<_> = (0..3).map(|_| socket(AddressFamily::UNIX)).collect();
        assert_eq!(rig.run(connect(&clients[0], &address)), 0);
        rig.push(1, connect(&clients[1], &address));
        assert!(!rig.look(Some(1)));
        rig.cancel(1);
        let result = rig.wait(1);
        // A thread of the kernel is interrupted.
        let is_kernel = rig.is_kernel();
        assert!(result == -libc::ECANCELED || is_kernel && result == -libc::EINTR, "{result}");
        rig.push(2, connect(&clients[2], &address));
        assert!(!rig.look(Some(2)));
        let flags = rustix::fs::fcntl_getfl(&clients[2]).unwrap();
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
        let accepted = rustix::net::accept(&server).unwrap();
        assert_eq!(rig.wait(2), 0);
        drop(accepted);
        let accepted = rustix::net::accept(&server).unwrap();
        write(&clients[2], b"abc");
        assert_eq!(drain(&accepted), 3);
    });
}
