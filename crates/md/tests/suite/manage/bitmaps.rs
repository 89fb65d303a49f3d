//! Adding and removing bitmaps.

use std::time::Duration;

use ashlar_block::Sectors;
use ashlar_md::internals::bitmap::Kind;
use ashlar_md::ondisk::create::{CreateError, NewBitmap};
use ashlar_md::ondisk::{Level, Version};
use ashlar_md::{ManageError, probe};
use ashlar_sim::{Media, Sim};

use crate::common::{Shape, disks, gateway, make_with, media, spec, start, write};
use crate::manage::world::{DISK, RUN, RW, Recipe, check};

const INTERNAL: NewBitmap = NewBitmap::Internal { chunk: Some(1 << 16) };

fn shapes() -> Vec<Shape> {
    let one = |version| Shape { version, ..Shape::new(Level::Raid1, None, 0, 2) };
    vec![
        one(Version::V1_0),
        one(Version::V1_1),
        one(Version::V1_2),
        Shape::new(Level::Raid10, Some(0x102), 4, 4),
        Shape::new(Level::Raid10, Some(0x201), 4, 3),
    ]
}

#[test]
fn a_bitmap_is_added_and_removed_under_writes() {
    for shape in shapes() {
        for bitmap in [INTERNAL, NewBitmap::Auto, NewBitmap::Lockless] {
            if bitmap == NewBitmap::Lockless && shape.version != Version::V1_2 {
                continue;
            }
            Recipe::new(shape.clone()).run(async |sim, world| {
                let array = &world.array;
                let writes = async {
                    for at in 0..120 {
                        write(&world.volume(), at % 40 * 8, 8, 5).await.unwrap();
                    }
                };
                let change = async {
                    sim.runtime().sleep(Duration::from_millis(1)).await;
                    array.set_bitmap(bitmap).await.unwrap();
                    assert!(array.bitmap().is_some());
                    sim.runtime().sleep(Duration::from_millis(1)).await;
                    array.set_bitmap(NewBitmap::None).await.unwrap();
                    assert!(array.bitmap().is_none());
                    array.set_bitmap(bitmap).await.unwrap();
                };
                futures_util::future::join(writes, change).await;
                let kind = array.bitmap().unwrap().kind();
                assert_eq!(kind == Kind::Lockless, bitmap == NewBitmap::Lockless);
                world.check(0, 320, 5).await;
                // Marks are cleared without writes.
                sim.runtime().sleep(Duration::from_secs(90)).await;
                assert_eq!(array.bitmap().unwrap().marked_chunks(), 0);
                array.stop().await.unwrap();
                let members = shape.members;
                let array = start(sim, &world.disks[..members], &RW).await.unwrap();
                let loaded = array.bitmap().expect("the superblocks name it");
                assert!(loaded.kind() == kind && !loaded.was_stale());
                assert_eq!(loaded.marked_chunks(), 0);
                check(&array, 0, 320, 5).await;
                array.stop().await.unwrap();
            });
        }
    }
}

#[test]
fn after_a_crash_only_what_a_bitmap_marks_is_synced_however_it_came() {
    for bitmap in [INTERNAL, NewBitmap::Lockless] {
        let recipe = Recipe::new(Shape::new(Level::Raid1, None, 0, 2));
        let media = recipe.media();
        let sim = Sim::new(3);
        sim.block_on(async {
            let world = recipe.start(&sim, &media).await;
            world.array.set_bitmap(bitmap).await.unwrap();
            write(&world.volume(), 256, 8, 2).await.unwrap();
        });
        sim.power_cut();
        media.iter().for_each(Media::clear_log);
        let sim = Sim::new(4);
        sim.block_on(async {
            let disks = disks(&media);
            let array = start(&sim, &disks[..2], &RW).await.unwrap();
            assert!(array.is_unsynced() && array.bitmap().unwrap().marked_chunks() == 1);
            array.sync_ended().await;
            assert!(!array.is_unsynced());
            check(&array, 0, 256, 1).await;
            array.stop().await.unwrap();
        });
    }
}

