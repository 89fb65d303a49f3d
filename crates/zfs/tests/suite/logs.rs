//! Volumes whose intent log was not replayed: operations on them before they are opened, and unreadable logs.

use crate::support;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::support::{
    Disks, LoopDevice, Worker, assert_clean, import, import_read_only, scan, set,
};
use ashlar_zfs::protocol::{
    Command, ImportConfig, NewVdev, OpenedVolume, Refusal, Reply, VdevClass, VdevKind,
};

const MIB: u64 = 1 << 20;
const VOLUME: &str = "tank/vol";
const VOLSIZE_BYTES: u64 = 16 * MIB;
/// The contents of the volume when its snapshot is taken, and the data flushed before the crash.
const OLD: u8 = 0x11;
const NEW: u8 = 0x22;
/// The offsets of new data: in the first half, and in the second.
const PLACES: [u64; 2] = [4 * MIB, 12 * MIB];
const CHANGED_BYTES: usize = 64 << 10;

/// A pool whose worker was killed: the volume has [`OLD`] everywhere, and so does its snapshot
/// `old`; only its log has [`NEW`] for the [`PLACES`].
struct CrashedPool {
    disks: Disks,
    /// The files of the pool.
    files: Vec<PathBuf>,
}

impl CrashedPool {
    /// `None` without libzpool.
    fn new(properties: &[(&str, &str)]) -> Option<Self> {
        let disks = Disks::new();
        let vdevs = disks.single();
        Self::with(disks, vdevs, properties)
    }

    fn with(disks: Disks, vdevs: Vec<NewVdev>, properties: &[(&str, &str)]) -> Option<Self> {
        // No transaction group is written except those that commands wait for.
        let worker = Worker::start_with(&[("zfs_txg_timeout", 100_000)])?;
        let files = vdevs.iter().flat_map(|vdev| vdev.paths.clone()).collect();
        worker.create_pool("tank", vdevs);
        let mut all = vec![("sync", "always"), ("compression", "off")];
        all.extend_from_slice(properties);
        worker.create_volume(VOLUME, VOLSIZE_BYTES, &all);
        let volume = worker.open(VOLUME);
        for offset in (0..VOLSIZE_BYTES).step_by(MIB as usize) {
            support::write(&worker, volume, offset, &vec![OLD; MIB as usize]);
        }
        worker.run(Command::Snapshot { names: vec![format!("{VOLUME}@old")] });
        for place in PLACES {
            support::write(&worker, volume, place, &[NEW; CHANGED_BYTES]);
        }
        worker.kill();
        Some(Self { disks, files })
    }

    /// A new one, and a worker that has imported the pool.
    fn imported(properties: &[(&str, &str)]) -> Option<(Self, Worker)> {
        let crashed = Self::new(properties)?;
        let worker = crashed.import();
        Some((crashed, worker))
    }

    fn config(&self) -> ImportConfig {
        scan(&self.files.iter().map(PathBuf::as_path).collect::<Vec<_>>())
    }

    /// A worker that has imported the pool.
    fn import(&self) -> Worker {
        self.import_with(&[])
    }

    fn import_with(&self, parameters: &[(&str, u64)]) -> Worker {
        let worker = Worker::start_with(parameters).unwrap();
        worker.run(import(self.config()));
        worker
    }

    fn end(self, worker: Worker) {
        worker.export();
        assert_clean("tank", self.disks.path());
    }
}

/// The data at the [`PLACES`] within the volume; checks that there is no other data.
fn found(worker: &Worker, name: &str) -> Vec<u8> {
    let volume = worker.open(name);
    let found = found_in(worker, volume);
    worker.run(Command::Close { volume: volume.volume });
    found
}

fn found_in(worker: &Worker, volume: OpenedVolume) -> Vec<u8> {
    let data = support::read(worker, volume, 0, volume.volsize_bytes as usize);
    let mut expected = vec![OLD; data.len()];
    let places = PLACES.iter().filter(|place| **place < volume.volsize_bytes);
    let found = places
        .map(|place| {
            let at = *place as usize;
            expected[at..at + CHANGED_BYTES].fill(data[at]);
            data[at]
        })
        .collect();
    assert!(data == expected, "{volume:?}");
    found
}

fn open_read_only(worker: &Worker) -> OpenedVolume {
    match worker.call(Command::Open { name: VOLUME.to_owned(), read_only: true }) {
        Ok(Reply::Opened(opened)) => opened,
        other => panic!("{other:?}"),
    }
}

fn open() -> Command {
    Command::Open { name: VOLUME.to_owned(), read_only: false }
}

fn snapshot() -> Command {
    Command::Snapshot { names: vec![format!("{VOLUME}@new")] }
}

fn rollback() -> Command {
    Command::Rollback { volume: VOLUME.to_owned(), snapshot: format!("{VOLUME}@old") }
}

