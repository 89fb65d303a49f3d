//! `ashlar top` without a terminal, and the samples that it is made of. The live table: `tests/e2e/top.sh`.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::support::{Daemon, Images, MIB, Nbd, ashlar_in, program};

/// A sample of the daemon.
pub(super) fn sample(daemon: &Daemon) -> Value {
    let mut control = UnixStream::connect(&daemon.control).unwrap();
    control.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let call = json!({ "method": "io.ashlar.Control.Sample" });
    control.write_all(format!("{call}\0").as_bytes()).unwrap();
    let mut reply = Vec::new();
    BufReader::new(control).read_until(0, &mut reply).unwrap();
    let reply: Value = serde_json::from_slice(&reply[..reply.len() - 1]).unwrap();
    reply["parameters"]["sample"].clone()
}

fn named<'a>(all: &'a Value, name: &str) -> &'a Value {
    let devices = all["devices"].as_array().unwrap();
    devices.iter().find(|device| device["name"] == name).unwrap_or_else(|| panic!("{all}"))
}

/// `ashlar top` with pipes.
fn start(daemon: &Daemon, args: &[&str]) -> Child {
    let mut command = program();
    command.arg("top").args(args).arg("--control").arg(&daemon.control);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn samples_count_exactly_what_clients_do() {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--assume-clean"]);
    let daemon = images.serve(&["--nbd", "unix:nbd.sock"]);
    let mut client = Nbd::open(&images.path("nbd.sock"), "md0");
    let before = sample(&daemon);
    for n in 0..5 {
        client.write_at(n * MIB, &[7; 8192]);
    }
    for n in 0..10 {
        client.read_at(n * MIB, 4096);
    }
    client.flush();
    let after = sample(&daemon);
    let grown = |operation: &str, field: &str| {
        let number = |of: &Value| named(of, "md0")[operation][field].as_u64().unwrap();
        number(&after) - number(&before)
    };
    let timed = |operation: &str| {
        let sum = |of: &Value| {
            let all = named(of, "md0")[operation]["latencies"].as_array().unwrap();
            all.iter().map(|count| count.as_u64().unwrap()).sum::<u64>()
        };
        sum(&after) - sum(&before)
    };
    for (operation, ios, bytes) in
        [("read", 10, 40_960), ("write", 5, 40_960), ("discard", 0, 0), ("flush", 1, 0)]
    {
        assert_eq!(
            (grown(operation, "ios"), grown(operation, "bytes")),
            (ios, bytes),
            "{operation}"
        );
        assert_eq!(timed(operation), ios + grown(operation, "merges"), "{operation}");
    }
    assert!(after["now_ns"].as_u64() > before["now_ns"].as_u64());
    let array = named(&after, "md0");
    assert_eq!((&array["below"], &array["kind"]), (&json!(["d0", "d1"]), &json!("md")));
    assert_eq!(after["arrays"][0]["degraded"], 0);
    assert_eq!(after["latency_bounds_us"].as_array().unwrap().len(), 15);
    drop(client);
    daemon.end();
}

#[test]
fn percentiles_are_those_of_the_load() {
    let dir = tempfile::tempdir().unwrap();
    let model = "ram:8M=custom:read=3ms,write=9ms";
    let args = ["ram:8M", "--model", model, "--nbd", "unix:nbd.sock", "--nbd", "unix:nbd2.sock"];
    let daemon = Daemon::start(dir.path(), &args);
    let name = sample(&daemon)["devices"][0]["name"].as_str().unwrap().to_owned();
    let (ended, begun) = (AtomicBool::new(false), AtomicBool::new(false));
    let interval = std::thread::scope(|scope| {
        let clients = [("nbd.sock", 4096), ("nbd2.sock", 16384)].map(|(socket, len)| {
            let (socket, ended, begun, name) = (dir.path().join(socket), &ended, &begun, &name);
            scope.spawn(move || {
                let mut client = Nbd::open(&socket, name);
                while !ended.load(Ordering::Relaxed) {
                    if len == 4096 {
                        client.read_at(0, len);
                    } else {
                        client.write_at(MIB, &vec![1; len as usize]);
                        begun.store(true, Ordering::Relaxed);
                    }
                }
            })
        });
        super::support::until(Duration::from_secs(30), "no write ends", || {
            begun.load(Ordering::Relaxed)
        });
        let run = daemon.client(&["top", "--json", "-d", "0.6"]);
        ended.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }
        serde_json::from_str::<Value>(&run.ok().out).unwrap()
    });
    let device = named(&interval, &name);
    let number = |operation: &str, field: &str| device[operation][field].as_f64().unwrap();
    for (operation, len, least_us) in [("read", 4096.0, 2048.0), ("write", 16384.0, 8192.0)] {
        let ios = number(operation, "ios_per_second");
        assert!(ios > 0.0, "{device}");
        let mean = number(operation, "bytes_per_second") / ios;
        assert!((mean - len).abs() < 1e-6, "{device}");
        // No request is faster than its model; a busy machine may make any of them slower.
        for percentile in ["p50", "p99"] {
            assert!(device[operation][percentile]["us"].as_f64().unwrap() > least_us, "{device}");
        }
    }
    assert!(device["flush"]["p50"].is_null(), "{device}");
    assert!(interval["seconds"].as_f64().unwrap() >= 0.6, "{interval}");
    daemon.end();
}

