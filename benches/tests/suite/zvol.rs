//! `ashlar-bench zvol`: its measurements and output, whatever times it measures.

use std::fs;
use std::process::Command;

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

/// Runs the smallest form with real clients; `None` if a program or libzpool is missing, with the reason printed, and a failure in CI.
fn clients(front: &str, program: &str) -> Option<Vec<Value>> {
    let dir = tempfile::tempdir().unwrap();
    let at = ["--dir", dir.path().to_str().unwrap()];
    let args = ["zvol", front, "--json", "--size", "16M", "--streams", "2", "--rounds", "1"];
    let found = Command::new(program).arg("--version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        assert!(std::env::var_os("CI").is_none(), "there is no {program}");
        eprintln!("not tested: there is no {program}");
        return None;
    }
    let run = bench(&[&args[..], &["--volblocksize", "16K"], &at].concat());
    if run.err.contains("there is no libzpool") {
        assert!(std::env::var_os("CI").is_none(), "{run:?}");
        eprintln!("not tested: {}", run.err);
        return None;
    }
    let run = run.ok();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "what was made is removed");
    let report: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(report["volumes"][0]["volblocksize_bytes"], 16 << 10);
    Some(report["volumes"][0]["rows"].as_array().unwrap().clone())
}

/// Client, way, queue, requests of the volume's driver, and bios that were merged into them.
fn counts(row: &Value) -> (&str, &str, bool, u64, u64) {
    let text = |name: &str| row[name].as_str().unwrap();
    let number = |name: &str| row[name].as_u64().unwrap();
    let seconds = row["seconds"].as_f64().unwrap();
    let rate = row["megabytes_per_second"].as_f64().unwrap();
    assert!((rate * seconds * 1e6 / f64::from(16 << 20) - 1.0).abs() < 0.01, "{row}");
    (
        text("client"),
        text("way"),
        row["queue"].as_bool().unwrap(),
        number("requests"),
        number("merged"),
    )
}

#[test]
fn clients_of_nbd_have_their_requests_merged_and_never_split() {
    let Some(rows) = clients("--nbd", "fio") else { return };
    assert_eq!(rows.len(), 12);
    for row in &rows {
        let (client, _, queue, requests, merged) = counts(row);
        let bios = match client.split(',').nth(1).unwrap().trim() {
            "4 KiB" => 4096,
            "64 KiB" => 256,
            "1 MiB" => 16,
            other => panic!("{other}"),
        };
        assert_eq!(requests + merged, bios, "{row}");
        assert!(queue || merged == 0, "{row}");
        // Of a client with 32 requests in flight some arrive together.
        assert!(!queue || bios < 4096 || merged > 0, "{row}");
    }
}

#[test]
fn dd_on_a_loop_device_has_its_pages_merged_by_either_queue() {
    if !rustix::process::geteuid().is_root() || fs::metadata("/dev/fuse").is_err() {
        return eprintln!("not tested: no root, or no /dev/fuse");
    }
    let Some(rows) = clients("--mounted", "losetup") else { return };
    let find = |client: &str, queue: bool| {
        let mut all = rows.iter().map(counts).filter(|row| row.1 == "write" && row.2 == queue);
        all.find(|row| row.0.starts_with(client)).map(|row| (row.3, row.4))
    };
    let Some(off) = find("dd, page cache, a bio for each page", false) else {
        // Without a loop device: what dd writes at a time is one request.
        assert_eq!(find("dd, the mounted file", true), Some((16, 0)));
        return eprintln!("not tested: there is no loop device");
    };
    assert_eq!(off, (4096, 0));
    let on = find("dd, page cache, a bio for each page", true).unwrap();
    assert!(on.0 + on.1 == 4096 && on.1 > 0, "{on:?}");
    // The loop device has merged them, and the volume's queue splits nothing.
    for client in ["dd, page cache, merged", "dd, O_DIRECT"] {
        let (off, on) = (find(client, false).unwrap(), find(client, true).unwrap());
        assert!(off.0 < 256 && off.1 == 0 && on.0 <= off.0 + 16, "{client}: {off:?} {on:?}");
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
        (&["--mounted", "--nbd"], "cannot be used with"),
        (&["--nbd", "--full"], "cannot be used with"),
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
