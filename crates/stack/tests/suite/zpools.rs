//! The protection of members of ZFS pools: golden pools made by libzpool.

use ashlar_block::{Sector, Sectors};
use ashlar_md::ondisk::Version;
use ashlar_sim::{Media, Sim, SimDisk};
use ashlar_stack::assemble::Options;
use ashlar_stack::devices::Role;
use ashlar_stack::probe::probe;

use crate::common::{SECTOR, boot, disk, golden, mbr, mirror, notes, role, volumes};

#[test]
fn what_would_be_lost_is_named() {
    let claims = |bytes: &[u8]| {
        let gateway = SimDisk::over("disk", disk(bytes)).gateway();
        Sim::new(3).block_on(async { probe(&gateway).await.expect("readable").claims() })
    };
    let [of_pool] = &claims(&golden("destroyed")[0])[..] else { panic!("not one claim") };
    assert!(of_pool.starts_with("zfs member of pool golden-destroyed ("), "{of_pool}");
    assert!(of_pool.ends_with(", destroyed)"), "{of_pool}");
    assert_eq!(claims(&golden("stripe")[5]), ["zfs spare of a pool"]);
    // Any remaining label shows that there was a pool.
    let mut device = golden("mirror")[0].clone();
    let end = device.len();
    device[..512 << 10].fill(0);
    device[end - (512 << 10)..end - (128 << 10)].fill(0);
    let claims = claims(&device);
    assert!(claims.len() == 1 && claims[0].starts_with("zfs member at 0x3f"), "{claims:?}");
}

/// The disks of a mirrored pool that still have the superblocks of an earlier array.
fn contested(version: Version) -> Vec<Media> {
    let sim = Sim::new(4);
    let devices = golden("mirror");
    let size = Sectors::from_bytes_floor(devices[0].len() as u64);
    let old: Vec<Media> = (0..2).map(|_| Media::new(size)).collect();
    sim.block_on(async {
        let disks = old.iter().map(|media| SimDisk::over("disk", media.clone()).gateway());
        mirror(&disks.collect::<Vec<_>>(), 0, version).await;
    });
    let at = version.super_offset(size).expect("large enough");
    let media: Vec<Media> = devices.iter().map(|bytes| disk(bytes)).collect();
    for (media, old) in media.iter().zip(&old) {
        (0..8).map(|n| at + Sectors(n)).for_each(|at| media.poke(at, &old.peek(at)));
    }
    media
}

#[test]
fn an_array_and_a_pool_on_the_same_disks_are_only_read() {
    for version in [Version::V1_0, Version::V1_2] {
        let media = contested(version);
        let before: Vec<_> = media.iter().map(Media::snapshot).collect();
        let sim = Sim::new(5);
        sim.block_on(async {
            let said = |note: &String| {
                note.contains("has two owners, of which neither is inside the other: the md array host:0 (raid1")
                    && note.contains("and the ZFS pool golden-mirror (")
            };
            let stack = boot(&sim, &media, Options::default()).await;
            assert_eq!(volumes(&stack), [""; 0], "{version}");
            assert_eq!(role(&stack, "d0.img"), Role::Refused);
            assert_eq!(notes(&stack).iter().filter(|note| said(note)).count(), 2, "{:?}", notes(&stack));
            stack.stop().await.unwrap();
            let md = ashlar_md::Options { run: false, read_only: true, force: false };
            let stack = boot(&sim, &media, Options { md, ..Options::default() }).await;
            assert_eq!(volumes(&stack), ["md0"], "{version}");
            assert_eq!(notes(&stack).iter().filter(|note| said(note)).count(), 2);
            stack.stop().await.unwrap();
            let stack = boot(&sim, &media, Options { whole: true, ..Options::default() }).await;
            assert_eq!(volumes(&stack), ["md0"], "{version}");
            stack.stop().await.unwrap();
        });
        for (media, before) in media.iter().zip(&before) {
            assert_eq!(media.diff(before), []);
        }
    }
}

#[test]
fn a_pool_right_behind_a_partition_table_is_an_owner_too() {
    let media = disk(&golden("mirror")[0]);
    media.poke(Sector(0), &mbr(&[(0x83, 2048, 4096)]));
    let sim = Sim::new(6);
    sim.block_on(async {
        let stack = boot(&sim, std::slice::from_ref(&media), Options::default()).await;
        assert_eq!(role(&stack, "d0.img"), Role::Refused, "{:?}", notes(&stack));
        stack.stop().await.unwrap();
        // The labels that a partitioning tool leaves of an old pool do not count.
        for sector in 32..512 {
            media.poke(Sector(sector), &[0; SECTOR]);
        }
        let stack = boot(&sim, std::slice::from_ref(&media), Options::default()).await;
        assert_eq!(volumes(&stack), ["d0.img1"]);
        stack.stop().await.unwrap();
    });
}
