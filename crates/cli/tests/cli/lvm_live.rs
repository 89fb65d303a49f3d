//! `ashlar lvm` on a served group: clients use volumes meanwhile.

use std::fs::{self, File};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::lvm::{group, lvm, on, place, values, write};
use super::support::{Daemon, Images, MIB, Nbd, Run, program, until};
use super::zvol::has_fuse;

const PATIENCE: Duration = Duration::from_secs(30);

/// A daemon with the control socket `control` and NBD at `nbd`; archives go to `state`.
pub(super) fn serving(images: &Images, args: &[&str]) -> Daemon {
    let mut command = program();
    command.args(["serve", "--control", "control", "--nbd", "unix:nbd"]).args(args);
    command.args(images.refs());
    command.current_dir(images.dir.path()).env("XDG_STATE_HOME", images.path("state"));
    Daemon::of(command, images.dir.path())
}

/// `ashlar lvm VERB ARGS` for the served group.
pub(super) fn live(images: &Images, verb: &str, args: &[&str]) -> Run {
    lvm(images, &[&[verb, "--control", "control"], args].concat())
}

/// Rows of a report of the served group: the values of some fields, separated by blanks.
pub(super) fn rows(images: &Images, verb: &str, fields: &str) -> Vec<String> {
    let run = live(images, verb, &["--json", "-o", fields]).ok();
    let report: Value = serde_json::from_str(&run.out).unwrap();
    let rows = report["report"][0].as_object().unwrap().values().next().unwrap().clone();
    let row = |row: &Value| {
        let text = |field: &str| row[field].as_str().unwrap().trim().to_owned();
        fields.split(',').map(text).collect::<Vec<_>>().join(" ")
    };
    rows.as_array().unwrap().iter().map(row).collect()
}

