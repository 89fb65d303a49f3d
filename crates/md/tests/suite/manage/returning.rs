//! Re-adding members.

use ashlar_block::{Features, Op, Sectors};
use ashlar_md::ondisk::create::{CreateSpec, NewBitmap};
use ashlar_md::ondisk::{Level, Role};
use ashlar_md::{AddOptions, AddOutcome, Candidate, ManageError, probe};

use ashlar_sim::{Model, Sim, SimDisk};

use crate::common::{
    DATA, SUPERBLOCK, Shape, candidates, gateway, make_with, media, spec, start, write,
};
use crate::manage::world::{RUN, RW, Recipe, World, options};

fn recipes() -> Vec<Recipe> {
    let shapes = [
        Shape::new(Level::Raid1, None, 0, 2),
        Shape::new(Level::Raid10, Some(0x102), 4, 4),
        Shape::new(Level::Raid10, Some(0x201), 4, 3),
    ];
    let with = |bitmap| shapes.clone().map(|shape| Recipe::new(shape).bitmap(bitmap));
    let chunk = NewBitmap::Internal { chunk: Some(1 << 16) };
    with(chunk).into_iter().chain(with(NewBitmap::Lockless)).collect()
}

async fn candidate(world: &World, disk: usize) -> Candidate {
    let gateway = world.disks[disk].gateway();
    let sb = probe(&gateway).await.unwrap().unwrap();
    Candidate { gateway, path: format!("d{disk}"), sb }
}

/// Sectors of data that were written to a disk.
fn written(world: &World, disk: usize) -> u64 {
    let log = world.media[disk].log();
    let writes = log.iter().filter(|command| command.op == Op::Write);
    let ranges = writes.flat_map(|command| &command.ranges);
    ranges.filter(|range| range.start >= DATA).map(|range| range.end - range.start).sum()
}

#[test]
fn a_member_that_comes_back_gets_what_it_missed_and_no_more() {
    for recipe in recipes() {
        recipe.run(async |sim, world| {
            sim.runtime().sleep(std::time::Duration::from_secs(90)).await;
            world.array.fail(1).await.unwrap();
            world.array.remove(1).await.unwrap();
            world.write(128, 64, 2).await;
            world.media[1].clear_log();
            let added = world.add(1).await.unwrap();
            assert!(matches!(added, AddOutcome::Returned(_)), "{added:?}");
            world.settle().await;
            world.check(0, 128, 1).await;
            world.check(128, 64, 2).await;
            let sectors = written(world, 1);
            assert!((1..=1024).contains(&sectors), "{sectors} written, {:?}", recipe.shape);
            let sb = probe(&world.disks[1].gateway()).await.unwrap().unwrap();
            assert_eq!((sb.role(), sb.recovery_offset), (Role::Active(1), None));
            assert_eq!(sb.device_uuid.as_u128(), 101);
        });
    }
}

#[test]
fn a_failed_member_may_come_back_by_a_word_in_sysfs() {
    let recipe = Recipe::new(Shape::new(Level::Raid1, None, 0, 2)).internal();
    recipe.run(async |_, world| {
        let refused = world.array.set_member_state(1, "re-add").await;
        assert!(matches!(refused, Err(ManageError::Word(_))), "{refused:?}");
        world.array.set_member_state(1, "faulty\n").await.unwrap();
        world.write(0, 64, 2).await;
        world.array.set_member_state(1, "re-add").await.unwrap();
        world.settle().await;
        assert_eq!(world.member(1).await.slot, Some(1));
    });
}

