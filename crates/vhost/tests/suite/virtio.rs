//! What virtio 1.2 asks of a device beyond the effect of a request: which status a wrong request gets, how many bytes count as written, and
//! who signals whom when. The cases are those of QEMU's `vhost-user-blk-test`, and what follows from them.

use std::os::fd::AsFd;
use std::sync::atomic::{Ordering::SeqCst, fence};
use std::time::{Duration, Instant};

use ashlar_engine::net::readable_until;
use ashlar_vhost::{Config, Export};

use crate::frontend::*;
use crate::requests::{ALL, FAILED, OK, UNSUPPORTED, bytes};
use crate::server::{DISK_BYTES, Server, Slow};

const GET_QUEUE_NUM: u32 = 17;
const VERSION_1: u64 = 1 << 32;
const SECTORS: u64 = DISK_BYTES / 512;

/// A range of a discard or a write-zeroes.
fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    let mut range = sector.to_le_bytes().to_vec();
    range.extend(sectors.to_le_bytes());
    range.extend(flags.to_le_bytes());
    range
}

/// Executes one request; its status, and the bytes that count as written.
fn ended(ring: &mut Ring, kind: u32, sector: u64, data: &[Part]) -> (u8, u32) {
    ring.put_request(0, kind, sector, data);
    ring.offer(0);
    ring.signal();
    let (head, written) = ring.used();
    assert_eq!(head, 0);
    (ring.status(0), written)
}

#[test]
fn ranges_that_are_refused_change_nothing() {
    let server = Server::of(Slow::new().volume());
    let guest = Guest::new();
    let mut client = Client::connect(&server.path, &guest, ALL);
    let mut ring = client.start(0, 0);
    let parts = [(0, bytes(1, 8192)), (SECTORS - 16, bytes(2, 8192))];
    for (sector, data) in &parts {
        guest.put(DATA_AT, data);
        assert_eq!(ring.execute(OUT, *sector, &[(DATA_AT, 8192, 0)]), OK);
    }
    let unmap = 1;
    for kind in [DISCARD, WRITE_ZEROES] {
        let mut refused = vec![
            // More than one, which the configuration space rules out; the first one counts as little as the second.
            ([range(0, 1, 0), range(1, 1, 0)].concat(), UNSUPPORTED),
            ([range(0, 1, 0), range(SECTORS, 1, 0), range(2, 1, 0)].concat(), UNSUPPORTED),
            (Vec::new(), FAILED),
            (range(0, 1, 0)[..15].to_vec(), FAILED),
            ([range(0, 1, 0), vec![0]].concat(), FAILED),
            // Longer than the configuration space says.
            (range(0, 32769, 0), FAILED),
            (range(0, u32::MAX, 0), FAILED),
            // Behind the end, or across it.
            (range(SECTORS, 1, 0), FAILED),
            (range(SECTORS + 1, 1, 0), FAILED),
            (range(SECTORS - 1, 2, 0), FAILED),
            // In bytes it is at the start of the disk, or its end is.
            (range(1 << 55, 1, 0), FAILED),
            (range((1 << 55) - 1, 2, 0), FAILED),
            (range(u64::MAX, 1, 0), FAILED),
            // Reserved flags.
            (range(0, 1, 2), UNSUPPORTED),
            (range(0, 1, 1 << 31), UNSUPPORTED),
            (range(0, 1, !unmap), UNSUPPORTED),
            (range(0, 1, u32::MAX), UNSUPPORTED),
        ];
        if kind == DISCARD {
            refused.push((range(0, 1, unmap), UNSUPPORTED));
        }
        for (ranges, status) in refused {
            guest.put(DATA_AT, &ranges);
            // In two pieces, as a driver may lay them.
            let (first, len) = (ranges.len().min(5) as u32, ranges.len() as u32);
            let mut data = vec![(DATA_AT, first, 0), (DATA_AT + u64::from(first), len - first, 0)];
            data.retain(|(_, len, _)| *len > 0);
            assert_eq!(ended(&mut ring, kind, 0, &data), (status, 1), "{kind}: {ranges:x?}");
            for (sector, wanted) in &parts {
                let into = [(DATA_AT + 0x10000, 8192, WRITE)];
                assert_eq!(ended(&mut ring, IN, *sector, &into), (OK, 8193));
                let found = guest.get(DATA_AT + 0x10000, 8192);
                assert!(found == *wanted, "{kind}: {ranges:x?} changed the disk");
            }
        }
    }
    // The last sector, and as many as are allowed.
    guest.put(DATA_AT, &range(SECTORS - 1, 1, unmap));
    assert_eq!(ended(&mut ring, WRITE_ZEROES, 0, &[(DATA_AT, 16, 0)]), (OK, 1));
    guest.put(DATA_AT, &range(SECTORS - 32768, 32768, 0));
    assert_eq!(ended(&mut ring, WRITE_ZEROES, 0, &[(DATA_AT, 16, 0)]), (OK, 1));
    assert_eq!(ended(&mut ring, IN, SECTORS - 16, &[(DATA_AT, 8192, WRITE)]), (OK, 8193));
    assert_eq!(guest.get(DATA_AT, 8192), vec![0; 8192]);
    assert_eq!(ended(&mut ring, IN, 0, &[(DATA_AT, 8192, WRITE)]), (OK, 8193));
    assert_eq!(guest.get(DATA_AT, 8192), bytes(1, 8192));
    server.stop();
}

