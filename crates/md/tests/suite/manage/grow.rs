//! Changes of size and of the number of members.

use ashlar_block::{BlockDevice, Op, Sectors};
use ashlar_md::ondisk::Level;
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::{Bitmap, GrowOptions, ManageError};

use crate::common::{DATA, Shape, gateway, start, write};
use crate::manage::world::{DISK, RW, Recipe, check, check_copies};

const SMALL: Sectors = Sectors(2048);
/// Sectors of a member's data area.
const ROOM: Sectors = Sectors(DISK.0 - DATA);
const FORCE: GrowOptions = GrowOptions { assume_clean: false, force: true };

fn shapes() -> [Shape; 5] {
    [
        Shape::new(Level::Raid1, None, 0, 2),
        Shape::new(Level::Raid1, None, 0, 3),
        Shape::new(Level::Raid10, Some(0x102), 4, 4),
        Shape::new(Level::Raid10, Some(0x102), 4, 3),
        Shape::new(Level::Raid10, Some(0x1_0201), 4, 4),
    ]
}

fn recipes() -> Vec<Recipe> {
    let bitmaps =
        [NewBitmap::None, NewBitmap::Internal { chunk: Some(1 << 16) }, NewBitmap::Lockless];
    let all = shapes().into_iter().flat_map(|shape| {
        let small = Recipe { used: Some(SMALL), extra: 0, ..Recipe::new(shape) };
        bitmaps.map(|bitmap| small.clone().bitmap(bitmap))
    });
    all.collect()
}

#[test]
fn an_array_grows_to_all_that_its_members_have_and_what_is_new_is_synced() {
    for recipe in recipes() {
        recipe.run(async |sim, world| {
            let array = &world.array;
            // The new part differs between the members.
            for (medium, byte) in world.media.iter().zip(1..) {
                medium.poke((Sectors(DATA) + SMALL).as_end(), &[byte; 4096]);
            }
            let before = array.disk().capacity();
            let size = array.grow_size(None, GrowOptions::default()).await.unwrap();
            assert!(size > before && size == array.disk().capacity());
            let used = array.personality().used_dev_size();
            assert!(used <= ROOM && used + Sectors(16) > ROOM, "{used}");
            array.sync_ended().await;
            assert!(!array.is_unsynced());
            // A lockless bitmap knows what was never written: that may differ.
            if recipe.bitmap != NewBitmap::Lockless {
                world.check_copies().await;
            }
            assert_eq!(array.bitmap().map(Bitmap::size), world_size(&recipe, size));
            world.check(0, 512, 1).await;
            world.write(size.0 - 64, 64, 2).await;
            array.stop().await.unwrap();
            let array = start(sim, &world.disks, &RW).await.unwrap();
            assert_eq!(array.disk().capacity(), size);
            check(&array, 0, 512, 1).await;
            check(&array, size.0 - 64, 64, 2).await;
            array.stop().await.unwrap();
        });
    }
}

fn world_size(recipe: &Recipe, size: Sectors) -> Option<Sectors> {
    (recipe.bitmap != NewBitmap::None).then_some(size)
}

#[test]
fn what_is_new_is_not_synced_if_the_user_knows_it_to_be_alike() {
    for recipe in recipes() {
        recipe.run(async |_, world| {
            world.array.sync_ended().await;
            world.media.iter().for_each(ashlar_sim::Media::clear_log);
            let options = GrowOptions { assume_clean: true, force: false };
            world.array.grow_size(Some(Sectors(4096)), options).await.unwrap();
            world.array.sync_ended().await;
            assert!(!world.array.is_unsynced());
            let beyond = |range: &std::ops::Range<u64>| range.end > DATA + SMALL.0 + 64;
            for medium in &world.media {
                let log = medium.log();
                let read = log.iter().filter(|command| command.op == Op::Read);
                assert!(!read.flat_map(|command| &command.ranges).any(beyond));
            }
        });
    }
}

#[test]
fn an_array_grows_while_it_is_written() {
    for recipe in recipes() {
        recipe.run(async |_, world| {
            let writes = async {
                for at in 0..60 {
                    write(&world.volume(), at * 8, 8, 5).await.unwrap();
                }
            };
            let grow = world.array.grow_size(None, GrowOptions::default());
            let (_, grown) = futures_util::future::join(writes, grow).await;
            grown.unwrap();
            world.array.sync_ended().await;
            world.check(0, 480, 5).await;
            check_copies(&world.array, &world.media, 1024).await;
        });
    }
}