#[test]
fn a_volume_that_is_resized_has_what_its_log_says_and_no_more() {
    let Some((crashed, worker)) = CrashedPool::imported(&[]) else { return };
    worker.set(VOLUME, "volsize", "8M");
    assert_eq!(found(&worker, VOLUME), [NEW]);
    worker.set(VOLUME, "volsize", "16M");
    // The truncated data is not back.
    let volume = worker.open(VOLUME);
    assert!(support::read(&worker, volume, 8 * MIB, 8 << 20).iter().all(|byte| *byte == 0));
    worker.run(Command::Close { volume: volume.volume });
    crashed.end(worker);
}

#[test]
fn a_snapshot_has_what_was_flushed() {
    let Some((crashed, worker)) = CrashedPool::imported(&[]) else { return };
    worker.run(snapshot());
    assert_eq!(found(&worker, "tank/vol@new"), [NEW, NEW]);
    assert_eq!(found(&worker, "tank/vol@old"), [OLD, OLD]);
    worker.run(Command::Clone {
        snapshot: "tank/vol@new".to_owned(),
        name: "tank/clone".to_owned(),
        properties: Default::default(),
    });
    assert_eq!(found(&worker, "tank/clone"), [NEW, NEW]);
    crashed.end(worker);
}

#[test]
fn what_is_rolled_back_stays_so() {
    let Some((crashed, worker)) = CrashedPool::imported(&[]) else { return };
    worker.run(rollback());
    assert_eq!(found(&worker, VOLUME), [OLD, OLD]);
    crashed.end(worker);
}

#[test]
fn a_volume_takes_its_log_along_when_it_is_renamed() {
    let Some((crashed, worker)) = CrashedPool::imported(&[]) else { return };
    worker.run(Command::Rename { from: VOLUME.to_owned(), to: "tank/other".to_owned() });
    assert_eq!(found(&worker, "tank/other"), [NEW, NEW]);
    crashed.end(worker);
}

#[test]
fn a_volume_keeps_its_log_when_its_clone_is_promoted() {
    let Some((crashed, worker)) = CrashedPool::imported(&[("logbias", "throughput")]) else {
        return;
    };
    worker.run(Command::Clone {
        snapshot: "tank/vol@old".to_owned(),
        name: "tank/clone".to_owned(),
        properties: Default::default(),
    });
    worker.run(Command::Promote { name: "tank/clone".to_owned() });
    assert_eq!(found(&worker, "tank/clone"), [OLD, OLD]);
    assert_eq!(found(&worker, "tank/clone@old"), [OLD, OLD]);
    assert_eq!(found(&worker, VOLUME), [NEW, NEW]);
    crashed.end(worker);
}

#[test]
fn a_volume_is_destroyed_with_its_log() {
    for properties in [&[][..], &[("logbias", "throughput")]] {
        let Some((crashed, worker)) = CrashedPool::imported(properties) else { return };
        worker.run(Command::Destroy { name: VOLUME.to_owned(), recursive: true });
        assert_eq!(worker.names(), ["tank"]);
        crashed.end(worker);
    }
}

#[test]
fn without_replay_the_log_is_given_up() {
    let Some(crashed) = CrashedPool::new(&[]) else { return };
    let worker = crashed.import_with(&[("zil_replay_disable", 1)]);
    assert_eq!(found(&worker, VOLUME), [OLD, OLD]);
    worker.export();
    let worker = crashed.import();
    assert_eq!(found(&worker, VOLUME), [OLD, OLD]);
    crashed.end(worker);
}

#[test]
fn a_pool_that_is_not_written_keeps_its_logs() {
    let Some(crashed) = CrashedPool::new(&[]) else { return };
    let worker = Worker::start().unwrap();
    worker.run(import_read_only(crashed.config()));
    assert_eq!(found(&worker, VOLUME), [OLD, OLD]);
    worker.export();
    let worker = crashed.import();
    assert_eq!(found(&worker, VOLUME), [NEW, NEW]);
    crashed.end(worker);
}

/// libzpool suspends the pool for a block of a log on a vdev that is missing: the volume is opened without a look at it.
#[test]
fn a_volume_is_read_although_its_log_device_is_missing() {
    let disks = Disks::new();
    let mut vdevs = disks.single();
    vdevs.push(disks.vdev(VdevKind::Single, VdevClass::Log, &["log"]));
    let Some(crashed) = CrashedPool::with(disks, vdevs, &[]) else { return };
    let (log, away) = (crashed.disks.path().join("log"), crashed.disks.path().join("away"));
    std::fs::rename(&log, &away).unwrap();
    let worker = Worker::start().unwrap();
    let config = scan(&[&crashed.disks.path().join("disk")]);
    worker.run(support::import_without_log(config, true));
    assert_eq!(found(&worker, VOLUME), [OLD, OLD]);
    worker.export();

    std::fs::rename(&away, &log).unwrap();
    let worker = crashed.import();
    assert_eq!(found(&worker, VOLUME), [NEW, NEW]);
    crashed.end(worker);
}

