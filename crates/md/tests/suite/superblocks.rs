//! Metadata writes of a running array, by version, and of its creation.

use crate::common::{
    Shape, all_clean, candidates, disks, gateway, make, make_with, media, new_devices, spec,
    stamped, start, write,
};
use ashlar_block::{Sector, Sectors};
use ashlar_md::create::{CreateError, create};
use ashlar_md::ondisk::bitmap_super::{self, BitmapSuper};
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::ondisk::superblock_0_90::{Block090, disk, state};
use ashlar_md::ondisk::{Level, MAGIC, Role, Superblock, Version};
use ashlar_md::{Options, probe};
use ashlar_sim::{Media, Sim, SimDisk, Snapshot};
use std::time::Duration;

const DISK: Sectors = Sectors(4096);
const RW: Options = Options { run: false, read_only: false, force: false };
const RUN: Options = Options { run: true, read_only: false, force: false };

#[test]
fn every_version_keeps_its_superblock_in_its_place_and_touches_nothing_else() {
    for version in [Version::V1_0, Version::V1_1, Version::V1_2] {
        let shape = Shape { version, ..Shape::new(Level::Raid10, Some(0x102), 4, 3) };
        let media: Vec<Media> = (0..3).map(|seed| Media::noisy(DISK, seed)).collect();
        let sim = Sim::new(1);
        sim.block_on(async {
            let disks = disks(&media);
            let made = make(&shape, &disks).await;
            let places: Vec<_> = made.superblocks.iter().flatten().map(|n| &n.superblock).collect();
            let before: Vec<Snapshot> = media.iter().map(Media::snapshot).collect();
            let array = start(&sim, &disks, &RW).await.unwrap();
            write(&gateway(&array), 0, array.status().await.size.0, 1).await.unwrap();
            media[1].kill();
            write(&gateway(&array), 0, 64, 2).await.unwrap();
            array.stop().await.unwrap();
            for ((medium, before), sb) in media.iter().zip(&before).zip(&places) {
                let data = sb.data_offset.0..sb.data_offset.0 + sb.data_size.0;
                for sector in medium.diff(before).into_iter().flatten() {
                    let own = sector == sb.super_offset.0 || data.contains(&sector);
                    assert!(own, "{version}: sector {sector} was written");
                }
            }
            media[1].heal();
            for (slot, found) in candidates(&disks).await.iter().enumerate() {
                assert_eq!(found.sb.version, version);
                assert_eq!(found.sb.is_clean(), slot != 1);
                assert_eq!(found.sb.roles[1] == Role::Faulty, slot != 1);
            }
        });
    }
}

/// A 0.90 superblock: level, number of members, used size of each, this member's number, chunk size.
fn block_0_90(level: u32, members: u32, kib: u32, this: u32, chunk: u32) -> Box<Block090> {
    let mut block = Block090::from_bytes(&[0; 4096]).unwrap();
    block.md_magic = MAGIC.into();
    block.minor_version = 90.into();
    (block.set_uuid0, block.set_uuid3) = (7.into(), 9.into());
    block.level = level.into();
    block.size = kib.into();
    (block.nr_disks, block.raid_disks) = (members.into(), members.into());
    (block.active_disks, block.working_disks) = (members.into(), members.into());
    block.state = state::CLEAN.into();
    block.chunk_size = chunk.into();
    block.layout = if level == 10 { 0x102.into() } else { 0.into() };
    block.set_events(40);
    for (number, entry) in (0..).zip(&mut block.disks[..members as usize]) {
        (entry.number, entry.raid_disk) = (number.into(), number.into());
        (entry.major, entry.minor) = (8.into(), number.into());
        entry.state = (disk::ACTIVE | disk::SYNC).into();
    }
    block.this_disk = block.disks[this as usize].clone();
    block.set_resync_offset(u64::MAX);
    block.seal();
    block
}

