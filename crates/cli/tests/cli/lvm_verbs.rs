//! The verbs and spellings of LVM's users: lvresize, pvresize, tags, vgexport, vgck, abbreviations.

use std::fs::{self, OpenOptions};

use super::lvm::{group, lvm, on, place, read, values, write};
use super::lvm_held::edit;
use super::lvm_live::{live, rows, serving};
use super::support::{Images, MIB, Run};

/// Lets an image have another size.
fn set_len(images: &Images, name: &str, size: u64) {
    OpenOptions::new().write(true).open(images.path(name)).unwrap().set_len(size).unwrap();
}

/// Asserts that the parser of the command line has refused the command, with this text.
fn is_refused_by_the_parser(run: &Run, part: &str) {
    assert!(run.code == Some(3) && run.err.contains(part) && run.out.is_empty(), "{run:?}");
}

#[test]
fn lvresize_makes_a_volume_larger_or_smaller() {
    let images = group(2);
    on(&images, "lvcreate", &["-n", "data", "-L", "8M", "vg", "d0"]).ok();
    let size = || values(&images, "lvs", "lv_size", &["vg/data"]).remove(0);
    let cases: &[(&[&str], &str)] = &[
        (&["-L", "+4M", "vg/data"], "12.00m"),
        (&["-L", "9M", "vg/data"], "9.00m"),
        (&["-L", "-2M", "vg/data"], "7.00m"),
        (&["-l", "+50%FREE", "vg/data"], "43.00m"),
        (&["-l", "50%FREE", "vg/data"], "18.00m"),
        (&["-l", "-50%LV", "vg/data"], "9.00m"),
        (&["-l", "-33%LV", "vg/data"], "7.00m"),
        (&["vg/data", "d1"], "46.00m"),
        (&["--siz", "8M", "vg/data"], "8.00m"),
    ];
    for (args, expected) in cases {
        on(&images, "lvresize", &[&["-y"], *args].concat()).ok();
        assert_eq!(size(), *expected, "{args:?}");
    }
    let before = images.bytes();
    let refused: &[(i32, &str, &[&str], &str)] = &[
        (5, "lvresize", &["-L", "8M", "vg/data"], "matches existing size (8 extents)"),
        (5, "lvresize", &["-L", "4M", "vg/data"], "Do you really want to reduce vg/data?"),
        (5, "lvresize", &["-y", "-L", "-100M", "vg/data"], "at least one extent"),
        (3, "lvresize", &["vg/data"], "no size is given"),
        (3, "lvextend", &["vg/data"], "no size is given"),
        (3, "lvresize", &["-r", "-L", "+4M", "vg/data"], "resize2fs"),
        (3, "lvextend", &["-r", "-L", "+4M", "vg/data"], "xfs_growfs"),
        (3, "lvreduce", &["-y", "--resizefs", "-L", "-4M", "vg/data"], "btrfs filesystem resize"),
    ];
    for (code, verb, args, part) in refused {
        on(&images, verb, args).fails(*code, &[part]);
        assert!(images.bytes() == before, "{verb} {args:?} changed a disk");
    }
    // A file system is not cut.
    let superblock = (place(&images, "vg/data").0, place(&images, "vg/data").1 + 1024);
    let mut ext4 = [0; 1024];
    ext4[4..8].copy_from_slice(&8192_u32.to_le_bytes());
    ext4[0x38..0x3a].copy_from_slice(&0xef53_u16.to_le_bytes());
    ext4[0x4c..0x50].copy_from_slice(&1_u32.to_le_bytes());
    write(&images, &superblock, &ext4);
    on(&images, "lvresize", &["-y", "-L", "4M", "vg/data"]).fails(5, &["NOT reduced", "ext"]);
    on(&images, "lvresize", &["--force", "-L", "4M", "vg/data"]).ok();
    assert_eq!(size(), "4.00m");
}

#[test]
fn lvresize_of_a_served_volume_goes_both_ways() {
    let images = group(1);
    on(&images, "lvcreate", &["-n", "data", "-L", "8M", "vg"]).ok();
    let daemon = serving(&images, &[]);
    for (size, expected) in [("+4M", "12.00m"), ("-6M", "6.00m"), ("6.5M", "7.00m")] {
        live(&images, "lvresize", &["-y", "-L", size, "vg/data"]).ok();
        assert_eq!(rows(&images, "lvs", "lv_size"), [expected]);
    }
    daemon.end();
    assert_eq!(values(&images, "lvs", "lv_size", &[]), ["7.00m"]);
}

