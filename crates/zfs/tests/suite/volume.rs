//! Volumes on real libzpool, in this process.

use std::os::unix::fs::FileExt as _;

use crate::pool::io::{Random, assert_same, assert_volume, change, cut, read, write};
use crate::pool::{Directory, NewVolume, assert_clean, zpool};
use ashlar_zfs::protocol::RemoteSegment;
use ashlar_zfs::zvol::{Peer, Segments, Volume};
use rustix::io::Errno;

const MIB: u64 = 1 << 20;

#[test]
fn what_is_written_is_read_and_nothing_more() {
    let Some(zpool) = zpool() else { return };
    let directory = Directory::new("basic");
    zpool.create_pool("basic", &[directory.file("disk", 256 * MIB)], false);
    let new = NewVolume { name: "basic/vol", volsize_bytes: 64 * MIB, volblocksize_bytes: 16384 };
    zpool.create_volume(&new, &[]);
    let volume = Volume::open(&zpool.library, "basic/vol", false).unwrap();
    assert_eq!((volume.volsize_bytes(), volume.volblocksize_bytes()), (64 * MIB, 16384));
    assert!(!volume.is_read_only());
    // Larger than a transaction, and not aligned.
    let data: Vec<u8> = (0..40 * MIB as usize).map(|at| (at / 512 % 251 + 1) as u8).collect();
    write(&volume, 512 * 3, &data, false).unwrap();
    volume.flush().unwrap();
    assert_same(&read(&volume, 512 * 3, data.len()).unwrap(), &data, "all");
    assert_eq!(read(&volume, 0, 512 * 3).unwrap(), vec![0; 512 * 3]);
    assert_eq!(read(&volume, 512 * 3 + data.len() as u64, 4096).unwrap(), vec![0; 4096]);
    // Discards free only whole blocks; write-zeroes covers everything.
    volume.discard(16384 + 512, 3 * 16384, false).unwrap();
    let mut expected = data[16384 - 512 * 3..][..4 * 16384].to_vec();
    expected[16384..3 * 16384].fill(0);
    assert_same(&read(&volume, 16384, 4 * 16384).unwrap(), &expected, "discarded");
    volume.write_zeroes(MIB + 512, 100_352, true).unwrap();
    let mut expected = data[MIB as usize - 512 * 3..][..256 * 1024].to_vec();
    expected[512..512 + 100_352].fill(0);
    assert_same(&read(&volume, MIB, 256 * 1024).unwrap(), &expected, "zeroed");
    // The end, and beyond.
    write(&volume, 64 * MIB - 512, &[9; 512], true).unwrap();
    assert_eq!(read(&volume, 64 * MIB - 512, 512).unwrap(), [9; 512]);
    for (offset, len) in [(64 * MIB - 512, 1024), (64 * MIB, 512), (u64::MAX - 511, 1024)] {
        assert_eq!(write(&volume, offset, &vec![1; len], false).unwrap_err(), Errno::IO);
        assert_eq!(read(&volume, offset, len).unwrap_err(), Errno::IO);
        assert_eq!(volume.discard(offset, len as u64, false).unwrap_err(), Errno::IO);
        assert_eq!(volume.write_zeroes(offset, len as u64, false).unwrap_err(), Errno::IO);
    }
    drop(volume);
    zpool.export("basic");
    assert_clean("basic", &directory.0);
}

/// The I/O of an operating system's installation, with which upstream's request queue lost data:
/// requests of many small segments that are aligned only to sectors.
#[test]
fn many_small_segments_in_one_request_are_all_written() {
    const SIZE: u64 = 4 * MIB;
    // Each byte is written about ten times.
    const ROUNDS: usize = 150;
    let Some(zpool) = zpool() else { return };
    let directory = Directory::new("segments");
    zpool.create_pool("segments", &[directory.file("disk", 512 * MIB)], false);
    for (name, volblocksize_bytes) in
        [("segments/small", 512), ("segments/usual", 16384), ("segments/large", 1 << 17)]
    {
        let new = NewVolume { name, volsize_bytes: SIZE, volblocksize_bytes };
        zpool.create_volume(&new, &[]);
        let volume = Volume::open(&zpool.library, name, false).unwrap();
        let mut random = Random::new(u64::from(volblocksize_bytes));
        let mut oracle = vec![0; SIZE as usize];
        for round in 0..ROUNDS {
            let fua = random.below(50) == 0;
            change(&volume, &mut oracle, &mut random, 512 << 10, fua);
            let (offset, len) = random.range(SIZE, 256 << 10);
            let mut memory = vec![0xee; len];
            let list = cut(&mut memory, Some(&mut random));
            let mut segments = Segments::new(Peer::this(), list);
            volume.read(offset, len as u64, &mut segments).unwrap();
            assert_same(
                &memory,
                &oracle[offset as usize..][..len],
                &format!("{name}, round {round}"),
            );
        }
        assert_volume(&volume, &oracle);
        // Read from disk, not from the cache.
        volume.suspend();
        assert_eq!(volume.flush().unwrap_err(), Errno::NXIO);
        assert_eq!(read(&volume, 0, 512).unwrap_err(), Errno::NXIO);
        volume.resume().unwrap();
        assert_volume(&volume, &oracle);
    }
    zpool.export("segments");
    assert_clean("segments", &directory.0);
}

