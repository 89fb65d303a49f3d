//! NBD clients that misbehave, over raw sockets, and the socket files.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};

use super::support::{Daemon, Images, MIB, Nbd, READ, WRITE, program, until};

const PATIENCE: Duration = Duration::from_secs(30);

/// The value of `name` in a process's status, bytes.
fn memory(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn a_client_that_dies_within_a_write_does_not_keep_the_daemon_from_stopping() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let daemon = images.serve(&["--nbd", "unix:nbd.sock"]);
    let mut client = Nbd::open(&images.path("nbd.sock"), "md0");
    client.request(WRITE, 0, MIB as u32);
    client.0.write_all(&vec![7; MIB as usize / 2]).unwrap();
    drop(client);
    daemon.client(&["stop"]).ok();
    assert_eq!(daemon.wait().0.code(), Some(0));
}

#[test]
fn the_socket_of_another_daemon_survives_the_end_of_this_one() {
    let (images, others) = (Images::new(1, MIB), Images::new(1, MIB));
    let socket = images.path("nbd.sock");
    let nbd = format!("unix:{}", socket.display());
    let first = images.serve(&["--nbd", &nbd]);
    // An administrator makes room for the second.
    fs::remove_file(&socket).unwrap();
    fs::remove_file(&first.control).unwrap();
    let control = first.control.to_str().unwrap();
    let mut command = program();
    command.args(["serve", "--control", control, "--nbd", &nbd, "d0"]);
    command.current_dir(others.dir.path());
    let second = Daemon::of(command, images.dir.path());
    first.end();
    assert!(second.client(&["status"]).ok().out.contains(&second.pid().to_string()));
    drop(Nbd::open(&socket, "d0"));
    second.end();
    assert!(!socket.exists());
}

