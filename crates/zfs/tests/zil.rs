//! What is flushed is there after a crash: a child writes, flushes and kills itself; the pool is imported here, and the log
//! replayed. No transaction group is written between, so all that is found comes from the log.

mod pool;

use std::io::Read as _;
use std::process::{Command, Stdio};

use ashlar_zfs::zvol::Volume;
use pool::io::{Random, assert_volume, change, read, write};
use pool::{Directory, NewVolume, Zpool, assert_clean, zpool};

const MIB: u64 = 1 << 20;
const VOLSIZE_BYTES: u64 = 32 * MIB;
/// `ZFS_LOGBIAS_THROUGHPUT`
const THROUGHPUT: u64 = 1;

/// What a child does.
struct Scenario {
    name: &'static str,
    volblocksize_bytes: u32,
    properties: &'static [(&'static str, u64)],
    has_slog: bool,
    /// Changes the volume, and the oracle to what must be found. Everything is flushed in the end.
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
        // One record for more than any log block holds.
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
        // sync=always: nobody flushes.
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
        // Blocks that are pointed to are zeroed in part and written again, in one commit.
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

/// Writes of one length, unaligned too, with a flush after the last unless each is one.
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

/// Few blocks are written, zeroed or discarded, in part or as a whole, and written again, between two flushes.
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

/// The child, or rather: what it does when this program is started again for it.
#[test]
#[ignore = "is run as the child of the tests below"]
fn child() {
    let Some(zpool) = zpool() else { return };
    let name = std::env::var("ASHLAR_TEST_SCENARIO").unwrap();
    let directory = std::path::PathBuf::from(std::env::var_os("ASHLAR_TEST_DIRECTORY").unwrap());
    let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name).unwrap();
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
    // The first commit ever writes a transaction group: it puts the log's place into the objset.
    write(&volume, 0, &oracle, true).unwrap();
    zpool.sync(scenario.name);
    (scenario.act)(&volume, &mut oracle);
    std::fs::write(directory.join("oracle"), &oracle).unwrap();
    std::fs::write(directory.join("config"), zpool.config(scenario.name)).unwrap();
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
        .unwrap();
}

/// What a volume has before the scenario begins.
fn before() -> Vec<u8> {
    let mut oracle = vec![0; VOLSIZE_BYTES as usize];
    Random::new(99).fill(&mut oracle[..VOLSIZE_BYTES as usize / 2]);
    oracle
}

fn crash(zpool: &Zpool, scenario: &Scenario) {
    let directory = Directory::new(scenario.name);
    // Far larger than what is written: libzpool counts 24 times that until it is on disk.
    directory.file("disk", 8192 * MIB);
    directory.file("log", 128 * MIB);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "child", "--nocapture"])
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
    assert_eq!(signal, Some(9), "{told}");
    let oracle = std::fs::read(directory.0.join("oracle")).unwrap();
    let config = std::fs::read(directory.0.join("config")).unwrap();
    assert_ne!(oracle, before());
    let volume_name = format!("{}/vol", scenario.name);

    // Nothing is replayed into a pool that is not written: it is all in the log, and only there.
    zpool.import(scenario.name, &config, true);
    let volume = Volume::open(&zpool.library, &volume_name, false).unwrap();
    assert!(volume.is_read_only());
    assert_volume(&volume, &before());
    drop(volume);
    zpool.export(scenario.name);

    zpool.import(scenario.name, &config, false);
    let volume = Volume::open(&zpool.library, &volume_name, false).unwrap();
    assert_volume(&volume, &oracle);
    // The log is as good as new.
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
