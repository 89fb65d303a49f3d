//! `ashlar jobs`: long work of a daemon is listed, paused, resumed and cancelled.

use std::time::Duration;

use serde_json::Value;

use super::support::{Daemon, Images, MIB, Nbd, Run, until};
use super::zvol::{has_libzpool, pool};

const PATIENCE: Duration = Duration::from_secs(30);

fn jobs(daemon: &Daemon) -> Vec<Value> {
    let listed = daemon.client(&["jobs", "--json"]).ok().out;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    listed["jobs"].as_array().unwrap().clone()
}

/// The only job.
fn job(daemon: &Daemon) -> Value {
    let jobs = jobs(daemon);
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    jobs[0].clone()
}

fn until_state(daemon: &Daemon, state: &str) -> Value {
    until(PATIENCE, state, || job(daemon)["state"] == state);
    job(daemon)
}

fn act(daemon: &Daemon, action: &str, job: &str) -> Run {
    daemon.client(&["jobs", action, job])
}

#[test]
fn a_check_is_paused_and_goes_on_and_is_cancelled() {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--name=data", "--assume-clean"]);
    let daemon = images.serve(&[]);
    assert_eq!(daemon.client(&["jobs"]).ok().out, "no long work is under way\n");
    act(&daemon, "pause", "md0").fails(1, &["md0 has no job", "ashlar jobs"]);
    let device = daemon.client(&["status"]).ok().out;
    let device = device.lines().find(|line| line.contains("md/data")).unwrap();
    let device = device.split(' ').next().unwrap();
    let set = |name: &str, value: &str| {
        daemon.client(&["set", &format!("sys/block/{device}/md/{name}"), value]).ok();
    };
    set("sync_speed_min", "1000");
    set("sync_speed_max", "1000");
    daemon.client(&["md", "action", device, "check", "--no-wait"]).ok();
    let running = until_state_of_one(&daemon);
    assert_eq!((&running["name"], &running["alias"]), (&device.into(), &"md/data".into()));
    assert_eq!((&running["kind"], &running["state"]), (&"check".into(), &"running".into()));
    let total = running["total_bytes"].as_u64().unwrap();
    assert!(total > 30 * MIB && running["done_bytes"].as_u64().unwrap() < total);
    act(&daemon, "resume", "md/data").fails(1, &["the check of md/data is running already"]);

    act(&daemon, "pause", "md/data").ok();
    let paused = until_state(&daemon, "paused");
    let done = paused["done_bytes"].as_u64().unwrap();
    assert!(done < total && paused["seconds_left"].is_null(), "{paused}");
    act(&daemon, "pause", device).fails(1, &["paused already"]);
    let shown = daemon.client(&["jobs"]).ok().out;
    assert!(shown.starts_with("JOB      WORK   STATE"), "{shown}");
    assert!(shown.contains("\nmd/data  check  paused"), "{shown}");

    act(&daemon, "resume", &format!("/dev/{device}")).ok();
    let resumed = until_state(&daemon, "running");
    assert!(resumed["done_bytes"].as_u64().unwrap() >= done);
    act(&daemon, "cancel", device).ok();
    assert_eq!(jobs(&daemon), [] as [Value; 0]);
    let from = daemon.client(&["get", &format!("sys/block/{device}/md/sync_min")]).ok();
    assert_eq!(from.out, "0\n", "the next check begins at the start");

    // One that is paused can be cancelled, too.
    daemon.client(&["md", "action", device, "repair", "--no-wait"]).ok();
    until_state_of_one(&daemon);
    act(&daemon, "pause", device).ok();
    until_state(&daemon, "paused");
    act(&daemon, "cancel", device).ok();
    assert_eq!(jobs(&daemon), [] as [Value; 0]);
    daemon.end();
}

/// The only job, once it is there.
fn until_state_of_one(daemon: &Daemon) -> Value {
    until(PATIENCE, "a job", || !jobs(daemon).is_empty());
    job(daemon)
}

#[test]
fn a_recovery_is_paused_and_not_cancelled() {
    let images = Images::new(2, 128 * MIB);
    images.run(&["md", "create", "--level=1", "--raid-devices=2", "d0", "missing"], &[]).ok();
    let slow = ["--run", "--model", "d0=custom:read=200ms", "d0"];
    let daemon = Daemon::start(images.dir.path(), &slow);
    daemon.client(&["md", "add", "md0", "d1"]).ok();
    let running = until_state_of_one(&daemon);
    assert_eq!((&running["kind"], &running["state"]), (&"recover".into(), &"running".into()));
    act(&daemon, "cancel", "md0").fails(1, &["cannot cancel the recovery of md0", "needs it"]);
    act(&daemon, "pause", "md0").ok();
    let paused = until_state(&daemon, "paused");
    assert!(paused["done_bytes"].as_u64() < paused["total_bytes"].as_u64(), "{paused}");
    act(&daemon, "resume", "md0").ok();
    daemon.client(&["md", "wait", "md0"]).ok();
    assert_eq!(jobs(&daemon), [] as [Value; 0]);
    daemon.end();
}

#[test]
fn a_scrub_of_a_pool_is_paused_and_cancelled() {
    if !has_libzpool("jobs of a pool") {
        return;
    }
    let images = pool();
    super::zvol::on(&images, &["zvol", "create", "-V", "64M", "tank/vol"]).ok();
    let slow = ["--nbd", "unix:nbd", "--model", "d0=custom:read=20ms"];
    let daemon = images.serve(&slow);
    let mut volume = Nbd::open(&images.path("nbd"), "zvol/tank/vol");
    for at in 0..64 {
        let block: Vec<u8> =
            (0..MIB / 4).map(|byte| (byte * 31 + at * 7 + byte / 251) as u8).collect();
        volume.write_at(at * MIB / 4, &block);
    }
    volume.flush();
    let pause = || {
        // Where the processors are busy, a scrub may end before the command that pauses it has begun: then there is another one.
        until(PATIENCE, "a scrub is paused", || {
            daemon.client(&["zpool", "scrub", "tank"]).ok();
            act(&daemon, "pause", "tank").code == Some(0)
        });
        let paused = until_state(&daemon, "paused");
        assert_eq!((&paused["name"], &paused["kind"]), (&"tank".into(), &"scrub".into()));
    };
    let ended = |how: &str| {
        until(PATIENCE, "the scrub ends", || jobs(&daemon).is_empty());
        let status = daemon.client(&["zpool", "status", "tank"]).ok().out;
        assert!(status.contains(how), "{status}");
    };
    pause();
    act(&daemon, "resume", "tank").ok();
    ended("scrub repaired 0B");
    pause();
    act(&daemon, "cancel", "tank").ok();
    ended("scrub canceled");
    drop(volume);
    daemon.end();
}