/// libzpool aborts the process if a free reaches beyond the indirect blocks of the object, so this
/// must not happen.
#[test]
fn what_lies_behind_all_data_is_discarded_too() {
    let Some(zpool) = zpool() else { return };
    let directory = Directory::new("behind");
    zpool.create_pool("behind", &[directory.file("disk", 512 * MIB)], false);
    let new = NewVolume { name: "behind/vol", volsize_bytes: 128 * MIB, volblocksize_bytes: 8192 };
    zpool.create_volume(&new, &[]);
    let volume = Volume::open(&zpool.library, "behind/vol", false).unwrap();
    volume.discard(18 * MIB, 100 * MIB, false).unwrap();
    volume.write_zeroes(512, 127 * MIB, false).unwrap();
    // An indirect block covers 8 MiB, and a dnode has three pointers: this much needs two levels,
    // the rest three.
    write(&volume, 20 * MIB, &[7; 8192], false).unwrap();
    volume.discard(21 * MIB, 100 * MIB, false).unwrap();
    assert_eq!(read(&volume, 20 * MIB, 8192).unwrap(), [7; 8192]);
    volume.write_zeroes(18 * MIB + 512, 110 * MIB - 1024, true).unwrap();
    assert_eq!(read(&volume, 20 * MIB, 8192).unwrap(), [0; 8192]);
    drop(volume);
    zpool.export("behind");
    assert_clean("behind", &directory.0);
}

#[test]
fn threads_that_write_next_to_each_other_do_not_disturb_each_other() {
    let Some(zpool) = zpool() else { return };
    let directory = Directory::new("threads");
    zpool.create_pool("threads", &[directory.file("disk", 512 * MIB)], false);
    let new = NewVolume { name: "threads/vol", volsize_bytes: 16 * MIB, volblocksize_bytes: 16384 };
    // logbias=throughput: blocks are written for the log while other threads write to them.
    zpool.create_volume(&new, &[("logbias", 1)]);
    let volume = Volume::open(&zpool.library, "threads/vol", false).unwrap();
    let sectors = 16 * MIB / 512;
    // Thread t writes the sectors that are t modulo 4: all threads share every block.
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let volume = &volume;
            scope.spawn(move || {
                let mut random = Random::new(thread + 1);
                let mut mine = vec![0_u8; (sectors / 4) as usize];
                for round in 0..3000 {
                    let at = random.below(sectors / 4);
                    let (offset, value) = ((at * 4 + thread) * 512, random.next() as u8);
                    write(volume, offset, &[value; 512], random.below(100) == 0).unwrap();
                    mine[at as usize] = value;
                    if round % 500 == 0 {
                        volume.flush().unwrap();
                    }
                    let at = random.below(sectors / 4);
                    let got = read(volume, (at * 4 + thread) * 512, 512).unwrap();
                    assert_eq!(got, [mine[at as usize]; 512]);
                }
            });
        }
    });
    drop(volume);
    zpool.export("threads");
    assert_clean("threads", &directory.0);
}