/// Its disk was full; a user has made room.
#[test]
fn a_failed_member_that_was_not_lost_returns_without_being_removed_first() {
    let recipe = Recipe::new(Shape::new(Level::Raid1, None, 0, 2)).internal();
    recipe.run(async |_, world| {
        world.media[1].fail_writes(0..8192);
        world.write(0, 64, 2).await;
        let failed = world.member(1).await;
        assert!(failed.faulty && !failed.lost);
        world.media[1].heal();
        let index = world.array.re_add_failed(1, candidate(world, 1).await, options(9)).await;
        let index = index.unwrap();
        world.settle().await;
        let member = world.member(1).await;
        assert_eq!((member.index, member.slot, member.dev_number), (Some(index), Some(1), 1));
        // Whoever still means the old membership.
        let again = world.array.re_add_failed(1, candidate(world, 1).await, options(9)).await;
        assert!(matches!(again, Err(ManageError::IsMember(_))), "{again:?}");
        let again = world.array.re_add_failed(index, candidate(world, 1).await, options(9)).await;
        assert!(matches!(again, Err(ManageError::IsMember(_))), "{again:?}");
        world.check(0, 64, 2).await;
    });
}

#[test]
fn a_failed_member_that_cannot_return_stays_the_failed_member_that_it_was() {
    let recipe = Recipe::new(Shape::new(Level::Raid1, None, 0, 2)).internal();
    recipe.run(async |_, world| {
        world.array.fail(1).await.unwrap();
        world.write(0, 64, 2).await;
        // Another disk has its path.
        let mut other = candidate(world, 1).await;
        other.sb.device_uuid = uuid::Uuid::from_u128(5);
        let refused = world.array.re_add_failed(1, other, options(9)).await;
        assert!(matches!(refused, Err(ManageError::ReAdd { .. })), "{refused:?}");
        let (mut refusals, mut index) = ([0; 2], 1);
        for nth in 0..6 {
            world.media[1].fail_nth_fua(nth);
            let refused = world.array.set_member_state(index, "re-add").await;
            world.media[1].heal();
            match refused {
                Err(ManageError::Device { .. }) => refusals[0] += 1,
                Err(ManageError::Record { .. }) => refusals[1] += 1,
                other => {
                    other.unwrap();
                    index = world.index(1).await;
                    if !world.member(1).await.faulty {
                        world.array.fail(index).await.unwrap();
                    }
                }
            }
            let member = world.member(1).await;
            assert_eq!((member.index, member.faulty), (Some(index), true), "{nth}");
            assert!(world.array.status().await.members.len() <= 3, "a slot, two members");
            world.write(0, 64, 2).await;
        }
        assert!(refusals[0] > 0 && refusals[1] > 0, "{refusals:?}");
        // It can be read and not written.
        world.media[1].fail_writes(SUPERBLOCK);
        let members = || world.array.members().get(index + 1).is_some();
        let before = members();
        for _ in 0..3 {
            let refused = world.array.set_member_state(index, "re-add").await;
            assert!(matches!(refused, Err(ManageError::Device { .. })), "{refused:?}");
        }
        assert_eq!(members(), before, "the table grows");
        world.media[1].heal();
        world.array.set_member_state(index, "re-add").await.unwrap();
        world.settle().await;
        world.check(0, 64, 2).await;
        // Removed while the device was read.
        world.array.fail(world.index(1).await).await.unwrap();
        let (index, old) = (world.index(1).await, candidate(world, 1).await);
        world.array.remove(index).await.unwrap();
        let refused = world.array.re_add_failed(index, old, options(9)).await.unwrap_err();
        assert_eq!(refused.to_string(), "d1 was removed from md0 before it could be re-added");
    });
}

/// The superblock that a caller has read may be old: the one on the disk counts.
#[test]
fn a_device_that_changed_after_it_was_read_is_judged_by_what_it_has_now() {
    let recipe = Recipe::new(Shape::new(Level::Raid1, None, 0, 2)).internal();
    recipe.run(async |sim, world| {
        world.array.fail(1).await.unwrap();
        world.array.remove(1).await.unwrap();
        let old = candidate(world, 1).await;
        let alone = start(sim, &world.disks[1..2], &RUN).await.unwrap();
        write(&gateway(&alone), 0, 64, 9).await.unwrap();
        alone.stop().await.unwrap();
        let refused = world.array.re_add(old, options(9)).await;
        assert!(matches!(refused, Err(ManageError::ReAdd { .. })), "{refused:?}");
        world.check(0, 64, 1).await;
    });
}

