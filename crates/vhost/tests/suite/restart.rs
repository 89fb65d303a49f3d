//! A guest survives its device: with the inflight region, each request is completed exactly once.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use crate::frontend::*;
use crate::requests::ALL;
use crate::server::{Server, Slow};

/// The body of the messages about the inflight region, for two queues.
fn region_body(size: u64) -> Vec<u8> {
    let mut body = numbers(&[size, 0]);
    body.extend(2u16.to_ne_bytes());
    body.extend(QUEUE_SIZE.to_ne_bytes());
    body.extend([0; 4]);
    body
}

fn new_region(client: &mut Client) -> (Vec<u8>, OwnedFd) {
    client.send(GET_INFLIGHT_FD, 0, &region_body(0), &[]);
    let mut files = Vec::new();
    let body = client.reply_with_files(GET_INFLIGHT_FD, &mut files).unwrap();
    (body, files.pop().unwrap())
}

fn wait_until(what: &str, is_true: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_true() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn requests_in_flight_are_executed_by_the_next_device() {
    let slow = Slow::new();
    let guest = Guest::new();
    let server = Server::of(slow.volume());
    let mut client = Client::connect(&server.path, &guest, ALL);
    let (region, file) = new_region(&mut client);
    client.set(SET_INFLIGHT_FD, &region, &[file.as_fd()]);
    let mut rings = [client.start(0, 0), client.start(1, 0)];
    // Some are completed before.
    for ring in &mut rings {
        for _ in 0..70 {
            assert_eq!(ring.execute(IN, 0, &[(DATA_AT, 512, WRITE)]), 0);
        }
    }
    let before = slow.begun.load(SeqCst);
    slow.is_held.store(true, SeqCst);
    for (ring, number) in rings.iter_mut().zip(0u64..) {
        for slot in 0..8u16 {
            let place = number * 8 + u64::from(slot);
            guest.put(DATA_AT + 4096 * place, &[place as u8 + 1; 512]);
            ring.put_request(slot * 4, OUT, place, &[(DATA_AT + 4096 * place, 512, 0)]);
            ring.offer(slot * 4);
        }
        ring.signal();
    }
    wait_until("they begin", || slow.begun.load(SeqCst) == before + 16);
    let killed = std::thread::spawn(move || server.kill());
    assert!(client.is_closed());
    killed.join().unwrap();
    // One more comes while there is no device.
    rings[0].put_request(40, IN, 3, &[(DATA_AT + 0x8_0000, 512, WRITE)]);
    rings[0].offer(40);
    assert_eq!(slow.written.load(SeqCst), 0);
    slow.is_held.store(false, SeqCst);
    for ring in &mut rings {
        assert_eq!(ring.try_used(), None);
    }

    let server = Server::of(slow.volume());
    let mut client = Client::connect(&server.path, &guest, ALL);
    client.set(SET_INFLIGHT_FD, &region, &[file.as_fd()]);
    for (ring, index) in rings.iter_mut().zip(0u16..) {
        // A front end knows only what was used.
        *ring = client.start(index, 70);
        ring.resume(if index == 0 { 79 } else { 78 });
    }
    for (ring, count) in rings.iter_mut().zip([9, 8]) {
        let mut heads: Vec<u16> = (0..count).map(|_| ring.used().0).collect();
        heads.sort_unstable();
        let wanted = [0, 4, 8, 12, 16, 20, 24, 28, 40];
        assert_eq!(heads, wanted[..count]);
        for head in heads {
            assert_eq!(ring.status(head), 0);
        }
        // None twice.
        assert_eq!(ring.execute(IN, 0, &[(DATA_AT, 512, WRITE)]), 0);
        assert_eq!(ring.try_used(), None);
    }
    for place in 0..16u64 {
        assert_eq!(rings[1].execute(IN, place, &[(DATA_AT, 512, WRITE)]), 0);
        assert_eq!(guest.get(DATA_AT, 512), [place as u8 + 1; 512]);
    }
    assert_eq!(client.stop(0).unwrap(), 80);
    server.stop();
}

#[test]
fn a_request_that_was_used_but_not_noted_is_not_executed_again() {
    let slow = Slow::new();
    let guest = Guest::new();
    let server = Server::of(slow.volume());
    let mut client = Client::connect(&server.path, &guest, ALL);
    let (region, file) = new_region(&mut client);
    client.set(SET_INFLIGHT_FD, &region, &[file.as_fd()]);
    let mut ring = client.start(0, 0);
    slow.is_held.store(true, SeqCst);
    for slot in 0..2u16 {
        ring.put_request(slot * 4, IN, 0, &[(DATA_AT, 512, WRITE)]);
        ring.offer(slot * 4);
    }
    ring.signal();
    wait_until("they begin", || slow.begun.load(SeqCst) == 2);
    let killed = std::thread::spawn(move || server.kill());
    assert!(client.is_closed());
    killed.join().unwrap();
    // As a process leaves it that ends between the two updates: request 4 is used, and the region has it as the last batch.
    let mut state = [0; 16 + 16 * 5];
    rustix::io::pread(&file, &mut state[..], 0).unwrap();
    assert_eq!((state[16], state[16 + 64], state[14]), (1, 1, 0));
    rustix::io::pwrite(&file, &4u16.to_ne_bytes(), 12).unwrap();
    guest.put(ring.used_at() + 4, &[4, 0, 0, 0, 1, 2, 0, 0]);
    guest.store(ring.used_at() + 2, 1);
    slow.is_held.store(false, SeqCst);

    let server = Server::of(slow.volume());
    let mut client = Client::connect(&server.path, &guest, ALL);
    client.set(SET_INFLIGHT_FD, &region, &[file.as_fd()]);
    ring = client.start(0, 0);
    ring.resume(2);
    assert_eq!([ring.used().0, ring.used().0], [4, 0]);
    assert_eq!(slow.begun.load(SeqCst), 3);
    assert_eq!(client.stop(0).unwrap(), 2);
    assert_eq!(ring.try_used(), None);
    server.stop();
}

#[test]
fn a_device_that_stops_completes_what_it_has_taken() {
    let slow = Slow::new();
    let guest = Guest::new();
    let server = Server::of(slow.volume());
    let mut client = Client::connect(&server.path, &guest, ALL);
    let mut ring = client.start(0, 0);
    slow.is_held.store(true, SeqCst);
    ring.put_request(0, IN, 0, &[(DATA_AT, 512, WRITE)]);
    ring.offer(0);
    ring.signal();
    wait_until("it begins", || slow.begun.load(SeqCst) == 1);
    let stopping = std::thread::spawn(move || server.stop());
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(ring.try_used(), None);
    slow.is_held.store(false, SeqCst);
    stopping.join().unwrap();
    assert_eq!(ring.used(), (0, 513));
    assert!(client.is_closed());
}
