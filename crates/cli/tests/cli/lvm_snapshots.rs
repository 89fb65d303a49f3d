//! Snapshots that fill while they are served: what users see of them.

use std::time::Duration;

use serde_json::Value;

use super::lvm::{group, on, values};
use super::lvm_live::{live, rows, serving};
use super::support::{Daemon, Images, MIB, Nbd, READ, until};

const PATIENCE: Duration = Duration::from_secs(30);

/// A group with the volume `vg/data` of 8 MiB, and a snapshot of it with 4 MiB.
fn with_snapshot() -> Images {
    let images = group(1);
    on(&images, "lvcreate", &["-n", "data", "-L", "8M", "vg"]).ok();
    on(&images, "lvcreate", &["-s", "-n", "snap", "-L", "4M", "-c", "8", "vg/data"]).ok();
    images
}

/// The lines of `ashlar status` about volumes.
fn status(daemon: &Daemon) -> Vec<String> {
    let run = daemon.client(&["status"]).ok();
    run.out.lines().filter(|line| line.contains(": lvm ")).map(str::to_owned).collect()
}

/// A volume in the JSON of `ashlar status`.
fn volume(daemon: &Daemon, alias: &str) -> Value {
    let run = daemon.client(&["status", "--json"]).ok();
    let status: Value = serde_json::from_str(&run.out).unwrap();
    let volumes = status["volumes"].as_array().unwrap();
    volumes.iter().find(|volume| volume["alias"] == alias).unwrap().clone()
}

/// Overwrites so many MiB of a volume.
fn overwrite(images: &Images, name: &str, mib: std::ops::Range<u64>, byte: u8) {
    let mut client = Nbd::open(&images.path("nbd"), name);
    for at in mib {
        client.write_at(at * MIB, &vec![byte; MIB as usize]);
    }
}

#[test]
fn the_use_of_a_snapshot_and_its_loss_are_seen_everywhere() {
    let images = with_snapshot();
    on(&images, "lvcreate", &["-s", "-n", "kept", "-L", "16M", "-c", "8", "vg/data"]).ok();
    let daemon = serving(&images, &[]);
    let of = |volume: Value| volume["snapshot"]["used_percent"].as_f64();
    assert_eq!(of(volume(&daemon, "vg/snap")), Some(0.0));
    overwrite(&images, "vg/data", 0..1, 1);
    // As `lvs` shows it.
    let percent = rows(&images, "lvs", "lv_name,data_percent");
    let shown = percent.iter().find_map(|row| row.strip_prefix("snap ")).unwrap();
    assert_eq!(shown, "25.39");
    assert_eq!(of(volume(&daemon, "vg/snap")), Some(25.39));
    let lines = status(&daemon);
    let line = "(vg/snap): lvm 8M, active, snapshot of vg/data, 25.39 % of 4M used";
    assert!(lines.iter().any(|found| found.ends_with(line)), "{lines:?}");
    assert!(lines.iter().any(|line| line.ends_with("(vg/data): lvm 8M, active")));

    // All of the origin is overwritten. The clients of the origin and of the other snapshot see nothing of it.
    let (mut snap, mut kept) = {
        let open = |name| Nbd::open(&images.path("nbd"), name);
        (open("vg/snap"), open("vg/kept"))
    };
    overwrite(&images, "vg/data", 0..8, 2);
    snap.request(READ, 0, 4096);
    assert_ne!(snap.reply(), 0);
    assert_eq!(kept.read_at(0, 4096), [0; 4096]);
    kept.write_at(0, &[3; 4096]);
    kept.flush();
    let mut data = Nbd::open(&images.path("nbd"), "vg/data");
    assert_eq!(data.read_at(MIB, 4096), [2; 4096]);
    let lines = status(&daemon);
    let line = "(vg/snap): lvm 8M, invalid, snapshot of vg/data, 100.00 % of 4M used";
    assert!(lines.iter().any(|found| found.ends_with(line)), "{lines:?}");
    let lost = volume(&daemon, "vg/snap");
    let expected = serde_json::json!({
        "origin": "vg/data", "state": "invalid",
        "used_percent": 100.0, "used_bytes": 4 * MIB, "size_bytes": 4 * MIB,
    });
    assert_eq!((&lost["state"], &lost["snapshot"]), (&"invalid".into(), &expected));
    assert_eq!(volume(&daemon, "vg/kept")["snapshot"]["state"], "active");
    assert_eq!(volume(&daemon, "vg/data")["snapshot"], Value::Null);
    let top = daemon.client(&["top", "--batch", "-n", "1", "-d", "0.1"]).ok();
    assert!(top.out.contains("\nvg/snap: invalid, snapshot of vg/data"), "{top:?}");
    assert!(top.out.contains("\nvg/kept: snapshot of vg/data, "), "{top:?}");
    let top = daemon.client(&["top", "--json", "-d", "0.1"]).ok();
    let top: Value = serde_json::from_str(&top.out).unwrap();
    let devices = top["devices"].as_array().unwrap();
    let snap_in_top = devices.iter().find(|device| device["alias"] == "vg/snap").unwrap();
    assert_eq!(snap_in_top["snapshot"], expected);
    let attributes = || {
        let all = rows(&images, "lvs", "lv_name,lv_attr,data_percent");
        all.into_iter().find(|row| row.starts_with("snap ")).unwrap()
    };
    drop((snap, kept, data));
    until(PATIENCE, "the loss is not seen", || attributes() == "snap swi-I-s--- 100.00");
    daemon.end();
    // Also when it was served anew.
    let daemon = serving(&images, &[]);
    assert_eq!(attributes(), "snap swi-I-s--- 100.00");
    live(&images, "lvremove", &["-f", "vg/snap"]).ok();
    live(&images, "lvcreate", &["-s", "-n", "snap", "-L", "4M", "vg/data"]).ok();
    assert!(attributes().starts_with("snap swi-a-s--- "), "{}", attributes());
    live(&images, "lvchange", &["-a", "n", "vg/snap"]).ok();
    assert!(attributes().starts_with("snap swi---s---"), "{}", attributes());
    daemon.end();
}

