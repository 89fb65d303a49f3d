//! `ashlar zpool` with the verbs that change the devices of a pool, destroy it and erase its labels. The pools need
//! OpenZFS's library, like those of [`super::zvol`].

use std::fs;

use super::support::{Daemon, Images, MIB};
use super::zvol::{has_libzpool, on, zdb_agrees};

/// The lines of the vdevs that `zpool status` prints of the pool on these disks.
fn vdevs(images: &Images, disks: &str) -> String {
    let status = images.run(&["zpool", "status", "-d", disks], &[]).ok().out;
    let words = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    let of_interest = |line: &&str| line.contains("/d") || line.contains("mirror-");
    let lines: Vec<String> = status.lines().filter(of_interest).map(words).collect();
    lines
        .join(", ")
        .replace(&format!("{}/", images.dir.path().canonicalize().unwrap().display()), "")
}

#[test]
fn disks_are_attached_replaced_switched_and_detached() {
    if !has_libzpool("devices of a pool") {
        return;
    }
    let images = Images::new(4, 256 * MIB);
    images.run(&["zpool", "create", "tank"], &["d0"]).ok();
    images.run(&["zvol", "create", "-d", "d0", "-V", "32M", "tank/vol"], &[]).ok();
    let foreign =
        std::process::Command::new("mkfs.ext4").arg("-qF").arg(images.path("d1")).status();
    assert!(foreign.is_ok_and(|status| status.success()), "mkfs.ext4");
    let before = images.bytes();
    let attach = ["zpool", "attach", "-d", "d0", "tank", "d0", "d1"];
    images.run(&attach, &[]).fails(1, &["has ext", "--force"]);
    images.run(&["zpool", "attach", "tank", "d0", "d1"], &[]).fails(2, &["zpool export tank"]);
    images.run(&["zpool", "attach", "-d", "d0", "tank", "d0", "d0"], &[]).fails(1, &["d0"]);
    assert!(before[1] == images.bytes()[1], "something was written");
    let done = images.run(&attach, &["--force"]).ok().out;
    assert!(done.contains("tank: resilvered") && done.contains("with 0 errors"), "{done}");
    assert_eq!(vdevs(&images, "d0,d1"), "mirror-0 ONLINE, d0 ONLINE, d1 ONLINE");
    // A disk that is missing is replaced.
    fs::remove_file(images.path("d1")).unwrap();
    let replace = ["zpool", "replace", "-d", "d0", "tank", "d1", "d2"];
    assert!(images.run(&replace, &[]).ok().out.contains("tank: resilvered"));
    assert_eq!(vdevs(&images, "d0,d2"), "mirror-0 ONLINE, d0 ONLINE, d2 ONLINE");
    let here = |verb: &[&str]| images.run(&[&["zpool"], verb, &["-d", "d0,d2"]].concat(), &[]);
    here(&["offline", "tank", "d2"]).ok();
    assert_eq!(vdevs(&images, "d0,d2"), "mirror-0 DEGRADED, d0 ONLINE, d2 OFFLINE");
    here(&["offline", "tank", "d0"]).fails(1, &["no valid replicas"]);
    here(&["online", "tank", "d2"]).ok();
    assert_eq!(vdevs(&images, "d0,d2"), "mirror-0 ONLINE, d0 ONLINE, d2 ONLINE");
    here(&["clear", "tank"]).ok();
    here(&["clear", "tank", "d3"]).fails(1, &["no such device in pool"]);
    // A daemon does the same to a pool that it serves, but takes no new disks.
    let daemon = Daemon::start(images.dir.path(), &["d0", "d2"]);
    daemon.client(&["zpool", "offline", "tank", "d2"]).ok();
    let status = daemon.client(&["zpool", "status", "tank"]).ok().out;
    assert!(status.contains("OFFLINE"), "{status}");
    daemon.client(&["zpool", "online", "tank", "d2"]).ok();
    daemon.client(&["zpool", "destroy", "--force", "tank"]).fails(1, &["a daemon serves it"]);
    images.run(&["zpool", "labelclear", "--force", "d2"], &[]).fails(1, &["in use"]);
    daemon.client(&["zpool", "detach", "tank", "d2"]).ok();
    daemon.end();
    // The detached disk is free, and not taken for a member.
    assert_eq!(vdevs(&images, "d0,d2"), "d0 ONLINE");
    images.run(&["zpool", "scrub", "-d", "d0,d2", "tank"], &[]).ok();
    images.run(&["zpool", "labelclear", "d2"], &[]).ok();
    // Nothing but a mirror is grown by one disk.
    images
        .run(&["zpool", "add", "-d", "d0", "tank", "mirror", "d2", "d3"], &[])
        .fails(1, &["mismatched replication level"]);
    images.run(&["zpool", "add", "-d", "d0", "tank", "d2", "log", "d3"], &[]).ok();
    assert_eq!(vdevs(&images, "d0,d2,d3"), "d0 ONLINE, d2 ONLINE, d3 ONLINE");
    zdb_agrees(&images);
}