#[test]
fn pvresize_follows_the_size_of_a_disk() {
    let images = group(2);
    on(&images, "lvcreate", &["-n", "data", "-l", "10", "vg", "d0"]).ok();
    let extents = || values(&images, "pvs", "pv_pe_count,pv_free", &[]);
    assert_eq!(extents(), ["39 29.00m", "39 39.00m"]);
    set_len(&images, "d0", 64 * MIB);
    let run = on(&images, "pvresize", &["d0"]).ok();
    let said = "  Physical volume \"d0\" changed\n  1 physical volume(s) resized or updated / 0 physical volume(s) not resized\n";
    assert_eq!(run.out, said);
    assert_eq!(extents(), ["63 53.00m", "39 39.00m"]);
    on(&images, "lvextend", &["-l", "+50", "vg/data", "d0"]).ok();
    let before = images.bytes();
    let size = |size: &'static str| ["--setphysicalvolumesize", size, "d0"];
    for (code, args, part) in [
        (5, &["-y"][..], "cannot resize to 59 extents as later ones are allocated"),
        (5, &[], "cannot resize to 59 extents"),
    ] {
        let run = on(&images, "pvresize", &[args, &size("60M")].concat());
        run.fails(code, &[part, "pvmove"]);
    }
    on(&images, "pvresize", &size("62M")).fails(5, &["less than real size 64.00 MiB", "-y"]);
    on(&images, "pvresize", &size("65M")).fails(5, &["exceeds that of the device, 64.00 MiB"]);
    on(&images, "pvresize", &["-y", "--setphysicalvolumesize", "1M", "d1"]).fails(5, &["no room"]);
    on(&images, "pvresize", &["d7"]).fails(5, &["d7"]);
    assert!(images.bytes() == before);
    on(&images, "pvresize", &[&["-y"][..], &size("62M")].concat()).ok();
    assert_eq!(extents(), ["61 1.00m", "39 39.00m"]);
    // Of a physical volume in no group, the label has the size; it needs no --devices.
    let other = Images::new(1, 40 * MIB);
    lvm(&other, &["pvcreate", "d0"]).ok();
    lvm(&other, &["pvresize", "-y", "--setphysicalvolumesize", "33M", "d0"]).ok();
    assert_eq!(values(&other, "pvs", "pv_size", &[]), ["33.00m"]);
    lvm(&other, &["pvresize", "d0"]).ok();
    assert_eq!(values(&other, "pvs", "pv_size", &[]), ["40.00m"]);
    lvm(&other, &["pvcreate", "--metadatacopies", "2", "d0"]).ok();
    lvm(&other, &["pvresize", "d0"]).fails(5, &["metadata area at its end"]);
}

#[test]
fn pvresize_of_a_served_array_that_has_grown() {
    let images = Images::array(2, 80 * MIB, &["--level=1", "--assume-clean", "--size=40M"]);
    on(&images, "vgcreate", &["-s", "1M", "vg", "/dev/md0"]).ok();
    let daemon = serving(&images, &[]);
    let before = rows(&images, "pvs", "pv_pe_count");
    let run = live(&images, "pvresize", &["/dev/md0"]).ok();
    assert!(run.out.contains("as many extents as before"), "{run:?}");
    images.run(&["md", "grow", "--control", "control", "--size=max", "/dev/md0"], &[]).ok();
    let run = live(&images, "pvresize", &["/dev/md0"]).ok();
    assert!(run.out.starts_with("  Physical volume \"/dev/md0\" changed\n"), "{run:?}");
    let grown = rows(&images, "pvs", "pv_pe_count");
    let count = |rows: &[String]| rows[0].parse::<u32>().unwrap();
    assert!(count(&before) < 40 && count(&grown) > 70, "{before:?} {grown:?}");
    live(&images, "lvcreate", &["-n", "data", "-l", "100%FREE", "vg"]).ok();
    let size = ["--setphysicalvolumesize", "40M", "/dev/md0"];
    live(&images, "pvresize", &size).fails(5, &["as later ones are allocated"]);
    live(&images, "lvremove", &["-y", "vg/data"]).ok();
    live(&images, "pvresize", &size).fails(5, &["less than real size", "-y"]);
    live(&images, "pvresize", &[&["-y"][..], &size].concat()).ok();
    assert_eq!(rows(&images, "pvs", "pv_pe_count"), ["39"]);
    daemon.end();
}

