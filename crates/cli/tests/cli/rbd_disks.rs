//! Images of Ceph clusters as disks.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use super::cluster::{Cluster, output};
use super::nbd_disks::holds_alone;
use super::support::{Daemon, MIB, Nbd, ashlar_in, until};

const PATIENCE: Duration = Duration::from_secs(30);

fn file(dir: &Path, name: &str) {
    File::create(dir.join(name)).unwrap().set_len(64 * MIB).unwrap();
}

/// Whether no client has the lock of an image.
fn is_unlocked(cluster: &Cluster, image: &str) -> bool {
    cluster.rbd(&["lock", "ls", image]).is_empty()
}

fn create(dir: &Path, disks: &[&str]) {
    let create = ["md", "create", "--level=1", "--raid-devices=2", "--name=data", "--assume-clean"];
    ashlar_in(dir, &[&create[..], &["--bitmap=internal"], disks].concat()).ok();
}

#[test]
fn an_array_of_an_image_and_a_file_outlives_the_daemon() {
    let cluster = Cluster::shared();
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    file(dir, "d0");
    let uri = cluster.image("member", "64M");
    create(dir, &["d0", &uri]);
    assert!(is_unlocked(cluster, "member"), "after md create");
    let scanned = ashlar_in(dir, &["scan", "d0", &uri]).ok().out;
    assert!(scanned.contains("raid1") && scanned.contains("devices=2/2"), "{scanned}");

    let daemon = Daemon::start(dir, &["--nbd", "unix:nbd", "d0", &uri]);
    let mut volume = Nbd::open(&dir.join("nbd"), "md/data");
    volume.write_at(0, &[1; 4096]);
    volume.flush();
    let locked = ashlar_in(dir, &["serve", "--control", "other", &uri]);
    locked.fails(1, &["has the exclusive lock of the image", "half a minute"]);
    ashlar_in(dir, &["md", "examine", &uri]).ok();
    drop(volume);
    drop(daemon);

    // The cluster misses the dead daemon after some seconds: this one waits for that.
    let daemon = Daemon::start(dir, &["--nbd", "unix:nbd", "d0", &uri]);
    let mut volume = Nbd::open(&dir.join("nbd"), "md/data");
    assert_eq!(volume.read_at(0, 4096), [1; 4096]);
    volume.write_at(4096, &[2; 4096]);
    volume.flush();
    drop(volume);
    daemon.end();
    assert!(is_unlocked(cluster, "member"), "after the daemon");

    // The image alone has all of it, also by a configuration file.
    let config = format!("disks = [\"{uri}\"]\nread_only = true\nrun = true\n");
    std::fs::write(dir.join("stack.toml"), config).unwrap();
    let daemon = Daemon::start(dir, &["--nbd", "unix:nbd", "--config", "stack.toml"]);
    let mut volume = Nbd::open(&dir.join("nbd"), "md/data");
    assert_eq!(volume.read_at(0, 8192), [[1; 4096], [2; 4096]].concat());
    drop(volume);
    daemon.end();
}

#[test]
fn a_member_that_was_removed_is_closed_and_may_come_back() {
    let cluster = Cluster::shared();
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    file(dir, "d0");
    let uri = cluster.image("removed", "64M");
    create(dir, &["d0", &uri]);
    let daemon = Daemon::start(dir, &["--nbd", "unix:nbd", "d0", &uri]);
    let mut volume = Nbd::open(&dir.join("nbd"), "md/data");
    for (verb, byte) in [("add", 1), ("re-add", 2)] {
        volume.write_at(0, &[byte; 4096]);
        daemon.client(&["md", "fail", "md/data", &uri]).ok();
        assert!(!is_unlocked(cluster, "removed"));
        daemon.client(&["md", "remove", "md/data", &uri]).ok();
        until(PATIENCE, "it is closed", || is_unlocked(cluster, "removed"));
        volume.write_at(4096, &[byte + 10; 4096]);
        daemon.client(&["md", verb, "md/data", &uri]).ok();
        // Exits with 1 if the recovery has ended.
        daemon.client(&["md", "wait", "md/data"]);
        assert!(daemon.client(&["status"]).ok().out.contains("2 of 2 devices"));
    }
    drop(volume);
    daemon.end();
    holds_alone(dir, &uri, [2, 12]);
}

/// Waits until the OSD has the newest map, which says what clients it refuses. (Breaking a lock changes the map, and returns before.)
fn until_osds_know(cluster: &Cluster) {
    let number = |arguments: &[&str], field: &str| {
        let text = output(cluster.client("ceph").args(arguments));
        serde_json::from_str::<serde_json::Value>(&text).unwrap()[field].as_u64().unwrap()
    };
    let newest = number(&["osd", "dump", "--format", "json"], "epoch");
    until(PATIENCE, "the OSD has the map", || {
        number(&["tell", "osd.0", "status"], "newest_map") >= newest
    });
}

