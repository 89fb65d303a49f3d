//! Files of disks that the daemon has, and closes. (Changes that several clients request at once are tested on the simulator:
//! crates/daemon/src/simulation/scenarios.rs.)

use std::fs;

use super::support::{Daemon, Images, MIB, Nbd};

/// A mirror whose second member failed after the first of two writes.
fn failed_mirror() -> (Images, Daemon) {
    let images = Images::array(2, 20 * MIB, &["--level=1", "--bitmap=internal"]);
    let daemon = images.serve(&["--nbd", "unix:nbd"]);
    let mut client = Nbd::open(&images.path("nbd"), "md0");
    client.write_at(0, &[1; 4096]);
    daemon.client(&["md", "fail", "md0", "d1"]).ok();
    client.write_at(0, &[2; 4096]);
    client.flush();
    (images, daemon)
}

/// Whether the daemon has the image open.
fn is_open(daemon: &Daemon, images: &Images, name: &str) -> bool {
    let wanted = images.path(name).canonicalize().unwrap();
    let all = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    all.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).any(|target| target == wanted)
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
