//! Rate limits of volumes: as options, as keys of a configuration, as attributes, and what clients notice.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use super::support::{Daemon, Images, MIB, Nbd, until};

const PATIENCE: Duration = Duration::from_secs(30);

fn io_max(daemon: &Daemon, name: &str) -> String {
    daemon.client(&["get", &format!("sys/block/{name}/queue/io_max")]).ok().out
}

fn set(daemon: &Daemon, name: &str, text: &str) {
    daemon.client(&["set", &format!("sys/block/{name}/queue/io_max"), text]).ok();
}

/// The limits of a volume, and the requests that had to wait, as `ashlar top` has them.
fn limits(daemon: &Daemon, name: &str) -> Value {
    let top = daemon.client(&["top", "--json", "-d", "0.1"]).ok();
    let top: Value = serde_json::from_str(&top.out).unwrap();
    let devices = top["devices"].as_array().unwrap();
    devices.iter().find(|device| device["name"] == name).unwrap()["limits"].clone()
}

/// The lines about limits of `ashlar status`.
fn limited_lines(daemon: &Daemon) -> Vec<String> {
    let text = daemon.client(&["status"]).ok().out;
    text.lines().filter(|line| line.contains("limited")).map(str::to_owned).collect()
}

/// The writes of a device that ended.
fn writes(daemon: &Daemon, name: &str) -> u64 {
    let stat = daemon.client(&["get", &format!("sys/block/{name}/stat")]).ok().out;
    stat.split_whitespace().nth(4).unwrap().parse().unwrap()
}

/// Two disks, of which the first lets a write of 4 KiB pass, and the next one more than an hour later.
fn limited(images: &Images) -> Daemon {
    let limit = ["--limit", "d0:wbps=1,burst_ms=1"];
    images.serve(&[&limit[..], &["--nbd", "unix:nbd"]].concat())
}

#[test]
fn a_request_waits_for_its_limit_until_the_limit_is_raised_and_delays_no_other() {
    let images = Images::new(2, 32 * MIB);
    let daemon = limited(&images);
    assert_eq!(io_max(&daemon, "d0"), "rbps=max wbps=1 riops=max wiops=max burst_ms=1\n");
    assert_eq!(io_max(&daemon, "d1"), "rbps=max wbps=max riops=max wiops=max burst_ms=100\n");
    assert_eq!(limits(&daemon, "d1"), Value::Null);
    let open = |name| Nbd::open(&images.path("nbd"), name);
    let (mut limited, mut other) = (open("d0"), open("d1"));
    limited.write_at(0, &[1; 4096]);
    limited.write(4096, &[2; 4096]);
    until(PATIENCE, "the write does not wait", || {
        limits(&daemon, "d0")["write"]["waiting"] == json!(1)
    });
    // Neither reads nor flushes of the same client wait, nor another volume.
    assert_eq!(limited.read_at(0, 8192), [[1; 4096], [0; 4096]].concat());
    limited.flush();
    other.write_at(0, &[3; 4096]);
    assert_eq!((writes(&daemon, "d0"), writes(&daemon, "d1")), (1, 1));
    let top = daemon.client(&["top", "--batch", "-n", "1", "-d", "0.1"]).ok();
    assert!(top.out.contains("\nd0: limited to wbps=1; 1 request waits\n"), "{top:?}");
    assert_eq!(limited_lines(&daemon), ["d0 is limited to wbps=1; 1 request waits"]);
    // Limits of something else change nothing for it.
    set(&daemon, "d0", "riops=1000");
    assert_eq!(limits(&daemon, "d0")["write"]["waiting"], json!(1));
    set(&daemon, "d0", "wbps=max");
    assert_eq!(limited.reply(), 0);
    assert_eq!(io_max(&daemon, "d0"), "rbps=max wbps=max riops=1000 wiops=max burst_ms=1\n");
    let found = limits(&daemon, "d0");
    assert_eq!((&found["wbps"], &found["riops"]), (&Value::Null, &json!(1000)));
    assert_eq!((&found["write"]["waiting"], &found["write"]["requests"]), (&json!(0), &json!(1)));
    assert!(found["write"]["time_ns"].as_u64().unwrap() > 0, "{found}");
    let status = daemon.client(&["status", "--json"]).ok().out;
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["limited"], json!([{ "volume": "d0", "limits": found }]));
    assert_eq!(limited_lines(&daemon), ["d0 is limited to riops=1000; 0 requests wait"]);
    set(&daemon, "d0", "riops=max");
    assert!(limited_lines(&daemon).is_empty());
    assert_eq!(limited.read_at(4096, 4096), [2; 4096]);
    drop((limited, other));
    daemon.end();
}