#[test]
fn an_array_shrinks_only_by_force() {
    for recipe in recipes() {
        recipe.run(async |sim, world| {
            let array = &world.array;
            let to = Some(Sectors(1024));
            let refused = array.grow_size(to, GrowOptions::default()).await;
            assert!(matches!(refused, Err(ManageError::Shrinks { .. })), "{refused:?}");
            let size = array.grow_size(to, FORCE).await.unwrap();
            assert_eq!(array.personality().used_dev_size(), Sectors(1024));
            array.sync_ended().await;
            world.check_copies().await;
            world.check(0, 512, 1).await;
            let beyond = write(&world.volume(), size.0, 8, 1).await;
            assert!(beyond.is_err(), "written beyond the end");
            array.stop().await.unwrap();
            let array = start(sim, &world.disks, &RW).await.unwrap();
            assert_eq!(array.disk().capacity(), size);
            check(&array, 0, 512, 1).await;
            // And back.
            array.grow_size(Some(SMALL), GrowOptions::default()).await.unwrap();
            array.sync_ended().await;
            check(&array, 0, 512, 1).await;
            write(&gateway(&array), size.0, 8, 3).await.unwrap();
            array.stop().await.unwrap();
        });
    }
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let shape = Shape::new(Level::Raid10, Some(0x201), 4, 4);
    let far = Recipe { used: Some(SMALL), ..Recipe::new(shape) };
    far.run(async |_, world| {
        let refused = world.array.grow_size(None, FORCE).await;
        assert!(matches!(refused, Err(ManageError::FarLayout)), "{refused:?}");
    });
    for recipe in recipes() {
        recipe.run(async |_, world| {
            let refused = world.array.grow_size(Some(DISK), FORCE).await;
            assert!(matches!(refused, Err(ManageError::NoRoom { .. })), "{refused:?}");
            let refused = world.array.grow_size(Some(Sectors::ZERO), FORCE).await;
            assert!(matches!(refused, Err(ManageError::Size(_))), "{refused:?}");
            world.check(0, 512, 1).await;
            world.write(0, 512, 1).await;
        });
    }
}

#[test]
fn a_size_that_the_array_has_changes_nothing() {
    for recipe in recipes() {
        recipe.run(async |_, world| {
            let events = world.array.status().await.events;
            let before = world.array.disk().capacity();
            let size = world.array.grow_size(Some(SMALL), GrowOptions::default()).await.unwrap();
            assert_eq!(size, before);
            assert_eq!(world.array.status().await.events, events);
        });
    }
}

#[test]
fn a_mirror_gets_more_members_and_fewer() {
    for bitmap in
        [NewBitmap::None, NewBitmap::Internal { chunk: Some(1 << 16) }, NewBitmap::Lockless]
    {
        let recipe =
            Recipe { spares: 1, extra: 1, ..Recipe::new(Shape::new(Level::Raid1, None, 0, 2)) };
        recipe.bitmap(bitmap).run(async |sim, world| {
            let array = &world.array;
            array.grow_devices(3).await.unwrap();
            world.settle().await;
            assert_eq!(world.member(2).await.slot, Some(2));
            array.grow_devices(4).await.unwrap();
            assert_eq!(array.degraded(), 1);
            world.add(3).await.unwrap();
            world.settle().await;
            assert_eq!(world.member(3).await.slot, Some(3));
            world.write(0, 64, 2).await;

            // A slot with a working member is not removed.
            let error = array.grow_devices(3).await.unwrap_err();
            assert!(matches!(error, ManageError::SlotInUse { slot: 3, .. }), "{error}");
            array.fail(world.index(3).await).await.unwrap();
            array.grow_devices(3).await.unwrap();
            assert!(array.degraded() == 0 && world.member(3).await.faulty);
            world.write(64, 64, 3).await;
            world.settle().await;
            for wrong in [0, 2000] {
                assert!(matches!(array.grow_devices(wrong).await, Err(ManageError::Devices(_))));
            }
            array.stop().await.unwrap();
            let array = start(sim, &world.disks, &RW).await.unwrap();
            assert_eq!((array.status().await.raid_disks, array.degraded()), (3, 0));
            check(&array, 0, 64, 2).await;
            check(&array, 64, 64, 3).await;
            array.stop().await.unwrap();
        });
    }
}

/// Between a member's removal and its re-add the array was complete for a time, so marks were cleared.
#[test]
fn a_member_whose_slot_was_away_meanwhile_lacks_nothing_when_it_is_back() {
    let recipe =
        Recipe { extra: 0, ..Recipe::new(Shape::new(Level::Raid1, None, 0, 3)) }.internal();
    recipe.run(async |sim, world| {
        let array = &world.array;
        array.fail(2).await.unwrap();
        array.remove(2).await.unwrap();
        array.grow_devices(2).await.unwrap();
        world.write(0, 512, 2).await;
        sim.runtime().sleep(std::time::Duration::from_secs(20)).await;
        array.grow_devices(3).await.unwrap();
        world.add(2).await.unwrap();
        world.settle().await;
        world.check(0, 512, 2).await;
    });
}

#[test]
fn other_levels_are_not_reshaped() {
    Recipe::new(Shape::new(Level::Raid10, Some(0x102), 4, 4)).run(async |_, world| {
        let error = world.array.grow_devices(5).await.unwrap_err();
        assert!(matches!(error, ManageError::Reshape { .. }), "{error}");
        assert!(error.to_string().contains("raid10"), "{error}");
    });
}
