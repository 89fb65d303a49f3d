//! Members that come and go, which an array may have to live with for years: it needs no more memory for that.

use std::time::Duration;

use ashlar_block::{Gateway, Runtime};
use ashlar_md::ondisk::Level;
use ashlar_md::{AddOutcome, Index, ManageError};
use ashlar_sim::SimRuntime;
use ashlar_sim::scheduler::start as spawn;
use futures_util::future::{join, join_all};

use crate::common::{DATA, Shape, write};
use crate::manage::world::{Recipe, World, options};

/// How often a member returns, and to what; more often in a long run (`make soak`).
fn recipes() -> [(u64, Recipe); 2] {
    let share = if std::env::var_os("ASHLAR_SEEDS").is_some() { 1 } else { 5 };
    let raid1 = Shape::new(Level::Raid1, None, 0, 2);
    let raid10 = Shape::new(Level::Raid10, Some(0x201), 4, 3);
    [(1000 / share, Recipe::new(raid1).internal()), (100 / share, Recipe::new(raid10).internal())]
}

/// Loses the member on disk 1 by a write, and has it return during another one. Returns its indices before and after.
async fn go_and_come(world: &World, generation: u8) -> [Result<Index, ManageError>; 2] {
    world.media[1].vanish();
    world.write(0, 64, generation).await;
    let before = world.member(1).await;
    assert!(before.lost, "{before:?}");
    world.media[1].heal();
    let index = before.index.unwrap();
    let volume = world.volume();
    let during = join_all((1..4).map(|at| write(&volume, at * 64, 64, generation)));
    let (returned, during) = join(world.array.re_add_lost(index), during).await;
    during.into_iter().for_each(|written| written.unwrap());
    [Ok(index), returned]
}

#[test]
fn a_member_that_returns_again_and_again_leaves_the_table_as_long_as_the_first_time() {
    for (times, recipe) in recipes() {
        recipe.run(async |_, world| {
            let length = || world.array.members().memberships();
            let mut most = length() + 1;
            for time in 0..times {
                let generation = time as u8;
                // Some leave it a list of bad blocks, which its next membership reads from its log.
                if time % 10 == 7 {
                    world.media[1].fail_writes(DATA + 100..DATA + 108);
                    world.write(0, 512, generation).await;
                    let member = world.index(1).await;
                    assert!(!world.array.members().get(member).unwrap().bad_blocks().is_empty());
                }
                let [before, after] = go_and_come(world, generation).await;
                assert_ne!(before.unwrap(), after.unwrap(), "two in a row");
                assert!(length() <= most, "{} at the {time}th time", length());
                most = length();
                world.array.sync_ended().await;
                assert_eq!(world.array.degraded(), 0, "the {time}th time");
                world.check(0, 256, generation).await;
                if time % 50 == 0 {
                    world.settle().await;
                }
            }
            world.settle().await;
            assert_eq!(most, recipe.members() + 1);
        });
    }
}

/// The list is that of its log, and not what the membership that is used again had.
#[test]
fn a_member_that_returns_keeps_its_bad_blocks() {
    let recipe = Recipe::new(Shape::new(Level::Raid1, None, 0, 2)).internal();
    recipe.run(async |_, world| {
        let mut lists = Vec::new();
        for generation in 2..8 {
            // Written and listed: nothing is marked for it.
            if generation == 4 {
                world.media[1].fail_writes(DATA + 304..DATA + 312);
                world.write(256, 128, generation).await;
                SimRuntime.sleep(Duration::from_secs(90)).await;
            } else if generation == 6 {
                world.write(256, 128, generation).await;
            }
            let [_, index] = go_and_come(world, generation).await;
            world.array.sync_ended().await;
            let member = world.array.members().get(index.unwrap()).unwrap();
            lists.push(!member.bad_blocks().is_empty());
            for _ in 0..8 {
                world.check(256, 128, [1, 1, 4, 4, 6, 6][usize::from(generation) - 2]).await;
            }
        }
        assert_eq!(lists, [false, false, true, true, false, false]);
        world.settle().await;
    });
}

/// Through one gateway, as a partition that stays open.
#[test]
fn a_device_that_is_removed_and_re_added_uses_two_memberships_in_turn() {
    let recipe = Recipe::new(Shape::new(Level::Raid1, None, 0, 2)).internal();
    recipe.run(async |_, world| {
        let device = world.array.members().get(1).unwrap().gateway().clone();
        let mut indices = vec![1];
        for generation in 2..8 {
            let index = world.index(1).await;
            world.array.fail(index).await.unwrap();
            world.array.remove(index).await.unwrap();
            world.write(0, 64, generation).await;
            let added = world.array.add(device.clone(), "d1", options(9)).await.unwrap();
            assert!(matches!(added, AddOutcome::Returned(_)), "{added:?}");
            indices.push(added.index());
            world.settle().await;
            world.check(0, 64, generation).await;
        }
        assert_eq!(indices, [1, 2, 1, 2, 1, 2, 1]);
    });
}

/// I/O that does not end could know the membership that is to be used again.
#[test]
fn a_member_that_returns_does_not_wait_long_for_io_in_flight() {
    let recipe = Recipe::new(Shape::new(Level::Raid1, None, 0, 3)).internal();
    recipe.run(async |_, world| {
        let length = || world.array.members().memberships();
        for generation in 2..4 {
            go_and_come(world, generation).await[1].as_ref().unwrap();
            world.settle().await;
        }
        assert_eq!(length(), 4);
        let hung = |volume: Gateway| spawn(async move { write(&volume, 256, 8, 9).await });
        world.media[1].vanish();
        world.write(0, 64, 5).await;
        world.media[1].heal();
        let index = world.index(1).await;
        world.media[2].hang_nth_command(0);
        let hung = hung(world.volume());
        SimRuntime.sleep(Duration::from_millis(10)).await;
        let since_ns = SimRuntime.now_ns();
        world.array.re_add_lost(index).await.unwrap();
        let took = Duration::from_nanos(SimRuntime.now_ns() - since_ns);
        assert!(took < Duration::from_millis(1500), "{took:?}");
        assert_eq!(length(), 5, "it was used again during I/O");
        world.media[2].answer();
        hung.await.unwrap();
        world.settle().await;
        // Both that have ended can be used now.
        for generation in 6..12 {
            go_and_come(world, generation).await[1].as_ref().unwrap();
            world.settle().await;
        }
        assert_eq!(length(), 5);
        world.check(256, 8, 9).await;
    });
}
