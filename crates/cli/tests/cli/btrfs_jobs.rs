//! Scrubs of btrfs that a daemon does, on volumes that it serves.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::btrfs_files::{unpacked, with};
use super::btrfs_scrub::{LOG_READAHEAD, MODES, read_ahead};
use super::control::RawConnection;
use super::support::{Daemon, Nbd, Run, program, until};

const PATIENCE: Duration = Duration::from_secs(30);

/// A daemon that serves the devices as they are, and has its status files in the directory.
fn serve(dir: &Path, devices: &[String], options: &[&str]) -> Daemon {
    let mut command = program();
    command.args(["serve", "--control", "control", "--nbd", "unix:nbd"]);
    command.args(options).args(devices).current_dir(dir);
    command.env("STATE_DIRECTORY", dir.join("state")).env(LOG_READAHEAD.0, LOG_READAHEAD.1);
    Daemon::of(command, dir)
}

fn scrub(daemon: &Daemon, devices: &[String], args: &[&str]) -> Run {
    daemon.client(&with(&[&["btrfs", "scrub"], args].concat(), devices))
}

fn jobs(daemon: &Daemon) -> Vec<Value> {
    let listed: Value = serde_json::from_str(&daemon.client(&["jobs", "--json"]).ok().out).unwrap();
    listed["jobs"].as_array().unwrap().clone()
}

#[test]
fn a_scrub_is_a_job_of_the_daemon_that_serves_the_volumes() {
    let (dir, devices) = unpacked("raid1c3");
    let mut daemon = serve(dir.path(), &devices, &[]);
    let all = |daemon: &Daemon, args: &[&str]| scrub(daemon, &devices, args);
    all(&daemon, &["cancel"]).fails(2, &["cancel failed", "not running"]);
    all(&daemon, &["resume"]).fails(2, &["nothing to resume", "never scrubbed"]);
    assert!(all(&daemon, &["status"]).ok().out.contains("no stats available"));
    scrub(&daemon, &devices[..1], &["start"]).fails(1, &["2 of 3 devices missing", "--degraded"]);
    scrub(&daemon, &["9.img".to_owned()], &["start"])
        .fails(1, &["no such device", "there are 0.img"]);
    let mut raw = RawConnection::at(&daemon.control);
    for method in ["Scrub", "FileSystem"] {
        let reply = raw.call(&format!("io.ashlar.Control.{method}"), json!({ "devices": [] }));
        assert_eq!(reply["error"], "org.varlink.service.InvalidParameter", "{reply}");
    }
    all(&daemon, &["start", "--status-dir", "other"]).fails(1, &["has its own status files"]);

    // A client that has a volume open keeps the scrub away, and while it runs the scrub keeps clients away.
    let socket = dir.path().join("nbd");
    let client = Nbd::open(&socket, "0.img");
    all(&daemon, &["start"]).fails(1, &["cannot scrub: 0.img", "it is open"]);
    drop(client);
    let started = all(&daemon, &["start", "--limit", "16K", "--io-depth", "1"]).ok().out;
    assert!(started.starts_with("scrub started on 0.img, fsid "), "{started}");
    assert!(started.contains(&format!("(pid={})", daemon.pid())), "{started}");
    let info = std::process::Command::new("nbdinfo")
        .arg(format!("nbd+unix:///1.img?socket={}", socket.display()))
        .output()
        .unwrap();
    assert!(!info.status.success(), "{info:?}");
    all(&daemon, &["start"]).fails(1, &["it is open", "ashlar jobs"]);

    let running = jobs(&daemon);
    let fsid = running[0]["name"].as_str().unwrap().to_owned();
    assert!(running.len() == 1 && started.contains(&fsid), "{running:?}");
    assert_eq!((&running[0]["kind"], &running[0]["state"]), (&"scrub".into(), &"running".into()));
    let status = all(&daemon, &["status"]).ok().out;
    assert!(status.contains("Status:           running"), "{status}");
    all(&daemon, &["limit", "--limit", "32K"]).ok();

    daemon.client(&["jobs", "pause", &fsid]).ok();
    let paused = jobs(&daemon);
    assert_eq!((paused.len(), &paused[0]["state"]), (1, &"paused".into()), "{paused:?}");
    let client = Nbd::open(&socket, "2.img");
    daemon.client(&["jobs", "resume", &fsid]).fails(1, &["2.img", "it is open"]);
    drop(client);
    until(PATIENCE, "resumed", || daemon.client(&["jobs", "resume", &fsid]).code == Some(0));
    assert_eq!(jobs(&daemon)[0]["state"], "running");
    daemon.client(&["jobs", "cancel", &fsid]).ok();
    assert_eq!(jobs(&daemon), [] as [Value; 0]);
    daemon.client(&["jobs", "cancel", &fsid]).fails(1, &["has no job"]);
    let slowly = ["start", "--limit", "16K", "--io-depth", "1"];
    all(&daemon, &slowly).ok();
    all(&daemon, &["cancel"]).ok();
    let status = all(&daemon, &["status"]).ok().out;
    assert!(status.contains("Status:           aborted"), "{status}");

    // The daemon's end ends a scrub, too: the next daemon continues it.
    all(&daemon, &slowly).ok();
    daemon.end();
    daemon = serve(dir.path(), &devices, &[]);
    assert_eq!(jobs(&daemon), [] as [Value; 0]);
    let resumed = all(&daemon, &["resume", "-B"]).ok().out;
    assert!(resumed.contains("Scrub resumed:"), "{resumed}");
    assert!(resumed.contains("no errors found"), "{resumed}");
    all(&daemon, &["resume"]).fails(2, &["nothing to resume", "finished"]);
    drop(Nbd::open(&socket, "0.img"));
    daemon.end();
}

