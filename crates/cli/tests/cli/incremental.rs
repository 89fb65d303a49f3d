//! Members that are added one by one: a daemon that starts with no members, or too few.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use super::support::{Daemon, Images, MIB};

/// `ashlar md incremental`; paths below the images' directory are shown relative to it.
struct Hands<'a> {
    daemon: &'a Daemon,
    directory: String,
}

impl<'a> Hands<'a> {
    fn new(images: &Images, daemon: &'a Daemon) -> Self {
        let directory = images.dir.path().canonicalize().unwrap();
        Self { daemon, directory: format!("{}/", directory.display()) }
    }

    /// The exit code, and the output.
    fn give(&self, args: &[&str]) -> (i32, String) {
        let run = self.daemon.client(&[&["md", "incremental"], args].concat());
        (run.code.unwrap(), (run.out + &run.err).replace(&self.directory, ""))
    }

    fn get(&self, path: &str) -> String {
        self.daemon.client(&["get", path]).ok().out
    }
}

fn said(text: &str) -> (i32, String) {
    (0, format!("{text}\n"))
}

fn refused(code: i32, text: &str) -> (i32, String) {
    (code, format!("ashlar: {text}\n"))
}

#[test]
fn an_array_starts_when_all_its_members_have_come() {
    let images = Images::array(3, 32 * MIB, &["--level=1", "--name=data"]);
    let before = images.bytes();
    let fuse = Path::new("/dev/fuse").exists();
    let mount = images.path("mnt");
    fs::create_dir(&mount).unwrap();
    let mut args = vec!["--incremental", "--nbd", "unix:nbd"];
    if fuse {
        args.extend(["--mount", "mnt"]);
    }
    let daemon = Daemon::start(images.dir.path(), &args);
    assert_eq!(daemon.greeting, "ready\n");
    let hands = Hands::new(&images, &daemon);
    let part = "attached to /dev/md/data, not enough to start safely.";
    assert_eq!(hands.give(&["d2"]), said(&format!("d2 {part}")));
    assert_eq!(hands.give(&["d2"]).0, 1);
    assert_eq!(hands.give(&["d0"]), said(&format!("d0 {part}")));
    assert_eq!(
        hands.get("proc/mdstat"),
        "Personalities : [linear] [raid0] [raid1] [raid6] [raid5] [raid4] [raid10] \nmd127 : inactive d0[0](S) d2[2](S)\n      \
         63488 blocks super 1.2\n       \nunused devices: <none>\n"
    );
    assert_eq!(hands.get("sys/block/md127/md/array_state"), "inactive\n");
    assert_eq!(hands.get("sys/block/md127/md/dev-d2/state"), "spare\n");
    assert_eq!(hands.get("sys/block/d2/holders/md127/md/raid_disks"), "3\n");
    let status = daemon.client(&["status"]).ok().out;
    assert!(status.contains("md127 (md/data): raid1 0B, inactive, 2 of 3 devices\n"), "{status}");
    let detail = daemon.client(&["md", "detail", "md/data"]).ok().out;
    assert!(detail.contains("             State : inactive\n"), "{detail}");
    let waits = ["is inactive: it waits for members", "md incremental"];
    daemon.client(&["md", "fail", "md127", "d0"]).fails(1, &waits);
    daemon.client(&["md", "add", "md127", "d0"]).fails(1, &waits);
    if fuse {
        assert!(!mount.join("dev/md127").exists());
    }
    assert!(images.bytes() == before, "something was written");
    let started = "d1 attached to /dev/md/data, which has been started.";
    assert_eq!(hands.give(&["d1"]), said(started));
    assert_eq!(hands.get("sys/block/md127/md/rd1/state"), "in_sync\n");
    let mdstat = hands.get("proc/mdstat");
    assert!(mdstat.contains("md127 : active raid1 d2[2] d1[1] d0[0]\n"), "{mdstat}");
    if fuse {
        let file = OpenOptions::new().read(true).write(true).open(mount.join("dev/md127")).unwrap();
        file.write_all_at(b"first", 0).unwrap();
        file.sync_all().unwrap();
        assert_eq!(fs::read(mount.join("sys/block/md127/size")).unwrap(), b"63488\n");
    }
    if let Ok(list) = Command::new("nbdinfo")
        .args(["--list", "nbd+unix:///?socket=nbd"])
        .current_dir(images.dir.path())
        .output()
    {
        let list = String::from_utf8(list.stdout).unwrap();
        assert!(list.contains("export=\"md/data\""), "{list}");
    }
    assert_eq!(hands.give(&["d1"]).0, 1, "it is a member already");
    daemon.end();
    let offline = images.run(&["md", "detail"], &images.refs()).ok().out;
    assert!(offline.contains("State : clean \n"), "{offline}");
}