#[test]
fn tags_and_allocatability_are_changed() {
    let images = group(2);
    on(&images, "lvcreate", &["-n", "data", "-L", "4M", "--addtag", "a", "vg"]).ok();
    on(&images, "lvcreate", &["-n", "other", "-L", "4M", "vg"]).ok();
    let run = on(&images, "lvchange", &["--addtag", "b", "--addtag", "@c", "vg/data"]).ok();
    assert_eq!(run.out, "  Logical volume vg/data changed.\n");
    on(&images, "lvchange", &["--deltag", "a", "--addtag", "d", "vg"]).ok();
    let tags = |verb, fields| values(&images, verb, fields, &[]);
    assert_eq!(tags("lvs", "lv_name,lv_tags"), ["data b,c,d", "other d"]);
    let run = on(&images, "vgchange", &["--addtag", "x", "--addtag", "y", "vg"]).ok();
    assert_eq!(run.out, "  Volume group \"vg\" successfully changed\n");
    // Tags are removed before others are added.
    on(&images, "vgchange", &["--addt", "x", "--delt", "y", "--deltag", "x"]).ok();
    assert_eq!(tags("vgs", "vg_tags"), ["x"]);
    let run = on(&images, "pvchange", &["--addtag", "p", "d0", "d1"]).ok();
    assert_eq!(run.out, "  Physical volume \"d0\" changed\n  Physical volume \"d1\" changed\n");
    on(&images, "pvchange", &["-xn", "d1"]).ok();
    assert_eq!(tags("pvs", "pv_tags,pv_attr"), ["p a--", "p u--"]);
    on(&images, "lvcreate", &["-l", "40", "vg"]).fails(5, &["extents are needed"]);
    let run = on(&images, "pvchange", &["--allocatable", "n", "d1"]).ok();
    assert!(run.out.contains("already unallocatable"), "{run:?}");
    let before = images.bytes();
    is_refused_by_the_parser(
        &on(&images, "lvchange", &["--addtag", "a b", "vg/data"]),
        "not a tag",
    );
    let cases: &[(i32, &str, &[&str], &str)] = &[
        (3, "lvchange", &["vg/data"], "nothing is to be changed"),
        (3, "vgchange", &["vg"], "nothing is to be changed"),
        (3, "pvchange", &["d0"], "nothing is to be changed"),
        (3, "lvchange", &["-an", "vg/data"], "only a daemon activates"),
        (5, "lvchange", &["--addtag", "a", "vg/none"], "\"vg/none\""),
        (5, "vgchange", &["--addtag", "a", "none"], "\"none\" not found"),
        (5, "pvchange", &["--addtag", "a", "d7"], "d7"),
    ];
    for (code, verb, args, part) in cases {
        on(&images, verb, args).fails(*code, &[part]);
        assert!(images.bytes() == before, "{verb} {args:?} changed a disk");
    }
}

#[test]
fn tags_of_a_served_group_are_changed() {
    let images = group(1);
    on(&images, "lvcreate", &["-n", "data", "-L", "4M", "vg"]).ok();
    let daemon = serving(&images, &[]);
    live(&images, "lvchange", &["--addtag", "l", "vg/data"]).ok();
    live(&images, "vgchange", &["--addtag", "v"]).ok();
    live(&images, "pvchange", &["--addtag", "p", "d0"]).ok();
    live(&images, "pvchange", &["-xn", "d0"]).ok();
    live(&images, "lvcreate", &["-L", "1M", "vg"]).fails(5, &["extents are needed"]);
    assert_eq!(rows(&images, "lvs", "lv_tags,vg_tags"), ["l v"]);
    daemon.end();
    assert_eq!(values(&images, "pvs", "pv_tags,pv_attr", &[]), ["p u--"]);
}

