//! Adding, failing and removing members.

use ashlar_block::{BlockDevice, Limits, Sectors};
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::ondisk::{Features, Level, Role};
use ashlar_md::{AddOutcome, ManageError, Need, probe};
use ashlar_sim::{Media, Model, Sim, SimDisk};

use crate::common::{Shape, start};
use crate::manage::world::{DISK, RW, Recipe, check, options};

fn shapes() -> Vec<Shape> {
    vec![
        Shape::new(Level::Raid1, None, 0, 2),
        Shape::new(Level::Raid1, None, 0, 3),
        Shape::new(Level::Raid10, Some(0x102), 4, 4),
        Shape::new(Level::Raid10, Some(0x102), 4, 3),
        Shape::new(Level::Raid10, Some(0x201), 4, 4),
        Shape::new(Level::Raid10, Some(0x1_0201), 4, 4),
    ]
}

fn mirror() -> Recipe {
    Recipe::new(Shape::new(Level::Raid1, None, 0, 2))
}

#[test]
fn a_device_that_is_added_takes_the_place_of_a_failed_member_with_all_data() {
    for shape in shapes() {
        for bitmap in [NewBitmap::None, NewBitmap::Internal { chunk: Some(1 << 16) }] {
            let recipe = Recipe::new(shape.clone()).bitmap(bitmap);
            let new = recipe.members();
            recipe.run(async |sim, world| {
                world.array.fail(1).await.unwrap();
                world.write(64, 64, 2).await;
                assert_eq!(world.array.degraded(), 1);
                assert!(matches!(world.add(new).await, Ok(AddOutcome::Spare(_))));
                world.settle().await;
                let member = world.member(new).await;
                assert!(member.slot == Some(1) && member.in_sync, "{shape:?}: {member:?}");
                assert!(world.member(1).await.faulty);
                world.array.remove(1).await.unwrap();
                world.array.stop().await.unwrap();
                // As after the next boot.
                let mut order: Vec<&SimDisk> = world.disks.iter().collect();
                order.remove(1);
                let array = start(sim, &order, &RW).await.unwrap();
                assert_eq!(array.degraded(), 0);
                check(&array, 0, 64, 1).await;
                check(&array, 64, 64, 2).await;
                array.stop().await.unwrap();
            });
        }
    }
}

#[test]
fn a_spare_waits_until_it_is_needed_and_is_known_by_then() {
    let recipe = Recipe { extra: 0, spares: 1, ..mirror() };
    recipe.run(async |sim, world| {
        assert!(world.member(2).await.is_spare());
        world.array.stop().await.unwrap();
        let array = start(sim, &world.disks, &RW).await.unwrap();
        array.fail(0).await.unwrap();
        array.sync_ended().await;
        assert_eq!(array.degraded(), 0);
        let sb = probe(&world.disks[2].gateway()).await.unwrap().unwrap();
        assert_eq!((sb.role(), sb.recovery_offset), (Role::Active(0), None));
        check(&array, 0, 64, 1).await;
        array.stop().await.unwrap();
    });
}

#[test]
fn a_new_member_has_its_own_identity_and_no_bad_blocks() {
    let recipe = mirror().internal();
    recipe.run(async |sim, world| {
        world.array.stop().await.unwrap();
        // The others have bad blocks.
        for disk in &world.disks[..2] {
            let mut sb = probe(&disk.gateway()).await.unwrap().unwrap();
            sb.features |= Features::BAD_BLOCKS;
            let at = sb.bad_block_log_start().unwrap();
            let mut log = vec![0xff; 4096];
            log[..8].copy_from_slice(&(2000u64 << 10 | 8).to_le_bytes());
            disk.media().poke(at, &log);
            disk.media().poke(sb.super_offset, &sb.encode(512).unwrap());
        }
        let array = start(sim, &world.disks[..2], &RW).await.unwrap();
        let device = &world.disks[2];
        let index = array.add(device.gateway(), "d2", options(77)).await.unwrap().index();
        let sb = probe(&device.gateway()).await.unwrap().unwrap();
        let old = probe(&world.disks[0].gateway()).await.unwrap().unwrap();
        assert_eq!(sb.device_uuid.as_u128(), 77);
        assert_eq!((sb.set_uuid, sb.events), (old.set_uuid, old.events));
        assert!(sb.dev_number >= 2 && sb.role() == Role::Spare);
        assert!(!sb.features.contains(Features::BAD_BLOCKS));
        assert_eq!(sb.bad_block_log, old.bad_block_log);
        let log = device.media().peek_range(sb.bad_block_log_start().unwrap(), Sectors(8));
        assert!(log.iter().all(|byte| *byte == 0xff), "what was there looks like a log");
        // It can be removed and added again.
        array.remove(index).await.unwrap();
        assert!(array.add(device.gateway(), "d2", options(78)).await.is_ok());
        array.stop().await.unwrap();
    });
}

