//! Each request, in each layout, and what the device says about itself.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{BlockDevice, ByteVolume, Gateway, Op, Sectors};
use ashlar_vhost::{Config, Export};

use crate::frontend::*;
use crate::server::{Cached, DISK_BYTES, Server, Slow};

pub(crate) const OK: u8 = 0;
pub(crate) const FAILED: u8 = 1;
pub(crate) const UNSUPPORTED: u8 = 2;
/// VERSION_1, EVENT_IDX, INDIRECT, FLUSH.
pub(crate) const ALL: u64 = 1 << 32 | 1 << 29 | 1 << 28 | 1 << 9;

pub(crate) fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn all_requests_do_what_they_say() {
    let server = Server::of(Slow::new().volume());
    let guest = Guest::new();
    for features in [0, ALL] {
        guest.clear();
        let mut client = Client::connect(&server.path, &guest, features | 1 << 32);
        let mut ring = client.start(1, 0);
        let data = bytes(features as u8, 8192);
        guest.put(DATA_AT, &data);
        // Two parts, of lengths that are no multiple of a sector.
        let out = [(DATA_AT, 100, 0), (DATA_AT + 100, 8092, 0)];
        assert_eq!(ring.execute(OUT, 16, &out), OK);
        assert_eq!(ring.execute(FLUSH, 0, &[]), OK);
        let into = [(DATA_AT + 0x10000, 8192, WRITE)];
        assert_eq!(ring.execute(IN, 16, &into), OK);
        assert!(guest.get(DATA_AT + 0x10000, 8192) == data);
        assert_eq!(ring.execute(GET_ID, 0, &[(DATA_AT, 20, WRITE)]), OK);
        assert_eq!(guest.get(DATA_AT, 20), *b"ram0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        let range = |sector: u64, sectors: u32, flags: u32| {
            let mut range = sector.to_le_bytes().to_vec();
            range.extend(sectors.to_le_bytes());
            range.extend(flags.to_le_bytes());
            guest.put(DATA_AT, &range);
            [(DATA_AT, 16, 0)]
        };
        assert_eq!(ring.execute(WRITE_ZEROES, 0, &range(16, 1, 1)), OK);
        assert_eq!(ring.execute(WRITE_ZEROES, 0, &range(17, 1, 0)), OK);
        assert_eq!(ring.execute(DISCARD, 0, &range(24, 8, 0)), OK);
        assert_eq!(ring.execute(IN, 16, &into), OK);
        let mut wanted = data;
        wanted[..1024].fill(0);
        wanted[4096..].fill(0);
        assert!(guest.get(DATA_AT + 0x10000, 8192) == wanted);
        let end = DISK_BYTES / 512;
        for (kind, sector, sectors, flags, status) in [
            (WRITE_ZEROES, end, 1, 0, FAILED),
            (DISCARD, end - 1, 2, 0, FAILED),
            (DISCARD, u64::MAX, 1, 0, FAILED),
            (DISCARD, 0, 32769, 0, FAILED),
            (DISCARD, 0, 1, 1, UNSUPPORTED),
            (WRITE_ZEROES, 0, 1, 2, UNSUPPORTED),
        ] {
            let answer = ring.execute(kind, 0, &range(sector, sectors, flags));
            assert_eq!(answer, status, "{kind} {sector} {sectors} {flags}");
        }
        assert_eq!(ring.execute(DISCARD, 0, &[(DATA_AT, 15, 0)]), FAILED);
        assert_eq!(ring.execute(DISCARD, 0, &[(DATA_AT, 32, 0)]), UNSUPPORTED);
        assert_eq!(ring.execute(77, 0, &[]), UNSUPPORTED);
        assert_eq!(ring.execute(IN, end, &into), FAILED);
        assert_eq!(ring.execute(IN, u64::MAX, &into), FAILED);
        assert_eq!(ring.execute(OUT, 0, &[(DATA_AT, 511, 0)]), FAILED);
        assert_eq!(ring.execute(IN, 0, &[]), OK);
        // A queue that is stopped continues where it was.
        let base = client.stop(1).unwrap();
        drop(ring);
        let mut ring = client.start(1, base);
        assert_eq!(ring.execute(IN, 16, &into), OK);
    }
    server.stop();
}

