//! Connections of NBD clients to one address of a daemon with several threads.

use std::io::{Read, Write};
use std::time::Duration;

use super::support::{Daemon, Images, MIB, Nbd, READ, until};
use super::top::sample;

const PATIENCE: Duration = Duration::from_secs(30);

/// The connections that each thread serves.
fn served(daemon: &Daemon) -> Vec<(String, u64)> {
    let sample = sample(daemon);
    let threads = sample["threads"].as_array().unwrap();
    let thread = |thread: &serde_json::Value| {
        let (name, count) = (thread["name"].as_str(), thread["nbd_connections"].as_u64());
        (name.unwrap().to_owned(), count.unwrap())
    };
    threads.iter().map(thread).collect()
}

fn until_served(daemon: &Daemon, counts: &[u64]) {
    let thread = |(index, count): (usize, &u64)| (format!("ashlar-{index}"), *count);
    let wanted: Vec<_> = counts.iter().enumerate().map(thread).collect();
    until(PATIENCE, &format!("not {wanted:?}"), || served(daemon) == wanted);
}

/// Whether the daemon has closed the connection.
fn is_closed(mut client: Nbd) -> bool {
    client.0.read_to_end(&mut Vec::new()).is_ok()
}

/// An array that is served by two threads at one address, with these clients.
fn with_clients(count: usize) -> (Images, Daemon, Vec<Nbd>) {
    let images = Images::array(2, 64 * MIB, &["--level=1", "--assume-clean", "--name=one"]);
    let daemon = images.serve(&["--threads", "2", "--nbd", "unix:nbd"]);
    let clients = (0..count).map(|_| Nbd::open(&images.path("nbd"), "md/one")).collect();
    (images, daemon, clients)
}

#[test]
fn the_connections_of_a_client_are_spread_over_all_threads() {
    let (images, daemon, mut clients) = with_clients(8);
    until_served(&daemon, &[4, 4]);
    for (n, client) in clients.iter_mut().enumerate() {
        client.write_at(n as u64 * MIB, &[n as u8; 4096]);
    }
    // A flush on any of them covers the writes of all.
    clients[7].flush();
    for n in 0..8 {
        assert_eq!(clients[7 - n].read_at(n as u64 * MIB, 4096), vec![n as u8; 4096]);
    }
    // Those that end make room for others.
    clients.drain(..4);
    until_served(&daemon, &[2, 2]);
    // They went in turn to both threads.
    drop((clients.remove(0), clients.remove(1)));
    until(PATIENCE, "two have ended", || served(&daemon).iter().map(|(_, n)| n).sum::<u64>() == 2);
    clients.extend((0..2).map(|_| Nbd::open(&images.path("nbd"), "md/one")));
    until_served(&daemon, &[2, 2]);
    // Without an export none is served.
    let _half: Vec<Nbd> = (0..9).map(|_| Nbd::greet(&images.path("nbd"))).collect();
    until_served(&daemon, &[2, 2]);
    drop(clients);
    until_served(&daemon, &[0, 0]);
    daemon.end();
}

#[test]
fn all_addresses_count_together() {
    let images = Images::new(1, MIB);
    let args = ["--threads", "3", "--nbd", "unix:a", "--nbd", "unix:b", "--nbd", "unix:c"];
    let daemon = images.serve(&args);
    let clients: Vec<Nbd> = ["a", "a", "b", "b", "c", "a"]
        .map(|address| Nbd::open(&images.path(address), "d0"))
        .into_iter()
        .collect();
    until_served(&daemon, &[2, 2, 2]);
    drop(clients);
    daemon.end();
}

#[test]
fn the_end_answers_and_closes_the_connections_of_all_threads() {
    for by_signal in [false, true] {
        let (images, daemon, mut clients) = with_clients(4);
        until_served(&daemon, &[2, 2]);
        for (n, client) in clients.iter_mut().enumerate() {
            client.write_at(n as u64 * MIB, &[0x40 + n as u8; 4096]);
        }
        if by_signal {
            daemon.signal("TERM");
        } else {
            daemon.client(&["stop"]).ok();
        }
        assert!(clients.into_iter().all(is_closed));
        let (status, log) = daemon.wait();
        assert_eq!(status.code(), Some(0), "{log}");
        let examine = images.run(&["md", "examine", "--json"], &images.refs()).ok().out;
        assert_eq!(examine.matches("\"clean\": true").count(), 2, "{examine}");
        for bytes in &images.bytes() {
            for n in 0..4 {
                assert!(bytes.windows(4096).any(|window| window == [0x40 + n; 4096]));
            }
        }
    }
}

/// Clients that take no replies keep a clean end waiting until their time is over, and a forced one not.
#[test]
fn a_forced_end_waits_for_no_client_on_any_thread() {
    let (_images, daemon, mut clients) = with_clients(4);
    until_served(&daemon, &[2, 2]);
    for client in &mut clients {
        (0..32).for_each(|n| client.request(READ, n % 16 * MIB, MIB as u32));
        client.0.flush().unwrap();
    }
    let stopped = daemon.client(&["stop", "--force"]);
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(1), "{stopped:?} {log}");
    assert!(log.contains("the end is forced") && !log.contains("panic"), "{log}");
    // The member's copies agree.
    assert!(!log.contains("not stopped cleanly"), "{log}");
}
