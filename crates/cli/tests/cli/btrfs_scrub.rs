//! `ashlar btrfs scrub` on golden images of real file systems.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, FileTypeExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::btrfs_files::{golden, unpacked, with};
use super::control::RawConnection;
use super::run::run;
use super::support::{Run, ashlar_in, program};

/// A scrub command, with its records in the directory.
fn scrub(dir: &Path, devices: &[String], args: &[&str]) -> Run {
    let args = [&["btrfs", "scrub"], args, &["--status-dir", "status"]].concat();
    ashlar_in(dir, &with(&args, devices))
}

#[test]
fn a_scrub_in_the_background_is_asked_and_ended_and_goes_on() {
    let (dir, devices) = unpacked("raid1c3");
    let scrub = |args: &[&str]| scrub(dir.path(), &devices, args);
    scrub(&["cancel"]).fails(2, &["cancel failed", "not running"]);
    scrub(&["resume", "-B"]).fails(2, &["nothing to resume", "never scrubbed"]);
    assert!(scrub(&["status"]).ok().out.contains("no stats available"));

    let started = scrub(&["start", "--limit", "16K"]).ok().out;
    assert!(started.starts_with("scrub started on 0.img, fsid "), "{started}");
    let status = scrub(&["status"]).ok().out;
    assert!(status.contains("Status:           running"), "{status}");
    assert!(status.contains("(limit 16.00KiB/s for each device)"), "{status}");
    // It is a varlink service as the daemon is, which any client can ask.
    let sockets = fs::read_dir(dir.path().join("status")).unwrap();
    let socket = sockets.map(|entry| entry.unwrap().path());
    let socket = socket.into_iter().find(|path| path.to_str().unwrap().contains("scrub.control."));
    let mut raw = RawConnection::at(&socket.unwrap());
    let info = raw.call("org.varlink.service.GetInfo", json!({}));
    let name = "io.ashlar.Scrub";
    assert_eq!(info["parameters"]["interfaces"], json!(["org.varlink.service", name]));
    let described =
        raw.call("org.varlink.service.GetInterfaceDescription", json!({ "interface": name }));
    let text = described["parameters"]["description"].as_str().unwrap();
    assert!(text.contains("method Limit(bytes: int) -> ()"), "{text}");
    let wrong = raw.call("io.ashlar.Scrub.Limit", json!({ "bytes": "many" }));
    assert_eq!(wrong["error"], "org.varlink.service.InvalidParameter");
    let status = raw.call("io.ashlar.Scrub.Status", json!({}));
    assert_eq!(status["parameters"]["limit"], 16 << 10);
    // The devices are locked, and only one scrub may run.
    assert_eq!(scrub(&["start", "-B"]).code, Some(1));
    assert_eq!(scrub(&["start", "-B", "--readonly"]).code, Some(1));

    scrub(&["cancel"]).ok();
    let status = scrub(&["status"]).ok().out;
    assert!(status.contains("Status:           aborted"), "{status}");
    scrub(&["resume", "-B", "--readonly"]).fails(1, &["cannot resume", "without --readonly"]);
    let resumed = scrub(&["resume", "-B"]).ok().out;
    assert!(resumed.contains("Scrub resumed:"), "{resumed}");
    assert!(resumed.contains("no errors found"), "{resumed}");
    scrub(&["resume", "-B"]).fails(2, &["nothing to resume", "finished"]);

    // The counts of both runs add up to those of one run.
    let parts = scrub(&["status", "-R", "-d"]).ok().out;
    scrub(&["start", "-B"]).ok();
    let whole = scrub(&["status", "-R", "-d"]).ok().out;
    let counters = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with('\t')).map(str::to_owned).collect()
    };
    assert_eq!(counters(&parts), counters(&whole));
}