#[test]
fn a_merge_is_seen_as_a_state_of_the_origin() {
    let images = with_snapshot();
    let daemon = serving(&images, &[]);
    overwrite(&images, "vg/data", 0..2, 1);
    let open = Nbd::open(&images.path("nbd"), "vg/data");
    let run = live(&images, "lvconvert", &["--merge", "vg/snap"]).ok();
    assert!(run.out.contains("will occur on next activation"), "{run:?}");
    drop(open);
    daemon.end();
    // A read-only daemon merges nothing, and shows the result.
    let daemon = serving(&images, &["--read-only"]);
    let merged = volume(&daemon, "vg/data");
    assert_eq!(
        (&merged["state"], &merged["snapshot"]["state"]),
        (&"active".into(), &"merging".into())
    );
    let line = "(vg/data): lvm 8M, active, a snapshot is being merged into it, 50.39 % of 4M left";
    let lines = status(&daemon);
    assert!(lines.iter().any(|found| found.ends_with(line)), "{lines:?}");
    daemon.end();
}

/// Serves with a policy of extension.
fn extending(images: &Images, threshold: &str, percent: &str) -> Daemon {
    let options = ["--snapshot-autoextend-threshold", threshold];
    serving(images, &[&options[..], &["--snapshot-autoextend-percent", percent]].concat())
}

/// The sizes of a volume in MiB, and the number of its group's text.
fn size(images: &Images, name: &str) -> String {
    let all = rows(images, "lvs", "lv_name,lv_size,vg_seqno");
    let found = all.iter().find_map(|row| row.strip_prefix(&format!("{name} ")));
    found.unwrap().to_owned()
}

