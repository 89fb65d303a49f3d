//! Superblocks and md's other metadata on members.

use ashlar_block::{BlockDevice, Sector, Sectors};
use ashlar_md::ondisk::{Level, Version};
use ashlar_md::{GrowOptions, probe};
use ashlar_sim::Sim;

use crate::common::{Shape, disks, start};
use crate::manage::world::{DISK, LEN, RW, Recipe, World, check, member};

/// The marks of the first eight chunks on a member's disk: the first byte of its bitmap.
pub(crate) async fn marks(world: &World, disk: usize) -> u8 {
    let sb = probe(&world.disks[disk].gateway()).await.unwrap().unwrap();
    let at = sb.bitmap_start().expect("a bitmap");
    world.media[disk].peek_range(at, Sectors(1))[256]
}

/// Upstream: "md: no longer compare spare disk superblock events in super_load" (6.12.109). A spare with the
/// highest event count counted as the freshest device, and the array did not start.
#[test]
fn events_of_a_spare_disk_superblock_are_not_compared() {
    for level in [Level::Raid1, Level::Raid10] {
        let chunk = if level == Level::Raid1 { 0 } else { 4 };
        for events in [0, 1, 1 << 40, u64::MAX] {
            let recipe = Recipe::new(Shape::new(level, None, chunk, 2));
            let recipe = Recipe { spares: 1, extra: 0, ..recipe };
            let media = recipe.media();
            let sim = Sim::new(1);
            sim.block_on(async {
                let world = recipe.start(&sim, &media).await;
                world.array.stop().await.unwrap();
                let mut sb = probe(&world.disks[2].gateway()).await.unwrap().unwrap();
                sb.events = events;
                media[2].poke(Sector(8), &sb.encode(512).unwrap());
                for first in 0..3 {
                    // In any order of discovery.
                    let mut disks = disks(&media);
                    disks.rotate_left(first);
                    let array = start(&sim, &disks, &RW).await.unwrap();
                    assert_eq!(array.degraded(), 0, "{events}");
                    check(&array, 0, LEN, 1).await;
                    assert!(member(&array, 2).await.unwrap().is_spare(), "{events}");
                    array.stop().await.unwrap();
                }
            });
        }
    }
}

/// Upstream: "md: fix update super 1.0 on rdev size change" (6.12). When the size of the data changed, a superblock
/// at the end of a member was written to another place than it is read from.
#[test]
fn super_1_0_is_updated_in_its_place_when_the_size_changes() {
    let shape = Shape { version: Version::V1_0, ..Shape::new(Level::Raid1, None, 0, 2) };
    let recipe = Recipe { used: Some(Sectors(2048)), extra: 0, ..Recipe::new(shape) };
    let media = recipe.media();
    let sim = Sim::new(1);
    sim.block_on(async {
        let world = recipe.start(&sim, &media).await;
        let place = probe(&world.disks[0].gateway()).await.unwrap().unwrap().super_offset;
        let size = world.array.grow_size(None, GrowOptions::default()).await.unwrap();
        assert!(size > Sectors(2048) && size.as_end() <= place);
        world.array.sync_ended().await;
        // Up to the last sector: a superblock in the wrong place would overwrite it or be overwritten.
        world.write(size.0 - LEN, LEN, 2).await;
        world.array.stop().await.unwrap();
        for disk in &world.disks {
            let sb = probe(&disk.gateway()).await.unwrap().unwrap();
            assert_eq!((sb.super_offset, sb.size), (place, size));
            assert!(sb.is_clean() && sb.super_offset < DISK.as_end());
        }
        let array = start(&sim, &disks(&media), &RW).await.unwrap();
        assert_eq!((array.disk().capacity(), array.degraded()), (size, 0));
        check(&array, 0, LEN, 1).await;
        check(&array, size.0 - LEN, LEN, 2).await;
        array.stop().await.unwrap();
    });
}

/// Upstream: "dm-raid: don't set io_min and io_opt for raid1" (6.12.49). A mirror has no stripes, but reported
/// some, and file systems aligned themselves to them.
#[test]
fn io_min_and_io_opt_of_a_raid1_are_its_members() {
    let run = |shape: Shape| {
        let recipe = Recipe::new(shape);
        let sim = Sim::new(1);
        let media = recipe.media();
        sim.block_on(async {
            let world = recipe.start(&sim, &media).await;
            let both = |limits: &ashlar_block::Limits| (limits.io_min_bytes, limits.io_opt_bytes);
            let found = both(world.array.disk().limits());
            let members = both(world.disks[0].disk().limits());
            world.array.stop().await.unwrap();
            (found, members)
        })
    };
    let (found, members) = run(Shape::new(Level::Raid1, None, 0, 3));
    assert_eq!(found, members);
    let (found, _) = run(Shape::new(Level::Raid10, Some(0x102), 64, 4));
    assert_eq!(found, (64 << 10, 128 << 10));
}
