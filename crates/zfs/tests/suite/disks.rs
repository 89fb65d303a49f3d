//! Vdevs that are not whole files: parts of a file, and devices with sectors of 4096 bytes.

use crate::support;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::support::{
    Disks, LoopDevice, Worker, assert_clean, import, import_read_only, new_pool, scan,
};
use ashlar_zfs::protocol::{Command, ImportConfig, NewVdev, NvValue, VdevClass, VdevKind};

const MIB: u64 = 1 << 20;
/// The contents of a disk outside of the pools' parts.
const OUTSIDE: u8 = 0xa5;

fn single(path: PathBuf) -> NewVdev {
    NewVdev { kind: VdevKind::Single, class: VdevClass::Normal, paths: vec![path] }
}

/// The configuration of a pool on one disk, with another path for the disk.
fn moved_to(mut config: ImportConfig, path: &Path) -> ImportConfig {
    let Some(NvValue::List(tree)) = config.0.get_mut("vdev_tree") else { panic!() };
    let Some(NvValue::Lists(children)) = tree.get_mut("children") else { panic!() };
    let path = NvValue::String(path.display().to_string());
    children[0].insert("path".to_owned(), path);
    config
}

/// Creates an empty pool in a file of this size, and returns its import configuration.
fn empty_pool(name: &str, file: &Path) -> Option<ImportConfig> {
    let worker = Worker::start()?;
    worker.create_pool(name, vec![single(file.to_owned())]);
    worker.create_volume(&format!("{name}/vol"), 8 * MIB, &[]);
    worker.export();
    Some(scan(&[file]))
}

fn part(path: &Path, offset_bytes: u64, size_bytes: u64) -> Command {
    let size_bytes = Some(size_bytes);
    Command::Part { path: path.to_owned(), offset_bytes, size_bytes, read_only: false }
}

fn shared(file: &File) -> Option<OwnedFd> {
    Some(OwnedFd::from(file.try_clone().unwrap()))
}