#[test]
fn without_a_bitmap_nobody_comes_back_but_as_a_new_member() {
    let recipe = Recipe::new(Shape::new(Level::Raid1, None, 0, 2));
    recipe.run(async |_, world| {
        world.array.fail(1).await.unwrap();
        world.array.remove(1).await.unwrap();
        let candidate = candidate(world, 1).await;
        let refused = world.array.re_add(candidate, options(9)).await.unwrap_err();
        let text = refused.to_string();
        assert!(text.starts_with("re-adding d1 to md0 is not possible"), "{text}");
        assert!(matches!(world.add(1).await, Ok(AddOutcome::Spare(_))));
        world.settle().await;
        assert_eq!(world.member(1).await.device_uuid.as_u128(), 1001);
    });
}

#[test]
fn whoever_asks_for_a_spare_gets_a_spare() {
    let recipe = Recipe::new(Shape::new(Level::Raid1, None, 0, 2)).internal();
    recipe.run(async |_, world| {
        world.array.fail(1).await.unwrap();
        world.array.remove(1).await.unwrap();
        let options = AddOptions { spare_only: true, ..options(9) };
        let added = world.array.add(world.disks[1].gateway(), "d1", options).await;
        assert!(matches!(added, Ok(AddOutcome::Spare(_))), "{added:?}");
        world.settle().await;
    });
}

/// Its discards read as anything, those of the member that was there when the array started as zeroes.
#[test]
fn a_member_that_was_not_there_at_the_start_can_promise_less() {
    let (media, model) = (media(2, Sectors(8192)), Model::nvme());
    let disks: Vec<SimDisk> = (0..2)
        .map(|at| {
            let mut limits = model.limits();
            limits.features.set(Features::DISCARD_ZEROES, at == 0);
            SimDisk::with(format!("d{at}"), media[at].clone(), limits, model)
        })
        .collect();
    let sim = Sim::new(1);
    sim.block_on(async {
        let bitmap = NewBitmap::Internal { chunk: None };
        let shape = Shape::new(Level::Raid1, None, 0, 2);
        make_with(&CreateSpec { bitmap, ..spec(&shape, &[Sectors(8192); 2]) }, &disks).await;
        let array = start(&sim, &disks, &RW).await.unwrap();
        array.sync_ended().await;
        array.fail(1).await.unwrap();
        write(&gateway(&array), 0, 64, 2).await.unwrap();
        array.stop().await.unwrap();
        let array = start(&sim, &disks[..1], &RUN).await.unwrap();
        let old = candidates(&disks).await.remove(1);
        array.re_add(old, options(9)).await.unwrap();
        array.sync_ended().await;
        assert_eq!(array.degraded(), 0);
    });
}

#[test]
fn a_member_that_lacks_more_than_the_bitmap_knows_does_not_come_back() {
    for recipe in recipes() {
        let new = recipe.members();
        recipe.run(async |sim, world| {
            world.array.fail(1).await.unwrap();
            world.array.remove(1).await.unwrap();
            world.write(128, 64, 2).await;
            let old = candidate(world, 1).await;
            // Another member takes its slot, and marks are cleared.
            world.add(new).await.unwrap();
            world.settle().await;
            world.write(256, 64, 3).await;
            sim.runtime().sleep(std::time::Duration::from_secs(90)).await;
            let index = world.index(new).await;
            world.array.fail(index).await.unwrap();
            world.array.remove(index).await.unwrap();
            let refused = world.array.re_add(old, options(9)).await;
            assert!(matches!(refused, Err(ManageError::ReAdd { .. })), "{refused:?}");
            assert!(matches!(world.add(1).await, Ok(AddOutcome::Spare(_))));
            world.settle().await;
            world.check(128, 64, 2).await;
            world.check(256, 64, 3).await;
        });
    }
}