#[test]
fn header_and_status_have_any_layout() {
    let server = Server::of(Slow::new().volume());
    let guest = Guest::new();
    let mut client = Client::connect(&server.path, &guest, ALL);
    let mut ring = client.start(0, 0);
    let execute = |ring: &mut Ring, parts: &[Part]| {
        ring.put_chain(0, parts);
        ring.offer(0);
        ring.signal();
        ring.used()
    };
    // The header in pieces, and with its data in one piece.
    ring.put_header(0, OUT, 8);
    let at = ring.header_at(0);
    guest.put(DATA_AT, &bytes(1, 512));
    let parts =
        [(at, 3, 0), (at + 3, 12, 0), (at + 15, 1, 0), (DATA_AT, 512, 0), (at + 16, 1, WRITE)];
    assert_eq!(execute(&mut ring, &parts), (0, 1));
    assert_eq!(ring.status(0), OK);
    let mut whole = guest.get(at, 16);
    whole[8] = 9;
    whole.extend(bytes(2, 512));
    guest.put(DATA_AT, &whole);
    guest.put(at + 16, &[0xff]);
    assert_eq!(execute(&mut ring, &[(DATA_AT, 528, 0), (at + 16, 1, WRITE)]), (0, 1));
    assert_eq!(ring.status(0), OK);
    // The status behind the data, in an indirect table.
    ring.put_header(0, IN, 8);
    let table = DATA_AT + 0x8000;
    ring.put_entry(table, (at, 16, NEXT), 2);
    ring.put_entry(table + 32, (DATA_AT, 1000, WRITE | NEXT), 1);
    ring.put_entry(table + 16, (DATA_AT + 1000, 25, WRITE), 0);
    assert_eq!(execute(&mut ring, &[(table, 48, INDIRECT)]), (0, 1025));
    let mut wanted = bytes(1, 512);
    wanted.extend(bytes(2, 512));
    wanted.push(OK);
    assert!(guest.get(DATA_AT, 1025) == wanted);
    server.stop();
}

#[test]
fn the_device_describes_itself_and_its_changes() {
    let slow = Slow::new();
    let server = Server::of(slow.volume());
    let mut client = Client::connect(&server.path, &Guest::new(), ALL);
    assert_eq!(client.number(GET_FEATURES), 0x1_7000_7644);
    assert_eq!(client.number(GET_PROTOCOL_FEATURES), 0xb229);
    let config = |client: &mut Client, offset: u32, size: u32| {
        let mut body: Vec<u8> = [offset, size, 0].iter().flat_map(|n| n.to_ne_bytes()).collect();
        body.resize(12 + size as usize, 0);
        client.ask(GET_CONFIG, &body).unwrap()[12..].to_vec()
    };
    let whole = config(&mut client, 0, 256);
    let field = |at: usize| u32::from_le_bytes(whole[at..at + 4].try_into().unwrap());
    assert_eq!((field(0), field(12), field(20)), ((DISK_BYTES / 512) as u32, 126, 512));
    assert_eq!((whole[24], whole[34], field(36), field(40), field(44)), (3, 4, 32768, 1, 8));
    assert_eq!((field(48), field(52), whole[56]), (32768, 1, 1));
    assert!(whole[60..].iter().all(|byte| *byte == 0));
    assert_eq!(config(&mut client, 20, 2), whole[20..22]);
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client.set(SET_BACKEND_REQ_FD, &[], &[OwnedFd::from(theirs).as_fd()]);
    slow.disk().set_capacity(Sectors(1000));
    server.export.announce();
    let mut told = [0; 12];
    ours.read_exact(&mut told).unwrap();
    assert_eq!(told, *message(2, 0, &[]));
    assert_eq!(config(&mut client, 0, 2), 1000u16.to_le_bytes());
    server.stop();
}

