//! Writes.

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{Bio, BlockDevice, Buffer, Flags, Op, Sector, Sectors};
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::ondisk::{Level, Role, Superblock, Version};
use ashlar_md::{Array, FlagChange, MemberFlag, Options};
use ashlar_sim::{Media, Sim};
use futures_util::future::join_all;

use crate::common::{
    DATA, SUPERBLOCK, Shape, disks, gateway, make_with, media, spec, stamped, start, write,
};
use crate::manage::world::{DISK, LEN, Recipe};
use crate::upstream_bugs::metadata::marks;
use crate::upstream_bugs::pending::shapes;

const WRITE_MOSTLY: FlagChange = FlagChange { flag: MemberFlag::WriteMostly, on: true };

/// A mirror of two with write-behind, whose second member is made write-mostly while it runs.
async fn behind(sim: &Sim, media: &[Media]) -> Arc<Array> {
    let disks = disks(media);
    let mut spec = spec(&Shape::new(Level::Raid1, None, 0, 2), &[DISK, DISK]);
    spec.bitmap = NewBitmap::Internal { chunk: None };
    spec.write_behind = 256;
    make_with(&spec, &disks).await;
    let array = start(sim, &disks, &Options::default()).await.unwrap();
    write(&gateway(&array), 0, 64, 1).await.unwrap();
    gateway(&array).flush().await.unwrap();
    array.set_flag(1, WRITE_MOSTLY).await.unwrap();
    array
}

fn holds(medium: &Media, sector: u64, len: u64, generation: u8) -> bool {
    medium.peek_range(Sector(DATA + sector), Sectors(len)) == stamped(sector, len, generation)
}

/// Upstream: "md/raid1: fix missing bitmap update w/o WriteMostly devices" (5.15.14). Only arrays with a
/// write-mostly member marked what they wrote.
#[test]
fn the_bitmap_is_updated_with_and_without_write_mostly_devices() {
    for slow in [vec![], vec![2], vec![1, 2], vec![0, 1, 2]] {
        Recipe::new(Shape::new(Level::Raid1, None, 0, 3)).internal().run(async |sim, world| {
            for index in &slow {
                world.array.set_flag(*index, WRITE_MOSTLY).await.unwrap();
            }
            sim.runtime().sleep(Duration::from_secs(90)).await;
            assert_eq!(marks(world, 0).await, 0);
            write(&world.volume(), 200, 8, 2).await.unwrap();
            for disk in 0..3 {
                assert_eq!(marks(world, disk).await, 2, "{slow:?}: member {disk}");
            }
        });
    }
}

/// Upstream: "md/raid1: fix data lost for writemostly rdev" (6.12.46). The copy of a write for the slow member
/// had no operation set, so it was a read.
#[test]
fn data_is_not_lost_for_a_writemostly_rdev() {
    for flags in [Flags::empty(), Flags::SYNC, Flags::FUA, Flags::META | Flags::SYNC] {
        let media = media(2, DISK);
        let sim = Sim::new(1);
        sim.block_on(async {
            let array = behind(&sim, &media).await;
            media.iter().for_each(Media::clear_log);
            let mut data = Buffer::from_slice(&stamped(8, 16, 2));
            gateway(&array).write(Sector(8), &mut data, flags).await.unwrap();
            gateway(&array).flush().await.unwrap();
            for medium in &media {
                assert!(holds(medium, 8, 16, 2), "{flags:?}");
                let log = medium.log();
                let mut of_data = log.iter().filter(|c| c.ranges.iter().any(|r| r.start >= DATA));
                let only = of_data.next().unwrap();
                assert!(only.op == Op::Write && only.flags.contains(flags), "{flags:?}: {only:?}");
                assert_eq!(of_data.next(), None);
            }
            array.stop().await.unwrap();
        });
    }
}

