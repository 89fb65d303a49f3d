//! `ashlar lvm vgcfgrestore` of a served group.

use std::fs;

use super::lvm::{group, lvm, on, values};
use super::lvm_live::{exports, live, rows, serving};
use super::support::{Daemon, Images, MIB, Nbd, Run, program};

/// Keeps a copy of the description of `vg` in a file.
fn keep(images: &Images, file: &str) -> String {
    let path = images.path(file).to_str().unwrap().to_owned();
    live(images, "vgcfgbackup", &["-f", &path, "vg"]).ok();
    path
}

fn restore(images: &Images, copy: &str, more: &[&str]) -> Run {
    live(images, "vgcfgrestore", &[more, &["-f", copy, "vg"]].concat())
}

const RESTORED: &str = "  Restored volume group vg.\n";

#[test]
fn a_served_group_is_restored_while_clients_use_what_stays() {
    let images = group(2);
    on(&images, "lvcreate", &["-n", "data", "-L", "8M", "vg", "d0"]).ok();
    on(&images, "lvcreate", &["-n", "other", "-L", "4M", "vg", "d0"]).ok();
    let daemon = serving(&images, &[]);
    let socket = images.path("nbd");
    let mut data = Nbd::open(&socket, "vg/data");
    data.write_at(MIB, &[1; 4096]);
    Nbd::open(&socket, "vg/other").write_at(3 * MIB, &[2; 4096]);
    let first = keep(&images, "first");
    assert_eq!(restore(&images, &first, &[]).ok().out, RESTORED);

    // A volume is gone, one is new, one is larger and has another name, a volume in use has a snapshot.
    live(&images, "lvremove", &["-y", "vg/other"]).ok();
    live(&images, "lvcreate", &["-n", "new", "-L", "2M", "vg", "d1"]).ok();
    live(&images, "lvcreate", &["-s", "-n", "snap", "-L", "4M", "-c", "8", "vg/data", "d1"]).ok();
    data.write_at(MIB, &[3; 4096]);
    let second = keep(&images, "second");
    let seqno = rows(&images, "vgs", "vg_seqno");
    let new = Nbd::open(&socket, "vg/new");
    restore(&images, &first, &[]).fails(5, &["has elsewhere, what is in use: 'vg/new' is open"]);
    assert_eq!(rows(&images, "vgs", "vg_seqno"), seqno);
    drop(new);
    restore(&images, &first, &[]).ok();
    assert_eq!(exports(&images), ["vg/data", "vg/other"]);
    assert_eq!(data.read_at(MIB, 4096), [3; 4096]);
    assert_eq!(Nbd::open(&socket, "vg/other").read_at(3 * MIB, 4096), [2; 4096]);

    // The snapshot knows nothing of what is written now.
    restore(&images, &second, &[]).fails(5, &["since it was removed", "-y"]);
    restore(&images, &second, &["-y"]).ok();
    assert_eq!(exports(&images).len(), 3);
    assert_eq!(Nbd::open(&socket, "vg/snap").read_at(MIB, 4096), [1; 4096]);
    live(&images, "lvremove", &["-y", "vg/snap"]).ok();

    // Another size, and another name.
    live(&images, "lvextend", &["-L", "20M", "vg/data"]).ok();
    live(&images, "lvrename", &["vg/new", "old"]).ok();
    let last = keep(&images, "last");
    restore(&images, &first, &[]).fails(5, &["'vg/data' is open"]);
    drop(data);
    restore(&images, &first, &[]).ok();
    assert_eq!(rows(&images, "lvs", "lv_name,lv_size"), ["data 8.00m", "other 4.00m"]);
    let mut data = Nbd::open(&socket, "vg/data");
    assert_eq!(data.read_at(MIB, 4096), [3; 4096]);
    data.request(super::support::READ, 9 * MIB, 512);
    assert_ne!(data.reply(), 0, "beyond the end");
    drop(data);
    restore(&images, &last, &[]).ok();
    assert_eq!(rows(&images, "lvs", "lv_name,lv_size"), ["data 20.00m", "old 2.00m"]);
    // The last copy is the present state.
    live(&images, "vgcfgrestore", &["vg"]).ok();
    daemon.end();
    assert_eq!(values(&images, "lvs", "lv_name,lv_size", &[]), ["data 20.00m", "old 2.00m"]);
    let listed = lvm(&images, &["vgcfgrestore", "-l", "vg"]).ok();
    assert!(listed.out.contains("*after* executing 'ashlar lvm vgcfgrestore"), "{listed:?}");
}

