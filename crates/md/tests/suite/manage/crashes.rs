//! Power cuts at every step of every change.

use std::cell::Cell;

use ashlar_block::{BlockDevice, Sectors};
use ashlar_md::ondisk::Level;
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::{GrowOptions, ManageError};
use ashlar_sim::{Sim, Stop};
use futures_util::future::{Either, select};

use crate::common::{Shape, disks, gateway, start, write};
use crate::manage::world::{LEN, RW, Recipe, World, check, differing};

const INTERNAL: NewBitmap = NewBitmap::Internal { chunk: Some(1 << 16) };

fn shapes() -> [Shape; 3] {
    [
        Shape::new(Level::Raid1, None, 0, 2),
        Shape::new(Level::Raid10, Some(0x102), 4, 4),
        Shape::new(Level::Raid10, Some(0x102), 4, 3),
    ]
}

/// Cuts the power at every step of `change`, done after `before`, while a task writes generation 2 beyond
/// the first half of the data. Afterwards the array must start by itself with all flushed data, sync
/// itself, and have no copies that differ; and if the change was done, `after` must hold.
fn cut_everywhere(
    recipe: &Recipe,
    before: impl AsyncFn(&World),
    change: impl AsyncFn(&World),
    after: impl AsyncFn(&World),
) {
    // A long run (`make soak`) tests more of the later steps.
    let share = if std::env::var_os("ASHLAR_SEEDS").is_some() { 32 } else { 3 };
    let mut step = 0;
    for round in 0.. {
        let media = recipe.media();
        let sim = Sim::new(round);
        let world = sim.block_on(async {
            let world = recipe.start(&sim, &media).await;
            before(&world).await;
            world
        });
        let flushed = Cell::new(0);
        let done = {
            let writer = async {
                for n in 0.. {
                    let at = LEN / 2 + n % 16 * 16;
                    if write(&world.volume(), at, 16, 2).await.is_err()
                        || world.volume().flush().await.is_err()
                    {
                        break;
                    }
                    flushed.set((n + 1).min(16));
                }
            };
            let both = async {
                let change = std::pin::pin!(change(&world));
                match select(change, std::pin::pin!(writer)).await {
                    Either::Left(_) => {}
                    Either::Right(_) => panic!("a write failed"),
                }
            };
            sim.block_on_until(both, Stop::AfterSteps(step)).is_some()
        };
        drop(world);
        sim.power_cut();
        let sim = Sim::new(1000 + round);
        sim.block_on(async {
            let disks = disks(&media);
            let shape = format!("{:?}, {:?}", recipe.shape, recipe.bitmap);
            let context = || format!("{shape}, cut after step {step}");
            let array = start(&sim, &disks, &RW).await;
            let array = array.unwrap_or_else(|error| panic!("{}: {error}", context()));
            check(&array, 0, LEN / 2, 1).await;
            check(&array, LEN / 2, flushed.get() * 16, 2).await;
            array.sync_ended().await;
            assert!(!array.is_unsynced(), "{}", context());
            check(&array, 0, LEN / 2, 1).await;
            check(&array, LEN / 2, flushed.get() * 16, 2).await;
            let differ = differing(&array, &media, LEN).await;
            let members = array.status().await.members;
            assert!(differ.is_empty(), "{}: {differ:?} {members:#?}", context());
            let world = World { array, media: media.clone(), disks };
            if done {
                after(&world).await;
            }
            world.array.stop().await.unwrap();
        });
        if done {
            assert!(round > 3, "only {round} cuts");
            return;
        }
        // All of the first steps, where superblocks change, then some.
        step += 1 + step / share;
    }
}

async fn nothing(_: &World) {}

#[test]
fn adding_a_spare() {
    for shape in shapes() {
        for bitmap in [NewBitmap::None, INTERNAL] {
            let recipe = Recipe::new(shape.clone()).bitmap(bitmap);
            let new = recipe.members();
            let add = async |world: &World| {
                world.add(new).await.unwrap();
            };
            cut_everywhere(&recipe, nothing, add, async |world| {
                assert!(world.member(new).await.is_spare());
            });
        }
    }
}