#[test]
fn memory_that_is_not_there_fails_the_write_and_nothing_else() {
    let Some(zpool) = zpool() else { return };
    let directory = Directory::new("fault");
    zpool.create_pool("fault", &[directory.file("disk", 256 * MIB)], false);
    let new = NewVolume { name: "fault/vol", volsize_bytes: 16 * MIB, volblocksize_bytes: 16384 };
    zpool.create_volume(&new, &[]);
    let volume = Volume::open(&zpool.library, "fault/vol", false).unwrap();
    let mut random = Random::new(1);
    let mut oracle = vec![0; 16 * MIB as usize];
    random.fill(&mut oracle[..8 * MIB as usize]);
    write(&volume, 0, &oracle[..8 * MIB as usize], false).unwrap();
    for is_cached in [true, false] {
        if !is_cached {
            volume.suspend();
            volume.resume().unwrap();
        }
        // Both with and without existing data.
        for offset in [5 * 512, 4 * MIB + 512, 8 * MIB + 512 * 7, 12 * MIB] {
            let mut good = vec![0x77; 100 * 512];
            let mut list = cut(&mut good, Some(&mut random));
            list.push(RemoteSegment { address: 4096, len_bytes: 100 * 512 });
            let mut segments = Segments::new(Peer::this(), list);
            let errno = volume.write(offset, 200 * 512, &mut segments, false).unwrap_err();
            assert_eq!(errno, Errno::FAULT);
            // Each sector has its old contents, the new ones, or zeroes.
            let got = read(&volume, offset, 200 * 512).unwrap();
            let was = &oracle[offset as usize..][..200 * 512];
            for (at, (got, was)) in got.chunks(512).zip(was.chunks(512)).enumerate() {
                let is_new = at < 100 && got.iter().all(|byte| *byte == 0x77);
                let is_zero = got.iter().all(|byte| *byte == 0);
                assert!(got == was || is_new || is_zero, "sector {at} of {offset}");
            }
            oracle[offset as usize..][..200 * 512].copy_from_slice(&got);
        }
        assert_volume(&volume, &oracle);
    }
    let bad = [RemoteSegment { address: 4096, len_bytes: 512 }];
    assert_eq!(
        volume.read(0, 512, &mut Segments::new(Peer::this(), bad)).unwrap_err(),
        Errno::FAULT
    );
    volume.flush().unwrap();
    drop(volume);
    zpool.export("fault");
    assert_clean("fault", &directory.0);
}

#[test]
fn a_full_pool_is_told_and_the_volume_lives_on() {
    let Some(zpool) = zpool() else { return };
    let directory = Directory::new("full");
    zpool.create_pool("full", &[directory.file("disk", 128 * MIB)], false);
    let new = NewVolume { name: "full/vol", volsize_bytes: 1024 * MIB, volblocksize_bytes: 16384 };
    zpool.create_volume(&new, &[]);
    let volume = Volume::open(&zpool.library, "full/vol", false).unwrap();
    let mut random = Random::new(2);
    let mut data = vec![0; MIB as usize];
    random.fill(&mut data);
    let mut written = 0;
    let errno = loop {
        match write(&volume, written * MIB, &data, false) {
            Ok(()) => written += 1,
            Err(errno) => break errno,
        }
        assert!(written < 128);
    };
    assert_eq!(errno, Errno::NOSPC);
    assert!(written > 40, "{written}");
    volume.flush().unwrap();
    assert_same(&read(&volume, (written - 1) * MIB, MIB as usize).unwrap(), &data, "last");
    volume.discard(0, written / 2 * MIB, false).unwrap();
    // Freed space is available some transaction groups later.
    for _ in 0..4 {
        zpool.sync("full");
    }
    write(&volume, 0, &data, true).unwrap();
    assert_same(&read(&volume, 0, MIB as usize).unwrap(), &data, "again");
    drop(volume);
    zpool.export("full");
    assert_clean("full", &directory.0);
}

#[test]
fn damaged_data_is_an_error_where_it_is() {
    let Some(zpool) = zpool() else { return };
    let directory = Directory::new("damaged");
    let disk = directory.file("disk", 256 * MIB);
    zpool.create_pool("damaged", std::slice::from_ref(&disk), false);
    let new = NewVolume { name: "damaged/vol", volsize_bytes: 16 * MIB, volblocksize_bytes: 16384 };
    zpool.create_volume(&new, &[]);
    let volume = Volume::open(&zpool.library, "damaged/vol", false).unwrap();
    let mut data = vec![0; MIB as usize];
    Random::new(3).fill(&mut data);
    write(&volume, 0, &data, true).unwrap();
    drop(volume);
    let config = zpool.config("damaged");
    zpool.export("damaged");
    // Random data is not compressed: block 5 is on the disk verbatim. The log may have it too.
    let bytes = std::fs::read(&disk).unwrap();
    let needle = &data[5 * 16384..][..512];
    let places: Vec<usize> =
        (0..bytes.len() / 512).filter(|at| &bytes[at * 512..][..512] == needle).collect();
    assert!(!places.is_empty());
    let file = std::fs::File::options().write(true).open(&disk).unwrap();
    for place in places {
        file.write_all_at(&[0x55; 16], place as u64 * 512 + 100).unwrap();
    }
    zpool.import("damaged", &config, false);
    let volume = Volume::open(&zpool.library, "damaged/vol", false).unwrap();
    assert_eq!(read(&volume, 5 * 16384 + 8192, 512).unwrap_err(), Errno::IO);
    assert_eq!(write(&volume, 5 * 16384, &[1; 512], false).unwrap_err(), Errno::IO);
    assert_same(&read(&volume, 6 * 16384, 16384).unwrap(), &data[6 * 16384..][..16384], "next");
    // The whole block is written, so it is not read.
    write(&volume, 5 * 16384, &data[..16384], true).unwrap();
    assert_same(&read(&volume, 5 * 16384, 16384).unwrap(), &data[..16384], "new");
    drop(volume);
    zpool.export("damaged");
    assert_clean("damaged", &directory.0);
}

