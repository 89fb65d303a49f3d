//! Snapshots that fill while they are served: what users see of them.

use serde_json::Value;

use super::lvm::{group, on};
use super::lvm_live::{live, rows, serving};
use super::support::{Daemon, Images, MIB, Nbd, READ};

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
    drop((snap, kept, data));
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
