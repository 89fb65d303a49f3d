//! Disks with old contents: a command that takes one over leaves none of its old signatures, and a disk with two owners
//! is not served.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::process::Command;

use super::support::{Daemon, Images, MIB};
use super::zvol::has_libzpool;

/// The types of the signatures that `wipefs(8)` finds, each once.
fn wipefs(images: &Images, name: &str) -> Vec<String> {
    let output = Command::new("wipefs").args(["-n", "-p"]).arg(images.path(name)).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    let mut types: Vec<String> =
        rows.filter_map(|row| row.split(',').nth(3)).map(str::to_owned).collect();
    types.sort_unstable();
    types.dedup();
    types
}

fn write(images: &Images, name: &str, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(images.path(name)).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

fn tool(name: &str, args: &[&str], images: &Images, disk: &str) {
    let output = Command::new(name).args(args).arg(images.path(disk)).output().unwrap();
    assert!(output.status.success(), "{name}: {output:?}");
}

/// The size of the disks.
const SIZE: u64 = 96 * MIB;

/// Writes signatures that can coexist to disk `d0`, in an order in which later ones keep the earlier ones.
fn litter(images: &Images) {
    tool("sgdisk", &["-o", "-n", "1:4096:8191"], images, "d0");
    tool("mkswap", &["-q"], images, "d0");
    // A superblock of version 0.90, with only the fields that are checked.
    let mut old = [0; 256];
    old[..4].copy_from_slice(&0xa92b_4efc_u32.to_le_bytes());
    old[8] = 90;
    write(images, "d0", SIZE / 65536 * 65536 - 65536, &old);
    write(images, "d0", 4096, &old[..4]);
    for at in [64 << 10, 64 << 20] {
        write(images, "d0", at + 64, b"_BHRfS_M");
    }
    write(images, "d0", 3 * 512, b"LABELONE\x03");
    write(images, "d0", 3 * 512 + 24, b"LVM2 001");
    write(images, "d0", 0, b"XFSB");
    write(images, "d0", 0x438, &[0x53, 0xef]);
    write(images, "d0", 0x4000, b"SKUL\xba\xbe");
    // Uberblocks of each label of ZFS.
    let end = SIZE / (256 << 10) * (256 << 10);
    for label in [0, 256 << 10, end - (512 << 10), end - (256 << 10)] {
        for slot in [0, 5, 127] {
            write(images, "d0", label + (128 << 10) + (slot << 10), &0xba_b10c_u64.to_le_bytes());
        }
    }
}

/// Whether the second copy of btrfs's superblock, which wipefs does not know, is there.
fn has_btrfs_copy(images: &Images) -> bool {
    let mut magic = [0; 8];
    let file = OpenOptions::new().read(true).open(images.path("d0")).unwrap();
    file.read_exact_at(&mut magic, (64 << 20) + 64).unwrap();
    &magic == b"_BHRfS_M"
}

/// A disk full of signatures, checked before anything takes it over.
fn littered() -> Images {
    let images = Images::new(1, SIZE);
    litter(&images);
    let found = wipefs(&images, "d0");
    for name in ["LVM2_member", "gpt", "linux_raid_member", "swap", "zfs_member"] {
        assert!(found.iter().any(|found| found == name), "no {name} among {found:?}");
    }
    assert!(has_btrfs_copy(&images));
    images
}

#[test]
fn a_new_array_leaves_nothing_of_what_was_on_its_members() {
    for version in ["1.0", "1.1", "1.2"] {
        let images = littered();
        if version == "1.0" {
            let held = images.bytes();
            // A refused command changes nothing, with or without --force.
            let create = ["md", "create", "-l1", "-n1"];
            images.run(&create, &["d0"]).fails(1, &["--force"]);
            images.run(&[&create[..], &["-fz1T"]].concat(), &["d0"]).fails(1, &["has room"]);
            assert!(held == images.bytes(), "something was written");
        }
        images.run(&["md", "create", "-f", "-l1", "-n1", "-e", version], &["d0"]).ok();
        assert_eq!(wipefs(&images, "d0"), ["linux_raid_member"], "{version}");
        assert!(!has_btrfs_copy(&images));
    }
}

#[test]
fn a_new_physical_volume_leaves_nothing_of_what_was_on_its_disk() {
    let images = littered();
    // A member of an array is refused, unless its superblock is gone.
    tool("mdadm", &["--zero-superblock"], &images, "d0");
    let held = images.bytes();
    let create = ["lvm", "pvcreate", "-ff", "-y"];
    images.run(&[&create[..], &["--metadatasize", "1T"]].concat(), &["d0"]).fails(5, &["d0"]);
    assert!(held == images.bytes(), "something was written");
    images.run(&create, &["d0"]).ok();
    assert_eq!(wipefs(&images, "d0"), ["LVM2_member"]);
    assert!(!has_btrfs_copy(&images));
}

#[test]
fn a_new_pool_leaves_nothing_of_what_was_on_its_disks() {
    if !has_libzpool("taking over") {
        return;
    }
    let images = littered();
    let held = images.bytes();
    images.run(&["zpool", "create", "tank"], &["d0"]).fails(1, &["--force"]);
    images.run(&["zpool", "create", "-f", "-o", "nosuch=1", "tank"], &["d0"]).fails(1, &["nosuch"]);
    images.run(&["zpool", "create", "-fn", "tank"], &["d0"]).ok();
    assert!(held == images.bytes(), "something was written");
    images.run(&["zpool", "create", "-f", "tank"], &["d0"]).ok();
    assert_eq!(wipefs(&images, "d0"), ["zfs_member"]);
    assert!(!has_btrfs_copy(&images));
}

#[test]
fn a_disk_that_is_forced_into_an_array_loses_what_was_on_it() {
    let images = littered();
    let array = Images::array(2, 32 * MIB, &["-l1", "--assume-clean"]);
    let daemon = array.serve(&[]);
    let disk = images.path("d0");
    let md =
        |args: &[&str]| daemon.client(&[&["md"], args, &["md0", disk.to_str().unwrap()]].concat());
    let held = images.bytes();
    md(&["add"]).fails(1, &["--force"]);
    assert!(held == images.bytes(), "something was written");
    md(&["add", "--force"]).ok();
    daemon.end();
    assert_eq!(wipefs(&images, "d0"), ["linux_raid_member"]);
    assert!(!has_btrfs_copy(&images));
}

#[test]
fn a_pool_made_of_the_members_of_an_array_is_served_and_the_array_is_gone() {
    if !has_libzpool("taking over members") {
        return;
    }
    let images = Images::array(2, 256 * MIB, &["-l1"]);
    images.run(&["zpool", "create", "tank", "mirror"], &images.refs()).fails(1, &["--force"]);
    images.run(&["zpool", "create", "-f", "tank", "mirror"], &images.refs()).ok();
    let daemon = images.serve(&["-R"]);
    assert!(daemon.greeting.starts_with("tank: zpool of 2 devices"), "{}", daemon.greeting);
    daemon.end();
}

#[test]
fn disks_with_two_owners_are_not_written_to_until_one_of_them_is_gone() {
    if !has_libzpool("two owners") {
        return;
    }
    let images = Images::array(2, 96 * MIB, &["-l1", "--assume-clean"]);
    let superblocks: Vec<Vec<u8>> =
        images.bytes().iter().map(|bytes| bytes[4096..8192].to_vec()).collect();
    images.run(&["zpool", "create", "-f", "tank", "mirror"], &images.refs()).ok();
    for (name, superblock) in images.names.iter().zip(&superblocks) {
        write(&images, name, 4096, superblock);
    }
    let held = images.bytes();
    let owners = ["two owners", "the md array 0 (raid1", "the ZFS pool tank ("];
    let ways = ["serve --read-only", "wipefs -a -t zfs_member", "serve --whole"];
    let parts = [&owners[..], &ways].concat();
    images.run(&["serve", "--control", "control"], &images.refs()).fails(1, &parts);
    images.run(&["zvol", "create", "-V8M", "tank/v", "--devices", "d0,d1"], &[]).fails(1, &parts);
    let daemon = Daemon::start(images.dir.path(), &["-I"]);
    daemon.client(&["md", "incremental", "d0"]).fails(1, &parts);
    daemon.end();
    let daemon = images.serve(&["--read-only"]);
    assert!(daemon.greeting.starts_with("md0: raid1"), "{}", daemon.greeting);
    assert!(daemon.end().contains("two owners"));
    assert!(held == images.bytes(), "something was written");
    for disk in images.refs() {
        tool("wipefs", &["-q", "-a", "-t", "linux_raid_member"], &images, disk);
    }
    let daemon = images.serve(&[]);
    assert!(daemon.greeting.starts_with("tank: zpool of 2 devices"), "{}", daemon.greeting);
    daemon.end();
}