/// As Linux does that runs in user mode.
#[test]
fn a_table_of_memory_may_have_unused_entries() {
    let server = Server::of(Slow::new().volume());
    let guest = Guest::new();
    for (spare, count, is_right) in [(32, 1, true), (7 * 32, 1, true), (0, 2, false), (8, 1, false)]
    {
        let mut client = Client::new(&server.path, &guest);
        client.negotiate(ALL);
        let mut body = [table(), vec![0; spare]].concat();
        body[0] = count;
        let file = guest.file.try_clone().unwrap();
        client.send(SET_MEM_TABLE, NEED_REPLY, &body, &[file.as_fd()]);
        let answer = client.reply(SET_MEM_TABLE).unwrap();
        assert_eq!(answer == numbers(&[0]), is_right, "{spare} {count}");
        if is_right {
            client.start(0, 0);
        } else {
            assert!(client.is_closed());
        }
    }
    server.stop();
}

#[test]
fn a_read_only_device_changes_nothing() {
    let export = Export::new("ram0", Slow::new().volume()).read_only();
    let server = Server::start(export, Config::default());
    let guest = Guest::new();
    let mut client = Client::connect(&server.path, &guest, ALL);
    assert_eq!(client.number(GET_FEATURES) & (1 << 5 | 1 << 13 | 1 << 14), 1 << 5);
    let mut ring = client.start(0, 0);
    for kind in [OUT, DISCARD, WRITE_ZEROES] {
        guest.put(DATA_AT, &[1; 512]);
        let len = if kind == OUT { 512 } else { 16 };
        assert_eq!(ring.execute(kind, 0, &[(DATA_AT, len, 0)]), FAILED);
    }
    assert_eq!(ring.execute(IN, 0, &[(DATA_AT, 512, WRITE)]), OK);
    assert!(guest.get(DATA_AT, 512).iter().all(|byte| *byte == 0));
    server.stop();
}

#[test]
fn queues_start_and_stop_in_each_way() {
    let server = Server::of(Slow::new().volume());
    let guest = Guest::new();
    let mut client = Client::connect(&server.path, &guest, ALL);
    let mut ring = client.start(0, 0);
    assert_eq!(ring.execute(FLUSH, 0, &[]), OK);
    // What comes while it is disabled waits.
    client.set(SET_VRING_ENABLE, &state(0, 0), &[]);
    ring.put_request(0, FLUSH, 0, &[]);
    ring.offer(0);
    ring.signal();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(ring.try_used(), None);
    client.set(SET_VRING_ENABLE, &state(0, 1), &[]);
    assert_eq!(ring.used(), (0, 1));
    // Other descriptors for its events while it runs.
    let (old_kick, old_call) = ring.replace_events();
    client.set(SET_VRING_CALL, &numbers(&[0]), &[ring.call.as_fd()]);
    client.set(SET_VRING_KICK, &numbers(&[0]), &[ring.kick.as_fd()]);
    drop((old_kick, old_call));
    assert_eq!(ring.execute(FLUSH, 0, &[]), OK);
    // The table is sent again, as by a machine that gets more memory.
    client.set_table();
    assert_eq!(ring.execute(FLUSH, 0, &[]), OK);
    client.set(RESET_DEVICE, &[], &[]);
    guest.clear();
    client.negotiate(ALL);
    let mut ring = client.start(0, 0);
    assert_eq!(ring.execute(FLUSH, 0, &[]), OK);
    // A failed question has no answer.
    client.send(GET_VRING_BASE, NEED_REPLY, &state(9, 0), &[]);
    assert!(client.reply(GET_VRING_BASE).is_err());
    // Without the protocol's features a queue runs from its kick on.
    guest.clear();
    let mut client = Client::new(&server.path, &guest);
    client.send(SET_FEATURES, 0, &numbers(&[1 << 32]), &[]);
    client.send_table();
    let mut ring = client.start_plain(0);
    assert_eq!(ring.execute(FLUSH, 0, &[]), OK);
    drop(client);
    server.stop();
}

