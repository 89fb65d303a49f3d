//! Flushed data is there after a crash: a child writes, flushes and kills itself; this process
//! imports the pool and replays the log. No transaction group is written in between, so all data
//! found comes from the log.
//!
//! Also a child with several threads, which is killed while they write and flush.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pool::io::{Random, assert_volume, change, read, write};
use crate::pool::{Directory, NewVolume, Zpool, assert_clean, zpool};
use ashlar_zfs::zvol::Volume;

const MIB: u64 = 1 << 20;
const VOLSIZE_BYTES: u64 = 16 * MIB;
/// `ZFS_LOGBIAS_THROUGHPUT`
const THROUGHPUT: u64 = 1;

/// The actions of a child.
struct Scenario {
    name: &'static str,
    volblocksize_bytes: u32,
    properties: &'static [(&'static str, u64)],
    has_slog: bool,
    /// Changes the volume, and the oracle to the expected contents. Everything is flushed at the end.
    act: fn(&Volume, &mut [u8]),
}

const SCENARIOS: [Scenario; 11] = [
    Scenario {
        name: "copied",
        volblocksize_bytes: 16384,
        properties: &[],
        has_slog: false,
        act: |volume, oracle| writes(volume, oracle, 4096, true),
    },
    Scenario {
        name: "needcopy",
        volblocksize_bytes: 16384,
        properties: &[],
        has_slog: false,
        act: |volume, oracle| writes(volume, oracle, 48 << 10, false),
    },
    Scenario {
        // One record with more data than any log block holds.
        name: "long",
        volblocksize_bytes: 16384,
        properties: &[],
        has_slog: false,
        act: |volume, oracle| writes(volume, oracle, 2 << 20, false),
    },
    Scenario {
        name: "large",
        volblocksize_bytes: 1 << 17,
        properties: &[],
        has_slog: false,
        act: |volume, oracle| writes(volume, oracle, 1 << 20, false),
    },
    Scenario {
        name: "throughput",
        volblocksize_bytes: 16384,
        properties: &[("logbias", THROUGHPUT)],
        has_slog: false,
        act: |volume, oracle| writes(volume, oracle, 48 << 10, true),
    },
    Scenario {
        name: "slog",
        volblocksize_bytes: 1 << 17,
        properties: &[],
        has_slog: true,
        act: |volume, oracle| writes(volume, oracle, 1 << 20, false),
    },
    Scenario {
        // sync=always: no explicit flush.
        name: "always",
        volblocksize_bytes: 16384,
        properties: &[("sync", 1)],
        has_slog: false,
        act: |volume, oracle| changes(volume, oracle, 60),
    },
    Scenario {
        name: "mixed",
        volblocksize_bytes: 16384,
        properties: &[],
        has_slog: false,
        act: |volume, oracle| {
            changes(volume, oracle, 300);
            volume.flush().unwrap();
        },
    },
    Scenario {
        name: "throughmix",
        volblocksize_bytes: 8192,
        properties: &[("logbias", THROUGHPUT)],
        has_slog: false,
        act: |volume, oracle| {
            changes(volume, oracle, 300);
            volume.flush().unwrap();
        },
    },
    Scenario {
        // Blocks with indirect records are partially zeroed and written again, in one commit.
        name: "hotthroughput",
        volblocksize_bytes: 1 << 17,
        properties: &[("logbias", THROUGHPUT)],
        has_slog: false,
        act: zeroed_and_written_again,
    },
    Scenario {
        name: "hotlarge",
        volblocksize_bytes: 1 << 17,
        properties: &[],
        has_slog: false,
        act: zeroed_and_written_again,
    },
];

/// Writes of one length, also unaligned, with a flush after the last one unless all have FUA.
fn writes(volume: &Volume, oracle: &mut [u8], len_bytes: usize, fua: bool) {
    let mut random = Random::new(len_bytes as u64);
    for _ in 0..40 {
        let offset = random.below((VOLSIZE_BYTES - len_bytes as u64) / 512) as usize * 512;
        random.fill(&mut oracle[offset..offset + len_bytes]);
        write(volume, offset as u64, &oracle[offset..offset + len_bytes], fua).unwrap();
    }
    if !fua {
        volume.flush().unwrap();
    }
}

