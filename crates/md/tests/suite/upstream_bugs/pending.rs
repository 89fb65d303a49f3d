//! Failed or refused I/O leaves nothing behind.

use std::time::Duration;

use ashlar_block::{Bio, BlockDevice, Buffer, Flags, Op, Sector, Sectors, Status};
use ashlar_md::ondisk::Level;
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::{ArrayState, SyncAction, SyncRequest};
use ashlar_sim::{Media, Sim, Stop};
use futures_util::future::{join_all, join3};

use crate::common::{DATA, SUPERBLOCK, Shape, write};
use crate::manage::world::{DISK, Recipe, World};

pub(crate) fn shapes() -> [Shape; 5] {
    [
        Shape::new(Level::Raid1, None, 0, 2),
        Shape::new(Level::Raid10, Some(0x102), 4, 4),
        Shape::new(Level::Raid10, Some(0x102), 4, 3),
        Shape::new(Level::Raid10, Some(0x201), 4, 3),
        Shape::new(Level::Raid10, Some(0x1_0201), 4, 4),
    ]
}

/// Asserts that no write counts as under way (the array becomes clean), no I/O is in the barrier (a check
/// raises it, a bitmap freezes the array), and no I/O is accounted as in flight.
pub(crate) async fn nothing_is_left(sim: &Sim, world: &World) {
    // Disks that refused durable writes may have lost others, as a flush says once.
    world.volume().flush().await.ok();
    sim.set_time_limit(Duration::from_secs(48 * 3600));
    world.write(0, 8, 1).await;
    sim.runtime().sleep(Duration::from_secs(2)).await;
    assert_eq!(world.array.state(), ArrayState::Clean, "a write counts as under way");
    world.array.request_sync(SyncRequest::Check).unwrap();
    world.array.sync_ended().await;
    assert_eq!(world.array.sync_status().last, SyncAction::Check);
    world.array.set_bitmap(NewBitmap::Internal { chunk: None }).await.unwrap();
    world.array.set_bitmap(NewBitmap::None).await.unwrap();
    assert_eq!(world.array.disk().stats().totals().in_flight(), 0);
}

/// Upstream: "md/raid10: fix writes_pending and barrier reference leaks on discard failures"
/// (CVE-2026-72438, 6.12.111). A discard that failed halfway was never counted out, and the array could
/// not be frozen any more.
#[test]
fn discard_failures_leak_no_writes_pending_and_no_barrier_reference() {
    for shape in shapes() {
        for failing in 0..4 {
            Recipe::new(shape.clone()).run(async |sim, world| {
                let volume = world.volume();
                let discard = || volume.submit(Bio::discard(Sector(5), Sectors(1000)));
                let result = match failing {
                    0 => {
                        world.media.iter().for_each(|m| m.fail_writes(DATA..DISK.0));
                        discard().await
                    }
                    1 => {
                        world.media.iter().for_each(|m| m.drop_support(Op::Discard));
                        discard().await
                    }
                    2 => {
                        // It cannot begin: the superblocks cannot record that the array is active.
                        sim.runtime().sleep(Duration::from_secs(2)).await;
                        world.media.iter().for_each(|m| m.fail_writes(SUPERBLOCK));
                        discard().await
                    }
                    _ => volume.submit(Bio::discard(Sector(8), Sectors(1 << 40))).await,
                };
                assert!(result.is_err(), "{failing}, {:?}: {result:?}", world.array.personality());
                world.media.iter().for_each(Media::heal);
                nothing_is_left(sim, world).await;
            });
        }
    }
}

/// Upstream: "md: fix writes_pending leak on write request failures" and "md/raid1,raid10: fix writes_pending
/// and barrier reference leaks on write failures" (6.12.114).
#[test]
fn write_failures_leak_no_writes_pending_and_no_barrier_reference() {
    for shape in shapes() {
        for failing in 0..5 {
            let recipe = Recipe::new(shape.clone());
            recipe.run(async |sim, world| {
                let volume = world.volume();
                match failing {
                    0 => {
                        // It cannot begin.
                        sim.runtime().sleep(Duration::from_secs(2)).await;
                        world.media.iter().for_each(|m| m.fail_writes(SUPERBLOCK));
                        assert!(write(&volume, 0, 64, 2).await.is_err());
                    }
                    1 => {
                        world.media.iter().for_each(|m| m.drop_support(Op::WriteZeroes));
                        let zeroes = Bio::write_zeroes(Sector(3), Sectors(100));
                        let done = volume.submit(zeroes.with_flags(Flags::FAST)).await;
                        assert!(matches!(done, Ok(()) | Err(Status::NotSupported)), "{done:?}");
                    }
                    2 => {
                        let mut data = Buffer::zeroed(4096);
                        let end = world.array.disk().capacity().as_end();
                        let beyond = Bio::write_from(end, &mut data);
                        assert!(volume.submit(beyond).await.is_err());
                    }
                    3 => {
                        // One member fails; the write succeeds.
                        world.media[1].fail_writes(0..DISK.0);
                        let writes = (0..32).map(|n| write(&volume, n * 8, 8, 1));
                        assert!(join_all(writes).await.iter().all(Result::is_ok));
                    }
                    _ => {
                        let member = &world.disks[1];
                        member.disk().set_nr_requests(4).unwrap();
                        let writes = (0..64u64).map(async |n| {
                            let mut data = Buffer::zeroed(4096);
                            let bio = Bio::write_from(Sector(n * 8), &mut data);
                            let done = volume.submit(bio.with_flags(Flags::NOWAIT)).await;
                            assert!(matches!(done, Ok(()) | Err(Status::Again)), "{done:?}");
                        });
                        join_all(writes).await;
                    }
                }
                world.media.iter().for_each(Media::heal);
                nothing_is_left(sim, world).await;
            });
        }
    }
}

/// Upstream: "md/raid1: free r1_bio when REQ_NOWAIT..." (6.12.97) and "md/raid10: wait barrier before returning
/// discard request with REQ_NOWAIT" (6.12.64). I/O that must not wait leaves nothing behind, even if dropped.
#[test]
fn nowait_io_that_is_given_up_leaves_nothing_behind() {
    for shape in shapes() {
        for step in 0..40 {
            let recipe = Recipe::new(shape.clone());
            let media = recipe.media();
            let sim = Sim::new(step);
            let world = sim.block_on(recipe.start(&sim, &media));
            let read = async {
                let mut data = Buffer::zeroed(64 * 512);
                let bio = Bio::read_into(Sector(0), &mut data).with_flags(Flags::NOWAIT);
                let done = world.volume().submit(bio).await;
                assert!(matches!(done, Ok(()) | Err(Status::Again)), "{done:?}");
            };
            let write = async {
                let mut data = Buffer::zeroed(64 * 512);
                let bio = Bio::write_from(Sector(64), &mut data).with_flags(Flags::NOWAIT);
                let done = world.volume().submit(bio).await;
                assert!(matches!(done, Ok(()) | Err(Status::Again)), "{done:?}");
            };
            let discard = async {
                let bio = Bio::discard(Sector(128), Sectors(256)).with_flags(Flags::NOWAIT);
                let done = world.volume().submit(bio).await;
                assert!(matches!(done, Ok(()) | Err(Status::Again)), "{done:?}");
            };
            for disk in &world.disks {
                disk.disk().set_nr_requests(4).unwrap();
            }
            let all = async { join3(read, write, discard).await };
            sim.block_on_until(all, Stop::AfterSteps(step));
            sim.block_on(async {
                nothing_is_left(&sim, &world).await;
                world.array.stop().await.unwrap();
            });
        }
    }
}
