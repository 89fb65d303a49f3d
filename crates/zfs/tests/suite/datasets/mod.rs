//! Volumes, snapshots and clones, created and changed by a worker process with libzpool.

use crate::support;

mod snapshots;

use std::collections::BTreeMap;

use crate::support::{
    Disks, Worker, assert_clean, new_volume, read, scan, set, texts, try_write, write,
};
use ashlar_zfs::protocol::{Command, NewVdev, VdevClass, VdevKind};

const MIB: u64 = 1 << 20;

/// A worker with a pool `tank` on one disk.
fn tank() -> Option<(Worker, Disks)> {
    let worker = Worker::start()?;
    let disks = Disks::new();
    worker.create_pool("tank", disks.single());
    Some((worker, disks))
}

fn snapshot(names: &[&str]) -> Command {
    Command::Snapshot { names: names.iter().map(|name| (*name).to_owned()).collect() }
}

fn destroy(name: &str, recursive: bool) -> Command {
    Command::Destroy { name: name.to_owned(), recursive }
}

fn refused(worker: &Worker, command: Command, words: &str, errno: i32) {
    let told = format!("{command:?}");
    let refusal = worker.refused(command);
    assert!(refusal.message.contains(words), "{told}: {refusal}");
    assert_eq!(refusal.errno, errno, "{told}: {refusal}");
}

#[test]
fn a_volume_has_the_properties_it_was_made_with_and_the_defaults() {
    let Some((worker, disks)) = tank() else { return };
    let set = [
        ("compression", "zstd-3"),
        ("checksum", "sha256"),
        ("sync", "always"),
        ("primarycache", "metadata"),
        ("secondarycache", "none"),
        ("logbias", "throughput"),
        ("copies", "2"),
        ("readonly", "on"),
        ("snapdev", "visible"),
        ("volmode", "dev"),
        ("org.example:owner", "somebody else"),
    ];
    worker.create_volume("tank/set", 32 * MIB, &set);
    for (name, value) in set {
        assert_eq!(worker.get("tank/set", name), (value.to_owned(), "local".to_owned()), "{name}");
    }
    worker.create_volume("tank/plain", 32 * MIB, &[]);
    let default_block = if worker.release == "2.1" { "8192" } else { "16384" };
    for (name, value, source) in [
        ("type", "volume", "-"),
        ("volsize", "33554432", "local"),
        ("volblocksize", default_block, "default"),
        ("checksum", "on", "default"),
        ("sync", "standard", "default"),
        ("copies", "1", "default"),
        ("readonly", "off", "default"),
        ("snapdev", "hidden", "default"),
        ("reservation", "0", "default"),
        ("snapshot_limit", "none", "default"),
        ("compressratio", "1.00", "-"),
        ("encryption", "off", "default"),
    ] {
        let expected = (value.to_owned(), source.to_owned());
        assert_eq!(worker.get("tank/plain", name), expected, "{name}");
    }
    assert!(worker.number("tank/plain", "creation") > 1_600_000_000);
    assert!(worker.number("tank/plain", "guid") != 0);
    let all = worker.list();
    assert!(!all[1].properties.contains_key("mountpoint"), "that is a file system's");
    assert_eq!(
        all.iter().map(|dataset| dataset.kind.as_str()).collect::<Vec<_>>(),
        ["filesystem", "volume", "volume"]
    );
    worker.export();
    assert_clean("tank", disks.path());
}