pub(super) fn exports(images: &Images) -> Vec<String> {
    let uri = format!("nbd+unix:///?socket={}", images.path("nbd").display());
    let listed = Command::new("nbdinfo").args(["--list", "--json", &uri]).output();
    let listed = listed.expect("nbdinfo, of libnbd");
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let names = listed["exports"].as_array().unwrap().iter();
    names.map(|export| export["export-name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_served_group_is_changed_while_a_client_writes() {
    let images = group(2);
    on(&images, "lvcreate", &["-n", "data", "-L", "8M", "vg"]).ok();
    let daemon = serving(&images, &[]);
    let socket = images.path("nbd");
    let mut data = Nbd::open(&socket, "vg/data");
    data.write_at(MIB, &[1; 4096]);

    let run = live(&images, "lvcreate", &["-n", "new", "-L", "2.5M", "vg", "d1"]).ok();
    assert!(run.out.contains("Rounding up size to full physical extent 3.00 MiB"), "{run:?}");
    assert!(run.out.ends_with("  Logical volume \"new\" created.\n"), "{run:?}");
    live(&images, "lvcreate", &["-s", "-n", "snap", "-L", "4M", "-c", "8", "vg/data"]).ok();
    data.write_at(MIB, &[2; 4096]);
    assert_eq!(exports(&images), ["vg/data", "vg/new", "vg/snap"]);
    assert_eq!(Nbd::open(&socket, "vg/snap").read_at(MIB, 4096), [1; 4096]);
    let shown = rows(&images, "lvs", "lv_name,lv_attr,lv_size,origin,devices");
    assert_eq!(
        shown,
        [
            "data owi-aos--- 8.00m  d0(0)",
            "new -wi-a----- 3.00m  d1(0)",
            "snap swi-a-s--- 4.00m data d1(3)"
        ]
    );
    assert_eq!(rows(&images, "lvs", "data_percent")[2], "0.59");
    assert_eq!(rows(&images, "pvs", "pv_name,pv_free"), ["d0 31.00m", "d1 32.00m"]);
    assert_eq!(rows(&images, "vgs", "vg_name,snap_count,vg_seqno"), ["vg 1 4"]);
    let run = live(&images, "lvdisplay", &["-S", "data_percent>0.5"]).ok();
    let said = ["active destination for data", "# open                 0", "to snapshot  0.59%"];
    assert!(said.iter().all(|said| run.out.contains(said)), "{run:?}");
    let run = live(&images, "lvscan", &[]).ok();
    assert!(run.out.starts_with("  ACTIVE   Original '/dev/vg/data' [8.00 MiB]"), "{run:?}");
    let run = live(&images, "vgdisplay", &["vg"]).ok();
    assert!(run.out.contains("  Open LV               1\n"), "{run:?}");
    assert!(live(&images, "pvscan", &["-s"]).ok().out.starts_with("  d0\n  d1\n  Total: 2 "));

    // A new size reaches new clients, a new name those that look for it.
    live(&images, "lvextend", &["-L", "+1M", "vg/new"]).ok();
    live(&images, "lvrename", &["vg/new", "old"]).ok();
    let mut old = Nbd::open(&socket, "vg/old");
    old.write_at(4 * MIB - 512, &[3; 512]);
    let run = live(&images, "lvreduce", &["-L", "2M", "vg/old"]);
    run.fails(5, &["Do you really want to reduce vg/old?", "-y"]);
    let run = live(&images, "lvreduce", &["-y", "-L", "2M", "vg/old"]).ok();
    assert!(
        run.out.contains("changed from 4.00 MiB (4 extents) to 2.00 MiB (2 extents)"),
        "{run:?}"
    );
    old.request(super::support::READ, 3 * MIB, 512);
    assert_ne!(old.reply(), 0, "beyond the end");

    // What is open is not removed.
    live(&images, "lvremove", &["-y", "vg/old"]).fails(5, &["vg/old in use", "is open"]);
    drop((data, old));
    let run = live(&images, "lvconvert", &["--merge", "vg/snap"]).ok();
    assert!(
        run.out.contains("Merge of snapshot into logical volume vg/data has finished"),
        "{run:?}"
    );
    assert_eq!(Nbd::open(&socket, "vg/data").read_at(MIB, 4096), [1; 4096]);
    let run = live(&images, "lvremove", &["-y", "vg/old"]).ok();
    assert_eq!(run.out, "  Logical volume \"old\" successfully removed.\n");
    live(&images, "vgrename", &["vg", "wg"]).ok();
    assert_eq!(exports(&images), ["wg/data"]);
    assert_eq!(Nbd::open(&socket, "wg/data").read_at(MIB, 4096), [1; 4096]);
    daemon.end();
    assert_eq!(values(&images, "lvs", "lv_name,vg_name,lv_attr", &[]), ["data wg -wi-------"]);
    // One archive for each change but the first.
    let archives = fs::read_dir(images.path("state/ashlar/lvm/archive")).unwrap().count();
    let seqno: usize = values(&images, "vgs", "vg_seqno", &[])[0].parse().unwrap();
    assert_eq!(archives, seqno - 1);
    let backup = fs::read_to_string(images.path("state/ashlar/lvm/backup/wg")).unwrap();
    assert!(backup.contains("executing 'ashlar lvm vgrename --control control vg wg'"), "{backup}");
}

/// Waits until clients find these volumes and no other.
fn wait_for_exports(images: &Images, wanted: &[&str]) {
    until(PATIENCE, "what clients find", || {
        let mut found = exports(images);
        found.sort();
        found == wanted
    });
}

/// What becomes of the data and of the volumes is tested on the simulator: crates/daemon/src/simulation/scenarios/merges_and_moves.rs.
#[test]
fn a_merge_that_waits_for_the_next_activation_is_told_and_shown() {
    let images = group(1);
    on(&images, "lvcreate", &["-n", "data", "-L", "8M", "vg"]).ok();
    let daemon = serving(&images, &[]);
    let data = Nbd::open(&images.path("nbd"), "vg/data");
    let new = ["-s", "-n", "snap", "-L", "4M", "-c", "8", "vg/data"];
    live(&images, "lvcreate", &new).ok();
    let snap = Nbd::open(&images.path("nbd"), "vg/snap");

    let later = "  Merging of snapshot vg/snap will occur on next activation of vg/data.\n";
    let merge = || live(&images, "lvconvert", &["--merge", "vg/snap"]).ok().out;
    assert_eq!(merge(), format!("  Delaying merge since origin is open.\n{later}"));
    assert_eq!(merge(), later);
    assert_eq!(rows(&images, "lvs", "lv_name,lv_attr"), ["data Owi-aos---"]);
    let run = live(&images, "lvs", &["-a", "--noheadings", "-o", "lv_name,lv_attr"]).ok();
    assert!(run.out.contains("[snap] Swi-aos---"), "{run:?}");
    // As for every merge that is under way.
    for (verb, args, part) in [
        ("lvremove", &["-y", "vg/snap"][..], "snap"),
        ("lvchange", &["-an", "vg/data"], "in use"),
        ("vgcfgrestore", &["vg"], "snapshot vg/snap is being merged"),
    ] {
        live(&images, verb, args).fails(5, &[part]);
    }
    drop((data, snap));
    wait_for_exports(&images, &["vg/data"]);
    live(&images, "lvchange", &["-an", "vg/data"]).ok();
    live(&images, "lvchange", &["-ay", "vg/data"]).ok();
    let is_merged = || rows(&images, "lvs", "lv_name,lv_attr") == ["data -wi-a-----"];
    until(PATIENCE, "the merge", is_merged);

    live(&images, "lvcreate", &new).ok();
    let snap = Nbd::open(&images.path("nbd"), "vg/snap");
    let merged = live(&images, "lvconvert", &["-b", "--merge", "vg/snap"]).ok().out;
    assert!(merged.starts_with("  Delaying merge since snapshot is open.\n"), "{merged}");
    drop(snap);
    live(&images, "lvchange", &["-an", "vg/data"]).ok();
    live(&images, "lvchange", &["-ay", "vg/data"]).ok();
    until(PATIENCE, "the merge", is_merged);

    // A volume that is not active.
    live(&images, "lvcreate", &new).ok();
    live(&images, "lvchange", &["-an", "vg/data"]).ok();
    assert_eq!(merge(), format!("  Conversion starts after activation.\n{later}"));
    daemon.end();
}

#[test]
fn an_open_file_of_the_mount_has_a_volumes_new_size_at_once() {
    if !has_fuse("sizes in the mount") {
        return;
    }
    let images = group(1);
    on(&images, "lvcreate", &["-n", "data", "-L", "8M", "vg"]).ok();
    fs::create_dir(images.path("mnt")).unwrap();
    let daemon = serving(&images, &["--mount", "mnt"]);
    let file = File::open(images.path("mnt/dev/vg/data")).unwrap();
    let size = || file.metadata().unwrap().len();
    assert_eq!(size(), 8 * MIB);
    // The kernel may use what it was told of the file for a second.
    live(&images, "lvextend", &["-L", "12M", "vg/data"]).ok();
    assert_eq!(size(), 12 * MIB);
    live(&images, "lvreduce", &["-y", "-L", "4M", "vg/data"]).ok();
    assert_eq!(size(), 4 * MIB);
    drop(file);
    daemon.end();
}

#[test]
fn a_refused_change_of_a_served_group_says_why_and_changes_nothing() {
    let images = group(1);
    on(&images, "lvcreate", &["-n", "data", "-L", "8M", "vg"]).ok();
    let daemon = serving(&images, &[]);
    let seqno = rows(&images, "vgs", "vg_seqno");
    for (code, verb, args, part) in [
        (5, "lvcreate", &["-n", "data", "-L", "1M", "vg"][..], "already exists"),
        (5, "lvcreate", &["-L", "1M", "none"], "Volume group \"none\" not found"),
        (5, "lvcreate", &["-L", "1M", "vg", "d7"], "\"d7\" not found in volume group \"vg\""),
        (5, "lvcreate", &["-L", "1G", "vg"], "are free"),
        (5, "lvextend", &["-L", "8M", "vg/data"], "not larger than existing size"),
        (5, "lvreduce", &["-y", "-L", "8M", "vg/data"], "not less than existing size"),
        (3, "lvreduce", &["-y", "-L", "+1M", "vg/data"], "lvextend"),
        (3, "lvextend", &["--size=-1M", "vg/data"], "lvreduce makes it smaller"),
        (5, "lvconvert", &["--merge", "vg/data"], "Failed to find snapshot"),
        (5, "lvrename", &["vg/none", "new"], "none"),
        (3, "lvrename", &["vg/data", "wg/new"], "stays in its group"),
        (5, "lvs", &["vg/none"], "Failed to find logical volume \"vg/none\""),
    ] {
        live(&images, verb, args).fails(code, &[part]);
    }
    assert_eq!(rows(&images, "vgs", "vg_seqno"), seqno);
    // On its own, the daemon's disk can be looked at, but not changed.
    assert_eq!(values(&images, "lvs", "lv_name", &[]), ["data"]);
    on(&images, "lvcreate", &["-L", "1M", "vg"]).fails(5, &["d0", "ashlar stop"]);
    daemon.end();

    let daemon = serving(&images, &["--read-only"]);
    live(&images, "lvcreate", &["-L", "1M", "vg"]).fails(5, &["vg is served read-only"]);
    daemon.end();
}

#[test]
fn a_volume_is_not_reduced_below_its_file_system() {
    let images = group(1);
    on(&images, "lvcreate", &["-n", "data", "-L", "20M", "vg"]).ok();
    File::create(images.path("fs")).unwrap().set_len(8 * MIB).unwrap();
    let made = Command::new("mkfs.ext4").arg("-q").arg(images.path("fs")).status();
    assert!(made.expect("mkfs.ext4, of e2fsprogs").success());
    let at = place(&images, "vg/data");
    write(&images, &at, &fs::read(images.path("fs")).unwrap());
    let needs = "its ext2/3/4 file system has 8.00 MiB, more than 7.00 MiB";
    on(&images, "lvreduce", &["-y", "-L", "7M", "vg/data"])
        .fails(5, &[needs, "reduce the file system first"]);
    on(&images, "lvreduce", &["-y", "-L", "12M", "vg/data"]).ok();
    let daemon = serving(&images, &[]);
    live(&images, "lvreduce", &["-y", "-L", "7M", "vg/data"])
        .fails(5, &[needs, "reduce the file system first"]);
    live(&images, "lvreduce", &["-y", "-L", "8M", "vg/data"]).ok();
    live(&images, "lvreduce", &["-f", "-L", "7M", "vg/data"]).ok();
    daemon.end();
    assert_eq!(values(&images, "lvs", "lv_size", &[]), ["7.00m"]);
}

/// Sets a disk of 32 MiB beside those that are served.
fn spare(images: &Images, name: &str) {
    File::create(images.path(name)).unwrap().set_len(32 * MIB).unwrap();
}

/// What the daemon does is tested on the simulator: crates/daemon/src/simulation/scenarios/members_of_groups.rs.
#[test]
fn disks_that_join_and_leave_a_served_group_are_told() {
    let images = group(1);
    spare(&images, "new");
    let daemon = serving(&images, &[]);
    let run = live(&images, "vgextend", &["vg", "new"]).ok();
    let lines = [
        "  Physical volume \"new\" successfully created.",
        "  new is a disk of the daemon now: name it when it is started again.",
        "  Volume group \"vg\" successfully extended",
    ];
    assert_eq!(run.out.lines().collect::<Vec<_>>(), lines);
    assert_eq!(rows(&images, "vgs", "vg_name,pv_count"), ["vg 2"]);
    live(&images, "vgextend", &["vg", "nothing"]).fails(5, &["nothing"]);
    let run = live(&images, "vgreduce", &["vg", "new"]).ok();
    assert!(
        run.out.starts_with("  Removed \"")
            && run.out.ends_with("new\" from volume group \"vg\"\n")
    );
    live(&images, "vgreduce", &["vg", "new"])
        .fails(5, &["new", "not found in volume group \"vg\""]);
    on(&images, "lvcreate", &["-n", "lv", "-L", "4M", "vg"]).fails(5, &["d0"]);
    live(&images, "lvcreate", &["-n", "lv", "-L", "4M", "vg"]).ok();
    let run = live(&images, "vgreduce", &["vg", "-a"]).ok();
    assert_eq!(run.out, "  No physical volumes are unused\n");
    let run = live(&images, "vgcreate", &["-s", "1M", "wg", "new"]).ok();
    assert_eq!(run.out, "  Volume group \"wg\" successfully created\n");
    live(&images, "lvcreate", &["-n", "lv", "-L", "4M", "wg"]).ok();
    live(&images, "vgremove", &["wg"])
        .fails(5, &["Do you really want to remove volume group", "-y"]);
    let lv = Nbd::open(&images.path("nbd"), "wg/lv");
    live(&images, "vgremove", &["-y", "wg"]).fails(5, &["wg/lv in use"]);
    drop(lv);
    let run = live(&images, "vgremove", &["-y", "wg"]).ok();
    assert!(run.out.ends_with("  Volume group \"wg\" successfully removed\n"), "{run:?}");
    daemon.end();
}

#[test]
fn the_numbers_of_active_volumes_are_told() {
    let images = group(1);
    on(&images, "lvcreate", &["-n", "data", "-L", "8M", "vg"]).ok();
    on(&images, "lvcreate", &["-n", "other", "-L", "4M", "vg"]).ok();
    let daemon = serving(&images, &[]);
    let control = |args: &[&str]| daemon.client(&[&["lvm"], args].concat());
    let data = Nbd::open(&images.path("nbd"), "vg/data");
    control(&["lvchange", "-an", "vg/data"]).fails(5, &["vg/data in use", "is open"]);
    control(&["vgchange", "-an", "vg"]).fails(5, &["vg/data in use"]);
    drop(data);
    control(&["lvchange", "-an", "vg/data"]).ok();
    assert_eq!(exports(&images), ["vg/other"]);
    assert_eq!(rows(&images, "lvs", "lv_name,lv_attr"), ["data -wi-------", "other -wi-a-----"]);
    control(&["lvreduce", "-y", "-L", "4M", "vg/data"]).fails(5, &["NOT reduced", "not active"]);
    let run = control(&["vgchange", "-ay"]).ok();
    assert_eq!(run.out, "  2 logical volume(s) in volume group \"vg\" now active\n");
    let run = control(&["vgchange", "-an", "vg"]).ok();
    assert_eq!(run.out, "  0 logical volume(s) in volume group \"vg\" now active\n");
    control(&["lvchange", "-ay", "vg/none"])
        .fails(5, &["Failed to find logical volume \"vg/none\""]);
    control(&["lvchange", "-ay", "vg"]).fails(3, &["VG/LV"]);
    daemon.end();
}
