//! Pools whose vdevs change, and pools that are destroyed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::{self, Disks, Worker, assert_clean, import, read_labels, scan, spoil};
use ashlar_zfs::ondisk::label::PoolState;
use ashlar_zfs::protocol::{
    Command, LeafChange, NewVdev, PoolStatus, Refusal, Scrub, VdevClass, VdevKind, VdevStatus,
};

const DATA_BYTES: usize = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

fn attach(leaf: &str, path: &Path, replace: bool) -> Command {
    let (leaf, path) = (leaf.to_owned(), path.to_owned());
    Command::AttachDisk { leaf, path, replace, force: false, wiped: Vec::new() }
}

fn change(leaf: &str, change: LeafChange) -> Command {
    Command::ChangeLeaf { leaf: leaf.to_owned(), change }
}

fn add(vdevs: Vec<NewVdev>, force: bool) -> Command {
    Command::AddVdevs { vdevs, force, wiped: Vec::new() }
}

/// The forms and states of the top-level vdevs, each with its leaves.
fn forms(status: &PoolStatus) -> Vec<String> {
    let leaf = |vdev: &VdevStatus| {
        let name = Path::new(&vdev.name).file_name().unwrap().to_str().unwrap().to_owned();
        format!("{name} {}", vdev.state)
    };
    let top = |vdev: &VdevStatus| {
        let leaves: Vec<String> = vdev.children.iter().map(leaf).collect();
        if leaves.is_empty() { leaf(vdev) } else { format!("{}: {}", vdev.name, leaves.join(", ")) }
    };
    status.root.children.iter().map(top).collect()
}

/// Waits until the pool has this form, and no resilver runs.
fn await_form(worker: &Worker, expected: &[&str]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = worker.status();
        let scans = status.scan.as_ref().is_some_and(|scan| scan.state == "scanning");
        if forms(&status) == expected && !scans {
            return;
        }
        assert!(Instant::now() < deadline, "{status:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn data(byte: u8) -> Vec<u8> {
    (0..DATA_BYTES).map(|at| byte.wrapping_add((at / 512) as u8)).collect()
}

/// Writes the data of a volume, which is made if it is not there.
fn fill(worker: &Worker, byte: u8) {
    if !worker.names().contains(&"tank/vol".to_owned()) {
        worker.create_volume("tank/vol", 16 << 20, &[]);
    }
    let volume = worker.open("tank/vol");
    support::write(worker, volume, 0, &data(byte));
    worker.run(Command::Close { volume: volume.volume });
}

/// Imports the pool from these files, and checks the data.
fn assert_data(paths: &[&Path], byte: u8) {
    let worker = Worker::start().unwrap();
    worker.run(import(scan(paths)));
    let volume = worker.open("tank/vol");
    assert!(support::read(&worker, volume, 0, DATA_BYTES) == data(byte));
    worker.run(Command::Close { volume: volume.volume });
    worker.export();
}

fn says(refusal: &Refusal, words: &str) {
    assert!(refusal.message.contains(words), "{refusal}");
}

#[test]
fn a_disk_that_is_attached_has_all_data_and_one_that_is_detached_is_free() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    let a = disks.vdev(VdevKind::Single, VdevClass::Normal, &["a"]);
    let path_a = a.paths[0].clone();
    worker.create_pool("tank", vec![a]);
    fill(&worker, 1);
    let small = disks.file("small", 128);
    says(&worker.refused(attach("a", &small, false)), "too small");
    says(&worker.refused(attach("none", &small, false)), "no such device in pool: none");
    says(&worker.refused(attach("a", &path_a, false)), "is a device of this pool");
    says(&worker.refused(change("a", LeafChange::Detach)), "cannot detach a: ");
    let b = disks.file("b", 192);
    worker.run(attach("a", &b, false));
    await_form(&worker, &["mirror-0: a ONLINE, b ONLINE"]);
    fill(&worker, 2);
    worker.export();
    assert_clean("tank", disks.path());
    // Each disk has everything.
    let held = std::fs::read(&path_a).unwrap();
    std::fs::remove_file(&path_a).unwrap();
    assert_data(&[&b], 2);
    std::fs::write(&path_a, held).unwrap();

    let worker = Worker::start().unwrap();
    worker.run(import(scan(&[&path_a, &b])));
    worker.run(change(path_a.to_str().unwrap(), LeafChange::Detach));
    await_form(&worker, &["b ONLINE"]);
    assert_eq!(read_labels(&path_a).label().unwrap().txg(), 0);
    worker.export();
    // It is free, also for the same pool.
    let worker = Worker::start().unwrap();
    worker.run(import(scan(&[&b])));
    worker.run(attach("b", &path_a, false));
    await_form(&worker, &["mirror-0: b ONLINE, a ONLINE"]);
    worker.run(change("a", LeafChange::Detach));
    await_form(&worker, &["b ONLINE"]);
    worker.export();
    std::fs::remove_file(&path_a).unwrap();
    assert_data(&[&b], 2);
    assert_clean("tank", disks.path());
}

