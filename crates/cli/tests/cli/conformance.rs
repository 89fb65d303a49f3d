//! Common behaviour of all commands: help, usage errors, and errors that say what, where and why.

use std::fs::{self, File};

use super::support::{Images, MIB, ashlar, ashlar_in};

/// Every command, and whether it takes disks.
const COMMANDS: &[(&[&str], bool)] = &[
    (&["scan"], true),
    (&["serve"], true),
    (&["md", "create"], true),
    (&["md", "examine"], true),
    (&["md", "detail"], true),
    (&["md", "assemble"], true),
    (&["md", "query"], false),
    (&["md", "zero-superblock"], true),
    (&["md", "readonly"], false),
    (&["md", "readwrite"], false),
    (&["md", "monitor"], false),
    (&["status"], false),
    (&["jobs"], false),
    (&["jobs", "pause"], false),
    (&["jobs", "resume"], false),
    (&["jobs", "cancel"], false),
    (&["get"], false),
    (&["set"], false),
    (&["stop"], false),
    (&["trace"], false),
    (&["top"], false),
    (&["btrfs", "scrub", "start"], false),
    (&["btrfs", "scrub", "resume"], false),
    (&["btrfs", "scrub", "status"], false),
    (&["btrfs", "scrub", "cancel"], false),
    (&["btrfs", "scrub", "limit"], false),
    (&["btrfs", "inspect", "super"], true),
    (&["btrfs", "inspect", "tree"], true),
    (&["btrfs", "inspect", "chunks"], true),
    (&["btrfs", "inspect", "usage"], true),
    (&["btrfs", "inspect", "paths"], false),
    (&["btrfs", "ls"], false),
    (&["btrfs", "cat"], false),
    (&["btrfs", "get"], false),
    (&["btrfs", "restore"], false),
    (&["btrfs", "filesystem", "show"], true),
    (&["btrfs", "subvolume", "list"], true),
    (&["btrfs", "device", "stats"], true),
    (&["zpool", "create"], false),
    (&["zpool", "import"], false),
    (&["zpool", "export"], false),
    (&["zpool", "list"], false),
    (&["zpool", "get"], false),
    (&["zpool", "status"], false),
    (&["zpool", "scrub"], false),
    (&["zvol", "create"], false),
    (&["zvol", "list"], false),
    (&["zvol", "get"], false),
    (&["zvol", "set"], false),
    (&["zvol", "inherit"], false),
    (&["zvol", "rename"], false),
    (&["zvol", "destroy"], false),
    (&["zvol", "snapshot"], false),
    (&["zvol", "clone"], false),
    (&["zvol", "rollback"], false),
    (&["zvol", "promote"], false),
    (&["lvm", "pvs"], false),
    (&["lvm", "vgs"], false),
    (&["lvm", "lvs"], false),
    (&["lvm", "pvdisplay"], false),
    (&["lvm", "vgdisplay"], false),
    (&["lvm", "lvdisplay"], false),
    (&["lvm", "pvscan"], false),
    (&["lvm", "vgscan"], false),
    (&["lvm", "lvscan"], false),
    (&["lvm", "pvcreate"], false),
    (&["lvm", "pvremove"], false),
    (&["lvm", "pvmove"], false),
    (&["lvm", "vgcreate"], false),
    (&["lvm", "lvcreate"], false),
    (&["lvm", "lvremove"], false),
    (&["lvm", "lvextend"], false),
    (&["lvm", "lvconvert"], false),
    (&["lvm", "lvreduce"], false),
    (&["lvm", "lvrename"], false),
    (&["lvm", "vgrename"], false),
    (&["lvm", "vgextend"], false),
    (&["lvm", "vgreduce"], false),
    (&["lvm", "vgremove"], false),
    (&["lvm", "lvchange"], false),
    (&["lvm", "vgchange"], false),
    (&["lvm", "vgcfgbackup"], false),
    (&["lvm", "vgcfgrestore"], false),
];

/// The mandatory options of a command.
fn needed<'a>(command: &[&str]) -> &'a [&'a str] {
    match command {
        ["md", "create"] => &["--level=0", "--raid-devices=1"],
        _ => &[],
    }
}

fn with_disk<'a>(command: &[&'a str], disk: &'a str) -> Vec<&'a str> {
    [command, needed(command), &[disk]].concat()
}

fn disk_commands() -> impl Iterator<Item = &'static [&'static str]> {
    COMMANDS.iter().filter(|(_, disks)| *disks).map(|(command, _)| *command)
}