#[test]
fn a_stop_does_not_wait_for_limits_and_answers_what_waits() {
    let images = Images::new(2, 32 * MIB);
    let daemon = limited(&images);
    let mut client = Nbd::open(&images.path("nbd"), "d0");
    client.write_at(0, &[1; 4096]);
    client.write(4096, &[2; 4096]);
    until(PATIENCE, "the write does not wait", || {
        limits(&daemon, "d0")["write"]["waiting"] == json!(1)
    });
    daemon.signal("TERM");
    assert_eq!(client.reply(), 0);
    drop(client);
    let (status, _) = daemon.wait();
    assert!(status.success());
    assert_eq!(images.bytes()[0][..8192], [[1; 4096], [2; 4096]].concat());
}

#[test]
fn limits_are_those_of_the_configuration_and_of_the_command_line_also_for_what_comes_later() {
    let images = Images::array(3, 32 * MIB, &["--level=1", "--name=data"]);
    let text =
        "incremental = true\n[limit]\n\"*\" = \"rbps=1M riops=7\"\n\"md/*\" = \"rbps=max\"\n";
    fs::write(images.path("stack.toml"), text).unwrap();
    let limits = ["--limit", "md127:wbps=2K", "--limit", "nothing:wbps=1"];
    let daemon =
        Daemon::start(images.dir.path(), &[&["--config", "stack.toml"], &limits[..]].concat());
    daemon.client(&["md", "incremental", "d0", "d1", "d2"]).ok();
    assert_eq!(io_max(&daemon, "md127"), "rbps=max wbps=2048 riops=7 wiops=max burst_ms=100\n");
    // The members match the star, too.
    let lines = limited_lines(&daemon);
    assert_eq!(lines, ["md/data is limited to wbps=2048 riops=7; 0 requests wait"]);
    // A member has no clients.
    let run = daemon.client(&["get", "sys/block/d0/queue/io_max"]);
    assert!(run.code != Some(0) && run.err.contains("there is no such thing"), "{run:?}");
    let log = daemon.end();
    let warned = log.lines().filter(|line| line.contains("no volume has this name"));
    assert_eq!(warned.filter(|line| line.contains("\"nothing\"")).count(), 1, "{log}");
}

#[test]
fn what_is_not_a_limit_is_refused() {
    let images = Images::new(1, 32 * MIB);
    for (limit, why) in [
        ("d0", "is not VOLUME:LIMITS"),
        ("d0:wbps=0", "`0` is not a number of bytes from 1 on"),
        ("d0:bps=1", "`bps=1` is not rbps=, wbps=, riops=, wiops= or burst_ms= with a value"),
        ("d0:", "nothing is limited"),
    ] {
        let run = images.run(&["serve", "--limit", limit], &["d0"]);
        assert!(run.code == Some(2) && run.err.contains(why), "{limit}: {run:?}");
    }
    fs::write(images.path("stack.toml"), "[limit]\nd0 = \"wiops=1.5\"\n").unwrap();
    let run = images.run(&["serve", "--config", "stack.toml"], &["d0"]);
    let why = "`1.5` is not a number of requests from 1 on, or max";
    assert!(run.code == Some(2) && run.err.contains(why), "{run:?}");
    let daemon = images.serve(&["--nbd", "unix:nbd"]);
    let run = daemon.client(&["set", "sys/block/d0/queue/io_max", "wiops=1 burst_ms=0"]);
    let why = "`0` is not a number of milliseconds from 1 to 3600000";
    assert!(run.code == Some(1) && run.err.contains(why), "{run:?}");
    assert_eq!(io_max(&daemon, "d0"), "rbps=max wbps=max riops=max wiops=max burst_ms=100\n");
    daemon.end();
}