#[test]
fn sockets_are_open_to_their_owner_alone_whatever_the_umask() {
    let images = Images::new(1, MIB);
    for umask in ["0", "077"] {
        let mut command = Command::new("sh");
        let serve = "umask $0; exec \"$@\"";
        command.args(["-c", serve, umask, env!("CARGO_BIN_EXE_ashlar"), "serve", "d0"]);
        command.args(["--control", "control", "--nbd", "unix:nbd.sock"]);
        command.current_dir(images.dir.path());
        let daemon = Daemon::of(command, images.dir.path());
        for name in ["control", "nbd.sock"] {
            let mode = fs::metadata(images.path(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name} under umask {umask}");
        }
        daemon.end();
    }
}

#[test]
fn clients_that_do_not_read_hold_a_bounded_memory_and_leave_none_behind() {
    let images = Images::new(1, 64 * MIB);
    let args = ["--threads", "2", "--nbd", "unix:nbd.sock", "--nbd-memory", "64M"];
    let daemon = images.serve(&args);
    let socket = images.path("nbd.sock");
    let rss = || memory(daemon.pid(), "VmRSS:");
    let before = rss();
    let mut stuck: Vec<Nbd> = (0..40).map(|_| Nbd::open(&socket, "d0")).collect();
    for client in &mut stuck {
        (0..64).for_each(|_| client.request(READ, 0, MIB as u32));
    }
    until(PATIENCE, "the clients get no memory", || rss() > before + 40 * MIB);
    // Another client is still served.
    let mut client = Nbd::open(&socket, "d0");
    for _ in 0..100 {
        assert_eq!(client.read(4096), 0);
    }
    let most = memory(daemon.pid(), "VmHWM:");
    assert!(most < before + 128 * MIB, "{} MiB more", (most - before) / MIB);
    drop((client, stuck));
    until(PATIENCE, "the memory does not come back", || rss() < before + 24 * MIB);
    daemon.end();
}

#[test]
fn memory_that_there_is_not_is_the_clients_trouble() {
    let images = Images::new(1, 64 * MIB);
    let args = ["--threads", "1", "--nbd", "unix:nbd.sock", "--nbd-memory", "1G"];
    let daemon = images.serve(&args);
    let socket = images.path("nbd.sock");
    let mut client = Nbd::open(&socket, "d0");
    let mut stuck: Vec<Nbd> = (0..4).map(|_| Nbd::open(&socket, "d0")).collect();
    assert_eq!(client.read(4096), 0);
    let limit = Some(memory(daemon.pid(), "VmSize:") + 24 * MIB);
    let pid = Pid::from_raw(daemon.pid() as i32);
    prlimit(pid, Resource::As, Rlimit { current: limit, maximum: limit }).unwrap();
    // Address space that the allocator already has is used up first.
    for client in &mut stuck {
        client.request(READ, 0, 32 * MIB as u32);
        client.0.read_exact(&mut [0; 16]).unwrap();
    }
    assert_eq!(client.read(32 * MIB as u32), 12, "ENOMEM");
    client.request(WRITE, 0, 32 * MIB as u32);
    client.0.write_all(&vec![7; 32 * MIB as usize]).unwrap();
    let mut head = [0; 16];
    client.0.read_exact(&mut head).unwrap();
    assert_eq!(head[7], 12, "ENOMEM");
    assert_eq!(client.read(4096), 0);
    drop((client, stuck));
    daemon.end();
}

#[test]
fn clients_beyond_the_most_are_refused_and_idle_ones_closed() {
    let images = Images::new(1, MIB);
    let limits = ["--nbd-max-connections", "1", "--nbd-idle-timeout", "1"];
    let daemon = images.serve(&[&["--nbd", "unix:nbd.sock"][..], &limits].concat());
    let socket = images.path("nbd.sock");
    // Clients that have not chosen an export do not count.
    let half: Vec<Nbd> = (0..100).map(|_| Nbd::greet(&socket)).collect();
    let mut first = Nbd::open(&socket, "d0");
    assert_eq!(first.read(4096), 0);
    let mut second = Nbd::greet(&socket);
    second.choose("d0");
    assert_eq!(second.0.read(&mut [0]).unwrap(), 0, "refused");
    assert_eq!(first.0.read(&mut [0]).unwrap(), 0, "idle");
    drop((Nbd::open(&socket, "d0"), half));
    let log = daemon.end();
    assert!(log.contains("refused") && log.contains("idle"), "{log}");
}

/// The lines of a daemon's status that show clients, each with the line of its volume.
fn shown_clients(daemon: &Daemon) -> Vec<(String, String)> {
    let status = daemon.client(&["status"]).ok().out;
    let (mut volume, mut clients) = (String::new(), Vec::new());
    for line in status.lines() {
        match line.strip_prefix("  NBD client ") {
            Some(client) => clients.push((volume.clone(), client.to_owned())),
            None => volume = line.split(':').next().unwrap().to_owned(),
        }
    }
    clients
}

#[test]
fn the_status_the_samples_and_top_show_which_client_uses_which_volume() {
    let images = Images::new(3, MIB);
    let daemon = images.serve(&["--nbd", "unix:nbd.sock", "--nbd", "tcp:127.0.0.1:0"]);
    let socket = images.path("nbd.sock");
    let status: Value =
        serde_json::from_str(&daemon.client(&["status", "--json"]).ok().out).unwrap();
    let address = status["nbd"][1].as_str().unwrap().strip_prefix("tcp:").unwrap();
    assert_eq!(shown_clients(&daemon), []);
    let near = [Nbd::open(&socket, "d0"), Nbd::open(&socket, "d0"), Nbd::open(&socket, "d2")];
    let half = Nbd::greet(&socket);
    let mut far = TcpStream::connect(address).unwrap();
    far.read_exact(&mut [0; 18]).unwrap();
    far.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x02d2").unwrap();
    far.read_exact(&mut [0; 10]).unwrap();
    let process = format!("process {}", std::process::id());
    let shown = [
        ("d0", format!("{process}, 2 connections")),
        ("d2", format!("{process}, 1 connection")),
        ("d2", "127.0.0.1, 1 connection".to_owned()),
    ];
    assert_eq!(shown_clients(&daemon), shown.map(|(volume, client)| (volume.to_owned(), client)));
    let one = |peer: &str, connections: u64| json!({ "peer": peer, "connections": connections });
    let clients =
        [json!([one(&process, 2)]), json!([]), json!([one(&process, 1), one("127.0.0.1", 1)])];
    let status: Value =
        serde_json::from_str(&daemon.client(&["status", "--json"]).ok().out).unwrap();
    let top = daemon.client(&["top", "--json", "-d", "0.1"]).ok().out;
    let top: Value = serde_json::from_str(&top).unwrap();
    for (n, clients) in clients.iter().enumerate() {
        assert_eq!(&status["volumes"][n]["nbd_clients"], clients, "{status}");
        assert_eq!(&top["devices"][n]["nbd_clients"], clients, "{top}");
    }
    drop((near, half, far));
    until(PATIENCE, "the clients are still shown", || shown_clients(&daemon).is_empty());
    daemon.end();
}

#[test]
fn the_status_has_the_port_that_the_kernel_chose() {
    let images = Images::new(1, MIB);
    let daemon = images.serve(&["--nbd", "tcp:127.0.0.1:0"]);
    let status = daemon.client(&["status"]).ok().out;
    let address = status.lines().find_map(|line| line.strip_prefix("NBD at tcp:")).unwrap();
    let mut greeting = [0; 8];
    TcpStream::connect(address).unwrap().read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"NBDMAGIC");
    daemon.end();
}