/// Writes, discards and zeroes of any length up to 256 KiB, some flushed.
fn changes(volume: &Volume, oracle: &mut [u8], count: u32) {
    let mut random = Random::new(u64::from(count));
    for _ in 0..count {
        let fua = random.below(8) == 0;
        change(volume, oracle, &mut random, 256 << 10, fua);
    }
}

/// A few blocks are written, partially or completely zeroed or discarded, and written again,
/// between two flushes.
fn zeroed_and_written_again(volume: &Volume, oracle: &mut [u8]) {
    let mut random = Random::new(7);
    for round in 0..8 {
        for _ in 0..40 {
            change(volume, &mut oracle[..1 << 20], &mut random, 256 << 10, false);
        }
        if round < 7 {
            volume.flush().unwrap();
        }
    }
    let block = 2 << 20..(2 << 20) + (1 << 17);
    for (at_bytes, len_bytes) in [(0, 1 << 17), (4096, 65536)] {
        random.fill(&mut oracle[block.clone()]);
        write(volume, block.start as u64, &oracle[block.clone()], false).unwrap();
        let zeroed = block.start + at_bytes..block.start + at_bytes + len_bytes;
        oracle[zeroed.clone()].fill(0);
        volume.write_zeroes(zeroed.start as u64, len_bytes as u64, false).unwrap();
        random.fill(&mut oracle[zeroed.clone()]);
        write(volume, zeroed.start as u64, &oracle[zeroed], false).unwrap();
    }
    volume.flush().unwrap();
}

/// The child: this program is started again to run it.
#[test]
#[ignore = "is run as the child of the tests below"]
fn child() {
    let Some(zpool) = zpool() else { return };
    let name = std::env::var("ASHLAR_TEST_SCENARIO").unwrap();
    let directory = std::path::PathBuf::from(std::env::var_os("ASHLAR_TEST_DIRECTORY").unwrap());
    let scenario =
        SCENARIOS.iter().chain(&CONCURRENT).find(|scenario| scenario.name == name).unwrap();
    zpool.tune("zfs_txg_timeout", 100_000);
    let mut files = vec![directory.join("disk")];
    if scenario.has_slog {
        files.push(directory.join("log"));
    }
    zpool.create_pool(scenario.name, &files, scenario.has_slog);
    let volume_name = format!("{name}/vol");
    let new = NewVolume {
        name: &volume_name,
        volsize_bytes: VOLSIZE_BYTES,
        volblocksize_bytes: scenario.volblocksize_bytes,
    };
    zpool.create_volume(&new, scenario.properties);
    let volume = Volume::open(&zpool.library, &volume_name, false).unwrap();
    let mut oracle = before();
    // The first commit writes a transaction group: it stores the log's location in the objset.
    write(&volume, 0, &oracle, true).unwrap();
    zpool.sync(scenario.name);
    std::fs::write(directory.join("config"), zpool.config(scenario.name)).unwrap();
    (scenario.act)(&volume, &mut oracle);
    std::fs::write(directory.join("oracle"), &oracle).unwrap();
    end();
}

fn end() {
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
        .unwrap();
}

/// The contents of a volume before the scenario.
fn before() -> Vec<u8> {
    let mut oracle = vec![0; VOLSIZE_BYTES as usize];
    Random::new(99).fill(&mut oracle[..VOLSIZE_BYTES as usize / 2]);
    oracle
}

/// Runs a scenario in a child that kills itself. Returns its directory, and the pool's configuration.
fn die(scenario: &Scenario) -> (Directory, Vec<u8>) {
    let directory = Directory::new(scenario.name);
    // Far larger than the written data: libzpool reserves 24 times that until it is on disk.
    directory.file("disk", 8192 * MIB);
    directory.file("log", 128 * MIB);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "zil::child", "--nocapture"])
        .env("ASHLAR_TEST_SCENARIO", scenario.name)
        .env("ASHLAR_TEST_DIRECTORY", &directory.0)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = String::new();
    child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    let status = child.wait().unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert!(signal == Some(9) && !told.contains("panicked"), "{told}");
    let config = std::fs::read(directory.0.join("config")).unwrap();
    (directory, config)
}

