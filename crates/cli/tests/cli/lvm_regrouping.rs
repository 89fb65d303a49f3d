//! `vgsplit` and `vgmerge`: volumes that go from one group to another keep their data.

use std::fs;

use super::lvm::{group, lvm, on, place, read, values, write};
use super::lvm_live::{live, serving};
use super::support::Images;

/// A group with the volume `kept` on d0, `gone` on d1 and d2, and a snapshot of each beside it.
fn with_volumes() -> Images {
    let images = group(3);
    for (name, size, disks) in [("kept", "8", &["d0"][..]), ("gone", "45", &["d1", "d2"])] {
        on(&images, "lvcreate", &[&["-n", name, "-l", size, "vg"], disks].concat()).ok();
        let snapshot = format!("{name}-before");
        let origin = format!("vg/{name}");
        let args = ["-s", "-n", &snapshot, "-l", "4", &origin, disks.last().unwrap()];
        on(&images, "lvcreate", &args).ok();
        write(&images, &place(&images, &origin), name.as_bytes());
    }
    images
}

/// The volumes with their groups, and the start of what is in them.
fn contents(images: &Images) -> Vec<String> {
    let names = values(images, "lvs", "lv_full_name,origin", &[]);
    let start = |line: &String| {
        let name = line.split(' ').next().unwrap();
        let bytes = read(images, &place(images, name), 4);
        format!("{line} {}", String::from_utf8_lossy(&bytes).trim_end_matches('\0'))
    };
    names.iter().map(start).collect()
}

const WHOLE: [&str; 4] =
    ["vg/gone  gone", "vg/gone-before gone ", "vg/kept  kept", "vg/kept-before kept "];
const SPLIT: [&str; 4] =
    ["new/gone  gone", "new/gone-before gone ", "vg/kept  kept", "vg/kept-before kept "];

#[test]
fn volumes_go_to_another_group_and_back_with_their_data() {
    let images = with_volumes();
    assert_eq!(contents(&images), WHOLE);
    let run = on(&images, "vgsplit", &["vg", "new", "d1", "d2"]).ok();
    assert_eq!(run.out, "  New volume group \"new\" successfully split from \"vg\"\n");
    assert_eq!(contents(&images), SPLIT);
    assert_eq!(values(&images, "pvs", "pv_name,vg_name", &[]), ["d0 vg", "d1 new", "d2 new"]);
    assert_eq!(values(&images, "vgs", "vg_name,vg_attr", &[]), ["new wz--n-", "vg wz--n-"]);
    let run = on(&images, "vgmerge", &["vg", "new"]).ok();
    assert_eq!(run.out, "  Volume group \"new\" successfully merged into \"vg\"\n");
    assert_eq!(contents(&images), WHOLE);
    // The hidden volumes of the snapshots had the same names, or not: they have different ones now.
    on(&images, "vgsplit", &["-n", "gone-before", "vg", "new"]).ok();
    assert_eq!(contents(&images), SPLIT);
    on(&images, "vgmerge", &["new", "vg"]).ok();
    assert_eq!(values(&images, "vgs", "vg_name,lv_count,snap_count", &[]), ["new 4 2"]);
    let daemon = serving(&images, &[]);
    live(&images, "lvremove", &["-y", "new/gone-before"]).ok();
    live(&images, "vgsplit", &["new", "vg", "d1"]).fails(3, &["no daemon serves"]);
    live(&images, "vgmerge", &["new", "vg"]).fails(3, &["no daemon serves"]);
    daemon.end();
}

#[test]
fn a_split_that_was_cut_off_is_completed() {
    let images = with_volumes();
    let old = fs::read(images.path("d0")).unwrap();
    on(&images, "vgsplit", &["vg", "new", "d1", "d2"]).ok();
    // As if the old group had not been written.
    fs::write(images.path("d0"), old).unwrap();
    assert_eq!(values(&images, "vgs", "vg_name,vg_missing_pv_count", &[]), ["new 0", "vg 0"]);
    assert_eq!(contents(&images), SPLIT);
    on(&images, "vgsplit", &["vg", "new", "d1", "d2"]).fails(5, &["\"d1\" not found"]);
    let unfinished = "still lists physical volumes that went to another group";
    let run = on(&images, "vgck", &["--updatemetadata", "vg"]).ok();
    assert!(run.err.contains(unfinished), "{}", run.err);
    let run = on(&images, "vgs", &[]).ok();
    assert!(!run.err.contains(unfinished), "{}", run.err);
    assert_eq!(contents(&images), SPLIT);
}

#[test]
fn groups_that_do_not_go_together_stay_as_they_are() {
    let images = with_volumes();
    let other = |args: &[&str]| lvm(&images, args);
    fs::write(images.path("e0"), vec![0; 40 << 20]).unwrap();
    fs::write(images.path("e1"), vec![0; 40 << 20]).unwrap();
    other(&["vgcreate", "-s", "1M", "same", "e0"]).ok();
    other(&["lvcreate", "--devices", "e0", "-n", "kept", "-l", "1", "same"]).ok();
    other(&["vgcreate", "-s", "4M", "coarse", "e1"]).ok();
    let bytes = || (images.bytes(), fs::read(images.path("e0")), fs::read(images.path("e1")));
    let state = || {
        let (disks, a, b) = bytes();
        (disks, a.unwrap(), b.unwrap())
    };
    let before = state();
    let on_all =
        |verb: &str, args: &[&str]| other(&[&[verb, "--devices", "d0,d1,d2,e0,e1"], args].concat());
    let cases: &[(i32, &str, &[&str], &str)] = &[
        (5, "vgsplit", &["vg", "new", "d1"], "two groups"),
        (5, "vgsplit", &["vg", "vg", "d0"], "Duplicate volume group name"),
        (5, "vgsplit", &["vg", "new", "d0", "d1", "d2"], "vgrename"),
        (5, "vgsplit", &["vg", "new", "e0"], "\"e0\" not found in volume group \"vg\""),
        (5, "vgsplit", &["vg", "b d", "d0"], "not a name for a volume group"),
        (5, "vgsplit", &["-n", "none", "vg", "new"], "\"vg/none\""),
        (5, "vgsplit", &["vg", "same", "d0"], "\"kept\" already exists"),
        (5, "vgsplit", &["vg", "coarse", "d0"], "extent sizes differ"),
        (5, "vgmerge", &["vg", "same"], "\"kept\" already exists"),
        (5, "vgmerge", &["vg", "coarse"], "extent sizes differ: 1.00 MiB and 4.00 MiB"),
        (5, "vgmerge", &["vg", "vg"], "Duplicate volume group name"),
        (5, "vgmerge", &["vg", "none"], "\"none\" not found"),
    ];
    for (code, verb, args, part) in cases {
        on_all(verb, args).fails(*code, &[part]);
        assert!(state() == before, "{verb} {args:?} changed a disk");
    }
}