#[test]
fn an_address_that_others_reach_is_warned_of() {
    let images = Images::new(1, MIB);
    for (address, is_open) in [("127.0.0.1", false), ("0.0.0.0", true)] {
        let log = images.serve(&["--nbd", &format!("tcp:{address}:0")]).end();
        assert_eq!(
            log.matches("neither authentication nor encryption").count(),
            usize::from(is_open)
        );
    }
}

#[test]
fn clients_cannot_flood_the_log() {
    let images = Images::new(1, MIB);
    let daemon = images.serve(&["--nbd", "unix:nbd.sock"]);
    let begun = Instant::now();
    for n in 0..200 {
        // A client that comes and goes: at times there is no connection at all.
        if n % 40 == 39 {
            std::thread::sleep(Duration::from_millis(400));
        }
        let mut client = UnixStream::connect(images.path("nbd.sock")).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut greeting = Vec::new();
        // A reset, or the end.
        drop(client.read_to_end(&mut greeting));
        assert_eq!(greeting.len(), 18);
    }
    let log = daemon.end();
    let told = log.matches("NBD connection dropped").count();
    let left_out = log.split("left_out=").skip(1).filter_map(|rest| rest.split_whitespace().next());
    let left_out: usize = left_out.map(|count| count.parse::<usize>().unwrap()).sum();
    assert_eq!(told + left_out, 200, "{log}");
    // A machine may be stopped meanwhile: then another window of ten seconds begins.
    let windows = begun.elapsed().as_secs() as usize / 10 + 1;
    let lines = told + log.matches("left_out=").count();
    assert!(lines <= 20 * windows, "{lines} in {windows} windows: {log}");
}

#[test]
fn a_client_can_list_a_thousand_exports() {
    let dir = tempfile::tempdir().unwrap();
    let mut args = vec!["--nbd", "unix:nbd"];
    args.resize(1002, "ram:64K");
    let daemon = Daemon::start(dir.path(), &args);
    let uri = format!("nbd+unix:///?socket={}", dir.path().join("nbd").display());
    let listed = Command::new("nbdinfo").args(["--list", "--json", &uri]).output();
    let listed = listed.expect("nbdinfo, of libnbd");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let exports = listed["exports"].as_array().unwrap();
    assert_eq!(exports.len(), 1000);
    assert!(exports.iter().all(|export| export["export-size"] == 65536), "{exports:?}");
    daemon.end();
}
