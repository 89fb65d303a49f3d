//! Disks that something else than ashlar writes to: legs of firmware RAIDs and DRBD, devices of bcache and VMFS.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;

use super::lvm::{group, on, values};
use super::lvm_live::serving;
use super::run::Run;
use super::support::{Images, MIB, Nbd, in_one_line, program, run};

const SIZE: u64 = 40 * MIB;
/// The anchor of DDF, and of Intel's metadata, on a disk of that size; DRBD's last block.
const DDF: (u64, &[u8]) = (SIZE - 512, b"\xde\x11\xde\x11");
const INTEL: (u64, &[u8]) = (SIZE - 1024, b"Intel Raid ISM Cfg Sig. 1.1.00\0\0");
const DRBD: (u64, &[u8]) = (SIZE - 4096 + 60, b"\x83\x74\x02\x6b");
const VMFS: (u64, &[u8]) = (MIB, b"\x0d\xd0\x01\xc0");

fn put(images: &Images, disk: &str, (at, bytes): (u64, &[u8])) {
    let file = OpenOptions::new().write(true).open(images.path(disk)).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// A partition of 8 MiB at 8 MiB.
fn partition(images: &Images, disk: &str) {
    let entry = [0, 0, 0, 0, 0x83, 0, 0, 0, 0, 0x40, 0, 0, 0, 0x40, 0, 0];
    put(images, disk, (446, &entry));
    put(images, disk, (510, &[0x55, 0xaa]));
}

/// A start that is to be refused; a daemon that serves nevertheless ends after a while.
fn serve(images: &Images, args: &[&str]) -> Run {
    let mut command = Command::new("timeout");
    command.arg("10").arg(program().get_program()).args(["serve", "--nbd", "unix:nbd"]).args(args);
    command.args(["--control", "control"]).args(&images.names).current_dir(images.dir.path());
    run(command)
}

#[test]
fn a_leg_of_a_mirror_is_named_and_not_served_for_writing_unasked() {
    let cases = [
        (DDF, "is a member of a firmware RAID (DDF; ddf_raid_member at 0x27ffe00)"),
        (INTEL, "is a member of a firmware RAID (Intel's, IMSM; isw_raid_member at 0x27ffc00)"),
        (DRBD, "is a backing device of DRBD (drbd at 0x27ff03c)"),
        (VMFS, "is a device of VMFS (VMFS_volume_member at 0x100000)"),
    ];
    for (sign, told) in cases {
        let images = Images::new(2, SIZE);
        for disk in ["d0", "d1"] {
            put(&images, disk, sign);
            partition(&images, disk);
        }
        let before = images.bytes();
        let scan = images.run(&["scan"], &images.refs()).ok();
        assert_eq!(in_one_line(&scan.out).matches(told).count(), 2, "{scan:?}");
        let name =
            told.split(&['(', ' '][..]).find(|word| word.contains("_member") || *word == "drbd");
        let wipe = format!("wipefs -a -t {}", name.unwrap());
        let parts =
            [&format!("cannot write to: d0: it {told}")[..], "--read-only", "--force", &wipe];
        let refused = serve(&images, &[]).fails(1, &parts);
        assert_eq!(refused.err.matches("d0").count(), 1, "one message: {refused:?}");
        assert!(images.bytes() == before);

        let daemon = serving(&images, &["--read-only"]);
        let mut data = Nbd::open(&images.path("nbd"), "d0p1");
        assert_eq!(data.read_at(0, 512), [0; 512]);
        data.write(0, &[2; 512]);
        assert_ne!(data.reply(), 0);
        drop(data);
        assert!(daemon.end().contains(told));
        assert!(images.bytes() == before);

        let daemon = serving(&images, &["--force"]);
        Nbd::open(&images.path("nbd"), "d0p1").write_at(0, &[2; 512]);
        assert!(daemon.end().contains("because of ashlar serve --force"));
    }
}

#[test]
fn a_volume_that_is_a_leg_is_left_out_and_its_neighbours_are_served() {
    let images = group(1);
    on(&images, "lvcreate", &["-n", "leg", "-L", "8M", "vg"]).ok();
    // One MiB in front.
    put(&images, "d0", (9 * MIB - 4096 + 60, DRBD.1));
    serve(&images, &[]).fails(1, &["cannot write to: vg/leg: it is a backing device of DRBD"]);
    on(&images, "lvcreate", &["-n", "data", "-L", "8M", "vg"]).ok();
    let daemon = serving(&images, &[]);
    assert_eq!(super::lvm_live::exports(&images), ["vg/data"]);
    assert!(daemon.end().contains("is not used: it is a backing device of DRBD"));
}

#[test]
fn a_group_on_a_leg_is_read_and_not_changed() {
    for in_a_partition in [false, true] {
        let images = Images::new(1, SIZE);
        let disk = if in_a_partition { "d0p1" } else { "d0" };
        if in_a_partition {
            partition(&images, "d0");
        }
        on(&images, "vgcreate", &["-s", "1M", "vg", disk]).ok();
        on(&images, "lvcreate", &["-n", "data", "-L", "2M", "vg"]).ok();
        put(&images, "d0", INTEL);
        let before = images.bytes();
        assert_eq!(values(&images, "lvs", "lv_name", &[]), ["data"]);
        let refused = on(&images, "lvcreate", &["-n", "new", "-L", "1M", "vg"]);
        let told = "is a member of a firmware RAID (Intel's, IMSM; isw_raid_member at 0x27ffc00)";
        refused.fails(5, &[told]);
        serve(&images, &[]).fails(1, &[told]);
        assert!(images.bytes() == before);
    }
}

#[test]
fn commands_that_make_something_of_a_disk_name_drbd_on_it() {
    let images = Images::new(1, SIZE);
    put(&images, "d0", DRBD);
    let before = fs::read(images.path("d0")).unwrap();
    let told = "drbd member at 0x27ff03c";
    on(&images, "pvcreate", &["d0"]).fails(5, &[told, "--force"]);
    images.run(&["md", "create", "-n1", "--force", "-l1", "x"], &["d0"]);
    assert!(fs::read(images.path("d0")).unwrap() == before);
    on(&images, "pvcreate", &["-f", "d0"]).ok();
    assert_eq!(images.run(&["scan"], &["d0"]).ok().out.matches("drbd").count(), 0);
}
