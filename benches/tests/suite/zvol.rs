//! `ashlar-bench zvol`: its measurements and output, whatever times it measures.

use std::fs;

use serde_json::Value;

use super::bench;
use super::run::Run;

const QUICK: [&str; 8] =
    ["zvol", "--full", "--size", "16M", "--rounds", "1", "--volblocksize", "16K"];

/// Runs the smallest form; `None` without libzpool, with the reason printed, and a failure in CI.
fn quick(args: &[&str]) -> Option<Run> {
    let dir = tempfile::tempdir().unwrap();
    let at = ["--dir", dir.path().to_str().unwrap()];
    let run = bench(&[&QUICK[..], &at, args].concat());
    if run.err.contains("there is no libzpool") {
        assert!(std::env::var_os("CI").is_none(), "{run:?}");
        eprintln!("not tested: {}", run.err);
        return None;
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the files of the pool are removed");
    Some(run.ok())
}

#[test]
fn both_queues_are_measured_in_all_ways() {
    let Some(run) = quick(&["--json", "--mirror", "--set", "zfs_txg_timeout=2"]) else { return };
    let report: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(report["size_bytes"], 16 << 20);
    let volume = &report["volumes"][0];
    assert_eq!(volume["volblocksize_bytes"], 16 << 10);
    for (rows, is_synced) in
        [("writes", true), ("reads_from_memory", false), ("reads_from_disks", false)]
    {
        let rows = volume[rows].as_array().unwrap();
        let kinds: Vec<_> = rows
            .iter()
            .map(|row| (row["queue"].as_bool().unwrap(), row["bio_bytes"].as_u64().unwrap()))
            .collect();
        assert_eq!(kinds, [(false, 4096), (false, 1 << 20), (true, 4096), (true, 1 << 20)]);
        for row in rows {
            let (rate, seconds) =
                (row["megabytes_per_second"].as_f64().unwrap(), row["seconds"].as_f64().unwrap());
            assert!((rate * seconds * 1e6 / f64::from(16 << 20) - 1.0).abs() < 0.01, "{row}");
            assert_eq!(row["synced_seconds"].as_f64().is_some_and(|all| all >= seconds), is_synced);
        }
    }
    assert_eq!(volume["random"].as_array().unwrap().len(), 6);
    let segments = volume["segments"].as_array().unwrap();
    assert!(segments.iter().map(|row| row["segments"].as_u64().unwrap()).eq([1, 4, 16, 64, 256]));
    let ceiling = |until: &str| volume["ceiling"][until]["plain"].as_f64().unwrap();
    assert!(ceiling("answered") > ceiling("on_the_disks") && ceiling("on_the_disks") > 0.0);
    let checks = report["checks"].as_array().unwrap();
    assert_eq!(checks.len(), 12);
    for check in checks {
        let (measured, wanted) =
            (check["measured"].as_f64().unwrap(), check["wanted"].as_f64().unwrap());
        assert!(measured > 0.0, "{check}");
        assert_eq!(check["met"], measured >= wanted, "{check}");
    }
}

#[test]
fn the_tables_of_the_pull_request_stand_beside_our_own() {
    let Some(run) = quick(&["--streams", "2"]) else { return };
    for part in [
        "OpenZFS #12664",
        "write, 16 processors, 8 NVMe drives in 4 mirrors",
        "  queue off, bios of 4 KiB          862    95.00    62.80    62.80\n",
        "  with the queue on, bios of 4 KiB: 3.52 times the rate\n",
        ": 2 streams, volumes of 16M, medians of 1\n",
        "\nvolblocksize 16K, write\n",
        "\nvolblocksize 16K, read from the disks\n",
        "  256 segments  write ",
        "  a plain loop of dmu_write() ",
        "of libzpool's own rate\n",
    ] {
        assert!(run.out.contains(part), "no {part:?} in {}", run.out);
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    for (args, part) in [
        (&["--volblocksize", "3K"][..], "is not a power of two"),
        (&["--size", "20M"], "is not a multiple of 16M"),
        (&["--size", "16M", "--streams", "17"], "17 streams have not a MiB each"),
        (&["--set", "zfs_txg_timeout"], "is not NAME=VALUE"),
        (&["--mirror", "--disks", "a"], "mirrors are of two disks each"),
    ] {
        let run = bench(&[&["zvol"], args].concat());
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.err.contains(part), "{run:?}");
    }
    // The contents of a disk are not lost.
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    let mut bytes = vec![0; 64 << 20];
    // ext4's magic number.
    bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
    fs::write(&disk, &bytes).unwrap();
    bench(&["zvol", "--disks", disk.to_str().unwrap()]).fails(1, &["not empty"]);
    assert!(fs::read(&disk).unwrap() == bytes);
}
