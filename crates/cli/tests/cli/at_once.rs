//! Changes that several clients request at once: each holds what it has checked until its end.

use std::fs;

use super::support::{Daemon, Images, MIB, Nbd, Run};

/// Runs two commands of clients at the same time.
fn both(daemon: &Daemon, first: &[&str], second: &[&str]) -> [Run; 2] {
    std::thread::scope(|scope| {
        let first = scope.spawn(|| daemon.client(first));
        let second = daemon.client(second);
        [first.join().unwrap(), second]
    })
}

/// The arrays that show the member `disk` in `proc/mdstat`.
fn owners(daemon: &Daemon, disk: &str) -> usize {
    let mdstat = daemon.client(&["get", "proc/mdstat"]).ok().out;
    mdstat.lines().filter(|line| line.contains(&format!(" {disk}["))).count()
}

/// Every one of its reads and writes takes a while, so that the changes overlap.
fn slow(disk: &str) -> String {
    format!("{disk}=custom:latency=20ms")
}

/// A mirror of `d0`, `d1` and `d2`, of which `d2` was removed, and another of `m0` and `m1`.
fn two_mirrors() -> (Images, Daemon) {
    let images = Images::array(3, 32 * MIB, &["--level=1", "--name=0", "--bitmap=internal"]);
    for name in ["m0", "m1"] {
        fs::File::create(images.path(name)).unwrap().set_len(32 * MIB).unwrap();
    }
    let create = ["md", "create", "--homehost=any", "-n2", "-l1", "--name=1"];
    images.run(&create, &["m0", "m1"]).ok();
    let daemon = images.serve(&["--model", &slow("d2"), "--nbd", "unix:nbd", "m0", "m1"]);
    let mut client = Nbd::open(&images.path("nbd"), "md0");
    client.write_at(0, &[1; 4096]);
    drop(client);
    take_out(&daemon);
    (images, daemon)
}

fn take_out(daemon: &Daemon) {
    for array in ["md0", "md1"] {
        for verb in ["fail", "remove"] {
            daemon.client(&["md", verb, array, "d2"]);
        }
    }
}

#[test]
fn a_disk_that_two_arrays_want_at_once_joins_one() {
    let (_images, daemon) = two_mirrors();
    let other = ["md", "add", "--force", "md1", "d2"];
    for first in [
        &["md", "add", "md0", "d2"][..],
        &["md", "re-add", "md0", "d2"],
        &["md", "incremental", "d2"],
    ] {
        let runs = both(&daemon, first, &other);
        let done = runs.iter().filter(|run| run.code == Some(0)).count();
        assert_eq!((done, owners(&daemon, "d2")), (1, 1), "{first:?}: {runs:?}");
        take_out(&daemon);
        // It was a member of the first one last.
        daemon.client(&["md", "add", "--force", "md0", "d2"]).ok();
        daemon.client(&["md", "wait", "md0"]);
        take_out(&daemon);
    }
    daemon.end();
}

/// A mirror whose second member failed after the first of two writes.
fn failed_mirror() -> (Images, Daemon) {
    let images = Images::array(2, 20 * MIB, &["--level=1", "--bitmap=internal"]);
    let daemon = images.serve(&["--model", &slow("d1"), "--nbd", "unix:nbd"]);
    let mut client = Nbd::open(&images.path("nbd"), "md0");
    client.write_at(0, &[1; 4096]);
    daemon.client(&["md", "fail", "md0", "d1"]).ok();
    client.write_at(0, &[2; 4096]);
    client.flush();
    (images, daemon)
}

const STATE: &str = "sys/block/md0/md/dev-d1/state";

#[test]
fn a_member_that_is_re_added_twice_at_once_is_one_member() {
    let (images, daemon) = failed_mirror();
    let re_add = ["set", STATE, "re-add"];
    let runs = both(&daemon, &re_add, &re_add);
    assert_eq!(runs.iter().filter(|run| run.code == Some(0)).count(), 1, "{runs:?}");
    daemon.client(&["md", "wait", "md0"]);
    assert_eq!(daemon.client(&["get", "sys/block/md0/md/degraded"]).ok().out, "0\n");
    let roles = images.run(&["md", "examine"], &["d0"]).ok().out;
    assert!(roles.contains("Array State : AA "), "{roles}");
    // The other member fails: what is flushed then must survive a restart.
    daemon.client(&["md", "fail", "md0", "d0"]).ok();
    let mut client = Nbd::open(&images.path("nbd"), "md0");
    client.write_at(0, &[3; 4096]);
    client.flush();
    drop(client);
    daemon.end();
    let daemon = images.serve(&["--run", "--nbd", "unix:nbd"]);
    let mut client = Nbd::open(&images.path("nbd"), "md0");
    assert!(client.read_at(0, 4096) == [3; 4096], "older data are back");
    drop(client);
    daemon.end();
}

#[test]
fn a_member_that_was_removed_stays_removed() {
    let (_images, daemon) = failed_mirror();
    let [removed, re_added] =
        both(&daemon, &["md", "remove", "md0", "d1"], &["set", STATE, "re-add"]);
    assert!(removed.code == Some(0) || re_added.code == Some(0), "{removed:?} {re_added:?}");
    daemon.client(&["md", "wait", "md0"]);
    let is_member = owners(&daemon, "d1") == 1;
    assert_eq!(is_member, removed.code != Some(0), "{removed:?} {re_added:?}");
    daemon.end();
}

/// Whether the daemon has the image open.
fn is_open(daemon: &Daemon, images: &Images, name: &str) -> bool {
    let wanted = images.path(name).canonicalize().unwrap();
    let all = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    all.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).any(|target| target == wanted)
}

#[test]
fn a_member_that_is_detached_from_an_inactive_array_is_closed_at_once() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let daemon = Daemon::start(images.dir.path(), &["--incremental", "d0"]);
    daemon.client(&["get", "proc/mdstat"]).ok();
    assert!(is_open(&daemon, &images, "d0"));
    daemon.client(&["md", "incremental", "--fail", "d0"]).ok();
    assert!(!is_open(&daemon, &images, "d0"));
    daemon.end();
}

#[test]
fn a_member_that_was_removed_is_closed_at_once_and_may_come_back() {
    let (images, daemon) = failed_mirror();
    assert!(is_open(&daemon, &images, "d1"));
    daemon.client(&["md", "remove", "md0", "d1"]).ok();
    assert!(!is_open(&daemon, &images, "d1"));
    // Nothing keeps other programs from it.
    images.run(&["md", "create", "--force", "-l1", "-n2", "d1", "missing"], &[]).ok();
    daemon.client(&["md", "add", "md0", "d1"]).fails(1, &["d1 has", "--force"]);
    daemon.client(&["md", "add", "--force", "md0", "d1"]).ok();
    daemon.client(&["md", "wait", "md0"]);
    assert_eq!(daemon.client(&["get", "sys/block/md0/md/degraded"]).ok().out, "0\n");
    let mut client = Nbd::open(&images.path("nbd"), "md0");
    assert!(client.read_at(0, 4096) == [2; 4096]);
    drop(client);
    daemon.end();
}
