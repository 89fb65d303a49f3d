//! Rings that lie and messages that break the protocol: each ends its own connection only.

use std::io::Write;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use ashlar_block::{ByteVolume, Gateway};

use crate::frontend::*;
use crate::requests::ALL;
use crate::server::{Server, Slow, Spared};

/// xorshift64*: the same in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

/// A well-behaved client is served.
fn serves(server: &Server, guest: &Arc<Guest>) {
    guest.clear();
    let mut client = Client::connect(&server.path, guest, ALL);
    let mut ring = client.start(3, 0);
    guest.put(DATA_AT, &[7; 512]);
    assert_eq!(ring.execute(OUT, 1, &[(DATA_AT, 512, 0)]), 0);
    assert_eq!(ring.execute(IN, 1, &[(DATA_AT + 512, 512, WRITE)]), 0);
    assert_eq!(guest.get(DATA_AT + 512, 512), [7; 512]);
    assert_eq!(client.stop(3).unwrap(), 2);
}

#[test]
fn a_ring_that_lies_ends_its_connection() {
    let server = Server::of(Slow::new().volume());
    let guest = Guest::new();
    type Lie = (&'static str, fn(&mut Ring, &Guest));
    let lies: [Lie; 19] = [
        ("a loop", |ring, _| {
            ring.put_request(0, IN, 0, &[(DATA_AT, 512, WRITE)]);
            ring.put_descriptor(1, (DATA_AT, 512, WRITE | NEXT), 1);
            ring.offer(0);
        }),
        ("a next beyond the table", |ring, _| {
            ring.put_request(0, IN, 0, &[]);
            ring.put_descriptor(0, (ring.header_at(0), 16, NEXT), QUEUE_SIZE);
            ring.offer(0);
        }),
        ("a head beyond the table", |ring, _| ring.offer(QUEUE_SIZE)),
        ("data beyond memory", |ring, _| {
            ring.put_request(0, IN, 0, &[(MEMORY_BYTES as u64 - 511, 512, WRITE)]);
            ring.offer(0);
        }),
        ("data at the end of addresses", |ring, _| {
            ring.put_request(0, OUT, 0, &[(u64::MAX - 100, 512, 0)]);
            ring.offer(0);
        }),
        ("a buffer without bytes", |ring, _| {
            ring.put_request(0, IN, 0, &[(DATA_AT, 0, WRITE)]);
            ring.offer(0);
        }),
        ("no status", |ring, _| {
            ring.put_header(0, OUT, 0);
            ring.put_chain(0, &[(ring.header_at(0), 16, 0), (DATA_AT, 512, 0)]);
            ring.offer(0);
        }),
        ("a short header", |ring, _| {
            ring.put_header(0, IN, 0);
            ring.put_chain(0, &[(ring.header_at(0), 15, 0), (DATA_AT, 513, WRITE)]);
            ring.offer(0);
        }),
        ("no header", |ring, _| {
            ring.put_chain(0, &[(DATA_AT, 513, WRITE)]);
            ring.offer(0);
        }),
        ("reads behind writes", |ring, _| {
            ring.put_header(0, IN, 0);
            let at = ring.header_at(0);
            ring.put_chain(
                0,
                &[(at, 16, 0), (DATA_AT, 512, WRITE), (DATA_AT, 512, 0), (at + 16, 1, WRITE)],
            );
            ring.offer(0);
        }),
        ("an index that jumps", |ring, guest| {
            guest.store(ring.available_at() + 2, QUEUE_SIZE + 1);
        }),
        ("an index that goes back", |ring, guest| {
            guest.store(ring.available_at() + 2, u16::MAX);
        }),
        ("a head twice", |ring, _| {
            ring.put_request(0, IN, 0, &[(DATA_AT, 512, WRITE)]);
            ring.offer(0);
            ring.offer(0);
        }),
        ("an indirect table in an indirect table", |ring, _| {
            // All else is a right request.
            let inner = DATA_AT + 0x1000;
            ring.put_header(0, FLUSH, 0);
            ring.put_entry(inner, (ring.header_at(0), 16, NEXT), 1);
            ring.put_entry(inner + 16, (DATA_AT + 0x2000, 1, WRITE), 0);
            ring.put_entry(DATA_AT, (inner, 32, INDIRECT), 0);
            ring.put_chain(0, &[(DATA_AT, 16, INDIRECT)]);
            ring.offer(0);
        }),
        ("an odd indirect table", |ring, _| {
            ring.put_chain(0, &[(DATA_AT, 17, INDIRECT)]);
            ring.offer(0);
        }),
        ("an empty indirect table", |ring, _| {
            ring.put_chain(0, &[(DATA_AT, 0, INDIRECT)]);
            ring.offer(0);
        }),
        ("an indirect table beyond memory", |ring, _| {
            ring.put_chain(0, &[(MEMORY_BYTES as u64, 16, INDIRECT)]);
            ring.offer(0);
        }),
        ("an indirect table and more", |ring, _| {
            ring.put_entry(DATA_AT, (DATA_AT, 16, 0), 0);
            ring.put_chain(0, &[(DATA_AT, 16, INDIRECT), (DATA_AT, 1, WRITE)]);
            ring.offer(0);
        }),
        ("a chain of more than 4 GiB", |ring, _| {
            let whole = MEMORY_BYTES as u32;
            for entry in 0..600u16 {
                let at = DATA_AT + 16 * u64::from(entry);
                ring.put_entry(at, (0, whole, WRITE | NEXT), entry + 1);
            }
            ring.put_chain(0, &[(DATA_AT, 600 * 16, INDIRECT)]);
            ring.offer(0);
        }),
    ];
    for (lie, tell) in lies {
        guest.clear();
        let mut client = Client::connect(&server.path, &guest, ALL);
        let mut bystander = client.start(2, 0);
        assert_eq!(bystander.execute(FLUSH, 0, &[]), 0);
        let mut ring = client.start(0, 0);
        tell(&mut ring, &guest);
        ring.signal();
        assert!(client.is_closed(), "{lie}");
        // Its driver sees the error.
        let mut count = [0; 8];
        assert_eq!(rustix::io::read(&ring.error, &mut count), Ok(8), "{lie}");
        serves(&server, &guest);
    }
    server.stop();
}

#[test]
fn what_is_not_offered_is_refused() {
    let server = Server::of(Slow::new().volume());
    let guest = Guest::new();
    type Lie = (&'static str, fn(&mut Client));
    let on_disk = |client: &mut Client| {
        let file = tempfile::tempfile().unwrap();
        file.set_len(MEMORY_BYTES as u64).unwrap();
        let mut body = [1u32.to_ne_bytes(), [0; 4]].concat();
        body.extend(numbers(&[0, 4096, USER, 0]));
        // A file on a disk; if temporary files are in memory, one that is too short.
        body[16..24].copy_from_slice(&(2 * MEMORY_BYTES as u64).to_ne_bytes());
        client.send(SET_MEM_TABLE, 0, &body, &[file.as_fd()]);
    };
    let lies: [Lie; 15] = [
        ("a log", |client| client.send(SET_FEATURES, 0, &numbers(&[1 << 26]), &[])),
        ("packed rings", |client| client.send(SET_FEATURES, 0, &numbers(&[1 << 34]), &[])),
        ("postcopy", |client| client.send(SET_PROTOCOL_FEATURES, 0, &numbers(&[1 << 8]), &[])),
        ("POSTCOPY_ADVISE", |client| client.send(28, 0, &[], &[])),
        ("SET_LOG_BASE", |client| client.send(6, 0, &numbers(&[4096, 0]), &[])),
        ("a request without a name", |client| client.send(99, 0, &[], &[])),
        ("a long message", |client| {
            client.socket.write_all(&message(SET_OWNER, 0, &[0; 4097])[..12]).unwrap();
        }),
        ("a short body", |client| client.send(SET_FEATURES, 0, &[0; 7], &[])),
        ("another version", |client| client.send(SET_OWNER, 3, &[], &[])),
        ("queue 4", |client| client.send(SET_VRING_NUM, 0, &state(4, 64), &[])),
        ("63 descriptors", |client| client.send(SET_VRING_NUM, 0, &state(0, 63), &[])),
        ("2048 descriptors", |client| client.send(SET_VRING_NUM, 0, &state(0, 2048), &[])),
        ("polling", |client| client.send(SET_VRING_KICK, 0, &numbers(&[1 << 8]), &[])),
        ("a kick that is a file", |client| {
            let file = tempfile::tempfile().unwrap();
            client.send(SET_VRING_KICK, 0, &numbers(&[0]), &[file.as_fd()]);
        }),
        ("memory on a disk", on_disk),
    ];
    for (lie, tell) in lies {
        let mut client = Client::new(&server.path, &guest);
        client.negotiate(ALL);
        tell(&mut client);
        assert!(client.is_closed(), "{lie}");
    }
    serves(&server, &guest);
    // An answer says so, too.
    let mut client = Client::new(&server.path, &guest);
    client.negotiate(ALL);
    client.send(SET_VRING_NUM, NEED_REPLY, &state(0, 63), &[]);
    assert_eq!(client.reply(SET_VRING_NUM).unwrap(), numbers(&[1]));
    assert!(client.is_closed());
    server.stop();
}

#[test]
fn a_front_end_that_stops_within_a_message_holds_nobody_up() {
    let server = Server::of(Slow::new().volume());
    let guest = Guest::new();
    let mut stuck: Vec<Client> = (0..4).map(|_| Client::new(&server.path, &guest)).collect();
    for (client, len) in stuck.iter_mut().zip([1, 11, 12, 15]) {
        client.socket.write_all(&message(SET_FEATURES, 0, &numbers(&[0]))[..len]).unwrap();
    }
    serves(&server, &guest);
    server.stop();
    for client in &mut stuck {
        assert!(client.is_closed());
    }
}

/// Descriptors that are mostly plausible.
fn random_ring(chance: &mut Chance, ring: &mut Ring, guest: &Guest) {
    let addresses =
        [DATA_AT, ring.header_at(1), 0, ring.start(), MEMORY_BYTES as u64 - 512, u64::MAX - 15];
    let lengths = [16, 512, 1, 4096, 32, 0, 513, u32::MAX, 1 << 31];
    let kinds = [IN, OUT, FLUSH, GET_ID, DISCARD, WRITE_ZEROES, 77];
    for head in 0..QUEUE_SIZE {
        let kind = chance.one_of(&kinds);
        let sector = chance.one_of(&[0, 1, 131_071, 131_072, u64::MAX]);
        let flags = chance.one_of(&[0, WRITE]);
        let len = chance.one_of(&[512, 16, 20, 4096]);
        if head % 4 == 0 {
            ring.put_request(head, kind, sector, &[(DATA_AT, len, flags)]);
        }
    }
    for _ in 0..chance.below(3) {
        let flags =
            chance.one_of(&[0, NEXT, WRITE, WRITE | NEXT, INDIRECT, INDIRECT | NEXT, 0xffff]);
        let part = (chance.one_of(&addresses), chance.one_of(&lengths), flags);
        let next = chance.below(u64::from(QUEUE_SIZE) + 2) as u16;
        ring.put_descriptor(chance.below(QUEUE_SIZE.into()) as u16, part, next);
        ring.put_entry(DATA_AT + 16 * chance.below(4), part, next);
    }
    for _ in 0..chance.below(8) {
        let head = chance.below(16) as u16 * 4;
        ring.offer(if chance.below(20) == 0 { chance.below(0x1_0000) as u16 } else { head });
    }
    if chance.below(20) == 0 {
        guest.store(ring.available_at() + 2, chance.below(0x1_0000) as u16);
    }
    if chance.below(20) == 0 {
        let noise: Vec<u8> = (0..64).map(|_| chance.below(256) as u8).collect();
        guest.put(ring.start() + chance.below(0xc000), &noise);
    }
}

/// As many in `make test`, and 10,000 in `make soak`.
fn cases(few: u32) -> u32 {
    if std::env::var_os("ASHLAR_SEEDS").is_some() { 10_000 } else { few }
}

#[test]
fn random_rings_leave_the_device_working() {
    // Writes name the first sectors, at most as much as a guest's memory, and the last one.
    let disk = Spared::new(20_000..131_000);
    let server = Server::of(Arc::new(ByteVolume::new(Gateway::new(Arc::clone(&disk) as _))));
    let guest = Guest::new();
    let mut chance = Chance(0x1234_5678_9abc_def1);
    let (mut ended, mut completed) = (0, 0);
    for case in 0..cases(1200) {
        guest.clear();
        let features = chance.one_of(&[ALL, 1 << 32, 1 << 32 | 1 << 28, 1 << 32 | 1 << 29]);
        let mut client = Client::connect(&server.path, &guest, features);
        let mut ring = client.start(0, 0);
        for _ in 0..3 {
            random_ring(&mut chance, &mut ring, &guest);
            ring.signal();
        }
        // A queue that has stopped has taken every available request before.
        match client.stop(0) {
            Ok(_) => completed += 1,
            Err(_) => ended += 1,
        }
        assert!(guest.is_alone(), "case {case}: bytes behind the guest's memory have changed");
        assert_eq!(disk.touched.load(SeqCst), 0, "case {case}: sectors that no request names");
        if case % 100 == 0 {
            serves(&server, &guest);
        }
    }
    serves(&server, &guest);
    server.stop();
    assert!(ended > 100 && completed > 20, "{ended} {completed}");
}

#[test]
fn random_messages_leave_the_device_working() {
    let server = Server::of(Slow::new().volume());
    let guest = Guest::new();
    let mut chance = Chance(0xfeed_5678_9abc_def1);
    let file = guest.file.try_clone().unwrap();
    for case in 0..cases(1500) {
        guest.clear();
        let mut client = Client::new(&server.path, &guest);
        let ring_addresses = numbers(&[0, USER, USER + 0x8000, USER + 0x4000, 0]);
        let plan: [(u32, Vec<u8>, bool); 13] = [
            (SET_FEATURES, numbers(&[ALL | 1 << 30]), false),
            (SET_PROTOCOL_FEATURES, numbers(&[0xb229]), false),
            (SET_MEM_TABLE, table(), true),
            (SET_VRING_NUM, state(0, 64), false),
            (SET_VRING_BASE, state(0, 0), false),
            (SET_VRING_ADDR, ring_addresses, false),
            (SET_INFLIGHT_FD, [numbers(&[4096, 0]), vec![1, 0, 64, 0, 0, 0, 0, 0]].concat(), true),
            (SET_VRING_CALL, numbers(&[0x100]), false),
            (SET_VRING_KICK, numbers(&[0]), true),
            (SET_VRING_ENABLE, state(0, 1), false),
            (GET_CONFIG, vec![0; 72], false),
            (37, numbers(&[0, 0, 4096, USER, 0]), true),
            (GET_VRING_BASE, state(0, 0), false),
        ];
        for (request, mut body, has_file) in plan {
            let mut request = request;
            match chance.below(12) {
                0 => request = chance.below(50) as u32,
                1 => body.truncate(chance.below(body.len() as u64 + 1) as usize),
                2 | 3 if !body.is_empty() => {
                    let at = chance.below(body.len() as u64) as usize;
                    body[at] ^= 1 << chance.below(8);
                }
                4 => continue,
                _ => {}
            }
            let mut bytes = message(request, chance.one_of(&[0, 0, NEED_REPLY]), &body);
            if chance.below(40) == 0 {
                let at = chance.below(12) as usize;
                bytes[at] ^= 1 << chance.below(8);
            }
            let kick = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC).unwrap();
            let mut files = Vec::new();
            if has_file != (chance.below(20) == 0) {
                let is_event = request == SET_VRING_KICK;
                files.push(if is_event { kick.as_fd() } else { file.as_fd() });
            }
            if ashlar_engine::net::send_with_files(&client.socket, &bytes, &files).is_err() {
                break;
            }
        }
        let (Ok(()) | Err(_)) = client.socket.shutdown(Shutdown::Write);
        assert!(client.is_closed(), "case {case}");
        if case % 100 == 0 {
            serves(&server, &guest);
        }
    }
    serves(&server, &guest);
    server.stop();
}