#[test]
fn a_scrub_by_the_daemon_repairs_unless_it_only_reads() {
    let (dir, devices) = unpacked("raid1c3");
    let image = dir.path().join(&devices[1]);
    let sound = fs::read(&image).unwrap();
    let mut spoilt = sound.clone();
    // The copy of the superblock at 64 KiB has no other use than to be compared.
    spoilt[(64 << 10) + 200] ^= 1;
    fs::write(&image, &spoilt).unwrap();
    let daemon = serve(dir.path(), &devices, &["--read-only"]);
    scrub(&daemon, &devices, &["start", "-B"]).fails(1, &["serves its disks read-only"]);
    let read = scrub(&daemon, &devices, &["start", "-B", "--readonly"]);
    assert!(read.out.contains("super=1") && read.err.contains("not all"), "{read:?}");
    assert_eq!(read.code, Some(3), "{read:?}");
    let log = daemon.end();
    assert!(log.contains("the scrub found errors"), "{log}");
    assert!(fs::read(&image).unwrap() == spoilt, "it was written");

    let daemon = serve(dir.path(), &devices, &[]);
    let run = scrub(&daemon, &devices, &["start", "-B"]).ok();
    assert!(run.out.contains("super=1") && run.err.contains("corrected"), "{run:?}");
    let run = scrub(&daemon, &devices, &["start", "-B", "--json"]).ok();
    let json: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(json["total"]["super_errors"], 0, "{json}");
    daemon.end();
    assert!(fs::read(&image).unwrap() != spoilt, "it was not repaired");
}

#[test]
fn the_daemon_reads_ahead_in_the_mode_that_was_given_also_when_it_resumes() {
    // Its extent tree has three leaves.
    let (dir, devices) = unpacked("single-4k");
    let daemon = serve(dir.path(), &devices, &[]);
    let start = |options: &[&str]| scrub(&daemon, &devices, &[&["start"], options].concat());
    start(&["-B"]).ok();
    let all = MODES.map(|mode| start(&["-B", "-R", "--readahead", mode]).ok().out);
    let counters = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with('\t')).map(str::to_owned).collect()
    };
    for text in &all {
        assert_eq!(counters(text), counters(&all[0]));
    }
    let slowly = ["--limit", "16K", "--io-depth", "1", "--readahead", "forward"];
    start(&slowly).ok();
    let fsid = jobs(&daemon)[0]["name"].as_str().unwrap().to_owned();
    daemon.client(&["jobs", "pause", &fsid]).ok();
    daemon.client(&["jobs", "resume", &fsid]).ok();
    daemon.client(&["jobs", "cancel", &fsid]).ok();
    let mut raw = RawConnection::at(&daemon.control);
    let wrong = json!({ "devices": devices, "readahead": "all" });
    let reply = raw.call("io.ashlar.Control.Scrub", wrong);
    assert_eq!(reply["error"], "org.varlink.service.InvalidParameter", "{reply}");
    drop(raw);
    let log = daemon.end();
    let used: Vec<(String, u64)> = read_ahead(&log);
    let modes: Vec<&str> = used.iter().map(|(mode, _)| mode.as_str()).collect();
    let expected = [&["scan"], &MODES[..], &["forward", "forward"]].concat();
    assert_eq!(modes, expected, "{log}");
    let ahead = |mode: &str| MODES.iter().position(|it| *it == mode).map(|at| used[1 + at].1);
    assert!(ahead("none") == Some(0) && ahead("forward") > Some(0), "{used:?}");
}
