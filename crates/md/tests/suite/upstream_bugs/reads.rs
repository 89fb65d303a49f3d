//! Reads.

use std::time::Duration;

use ashlar_block::{Bio, BlockDevice, Buffer, Flags, Gateway, Sector, Status};
use ashlar_md::ondisk::Level;
use ashlar_md::{AddOptions, FlagChange, MemberFlag, SyncAction};
use ashlar_sim::Media;
use futures_util::future::join_all;

use crate::common::{DATA, Shape, stamped};
use crate::manage::world::{DISK, LEN, Recipe, options};
use crate::upstream_bugs::pending::shapes;

fn mirror(members: usize) -> Recipe {
    Recipe::new(Shape::new(Level::Raid1, None, 0, members))
}

async fn read(volume: &Gateway, sector: u64, flags: Flags) -> Result<Vec<u8>, Status> {
    let mut data = Buffer::zeroed(4096);
    volume.submit(Bio::read_into(Sector(sector), &mut data).with_flags(flags)).await?;
    Ok(data.as_slice().to_vec())
}

/// Upstream: "md/raid1: Fix data corruption for degraded array with slow disk" (6.10.7). The choice of a slow
/// (write-mostly) member did not check whether that member is in sync there.
#[test]
fn a_degraded_array_with_a_slow_disk_reads_nothing_that_was_not_rebuilt() {
    for (good_is_slow, new_is_slow) in [(false, true), (true, true), (true, false)] {
        mirror(2).run(async |sim, world| {
            world.write(DISK.0 - 2 * LEN, LEN, 3).await;
            let slow = |on| FlagChange { flag: MemberFlag::WriteMostly, on };
            world.array.fail(1).await.unwrap();
            world.array.remove(1).await.unwrap();
            world.array.set_flag(0, slow(good_is_slow)).await.unwrap();
            // It holds noise, and is slow to be rebuilt.
            world.media[2].slow_down(1000);
            let how = AddOptions { write_mostly: Some(new_is_slow), ..options(7) };
            world.array.add(world.disks[2].gateway(), "d2", how).await.unwrap();
            world.media[2].clear_log();
            while world.array.sync_status().action != SyncAction::Recover {
                sim.runtime().sleep(Duration::from_micros(10)).await;
            }
            for _ in 0..8 {
                assert_eq!(world.array.sync_status().action, SyncAction::Recover);
                world.check(0, LEN, 1).await;
                world.check(DISK.0 - 2 * LEN, LEN, 3).await;
            }
            // It is not read even if the good one cannot be read.
            world.media[0].fail_reads(DATA..DISK.0);
            for sector in [0, 300, DISK.0 - 2 * LEN] {
                assert_eq!(
                    read(&world.volume(), sector, Flags::empty()).await,
                    Err(Status::Medium)
                );
            }
            assert_eq!(world.media[2].counts().reads, 0);
            world.media.iter().for_each(Media::heal);
        });
    }
}

/// Upstream: "md/raid1: fix choose next idle in read_balance()" (6.7.11). An idle member was skipped.
#[test]
fn read_balance_chooses_the_next_idle_member() {
    for members in [2, 3, 4] {
        mirror(members).run(async |_, world| {
            for round in 0..4 {
                world.media.iter().for_each(Media::clear_log);
                // No read begins where another one ended.
                let reads = (0..members as u64).map(|n| {
                    let volume = world.volume();
                    async move { read(&volume, (n * 5 + 1 + round) * 16, Flags::empty()).await }
                });
                assert!(join_all(reads).await.iter().all(Result::is_ok));
                let counts: Vec<u64> = world.media.iter().map(|m| m.counts().reads).collect();
                assert!(counts[..members].iter().all(|reads| *reads == 1), "{counts:?}");
            }
        });
    }
}

