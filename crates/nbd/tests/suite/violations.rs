//! Servers that break the protocol: the client leaves them, whatever they send.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ashlar_block::{Bio, Buffer, Gateway, Sector, Sectors, Status};
use ashlar_engine::sleep;
use ashlar_nbd::wire::{
    ALLOCATION_CONTEXT, CMD_FLUSH, CMD_READ, CMD_WRITE, FLAG_FIXED_NEWSTYLE, FLAG_HAS_FLAGS,
    FLAG_NO_ZEROES, FLAG_SEND_FLUSH, INIT_PASSWD, OPT_GO, OPTS_MAGIC, REP_ACK, REP_ERR_UNSUP,
    REP_INFO, REP_MAGIC, REP_META_CONTEXT, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC,
};
use ashlar_nbd::{ConnectError, Uri};
use futures_util::future::join3;

use crate::disk_checks::{run, write};
use crate::kit::directory;

/// The identifier of the metadata context.
const CONTEXT: u32 = 7;

fn be(parts: &[(u64, usize)]) -> Vec<u8> {
    let bytes = parts.iter().map(|(value, len)| value.to_be_bytes()[8 - len..].to_vec());
    bytes.collect::<Vec<_>>().concat()
}

fn greeting() -> Vec<u8> {
    let flags = FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES;
    be(&[(INIT_PASSWD, 8), (OPTS_MAGIC, 8), (flags.into(), 2)])
}

fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let head = [(REP_MAGIC, 8), (option.into(), 4), (kind.into(), 4), (data.len() as u64, 4)];
    [be(&head), data.to_vec()].concat()
}

fn handshake() -> Vec<u8> {
    handshake_with(FLAG_SEND_FLUSH)
}

/// What a server says until the transmission, with these flags, to a client that asks for structured replies and for GO.
pub(crate) fn handshake_with(flags: u16) -> Vec<u8> {
    let flags = FLAG_HAS_FLAGS | flags;
    let info = be(&[(0, 2), (1 << 20, 8), (flags.into(), 2)]);
    [
        greeting(),
        option_reply(8, REP_ACK, &[]),
        option_reply(
            10,
            REP_META_CONTEXT,
            &[&CONTEXT.to_be_bytes(), ALLOCATION_CONTEXT.as_bytes()].concat(),
        ),
        option_reply(10, REP_ACK, &[]),
        option_reply(OPT_GO, REP_INFO, &info),
        option_reply(OPT_GO, REP_ACK, &[]),
    ]
    .concat()
}

/// Runs `client` with a server that handles each connection by `serve`, which gets its number.
pub(crate) fn with_connections<T>(
    serve: impl Fn(usize, UnixStream) + Send + 'static,
    client: impl FnOnce(&Uri) -> T,
) -> T {
    let dir = directory();
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    thread::spawn(move || {
        let connections = listener.incoming().map_while(Result::ok).enumerate();
        connections.for_each(|(number, stream)| serve(number, stream));
    });
    client(&Uri::parse(&format!("nbd+unix:///?socket={}", socket.display())).unwrap())
}

/// Sends `first`, and receives the client's part of the handshake: flags, structured replies, one metadata context, and GO with
/// one item, of the empty name.
pub(crate) fn shake_hands(stream: &mut UnixStream, first: &[u8]) -> io::Result<()> {
    let (Ok(()) | Err(_)) = stream.write_all(first);
    stream.read_exact(&mut [0; 4 + 16 + (16 + 4 + 4 + 4 + ALLOCATION_CONTEXT.len()) + (16 + 8)])
}

/// Runs `client` with a server that sends `first` to each connection, and `then` once a request of 28 bytes has come.
fn with_server<T>(first: Vec<u8>, then: Vec<u8>, client: impl FnOnce(&Uri) -> T) -> T {
    let serve = move |_, mut stream: UnixStream| {
        let mut request = [0; 28];
        let asked = shake_hands(&mut stream, &first).and_then(|()| stream.read_exact(&mut request));
        if asked.is_ok() {
            let (Ok(()) | Err(_)) = stream.write_all(&then);
            // Until the client is gone.
            let (Ok(_) | Err(_)) = stream.read_to_end(&mut Vec::new());
        }
    };
    with_connections(serve, client)
}

fn open(first: Vec<u8>) -> ConnectError {
    with_server(first, Vec::new(), |uri| match ashlar_nbd::open(uri, "disk", false) {
        Ok(_) => panic!("it was opened"),
        Err(error) => error,
    })
}

/// The result of reading the first two sectors from a server that answers with `reply`.
fn read(reply: Vec<u8>) -> Result<Vec<u8>, Status> {
    with_server(handshake(), reply, |uri| {
        run(async {
            let disk = Gateway::new(Arc::new(ashlar_nbd::open(uri, "disk", false).unwrap()));
            disk.disk().set_io_timeout_ms(500).unwrap();
            disk.read(Sector(8), Sectors(2)).await.map(|read| read.as_slice().to_vec())
        })
    })
}