#[test]
fn a_snapshot_is_extended_when_it_fills_and_its_clients_notice_nothing() {
    let images = with_snapshot();
    let seqno: u32 = values(&images, "vgs", "vg_seqno", &[])[0].parse().unwrap();
    let daemon = extending(&images, "50", "25");
    let mut snap = Nbd::open(&images.path("nbd"), "vg/snap");
    overwrite(&images, "vg/data", 0..1, 1);
    assert_eq!(size(&images, "snap"), format!("4.00m {seqno}"), "a quarter is in use");
    // 5 MiB are needed for 2 MiB of data to be less than half, 6 for 3 MiB and so on, up to 9 for all.
    for (mib, expected) in [(2, "5.00m"), (3, "7.00m"), (4, "9.00m")] {
        overwrite(&images, "vg/data", mib - 1..mib, 1);
        until(PATIENCE, expected, || size(&images, "snap").starts_with(expected));
    }
    overwrite(&images, "vg/data", 4..8, 1);
    for at in 0..8 {
        assert_eq!(snap.read_at(at * MIB, 4096), [0; 4096]);
    }
    assert_eq!(volume(&daemon, "vg/snap")["state"], "active");
    assert_eq!(size(&images, "snap"), format!("9.00m {}", seqno + 3));
    drop(snap);
    let log = daemon.end();
    let extended = |to: &str| log.contains(&format!("snapshot vg/snap was extended to {to}"));
    assert!(["5.00 MiB", "7.00 MiB", "9.00 MiB"].into_iter().all(extended), "{log}");
    assert!(
        !log.contains("% full"),
        "a snapshot with room for all of its origin never fills: {log}"
    );
    // Each change was archived, and what is on the disk is what was served.
    let archive = std::fs::read_dir(images.path("state/ashlar/lvm/archive")).unwrap();
    assert!(archive.count() >= 3);
    let daemon = serving(&images, &[]);
    assert_eq!(Nbd::open(&images.path("nbd"), "vg/snap").read_at(7 * MIB, 4096), [0; 4096]);
    daemon.end();
}

#[test]
fn the_log_says_how_full_a_snapshot_is_and_that_its_group_has_no_room() {
    let images = with_snapshot();
    on(&images, "lvcreate", &["-n", "rest", "-l", "100%FREE", "vg"]).ok();
    let daemon = extending(&images, "70", "20");
    let mut data = Nbd::open(&images.path("nbd"), "vg/data");
    for at in 0..8 {
        data.write_at(at * MIB, &vec![1; MIB as usize]);
    }
    drop(data);
    let log = daemon.end_once("snapshot vg/snap is invalid, because its space is full");
    assert!(
        log.contains(
            "snapshot vg/snap cannot be extended: volume group \"vg\" has no free extents"
        ),
        "{log}"
    );
    assert_eq!(log.matches("cannot be extended").count(), 1, "{log}");

    // The daemon that finds a nearly full one says so at once, once.
    let images = with_snapshot();
    let daemon = serving(&images, &[]);
    overwrite(&images, "vg/data", 0..3, 1);
    let mut data = Nbd::open(&images.path("nbd"), "vg/data");
    data.write_at(3 * MIB, &vec![1; MIB as usize / 2]);
    drop(data);
    let log = daemon.end_once("snapshot vg/snap is 8");
    assert!(!log.contains("cannot be extended"), "{log}");
    let log = serving(&images, &[]).end_once("snapshot vg/snap is 87.89 % full");
    assert_eq!(log.matches("% full").count(), 1, "{log}");
}

#[test]
fn a_policy_that_lvm_would_not_have_is_refused() {
    let images = with_snapshot();
    std::fs::write(images.path("stack.toml"), "snapshot_autoextend_threshold = 49\n").unwrap();
    let run = images.run(&["serve", "--config", "stack.toml"], &images.refs());
    run.fails(2, &["snapshot_autoextend_threshold is a percentage from 50 to 100, not 49"]);
    let run = images.run(&["serve", "--snapshot-autoextend-percent", "0"], &images.refs());
    assert!(run.code == Some(2) && run.err.contains("--snapshot-autoextend-percent"), "{run:?}");
}