#[test]
fn an_exported_group_is_used_by_no_host_until_it_is_imported() {
    let images = group(2);
    on(&images, "lvcreate", &["-n", "data", "-L", "4M", "vg"]).ok();
    on(&images, "vgimport", &["vg"]).fails(5, &["Volume group \"vg\" is not exported"]);
    let run = on(&images, "vgexport", &["vg"]).ok();
    assert_eq!(run.out, "  Volume group \"vg\" successfully exported\n");
    assert_eq!(values(&images, "vgs", "vg_attr", &[]), ["wzx-n-"]);
    assert_eq!(values(&images, "pvs", "pv_attr", &[]), ["ax-", "ax-"]);
    let before = images.bytes();
    let is_exported = "Volume group vg is exported";
    on(&images, "lvcreate", &["-L", "1M", "vg"]).fails(5, &[is_exported, "vgimport"]);
    on(&images, "vgexport", &["vg"]).fails(5, &[is_exported]);
    on(&images, "vgchange", &["--addtag", "a", "vg"]).fails(5, &[is_exported]);
    assert!(images.bytes() == before);
    let run = on(&images, "vgimport", &["-a"]).ok();
    assert_eq!(run.out, "  Volume group \"vg\" successfully imported\n");
    assert_eq!(values(&images, "vgs", "vg_attr", &[]), ["wz--n-"]);
    on(&images, "lvcreate", &["-L", "1M", "vg"]).ok();
    let daemon = serving(&images, &[]);
    for verb in ["vgexport", "vgimport"] {
        live(&images, verb, &["vg"]).fails(3, &["no daemon serves", "ashlar stop"]);
        on(&images, verb, &["vg"]).fails(5, &["ashlar stop"]);
    }
    daemon.end();
}

#[test]
fn missing_physical_volumes_are_removed() {
    let images = group(3);
    on(&images, "lvcreate", &["-n", "kept", "-L", "4M", "vg", "d0"]).ok();
    on(&images, "lvcreate", &["-n", "lost", "-l", "30", "vg", "d1"]).ok();
    on(&images, "lvcreate", &["-s", "-n", "before", "-L", "2M", "vg/kept", "d1"]).ok();
    let said = on(&images, "vgreduce", &["--removemissing", "vg"]).ok().out;
    assert_eq!(said, "  Volume group \"vg\" is already consistent.\n");
    let with = |devices: &str, verb: &str, args: &[&str]| {
        lvm(&images, &[&[verb, "--devices", devices], args].concat())
    };
    // One that is not used.
    with("d0,d1", "lvcreate", &["-L", "1M", "vg"]).fails(5, &["are missing"]);
    let said = with("d0,d1", "vgreduce", &["--removemissing", "vg"]).ok().out;
    assert_eq!(said, "  Wrote out consistent volume group vg.\n");
    assert_eq!(
        with("d0,d1", "vgs", &["--noheadings", "-o", "pv_count,vg_attr"]).ok().out,
        "  2 wz--n-\n"
    );
    // One that is used.
    let before = images.bytes();
    let run = with("d0", "vgreduce", &["--removemissing", "vg"]);
    run.fails(5, &["vg/before", "vg/lost", "--force"]);
    is_refused_by_the_parser(&with("d0", "vgreduce", &["--force", "vg"]), "--removemissing");
    is_refused_by_the_parser(&with("d0", "vgreduce", &["--removemissing", "vg", "d0"]), "PV");
    assert!(images.bytes() == before);
    let said = with("d0", "vgreduce", &["--removemissing", "--force", "vg"]).ok().out;
    for name in ["before", "lost"] {
        assert!(
            said.contains(&format!("Logical volume \"{name}\" successfully removed")),
            "{said}"
        );
    }
    let shown = with("d0", "lvs", &["-a", "--noheadings", "-o", "lv_name,lv_attr"]).ok().out;
    assert_eq!(shown, "  kept -wi-------\n");
    with("d0", "lvcreate", &["-L", "1M", "vg"]).ok();
    // The removed ones are known as such when they are back.
    let run = with("d0,d1", "pvs", &[]).ok();
    assert!(run.err.contains("d1 has old metadata of VG vg"), "{run:?}");
}

#[test]
fn a_physical_volume_that_was_missing_is_taken_back() {
    let images = group(2);
    on(&images, "lvcreate", &["-n", "data", "-L", "4M", "vg", "d1"]).ok();
    on(&images, "pvchange", &["-xn", "d1"]).ok();
    write(&images, &place(&images, "vg/data"), b"data");
    // As LVM marks it when it changes the group without it.
    edit(&images, ["status = []\nflags = []", "status = []\nflags = [\"MISSING\"]"]);
    assert_eq!(values(&images, "pvs", "pv_name,pv_missing", &[]), ["d0 ", "d1 missing"]);
    let before = images.bytes();
    on(&images, "lvcreate", &["-L", "1M", "vg"]).fails(5, &["missing"]);
    let run = on(&images, "vgreduce", &["--removemissing", "vg"]);
    run.fails(5, &["vg/data", "vgextend --restoremissing"]);
    on(&images, "vgextend", &["--restoremissing", "vg", "d0"]).fails(5, &["d0 was not missing"]);
    let run = lvm(&images, &["vgextend", "--devices", "d1", "--restoremissing", "vg", "d1"]);
    run.fails(5, &["other physical volumes are missing"]);
    let run = lvm(&images, &["vgextend", "--restoremissing", "vg", "d1"]);
    run.fails(3, &["no daemon serves"]);
    assert!(images.bytes() == before);
    let run = on(&images, "vgextend", &["--restoremissing", "vg", "d1"]).ok();
    assert_eq!(run.out, "  Volume group \"vg\" successfully extended\n");
    assert_eq!(values(&images, "pvs", "pv_name,pv_missing", &[]), ["d0 ", "d1 "]);
    assert_eq!(read(&images, &place(&images, "vg/data"), 4), b"data");
    on(&images, "lvcreate", &["-L", "1M", "vg"]).ok();
}