#[test]
fn a_copy_that_does_not_fit_a_served_group_is_refused_and_changes_nothing() {
    let images = group(3);
    on(&images, "lvcreate", &["-n", "data", "-L", "20M", "vg", "d0"]).ok();
    let path = |name: &str| images.path(name).to_str().unwrap().to_owned();
    on(&images, "vgcfgbackup", &["-f", &path("three"), "vg"]).ok();
    on(&images, "vgreduce", &["vg", "d2"]).ok();
    let mut command = program();
    command.args(["serve", "--control", "control", "--nbd", "unix:nbd", "d0", "d1"]);
    command.args(["--model", "d1=custom:write=100ms"]);
    command.current_dir(images.dir.path()).env("XDG_STATE_HOME", images.path("state"));
    let daemon = Daemon::of(command, images.dir.path());
    let two = keep(&images, "two");
    let text = fs::read_to_string(&two).unwrap();
    let seqno = rows(&images, "vgs", "vg_seqno");
    let refused = |copy: &str, part: &str| {
        restore(&images, copy, &[]).fails(5, &[part]);
        assert_eq!(rows(&images, "vgs", "vg_seqno"), seqno);
    };
    refused(&path("three"), "Couldn't find device with uuid");
    refused("/dev/null", "cannot use the file");
    live(&images, "vgcfgrestore", &["-f", &two, "wg"]).fails(5, &["it is of the group \"vg\""]);
    let id = text.lines().find_map(|line| line.trim().strip_prefix("id = ")).unwrap();
    let other = format!("\"AAAAAA{}", &id[7..]);
    fs::write(path("other"), text.replacen(id, &other, 1)).unwrap();
    refused(&path("other"), "is another one");
    fs::write(path("flag"), text.replacen("\"WRITE\"]", "\"WRITE\", \"NEVER\"]", 1)).unwrap();
    refused(&path("flag"), "NEVER");

    // Since the copy was made, another volume has taken the snapshot's space.
    live(&images, "lvcreate", &["-s", "-n", "snap", "-L", "4M", "-c", "8", "vg/data"]).ok();
    let snap = keep(&images, "snap");
    live(&images, "lvremove", &["-y", "vg/snap"]).ok();
    live(&images, "lvcreate", &["-n", "new", "-L", "4M", "vg"]).ok();
    let refused = |copy: &str, part: &str| restore(&images, copy, &["-y"]).fails(5, &[part]);
    refused(&snap, "the space of the snapshot vg/snap is in use by vg/new now");
    live(&images, "lvremove", &["-y", "vg/new"]).ok();
    live(&images, "lvchange", &["-an", "vg/data"]).ok();
    refused(&snap, "vg/data is not active");
    live(&images, "lvchange", &["-ay", "vg/data"]).ok();

    // A move, and a copy of a time with a move.
    live(&images, "pvmove", &["-b", "d0", "d1"]).ok();
    let moving = keep(&images, "moving");
    refused(&two, "extents of vg are being moved");
    live(&images, "pvmove", &["--abort"]).ok();
    refused(&moving, "of a time when extents were being moved");
    daemon.end();
}

#[test]
fn physical_volumes_join_and_leave_with_a_copy() {
    let images = group(2);
    on(&images, "lvcreate", &["-n", "data", "-L", "8M", "vg", "d0"]).ok();
    let daemon = serving(&images, &[]);
    let mut data = Nbd::open(&images.path("nbd"), "vg/data");
    data.write_at(MIB, &[1; 4096]);
    live(&images, "lvcreate", &["-n", "more", "-L", "4M", "vg", "d1"]).ok();
    let both = keep(&images, "both");
    live(&images, "lvremove", &["-y", "vg/more"]).ok();
    live(&images, "vgreduce", &["vg", "d1"]).ok();
    let one = keep(&images, "one");
    restore(&images, &both, &[]).ok();
    assert_eq!(rows(&images, "pvs", "pv_name,vg_name"), ["d0 vg", "d1 vg"]);
    assert_eq!(exports(&images), ["vg/data", "vg/more"]);
    restore(&images, &one, &[]).ok();
    assert_eq!(rows(&images, "pvs", "pv_name,vg_name"), ["d0 vg", "d1 "]);
    live(&images, "vgcreate", &["wg", "d1"]).ok();
    restore(&images, &both, &[]).fails(5, &["is in the volume group \"wg\" now"]);
    assert_eq!(data.read_at(MIB, 4096), [1; 4096]);
    drop(data);
    daemon.end();
    assert_eq!(values(&images, "pvs", "pv_name,vg_name", &[]), ["d0 vg", "d1 wg"]);
}