#[test]
fn arrays_of_version_0_90_are_read_written_and_their_failed_members_recorded() {
    for (level, members, chunk) in [(1, 2, 0), (10, 4, 4096), (0, 3, 4096)] {
        let media = media(members as usize, DISK);
        let place = Version::V0_90.super_offset(DISK).unwrap();
        for (this, medium) in (0..).zip(&media) {
            let block = block_0_90(level, members, 1024, this, chunk);
            medium.poke(place, zerocopy::IntoBytes::as_bytes(&*block));
        }
        let sim = Sim::new(1);
        sim.block_on(async {
            let disks = disks(&media);
            let array = start(&sim, &disks, &RW).await.unwrap();
            write(&gateway(&array), 0, 256, 1).await.unwrap();
            let redundant = level != 0;
            assert_eq!(all_clean(&disks).await, !redundant);
            array.stop().await.unwrap();
            assert!(all_clean(&disks).await);
            assert!(media[0].peek(Sector(0)) == stamped(0, 1, 1)[..], "data begins at once");
            let array = start(&sim, &disks, &RW).await.unwrap();
            let got = gateway(&array).read(Sector(0), Sectors(256)).await.unwrap();
            assert!(got.as_slice() == stamped(0, 256, 1));
            if !redundant {
                return;
            }
            media[1].kill();
            write(&gateway(&array), 0, 256, 2).await.unwrap();
            array.stop().await.unwrap();
            media[1].heal();
            let array = start(&sim, &disks, &RW).await.unwrap();
            assert_eq!(array.degraded(), 1, "the failed member is used again");
            let got = gateway(&array).read(Sector(0), Sectors(256)).await.unwrap();
            assert!(got.as_slice() == stamped(0, 256, 2));
            let sb = probe(&disks[0].gateway()).await.unwrap().unwrap();
            let block = sb.block_0_90().unwrap();
            let counts = [block.active_disks, block.working_disks, block.failed_disks];
            assert_eq!(counts.map(|n| n.get()), [members - 1, members - 1, 1]);
        });
    }
}

/// The bitmap's superblock and the member's.
async fn bitmap(disk: &SimDisk) -> (BitmapSuper, Box<Superblock>) {
    let sb = probe(&disk.gateway()).await.unwrap().unwrap();
    let bytes = disk.media().peek_range(sb.bitmap_start().unwrap(), Sectors(1));
    (BitmapSuper::parse(&bytes).unwrap(), sb)
}

async fn with_bitmap(shape: &Shape, disks: &[SimDisk]) {
    let mut spec = spec(shape, &[DISK, DISK]);
    spec.bitmap = NewBitmap::Internal { chunk: None };
    make_with(&spec, disks).await;
}

/// Whether a member's first chunk is marked. Bits after the bitmap's last bit have no meaning: on a new
/// array they are set, and stay set (as with mdadm and the kernel).
fn is_marked(disk: &SimDisk, sb: &Superblock) -> bool {
    disk.media().peek(sb.bitmap_start().unwrap())[256] & 1 != 0
}

#[test]
fn a_bitmap_is_as_new_as_its_array_and_marks_what_is_written() {
    for version in [Version::V1_0, Version::V1_1, Version::V1_2] {
        let shape = Shape { version, ..Shape::new(Level::Raid1, None, 0, 2) };
        let media = media(2, DISK);
        let sim = Sim::new(1);
        sim.block_on(async {
            let disks = disks(&media);
            with_bitmap(&shape, &disks).await;
            for generation in 0..4 {
                let array = start(&sim, &disks, &RW).await.unwrap();
                write(&gateway(&array), 0, 8, generation).await.unwrap();
                for disk in &disks {
                    let (bitmap, sb) = bitmap(disk).await;
                    assert!(bitmap.events.get() >= sb.events && !sb.is_clean());
                    assert_eq!(bitmap.bits(), 1);
                    assert!(is_marked(disk, &sb));
                }
                if generation % 2 == 0 {
                    array.stop().await.unwrap();
                } else {
                    sim.runtime().sleep(Duration::from_secs(20)).await;
                }
                for disk in &disks {
                    let (bitmap, sb) = bitmap(disk).await;
                    assert!(sb.is_clean() && bitmap.events.get() >= sb.events);
                    assert!(!is_marked(disk, &sb), "the mark stayed");
                }
            }
            // Marks stay for an absent member.
            media[1].kill();
            let array = start(&sim, &disks[..1], &RUN).await.unwrap();
            write(&gateway(&array), 0, 8, 9).await.unwrap();
            array.stop().await.unwrap();
            media[1].heal();
            let missed = probe(&disks[1].gateway()).await.unwrap().unwrap();
            let (bitmap, sb) = bitmap(&disks[0]).await;
            assert!(is_marked(&disks[0], &sb));
            assert!(missed.events >= bitmap.events_cleared.get(), "it may come back by the marks");
        });
    }
}