/// Upstream: "md/raid1,raid10: don't ignore IO flags" (CVE-2025-22125). I/O to the members had lost its flags.
#[test]
fn io_flags_are_not_ignored() {
    for shape in shapes() {
        Recipe::new(shape.clone()).run(async |_, world| {
            let seen = |wanted: Flags, write: bool| {
                let logs: Vec<_> = world.media.iter().map(Media::log).collect();
                let data = |c: &&ashlar_sim::Command| c.ranges.iter().all(|r| r.start >= DATA);
                let all: Vec<_> = logs.iter().flatten().filter(data).collect();
                assert!(!all.is_empty() && all.iter().all(|c| c.flags.contains(wanted)), "{all:?}");
                let copies = world.array.personality().map(Sector(0)).len();
                assert_eq!(all.len(), if write { copies } else { 1 }, "{shape:?}");
                world.media.iter().for_each(Media::clear_log);
            };
            world.media.iter().for_each(Media::clear_log);
            for flag in [Flags::RAHEAD, Flags::NOWAIT, Flags::SYNC, Flags::META] {
                read(&world.volume(), 0, flag).await.unwrap();
                seen(flag, false);
            }
            for flag in [Flags::FUA, Flags::SYNC, Flags::META] {
                let mut data = Buffer::zeroed(4096);
                let bio = Bio::write_from(Sector(0), &mut data).with_flags(flag);
                world.volume().submit(bio).await.unwrap();
                seen(flag, true);
            }
        });
    }
}

/// Upstream: "md/raid1,raid10: don't handle IO error for REQ_RAHEAD and REQ_NOWAIT" (6.12.46). Refused reads
/// counted as errors of the member, until it failed.
#[test]
fn no_io_error_is_handled_for_rahead_and_nowait() {
    for shape in shapes() {
        Recipe::new(shape).run(async |_, world| {
            let volume = world.volume();
            for disk in &world.disks {
                disk.disk().set_nr_requests(4).unwrap();
            }
            let reads = (0..64).map(|n| read(&volume, n * 8, Flags::NOWAIT | Flags::NOMERGE));
            let done = join_all(reads).await;
            let again = done.iter().filter(|r| **r == Err(Status::Again)).count();
            assert!(again > 0 && done.iter().filter(|r| r.is_ok()).count() + again == 64);
            world.media.iter().for_each(|m| m.fail_reads(DATA..DISK.0));
            for n in 0..64 {
                assert!(read(&volume, n * 8, Flags::RAHEAD).await.is_err());
            }
            world.media.iter().for_each(Media::heal);
            let status = world.array.status().await;
            assert_eq!(status.degraded, 0);
            assert_eq!(status.members.iter().map(|m| m.read_errors).sum::<u64>(), 0);
            world.check(0, LEN, 1).await;
        });
    }
}

/// Upstream: "md/raid10: don't call bio_start_io_acct twice for bio which experienced read error" (6.1.28).
#[test]
fn a_read_that_experienced_an_error_is_not_accounted_twice() {
    for shape in shapes() {
        Recipe::new(shape.clone()).run(async |sim, world| {
            let first = world.array.personality().map(Sector(0))[0];
            world.media[first.disk].fail_reads(DATA..DATA + 8);
            let totals = || world.array.disk().stats().totals();
            let mut corrected = 0;
            for n in 1..8 {
                let before = totals();
                let got = read(&world.volume(), 0, Flags::empty()).await.unwrap();
                assert!(got == stamped(0, 8, 1), "{shape:?}");
                sim.runtime().sleep(Duration::from_millis(1)).await;
                let after = totals();
                assert_eq!(after.read.ios - before.read.ios, 1, "{shape:?} {n}");
                assert_eq!(after.read.sectors - before.read.sectors, 8, "{shape:?} {n}");
                assert_eq!((after.write, after.in_flight()), (before.write, 0), "{shape:?} {n}");
                corrected = world.array.status().await.members.iter().map(|m| m.corrected).sum();
                if corrected > 0 {
                    break;
                }
            }
            assert!(corrected > 0, "{shape:?}: no read met the error");
        });
    }
}