/// A driver may read all bytes that count; what lies there must not be what its memory had before.
#[test]
fn only_bytes_that_were_written_count() {
    let server = Server::of(Slow::new().volume());
    let guest = Guest::new();
    let mut client = Client::connect(&server.path, &guest, ALL);
    let mut ring = client.start(0, 0);
    let nothing = Vec::new;
    let into = |len| vec![(DATA_AT, len, WRITE)];
    let out = |len| vec![(DATA_AT, len, 0)];
    for (kind, sector, data, wanted) in [
        (OUT, 0, out(512), (OK, 1)),
        (OUT, SECTORS, out(512), (FAILED, 1)),
        (FLUSH, 0, nothing(), (OK, 1)),
        (IN, 0, into(512), (OK, 513)),
        (IN, 0, into(65536), (OK, 65537)),
        (IN, 0, nothing(), (OK, 1)),
        (IN, SECTORS, into(512), (FAILED, 0)),
        (IN, SECTORS - 1, into(65536), (FAILED, 0)),
        (IN, 0, into(100), (FAILED, 0)),
        (GET_ID, 0, into(20), (OK, 21)),
        (GET_ID, 0, into(512), (OK, 20)),
        (GET_ID, 0, into(3), (OK, 4)),
        (GET_ID, 0, nothing(), (OK, 1)),
        (77, 0, nothing(), (UNSUPPORTED, 1)),
        (77, 0, into(512), (UNSUPPORTED, 0)),
        // Buffers that such a request has no use for.
        (FLUSH, 0, into(512), (OK, 0)),
        (OUT, 0, [out(512), into(512)].concat(), (OK, 0)),
    ] {
        let got = ended(&mut ring, kind, sector, &data);
        assert_eq!(got, wanted, "{kind} at {sector}: {data:?}");
    }
    server.stop();
}

#[test]
fn get_id_is_the_start_of_the_name() {
    for (name, id) in [
        ("vg/data", &b"vg/data\0\0\0\0\0\0\0\0\0\0\0\0\0"[..]),
        ("exactly-twenty-bytes", b"exactly-twenty-bytes"),
        ("a-name-of-more-than-twenty-bytes", b"a-name-of-more-than-"),
    ] {
        let server = Server::start(Export::new(name, Slow::new().volume()), Config::default());
        let guest = Guest::new();
        let mut client = Client::connect(&server.path, &guest, ALL);
        let mut ring = client.start(0, 0);
        let fill = || guest.put(DATA_AT, &[0xee; 64]);
        fill();
        assert_eq!(ring.execute(GET_ID, 0, &[(DATA_AT, 20, WRITE)]), OK);
        assert_eq!(guest.get(DATA_AT, 21), [id, &[0xee]].concat());
        fill();
        let pieces = [(DATA_AT + 20, 7, WRITE), (DATA_AT, 1, WRITE), (DATA_AT + 30, 12, WRITE)];
        assert_eq!(ring.execute(GET_ID, 0, &pieces), OK);
        let found =
            [guest.get(DATA_AT + 20, 7), guest.get(DATA_AT, 1), guest.get(DATA_AT + 30, 12)];
        assert_eq!(found.concat(), id);
        fill();
        assert_eq!(ring.execute(GET_ID, 0, &[(DATA_AT, 64, WRITE)]), OK);
        assert_eq!(guest.get(DATA_AT, 64), [id, &[0xee; 44]].concat());
        fill();
        assert_eq!(ring.execute(GET_ID, 0, &[(DATA_AT, 5, WRITE)]), OK);
        assert_eq!(guest.get(DATA_AT, 6), [&id[..5], &[0xee]].concat());
        server.stop();
    }
}