#[test]
fn a_server_that_negotiates_wrongly_is_refused() {
    let foreign = |error: &ConnectError| matches!(error, ConnectError::Foreign(_));
    assert!(foreign(&open(b"SSH-2.0-OpenSSH_9.2\r\n plus something".to_vec())));
    // Oldstyle, and newstyle that is not fixed.
    assert!(foreign(&open(be(&[(INIT_PASSWD, 8), (0x0000_4202_8186_1253, 8), (0, 8)]))));
    assert!(foreign(&open(be(&[(INIT_PASSWD, 8), (OPTS_MAGIC, 8), (0, 2)]))));
    let go = |replies: &[Vec<u8>]| {
        let all = [
            &[greeting(), option_reply(8, REP_ACK, &[]), option_reply(10, REP_ERR_UNSUP, &[])],
            replies,
        ]
        .concat()
        .concat();
        open(all).to_string()
    };
    let info = |text: &[(u64, usize)]| option_reply(OPT_GO, REP_INFO, &be(text));
    let ack = || option_reply(OPT_GO, REP_ACK, &[]);
    for (replies, expected) in [
        (vec![ack()], "an export without a size"),
        (vec![info(&[(0, 2), (1, 8)]), ack()], "an export without a size"),
        (vec![info(&[(3, 2), (512, 4)])], "block sizes that are incomplete"),
        (vec![info(&[])], "information without a type"),
        (vec![option_reply(1, REP_ACK, &[])], "no reply to an option"),
        (vec![option_reply(OPT_GO, 7, &[])], "an unknown reply"),
        (vec![be(&[(REP_MAGIC, 8), (7, 4), (3, 4), (1 << 20, 4)])], "that is too long"),
        (vec![info(&[(9, 2)]); 100], "too many replies"),
        (vec![option_reply(OPT_GO, (1 << 31) + 6, b"no\x1b[31m")], "no\\u{1b}[31m"),
        (vec![option_reply(OPT_GO, (1 << 31) + 2, b"")], "error 2"),
        (
            vec![
                info(&[(0, 2), (1 << 20, 8), (1, 2)]),
                info(&[(3, 2), (8192, 4), (8192, 4), (1 << 20, 4)]),
                ack(),
            ],
            "blocks of 8192",
        ),
    ] {
        let said = go(&replies);
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn a_server_that_does_not_answer_is_left() {
    let since = Instant::now();
    assert!(matches!(open(greeting()), ConnectError::Silent(_)));
    assert!(since.elapsed() < Duration::from_secs(20));
}

/// A chunk of the reply to the first request.
fn chunk(flags: u64, kind: u64, data: &[u8]) -> Vec<u8> {
    let magic = STRUCTURED_REPLY_MAGIC.into();
    let head = [(magic, 4), (flags, 2), (kind, 2), (0, 8), (data.len() as u64, 4)];
    [be(&head), data.to_vec()].concat()
}

fn data(at: u64, bytes: &[u8]) -> Vec<u8> {
    [be(&[(at, 8)]), bytes.to_vec()].concat()
}

#[test]
fn only_replies_that_fit_their_requests_are_taken() {
    // In two parts, the second one first, with a hole.
    let whole =
        [chunk(0, 1, &data(4096 + 512, &[7; 512])), chunk(1, 2, &be(&[(4096, 8), (512, 4)]))];
    assert_eq!(read(whole.concat()).unwrap(), [[0; 512], [7; 512]].concat());
    let ended = [chunk(0, 1, &data(4096, &[7; 1024])), chunk(1, 0, &[])];
    assert_eq!(read(ended.concat()).unwrap(), [7; 1024]);
    // An error counts, whatever else comes.
    let error = |number: u64, message: &[u8]| {
        [be(&[(number, 4), (message.len() as u64, 2)]), message.to_vec()].concat()
    };
    let failed = [chunk(0, 32769, &error(28, b"no")), chunk(1, 1, &data(4096, &[7; 1024]))];
    assert_eq!(read(failed.concat()), Err(Status::NoSpace));
    assert_eq!(read(chunk(1, 32999, &error(5, b""))), Err(Status::Io));

    for (what, reply) in [
        ("another magic", be(&[(0x1234, 4)])),
        ("a simple reply", be(&[(SIMPLE_REPLY_MAGIC.into(), 4), (0, 4), (0, 8)])),
        (
            "another request's",
            be(&[(STRUCTURED_REPLY_MAGIC.into(), 4), (1, 2), (0, 2), (9, 8), (0, 4)]),
        ),
        ("too little", chunk(1, 1, &data(4096, &[7; 512]))),
        ("nothing", chunk(1, 0, &[])),
        ("before it", chunk(1, 1, &data(4095, &[7; 1024]))),
        ("beyond it", chunk(1, 1, &data(4097, &[7; 1024]))),
        ("too much", chunk(1, 1, &data(4096, &[7; 1025]))),
        (
            "a part twice",
            [chunk(0, 1, &data(4096, &[7; 1024])), chunk(1, 1, &data(4096, &[7; 1]))].concat(),
        ),
        ("a hole beyond it", chunk(1, 2, &be(&[(4096, 8), (u32::MAX.into(), 4)]))),
        ("a short hole", chunk(1, 2, &be(&[(4096, 8)]))),
        ("an unknown chunk", chunk(1, 9, &[1; 20])),
        ("an error without a number", chunk(1, 32769, &[0; 2])),
        ("an endless message", chunk(1, 32769, &be(&[(5, 4), (9, 2)]))),
        ("a long message", chunk(1, 32769, &error(5, &[b'a'; 5000]))),
    ] {
        assert_eq!(read(reply), Err(Status::Transport), "{what}");
    }
}

#[test]
fn any_bytes_lead_to_an_end() {
    let mut random = 88_172_645_463_325_252_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for round in 0..60 {
        // A valid reply with some other bytes.
        let mut reply =
            [chunk(0, 1, &data(4096, &[7; 512])), chunk(1, 2, &be(&[(4608, 8), (512, 4)]))]
                .concat();
        for _ in 0..1 + round % 4 {
            let at = next() as usize % reply.len();
            reply[at] = next() as u8;
        }
        // What it leads to is not foreseen; a missing rest is noticed at the deadline.
        let (Ok(_) | Err(_)) = read(reply);
    }
}

#[test]
fn a_write_that_was_not_answered_has_failed() {
    let failed = with_server(handshake(), b"no".to_vec(), |uri| {
        run(async {
            let disk = Gateway::new(Arc::new(ashlar_nbd::open(uri, "disk", false).unwrap()));
            disk.disk().set_io_timeout_ms(500).unwrap();
            let mut data = Buffer::from_slice(&[1; 512]);
            disk.submit(Bio::write_from(Sector(0), &mut data)).await
        })
    });
    assert_eq!(failed, Err(Status::Timeout));
}

/// The states that a server tells with `reply`, of 16 sectors.
fn states(reply: Vec<u8>) -> Result<Vec<(u64, u8)>, Status> {
    with_server(handshake(), reply, |uri| {
        run(async {
            let disk = Gateway::new(Arc::new(ashlar_nbd::open(uri, "disk", false).unwrap()));
            disk.disk().set_io_timeout_ms(500).unwrap();
            let extents = disk.extents(Sector(8), Sectors(16)).await?;
            Ok(extents.iter().map(|extent| (extent.len.0, extent.state.bits())).collect())
        })
    })
}

#[test]
fn a_status_has_the_context_that_was_chosen_and_descriptors() {
    let chunk = |context: u32, descriptors: &[(u64, u64)]| {
        let len = 4 + 8 * descriptors.len() as u64;
        let head = [(STRUCTURED_REPLY_MAGIC.into(), 4), (1, 2), (5, 2), (0, 8), (len, 4)];
        let list: Vec<_> =
            descriptors.iter().flat_map(|(len, state)| [(*len, 4), (*state, 4)]).collect();
        [be(&head), be(&[(context.into(), 4)]), be(&list)].concat()
    };
    assert_eq!(states(chunk(CONTEXT, &[(4096, 3), (8192, 0)])), Ok(vec![(8, 3), (8, 0)]));
    // An answer may end early. Bits that the client does not know say nothing.
    assert_eq!(states(chunk(CONTEXT, &[(4096, 0x8000_0002)])), Ok(vec![(8, 2)]));
    assert_eq!(states(chunk(CONTEXT, &[(0, 3), (100, 3)])), Ok(vec![(16, 0)]));
    for wrong in [chunk(CONTEXT + 1, &[(4096, 3)]), chunk(CONTEXT, &[])] {
        assert_eq!(states(wrong), Err(Status::Transport));
    }
    let simple = be(&[(SIMPLE_REPLY_MAGIC.into(), 4), (0, 4), (0, 8)]);
    assert_eq!(states(simple), Err(Status::Transport));
    // One chunk has all descriptors: others would fill the memory.
    let mut first = chunk(CONTEXT, &[(4096, 3)]);
    first[5] = 0;
    assert_eq!(states([first, chunk(CONTEXT, &[(4096, 0)])].concat()), Err(Status::Transport));
    // Not for a read.
    assert_eq!(read(chunk(CONTEXT, &[(1024, 3)])), Err(Status::Transport));
    assert_eq!(states(Vec::new()), Err(Status::Timeout));
}

/// A request that a client has sent.
pub(crate) struct Asked {
    pub(crate) kind: u16,
    cookie: u64,
    pub(crate) offset: u64,
    len: usize,
}

impl Asked {
    pub(crate) fn receive(stream: &mut UnixStream) -> io::Result<Self> {
        let mut head = [0; 28];
        stream.read_exact(&mut head)?;
        let field = |at: usize, len: usize| {
            head[at..at + len].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let (kind, len) = (field(6, 2) as u16, field(24, 4) as usize);
        if kind == CMD_WRITE {
            stream.read_exact(&mut vec![0; len])?;
        }
        Ok(Self { kind, cookie: field(8, 8), offset: field(16, 8), len })
    }

    /// Its reply; the data of a read are sevens.
    pub(crate) fn reply(&self) -> Vec<u8> {
        if self.kind != CMD_READ {
            return be(&[(SIMPLE_REPLY_MAGIC.into(), 4), (0, 4), (self.cookie, 8)]);
        }
        let data = data(self.offset, &vec![7; self.len]);
        let magic = STRUCTURED_REPLY_MAGIC.into();
        let head = [(magic, 4), (1, 2), (1, 2), (self.cookie, 8), (data.len() as u64, 4)];
        [be(&head), data].concat()
    }
}

/// Answers a write, then one of three requests in flight twice, and nothing more. Ends when the client has left.
fn answer_twice(kind: u16, stream: &mut UnixStream) -> io::Result<()> {
    let first = Asked::receive(stream)?;
    stream.write_all(&first.reply())?;
    let asked = [Asked::receive(stream)?, Asked::receive(stream)?, Asked::receive(stream)?];
    let is_it = |asked: &&Asked| asked.kind == kind && (kind == CMD_FLUSH || asked.offset == 4096);
    let reply = asked.iter().find(is_it).unwrap().reply();
    stream.write_all(&[&reply[..], &reply[..]].concat())?;
    let (Ok(_) | Err(_)) = stream.read_to_end(&mut Vec::new());
    Ok(())
}

/// A completion that comes twice ends one request, once, and then the connection, with all that is in flight on it.
#[test]
fn a_second_reply_ends_the_connection_and_no_request_twice() {
    for kind in [CMD_READ, CMD_WRITE, CMD_FLUSH] {
        let (sender, left) = mpsc::channel();
        let serve = move |number, mut stream: UnixStream| {
            if shake_hands(&mut stream, &handshake()).is_err() {
                return;
            }
            if number == 0 {
                answer_twice(kind, &mut stream).unwrap();
                sender.send(()).unwrap();
                return;
            }
            while let Ok(asked) = Asked::receive(&mut stream) {
                let (Ok(()) | Err(_)) = stream.write_all(&asked.reply());
            }
        };
        with_connections(serve, |uri| {
            run(async {
                let disk = Gateway::new(Arc::new(ashlar_nbd::open(uri, "disk", false).unwrap()));
                write(&disk, 0, 1).await.unwrap();
                let losses = disk.disk().losses();
                let read = |sector| {
                    let disk = &disk;
                    async move {
                        let data = disk.read(Sector(sector), Sectors(2)).await?;
                        assert_eq!(data.as_slice(), [7; 1024]);
                        Ok(())
                    }
                };
                let twice = async {
                    match kind {
                        CMD_READ => read(8).await,
                        CMD_WRITE => write(&disk, 8, 2).await,
                        _ => disk.flush().await,
                    }
                };
                let (twice, other_read, other_write) =
                    join3(twice, read(64), write(&disk, 128, 3)).await;
                assert_eq!(
                    (other_read, other_write),
                    (Err(Status::Transport), Err(Status::Transport)),
                    "{kind}"
                );
                left.recv().unwrap();
                // A flush may end before the loss or after it.
                let is_told = kind == CMD_FLUSH && twice == Err(Status::Io);
                assert!(twice.is_ok() || is_told, "{kind}: {twice:?}");
                assert!(disk.disk().losses() > losses, "{kind}: the disk notes no loss");
                let totals = disk.disk().stats().totals();
                let ended = [totals.read, totals.write, totals.flush].map(|group| group.ios);
                let expected = match kind {
                    CMD_READ => [2, 2, 0],
                    CMD_WRITE => [1, 3, 0],
                    _ => [1, 2, 1],
                };
                assert_eq!((ended, totals.in_flight()), (expected, 0), "{kind}");
                // On another connection.
                let since = Instant::now();
                while read(8).await.is_err() {
                    assert!(since.elapsed() < Duration::from_secs(10), "it does not respond again");
                    sleep(Duration::from_millis(10)).await;
                }
                let told = disk.flush().await;
                assert!(is_told || told.is_err(), "{kind}: {told:?}");
                assert_eq!(disk.flush().await, Ok(()));
            });
        });
    }
}