#[test]
fn a_member_that_left_before_the_bitmap_came_does_not_return_by_it() {
    let recipe = Recipe::new(Shape::new(Level::Raid1, None, 0, 3));
    recipe.run(async |_, world| {
        world.array.fail(2).await.unwrap();
        world.array.remove(2).await.unwrap();
        world.write(0, 64, 2).await;
        world.array.set_bitmap(INTERNAL).await.unwrap();
        let gateway = world.disks[2].gateway();
        let sb = probe(&gateway).await.unwrap().unwrap();
        let candidate = ashlar_md::Candidate { gateway, path: "d2".into(), sb };
        let refused = world.array.re_add(candidate, crate::manage::world::options(9)).await;
        assert!(matches!(refused, Err(ManageError::ReAdd { .. })), "{refused:?}");
        world.add(2).await.unwrap();
        world.settle().await;
        world.check(0, 64, 2).await;
    });
}

#[test]
fn a_bitmap_that_is_there_or_not_is_told_with_mdadms_words() {
    Recipe::new(Shape::new(Level::Raid1, None, 0, 2)).run(async |_, world| {
        let array = &world.array;
        let text = |result: Result<(), ManageError>| result.unwrap_err().to_string();
        assert_eq!(text(array.set_bitmap(NewBitmap::None).await), "no bitmap found on md0");
        array.set_bitmap(INTERNAL).await.unwrap();
        for bitmap in [INTERNAL, NewBitmap::Lockless] {
            assert_eq!(text(array.set_bitmap(bitmap).await), "bitmap already present on md0");
        }
    });
}

#[test]
fn a_bitmap_that_does_not_fit_is_refused_and_the_array_goes_on() {
    let shape = Shape::new(Level::Raid1, None, 0, 2);
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let disks = disks(&media);
        let mut spec = spec(&shape, &[DISK; 2]);
        // The log takes the rest of the space between superblock and data.
        (spec.data_offset, spec.bad_block_log) = (Some(Sectors(24)), true);
        make_with(&spec, &disks).await;
        let array = start(&sim, &disks, &RW).await.unwrap();
        for bitmap in [INTERNAL, NewBitmap::Lockless] {
            let refused = array.set_bitmap(bitmap).await;
            let Err(ManageError::Metadata(CreateError::NoRoomForBitmap)) = refused else {
                panic!("{refused:?}");
            };
        }
        for chunk in [512, 5000, 1 << 40] {
            let refused = array.set_bitmap(NewBitmap::Internal { chunk: Some(chunk) }).await;
            assert!(matches!(refused, Err(ManageError::Metadata(_))), "{chunk}: {refused:?}");
        }
        write(&gateway(&array), 0, 64, 1).await.unwrap();
        array.stop().await.unwrap();
        let array = start(&sim, &disks, &RUN).await.unwrap();
        assert!(array.bitmap().is_none());
        check(&array, 0, 64, 1).await;
        array.stop().await.unwrap();
    });
}

#[test]
fn the_time_between_passes_changes_at_once_and_is_recorded() {
    Recipe::new(Shape::new(Level::Raid1, None, 0, 2)).internal().run(async |sim, world| {
        let bitmap = || world.array.bitmap().unwrap();
        let sleep = |seconds| sim.runtime().sleep(Duration::from_secs(seconds));
        bitmap().set_daemon_sleep(3600).unwrap();
        world.write(0, 64, 2).await;
        sleep(100).await;
        assert!(bitmap().marked_chunks() > 0);
        // The daemon, which waits for the hour to end, wakes.
        bitmap().set_daemon_sleep(7).unwrap();
        sleep(60).await;
        assert_eq!(bitmap().marked_chunks(), 0);
        for impossible in [0, u32::MAX] {
            assert!(bitmap().set_daemon_sleep(impossible).is_err());
        }
        world.array.stop().await.unwrap();
        let array = start(sim, &world.disks[..2], &RW).await.unwrap();
        assert_eq!(array.bitmap().unwrap().daemon_sleep(), Duration::from_secs(7));
        array.stop().await.unwrap();
    });
}