#[test]
fn all_block_sizes_that_a_pool_allows_are_made() {
    // Up to 2.1, blocks larger than 1 MiB need this tunable.
    let Some(worker) = Worker::start_with(&[("zfs_max_recordsize", 16 << 20)]) else { return };
    let disks = Disks::new();
    worker.create_pool("tank", disks.single());
    for shift in 9..=24 {
        let bytes = 1_u64 << shift;
        let name = format!("tank/b{bytes}");
        let mut command = new_volume(&name, 16 * MIB, &[("volblocksize", &bytes.to_string())]);
        if let Command::CreateVolume { sparse, .. } = &mut command {
            *sparse = true;
        }
        worker.run(command);
        assert_eq!(worker.number(&name, "volblocksize"), bytes);
        let opened = worker.open(&name);
        assert_eq!(u64::from(opened.volblocksize_bytes), bytes);
        assert_eq!(opened.volsize_bytes, 16 * MIB);
        write(&worker, opened, 0, &vec![0x42; 1 << 20]);
        worker.run(Command::Close { volume: opened.volume });
    }
    for (size, words) in [
        ("256", "must be power of 2 from 512B to 16777216"),
        ("12K", "must be power of 2"),
        ("32M", "must be power of 2"),
        ("0", "must be power of 2"),
    ] {
        refused(
            &worker,
            new_volume("tank/no", 32 * MIB, &[("volblocksize", size)]),
            words,
            libc::EDOM,
        );
    }
    worker.export();
    assert_clean("tank", disks.path());
}

#[test]
fn without_the_feature_for_large_blocks_there_are_none() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    let mut properties = texts([("feature@large_blocks", "disabled")]);
    if !["2.1", "2.2"].contains(&worker.release.as_str()) {
        // This feature would enable the other one.
        properties.extend(texts([("feature@large_microzap", "disabled")]));
    }
    properties.extend(texts([("feature@sha512", "disabled")]));
    worker.run(Command::CreatePool {
        name: "tank".to_owned(),
        vdevs: disks.single(),
        properties,
        dataset_properties: BTreeMap::new(),
        force: false,
        wiped: Vec::new(),
    });
    worker.create_volume("tank/most", 16 * MIB, &[("volblocksize", "128K")]);
    refused(
        &worker,
        new_volume("tank/more", 16 * MIB, &[("volblocksize", "256K")]),
        "'volblocksize' must be power of 2 from 512B to 131072",
        libc::EDOM,
    );
    // libzpool would accept it, and abort the process at the first block.
    let words = "needs feature@sha512, which the pool has not enabled";
    for (name, value) in [("checksum", "sha512"), ("dedup", "sha512,verify")] {
        let new = new_volume("tank/more", MIB, &[(name, value)]);
        refused(&worker, new, words, libc::EOPNOTSUPP);
    }
    for value in ["1000", "32M"] {
        let (dataset, name) = ("tank".to_owned(), "special_small_blocks".to_owned());
        let set = Command::SetProperty { dataset, name, value: value.to_owned() };
        refused(&worker, set, "must be power of 2 from 512B to 16M", libc::EINVAL);
    }
    worker.export();
    assert_clean("tank", disks.path());
}

#[test]
fn names_sizes_and_properties_that_zfs_refuses_are_refused() {
    let Some((worker, _disks)) = tank() else { return };
    for (name, words) in [
        ("tank", "a volume is in a pool"),
        ("other/vol", "it is not in pool 'tank'"),
        ("tankard/vol", "it is not in pool 'tank'"),
        ("tank/", "trailing slash in name"),
        ("/tank/vol", "leading slash in name"),
        ("tank//vol", "empty component"),
        ("tank/v@s", "snapshot delimiter '@' is not expected here"),
        ("tank/v#s", "bookmark delimiter '#'"),
        ("tank/v%s", "invalid character '%' in name"),
        ("tank/v*s", "invalid character '*' in name"),
        ("tank/./v", "self reference"),
        ("tank/../v", "parent reference"),
        (&format!("tank/{}", "x".repeat(256)), "name is too long"),
        (&format!("tank{}", "/x".repeat(60)), "nesting depth"),
    ] {
        refused(&worker, new_volume(name, MIB, &[]), words, libc::EINVAL);
    }
    refused(&worker, new_volume("tank/a/b", MIB, &[]), "no such parent 'tank/a'", libc::ENOENT);
    let einval = libc::EINVAL;
    refused(&worker, new_volume("tank/v", 0, &[]), "'volsize' cannot be zero", einval);
    let odd = new_volume("tank/v", MIB + 512, &[("volblocksize", "4K")]);
    refused(&worker, odd, "must be a multiple of volume block size (4096)", einval);
    let huge = new_volume("tank/v", 1 << 63, &[]);
    refused(&worker, huge, "volume size exceeds limit for this system", libc::EOVERFLOW);
    for (name, value, words) in [
        ("nosuch", "1", "invalid property 'nosuch'"),
        ("recordsize", "128K", "'recordsize' does not apply to datasets of this type"),
        ("used", "1", "'used' is readonly"),
        ("compression", "zip", "'compression' must be one of 'on | off | lzjb | "),
        ("copies", "4", "'copies' must be one of '1 | 2 | 3'"),
        ("sync", "sometimes", "must be one of"),
        ("refreservation", "much", "bad numeric value 'much'"),
        ("encryption", "aes-256-gcm", "encryption is not supported here"),
        ("org.example:x", &"long".repeat(4096), "is too long"),
    ] {
        refused(&worker, new_volume("tank/v", MIB, &[(name, value)]), words, einval);
    }
    // None of these was created.
    assert_eq!(worker.names(), ["tank"]);
    worker.create_volume("tank/v", MIB, &[]);
    refused(&worker, new_volume("tank/v", MIB, &[]), "dataset already exists", libc::EEXIST);
    refused(&worker, new_volume("tank/v/below", MIB, &[]), "cannot create", 1033);
    worker.end();
}