fn crash(zpool: &Zpool, scenario: &Scenario) {
    let (directory, config) = die(scenario);
    let oracle = std::fs::read(directory.0.join("oracle")).unwrap();
    assert_ne!(oracle, before());
    let volume_name = format!("{}/vol", scenario.name);

    // A read-only pool replays nothing: the data is in the log, and only there.
    zpool.import(scenario.name, &config, true);
    let volume = Volume::open(&zpool.library, &volume_name, false).unwrap();
    assert!(volume.is_read_only());
    assert_volume(&volume, &before());
    drop(volume);
    zpool.export(scenario.name);

    zpool.import(scenario.name, &config, false);
    let volume = Volume::open(&zpool.library, &volume_name, false).unwrap();
    assert_volume(&volume, &oracle);
    // The log is usable again.
    write(&volume, 512, &[0xaa; 1024], true).unwrap();
    assert_eq!(read(&volume, 512, 1024).unwrap(), [0xaa; 1024]);
    drop(volume);
    zpool.export(scenario.name);
    assert_clean(scenario.name, &directory.0);
}

#[test]
fn what_was_flushed_is_there_after_a_crash() {
    let Some(zpool) = zpool() else { return };
    std::thread::scope(|scope| {
        for scenario in &SCENARIOS {
            scope.spawn(|| {
                crash(zpool, scenario);
                println!("{}: found", scenario.name);
            });
        }
    });
}

/// Several threads, killed at any time.
const CONCURRENT: [Scenario; 3] = [
    Scenario {
        name: "threadspoint",
        volblocksize_bytes: 1 << 17,
        properties: &[("logbias", THROUGHPUT)],
        has_slog: false,
        act: |volume, _| from_many_threads(volume),
    },
    Scenario {
        name: "threadslarge",
        volblocksize_bytes: 1 << 17,
        properties: &[],
        has_slog: false,
        act: |volume, _| from_many_threads(volume),
    },
    Scenario {
        name: "threadscopy",
        volblocksize_bytes: 16384,
        properties: &[],
        has_slog: false,
        act: |volume, _| from_many_threads(volume),
    },
];
const THREADS: u64 = 4;
/// Bytes per write of a thread.
const PIECE_BYTES: u64 = 4096;
/// For blocks of 128 KiB.
const PIECES_OF_BLOCK: u64 = 32;
/// Blocks in which every thread has some pieces; each thread has one more block for itself.
const SHARED_BLOCKS: u64 = 4;

/// A thread's action on a piece.
#[derive(Clone, Copy)]
enum Step {
    /// The piece then contains this number everywhere; 0 if it is zeroed.
    Put { piece: u64, number: u64 },
    /// The thread's own block is discarded.
    Discard,
    /// Everything before is flushed.
    Flushed,
}

impl Step {
    fn to_bytes(self) -> [u8; 24] {
        let words = match self {
            Self::Put { piece, number } => [0, piece, number],
            Self::Discard => [1, 0, 0],
            Self::Flushed => [2, 0, 0],
        };
        let mut bytes = [0; 24];
        bytes
            .chunks_mut(8)
            .zip(words)
            .for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let word = |at: usize| u64::from_le_bytes(bytes[8 * at..][..8].try_into().unwrap());
        match word(0) {
            0 => Self::Put { piece: word(1), number: word(2) },
            1 => Self::Discard,
            _ => Self::Flushed,
        }
    }
}

/// The pieces of a thread's own block.
fn own_block(thread: u64) -> std::ops::Range<u64> {
    let first = (SHARED_BLOCKS + thread) * PIECES_OF_BLOCK;
    first..first + PIECES_OF_BLOCK
}