#[test]
fn a_member_whose_lock_was_broken_comes_back_when_it_is_added_again() {
    let cluster = Cluster::shared();
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    file(dir, "d0");
    let uri = cluster.image("broken", "64M");
    create(dir, &["d0", &uri]);
    let daemon = Daemon::start(dir, &["--nbd", "unix:nbd", "d0", &uri]);
    let mut volume = Nbd::open(&dir.join("nbd"), "md/data");
    volume.write_at(0, &[1; 4096]);
    let lock = cluster.rbd(&["lock", "ls", "--format", "json", "broken"]);
    let locks: serde_json::Value = serde_json::from_str(&lock).unwrap();
    let lock = |field: &str| locks[0][field].as_str().unwrap().to_owned();
    cluster.rbd(&["lock", "rm", "broken", &lock("id"), &lock("locker")]);
    until_osds_know(cluster);
    volume.write_at(4096, &[2; 4096]);
    volume.flush();
    let status = daemon.client(&["status"]).ok().out;
    assert!(status.contains("1 of 2 devices"), "{status}");
    daemon.client(&["md", "remove", "md/data", &uri]).ok();
    // With another spelling: it is the same disk.
    daemon.client(&["md", "re-add", "md/data", &format!("{uri}&id=admin")]).ok();
    daemon.client(&["md", "wait", "md/data"]).ok();
    let status = daemon.client(&["status"]).ok().out;
    assert!(status.contains("2 of 2 devices"), "{status}");
    drop(volume);
    daemon.end();
    holds_alone(dir, &uri, [1, 2]);
}

/// Its OSD is frozen and thawed: nothing is lost, and what the member missed is copied.
#[test]
fn a_member_whose_cluster_is_silent_comes_back_by_itself() {
    let cluster = Cluster::start(&["--osds", "1", "--size", "1"]);
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    file(dir, "d0");
    let uri = cluster.image("silent", "64M");
    create(dir, &["d0", &uri]);
    let daemon = Daemon::start(dir, &["--nbd", "unix:nbd", "d0", &uri]);
    let mut volume = Nbd::open(&dir.join("nbd"), "md/data");
    let status = || daemon.client(&["status"]).ok().out;
    volume.write_at(0, &[1; 4096]);
    volume.flush();
    daemon.client(&["set", "sys/block/silent/queue/io_timeout", "1000"]).ok();
    cluster.verb("freeze-osd", &["0"]);
    volume.write_at(4096, &[2; 4096]);
    volume.flush();
    let degraded = status();
    assert!(degraded.contains("1 of 2 devices"), "{degraded}");
    cluster.verb("thaw-osd", &["0"]);
    until(PATIENCE, "the member comes back", || status().contains("2 of 2 devices"));
    // Exits with 1 if the recovery has ended.
    daemon.client(&["md", "wait", "md/data"]);
    drop(volume);
    daemon.end();
    holds_alone(dir, &uri, [1, 2]);
}

#[test]
fn a_volume_group_lies_on_images() {
    let cluster = Cluster::shared();
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    let disks = [cluster.image("pv0", "64M"), cluster.image("pv1", "64M")];
    let lvm = |arguments: &[&str]| {
        let devices = disks.join(",");
        ashlar_in(dir, &[&["lvm", arguments[0], "--devices", &devices], &arguments[1..]].concat())
    };
    ashlar_in(dir, &["lvm", "vgcreate", "vg", &disks[0], &disks[1]]).ok();
    lvm(&["lvcreate", "-n", "data", "-L", "40M", "-i", "2", "vg"]).ok();
    let daemon = Daemon::start(dir, &["--nbd", "unix:nbd", &disks[0], &disks[1]]);
    let mut volume = Nbd::open(&dir.join("nbd"), "vg/data");
    volume.write_at(0, &[1; 4096]);
    daemon.client(&["lvm", "lvcreate", "-s", "-n", "before", "-L", "20M", "vg/data"]).ok();
    volume.write_at(0, &[2; 4096]);
    volume.flush();
    // A disk that joins the group of a running daemon.
    let third = cluster.image("pv2", "64M");
    daemon.client(&["lvm", "vgextend", "vg", &third]).ok();
    drop(volume);
    daemon.end();
    let daemon = Daemon::start(dir, &["--nbd", "unix:nbd", &disks[0], &disks[1], &third]);
    let mut before = Nbd::open(&dir.join("nbd"), "vg/before");
    assert_eq!(before.read_at(0, 4096), [1; 4096]);
    drop(before);
    daemon.end();
}

#[test]
fn a_daemon_whose_cluster_grows_an_image_serves_a_larger_volume() {
    let cluster = Cluster::shared();
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    let uri = cluster.image("plain", "16M");
    let daemon = Daemon::start(dir, &["--nbd", "unix:nbd", "--raw", &uri]);
    cluster.rbd(&["resize", "--no-progress", "--size", "32M", "plain"]);
    until(PATIENCE, "the volume grows", || {
        daemon.client(&["get", "sys/block/plain/size"]).out.trim() == "65536"
    });
    daemon.end();
}

#[test]
fn an_image_that_cannot_be_used_is_refused() {
    let cluster = Cluster::shared();
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    let open = |uri: &str| ashlar_in(dir, &["serve", "--control", "control", uri]);
    open("rbd:image").fails(1, &["POOL/IMAGE", "hint: rbd:POOL[/NAMESPACE]/IMAGE"]);
    open("rbd:p/i?x=1").fails(1, &["unknown parameter `x=1`"]);
    open(&cluster.uri("rbd/nothing")).fails(1, &["there is no image rbd/nothing"]);
    open("rbd:p/i?conf=/nonexistent").fails(1, &["/nonexistent", "name the file: ?conf=FILE"]);
    open(&cluster.uri("rbd/nothing@before")).fails(1, &["a snapshot cannot be written"]);
    let uri = cluster.image("twice", "8M");
    let (same, encoded) = (format!("{uri}&id=other"), uri.replace("twice", "t%77ice"));
    for other in [&uri, &same, &encoded] {
        let twice = ashlar_in(dir, &["serve", "--control", "control", uri.as_str(), other]);
        twice.fails(1, &["given twice", "is the same as rbd:rbd/twice"]);
    }
}