#[test]
fn run_starts_what_has_all_data() {
    let images = Images::array(4, 32 * MIB, &["--level=10"]);
    let daemon = Daemon::start(images.dir.path(), &["--incremental", "d0"]);
    assert_eq!(daemon.greeting, "md0: raid10, inactive, 1 of 4 devices\nready\n");
    let hands = Hands::new(&images, &daemon);
    let few = "d1 attached to /dev/md0, not enough to start (2).";
    assert_eq!(hands.give(&["--run", "d1"]), said(few));
    let (code, text) = hands.give(&["--run", "--scan"]);
    assert_eq!(code, 1);
    assert!(
        text.starts_with("ashlar: failed to start array /dev/md0: not enough members"),
        "{text}"
    );
    let started = "d2 attached to /dev/md0, which has been started.";
    assert_eq!(hands.give(&["--run", "d2"]), said(started));
    assert_eq!(hands.get("sys/block/md0/md/degraded"), "1\n");
    assert_eq!(hands.give(&["--run", "--scan"]), (0, String::new()));
    daemon.end();
    let daemon = Daemon::start(images.dir.path(), &["--incremental"]);
    let hands = Hands::new(&images, &daemon);
    hands.give(&["d0", "d3", "d2"]);
    assert_eq!(hands.get("sys/block/md0/md/array_state"), "inactive\n");
    assert_eq!(hands.give(&["--run", "--scan"]), said("started array /dev/md0"));
    assert_eq!(hands.get("sys/block/md0/md/degraded"), "1\n");
    daemon.end();
}

#[test]
fn a_late_member_comes_back_only_as_what_it_was() {
    let images = Images::array(3, 32 * MIB, &["--level=1", "--bitmap=internal"]);
    let others = ["md", "create", "--homehost=any", "--level=1", "--raid-devices=2", "--force"];
    let daemon = Daemon::start(images.dir.path(), &["--incremental", "--run", "d0", "d1"]);
    let hands = Hands::new(&images, &daemon);
    let active =
        |disk: &str| said(&format!("{disk} attached to /dev/md0 which is already active."));
    assert_eq!(hands.give(&["d2"]), active("d2"));
    daemon.client(&["md", "wait", "md0"]);
    assert_eq!(hands.get("sys/block/md0/md/degraded"), "0\n");
    // It is removed, and added again.
    let gone = "set d2 faulty in /dev/md0\nhot removed d2 from /dev/md0";
    assert_eq!(hands.give(&["--fail", "d2"]), said(gone));
    assert_eq!(
        hands.give(&["--fail", "d2"]),
        refused(1, "d2 does not appear to be a component of any array")
    );
    assert_eq!(hands.give(&["d2"]), active("d2"));
    daemon.client(&["md", "wait", "md0"]);
    daemon.client(&["md", "grow", "md0", "--bitmap=none"]).ok();
    hands.give(&["--fail", "d2"]);
    let (code, text) = hands.give(&["d2"]);
    let spare = "ashlar: can only add d2 to /dev/md0 as a spare, and force-spare is not set.\n";
    assert_eq!((code, text.starts_with(spare)), (2, true), "{text}");
    assert_eq!(hands.get("sys/block/md0/md/degraded"), "1\n");
    daemon.end();
    // Two members that were each used without the other: the second one stays out.
    images.run(&others, &["d0", "d1"]).ok();
    for alone in ["d0", "d1"] {
        let daemon = Daemon::start(images.dir.path(), &["--run", alone]);
        daemon.client(&["md", "grow", "md0", "--bitmap=internal"]).ok();
        daemon.end();
    }
    let daemon = Daemon::start(images.dir.path(), &["--incremental", "d0"]);
    let hands = Hands::new(&images, &daemon);
    let (code, text) = hands.give(&["d1"]);
    assert_eq!((code, text.contains("it was used without the others")), (2, true), "{text}");
    daemon.end();
}