#[test]
fn a_driver_that_does_not_flush_gets_durable_writes() {
    let cached = Cached::new();
    let server = Server::of(Arc::new(ByteVolume::new(Gateway::new(Arc::clone(&cached) as _))));
    let guest = Guest::new();
    for (features, is_flushed) in [(1 << 32, true), (ALL, false)] {
        guest.clear();
        let mut client = Client::connect(&server.path, &guest, features);
        let mut ring = client.start(0, 0);
        for (kind, data, op) in [
            (OUT, vec![7; 4096], Op::Write),
            (
                WRITE_ZEROES,
                [&8u64.to_le_bytes()[..], &8u64.to_le_bytes()].concat(),
                Op::WriteZeroes,
            ),
        ] {
            cached.operations.lock().unwrap().clear();
            guest.put(DATA_AT, &data);
            assert_eq!(ring.execute(kind, 0, &[(DATA_AT, data.len() as u32, 0)]), OK);
            // Before the answer, because nothing is in flight after it.
            let wanted = if is_flushed { vec![op, Op::Flush] } else { vec![op] };
            assert_eq!(*cached.operations.lock().unwrap(), wanted, "features {features:#x}");
        }
    }
    server.stop();
}

#[test]
fn a_failed_read_is_answered_when_its_device_has_left_the_memory() {
    let slow = Slow::new();
    let server = Server::of(slow.volume());
    let guest = Guest::new();
    let mut client = Client::connect(&server.path, &guest, ALL);
    let mut ring = client.start(0, 0);
    let large = [(DATA_AT, 4096, WRITE), (DATA_AT + 0x10000, 61440, WRITE)];
    guest.put(DATA_AT + 0x10000, &bytes(1, 61440));
    assert_eq!(ring.execute(OUT, 8, &[(DATA_AT + 0x10000, 61440, 0)]), OK);
    guest.put(DATA_AT + 0x10000, &[1; 61440]);
    assert_eq!(ring.execute(IN, 0, &large), OK);
    assert!(guest.get(DATA_AT + 0x10000, 61440) == bytes(1, 61440));
    slow.kept.lock().unwrap().replace(Vec::new());
    ring.put_request(0, IN, 0, &large);
    ring.offer(0);
    ring.signal();
    while slow.kept.lock().unwrap().as_ref().is_none_or(Vec::is_empty) {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(ring.try_used(), None);
    drop(slow.kept.lock().unwrap().take());
    assert_eq!(ring.used().0, 0);
    assert_eq!(ring.status(0), FAILED);
    server.stop();
}

#[test]
fn many_requests_on_all_queues_are_each_completed_once() {
    let server = Server::of(Slow::new().volume());
    let guest = Guest::new();
    let mut client = Client::connect(&server.path, &guest, ALL);
    let rings: Vec<Ring> = (0..4).map(|index| client.start(index, 0)).collect();
    let each = |mut ring: Ring, number: u64| {
        let guest = Arc::clone(&guest);
        move || {
            for round in 0..300u64 {
                for slot in 0..16u16 {
                    let at = DATA_AT + (number * 16 + u64::from(slot)) * 4096;
                    let sector = (number * 16 + u64::from(slot)) * 8;
                    let kind = if round % 2 == 0 { OUT } else { IN };
                    if kind == OUT {
                        guest.put(at, &bytes((round / 2) as u8 ^ slot as u8, 4096));
                    } else {
                        guest.put(at, &[0; 4096]);
                    }
                    let flags = if kind == IN { WRITE } else { 0 };
                    ring.put_request(slot * 4, kind, sector, &[(at, 4096, flags)]);
                    ring.offer(slot * 4);
                }
                ring.signal();
                let mut heads: Vec<u16> = (0..16).map(|_| ring.used().0).collect();
                heads.sort_unstable();
                assert_eq!(heads, (0..16).map(|slot| slot * 4).collect::<Vec<u16>>());
                for slot in 0..16u16 {
                    assert_eq!(ring.status(slot * 4), OK);
                    let at = DATA_AT + (number * 16 + u64::from(slot)) * 4096;
                    assert!(guest.get(at, 4096) == bytes((round / 2) as u8 ^ slot as u8, 4096));
                }
                assert_eq!(ring.try_used(), None);
            }
        }
    };
    std::thread::scope(|threads| {
        for (ring, number) in rings.into_iter().zip(0..) {
            threads.spawn(each(ring, number));
        }
    });
    server.stop();
}