#[test]
fn adding_a_member_for_one_that_failed() {
    for shape in shapes() {
        for bitmap in [NewBitmap::None, INTERNAL, NewBitmap::Lockless] {
            let recipe = Recipe::new(shape.clone()).bitmap(bitmap);
            let new = recipe.members();
            let fail = async |world: &World| world.array.fail(1).await.unwrap();
            let add = async |world: &World| {
                world.add(new).await.unwrap();
                world.array.sync_ended().await;
            };
            cut_everywhere(&recipe, fail, add, async |world| {
                assert_eq!(world.array.degraded(), 0);
            });
        }
    }
}

#[test]
fn failing_and_removing_a_member_that_a_spare_succeeds() {
    for shape in shapes() {
        let recipe = Recipe { spares: 1, extra: 0, ..Recipe::new(shape) };
        let change = async |world: &World| {
            world.array.fail(1).await.unwrap();
            world.array.remove(1).await.unwrap();
            world.array.sync_ended().await;
        };
        cut_everywhere(&recipe, nothing, change, async |world| {
            assert_eq!(world.array.degraded(), 0);
        });
    }
}

#[test]
fn a_member_that_returns() {
    for shape in shapes() {
        for bitmap in [INTERNAL, NewBitmap::Lockless] {
            let recipe = Recipe { extra: 0, ..Recipe::new(shape.clone()).bitmap(bitmap) };
            let leave = async |world: &World| {
                world.array.fail(1).await.unwrap();
                world.array.remove(1).await.unwrap();
                world.write(0, 64, 1).await;
            };
            let change = async |world: &World| {
                world.add(1).await.unwrap();
                world.array.sync_ended().await;
            };
            cut_everywhere(&recipe, leave, change, async |world| {
                assert_eq!(world.array.degraded(), 0);
            });
        }
    }
}

#[test]
fn replacing_a_member() {
    for shape in shapes() {
        for bitmap in [NewBitmap::None, INTERNAL] {
            let recipe = Recipe { spares: 1, extra: 0, ..Recipe::new(shape.clone()) };
            let recipe = recipe.bitmap(bitmap);
            let spare = recipe.shape.members as u32;
            let change = async |world: &World| {
                world.array.replace(1, Some(spare)).await.unwrap();
                world.array.sync_ended().await;
            };
            cut_everywhere(&recipe, nothing, change, async |world| {
                assert_eq!(world.array.degraded(), 0);
                assert_eq!(world.member(spare as usize).await.slot, Some(1));
            });
        }
    }
}

#[test]
fn growing() {
    for shape in shapes() {
        for bitmap in [NewBitmap::None, INTERNAL, NewBitmap::Lockless] {
            let recipe =
                Recipe { used: Some(Sectors(2048)), extra: 0, ..Recipe::new(shape.clone()) };
            let size = Cell::new(Sectors::ZERO);
            let change = async |world: &World| {
                size.set(world.array.grow_size(None, GrowOptions::default()).await.unwrap());
            };
            cut_everywhere(&recipe.bitmap(bitmap), nothing, change, async |world| {
                assert_eq!(world.array.disk().capacity(), size.get());
            });
        }
    }
}

#[test]
fn shrinking() {
    for shape in shapes() {
        for bitmap in [NewBitmap::None, INTERNAL, NewBitmap::Lockless] {
            let recipe = Recipe { extra: 0, ..Recipe::new(shape.clone()).bitmap(bitmap) };
            let change = async |world: &World| {
                let force = GrowOptions { force: true, assume_clean: false };
                world.array.grow_size(Some(Sectors(1024)), force).await.unwrap();
            };
            cut_everywhere(&recipe, nothing, change, async |world| {
                assert_eq!(world.array.personality().used_dev_size(), Sectors(1024));
            });
        }
    }
}