#[test]
fn what_is_read_only_is_not_written() {
    let Some(zpool) = zpool() else { return };
    let directory = Directory::new("ro");
    zpool.create_pool("ro", &[directory.file("disk", 256 * MIB)], false);
    let new = NewVolume { name: "ro/vol", volsize_bytes: 16 * MIB, volblocksize_bytes: 16384 };
    zpool.create_volume(&new, &[]);
    let volume = Volume::open(&zpool.library, "ro/vol", false).unwrap();
    write(&volume, 0, &[1; 4096], false).unwrap();
    zpool.snapshot("ro/vol", "then");
    write(&volume, 0, &[2; 4096], false).unwrap();
    let snapshot = Volume::open(&zpool.library, "ro/vol@then", false).unwrap();
    assert_eq!(read(&snapshot, 0, 4096).unwrap(), [1; 4096]);
    assert_eq!(read(&volume, 0, 4096).unwrap(), [2; 4096]);
    let refuses = |volume: &Volume| {
        assert!(volume.is_read_only());
        assert_eq!(write(volume, 0, &[3; 512], false).unwrap_err(), Errno::ROFS);
        assert_eq!(volume.discard(0, 16384, false).unwrap_err(), Errno::ROFS);
        assert_eq!(volume.write_zeroes(0, 512, true).unwrap_err(), Errno::ROFS);
        volume.flush().unwrap();
    };
    refuses(&snapshot);
    drop((snapshot, volume));
    let asked = Volume::open(&zpool.library, "ro/vol", true).unwrap();
    refuses(&asked);
    drop(asked);
    zpool.set("ro/vol", "readonly", 1);
    let set = Volume::open(&zpool.library, "ro/vol", false).unwrap();
    refuses(&set);
    assert_eq!(read(&set, 0, 4096).unwrap(), [2; 4096]);
    drop(set);
    let config = zpool.config("ro");
    zpool.export("ro");
    zpool.import("ro", &config, true);
    let imported = Volume::open(&zpool.library, "ro/vol", false).unwrap();
    refuses(&imported);
    drop(imported);
    zpool.export("ro");
}

#[test]
fn a_volume_that_is_opened_leaves_the_tunables_as_they_are() {
    /// Logs every error that libzpool returns in its debug messages.
    const DEBUG_SET_ERROR: u32 = 1 << 9;
    let Some(zpool) = zpool() else { return };
    let directory = Directory::new("tunables");
    zpool.create_pool("tunables", &[directory.file("disk", 128 * MIB)], false);
    let new = NewVolume { name: "tunables/vol", volsize_bytes: 16 * MIB, volblocksize_bytes: 8192 };
    zpool.create_volume(&new, &[]);
    zpool.tune("zfs_flags", DEBUG_SET_ERROR);
    let volume = Volume::open(&zpool.library, "tunables/vol", false).unwrap();
    let flags = zpool.tuned("zfs_flags");
    zpool.tune("zfs_flags", 0);
    assert_eq!(flags, DEBUG_SET_ERROR);
    drop(volume);
    zpool.export("tunables");
}

#[test]
fn a_volume_is_opened_once_and_only_if_it_is_one() {
    let Some(zpool) = zpool() else { return };
    let directory = Directory::new("open");
    zpool.create_pool("open", &[directory.file("disk", 128 * MIB)], false);
    let new = NewVolume { name: "open/vol", volsize_bytes: 16 * MIB, volblocksize_bytes: 16384 };
    zpool.create_volume(&new, &[]);
    let error = |name: &str| Volume::open(&zpool.library, name, false).unwrap_err().to_string();
    let volume = Volume::open(&zpool.library, "open/vol", false).unwrap();
    assert_eq!(error("open/vol"), Errno::BUSY.to_string());
    drop(volume);
    drop(Volume::open(&zpool.library, "open/vol", false).unwrap());
    assert_eq!(error("open/none"), Errno::NOENT.to_string());
    assert_eq!(error("open"), Errno::INVAL.to_string());
    assert!(error("open/vo\0l").contains("zero bytes"));
    zpool.export("open");
}
