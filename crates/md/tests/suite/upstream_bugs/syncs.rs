//! Resync, recovery and check during errors and freezes.

use std::time::Duration;

use ashlar_block::{Sector, Sectors};
use ashlar_md::SyncRequest;
use ashlar_md::ondisk::Level;
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_sim::Media;
use futures_util::future::join4;

use crate::common::{DATA, Shape, stamped, write};
use crate::manage::world::{LEN, Recipe};
use crate::upstream_bugs::pending::shapes;

fn raid10(layout: u32, members: usize) -> Shape {
    Shape::new(Level::Raid10, Some(layout), 4, members)
}

/// Upstream: "md/raid10: fix any_working flag handling in raid10_sync_request" (6.12.75). A source counted as
/// working although all its blocks there were bad: no I/O began, so the request never ended.
#[test]
fn any_working_source_that_has_only_bad_blocks_does_not_hang_a_recovery() {
    for bad in [8, 64, 1024] {
        let recipe = Recipe::new(raid10(0x102, 4));
        recipe.run(async |sim, world| {
            sim.set_time_limit(Duration::from_secs(3600));
            let volume = world.volume();
            // Members 0 and 1 have the same data; member 0 cannot store some blocks, and lists them.
            world.media[0].fail_writes(DATA..DATA + bad);
            world.write(0, 2 * bad.max(LEN / 2), 2).await;
            assert_eq!(world.array.degraded(), 0, "bad blocks are listed");
            world.array.fail(1).await.unwrap();
            world.array.remove(1).await.unwrap();
            world.media[0].heal();
            world.add(4).await.unwrap();
            world.array.sync_ended().await;
            // Lost blocks are bad on the new member too; it has all others.
            assert_eq!(world.array.degraded(), 0);
            let lost = |sector: u64| {
                let copy = world.array.personality().map(Sector(sector))[0];
                copy.disk < 2 && copy.sector.0 < bad
            };
            for sector in 0..2 * bad.max(LEN / 2) {
                let got = volume.read(Sector(sector), Sectors(1)).await;
                match (lost(sector), got) {
                    (true, got) => assert!(got.is_err(), "sector {sector}"),
                    (false, got) => assert!(got.unwrap().as_slice() == stamped(sector, 1, 2)),
                }
            }
            // A repair of it ends as well.
            world.array.request_sync(SyncRequest::Repair).unwrap();
            world.array.sync_ended().await;
            // Rewritten blocks can be read.
            world.write(0, 4 * bad, 3).await;
            world.check(0, 4 * bad, 3).await;
            world.settle().await;
        });
    }
}

/// Upstream: "md/raid10: fix still_degraded being inverted in raid10_sync_request()" (6.12.109). While a member was
/// still missing, the recovery of another one cleared marks that the missing one would need.
#[test]
fn still_degraded_is_not_inverted_in_a_raid10_sync() {
    for bitmap in [NewBitmap::Internal { chunk: Some(1 << 16) }, NewBitmap::Lockless] {
        for (shape, pair) in [
            (raid10(0x102, 4), [1, 3]),
            (raid10(0x102, 4), [2, 0]),
            (raid10(0x103, 4), [1, 2]),
            (raid10(0x301, 3), [2, 1]),
            (Shape::new(Level::Raid1, None, 0, 3), [0, 2]),
        ] {
            let recipe = Recipe { extra: 0, ..Recipe::new(shape.clone()).bitmap(bitmap) };
            recipe.run(async |sim, world| {
                let array = &world.array;
                sim.runtime().sleep(Duration::from_secs(90)).await;
                for slot in pair {
                    array.fail(slot as u32).await.unwrap();
                    array.remove(slot as u32).await.unwrap();
                }
                world.write(128, 64, 2).await;
                let marked = array.bitmap().unwrap().marked_chunks();
                assert!(marked > 0);
                world.add(pair[0]).await.unwrap();
                array.sync_ended().await;
                assert_eq!(array.degraded(), 1, "{shape:?}");
                sim.runtime().sleep(Duration::from_secs(90)).await;
                let left = array.bitmap().unwrap().marked_chunks();
                assert_eq!(left, marked, "{shape:?}: marks that member {} needs", pair[1]);
                world.add(pair[1]).await.unwrap();
                world.settle().await;
                world.check(0, 128, 1).await;
                world.check(128, 64, 2).await;
                // No member needs the marks any more.
                sim.runtime().sleep(Duration::from_secs(90)).await;
                assert_eq!(array.bitmap().unwrap().marked_chunks(), 0, "{shape:?}");
            });
        }
    }
}

/// Upstream: "md/raid1,raid10: fix deadlock in read error recovery path" (CVE-2026-74375). The correction of a read
/// error waited for a freeze, or for I/O that waited for the correction.
#[test]
fn the_read_error_recovery_path_does_not_deadlock() {
    for shape in shapes() {
        let mut corrected = 0;
        for delay in 0..8 {
            let recipe = Recipe { extra: 0, ..Recipe::new(shape.clone()) };
            recipe.run(async |sim, world| {
                sim.set_time_limit(Duration::from_secs(3600));
                world.array.members().set_max_read_errors(u32::MAX);
                let pause = || sim.runtime().sleep(Duration::from_micros(40 * delay));
                let reads = async {
                    for n in 0..60 {
                        world.media[n % 2].fail_reads(DATA..DATA + LEN);
                        let got = world.volume().read(Sector(0), Sectors(LEN / 2)).await;
                        world.media[n % 2].heal();
                        assert!(got.unwrap().as_slice() == stamped(0, LEN / 2, 1), "{shape:?}");
                    }
                };
                let writes = async {
                    for n in 0..60 {
                        write(&world.volume(), LEN / 2 + n, 40, 2).await.unwrap();
                        pause().await;
                    }
                };
                let freezes = async {
                    for _ in 0..6 {
                        let internal = NewBitmap::Internal { chunk: None };
                        world.array.set_bitmap(internal).await.unwrap();
                        pause().await;
                        world.array.set_bitmap(NewBitmap::None).await.unwrap();
                    }
                };
                let checks = async {
                    for _ in 0..6 {
                        // Refused if a check is under way.
                        if world.array.request_sync(SyncRequest::Check).is_ok() {
                            world.array.sync_ended().await;
                        }
                        pause().await;
                    }
                };
                join4(reads, writes, freezes, checks).await;
                let members = world.array.status().await.members;
                corrected += members.iter().map(|m| m.corrected).sum::<u64>();
                world.media.iter().for_each(Media::heal);
                world.settle().await;
            });
        }
        assert!(corrected > 100, "{shape:?}: {corrected} corrected");
    }
}