/// Upstream: "md/raid1: fix the comparing region of interval tree" (6.12.91). Writes behind that overlapped only in
/// their last sector were not kept in order; adjacent ones were.
#[test]
fn the_compared_region_of_serialized_writes_is_exact() {
    for (first, len, second, other) in
        [(8, 8, 15, 8), (8, 8, 1, 8), (8, 8, 12, 1), (12, 1, 8, 8), (8, 8, 16, 8), (8, 8, 0, 8)]
    {
        let media = media(2, DISK);
        let sim = Sim::new(1);
        sim.block_on(async {
            let array = behind(&sim, &media).await;
            let volume = gateway(&array);
            media[1].slow_down(400);
            write(&volume, first, len, 2).await.unwrap();
            assert!(!holds(&media[1], first, len, 2), "it was not written behind");
            write(&volume, second, other, 3).await.unwrap();
            let overlap = first < second + other && second < first + len;
            let ended = (first..first + len)
                .all(|at| media[1].peek(Sector(DATA + at))[8..] != stamped(at, 1, 1)[8..]);
            assert_eq!(ended, overlap, "{first}+{len}, {second}+{other}");
            volume.flush().await.unwrap();
            for medium in &media {
                assert!(holds(medium, second, other, 3));
            }
            array.stop().await.unwrap();
        });
    }
}

/// Upstream: "md/raid1: create serial pool..." (6.12.110). The pool that keeps writes behind in order was missing
/// for a member that became write-mostly later.
#[test]
fn writes_are_serialized_for_a_member_that_becomes_write_mostly() {
    for seed in 0..40 {
        let media = media(2, DISK);
        let sim = Sim::new(seed);
        sim.block_on(async {
            let array = behind(&sim, &media).await;
            media[1].slow_down(50);
            for generation in 2..20 {
                let at = u64::from(generation) % 5 * 3;
                write(&gateway(&array), at, 8, generation).await.unwrap();
            }
            gateway(&array).flush().await.unwrap();
            for sector in 0..32 {
                let at = Sector(DATA + sector);
                assert!(media[0].peek(at) == media[1].peek(at), "seed {seed}, sector {sector}");
            }
            array.stop().await.unwrap();
        });
    }
}

/// Upstream: "md: fix bio accounting for split md cloned bios" (6.12.114). Split bios were accounted wrongly.
#[test]
fn accounting_of_split_bios_is_exact() {
    for shape in shapes() {
        Recipe::new(shape.clone()).run(async |_, world| {
            let volume = world.volume();
            let totals = || world.array.disk().stats().totals();
            let before = totals();
            write(&volume, 3, 300, 2).await.unwrap();
            volume.read(Sector(5), Sectors(290)).await.unwrap();
            volume.submit(Bio::write_zeroes(Sector(1), Sectors(700))).await.unwrap();
            let after = totals();
            assert_eq!(after.write.sectors - before.write.sectors, 300 + 700, "{shape:?}");
            assert_eq!(after.read.sectors - before.read.sectors, 290, "{shape:?}");
            assert_eq!(after.in_flight(), 0, "{shape:?}");
            // Some pieces fail.
            world.media.iter().for_each(|m| m.fail_reads(DATA..DISK.0));
            assert!(volume.read(Sector(0), Sectors(LEN)).await.is_err(), "{shape:?}");
            assert_eq!(totals().in_flight(), 0, "{shape:?}");
            world.media.iter().for_each(Media::heal);
        });
    }
}

/// Suspected upstream (from reading the source): `wait_blocked_dev` of raid10 checks the first members of the array
/// instead of those of the write, so that a write to others is acknowledged before a failure there is recorded.
#[test]
fn a_write_waits_for_the_record_of_its_own_members_not_of_the_first() {
    for slot in 0..6 {
        let shape = Shape::new(Level::Raid10, Some(0x102), 4, 6);
        Recipe { extra: 0, ..Recipe::new(shape) }.run(async |_, world| {
            let volume = world.volume();
            let on_slot = |at: &u64| {
                world.array.personality().map(Sector(*at)).iter().any(|copy| copy.disk == slot)
            };
            world.media[slot].kill();
            let writes = (0..12).map(|chunk| chunk * 8).filter(on_slot).map(async |at| {
                write(&volume, at, 8, 2).await.unwrap();
                // The others must record the failure already.
                for (other, medium) in world.media.iter().enumerate() {
                    let bytes = medium.peek_range(Sector(SUPERBLOCK.start), Sectors(8));
                    let sb = Superblock::parse(Version::V1_2, &bytes, DISK).unwrap();
                    assert!(other == slot || sb.roles[slot] == Role::Faulty, "{slot}, {other}");
                }
            });
            assert_eq!(join_all(writes).await.len(), 4);
            assert_eq!(world.array.degraded(), 1);
        });
    }
}