#[test]
fn more_devices() {
    for members in [1, 2] {
        for (bitmap, spares) in [(INTERNAL, 1), (NewBitmap::None, 0)] {
            let shape = Shape::new(Level::Raid1, None, 0, members);
            let recipe = Recipe { spares, extra: 0, ..Recipe::new(shape) }.bitmap(bitmap);
            let change = async |world: &World| {
                world.array.grow_devices(members + 1).await.unwrap();
                world.array.sync_ended().await;
            };
            cut_everywhere(&recipe, nothing, change, async |world| {
                let status = world.array.status().await;
                assert_eq!((status.raid_disks, status.degraded), (members + 1, 1 - spares));
            });
        }
    }
}

#[test]
fn fewer_devices() {
    for (removed, bitmap) in [(false, INTERNAL), (true, NewBitmap::None)] {
        let shape = Shape::new(Level::Raid1, None, 0, 3);
        let recipe = Recipe { extra: 0, ..Recipe::new(shape) }.bitmap(bitmap);
        let before = async |world: &World| {
            world.array.fail(2).await.unwrap();
            if removed {
                world.array.remove(2).await.unwrap();
            }
        };
        let change = async |world: &World| world.array.grow_devices(2).await.unwrap();
        cut_everywhere(&recipe, before, change, async |world| {
            let status = world.array.status().await;
            assert_eq!((status.raid_disks, status.degraded), (2, 0));
        });
    }
}

#[test]
fn adding_and_removing_a_bitmap() {
    for shape in shapes() {
        for bitmap in [INTERNAL, NewBitmap::Lockless] {
            let recipe = Recipe { extra: 0, ..Recipe::new(shape.clone()) };
            let add = async |world: &World| world.array.set_bitmap(bitmap).await.unwrap();
            cut_everywhere(&recipe, nothing, add, async |world| {
                assert!(world.array.bitmap().is_some());
            });
            let remove = async |world: &World| {
                world.array.set_bitmap(NewBitmap::None).await.unwrap();
            };
            cut_everywhere(&recipe.bitmap(bitmap), nothing, remove, async |world| {
                assert!(world.array.bitmap().is_none());
            });
        }
    }
}

/// The writer beside the change makes the first writes, or keeps the array from becoming auto-read-only.
#[test]
fn the_first_write_of_a_read_auto_array() {
    for shape in shapes() {
        for bitmap in [NewBitmap::None, INTERNAL, NewBitmap::Lockless] {
            let recipe = Recipe { extra: 0, ..Recipe::new(shape.clone()) }.bitmap(bitmap);
            let before = async |world: &World| world.array.set_state("read-auto").await.unwrap();
            let change = async |world: &World| {
                for _ in 0..4 {
                    // What it holds already.
                    world.write(0, 16, 1).await;
                    match world.array.set_state("read-auto").await {
                        Ok(()) | Err(ManageError::Writing(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            };
            cut_everywhere(&recipe, before, change, nothing);
        }
    }
}

/// Crashes during a change that follows another one immediately.
#[test]
fn one_change_after_another() {
    let recipe = Recipe { used: Some(Sectors(2048)), ..Recipe::new(shapes()[0].clone()) };
    let change = async |world: &World| {
        world.array.set_bitmap(INTERNAL).await.unwrap();
        world.array.grow_size(None, GrowOptions::default()).await.unwrap();
        world.add(2).await.unwrap();
        world.array.fail(0).await.unwrap();
        world.array.set_bitmap(NewBitmap::None).await.unwrap();
        world.array.sync_ended().await;
    };
    cut_everywhere(&recipe, nothing, change, async |world| {
        assert!(world.array.bitmap().is_none() && world.array.degraded() == 0);
        let volume = gateway(&world.array);
        write(&volume, world.array.disk().capacity().0 - 8, 8, 3).await.unwrap();
    });
}
