//! A connection with TLS, over a pipe in memory.

use std::cell::RefCell;
use std::fs;
use std::future::{Future, pending};
use std::sync::Arc;

use ashlar_block::buffer::Buffer;
use ashlar_nbd::TlsParameters;
use ashlar_nbd::tls::{ClientTls, Credentials, SESSION_BYTES, ServerTls};
use ashlar_nbd::wire::{OPT_STARTTLS, REP_ACK, REP_ERR_INVALID};
use futures_util::FutureExt;
use futures_util::future::join;
use tempfile::TempDir;

use super::*;
use crate::nbd::budget::Budget;
use crate::nbd::testing::{Pipe, SIZE, SlowRam, alone, exports, pattern, pipe, run};
use crate::nbd::transmission::{Command, Header};
use ashlar_nbd::wire::{OPT_GO, OPTS_MAGIC};

/// The credentials of both sides.
fn credentials(is_required: bool) -> (Tls, ClientTls) {
    let folder = TempDir::new().unwrap();
    let client = keys(&folder, "alice:00112233445566778899aabbccddeeff\n");
    let server = ServerTls::load(&Credentials::Directory(folder.path().into()), false).unwrap();
    (Tls::new(server, is_required), client)
}

/// Writes the keys of a server, and returns the credentials of a client with such a key.
fn keys(folder: &TempDir, lines: &str) -> ClientTls {
    let keys = folder.path().join("keys.psk");
    fs::write(&keys, lines).unwrap();
    let parameters = TlsParameters { psk_file: Some(keys), ..TlsParameters::default() };
    ClientTls::load(&parameters, None).unwrap()
}

/// A server with TLS on one end of a pipe, and `client` on the other.
fn session<T, F: Future<Output = T>>(
    tls: &Tls,
    ram: &Arc<SlowRam>,
    fragment: usize,
    client: impl FnOnce(Channel<Pipe>) -> F,
) -> (Result<End, Disconnect>, T) {
    session_of(&alone(), tls, ram, fragment, client)
}

fn session_of<T, F: Future<Output = T>>(
    peer: &Peer,
    tls: &Tls,
    ram: &Arc<SlowRam>,
    fragment: usize,
    client: impl FnOnce(Channel<Pipe>) -> F,
) -> (Result<End, Disconnect>, T) {
    let (server, end) = pipe(1 << 20, fragment);
    let exports = exports(ram);
    run(join(
        async {
            let stream = Channel::plain(&server);
            let begun = begin(&stream, tls, &exports, peer, pending(), pending()).await;
            let result = match begun {
                Ok(Ok(begun)) => resume(&stream, begun, peer, pending()).await,
                Ok(Err(end)) => Ok(end),
                Err(error) => Err(error),
            };
            server.close();
            result
        },
        client(Channel::plain(end)),
    ))
}

async fn take(stream: &Channel<Pipe>, len: usize) -> Option<Vec<u8>> {
    let mut buffer = Buffer::zeroed(len);
    stream.recv_exact(buffer.whole()).await.ok()?;
    Some(buffer.as_slice().to_vec())
}

async fn send(stream: &Channel<Pipe>, bytes: Vec<u8>) {
    stream.send(ChunkList::of(bytes)).await.0.unwrap();
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut message = OPTS_MAGIC.to_be_bytes().to_vec();
    message.extend(number.to_be_bytes());
    message.extend((data.len() as u32).to_be_bytes());
    message.extend(data);
    message
}

/// The type of the last reply to an option.
async fn answer(stream: &Channel<Pipe>) -> u32 {
    loop {
        let head = take(stream, 20).await.unwrap();
        let field = |at: usize| u32::from_be_bytes(*head[at..].first_chunk().unwrap());
        let (kind, len) = (field(12), field(16) as usize);
        if len > 0 {
            take(stream, len).await.unwrap();
        }
        if kind == REP_ACK || kind >> 31 == 1 {
            return kind;
        }
    }
}

async fn greeted(stream: &Channel<Pipe>) {
    take(stream, 18).await.unwrap();
    send(stream, vec![0, 0, 0, 3]).await;
}

#[test]
fn a_client_with_tls_reads_what_it_has_written() {
    for (fragment, is_required) in [(1, true), (7, false), (5000, true), (1 << 20, false)] {
        let (tls, credentials) = credentials(is_required);
        let ram = SlowRam::new(SIZE, 3);
        let data = pattern(300_000, 5);
        let (result, ()) = session(&tls, &ram, fragment, |stream| async move {
            greeted(&stream).await;
            send(&stream, option(OPT_STARTTLS, &[])).await;
            assert_eq!(answer(&stream).await, REP_ACK);
            stream.secure(credentials.session().unwrap()).await.unwrap();
            send(&stream, option(OPT_STARTTLS, &[])).await;
            assert_eq!(answer(&stream).await, REP_ERR_INVALID);
            // The first request comes without waiting for the answer, perhaps in the same receive.
            let request = |number: Command, length: usize| {
                let number = number as u16;
                Header { flags: 0, number, cookie: 1, offset: 4096, length: length as u32 }.encode()
            };
            let mut first = option(OPT_GO, b"\0\0\0\x03md0\0\0");
            first.extend(request(Command::Write, data.len()));
            first.extend(&data);
            send(&stream, first).await;
            assert_eq!(answer(&stream).await, REP_ACK);
            assert_eq!(take(&stream, 16).await.unwrap()[4..8], [0; 4]);
            send(&stream, request(Command::Read, data.len()).to_vec()).await;
            assert_eq!(take(&stream, 16).await.unwrap()[4..8], [0; 4]);
            assert!(take(&stream, data.len()).await.unwrap() == data);
            send(&stream, request(Command::Disc, 0).to_vec()).await;
        });
        assert!(matches!(result, Ok(End::Disc)), "{result:?}");
    }
}

