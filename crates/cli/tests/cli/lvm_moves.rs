//! `ashlar lvm pvmove`: extents go to other disks, on image files and while clients use their volumes.

use std::time::Duration;

use super::lvm::{group, lvm, on, values};
use super::support::{Daemon, Images, MIB, Nbd, until};

const PATIENCE: Duration = Duration::from_secs(30);

/// Where the extents of volumes are.
fn places(images: &Images) -> Vec<String> {
    values(images, "lvs", "lv_name,devices", &["-a"])
}

fn used(images: &Images, disk: &str) -> String {
    values(images, "pvs", "pv_used", &[disk]).remove(0)
}

fn serving(images: &Images, args: &[&str]) -> Daemon {
    images.serve(&[&["--nbd", "unix:nbd"], args].concat())
}

#[test]
fn extents_move_on_disks_and_what_cannot_move_is_refused() {
    let images = group(3);
    on(&images, "lvcreate", &["-n", "data", "-L", "6M", "vg", "d0"]).ok();
    on(&images, "lvcreate", &["-n", "wide", "-l", "8", "-i", "2", "vg", "d0", "d1"]).ok();
    let before = places(&images);
    let unchanged = images.bytes();
    for (args, code, why) in [
        (&["d7"][..], 5, "Failed to find physical volume \"d7\"."),
        (&["d2"], 5, "No data to move for vg."),
        (&["d0:30-39"], 5, "No data to move for vg."),
        (&["d0", "d0"], 5, "the extents of d0 cannot be moved to d0 itself"),
        (&["d0", "d7"], 5, "Physical volume \"d7\" not found in volume group \"vg\""),
        (&["d0", "d2:0-3"], 5, "10 extents are needed, 4 are free"),
        (&["-n", "none", "d0"], 5, "there is no logical volume \"none\""),
    ] {
        on(&images, "pvmove", args).fails(code, &[why]);
    }
    for (args, why) in [
        (&["d0:5-2"][..], "'5-2' is not a range of extents"),
        (&["--abort", "-b"], "cannot be used with"),
    ] {
        let run = on(&images, "pvmove", args);
        assert!(run.code == Some(3) && run.err.contains(why), "{run:?}");
    }
    assert!(images.bytes() == unchanged, "a refused move changes nothing");

    let run = on(&images, "pvmove", &["-n", "vg/data", "d0:0-3", "d2"]).ok();
    assert!(run.out.ends_with("  d0: Moved: 100.00%\n"), "{run:?}");
    assert_eq!(places(&images), ["data d2(0)", "data d0(4)", "wide d0(6),d1(0)"]);
    on(&images, "pvmove", &["d2", "d0:0-3"]).ok();
    assert_eq!(places(&images), before);
    // Without a target: to all others, but a stripe stays away from the other one.
    on(&images, "pvmove", &["d0"]).ok();
    assert_eq!(places(&images), ["data d1(4)", "wide d2(0),d1(0)"]);
    assert_eq!(used(&images, "d0"), "0");
    on(&images, "pvmove", &[]).ok();

    // One that is begun only: the next command continues it, or not.
    let run = on(&images, "pvmove", &["-b", "d1"]).ok();
    assert!(run.out.contains("The extents move when the group is served"), "{run:?}");
    assert_eq!(
        values(&images, "lvs", "lv_name,lv_attr,move_pv", &["-a"]),
        ["data -wI------- ", "[pvmove0] p-C---m--- d1", "wide -wI------- "]
    );
    on(&images, "lvremove", &["-y", "vg/data"]).fails(5, &["is locked: pvmove moves its extents"]);
    on(&images, "lvcreate", &["-n", "new", "-L", "1M", "vg"]).ok();
    on(&images, "vgreduce", &["vg", "d1"]).fails(5, &["has extents there"]);
    on(&images, "pvmove", &["--abort"]).ok();
    assert_eq!(places(&images)[..2], ["data d1(4)", "new d2(4)"]);
    on(&images, "pvmove", &["-b", "d1"]).ok();
    let run = on(&images, "pvmove", &["d1"]).ok();
    assert!(run.out.contains("  Detected pvmove in progress for d1.\n"), "{run:?}");
    assert!(run.err.contains("Ignoring remaining command line arguments"), "{run:?}");
    assert_eq!(used(&images, "d1"), "0");
    on(&images, "vgreduce", &["vg", "d1"]).ok();
}

#[test]
fn a_client_writes_while_its_volume_moves_and_the_daemon_is_killed() {
    let images = group(3);
    on(&images, "lvcreate", &["-n", "data", "-L", "30M", "vg", "d0"]).ok();
    let slow = ["--model", "d2=custom:write=100ms"];
    let daemon = serving(&images, &slow);
    let mut data = Nbd::open(&images.path("nbd"), "vg/data");
    data.write_at(20 * MIB, &[1; 4096]);
    let run = daemon.client(&["lvm", "pvmove", "-b", "d0", "d2"]).ok();
    assert_eq!(run.out, "");
    let listed = daemon.client(&["jobs"]).ok().out;
    assert!(listed.contains("vg/pvmove0  move"), "{listed}");
    let shown = ["lvm", "lvs", "-a", "--noheadings", "-o", "lv_name,lv_attr"];
    let shown = daemon.client(&shown).ok().out;
    let words: Vec<&str> = shown.split_ascii_whitespace().collect();
    assert_eq!(words, ["data", "-wI-ao----", "[pvmove0]", "p-C-aom---"]);
    data.write_at(0, &[2; 4096]);
    data.write_at(29 * MIB, &[3; 4096]);
    data.flush();
    daemon.signal("KILL");
    daemon.wait();

    // It continues by itself, and a client that follows it sees its end.
    let daemon = serving(&images, &[]);
    let mut data = Nbd::open(&images.path("nbd"), "vg/data");
    data.write_at(MIB, &[4; 4096]);
    daemon.client(&["lvm", "pvmove"]).ok();
    until(PATIENCE, "the move ends", || {
        daemon.client(&["jobs"]).ok().out == "no long work is under way\n"
    });
    let check = |data: &mut Nbd| {
        for (at, byte) in [(0, 2), (MIB, 4), (20 * MIB, 1), (29 * MIB, 3)] {
            assert_eq!(data.read_at(at, 4096), [byte; 4096], "{at}");
        }
    };
    check(&mut data);
    drop(data);
    daemon.client(&["lvm", "pvmove", "--abort"]).ok();
    daemon.client(&["lvm", "pvmove", "nothing"]).fails(5, &["Failed to find physical volume"]);
    lvm(&images, &["pvmove"]).fails(5, &["--devices"]);
    daemon.client(&["lvm", "vgreduce", "vg", "d0"]).ok();
    daemon.end();
    assert_eq!(places(&images), ["data d2(0)"]);
    let daemon = serving(&images, &[]);
    check(&mut Nbd::open(&images.path("nbd"), "vg/data"));
    daemon.end();
}