#[test]
fn tables_have_all_columns_and_come_as_often_as_asked() {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--assume-clean"]);
    let daemon = images.serve(&[]);
    daemon.client(&["md", "fail", "md0", "d1"]).ok();
    let out = daemon.client(&["top", "-b", "-n", "2", "-d", "0.1", "--sort", "kind"]).ok().out;
    let tables: Vec<&str> = out.split("\n\n").collect();
    assert_eq!(tables.len(), 2, "{out}");
    for table in tables {
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].starts_with("ashlar ") && lines[0].contains(", I/O by "), "{out}");
        assert!(lines[2].contains("raid1, degraded, 1 of 2 members work"), "{out}");
        let words: Vec<&str> = lines[3].split_whitespace().collect();
        assert_eq!((words.len(), words[0], words[17]), (18, "DEVICE", "BUSY"), "{out}");
        let firsts: Vec<&str> =
            lines[4..].iter().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(firsts, ["d0", "d1", "md0"], "{out}");
    }
    let out = daemon.client(&["top", "-bn1", "-d.1", "--filter", "MEMBER"]).ok().out;
    assert!(out.contains("\nd0 ") && !out.contains("\nmd0 "), "{out}");
    let json = daemon.client(&["top", "--json", "--delay=0.1", "--filter", "md0"]).ok().out;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["devices"].as_array().unwrap().len(), 1, "{json}");
    assert_eq!(json["arrays"][0]["degraded"], 1, "{json}");
    daemon.end();
}

#[test]
fn the_end_of_the_daemon_and_of_the_reader_are_noticed() {
    let images = Images::new(1, MIB);
    let daemon = images.serve(&[]);
    let mut child = start(&daemon, &["-b", "-d", "0.1"]);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    drop(out);
    assert!(child.wait().unwrap().success(), "a reader that goes away is not an error");

    let mut child = start(&daemon, &["-b", "-d", "0.1"]);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    daemon.end();
    out.read_to_string(&mut String::new()).unwrap();
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{err}");
    assert!(err.starts_with("ashlar: cannot talk to the daemon: "), "{err}");
}

#[test]
fn what_cannot_be_is_refused_with_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let run = ashlar_in(dir.path(), &["top", "--json", "--control", "control"]);
    run.fails(1, &["cannot reach the daemon: control"]);
    for (args, why) in [
        (&["--sort", "colour"][..], "invalid value 'colour'"),
        (&["-d", "0"], "from 0.1 to 3600 seconds are possible"),
        (&["-d", "x"], "`x` is not a number of seconds"),
        (&["-n", "3"], "--batch"),
        (&["-b", "-n", "0"], "0 is not in 1.."),
        (&["-b", "--json"], "cannot be used with"),
    ] {
        let run = ashlar_in(dir.path(), &[&["top"], args].concat());
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.err.contains(why), "{run:?}");
    }
    let images = Images::new(1, MIB);
    let daemon = images.serve(&[]);
    daemon.client(&["top"]).fails(2, &["needs a terminal", "--batch", "--json"]);
    daemon.end();
}