#[test]
fn only_its_user_can_end_a_scrub() {
    let (dir, devices) = unpacked("raid1c3");
    // The tests' own umask is that of all threads.
    let start = "umask 0; exec \"$0\" btrfs scrub start --limit 16K --status-dir status \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", start]).arg(program().get_program()).args(&devices);
    let started = shell.current_dir(dir.path()).output().unwrap();
    assert!(started.status.success(), "{started:?}");
    let files = fs::read_dir(dir.path().join("status")).unwrap();
    let mut sockets = files
        .map(|entry| entry.unwrap().metadata().unwrap())
        .filter(|metadata| metadata.file_type().is_socket());
    let mode = sockets.next().map(|socket| socket.permissions().mode() & 0o777);
    scrub(dir.path(), &devices, &["cancel"]).ok();
    assert_eq!((mode, sockets.next().is_none()), (Some(0o600), true));
}

#[test]
fn a_device_that_is_smaller_than_its_file_system_is_told() {
    let (dir, devices) = unpacked("single-16k");
    let image = File::options().write(true).open(dir.path().join(&devices[0])).unwrap();
    let size = image.metadata().unwrap().len() - 4096;
    image.set_len(size).unwrap();
    let told = format!("{} (id 1) has", devices[0]);
    for args in [&["start", "-B", "--readonly"][..], &["start", "-B"], &["start", "-B", "-d"]] {
        let run = scrub(dir.path(), &devices, args);
        assert_eq!(run.code, Some(3), "{run:?}");
        assert!(run.err.contains("ERROR: the device is too small") && run.err.contains(&told));
        let line = run.out.lines().find(|line| line.starts_with("Too small: ")).unwrap();
        assert!(line.contains(&told) && line.contains(&size.to_string()), "{line}");
    }
    let status = scrub(dir.path(), &devices, &["status"]).ok().out;
    assert!(status.contains("Too small: "), "{status}");
}

/// Where data of files begins that are not in the trees themselves. Addresses are places, as the image has one device and single
/// chunks from its beginning on.
fn data_of_files(dir: &Path, device: &str) -> BTreeSet<u64> {
    let tree = ashlar_in(dir, &["btrfs", "inspect", "tree", device]).ok().out;
    let number = |line: &str, before: &str| -> Option<u64> {
        line.trim_start().strip_prefix(before)?.split(' ').next()?.parse().ok()
    };
    let lines = tree.lines().zip(tree.lines().skip(1));
    let extents = lines.filter_map(|(line, next)| {
        let extent = number(line, "extent data disk byte ").filter(|at| *at > 0)?;
        Some(extent + number(next, "extent data offset ").unwrap())
    });
    extents.collect()
}

#[test]
fn lost_data_is_named_and_left_alone() {
    let (dir, devices) = unpacked("single-16k");
    let manifest = fs::read_to_string(golden("single-16k").join("manifest.txt")).unwrap();
    let files = manifest.lines().filter(|line| line.starts_with("f "));
    let paths: BTreeSet<&str> = files.filter_map(|line| line.split(' ').nth(4)).collect();
    // These have data in a tree, without a checksum, or none: whole ones, shared ones, ones with holes, compressed and
    // preallocated ones, and those of snapshots remain.
    let apart = |path: &&str| path.ends_with("/inline") || ["/unsummed", "/empty"].contains(path);
    let named: BTreeSet<&str> = paths.iter().copied().filter(|path| !apart(path)).collect();
    assert!(named.len() > 15, "{named:?}");

    let image = File::options().read(true).write(true).open(dir.path().join(&devices[0])).unwrap();
    for at in data_of_files(dir.path(), &devices[0]) {
        let mut byte = [0];
        image.read_exact_at(&mut byte, at + 100).unwrap();
        image.write_all_at(&[byte[0] ^ 1], at + 100).unwrap();
    }
    let spoilt = fs::read(dir.path().join(&devices[0])).unwrap();
    let run = scrub(dir.path(), &devices, &["start", "-B"]);
    assert_eq!(run.code, Some(3), "{run:?}");
    assert!(run.err.contains("uncorrectable"), "{run:?}");
    let status = scrub(dir.path(), &devices, &["status"]).ok().out;
    for text in [&run.out, &status] {
        let lines = text.lines().filter_map(|line| line.strip_prefix("  path "));
        let told: BTreeSet<&str> = lines.map(|line| line.split(" (").next().unwrap()).collect();
        assert_eq!(told, named, "{text}");
    }
    let get = ashlar_in(dir.path(), &["btrfs", "get", "/", "out", &devices[0]]);
    assert_eq!(get.code, Some(1), "{get:?}");
    let lines = get.err.lines().filter_map(|line| line.split_once("not extracted: "));
    let told: BTreeSet<&str> = lines.map(|(_, rest)| rest.split(": ").next().unwrap()).collect();
    assert_eq!(told, named, "{get:?}");
    assert!(fs::read(dir.path().join(&devices[0])).unwrap() == spoilt, "it was written");
}

