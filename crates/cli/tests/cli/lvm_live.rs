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

#[test]
fn a_merge_waits_for_the_next_activation_while_a_volume_of_it_is_open() {
    let images = group(1);
    on(&images, "lvcreate", &["-n", "data", "-L", "8M", "vg"]).ok();
    let daemon = serving(&images, &[]);
    let socket = images.path("nbd");
    let mut data = Nbd::open(&socket, "vg/data");
    data.write_at(MIB, &[1; 4096]);
    live(&images, "lvcreate", &["-s", "-n", "snap", "-L", "4M", "-c", "8", "vg/data"]).ok();
    data.write_at(MIB, &[2; 4096]);
    let mut snap = Nbd::open(&socket, "vg/snap");

    let later = "  Merging of snapshot vg/snap will occur on next activation of vg/data.\n";
    let run = live(&images, "lvconvert", &["--merge", "vg/snap"]).ok();
    assert_eq!(run.out, format!("  Delaying merge since origin is open.\n{later}"));
    assert_eq!(live(&images, "lvconvert", &["--merge", "vg/snap"]).ok().out, later);
    // The clients that have the two volumes open use them as before.
    data.write_at(2 * MIB, &[3; 4096]);
    assert_eq!(data.read_at(MIB, 4096), [2; 4096]);
    assert_eq!(snap.read_at(MIB, 4096), [1; 4096]);
    assert_eq!(rows(&images, "lvs", "lv_name,lv_attr"), ["data Owi-aos---"]);
    let run = live(&images, "lvs", &["-a", "--noheadings", "-o", "lv_name,lv_attr"]).ok();
    assert!(run.out.contains("[snap] Swi-aos---"), "{run:?}");
    // As for every merge that is under way.
    for (verb, args, part) in [
        ("lvremove", &["-y", "vg/snap"][..], "snap"),
        ("lvextend", &["-L", "+1M", "vg/snap"], "it is being merged"),
        ("lvcreate", &["-s", "-L", "4M", "vg/data"], "a snapshot is being merged into it"),
        ("lvchange", &["-an", "vg/data"], "in use"),
        ("vgcfgrestore", &["vg"], "snapshot vg/snap is being merged"),
    ] {
        live(&images, verb, args).fails(5, &[part]);
    }
    // Clients find the snapshot no more once it is closed. Other changes leave both alone.
    drop(snap);
    wait_for_exports(&images, &["vg/data"]);
    live(&images, "lvcreate", &["-n", "new", "-L", "1M", "vg"]).ok();
    live(&images, "vgrename", &["vg", "wg"]).ok();
    assert_eq!(data.read_at(MIB, 4096), [2; 4096]);
    drop(data);
    let mut data = Nbd::open(&socket, "wg/data");
    assert_eq!(data.read_at(MIB, 4096), [2; 4096], "it has not been activated again");
    drop(data);
    live(&images, "lvchange", &["-an", "wg/data"]).ok();
    live(&images, "lvchange", &["-ay", "wg/data"]).ok();
    let mut data = Nbd::open(&socket, "wg/data");
    assert_eq!(data.read_at(MIB, 4096), [1; 4096]);
    assert_eq!(data.read_at(2 * MIB, 4096), [0; 4096]);
    let is_merged = || rows(&images, "lvs", "lv_name,lv_attr")[0] == "data -wi-ao----";
    until(PATIENCE, "the merge", is_merged);
    drop(data);
    // The names of the snapshot's devices are free again.
    live(&images, "lvcreate", &["-s", "-n", "snap", "-L", "4M", "-c", "8", "wg/data"]).ok();
    wait_for_exports(&images, &["wg/data", "wg/new", "wg/snap"]);

    // With the snapshot open, and a new daemon instead of an activation.
    Nbd::open(&socket, "wg/data").write_at(MIB, &[4; 4096]);
    let snap = Nbd::open(&socket, "wg/snap");
    let run = live(&images, "lvconvert", &["--merge", "wg/snap"]).ok();
    assert!(run.out.starts_with("  Delaying merge since snapshot is open.\n"), "{run:?}");
    drop(snap);
    daemon.end();
    let daemon = serving(&images, &[]);
    assert_eq!(Nbd::open(&socket, "wg/data").read_at(MIB, 4096), [1; 4096]);
    wait_for_exports(&images, &["wg/data", "wg/new"]);
    until(PATIENCE, "the merge", || rows(&images, "vgs", "snap_count") == ["0"]);

    // A volume that is not active.
    live(&images, "lvcreate", &["-s", "-n", "snap", "-L", "4M", "-c", "8", "wg/data"]).ok();
    live(&images, "lvchange", &["-an", "wg/data"]).ok();
    let run = live(&images, "lvconvert", &["--merge", "wg/snap"]).ok();
    let later = "  Merging of snapshot wg/snap will occur on next activation of wg/data.\n";
    assert_eq!(run.out, format!("  Conversion starts after activation.\n{later}"));
    live(&images, "lvchange", &["-ay", "wg/data"]).ok();
    wait_for_exports(&images, &["wg/data", "wg/new"]);
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

#[test]
fn disks_join_and_leave_a_served_group() {
    let images = group(1);
    on(&images, "lvcreate", &["-n", "data", "-L", "8M", "vg"]).ok();
    spare(&images, "new");
    spare(&images, "other");
    let daemon = serving(&images, &[]);
    let mut data = Nbd::open(&images.path("nbd"), "vg/data");
    data.write_at(MIB, &[1; 4096]);

    let run = live(&images, "vgextend", &["vg", "new", "other"]).ok();
    let lines: Vec<&str> = run.out.lines().collect();
    assert_eq!(lines[0], "  Physical volume \"new\" successfully created.");
    assert_eq!(lines[1], "  new is a disk of the daemon now: name it when it is started again.");
    assert_eq!(lines[4], "  Volume group \"vg\" successfully extended");
    assert_eq!(rows(&images, "vgs", "vg_name,pv_count"), ["vg 3"]);
    // The new space is used at once, by a volume that is in use.
    live(&images, "lvextend", &["-L", "50M", "vg/data"]).ok();
    let mut grown = Nbd::open(&images.path("nbd"), "vg/data");
    grown.write_at(49 * MIB, &[2; 4096]);
    live(&images, "vgreduce", &["vg", "new"])
        .fails(5, &["Cannot remove the physical volume", "data"]);
    let run = live(&images, "vgreduce", &["vg", "other"]).ok();
    assert!(
        run.out.starts_with("  Removed \"")
            && run.out.ends_with("other\" from volume group \"vg\"\n")
    );
    live(&images, "vgreduce", &["vg", "other"])
        .fails(5, &["other", "not found in volume group \"vg\""]);
    assert_eq!(
        live(&images, "vgreduce", &["vg", "-a"]).ok().out,
        "  No physical volumes are unused\n"
    );

    // A free physical volume makes a group of its own, and is taken back.
    live(&images, "vgcreate", &["vg", "other"])
        .fails(5, &["A volume group called vg already exists"]);
    let run = live(&images, "vgcreate", &["-s", "1M", "wg", "other"]).ok();
    assert_eq!(run.out, "  Volume group \"wg\" successfully created\n");
    live(&images, "vgextend", &["vg", "other"]).fails(5, &["is already in volume group 'wg'"]);
    live(&images, "lvcreate", &["-n", "lv", "-L", "4M", "wg"]).ok();
    assert_eq!(exports(&images), ["vg/data", "wg/lv"]);
    let lv = Nbd::open(&images.path("nbd"), "wg/lv");
    live(&images, "vgremove", &["wg"])
        .fails(5, &["Do you really want to remove volume group", "-y"]);
    live(&images, "vgremove", &["-y", "wg"]).fails(5, &["wg/lv in use"]);
    drop(lv);
    let run = live(&images, "vgremove", &["-y", "wg"]).ok();
    assert!(run.out.ends_with("  Volume group \"wg\" successfully removed\n"), "{run:?}");
    assert_eq!(exports(&images), ["vg/data"]);
    live(&images, "vgextend", &["vg", "other"]).ok();
    assert_eq!(data.read_at(MIB, 4096), [1; 4096]);
    drop((data, grown));
    daemon.end();

    // The disks have what the daemon had.
    let all = ["--devices", "d0,new,other"];
    let shown =
        lvm(&images, &[&["vgs", "--json", "-o", "vg_name,pv_count,vg_seqno"], &all[..]].concat())
            .ok();
    assert!(
        shown.out.contains("\"pv_count\":\"3\"") || shown.out.contains("\"pv_count\": \"3\""),
        "{shown:?}"
    );
    let daemon = Daemon::of(
        {
            let mut command = program();
            command.args([
                "serve",
                "--control",
                "control",
                "--nbd",
                "unix:nbd",
                "d0",
                "new",
                "other",
            ]);
            command.current_dir(images.dir.path());
            command
        },
        images.dir.path(),
    );
    let mut data = Nbd::open(&images.path("nbd"), "vg/data");
    assert_eq!(data.read_at(49 * MIB, 4096), [2; 4096]);
    drop(data);
    daemon.end();
}

#[test]
fn what_cannot_join_a_served_group_is_refused_and_left_as_it_was() {
    let images = group(1);
    spare(&images, "new");
    spare(&images, "small");
    File::options().write(true).open(images.path("small")).unwrap().set_len(MIB).unwrap();
    spare(&images, "ext4");
    let made = Command::new("mkfs.ext4").arg("-q").arg(images.path("ext4")).status();
    assert!(made.expect("mkfs.ext4, of e2fsprogs").success());
    let plain = fs::read(images.path("new")).unwrap();
    spare(&images, "volume");
    let mut command = program();
    command.args(["serve", "--control", "control", "--nbd", "unix:nbd", "d0", "volume"]);
    command.current_dir(images.dir.path()).env("XDG_STATE_HOME", images.path("state"));
    let daemon = Daemon::of(command, images.dir.path());
    let seqno = rows(&images, "vgs", "vg_seqno");
    let open = Nbd::open(&images.path("nbd"), "volume");
    for (args, part) in [
        (&["vg", "new", "ext4"][..], "Cannot use"),
        (&["vg", "new", "small"], "small"),
        (&["vg", "new", "new"], "new is named twice"),
        (&["vg", "new", "d0"], "is already in volume group 'vg'"),
        (&["vg", "new", "nothing"], "nothing"),
        (&["vg", "new", "volume"], "volume' is open"),
        (&["none", "new"], "Volume group \"none\" not found"),
    ] {
        live(&images, "vgextend", args).fails(5, &[part]);
    }
    drop(open);
    assert!(fs::read(images.path("new")).unwrap() == plain, "it was not written to");
    assert_eq!(rows(&images, "vgs", "vg_seqno"), seqno);
    // A volume that is not in use can join; clients find it no more.
    assert_eq!(exports(&images), ["volume"]);
    live(&images, "vgextend", &["vg", "volume"]).ok();
    assert_eq!(exports(&images), [""; 0]);
    assert_eq!(rows(&images, "vgs", "pv_count"), ["2"]);
    daemon.end();
}

#[test]
fn volumes_are_active_at_times() {
    let images = group(1);
    on(&images, "lvcreate", &["-n", "data", "-L", "8M", "vg"]).ok();
    on(&images, "lvcreate", &["-n", "other", "-L", "4M", "vg"]).ok();
    let daemon = serving(&images, &[]);
    let control = |args: &[&str]| daemon.client(&[&["lvm"], args].concat());
    let mut data = Nbd::open(&images.path("nbd"), "vg/data");
    data.write_at(MIB, &[1; 4096]);
    control(&["lvchange", "-an", "vg/data"]).fails(5, &["vg/data in use", "is open"]);
    control(&["vgchange", "-an", "vg"]).fails(5, &["vg/data in use"]);
    assert_eq!(exports(&images), ["vg/data", "vg/other"]);
    drop(data);
    control(&["lvchange", "-an", "vg/data"]).ok();
    assert_eq!(exports(&images), ["vg/other"]);
    assert_eq!(rows(&images, "lvs", "lv_name,lv_attr"), ["data -wi-------", "other -wi-a-----"]);
    control(&["lvreduce", "-y", "-L", "4M", "vg/data"]).fails(5, &["NOT reduced", "not active"]);
    control(&["lvextend", "-L", "12M", "vg/data"]).ok();
    let run = control(&["vgchange", "-ay"]).ok();
    assert_eq!(run.out, "  2 logical volume(s) in volume group \"vg\" now active\n");
    let mut data = Nbd::open(&images.path("nbd"), "vg/data");
    assert_eq!(data.read_at(MIB, 4096), [1; 4096]);
    data.write_at(11 * MIB, &[2; 4096]);
    drop(data);
    let run = control(&["vgchange", "-an", "vg"]).ok();
    assert_eq!(run.out, "  0 logical volume(s) in volume group \"vg\" now active\n");
    assert_eq!(exports(&images), [""; 0]);
    control(&["lvchange", "-ay", "vg/none"])
        .fails(5, &["Failed to find logical volume \"vg/none\""]);
    control(&["lvchange", "-ay", "vg"]).fails(3, &["VG/LV"]);
    daemon.end();
}

/// A small file system in memory, unmounted at the end.
struct SmallFileSystem(std::path::PathBuf);

impl SmallFileSystem {
    fn mount(path: std::path::PathBuf) -> Option<Self> {
        fs::create_dir(&path).unwrap();
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(&path);
        command.output().unwrap().status.success().then_some(Self(path))
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        let (Ok(_) | Err(_)) = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// The first disk cannot be written to, which shows only when it is.
#[test]
fn a_volume_that_does_not_join_after_all_is_found_by_clients_again() {
    let images = group(1);
    spare(&images, "volume");
    let Some(full) = SmallFileSystem::mount(images.path("full")) else {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "no tmpfs can be mounted");
        return eprintln!("volumes that do not join: skipped, no tmpfs can be mounted");
    };
    spare(&images, "full/disk");
    // Until there is no room.
    let (Ok(()) | Err(_)) = fs::write(images.path("full/other"), vec![1; 1 << 16]);
    let mut command = program();
    command.args(["serve", "--control", "control", "--nbd", "unix:nbd", "d0", "volume"]);
    command.current_dir(images.dir.path()).env("XDG_STATE_HOME", images.path("state"));
    let daemon = Daemon::of(command, images.dir.path());
    let run = live(&images, "vgextend", &["vg", "full/disk", "volume"]);
    run.fails(5, &["Cannot make a physical volume: full/disk"]);
    assert_eq!(exports(&images), ["volume"]);
    Nbd::open(&images.path("nbd"), "volume").write_at(0, &[1; 4096]);
    daemon.end();
    drop(full);
}