#[test]
fn every_command_has_help_with_examples() {
    let listed = ashlar(&["--help"]).ok().out;
    for (command, _) in COMMANDS {
        let run = ashlar(&[command, &["--help"][..]].concat()).ok();
        assert!(run.out.contains("Usage: ashlar") && run.out.contains("Examples:"), "{run:?}");
        let short = ashlar(&[command, &["-h"][..]].concat()).ok();
        assert!(short.out.contains("Usage: ashlar"), "{short:?}");
        // The list of commands above is complete.
        assert!(listed.contains(&format!("\n  {}", command[0])), "{command:?}");
    }
    let verbs = listed.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    for verb in verbs.lines().filter_map(|line| line.split_whitespace().next()) {
        let known = verb == "help" || COMMANDS.iter().any(|(command, _)| command[0] == verb);
        assert!(known, "{verb} is not tested here");
    }
}

#[test]
fn unknown_options_and_commands_are_usage_errors() {
    for (command, _) in COMMANDS {
        let run = ashlar(&[command, &["--no-such-option"][..]].concat());
        // LVM's exit code for the commands that are LVM's.
        let code = if command.first() == Some(&"lvm") { 3 } else { 2 };
        assert_eq!(run.code, Some(code), "{run:?}");
        assert!(run.err.contains("--no-such-option") && run.out.is_empty(), "{run:?}");
    }
    assert_eq!(ashlar(&["frobnicate"]).code, Some(2));
    assert_eq!(ashlar(&[]).code, Some(2));
    assert_eq!(ashlar(&["md"]).code, Some(2));
}

#[test]
fn the_version_is_the_packages() {
    let run = ashlar(&["--version"]).ok();
    assert_eq!(run.out, format!("ashlar {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_missing_disk_is_named() {
    for command in disk_commands() {
        let run = ashlar(&with_disk(command, "/nonexistent/disk.img"));
        run.fails(1, &["/nonexistent/disk.img", "No such file or directory"]);
    }
}

#[test]
fn what_is_no_disk_is_refused() {
    for command in disk_commands() {
        ashlar(&with_disk(command, "/dev/null")).fails(1, &["/dev/null", "neither a file nor"]);
        ashlar(&with_disk(command, "/proc")).fails(1, &["/proc", "neither a file nor"]);
    }
}

#[test]
fn the_same_disk_twice_is_refused() {
    let images = Images::new(1, MIB);
    fs::hard_link(images.path("d0"), images.path("again")).unwrap();
    for command in disk_commands() {
        let needed: &[&str] = match command {
            ["md", "create"] => &["--level=0", "--raid-devices=2"],
            _ => &[],
        };
        for other in ["d0", "./d0", "again"] {
            let args = [command, needed, &["d0", other]].concat();
            images.run(&args, &[]).fails(1, &["given twice", "is the same as d0"]);
        }
    }
}

#[test]
fn disks_of_any_size_are_looked_at_without_harm() {
    let dir = tempfile::tempdir().unwrap();
    for size in [0, 1, 511, 512, 513, 4095, 4096, 8192, 12_288, 65_536, 131_072, 4_000_001] {
        File::create(dir.path().join("d")).unwrap().set_len(size).unwrap();
        for command in disk_commands() {
            if command == ["serve"] && size >= 512 {
                // Served as a volume itself, see the tests of serving.
                continue;
            }
            let run = ashlar_in(dir.path(), &with_disk(command, "d"));
            match command {
                ["scan"] => assert_eq!(run.code, Some(0), "{size}: {run:?}"),
                // There is no superblock, which is what is wanted.
                ["md", "zero-superblock"] => drop(run.ok()),
                // Large enough for a member with a little data.
                ["md", "create"] if size > 1_000_000 => assert_eq!(run.code, Some(0), "{run:?}"),
                _ => drop(run.fails(1, &["d"])),
            }
            File::create(dir.path().join("d")).unwrap().set_len(size).unwrap();
        }
    }
}

#[test]
fn without_a_daemon_clients_say_so() {
    let dir = tempfile::tempdir().unwrap();
    for args in
        [&["status"][..], &["get", "a"], &["set", "a", "1"], &["stop"], &["md", "detail", "md0"]]
    {
        let args = [args, &["--control", "none.sock"]].concat();
        ashlar_in(dir.path(), &args).fails(1, &["cannot reach the daemon: none.sock", "hint: "]);
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = super::support::program()
        .arg("--help")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().code().is_some(), "killed by a signal");
}