#[test]
fn vgck_and_pvck_find_what_is_wrong() {
    let images = group(2);
    on(&images, "vgck", &[]).ok();
    on(&images, "vgck", &["vg"]).ok();
    on(&images, "vgck", &["none"]).fails(5, &["\"none\" not found"]);
    let run = lvm(&images, &["pvck", "d0", "d1"]).ok();
    let area = "  Found text metadata area: offset=4096, size=1044480\n";
    let of = |disk| format!("  Found label on {disk}, sector 1, type=LVM2 001\n{area}");
    assert_eq!(run.out, of("d0") + &of("d1"));
    let run = lvm(&images, &["pvck", "--dump", "headers", "d0"]).ok();
    for line in
        ["  pv_header.disk_locn[2].offset 4096\n", "  mda_header_1.raw_locn[0].offset 512\n"]
    {
        assert!(run.out.contains(line), "{run:?}");
    }
    let run = lvm(&images, &["pvck", "--dump", "metadata", "-f", "text", "d0"]).ok();
    assert!(run.out.ends_with(" # vgname vg seqno 1\n"), "{run:?}");
    assert!(fs::read_to_string(images.path("text")).unwrap().starts_with("vg {\nid = "));
    fs::write(images.path("plain"), vec![0; 8 << 20]).unwrap();
    lvm(&images, &["pvck", "plain"]).fails(5, &["No usable LVM label on plain"]);
    is_refused_by_the_parser(&lvm(&images, &["pvck", "--repair", "d0"]), "vgcfgrestore");

    lvm(&images, &["vgck", "--devices", "d0", "vg"]).fails(5, &["missing 1 physical volumes"]);
    // A copy that is older, as after a crash.
    let old = fs::read(images.path("d1")).unwrap();
    on(&images, "lvcreate", &["-n", "data", "-L", "4M", "vg", "d0"]).ok();
    fs::write(images.path("d1"), old).unwrap();
    let run = on(&images, "vgck", &["vg"]).ok();
    assert!(run.err.contains("d1 has older metadata of VG vg"), "{run:?}");
    on(&images, "vgck", &["--updatemetadata", "vg"]).ok();
    let run = on(&images, "vgck", &["vg"]).ok();
    assert!(run.err.is_empty(), "{run:?}");
    let text = |disk| lvm(&images, &["pvck", "--dump", "metadata", disk]).ok().out;
    let body = |disk| text(disk).split_once("---").unwrap().1.to_owned();
    assert_eq!(body("d0"), body("d1"));
    // A physical volume that was removed while it was missing.
    lvm(&images, &["vgreduce", "--devices", "d0", "--removemissing", "vg"]).ok();
    let run = on(&images, "vgck", &[]).ok();
    assert!(run.err.contains("d1 has old metadata"), "{run:?}");
    on(&images, "vgck", &["--updatemetadata", "vg"]).ok();
    assert_eq!(values(&images, "pvs", "pv_name,vg_name", &[]), ["d0 vg", "d1 "]);
    // A header that is damaged.
    write(&images, &("d0".to_owned(), 4100), &[0; 100]);
    on(&images, "vgck", &[]).fails(5, &["The metadata on d0 is damaged"]);
    lvm(&images, &["pvck", "d0"]).fails(5, &["The metadata on d0 is damaged"]);
}

