//! Our reading of golden pools equals that of `zdb -lu`: as recorded when they were made, and with today's zdb.

use std::fmt::Write;
use std::io::ErrorKind;
use std::process::Command;

use ashlar_zfs::ondisk::config::{Health, ImportRefusal};
use ashlar_zfs::ondisk::label::{DeviceLabels, PoolState};
use ashlar_zfs::ondisk::layout::{CHECKSUM_BYTES, LABELS, PHYS_BYTES, PHYS_OFFSET, label_offset};
use ashlar_zfs::ondisk::nvlist::{NvList, Value};
use ashlar_zfs::ondisk::vdev::VdevKind;

use crate::ondisk::support::{found, golden, images, labels, names};

/// A list in `zdb`'s format.
fn printed(list: &NvList, indent: usize, out: &mut String) {
    for (name, value) in list.pairs() {
        let space = " ".repeat(indent);
        match value {
            Value::Flag => writeln!(out, "{space}{name}").expect("memory takes all"),
            Value::Number(number) => {
                writeln!(out, "{space}{name}: {number}").expect("memory takes all")
            }
            Value::Text(text) => {
                writeln!(out, "{space}{name}: '{text}'").expect("memory takes all")
            }
            Value::Numbers(numbers) => {
                for (n, number) in numbers.iter().enumerate() {
                    writeln!(out, "{space}{name}[{n}]: {number}").expect("memory takes all");
                }
            }
            Value::List(list) => {
                writeln!(out, "{space}{name}:").expect("memory takes all");
                printed(list, indent + 4, out);
            }
            Value::Lists(lists) => {
                for (n, list) in lists.iter().enumerate() {
                    writeln!(out, "{space}{name}[{n}]:").expect("memory takes all");
                    printed(list, indent + 4, out);
                }
            }
            Value::Raw(raw) => panic!("{name} is of type {}, which labels do not have", raw.kind),
        }
    }
}

/// The output of `zdb -lu` for a device: the first label as text, which labels are the same, and
/// its uberblocks: slot, transaction group, time.
#[derive(PartialEq, Eq, Debug)]
struct ZdbOutput {
    label: String,
    same: Vec<usize>,
    uberblocks: Vec<(usize, u64, u64)>,
}

impl ZdbOutput {
    fn parse(text: &str) -> Self {
        let mut told = Self { label: String::new(), same: Vec::new(), uberblocks: Vec::new() };
        let mut lines = text.lines().skip_while(|line| !line.starts_with("LABEL 0")).skip(2);
        for line in lines.by_ref() {
            if let Some(same) = line.strip_prefix("    labels = ") {
                let numbers =
                    same.split_whitespace().map(|number| number.parse().expect("a number"));
                told.same = numbers.collect();
                break;
            }
            writeln!(told.label, "{line}").expect("memory takes all");
        }
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |word: &str| word.parse().expect("a number");
            match (words.as_slice(), told.uberblocks.last_mut()) {
                ([slot], _) if slot.starts_with("Uberblock[") => {
                    let slot = slot.trim_start_matches("Uberblock[").trim_end_matches(']');
                    told.uberblocks.push((slot.parse().expect("a slot"), 0, 0));
                }
                (["txg", "=", txg], Some(last)) => last.1 = number(txg),
                (["timestamp", "=", time, ..], Some(last)) => last.2 = number(time),
                _ => {}
            }
        }
        // The template of a new label is not an uberblock and has no checksum, which `zdb` does not check.
        told.uberblocks.retain(|(_, txg, _)| *txg != 0);
        told
    }
}

/// Checks that our reading of a device equals zdb's.
fn compare(device: &DeviceLabels, told: &ZdbOutput, name: &str) {
    assert_eq!(device.problems(), [""; 0], "{name}");
    for index in 0..LABELS {
        assert_eq!(
            told.same.contains(&index),
            device.copies[index].label == device.copies[0].label
        );
    }
    let label = device.label().unwrap_or_else(|| panic!("{name}: no label"));
    let mut text = String::new();
    printed(&label.config, 4, &mut text);
    assert_eq!(text, told.label, "{name}");
    let best = told.uberblocks.iter().max_by_key(|(_, txg, time)| (*txg, *time));
    let ours = device.uberblock().map(|best| (best.slot, best.txg, best.timestamp));
    assert_eq!(ours.as_ref(), best, "{name}");
    let ring = &device.copies[0].ring;
    assert_eq!((ring.good, ring.damaged), (told.uberblocks.len(), 0), "{name}");
}

#[test]
fn labels_are_what_zdb_said_when_they_were_made() {
    let mut uberblocks = 0;
    for name in names() {
        let text =
            std::fs::read_to_string(images().join(&name).join("labels.txt")).expect("labels.txt");
        let told: Vec<ZdbOutput> = text.split("\ndevice ").map(ZdbOutput::parse).collect();
        let devices = golden(&name);
        assert_eq!(devices.len(), told.len(), "{name}");
        for (index, (device, told)) in devices.iter().zip(&told).enumerate() {
            compare(&labels(device), told, &format!("{name}, device {index}"));
            uberblocks += told.uberblocks.len();
        }
    }
    assert!(uberblocks > 30, "{uberblocks}");
}

