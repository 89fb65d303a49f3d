//! Replacing members that are in use.

use std::time::Duration;

use ashlar_md::ondisk::{Features, Level, Role};
use ashlar_md::{ManageError, probe};

use crate::common::{Shape, start};
use crate::manage::world::{RW, Recipe, check};

fn recipes() -> Vec<Recipe> {
    let shapes = [
        Shape::new(Level::Raid1, None, 0, 2),
        Shape::new(Level::Raid10, Some(0x102), 4, 4),
        Shape::new(Level::Raid10, Some(0x201), 4, 3),
    ];
    let plain = shapes.clone().map(Recipe::new);
    plain.into_iter().chain(shapes.map(|shape| Recipe::new(shape).internal())).collect()
}

#[test]
fn a_member_is_replaced_by_a_spare_and_the_array_is_never_degraded() {
    for recipe in recipes() {
        for with in [false, true] {
            let new = recipe.members();
            recipe.run(async |sim, world| {
                let spare = world.add(new).await.unwrap().index();
                world.array.replace(1, with.then_some(spare)).await.unwrap();
                let watch = async {
                    while !world.member(new).await.in_sync {
                        assert_eq!(world.array.degraded(), 0);
                        world.write(8, 8, 1).await;
                        sim.runtime().sleep(Duration::from_micros(100)).await;
                    }
                };
                watch.await;
                world.settle().await;
                let member = world.member(new).await;
                assert!(member.slot == Some(1) && !member.replacement, "{member:?}");
                let old = world.member(1).await;
                assert!(old.faulty && old.slot.is_none(), "{old:?}");
                world.check(0, 512, 1).await;
                let sb = probe(&world.disks[new].gateway()).await.unwrap().unwrap();
                assert!(!sb.features.contains(Features::REPLACEMENT));
                assert_eq!(sb.role(), Role::Active(1));
                world.array.stop().await.unwrap();
                let array = start(sim, &world.disks, &RW).await.unwrap();
                assert_eq!(array.degraded(), 0);
                check(&array, 0, 512, 1).await;
                array.stop().await.unwrap();
            });
        }
    }
}

#[test]
fn what_cannot_be_replaced_or_replace_is_refused_with_mdadms_words() {
    let shape = Shape::new(Level::Raid1, None, 0, 3);
    let recipe = Recipe { extra: 2, ..Recipe::new(shape) };
    recipe.run(async |_, world| {
        let array = &world.array;
        let spare = world.add(3).await.unwrap().index();
        let text = |result: Result<(), ManageError>| result.unwrap_err().to_string();
        let refused = array.replace(spare, None).await;
        assert_eq!(text(refused), "d3 is not active and so cannot be replaced");
        let refused = array.replace(0, Some(1)).await;
        assert_eq!(text(refused), "d1 is active and cannot be a replacement");
        array.fail(spare).await.unwrap();
        let refused = array.replace(0, Some(spare)).await;
        assert_eq!(text(refused), "d3 is faulty and cannot be a replacement");
        array.fail(2).await.unwrap();
        let refused = array.replace(2, None).await;
        assert_eq!(text(refused), "d2 is not active and so cannot be replaced");
        assert!(matches!(array.replace(77, None).await, Err(ManageError::NoMember { .. })));
    });
}

#[test]
fn a_member_that_fails_while_it_is_replaced_is_succeeded_by_its_replacement() {
    for recipe in recipes() {
        let new = recipe.members();
        recipe.run(async |sim, world| {
            let spare = world.add(new).await.unwrap().index();
            world.media[new].slow_down(200);
            world.array.replace(1, Some(spare)).await.unwrap();
            sim.runtime().sleep(Duration::from_millis(1)).await;
            assert!(world.member(new).await.replacement);
            world.array.fail(1).await.unwrap();
            world.write(64, 64, 2).await;
            world.media[new].slow_down(1);
            world.settle().await;
            let member = world.member(new).await;
            assert!(member.slot == Some(1) && !member.replacement && member.in_sync);
            world.check(0, 64, 1).await;
            world.check(64, 64, 2).await;
        });
    }
}

#[test]
fn another_spare_is_taken_when_a_replacement_or_a_rebuilt_member_fails() {
    for recipe in recipes() {
        let recipe = Recipe { extra: 2, ..recipe };
        let new = recipe.members();
        recipe.run(async |_, world| {
            let first = world.add(new).await.unwrap().index();
            world.media[new].slow_down(200);
            world.array.replace(1, Some(first)).await.unwrap();
            world.array.fail(first).await.unwrap();
            world.add(new + 1).await.unwrap();
            world.settle().await;
            let member = world.member(new + 1).await;
            assert!(member.slot == Some(1) && member.in_sync, "{member:?}");
            world.check(0, 512, 1).await;
        });
    }
}

#[test]
fn a_wish_for_a_replacement_waits_for_a_spare_and_can_be_taken_back() {
    let recipe = Recipe { extra: 2, ..Recipe::new(Shape::new(Level::Raid1, None, 0, 2)) };
    recipe.run(async |_, world| {
        let array = &world.array;
        array.set_member_state(0, "want_replacement").await.unwrap();
        array.set_member_state(0, "-want_replacement").await.unwrap();
        world.add(2).await.unwrap();
        array.sync_ended().await;
        assert!(world.member(2).await.is_spare());
        array.set_member_state(0, "want_replacement").await.unwrap();
        world.settle().await;
        assert_eq!(world.member(2).await.slot, Some(0));
        assert!(world.member(0).await.faulty);
    });
}