/// Each thread records what it is going to do, does it, and records when it is flushed.
fn from_many_threads(volume: &Volume) {
    let directory = std::path::PathBuf::from(std::env::var_os("ASHLAR_TEST_DIRECTORY").unwrap());
    let flushes = &[const { AtomicU64::new(0) }; THREADS as usize];
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let mut log = std::fs::File::create(directory.join(format!("thread{thread}"))).unwrap();
            scope.spawn(move || {
                let mut random = Random::new(u64::from(std::process::id()) * THREADS + thread);
                let mut note = |step: Step| log.write_all(&step.to_bytes()).unwrap();
                for number in 1.. {
                    for _ in 0..=random.below(4) {
                        let piece = if random.below(3) == 0 {
                            own_block(thread).start + random.below(PIECES_OF_BLOCK)
                        } else {
                            random.below(SHARED_BLOCKS * PIECES_OF_BLOCK / THREADS) * THREADS
                                + thread
                        };
                        let offset = piece * PIECE_BYTES;
                        match random.below(12) {
                            0 => {
                                note(Step::Discard);
                                let block = own_block(thread);
                                let len = PIECES_OF_BLOCK * PIECE_BYTES;
                                volume.discard(block.start * PIECE_BYTES, len, false).unwrap();
                            }
                            1 => {
                                note(Step::Put { piece, number: 0 });
                                volume.write_zeroes(offset, PIECE_BYTES, false).unwrap();
                            }
                            _ => {
                                note(Step::Put { piece, number });
                                let data = number.to_le_bytes().repeat(PIECE_BYTES as usize / 8);
                                write(volume, offset, &data, false).unwrap();
                            }
                        }
                    }
                    volume.flush().unwrap();
                    note(Step::Flushed);
                    flushes[thread as usize].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // At most one minute: a failed thread stops flushing.
        for _ in 0..6000 {
            if flushes.iter().all(|count| count.load(Ordering::Relaxed) >= 10) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let pause = Random::new(u64::from(std::process::id())).below(400);
        std::thread::sleep(std::time::Duration::from_millis(pause));
        end();
    });
}

/// The possible contents of each piece: those at the last flush, or any later ones. `None` stands
/// for the initial contents.
fn possible(directory: &Directory) -> BTreeMap<u64, Vec<Option<u64>>> {
    let mut all = BTreeMap::new();
    for thread in 0..THREADS {
        let log = std::fs::read(directory.0.join(format!("thread{thread}"))).unwrap();
        let mut own: BTreeMap<u64, Vec<Option<u64>>> = BTreeMap::new();
        let put = |own: &mut BTreeMap<_, Vec<_>>, piece, number| {
            own.entry(piece).or_insert_with(|| vec![None]).push(Some(number));
        };
        for step in log.chunks_exact(24).map(Step::from_bytes) {
            match step {
                Step::Put { piece, number } => put(&mut own, piece, number),
                Step::Discard => own_block(thread).for_each(|piece| put(&mut own, piece, 0)),
                Step::Flushed => {
                    for numbers in own.values_mut() {
                        numbers.drain(..numbers.len() - 1);
                    }
                }
            }
        }
        all.append(&mut own);
    }
    all
}

#[test]
fn what_any_of_many_threads_flushed_is_there_after_a_crash() {
    let Some(zpool) = zpool() else { return };
    for scenario in CONCURRENT.iter().cycle().take(6) {
        let (directory, config) = die(scenario);
        zpool.import(scenario.name, &config, false);
        let volume =
            Volume::open(&zpool.library, &format!("{}/vol", scenario.name), false).unwrap();
        let was = before();
        for (piece, numbers) in possible(&directory) {
            let offset = (piece * PIECE_BYTES) as usize;
            let data = read(&volume, offset as u64, PIECE_BYTES as usize).unwrap();
            for (sector, data) in data.chunks(512).enumerate() {
                let old = &was[offset + 512 * sector..][..512];
                let may_be = |number: &Option<u64>| match number {
                    Some(number) => data == number.to_le_bytes().repeat(64),
                    None => data == old,
                };
                assert!(
                    numbers.iter().any(may_be),
                    "{}: piece {piece}, sector {sector} has {:x?}{}, and may have {numbers:x?}",
                    scenario.name,
                    &data[..8],
                    if data == old { ", as in the beginning" } else { "" },
                );
            }
        }
        drop(volume);
        zpool.export(scenario.name);
        assert_clean(scenario.name, &directory.0);
    }
}