#[test]
fn labels_are_what_zdb_says_of_them_now() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in names() {
        for (index, device) in golden(&name).iter().enumerate() {
            let path = folder.path().join("device.img");
            std::fs::write(&path, device).expect("room for an image");
            let output = match Command::new("zdb")
                .env_remove("LD_LIBRARY_PATH")
                .arg("-lu")
                .arg(&path)
                .output()
            {
                Ok(output) => output,
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "zdb is not there");
                    return eprintln!("skipped: no zdb");
                }
                Err(error) => panic!("zdb: {error}"),
            };
            let text = String::from_utf8(output.stdout).expect("a text");
            compare(&labels(device), &ZdbOutput::parse(&text), &format!("{name}, device {index}"));
        }
    }
}

#[test]
fn a_label_that_was_read_is_encoded_as_libnvpair_did() {
    for name in names() {
        for device in golden(&name) {
            for index in 0..LABELS {
                let at = label_offset(device.len() as u64, index).expect("a label") as usize
                    + PHYS_OFFSET;
                let stored = &device[at..at + PHYS_BYTES - CHECKSUM_BYTES];
                let encoded = NvList::parse(stored).expect("a sound list").encode();
                assert_eq!(encoded, stored[..encoded.len()], "{name}");
                assert!(stored[encoded.len()..].iter().all(|byte| *byte == 0), "{name}");
            }
        }
    }
}

/// The golden pool with this name, without some of its devices.
fn pools_without(name: &str, missing: &[usize]) -> ashlar_zfs::ondisk::config::PoolSurvey {
    let devices = golden(name).into_iter().enumerate();
    let here = devices.filter(|(index, _)| !missing.contains(index));
    found(&here.map(|(_, device)| labels(&device)).collect::<Vec<_>>())
}

#[test]
fn a_mirror_and_a_raidz_may_lack_one_device() {
    for (name, count, state, kind) in [
        ("mirror", 2, PoolState::Exported, VdevKind::Mirror),
        ("raidz", 3, PoolState::Active, VdevKind::Raidz { parity: 1 }),
    ] {
        let whole = pools_without(name, &[]);
        assert_eq!((whole.pools.len(), whole.kept.len(), whole.damaged.len()), (1, 0, 0));
        let pool = &whole.pools[0];
        assert_eq!((pool.name.as_str(), pool.version), (&*format!("golden-{name}"), 5000));
        assert_eq!((pool.state, pool.health), (state, Health::Online));
        assert_eq!(pool.problems, [""; 0]);
        assert_eq!(pool.features_for_read, ["com.delphix:hole_birth", "com.delphix:embedded_data"]);
        assert_eq!(pool.devices, (0..count).collect::<Vec<_>>());
        let [top] = &pool.vdevs[..] else { panic!("{:?}", pool.vdevs) };
        assert_eq!((&top.kind, top.children.len()), (&kind, count));
        for (index, leaf) in top.children.iter().enumerate() {
            assert_eq!((leaf.device, leaf.name.as_str()), (Some(index), &*format!("/{index}")));
        }
        let degraded = pools_without(name, &[1]);
        let pool = &degraded.pools[0];
        assert_eq!((pool.health, pool.vdevs[0].health), (Health::Degraded, Health::Degraded));
        assert_eq!(pool.vdevs[0].told(), ["1.img is not here"]);
        let all_but_one: Vec<usize> = (1..count).collect();
        let pool = &pools_without(name, &all_but_one).pools[0];
        let expected = if name == "mirror" { Health::Degraded } else { Health::Unavailable };
        assert_eq!(pool.health, expected);
        assert_eq!(pool.import_config(&|_| String::new()).is_ok(), name == "mirror");
    }
}

#[test]
fn a_pool_with_a_hole_a_spare_and_a_cache() {
    let whole = pools_without("stripe", &[]);
    assert_eq!(whole.kept, [(5, PoolState::Spare), (6, PoolState::L2Cache)]);
    // The removed log device keeps a label which says that it is in no pool.
    assert_eq!(whole.released, [1]);
    let pool = &whole.pools[0];
    assert_eq!((pool.health, pool.devices.as_slice()), (Health::Online, &[0, 2, 3, 4][..]));
    let kinds: Vec<&VdevKind> = pool.vdevs.iter().map(|vdev| &vdev.kind).collect();
    assert_eq!(kinds, [&VdevKind::Disk, &VdevKind::Hole, &VdevKind::Disk, &VdevKind::Mirror]);
    assert_eq!(pool.problems, [""; 0]);
    // Without a top-level vdev, the pool is unavailable.
    let pool = &pools_without("stripe", &[2]).pools[0];
    assert_eq!(pool.health, Health::Unavailable);
    assert_eq!(pool.vdevs[2].told(), ["missing-2 has no device here"]);
    // What it was only the pool's own configuration says: libzpool refuses it, unless it was a log device.
    assert!(pool.may_lack_only_logs() && pool.import_config(&|_| String::new()).is_ok());
}

#[test]
fn a_destroyed_pool_is_told_of_and_not_imported() {
    let found = pools_without("destroyed", &[]);
    let pool = &found.pools[0];
    assert_eq!((pool.state, pool.health), (PoolState::Destroyed, Health::Online));
    let refused = pool.import_config(&|_| String::new());
    assert_eq!(refused, Err(ImportRefusal::Destroyed("golden-destroyed".to_owned())));
}