#[test]
fn reservations_are_what_zfs_computes_and_a_sparse_volume_has_none() {
    let Some((worker, disks)) = tank() else { return };
    // 32 MiB in blocks of 16 KiB: 2048 blocks, 2 indirect blocks, 1 above, and 7 of the meta dnode.
    let usual = |volsize: u64, metadata: u64| volsize + metadata * 2 * (128 << 10);
    worker.create_volume("tank/thick", 32 * MIB, &[("volblocksize", "16K")]);
    assert_eq!(worker.number("tank/thick", "refreservation"), usual(32 * MIB, 10));
    assert_eq!(worker.get("tank/thick", "refreservation").1, "local");
    // It follows the size as long as it has the default value.
    worker.set("tank/thick", "volsize", "64M");
    assert_eq!(worker.number("tank/thick", "refreservation"), usual(64 * MIB, 12));
    worker.set("tank/thick", "volsize", "16M");
    assert_eq!(worker.number("tank/thick", "refreservation"), usual(16 * MIB, 8));
    worker.set("tank/thick", "refreservation", "1M");
    worker.set("tank/thick", "volsize", "32M");
    assert_eq!(worker.number("tank/thick", "refreservation"), MIB);
    worker.set("tank/thick", "refreservation", "auto");
    assert_eq!(worker.number("tank/thick", "refreservation"), usual(32 * MIB, 10));
    worker.set("tank/thick", "refreservation", "none");
    assert_eq!(worker.number("tank/thick", "refreservation"), 0);

    let sparse = |properties: &[(&str, &str)]| {
        let mut command = new_volume("tank/sparse", 1 << 40, properties);
        if let Command::CreateVolume { sparse, .. } = &mut command {
            *sparse = true;
        }
        command
    };
    worker.run(sparse(&[]));
    assert_eq!(worker.number("tank/sparse", "refreservation"), 0);
    refused(
        &worker,
        set("tank/sparse", "refreservation", "auto"),
        "size is greater than available space",
        libc::ENOSPC,
    );
    worker.run(destroy("tank/sparse", false));
    refused(
        &worker,
        new_volume("tank/sparse", 1 << 40, &[]),
        "size is greater than available space",
        libc::ENOSPC,
    );
    assert_eq!(worker.names(), ["tank", "tank/thick"], "what could not be reserved was not made");
    worker.export();
    assert_clean("tank", disks.path());
}

#[test]
fn on_raidz_more_is_reserved() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    let raidz = disks.vdev(VdevKind::Raidz(1), VdevClass::Normal, &["a", "b", "c"]);
    worker.run(Command::CreatePool {
        name: "tank".to_owned(),
        vdevs: vec![raidz],
        properties: texts([("ashift", "12")]),
        dataset_properties: BTreeMap::new(),
        force: false,
        wiped: Vec::new(),
    });
    worker.create_volume("tank/vol", 32 * MIB, &[("volblocksize", "8K")]);
    let data = 4096 * (16 << 10) / ((192 << 10) / 512) * 256;
    assert_eq!(worker.number("tank/vol", "refreservation"), data + (7 + 4 + 1) * 2 * (128 << 10));
    worker.export();
    assert_clean("tank", disks.path());
}