#[test]
fn a_member_that_was_used_without_the_others_does_not_come_back() {
    let recipe = Recipe::new(Shape::new(Level::Raid1, None, 0, 2)).internal();
    recipe.run(async |sim, world| {
        world.array.fail(1).await.unwrap();
        world.array.remove(1).await.unwrap();
        // The member is started alone and written.
        let alone = start(sim, &world.disks[1..2], &RUN).await.unwrap();
        write(&crate::common::gateway(&alone), 0, 64, 9).await.unwrap();
        alone.stop().await.unwrap();
        for _ in 0..6 {
            // Regardless of which has the higher event count.
            let candidate = candidate(world, 1).await;
            let refused = world.array.re_add(candidate, options(9)).await;
            assert!(matches!(refused, Err(ManageError::ReAdd { .. })), "{refused:?}");
            world.write(128, 8, 2).await;
            sim.runtime().sleep(std::time::Duration::from_secs(1)).await;
        }
        assert!(matches!(world.add(1).await, Ok(AddOutcome::Spare(_))));
        world.settle().await;
        world.check(0, 128, 1).await;
    });
}

#[test]
fn a_member_of_another_array_or_of_a_taken_slot_does_not_come_back() {
    let recipe = Recipe::new(Shape::new(Level::Raid1, None, 0, 2)).internal();
    recipe.run(async |_, world| {
        world.array.fail(1).await.unwrap();
        world.array.remove(1).await.unwrap();
        let refuse = async |change: fn(&mut ashlar_md::ondisk::Superblock)| {
            let mut candidate = candidate(world, 1).await;
            change(&mut candidate.sb);
            let refused = world.array.re_add(candidate, options(9)).await;
            assert!(matches!(refused, Err(ManageError::ReAdd { .. })), "{refused:?}");
        };
        refuse(|sb| sb.set_uuid = uuid::Uuid::from_u128(5)).await;
        refuse(|sb| sb.roles[1] = Role::Active(0)).await;
        refuse(|sb| sb.roles[1] = Role::Spare).await;
        refuse(|sb| sb.recovery_offset = Some(ashlar_block::Sectors(64))).await;
        refuse(|sb| sb.dev_number = 0).await;
        let candidate = candidate(world, 1).await;
        world.array.re_add(candidate, options(9)).await.unwrap();
        world.settle().await;
    });
}

/// The array is clean by then, so that nothing but the stop clears them.
#[test]
fn the_marks_of_a_member_that_is_back_go_with_a_stop() {
    let (media, sim) = (media(2, Sectors(8192)), Sim::new(1));
    let disks = crate::common::disks(&media);
    sim.block_on(async {
        let bitmap = NewBitmap::Internal { chunk: None };
        let shape = Shape::new(Level::Raid1, None, 0, 2);
        make_with(&CreateSpec { bitmap, ..spec(&shape, &[Sectors(8192); 2]) }, &disks).await;
        let array = start(&sim, &disks, &RW).await.unwrap();
        array.sync_ended().await;
        array.fail(1).await.unwrap();
        array.remove(1).await.unwrap();
        write(&gateway(&array), 0, 64, 2).await.unwrap();
        sim.runtime().sleep(std::time::Duration::from_secs(1)).await;
        let old = candidates(&disks).await.remove(1);
        array.re_add(old, options(9)).await.unwrap();
        array.sync_ended().await;
        sim.runtime().sleep(std::time::Duration::from_secs(1)).await;
        assert!(!array.is_active());
        assert!(array.bitmap().unwrap().marked_chunks() > 0, "the daemon was first");
        array.stop().await.unwrap();
        let array = start(&sim, &disks, &RW).await.unwrap();
        assert_eq!(array.bitmap().unwrap().marked_chunks(), 0);
    });
}
