//! The selection among several superblocks.

use ashlar_block::units::Sectors;

use super::created_spec;
use crate::ondisk::create::create;
use crate::ondisk::probe::{ProbeResult, identify, probe_ranges};
use crate::ondisk::{Defect, Version};

const DEVICE: Sectors = Sectors(204_800);

/// The bytes of a superblock of this version created at this time.
fn superblock(version: Version, ctime: u64) -> Vec<u8> {
    let mut spec = created_spec(&format!("{version} 1 - - - none - 2 {DEVICE} {DEVICE}"));
    spec.ctime = ctime;
    let made = create(&spec).unwrap();
    made[0].as_ref().unwrap().superblock.encode(4096).unwrap()
}

/// A device with these superblocks on it.
fn device(superblocks: &[(Version, Vec<u8>)]) -> Vec<(u64, Vec<u8>)> {
    probe_ranges(DEVICE)
        .into_iter()
        .map(|(offset, len)| {
            let here = superblocks
                .iter()
                .find(|(version, _)| version.super_offset(DEVICE).unwrap().bytes() == offset);
            (offset, here.map_or(vec![0; len], |(_, bytes)| bytes.clone()))
        })
        .collect()
}

fn probe(read: &[(u64, Vec<u8>)]) -> ProbeResult {
    let read: Vec<(u64, &[u8])> = read.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
    identify(DEVICE, &read)
}

fn version_of(probed: &ProbeResult) -> Option<Version> {
    let preferred = probed.preferred.as_ref()?;
    Some(match preferred {
        Ok(superblock) => superblock.version,
        Err(error) => error.version,
    })
}

#[test]
fn the_places_are_those_of_the_kernel() {
    for (device, places) in [
        (23, [None, None, None, None]),
        (24, [None, Some(8), Some(0), Some(8)]),
        (127, [None, Some(104), Some(0), Some(8)]),
        (128, [Some(0), Some(112), Some(0), Some(8)]),
        (255, [Some(0), Some(232), Some(0), Some(8)]),
        (256, [Some(128), Some(240), Some(0), Some(8)]),
        (204_807, [Some(204_672), Some(204_784), Some(0), Some(8)]),
    ] {
        let found =
            Version::ALL.map(|version| version.super_offset(Sectors(device)).map(|at| at.0));
        assert_eq!(found, places, "{device} sectors");
    }
    assert_eq!(probe_ranges(Sectors(20)), []);
    assert_eq!(probe_ranges(Sectors(24)), [(0, 4096), (4096, 4096)]);
    assert_eq!(probe_ranges(DEVICE).len(), 4);
}

#[test]
fn an_empty_device_has_none() {
    let probed = probe(&device(&[]));
    assert!(probed.preferred.is_none());
    assert!(probed.others.is_empty() && probed.unread.is_empty());
}

#[test]
fn the_one_created_last_wins() {
    let versions = [Version::V1_0, Version::V1_1, Version::V1_2];
    for newest in versions {
        let superblocks: Vec<_> = versions
            .map(|version| (version, superblock(version, 1000 + u64::from(version == newest))))
            .into();
        let probed = probe(&device(&superblocks));
        assert_eq!(version_of(&probed), Some(newest));
        assert_eq!(probed.others.len(), 2);
    }
}

#[test]
fn of_equally_old_ones_the_first_in_mdadms_order_wins() {
    let all = [Version::V1_2, Version::V1_1, Version::V1_0].map(|v| (v, superblock(v, 1000)));
    assert_eq!(version_of(&probe(&device(&all))), Some(Version::V1_0));
    assert_eq!(version_of(&probe(&device(&all[..2]))), Some(Version::V1_1));
    assert_eq!(version_of(&probe(&device(&all[..1]))), Some(Version::V1_2));
}

#[test]
fn a_damaged_newest_one_does_not_let_an_older_one_win() {
    let mut damaged = superblock(Version::V1_2, 2000);
    damaged[200] ^= 1;
    let both = [(Version::V1_2, damaged), (Version::V1_0, superblock(Version::V1_0, 1000))];
    let probed = probe(&device(&both));
    let error = probed.preferred.unwrap().unwrap_err();
    assert_eq!(error.version, Version::V1_2);
    assert!(matches!(error.defect, Defect::Checksum { .. }), "{error}");
    assert_eq!(probed.others, [Version::V1_0]);
}

#[test]
fn ranges_that_were_not_read_are_reported() {
    let mut read = device(&[(Version::V1_2, superblock(Version::V1_2, 1000))]);
    for (offset, bytes) in &mut read {
        if *offset != 4096 {
            bytes.truncate(512);
        }
    }
    let probed = probe(&read);
    assert_eq!(version_of(&probed), Some(Version::V1_2));
    let unread: Vec<Version> = probed.unread.iter().map(|error| error.version).collect();
    assert_eq!(unread, [Version::V0_90, Version::V1_0, Version::V1_1]);
    assert_eq!(
        probed.unread[1].to_string(),
        "md superblock version 1.0 at sector 204784: truncated: 512 of 4096 bytes"
    );
    assert_eq!(identify(DEVICE, &[]).unread.len(), 4);
}

#[test]
fn a_superblock_copied_to_another_place_is_none() {
    let mut read = device(&[]);
    let bytes = superblock(Version::V1_2, 1000);
    for (_, range) in &mut read {
        range.copy_from_slice(&bytes);
    }
    let probed = probe(&read);
    assert_eq!(version_of(&probed), Some(Version::V1_2));
    assert!(probed.others.is_empty());
}