#[test]
fn a_spare_becomes_one_and_foreign_disks_are_refused() {
    let images = Images::new(6, 32 * MIB);
    let create = ["md", "create", "--homehost=any", "-l1", "-n2", "-x1", "d0", "d1", "d2"];
    images.run(&create, &[]).ok();
    fs::copy(images.path("d1"), images.path("d3")).unwrap();
    let daemon = Daemon::start(images.dir.path(), &["--incremental"]);
    let hands = Hands::new(&images, &daemon);
    assert_eq!(hands.give(&["d4"]), refused(1, "no recognisable superblock on d4."));
    let few = |disk| said(&format!("{disk} attached to /dev/md0, not enough to start (0)."));
    assert_eq!(hands.give(&["d2"]), few("d2"));
    assert_eq!(hands.give(&["--fail", "d2"]), said("removed d2 from /dev/md0"));
    assert_eq!(hands.get("proc/mdstat").lines().count(), 2);
    hands.give(&["d1"]);
    let (code, text) = hands.give(&["d3"]);
    assert_eq!(code, 2);
    let twice = "failed to add d3 to existing array /dev/md0: ";
    assert!(text.contains(twice) && text.contains("are the same member"), "{text}");
    // It is not held: other programs may use it.
    images.run(&["md", "create", "--force", "-l1", "-n1", "--assume-clean"], &["d3"]).ok();
    let (code, text) = hands.give(&["--quiet", "d0", "d4", "d2", "d9"]);
    assert_eq!((code, text.lines().count()), (1, 2), "{text}");
    assert_eq!(hands.get("sys/block/md0/md/dev-d2/state"), "spare\n");
    assert_eq!(hands.get("sys/block/md0/md/degraded"), "0\n");
    daemon.end();
}

#[test]
fn settings_are_made_once_their_array_is_there() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let text = "incremental = true\n[set]\n\"sys/block/md0/queue/nomerges\" = 2\n";
    fs::write(images.path("stack.toml"), text).unwrap();
    let daemon = Daemon::start(images.dir.path(), &["--config", "stack.toml"]);
    let hands = Hands::new(&images, &daemon);
    hands.give(&["d0", "d1"]);
    assert_eq!(hands.get("sys/block/md0/queue/nomerges"), "2\n");
    daemon.end();
}

#[test]
fn a_member_that_is_behind_is_left_out_and_said_so() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let daemon = Daemon::start(images.dir.path(), &["d0", "d1"]);
    daemon.client(&["md", "fail", "md0", "d1"]).ok();
    daemon.client(&["md", "remove", "md0", "d1"]).ok();
    daemon.end();
    let old = fs::read(images.path("d1")).unwrap();
    let daemon = Daemon::start(images.dir.path(), &["--incremental"]);
    let hands = Hands::new(&images, &daemon);
    // Its superblock counts both as members.
    let part = "d1 attached to /dev/md0, not enough to start safely.";
    assert_eq!(hands.give(&["d1"]), said(part));
    // The other has newer data, and needs no other member.
    let (code, text) = hands.give(&["d0"]);
    let started = "d0 attached to /dev/md0, which has been started.\nd1 left out: ";
    assert_eq!((code, text.starts_with(started)), (0, true), "{text}");
    assert_eq!(hands.get("sys/block/md0/md/degraded"), "1\n");
    daemon.end();
    assert!(fs::read(images.path("d1")).unwrap() == old, "the stale member was written to");
}
