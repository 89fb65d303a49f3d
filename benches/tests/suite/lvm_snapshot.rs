//! `ashlar-bench lvm-snapshot`: its output, and that it does the expected I/Os, whatever times it measures.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::bench;

/// Pages of the file that `--quick` reads.
const PAGES: u64 = (64 << 20) / 4096;

fn run(args: &[&str]) -> (tempfile::TempDir, String) {
    // A comma would end the name of a disk in --devices.
    let dir = tempfile::Builder::new().prefix("a, b").tempdir().unwrap();
    let at = ["lvm-snapshot", "--quick", "--dir", dir.path().to_str().unwrap()];
    let out = bench(&[&at, args].concat()).ok().out;
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the image file is removed");
    (dir, out)
}

#[test]
fn a_snapshot_costs_an_io_for_each_chunk_unless_they_merge() {
    let (_dir, out) = run(&["--json", "--model", "custom"]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["bytes"], PAGES * 4096);
    assert_eq!(report["readahead"], 256 << 10);
    let disks = report["disks"].as_array().unwrap();
    assert_eq!(disks.len(), 2);
    for disk in disks {
        let rows = disk["rows"].as_array().unwrap();
        let row = |at: usize| {
            let number = |key: &str| rows[at][key].as_u64().unwrap();
            (
                rows[at]["source"].as_str().unwrap(),
                number("nomerges"),
                number("ios"),
                number("merges"),
            )
        };
        assert_eq!(row(0), ("snapshot", 2, PAGES, 0), "{disk}");
        let (source, nomerges, ios, merges) = row(1);
        assert_eq!((source, nomerges, ios + merges), ("snapshot", 0, PAGES), "{disk}");
        // Windows of 256 KiB have 64 pages.
        assert!(ios <= PAGES / 32, "{disk}");
        let (source, nomerges, ios, _) = row(2);
        assert_eq!((source, nomerges), ("volume", 0), "{disk}");
        assert!(ios <= PAGES / 64 + 2, "{disk}");
    }
}

#[test]
fn the_table_of_the_bug_report_stands_beside_our_own() {
    let (_dir, out) = run(&["--model", "custom:read=1us", "--readahead", "1M"]);
    for part in [
        "in windows of 1024 KiB",
        "\n  ashlar lvm pvcreate DISK\n  ashlar lvm vgcreate ",
        " --name seclv -l 80%FREE secvol\n",
        " --snapshot secvol/seclv --name tmp_backup1 --extents 90%FREE --chunksize 4k\n",
        "  snapshot       nomerges 2    42.693 s",
        "  24.1 times as long without merging",
        "the image file as custom:read=1us\n",
        "  plain volume   nomerges 0 ",
        "16384 I/Os         0 merges",
        "wanted of the model: 20 times",
    ] {
        assert!(out.contains(part), "no {part:?} in {out}");
    }
}

#[test]
fn as_root_the_file_is_read_from_a_mounted_file_system() {
    if !rustix::process::geteuid().is_root() {
        let run = bench(&["lvm-snapshot", "--mounted"]);
        run.fails(2, &["takes root", "without --mounted"]);
        return;
    }
    for needed in ["/dev/fuse", "/dev/loop-control"] {
        if !Path::new(needed).exists() {
            return eprintln!("not tested: there is no {needed}");
        }
    }
    let (_dir, out) = run(&["--mounted", "--json", "--model", "custom"]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["mounted"], true);
    assert_eq!(report["readahead"], 4 << 20);
    for disk in report["disks"].as_array().unwrap() {
        let number = |at: usize, key: &str| disk["rows"][at][key].as_u64().unwrap();
        // The file system's own reads come on top.
        assert!(number(0, "ios") >= PAGES && number(0, "merges") == 0, "{disk}");
        assert!(number(1, "ios") <= PAGES / 16 && number(1, "merges") > PAGES / 2, "{disk}");
        assert!(number(2, "ios") <= PAGES / 16, "{disk}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let quick = |args: &[&str]| bench(&[&["lvm-snapshot", "--quick"], args].concat());
    let missing = quick(&["--dir", "/nonexistent/dir"]);
    missing.fails(1, &["cannot make the image file: /nonexistent/dir/ashlar-bench-"]);
    for (args, part) in [
        (["--readahead", "3K"], "is not 4K to 1024M"),
        (["--readahead", "2G"], "is not 4K to 1024M"),
        (["--model", "tape"], "no device model `tape`"),
    ] {
        let run = quick(&args);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.err.contains(part), "{run:?}");
    }
}