#[test]
fn properties_are_set_and_inherited() {
    let Some((worker, disks)) = tank() else { return };
    let mut command = new_volume("tank/a/b/vol", 16 * MIB, &[]);
    if let Command::CreateVolume { parents, .. } = &mut command {
        *parents = true;
    }
    worker.run(command);
    assert_eq!(worker.names(), ["tank", "tank/a", "tank/a/b", "tank/a/b/vol"]);
    assert_eq!(worker.get("tank/a/b", "canmount"), ("off".to_owned(), "local".to_owned()));
    let is = |name: &str, value: &str, source: &str| {
        let found = worker.get("tank/a/b/vol", name);
        assert_eq!(found, (value.to_owned(), source.to_owned()), "{name}");
    };
    worker.set("tank/a", "compression", "gzip-9");
    is("compression", "gzip-9", "inherited from tank/a");
    worker.set("tank/a/b/vol", "compression", "off");
    is("compression", "off", "local");
    let inherit =
        |name: &str| Command::Inherit { dataset: "tank/a/b/vol".to_owned(), name: name.to_owned() };
    worker.run(inherit("compression"));
    is("compression", "gzip-9", "inherited from tank/a");
    worker.set("tank", "org.example:tier", "1");
    is("org.example:tier", "1", "inherited from tank");
    worker.set("tank/a/b/vol", "org.example:tier", "2");
    is("org.example:tier", "2", "local");
    worker.run(inherit("org.example:tier"));
    is("org.example:tier", "1", "inherited from tank");
    worker.set("tank/a", "quota", "128M");
    assert_eq!(worker.number("tank/a", "quota"), 128 * MIB);
    refused(&worker, set("tank/a", "quota", "1K"), "size is less than current used", libc::ENOSPC);
    refused(&worker, set("tank/a", "quota", "0"), "use 'none' to disable quota", libc::EINVAL);
    worker.set("tank/a", "quota", "none");
    worker.set("tank/a", "snapshot_limit", "1");
    assert_eq!(worker.number("tank/a", "snapshot_limit"), 1);
    for (name, words) in [
        ("quota", "property cannot be inherited"),
        ("volsize", "property cannot be inherited"),
        ("used", "read-only property"),
        ("nosuch", "invalid property 'nosuch'"),
    ] {
        refused(&worker, inherit(name), words, libc::EINVAL);
    }
    for (name, value, words) in [
        ("volblocksize", "4K", "'volblocksize' is readonly"),
        ("quota", "1G", "'quota' does not apply"),
        ("creation", "1", "'creation' is readonly"),
    ] {
        refused(&worker, set("tank/a/b/vol", name, value), words, libc::EINVAL);
    }
    refused(&worker, set("tank/none", "sync", "always"), "dataset does not exist", libc::ENOENT);
    worker.run(snapshot(&["tank/a/b/vol@s"]));
    worker.set("tank/a/b/vol@s", "org.example:note", "kept");
    assert_eq!(worker.get("tank/a/b/vol@s", "org.example:note").0, "kept");
    let on_snapshot = set("tank/a/b/vol@s", "compression", "off");
    refused(&worker, on_snapshot, "can not be modified for snapshots", libc::EINVAL);
    worker.export();
    assert_clean("tank", disks.path());
}