#[test]
fn a_disk_is_replaced_also_if_it_is_missing() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    let raidz = disks.vdev(VdevKind::Raidz(1), VdevClass::Normal, &["a", "b", "c"]);
    let [a, b, c] = &raidz.paths.clone()[..] else { panic!() };
    worker.create_pool("tank", vec![raidz]);
    fill(&worker, 3);
    let d = disks.file("d", 192);
    says(&worker.refused(attach("c", &d, false)), "a single disk and to a mirror only");
    worker.run(attach("c", &d, true));
    await_form(&worker, &["raidz1-0: a ONLINE, b ONLINE, d ONLINE"]);
    worker.export();
    std::fs::remove_file(c).unwrap();
    std::fs::remove_file(b).unwrap();
    let worker = Worker::start().unwrap();
    worker.run(import(scan(&[a, &d])));
    let e = disks.file("e", 192);
    worker.run(attach("b", &e, true));
    await_form(&worker, &["raidz1-0: a ONLINE, e ONLINE, d ONLINE"]);
    worker.export();
    assert_clean("tank", disks.path());
    // The new disks replace any other one.
    std::fs::remove_file(a).unwrap();
    assert_data(&[&d, &e], 3);
}

#[test]
fn a_disk_that_is_offline_stays_so_and_catches_up_when_it_is_online() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    let mirror = disks.vdev(VdevKind::Mirror, VdevClass::Normal, &["a", "b"]);
    let [a, b] = &mirror.paths.clone()[..] else { panic!() };
    worker.create_pool("tank", vec![mirror]);
    fill(&worker, 4);
    worker.run(change("b", LeafChange::Offline));
    says(&worker.refused(change("a", LeafChange::Offline)), "no valid replicas");
    fill(&worker, 5);
    worker.export();
    let worker = Worker::start().unwrap();
    worker.run(import(scan(&[a, b])));
    await_form(&worker, &["mirror-0: a ONLINE, b OFFLINE"]);
    worker.run(change("b", LeafChange::Online { expand: false }));
    let deadline = Instant::now() + PATIENCE;
    // OpenZFS starts the resilver in the next transaction group.
    while worker.status().scan.is_none_or(|scan| scan.state != "finished") {
        assert!(Instant::now() < deadline, "{:?}", worker.status());
        std::thread::sleep(Duration::from_millis(50));
    }
    await_form(&worker, &["mirror-0: a ONLINE, b ONLINE"]);
    worker.export();
    assert_clean("tank", disks.path());
    std::fs::remove_file(a).unwrap();
    assert_data(&[b], 5);
}

