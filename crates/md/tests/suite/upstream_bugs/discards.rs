//! Discards.

use std::time::Duration;

use ashlar_block::{Bio, BlockDevice, Flags, Sector, Sectors, Status};
use ashlar_sim::{DiscardReads, Media};
use futures_util::future::join;

use crate::manage::world::Recipe;
use crate::upstream_bugs::pending::shapes;

/// Upstream: "md/raid10: fix missing discard IO accounting" (6.12.25). Discards were neither in the statistics
/// nor marked in the bitmap.
#[test]
fn discard_io_is_accounted_once_and_marked_as_a_whole() {
    for shape in shapes() {
        Recipe::new(shape.clone()).internal().run(async |sim, world| {
            sim.runtime().sleep(Duration::from_secs(90)).await;
            let bitmap = world.array.bitmap().unwrap();
            assert_eq!(bitmap.marked_chunks(), 0);
            let before = world.array.disk().stats().totals();
            world.volume().submit(Bio::discard(Sector(5), Sectors(1000))).await.unwrap();
            let after = world.array.disk().stats().totals();
            assert_eq!(after.discard.ios - before.discard.ios, 1, "{shape:?}");
            assert_eq!(after.discard.sectors - before.discard.sectors, 1000, "{shape:?}");
            assert_eq!((after.write, after.read), (before.write, before.read), "{shape:?}");
            assert_eq!(after.in_flight(), 0, "{shape:?}");
            // All eight chunks of 64 KiB that it touches, on disk too.
            assert_eq!(bitmap.marked_runs(), [(Sector(0), Sectors(1024))], "{shape:?}");
            for disk in 0..shape.members {
                assert_eq!(
                    crate::upstream_bugs::metadata::marks(world, disk).await,
                    0xff,
                    "{shape:?}"
                );
            }
        });
    }
}

/// Upstream: "md/raid10: wait barrier before returning discard request with REQ_NOWAIT" (6.12.64). If a discard
/// does not wait for the barrier of a recovery, the recovery writes the old data over the discarded range.
#[test]
fn a_discard_with_nowait_does_not_pass_the_barrier_of_a_recovery() {
    for shape in shapes() {
        for delay in 0..20 {
            let recipe = Recipe::new(shape.clone());
            recipe.run(async |sim, world| {
                world.media.iter().for_each(|m| m.set_discard_reads(DiscardReads::Zeroes));
                let new = recipe.members();
                world.array.fail(1).await.unwrap();
                world.array.remove(1).await.unwrap();
                world.media[new].slow_down(8);
                world.add(new).await.unwrap();
                let discards = async {
                    sim.runtime().sleep(Duration::from_micros(delay * 100)).await;
                    let mut done = 0;
                    for n in 0..20 {
                        let discard = Bio::discard(Sector(n * 20), Sectors(100));
                        match world.volume().submit(discard.with_flags(Flags::NOWAIT)).await {
                            Ok(()) => done += 1,
                            Err(status) => assert_eq!(status, Status::Again),
                        }
                    }
                    done
                };
                let (done, ()) = join(discards, world.array.sync_ended()).await;
                world.settle().await;
                assert!(done > 0, "{shape:?}");
                world.media.iter().for_each(Media::heal);
            });
        }
    }
}