#[test]
fn a_damaged_bitmap_is_made_anew_and_a_member_whose_bitmap_cannot_be_written_fails() {
    let shape = Shape::new(Level::Raid1, None, 0, 2);
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let disks = disks(&media);
        with_bitmap(&shape, &disks).await;
        let at = bitmap(&disks[0]).await.1.bitmap_start().unwrap();
        media[0].poke(at, &[0x5a; 512]);
        let array = start(&sim, &disks, &RW).await.unwrap();
        write(&gateway(&array), 0, 8, 1).await.unwrap();
        assert_eq!(bitmap(&disks[0]).await.0, bitmap(&disks[1]).await.0);
        array.stop().await.unwrap();
        let array = start(&sim, &disks, &RW).await.unwrap();
        media[1].fail_writes(at.0..at.0 + 1);
        write(&gateway(&array), 0, 8, 2).await.unwrap();
        assert_eq!(array.degraded(), 1);
        let sb = probe(&disks[0].gateway()).await.unwrap().unwrap();
        assert_eq!(sb.roles[1], Role::Faulty);
        array.stop().await.unwrap();
    });
}

#[test]
fn an_array_with_a_lockless_bitmap_keeps_it_up() {
    let shape = Shape::new(Level::Raid1, None, 0, 2);
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let disks = disks(&media);
        with_bitmap(&shape, &disks).await;
        for (disk, medium) in disks.iter().zip(&media) {
            let (mut lockless, sb) = bitmap(disk).await;
            lockless.version = bitmap_super::VERSION_LOCKLESS.into();
            lockless.chunksize = 65536.into();
            medium.poke(sb.bitmap_start().unwrap(), zerocopy::IntoBytes::as_bytes(&lockless));
        }
        let array = start(&sim, &disks, &RW).await.unwrap();
        write(&gateway(&array), 0, 8, 1).await.unwrap();
        let (bitmap, sb) = bitmap(&disks[0]).await;
        assert!(bitmap.events.get() >= sb.events);
        array.stop().await.unwrap();
    });
}

#[test]
fn corrected_read_errors_add_up_over_runs() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let disks = disks(&media);
        make(&Shape::new(Level::Raid1, None, 0, 2), &disks).await;
        for run in 1..=3 {
            let array = start(&sim, &disks, &RW).await.unwrap();
            write(&gateway(&array), 0, 64, 1).await.unwrap();
            media[0].fail_reads(256..257);
            media[1].fail_reads(300..301);
            for _ in 0..8 {
                gateway(&array).read(Sector(0), Sectors(64)).await.unwrap();
            }
            array.stop().await.unwrap();
            let found = candidates(&disks).await;
            let corrected: u32 = found.iter().map(|c| c.sb.corrected_reads).sum();
            assert_eq!(corrected, run * 16);
        }
    });
}

#[test]
fn a_refusal_to_make_an_array_changes_nothing() {
    let shape = Shape::new(Level::Raid1, None, 0, 3);
    for locked in 0..3 {
        let media: Vec<Media> = (0..3).map(|seed| Media::noisy(DISK, seed)).collect();
        let sim = Sim::new(1);
        sim.block_on(async {
            let disks = disks(&media);
            disks[locked].disk().set_read_only(true);
            let before: Vec<Snapshot> = media.iter().map(Media::snapshot).collect();
            let refused = create(&spec(&shape, &[DISK; 3]), &new_devices(&disks)).await;
            assert!(matches!(refused, Err(CreateError::Write { .. })));
            for (medium, before) in media.iter().zip(&before) {
                assert!(medium.diff(before).is_empty(), "{locked}");
            }
        });
    }
}

#[test]
fn superblocks_of_an_older_array_at_other_places_are_erased() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let disks = disks(&media);
        for old in [Version::V1_0, Version::V1_1, Version::V1_2] {
            for new in [Version::V1_0, Version::V1_1, Version::V1_2] {
                for version in [old, new] {
                    make(&Shape { version, ..Shape::new(Level::Raid1, None, 0, 2) }, &disks).await;
                }
                for found in candidates(&disks).await {
                    assert_eq!(found.sb.version, new, "after {old}");
                }
                let array = start(&sim, &disks, &RW).await.unwrap();
                assert_eq!(array.status().await.version, new);
            }
        }
    });
}