#[test]
fn vgck_of_a_group_is_not_about_the_disks_of_others() {
    let images = Images::new(2, 40 * MIB);
    lvm(&images, &["vgcreate", "vg", "d0"]).ok();
    lvm(&images, &["vgcreate", "other", "--metadatacopies", "2", "d1"]).ok();
    write(&images, &("d1".to_owned(), 4100), &[0; 100]);
    on(&images, "vgck", &["vg"]).ok();
    on(&images, "vgck", &["other"]).fails(5, &["The metadata on d1 is damaged"]);
    on(&images, "vgck", &[]).fails(5, &["The metadata on d1 is damaged"]);
}

#[test]
fn a_served_group_is_checked_too() {
    let images = group(1);
    let daemon = serving(&images, &[]);
    live(&images, "vgck", &["vg"]).ok();
    live(&images, "vgck", &["none"]).fails(5, &["\"none\" not found"]);
    live(&images, "vgck", &["--updatemetadata", "vg"]).fails(3, &["no daemon serves"]);
    daemon.end();
}

#[test]
fn options_are_abbreviated_and_those_of_lvm_are_known() {
    let images = group(1);
    on(&images, "lvcreate", &["--siz", "4M", "--nam", "data", "vg"]).ok();
    on(&images, "lvextend", &["--ext", "+1", "vg/data"]).ok();
    let run = on(
        &images,
        "lvs",
        &["--nohead", "--sep", ":", "--align", "--unb", "-o", "lv_name,lv_size"],
    )
    .ok();
    assert_eq!(run.out, "  data:5.00m\n");
    let run = on(&images, "vgs", &["--binary", "-o", "extendable,exported,vg_attr"]).ok();
    assert_eq!(run.out, "  Extendable Exported Attr\n           1        0 wz--n-\n");
    for taken in [
        &["--config", "log/level=7 devices { use_devicesfile=0 }"][..],
        &["--driverloaded", "n", "--nolocking", "--noudevsync", "--nohints", "-d"],
        &["--devicesfile", "", "--foreign", "--readonly", "-P"],
    ] {
        on(&images, "lvs", taken).ok();
    }
    let before = images.bytes();
    for (refused, part) in [
        (&["--config", "backup/archive=0"][..], "-A n"),
        (&["--config", "devices/filter=[\"r|.*|\"]"], "--devices DISK"),
        (&["--config", "{"], "config"),
        (&["-t"], "--test is refused: ashlar has no test mode"),
        (&["--profile", "x"], "--profile is refused"),
        (&["--devicesfile", "x"], "--devices DISK"),
        (&["--de", "d0"], "--de may be "),
        (&["-aay"], "y or n"),
        (&["--nonsense"], "unexpected argument '--nonsense'"),
    ] {
        let args = [refused, &["--addtag", "x", "vg"]].concat();
        is_refused_by_the_parser(&on(&images, "vgchange", &args), part);
        assert!(images.bytes() == before, "{refused:?} changed a disk");
    }
}

#[test]
fn options_of_single_verbs_are_refused_with_what_to_use_instead() {
    let images = group(1);
    for (verb, args, part) in [
        ("pvs", &["-a"][..], "ashlar scan DISK"),
        ("vgs", &["--configreport", "pv"], "--configreport is refused"),
        ("pvchange", &["-u", "d0"], "pvcreate --uuid"),
        ("pvchange", &["--metadataignore", "y", "d0"], "pvcreate --metadatacopies"),
    ] {
        is_refused_by_the_parser(&on(&images, verb, args), part);
    }
    on(&images, "lvcreate", &["-n", "data", "-L", "4M", "vg"]).ok();
    let daemon = serving(&images, &[]);
    live(&images, "vgchange", &["-aln", "--sysinit", "vg"]).ok();
    assert_eq!(rows(&images, "lvs", "lv_active"), [""]);
    live(&images, "vgchange", &["-aey", "--monitor", "n", "vg"]).ok();
    assert_eq!(rows(&images, "lvs", "lv_active"), ["active"]);
    daemon.end();
}

#[test]
fn verbs_that_ashlar_does_not_have_are_refused_by_name() {
    let images = group(1);
    for (verb, part) in [
        ("lvmconfig", "ashlar serve --help"),
        ("lvmdump", "pvck --dump"),
        ("lvmdiskscan", "ashlar scan"),
        ("vgmknodes", "--mount"),
        ("vgimportclone", "UUIDs"),
        ("vgimportdevices", "--devices"),
        ("lvmdevices", "--devices"),
        ("fsadm", "resize2fs"),
        ("lvfrobnicate", "ashlar lvm --help"),
    ] {
        on(&images, verb, &["-a", "vg"]).fails(2, &[verb, part]);
    }
}