#[test]
fn a_pool_is_destroyed_and_its_labels_are_erased_only_by_who_means_it() {
    if !has_libzpool("destroy") {
        return;
    }
    let images = Images::new(2, 256 * MIB);
    images.run(&["zpool", "create", "tank"], &["d0"]).ok();
    images.run(&["zpool", "create", "other"], &["d1"]).ok();
    on(&images, &["zpool", "import", "-a"]).ok();
    on(&images, &["zpool", "set", "comment=of the lab", "tank"]).ok();
    on(&images, &["zpool", "set", "autotrim=maybe", "tank"]).fails(1, &["'on | off'"]);
    on(&images, &["zpool", "set", "size=1", "tank"]).fails(1, &["'size' is readonly"]);
    let comment = on(&images, &["zpool", "get", "-H", "-o", "value", "comment", "tank"]).ok();
    assert_eq!(comment.out, "of the lab\n");
    on(&images, &["zvol", "create", "-V", "16M", "tank/vol"]).ok();
    let before = images.bytes();
    images.run(&["zpool", "labelclear", "d0"], &[]).fails(1, &["exported pool 'tank'", "--force"]);
    assert!(before == images.bytes(), "something was written");
    on(&images, &["zpool", "destroy", "tank"])
        .fails(1, &["has volumes or file systems: 1", "--force"]);
    assert_eq!(on(&images, &["zvol", "list", "-H", "-o", "name"]).ok().out, "tank/vol\n");
    on(&images, &["zpool", "destroy", "--force", "tank"]).ok();
    on(&images, &["zpool", "destroy", "tank"]).fails(1, &["destroyed"]);
    // The others are there as before.
    assert_eq!(on(&images, &["zpool", "list", "-H", "-o", "name"]).ok().out, "other\n");
    assert!(!on(&images, &["zpool", "import"]).ok().out.contains("tank"));
    images.run(&["zpool", "labelclear", "d0"], &[]).ok();
    images.run(&["zpool", "labelclear", "d0"], &[]).fails(1, &["no ZFS labels"]);
    // All or none.
    let before = images.bytes();
    images
        .run(&["zpool", "labelclear", "--force", "d1", "d0"], &[])
        .fails(1, &["d0: the disk has no ZFS labels"]);
    assert!(before == images.bytes(), "something was written");
    images.run(&["zpool", "labelclear", "--force", "d1"], &[]).ok();
    // A later owner may have data where a label was.
    images.run(&["zpool", "create", "old"], &["d0"]).ok();
    let mut ext4 = std::process::Command::new("mkfs.ext4");
    let made = ext4.args(["-qF", "-E", "nodiscard"]).arg(images.path("d0")).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfs.ext4");
    let before = images.bytes();
    images.run(&["zpool", "labelclear", "--force", "d0"], &[]).fails(1, &["ext4", "wipefs"]);
    assert!(before == images.bytes(), "something was written");
    fs::File::create(images.path("d0")).unwrap().set_len(256 * MIB).unwrap();
    on(&images, &["zpool", "import", "-a"]).fails(1, &["no pools available to import"]);
}

#[test]
fn zfs_takes_snapshots_of_all_volumes_and_tells_what_it_would_destroy() {
    if !has_libzpool("zfs") {
        return;
    }
    let images = Images::new(1, 256 * MIB);
    images.run(&["zpool", "create", "tank"], &["d0"]).ok();
    for name in ["tank/a/one", "tank/a/two", "tank/b"] {
        on(&images, &["zfs", "create", "-p", "-s", "-V", "16M", name]).ok();
    }
    on(&images, &["zfs", "snapshot", "-r", "tank/a@now"]).ok();
    on(&images, &["zfs", "snapshot", "-r", "tank/a"]).fails(2, &["tank/a"]);
    let list = ["zfs", "list", "-H", "-o", "name", "-t"];
    let all = on(&images, &[&list[..], &["volume,snapshot"]].concat()).ok().out;
    assert_eq!(all, "tank/a@now\ntank/a/one\ntank/a/one@now\ntank/a/two\ntank/a/two@now\ntank/b\n");
    let before = images.bytes();
    on(&images, &["zfs", "destroy", "-nv", "tank/a/one"]).fails(1, &["tank/a/one@now", "-r"]);
    let told = on(&images, &["zfs", "destroy", "-nv", "-r", "tank/a/one"]).ok().out;
    assert_eq!(told, "would destroy tank/a/one\nwould destroy tank/a/one@now\n");
    assert!(before == images.bytes(), "something was written");
    on(&images, &["zfs", "destroy", "-r", "tank/a/one"]).ok();
    assert!(!on(&images, &[&list[..], &["all"]].concat()).ok().out.contains("one"));
    zdb_agrees(&images);
}