#[test]
fn vdevs_are_added_of_the_pools_form_or_by_force() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    let mirror = |names: &[&str]| disks.vdev(VdevKind::Mirror, VdevClass::Normal, names);
    let first = mirror(&["a", "b"]);
    let mut all: Vec<PathBuf> = first.paths.clone();
    worker.create_pool("tank", vec![first]);
    let before = worker.status().size_bytes;
    let single = disks.vdev(VdevKind::Single, VdevClass::Normal, &["c"]);
    says(&worker.refused(add(vec![single], false)), "mismatched replication level");
    let twice = NewVdev { paths: all.clone(), ..mirror(&["d", "e"]) };
    says(&worker.refused(add(vec![twice], false)), "is a device of this pool");
    let second = mirror(&["d", "e"]);
    let log = disks.vdev(VdevKind::Single, VdevClass::Log, &["log"]);
    all.extend([&second.paths[..], &log.paths].concat());
    worker.run(add(vec![second, log], false));
    assert_eq!(worker.status().size_bytes, 2 * before);
    let classes: Vec<VdevClass> =
        worker.status().root.children.iter().map(|top| top.class).collect();
    assert_eq!(classes, [VdevClass::Normal, VdevClass::Normal, VdevClass::Log]);
    fill(&worker, 6);
    worker.export();
    assert_clean("tank", disks.path());
    let paths: Vec<&Path> = all.iter().map(PathBuf::as_path).collect();
    assert_data(&paths, 6);
    // A disk of another pool is not taken.
    let worker = Worker::start().unwrap();
    worker.create_pool("other", vec![disks.vdev(VdevKind::Single, VdevClass::Normal, &["o"])]);
    let member = NewVdev {
        kind: VdevKind::Single,
        class: VdevClass::Normal,
        paths: vec![disks.path().join("d")],
    };
    says(&worker.refused(add(vec![member], false)), "is part of exported pool 'tank'");
    worker.end();
    assert_data(&paths, 6);
}

#[test]
fn errors_are_counted_until_they_are_cleared() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    let mirror = disks.vdev(VdevKind::Mirror, VdevClass::Normal, &["a", "b"]);
    let path = mirror.paths[1].clone();
    worker.create_pool("tank", vec![mirror]);
    fill(&worker, 7);
    worker.export();
    spoil(&path, 5 << 20, 100 << 20);
    let worker = Worker::start().unwrap();
    worker.run(import(scan(&[&disks.path().join("a"), &path])));
    worker.scrub(Scrub::Start);
    let deadline = Instant::now() + PATIENCE;
    while worker.status().scan.is_none_or(|scan| scan.state != "finished") {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(50));
    }
    let wrong = || worker.status().root.children[0].children[1].checksum_errors;
    assert!(wrong() > 0);
    says(&worker.refused(Command::ClearErrors { leaf: Some("none".to_owned()) }), "no such device");
    worker.run(Command::ClearErrors { leaf: Some("a".to_owned()) });
    assert!(wrong() > 0);
    worker.run(Command::ClearErrors { leaf: Some("b".to_owned()) });
    assert_eq!(wrong(), 0);
    worker.run(Command::ClearErrors { leaf: None });
    worker.export();
    assert_clean("tank", disks.path());
}

#[test]
fn a_pool_is_destroyed_unless_a_volume_is_open() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    worker.create_pool("tank", disks.single());
    fill(&worker, 8);
    let volume = worker.open("tank/vol");
    says(&worker.refused(Command::DestroyPool), "cannot destroy 'tank': pool is busy: 'tank/vol'");
    worker.run(Command::Close { volume: volume.volume });
    worker.run(Command::DestroyPool);
    let disk = disks.path().join("disk");
    assert_eq!(read_labels(&disk).label().unwrap().state, PoolState::Destroyed);
    // Its disk is free for another one.
    worker.create_pool(
        "other",
        vec![NewVdev { kind: VdevKind::Single, class: VdevClass::Normal, paths: vec![disk] }],
    );
    worker.export();
    assert_clean("other", disks.path());
}