#[test]
fn devices_that_cannot_join_are_refused_and_left_as_they_are() {
    mirror().run(async |_, world| {
        let array = &world.array;
        let small = Media::noisy(Sectors(4000), 5);
        let disk = SimDisk::over("small", small.clone());
        let refused = array.add(disk.gateway(), "small", options(5)).await;
        assert!(matches!(refused, Err(ManageError::TooSmall(_))), "{refused:?}");
        assert_eq!(refused.unwrap_err().to_string(), "small not large enough to join array");
        assert!(small.diff(&Media::noisy(Sectors(4000), 5).snapshot()).is_empty());

        let member = &world.disks[0];
        for path in ["d0", "by-another-name"] {
            let refused = array.add(member.gateway(), path, options(5)).await;
            assert!(matches!(refused, Err(ManageError::IsMember(_))), "{refused:?}");
        }
        let twin = SimDisk::over("twin", world.media[1].clone());
        let refused = array.add(twin.gateway(), "twin", options(5)).await;
        assert!(matches!(refused, Err(ManageError::IsMember(_))), "{refused:?}");

        let locked = SimDisk::over("locked", Media::new(Sectors(8192)));
        locked.disk().set_read_only(true);
        let refused = array.add(locked.gateway(), "locked", options(5)).await;
        assert!(matches!(refused, Err(ManageError::ReadOnlyDevice(_))), "{refused:?}");
        assert_eq!(array.status().await.members.len(), 2);
    });
}

#[test]
fn the_limits_of_an_array_narrow_with_a_new_member() {
    mirror().run(async |_, world| {
        let disk = world.volume();
        let (old, model) = (*disk.disk().limits(), Model::nvme());
        let limits =
            Limits { max_hw_discard: Sectors(64), io_opt_bytes: 3 << 16, ..model.limits() };
        let member = SimDisk::with("d9", Media::new(DISK), limits, model);
        world.array.fail(1).await.unwrap();
        let added = world.array.add(member.gateway(), "d9", options(9)).await;
        assert!(matches!(added, Ok(AddOutcome::Spare(_))), "{added:?}");
        world.array.sync_ended().await;
        let want = Limits { max_hw_discard: Sectors(64), io_opt_bytes: 3 << 16, ..old };
        assert_eq!(*disk.disk().limits(), want);
    });
}

#[test]
fn nothing_changes_in_arrays_that_are_read_stopped_or_striped() {
    mirror().run(async |sim, world| {
        world.array.disk().set_read_only(true);
        assert!(matches!(world.add(2).await, Err(ManageError::ReadOnly(_))));
        assert!(matches!(world.array.fail(0).await, Err(ManageError::ReadOnly(_))));
        world.array.disk().set_read_only(false);
        world.array.stop().await.unwrap();
        assert!(matches!(world.add(2).await, Err(ManageError::Stopped(_))));
        assert!(matches!(world.array.fail(0).await, Err(ManageError::Stopped(_))));
        let striped = [Media::new(Sectors(4096)), Media::new(Sectors(4096))];
        let disks = crate::common::disks(&striped);
        crate::common::make(&Shape::new(Level::Raid0, None, 4, 2), &disks).await;
        let array = start(sim, &disks, &RW).await.unwrap();
        assert!(matches!(array.remove(0).await, Err(ManageError::Level { .. })));
        let refused = array.grow_size(None, Default::default()).await;
        assert!(matches!(refused, Err(ManageError::Level { .. })));
    });
}

#[test]
fn members_in_use_stay_and_the_last_copy_cannot_fail() {
    for shape in shapes() {
        Recipe::new(shape).run(async |_, world| {
            let array = &world.array;
            let refused = array.remove(0).await.unwrap_err();
            assert_eq!(refused.to_string(), "hot remove failed for d0: Device or resource busy");
            for index in 0..4 {
                match array.fail(index).await {
                    Ok(()) => {}
                    Err(ManageError::Needed { path, why }) => {
                        assert_eq!((path, why), (format!("d{index}"), Need::LastCopy));
                    }
                    Err(ManageError::NoMember { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            world.check(0, 64, 1).await;
            assert!(array.degraded() > 0);
            // Failed members can be removed.
            for member in array.status().await.members.into_iter().filter(|m| m.faulty) {
                array.remove(member.index.unwrap()).await.unwrap();
            }
            assert!(array.status().await.members.iter().all(|member| !member.faulty));
            world.check(0, 64, 1).await;
        });
    }
}

#[test]
fn an_array_without_all_its_data_takes_no_new_member() {
    mirror().run(async |_, world| {
        world.array.fail(1).await.unwrap();
        world.media[0].kill();
        // The superblocks cannot record a new member, so adding one fails.
        let before = world.array.status().await.members.len();
        assert!(world.add(2).await.is_err());
        assert_eq!(world.array.status().await.members.len(), before);
        world.media[0].heal();
        // It may have lost its cache while it was gone.
        world.volume().flush().await.unwrap_err();
    });
}

#[test]
fn a_new_member_gets_what_is_written_while_it_is_rebuilt() {
    for shape in shapes() {
        let recipe = Recipe::new(shape).internal();
        let new = recipe.members();
        for seed in 0..8 {
            let media = recipe.media();
            let sim = Sim::new(seed);
            sim.block_on(async {
                let world = recipe.start(&sim, &media).await;
                world.array.fail(0).await.unwrap();
                world.add(new).await.unwrap();
                for at in 0..40 {
                    world.write(at * 8, 8, 7).await;
                }
                world.settle().await;
                world.check(0, 320, 7).await;
                world.array.stop().await.unwrap();
            });
        }
    }
}