#[test]
fn a_volume_is_resized_closed_and_open_and_what_is_beyond_is_freed() {
    let Some((worker, disks)) = tank() else { return };
    worker.create_volume("tank/vol", 32 * MIB, &[("compression", "off")]);
    let opened = worker.open("tank/vol");
    let data: Vec<u8> = (0..8 << 20).map(|at: u32| (at % 251) as u8).collect();
    for at in 0..4 {
        write(&worker, opened, at * 8 * MIB, &data);
    }
    let beyond = |worker: &Worker, at| try_write(worker, opened, at, &[0; 4096]);
    assert_ne!(beyond(&worker, 32 * MIB), 0);
    worker.set("tank/vol", "volsize", "48M");
    assert_eq!(beyond(&worker, 32 * MIB), 0);
    worker.set("tank/vol", "volsize", "16M");
    assert_ne!(beyond(&worker, 16 * MIB), 0);
    assert_eq!(read(&worker, opened, 8 * MIB, 8 << 20), data);
    assert_eq!(worker.number("tank/vol", "volsize"), 16 * MIB);
    worker.run(Command::Close { volume: opened.volume });
    worker.set("tank/vol", "volsize", "32M");
    assert!(worker.number("tank/vol", "referenced") < 20 * MIB, "what was beyond is freed");
    let opened = worker.open("tank/vol");
    assert_eq!(opened.volsize_bytes, 32 * MIB);
    assert_eq!(read(&worker, opened, 0, 8 << 20), data);
    assert!(read(&worker, opened, 16 * MIB, 8 << 20).iter().all(|byte| *byte == 0));
    for (size, words) in [
        ("0", "'volsize' cannot be zero"),
        ("33554433", "must be a multiple of volume block size"),
        ("big", "bad numeric value 'big'"),
    ] {
        refused(&worker, set("tank/vol", "volsize", size), words, libc::EINVAL);
    }
    refused(
        &worker,
        set("tank/vol", "volsize", "1T"),
        "size is greater than available space",
        libc::ENOSPC,
    );
    assert_eq!(worker.number("tank/vol", "volsize"), 32 * MIB);
    worker.set("tank/vol", "readonly", "on");
    refused(&worker, set("tank/vol", "volsize", "16M"), "dataset is read-only", libc::EROFS);
    worker.end();
    assert_clean("tank", disks.path());
}

/// More than a hundred datasets with their properties do not fit in one packet.
#[test]
fn many_datasets_are_listed() {
    let Some((worker, disks)) = tank() else { return };
    let mut expected = vec!["tank".to_owned()];
    for number in 0..100 {
        let name = format!("tank/v{number:03}");
        let mut command = new_volume(&name, 8 * MIB, &[]);
        if let Command::CreateVolume { sparse, .. } = &mut command {
            *sparse = true;
        }
        worker.run(command);
        expected.push(name);
    }
    assert_eq!(worker.names(), expected);
    worker.export();
    assert_clean("tank", disks.path());
}

/// A full pool: writes fail with ENOSPC, and both volume and pool stay usable.
#[test]
fn a_full_pool_says_so_and_lives_on() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    let paths = vec![disks.file("disk", 96)];
    let single = NewVdev { kind: VdevKind::Single, class: VdevClass::Normal, paths };
    worker.create_pool("tank", vec![single]);
    let mut command = new_volume("tank/vol", 1 << 30, &[("compression", "off")]);
    if let Command::CreateVolume { sparse, .. } = &mut command {
        *sparse = true;
    }
    worker.run(command);
    let opened = worker.open("tank/vol");
    let data = vec![0x66; 4 << 20];
    let failed =
        (0..64).map(|at| try_write(&worker, opened, at * 4 * MIB, &data)).find(|errno| *errno != 0);
    assert_eq!(failed, Some(libc::ENOSPC));
    assert_eq!(read(&worker, opened, 0, 4 << 20), data);
    assert_eq!(worker.status().state, "ONLINE");
    // Shrinking makes room, even in a full pool.
    worker.set("tank/vol", "volsize", "8M");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    worker.set("tank/vol", "volsize", "16M");
    while try_write(&worker, opened, 8 * MIB, &data) != 0 {
        assert!(std::time::Instant::now() < deadline, "no room was made");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    worker.end();
    assert_clean("tank", disks.path());
    let disk = disks.path().join("disk");
    let worker = Worker::start().unwrap();
    worker.run(support::import(scan(&[&disk])));
    worker.end();
}