/// Waits for a completion without a look at signals.
fn polled(ring: &mut Ring) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while ring.try_used().is_none() {
        assert!(Instant::now() < deadline, "a request is not completed");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the driver is signalled; how often it was.
fn signals(ring: &Ring) -> u64 {
    let soon = Instant::now() + Duration::from_secs(60);
    assert!(readable_until(ring.call.as_fd(), Some(soon)).unwrap(), "the driver is not signalled");
    let mut count = [0; 8];
    assert_eq!(rustix::io::read(&ring.call, &mut count), Ok(8));
    u64::from_ne_bytes(count)
}

/// Executes a flush, without a look at signals.
fn flush(ring: &mut Ring) {
    ring.put_request(0, FLUSH, 0, &[]);
    ring.offer(0);
    ring.signal();
    polled(ring);
}

/// Stops the queue: all signals have been written then, and were seen. Returns where it continues.
fn stop(client: &mut Client, ring: Ring) -> u16 {
    let base = client.stop(0).unwrap();
    let more = rustix::io::read(&ring.call, &mut [0; 8]);
    assert_eq!(more, Err(rustix::io::Errno::AGAIN), "a signal that nobody has asked for");
    base
}

#[test]
fn a_driver_with_event_indexes_is_signalled_when_it_asks() {
    let server = Server::of(Slow::new().volume());
    let guest = Guest::new();
    let mut client = Client::connect(&server.path, &guest, ALL);
    let mut ring = client.start(0, 0);
    // Of the new descriptor.
    assert_eq!(signals(&ring), 1);
    // The memory was zeroed, so the driver asks for the first one.
    flush(&mut ring);
    assert_eq!(signals(&ring), 1);
    // For the fourth one, so not for those before it and behind it.
    guest.store(ring.available_at() + 4 + 2 * u64::from(QUEUE_SIZE), 3);
    for _ in 0..3 {
        flush(&mut ring);
    }
    assert_eq!(signals(&ring), 1);
    for _ in 0..3 {
        flush(&mut ring);
    }
    assert_eq!(stop(&mut client, ring), 7);
    server.stop();
}

#[test]
fn a_driver_without_event_indexes_is_signalled_unless_it_refuses() {
    let server = Server::of(Slow::new().volume());
    let guest = Guest::new();
    let mut client = Client::connect(&server.path, &guest, VERSION_1);
    let mut ring = client.start(0, 0);
    assert_eq!(signals(&ring), 1);
    flush(&mut ring);
    assert_eq!(signals(&ring), 1);
    guest.store(ring.available_at(), 1);
    for _ in 0..3 {
        flush(&mut ring);
    }
    // The device reads the flag after it has completed a request, so it is changed when the queue has stopped.
    let base = stop(&mut client, ring);
    let mut ring = client.start(0, base);
    assert_eq!(signals(&ring), 1);
    guest.store(ring.available_at(), 0);
    flush(&mut ring);
    assert_eq!(signals(&ring), 1);
    assert_eq!(stop(&mut client, ring), 5);
    server.stop();
}

/// The device must look once more after it has asked for a signal, or both sides wait for each other.
#[test]
fn a_driver_that_signals_only_when_asked_is_served() {
    let server = Server::of(Slow::new().volume());
    let guest = Guest::new();
    for (features, has_event_idx) in [(ALL, true), (VERSION_1, false)] {
        guest.clear();
        let mut client = Client::connect(&server.path, &guest, features);
        let mut ring = client.start(0, 0);
        let (flags_at, event_at) = (ring.used_at(), ring.used_at() + 4 + 8 * u64::from(QUEUE_SIZE));
        let mut offered = 0u16;
        for round in 0..2000u16 {
            let count = round % 7 + 1;
            for slot in 0..count {
                ring.put_request(slot * 4, IN, 0, &[(DATA_AT, 512, WRITE)]);
                ring.offer(slot * 4);
                offered = offered.wrapping_add(1);
                // What is offered is stored before the device's wish is read.
                fence(SeqCst);
                let is_asked = if has_event_idx {
                    guest.load(event_at) == offered.wrapping_sub(1)
                } else {
                    guest.load(flags_at) & 1 == 0
                };
                if is_asked {
                    ring.signal();
                }
            }
            for _ in 0..count {
                ring.used();
            }
        }
        assert_eq!(client.stop(0).unwrap(), offered);
    }
    server.stop();
}

#[test]
fn a_machine_has_as_many_queues_as_it_likes() {
    let config = Config { queues: 8, ..Config::default() };
    let server = Server::start(Export::new("ram0", Slow::new().volume()), config);
    let guest = Guest::new();
    for count in [1, 8, 3, 8] {
        guest.clear();
        let mut client = Client::connect(&server.path, &guest, ALL);
        assert_eq!(client.number(GET_QUEUE_NUM), 8);
        // Its last queues, in the reverse order.
        let mut rings: Vec<Ring> =
            (8 - count..8).rev().map(|index| client.start(index, 0)).collect();
        for (ring, number) in rings.iter_mut().zip(0u64..) {
            let data = bytes(number as u8, 512);
            guest.put(DATA_AT, &data);
            assert_eq!(ring.execute(OUT, number, &[(DATA_AT, 512, 0)]), OK);
        }
        for (ring, number) in rings.iter_mut().rev().zip((0..u64::from(count)).rev()) {
            assert_eq!(ring.execute(IN, number, &[(DATA_AT, 512, WRITE)]), OK);
            assert_eq!(guest.get(DATA_AT, 512), bytes(number as u8, 512));
        }
        for index in 8 - count..8 {
            assert_eq!(client.stop(index).unwrap(), 2);
        }
    }
    server.stop();
}

#[test]
fn messages_about_queues_that_do_not_exist_end_their_connection_only() {
    let server = Server::of(Slow::new().volume());
    let guest = Guest::new();
    let addresses = |index: u32| {
        let mut body = [index.to_ne_bytes(), [0; 4]].concat();
        body.extend(numbers(&[USER, USER + 0x8000, USER + 0x4000, 0]));
        body
    };
    let about = |index: u32, number: u32| [index.to_ne_bytes(), number.to_ne_bytes()].concat();
    // The last two would be queue 0 if they were cut to 16 bits.
    for index in [4, 63, u32::MAX, 1 << 16, 1 << 31] {
        let mut messages = vec![
            (SET_VRING_NUM, about(index, 64)),
            (SET_VRING_BASE, about(index, 0)),
            (SET_VRING_ADDR, addresses(index)),
            (SET_VRING_ENABLE, about(index, 1)),
            (SET_VRING_ENABLE, about(index, 0)),
            (GET_VRING_BASE, about(index, 0)),
        ];
        if index < 0x100 {
            let number = numbers(&[index.into()]);
            messages.extend(
                [SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR]
                    .map(|request| (request, number.clone())),
            );
        }
        for (request, body) in messages {
            guest.clear();
            let mut bystander = Client::connect(&server.path, &guest, ALL);
            let mut others = bystander.start(2, 0);
            let mut client = Client::connect(&server.path, &guest, ALL);
            let mut ring = client.start(0, 0);
            assert_eq!(ring.execute(FLUSH, 0, &[]), OK);
            let is_event = matches!(request, SET_VRING_KICK | SET_VRING_CALL | SET_VRING_ERR);
            let files = [ring.call.as_fd()];
            client.send(request, 0, &body, if is_event { &files[..] } else { &[] });
            assert!(client.is_closed(), "request {request} for queue {index}");
            assert_eq!(others.execute(FLUSH, 0, &[]), OK);
        }
    }
    server.stop();
}