/// Has a client begin TLS, and leave: whether TLS succeeds.
async fn begins(stream: Channel<Pipe>, credentials: &ClientTls) -> bool {
    greeted(&stream).await;
    send(&stream, option(OPT_STARTTLS, &[])).await;
    let is_secure = take(&stream, 20).await.is_some()
        && stream.secure(credentials.session().unwrap()).await.is_ok();
    stream.stream().close();
    is_secure
}

#[test]
fn a_new_client_needs_the_keys_that_are_in_the_file_now() {
    let (folder, ram) = (TempDir::new().unwrap(), SlowRam::new(SIZE, 0));
    let old = keys(&folder, "alice:00112233445566778899aabbccddeeff\n");
    let server = ServerTls::load(&Credentials::Directory(folder.path().into()), false).unwrap();
    let tls = Tls::new(server, true);
    let new = keys(&folder, "bob:ffeeddccbbaa99887766554433221100ff\n");
    for (client, is_accepted) in [(&new, true), (&old, false)] {
        let begun = session(&tls, &ram, 1 << 20, |stream| begins(stream, client)).1;
        assert_eq!(begun, is_accepted);
    }
}

#[test]
fn a_session_holds_memory_of_the_budget_until_the_connection_ends() {
    let (tls, credentials) = credentials(true);
    let (ram, budget) = (SlowRam::new(SIZE, 0), Arc::new(Budget::new(0)));
    let peer = Peer::alone(Arc::clone(&budget));
    let used = budget.used_bytes();
    let begun = session_of(&peer, &tls, &ram, 1 << 20, |stream| async {
        begins(stream, &credentials).await && budget.used_bytes() >= used + SESSION_BYTES
    });
    assert!(begun.1);
    // It goes with the connection to another thread.
    peer.begin();
    let admitted = peer.leave();
    assert_eq!(budget.used_bytes(), used + SESSION_BYTES);
    drop(admitted);
    assert_eq!(budget.used_bytes(), used);
}

#[test]
fn a_client_is_refused_when_sessions_have_all_memory_that_they_may_have() {
    let (tls, credentials) = credentials(true);
    let (ram, budget) = (SlowRam::new(SIZE, 0), Arc::new(Budget::new(0)));
    let take = || budget.session().now_or_never().flatten();
    let others: Vec<_> = std::iter::from_fn(take).collect();
    let attempt = || {
        let peer = Peer::alone(Arc::clone(&budget));
        session_of(&peer, &tls, &ram, 1 << 20, |stream| begins(stream, &credentials))
    };
    let (result, begun) = attempt();
    let refused = matches!(result, Err(Disconnect::TooManySecure(most)) if most == others.len());
    assert!(refused && !begun, "{result:?}");
    drop(others);
    assert!(attempt().1);
    assert_eq!(budget.used_bytes(), 0);
}

/// Whoever is between both sides could put it there: after the handshake it would count as the client's word.
#[test]
fn plain_text_behind_starttls_is_no_part_of_the_session() {
    let (tls, credentials) = credentials(false);
    let ram = SlowRam::new(SIZE, 0);
    let (result, ()) = session(&tls, &ram, 1 << 20, |stream| async move {
        greeted(&stream).await;
        let injected = [option(OPT_STARTTLS, &[]), option(8, &[])].concat();
        send(&stream, injected).await;
        assert_eq!(answer(&stream).await, REP_ACK);
        assert!(stream.secure(credentials.session().unwrap()).await.is_err());
    });
    assert!(matches!(result, Err(Disconnect::Injected)), "{result:?}");
}

/// It is seen only when it is taken for a record.
#[test]
fn plain_text_in_the_place_of_the_handshake_ends_the_connection() {
    let (tls, _) = credentials(true);
    let ram = SlowRam::new(SIZE, 0);
    let said = RefCell::new(Vec::new());
    let (result, ()) = session(&tls, &ram, 1 << 20, |stream| async {
        let stream = stream;
        greeted(&stream).await;
        send(&stream, option(OPT_STARTTLS, &[])).await;
        assert_eq!(answer(&stream).await, REP_ACK);
        send(&stream, option(3, &[])).await;
        while let Some(byte) = take(&stream, 1).await {
            said.borrow_mut().extend(byte);
        }
    });
    assert!(matches!(result, Err(Disconnect::Insecure(_))), "{result:?}");
    // At most an alert: no option is answered.
    assert!(said.borrow().len() < 20, "{said:?}");
}

/// An empty credential must not open the server.
#[test]
fn a_handshake_without_credentials_is_refused() {
    let (tls, _) = credentials(true);
    let ram = SlowRam::new(SIZE, 0);
    let (result, ()) = session(&tls, &ram, 1 << 20, |stream| async move {
        greeted(&stream).await;
        send(&stream, option(OPT_STARTTLS, &[])).await;
        assert_eq!(answer(&stream).await, REP_ACK);
        let unverified = TlsParameters { verify_peer: false, ..TlsParameters::default() };
        let client = ClientTls::load(&unverified, None).unwrap();
        assert!(stream.secure(client.session().unwrap()).await.is_err());
    });
    assert!(matches!(result, Err(Disconnect::Insecure(_))), "{result:?}");
}