/// The offsets, in its file, of blocks that zdb finds in an intent log: those with records, or
/// those that records point to.
fn blocks_of_log(crashed: &CrashedPool, pointed_to: bool) -> Option<Vec<(u64, usize)>> {
    /// Bytes before offset 0 of a vdev: labels and boot block.
    const FRONT_BYTES: u64 = 4 << 20;
    let output = crate::zdb::zdb(crashed.disks.path(), &["-iiiiii", "tank"])?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut blocks = Vec::new();
    for line in text.lines() {
        let is_log = line.contains("Block seqno");
        let Some((_, rest)) = line.split_once("DVA[0]=<0:") else { continue };
        let mut parts = rest.split(['>', ':']);
        let mut number = || u64::from_str_radix(parts.next().unwrap(), 16).unwrap();
        if is_log != pointed_to {
            blocks.push((FRONT_BYTES + number(), number() as usize));
        }
    }
    assert!(!blocks.is_empty(), "{text}");
    Some(blocks)
}

fn assert_log_refused(refusal: &Refusal) {
    let message = "cannot open 'tank/vol': the intent log cannot be read: ";
    assert!(refusal.message.starts_with(message), "{refusal}");
    assert_eq!(refusal.errno, libc::EIO);
    assert!(refusal.hint.as_ref().unwrap().contains("zil_replay_disable"), "{refusal:?}");
}

/// Flushed data is not discarded because a disk is temporarily missing.
#[test]
fn a_volume_whose_log_cannot_be_read_is_not_written_and_loses_nothing() {
    for properties in [&[][..], &[("logbias", "throughput")]] {
        let Some(crashed) = CrashedPool::new(properties) else { return };
        // It is imported, and the log claimed; then the disk fails.
        crashed.import().kill();
        let Some(blocks) = blocks_of_log(&crashed, !properties.is_empty()) else { return };
        let (offset, len) = blocks[blocks.len() / 2];
        let file = File::options().read(true).write(true).open(&crashed.files[0]).unwrap();
        let mut good = vec![0; len];
        file.read_exact_at(&mut good, offset).unwrap();
        support::spoil(&crashed.files[0], offset, len);

        let worker = crashed.import();
        assert_log_refused(&worker.refused(open()));
        for command in [open(), set(VOLUME, "volsize", "8M"), snapshot(), rollback()] {
            assert_log_refused(&worker.refused(command));
        }
        let volume = open_read_only(&worker);
        assert!(volume.read_only);
        let data = support::read(&worker, volume, 0, VOLSIZE_BYTES as usize);
        assert!(data.iter().all(|byte| [OLD, NEW].contains(byte)));
        assert_log_refused(&worker.refused(snapshot()));
        worker.run(Command::Close { volume: volume.volume });
        worker.export();

        file.write_all_at(&good, offset).unwrap();
        let worker = crashed.import();
        assert_eq!(found(&worker, VOLUME), [NEW, NEW]);
        crashed.end(worker);
    }
}

/// A log device that returns EIO for the records' blocks.
#[test]
fn a_pool_whose_log_cannot_be_read_is_imported_to_be_read_only() {
    const LABELS_BYTES: u64 = 4 * MIB;
    let disks = Disks::new();
    let backing = disks.file("backing", 192);
    let Some(device) = LoopDevice::new(&backing, 512) else {
        println!("skipped: no loop device to be had (who is not root may have none)");
        return;
    };
    let mut vdevs = disks.single();
    let paths = vec![device.0.clone()];
    vdevs.push(NewVdev { kind: VdevKind::Single, class: VdevClass::Log, paths });
    let Some(crashed) = CrashedPool::with(disks, vdevs, &[]) else { return };
    let config = crashed.config();
    let kept = crashed.disks.path().join("kept");
    std::fs::copy(&backing, &kept).unwrap();
    File::options().write(true).open(&backing).unwrap().set_len(LABELS_BYTES).unwrap();

    let worker = Worker::start().unwrap();
    let refusal = worker.refused(import(config.clone()));
    assert!(refusal.message.contains("an intent log cannot be read"), "{refusal}");
    assert!(refusal.hint.as_ref().unwrap().contains("read-only"), "{refusal:?}");
    worker.run(import_read_only(config));
    assert_eq!(found(&worker, VOLUME), [OLD, OLD]);
    worker.export();

    let bytes = std::fs::read(&kept).unwrap();
    let file = File::options().write(true).open(&backing).unwrap();
    file.write_all_at(&bytes, 0).unwrap();
    std::fs::remove_file(kept).unwrap();
    let worker = crashed.import();
    assert_eq!(found(&worker, VOLUME), [NEW, NEW]);
    worker.export();
}