/// Like a disk with a boot pool and another pool.
#[test]
fn two_pools_are_on_parts_of_one_disk() {
    const PARTS: [(u64, u64); 2] = [(MIB + 512, 96 * MIB), (98 * MIB, 80 * MIB)];
    const SIZE_BYTES: u64 = 180 * MIB;
    const NAMES: [&str; 2] = ["boot", "tank"];
    let disks = Disks::new();
    let path = disks.path().join("disk");
    std::fs::write(&path, vec![OUTSIDE; SIZE_BYTES as usize]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut configs = Vec::new();
    for (name, (offset, size)) in NAMES.into_iter().zip(PARTS) {
        let whole = disks.file(name, size / MIB);
        let Some(config) = empty_pool(name, &whole) else { return };
        file.write_all_at(&std::fs::read(&whole).unwrap(), offset).unwrap();
        let path = disks.path().join(format!("disk-{name}"));
        configs.push((moved_to(config, &path), path));
    }
    // A worker with another open file description would wait for the others.
    let workers: Vec<Worker> = configs
        .into_iter()
        .zip(PARTS)
        .map(|((config, path), (offset, size))| {
            let worker = Worker::start().unwrap();
            let told = worker.call_with(part(&path, offset, size), shared(&file));
            told.unwrap();
            worker.run(import(config));
            assert!(worker.status().root.children[0].name.ends_with(path.to_str().unwrap()));
            worker
        })
        .collect();
    for (worker, name) in workers.iter().zip(NAMES) {
        let volume = worker.open(&format!("{name}/vol"));
        support::write(worker, volume, 0, &vec![name.as_bytes()[0]; 4 << 20]);
        worker.run(Command::Close { volume: volume.volume });
    }
    workers.into_iter().for_each(Worker::export);

    let bytes = std::fs::read(&path).unwrap();
    let mut outside = 0;
    for (name, (offset, size)) in NAMES.into_iter().zip(PARTS) {
        let folder = tempfile::tempdir().unwrap();
        let whole = folder.path().join("whole");
        let until = offset + size;
        std::fs::write(&whole, &bytes[offset as usize..until as usize]).unwrap();
        assert!(bytes[outside..offset as usize].iter().all(|byte| *byte == OUTSIDE));
        outside = until as usize;
        assert_clean(name, folder.path());
        let worker = Worker::start().unwrap();
        worker.run(import(moved_to(scan(&[&whole]), &whole)));
        let volume = worker.open(&format!("{name}/vol"));
        let read = support::read(&worker, volume, 0, 4 << 20);
        assert!(read.iter().all(|byte| *byte == name.as_bytes()[0]));
        worker.run(Command::Close { volume: volume.volume });
        worker.export();
    }
    assert!(bytes[outside..].iter().all(|byte| *byte == OUTSIDE));
}

/// libzpool's own write function would abort the process here: it splits writes at sectors of 512 bytes.
#[test]
fn a_pool_is_on_a_device_of_large_sectors() {
    let disks = Disks::new();
    let file = disks.file("disk", 192);
    let Some(device) = LoopDevice::new(&file, 4096) else {
        println!("skipped: no loop device to be had (who is not root may have none)");
        return;
    };
    let Some(worker) = Worker::start() else { return };
    let properties = BTreeMap::from([("ashift".to_owned(), "9".to_owned())]);
    let mut small = new_pool("tank", vec![single(device.0.clone())]);
    if let Command::CreatePool { properties: given, .. } = &mut small {
        *given = properties;
    }
    let refusal = worker.refused(small);
    assert!(refusal.message.contains("has logical blocks of 4096 bytes"), "{refusal}");
    assert!(refusal.hint.is_some());
    worker.create_pool("tank", vec![single(device.0.clone())]);
    worker.create_volume("tank/vol", 16 * MIB, &[("volblocksize", "4096"), ("sync", "always")]);
    let volume = worker.open("tank/vol");
    for at in 0..64 {
        support::write(&worker, volume, at * 5 * 4096, &vec![at as u8; 3 * 4096 + 512]);
    }
    worker.kill();
    let config = || moved_to(scan(&[&file]), &device.0);
    for _ in 0..2 {
        let worker = Worker::start().unwrap();
        worker.run(import(config()));
        let volume = worker.open("tank/vol");
        for at in 0..64 {
            let read = support::read(&worker, volume, at * 5 * 4096, 3 * 4096 + 512);
            assert!(read.iter().all(|byte| *byte == at as u8));
        }
        worker.run(Command::Close { volume: volume.volume });
        worker.export();
    }
    drop(device);
    assert_clean("tank", disks.path());
}

/// A pool with blocks of 512 bytes does not work on such a device; the kernel refuses it, too.
#[test]
fn a_pool_of_small_blocks_is_refused_on_a_device_of_large_ones() {
    let disks = Disks::new();
    let file = disks.file("disk", 192);
    let Some(device) = LoopDevice::new(&file, 512) else {
        println!("skipped: no loop device to be had (who is not root may have none)");
        return;
    };
    let Some(worker) = Worker::start() else { return };
    worker.create_pool("tank", vec![single(device.0.clone())]);
    worker.create_volume("tank/vol", 16 * MIB, &[]);
    let volume = worker.open("tank/vol");
    support::write(&worker, volume, 0, &vec![0x5a; 8 << 20]);
    worker.run(Command::Close { volume: volume.volume });
    worker.export();
    drop(device);
    assert_clean("tank", disks.path());
    let device = LoopDevice::new(&file, 4096).unwrap();
    let worker = Worker::start().unwrap();
    let before = std::fs::read(&file).unwrap();
    let refusal = worker.refused(import(moved_to(scan(&[&file]), &device.0)));
    assert!(refusal.message.contains("ashift=9 is too small"), "{refusal}");
    worker.end();
    assert!(std::fs::read(&file).unwrap() == before);
}

/// A closed object counts as open until libzpool's tasks have evicted it.
#[test]
fn a_pool_that_is_read_only_is_exported_right_after_its_volumes_are_closed() {
    let disks = Disks::new();
    let file = disks.file("disk", 128);
    let Some(config) = empty_pool("tank", &file) else { return };
    for _ in 0..8 {
        let worker = Worker::start().unwrap();
        worker.run(import_read_only(config.clone()));
        let volume = worker.open("tank/vol");
        support::read(&worker, volume, 0, 1 << 20);
        worker.run(Command::Close { volume: volume.volume });
        worker.export();
    }
}