#[test]
fn a_disk_that_was_made_into_something_else_is_not_made_into_what_it_was() {
    let (dir, devices) = unpacked("raid1c3");
    let image = dir.path().join(&devices[0]);
    let mut bytes = fs::read(&image).unwrap();
    bytes[64 << 10..68 << 10].fill(0);
    // Without another signature it counts as damage, and is repaired.
    fs::write(&image, &bytes).unwrap();
    let run = scrub(dir.path(), &devices, &["start", "-B"]).ok();
    assert!(run.out.contains("super=1") && run.err.contains("corrected"), "{run:?}");
    // The magic number of ext2, 3 and 4.
    bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
    fs::write(&image, &bytes).unwrap();
    let run = scrub(dir.path(), &devices, &["start", "-B"]);
    run.fails(1, &["not to be repaired", "its first btrfs superblock is gone", "ext2"]);
    assert!(fs::read(&image).unwrap() == bytes, "it was written");
}

/// All modes of readahead.
pub(crate) const MODES: [&str; 5] = ["none", "back", "forward", "forward-always", "scan"];

/// For the log of a program: what a scrub reads ahead.
pub(crate) const LOG_READAHEAD: (&str, &str) =
    ("ASHLAR_LOG", "ashlar_commands=debug,ashlar_daemon=debug");

/// For each scrub in a log: its mode, and how many tree blocks it read ahead.
pub(crate) fn read_ahead(log: &str) -> Vec<(String, u64)> {
    let field = |line: &str, name: &str| {
        let (_, rest) = line.split_once(&format!(" {name}=")).unwrap();
        rest.split(' ').next().unwrap().trim_matches('"').to_owned()
    };
    let lines = log.lines().filter(|line| line.contains("readahead of tree blocks"));
    lines.map(|line| (field(line, "mode"), field(line, "ahead").parse().unwrap())).collect()
}

#[test]
fn a_scrub_reads_ahead_in_the_mode_that_was_given_and_counts_the_same() {
    // Its extent tree has three leaves.
    let (dir, devices) = unpacked("single-4k");
    let scrub = |mode: &[&str]| {
        let args = ["btrfs", "scrub", "start", "-B", "-r", "-R", "--status-dir", "status"];
        let mut command = program();
        command.args(with(&[&args, mode].concat(), &devices)).current_dir(dir.path());
        command.env(LOG_READAHEAD.0, LOG_READAHEAD.1);
        let run = run(command).ok();
        let counters = run.out.lines().filter(|line| line.starts_with('\t'));
        let counters: Vec<String> = counters.map(str::to_owned).collect();
        let log = read_ahead(&run.err);
        assert!(counters.len() > 10 && log.len() == 1, "{run:?}");
        (counters, log[0].clone())
    };
    let (counters, default) = scrub(&[]);
    assert_eq!(default.0, "scan");
    let ahead = MODES.map(|mode| {
        let (counted, (used, ahead)) = scrub(&["--readahead", mode]);
        assert_eq!((counted, used.as_str()), (counters.clone(), mode));
        ahead
    });
    let [none, back, forward, always, scan] = ahead;
    assert!(none == 0 && back == 0 && 0 < forward && forward <= always && 0 < scan, "{ahead:?}");
    let run = self::scrub(dir.path(), &devices, &["start", "-B", "--readahead", "all"]);
    let listed = run.err.contains("[possible values: none, back, forward, forward-always, scan]");
    let is_one = run.err.matches("error:").count() == 1 && run.out.is_empty();
    assert!(run.code == Some(2) && listed && is_one, "{run:?}");
}
