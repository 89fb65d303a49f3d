//! Write-behind: the order of waiting.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{DATA, Shape, disks, gateway, make_with, media, spec, stamped, start, write};
use ashlar_block::buffer::MemoryIsThere;
use ashlar_block::canary::break_rule;
use ashlar_block::{Sector, Sectors};
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::ondisk::{DeviceFlags, Level};
use ashlar_md::{Array, Options};
use ashlar_sim::{Break, Media, Sim, SimDisk};
use futures_util::future::join;

const DISK: Sectors = Sectors(4096);
const SLOW: u64 = 200;

/// A RAID1 whose second member is write-mostly and slow.
async fn behind(sim: &Sim, media: &[Media]) -> (Vec<SimDisk>, Arc<Array>) {
    let disks = disks(media);
    let shape = Shape::new(Level::Raid1, None, 0, 2);
    let mut spec = spec(&shape, &[DISK, DISK]);
    spec.bitmap = NewBitmap::Internal { chunk: None };
    spec.write_behind = 256;
    if let Some(member) = spec.members[1].as_mut() {
        member.flags = DeviceFlags { write_mostly: true, failfast: false };
    }
    make_with(&spec, &disks).await;
    let array = start(sim, &disks, &Options::default()).await.unwrap();
    write(&gateway(&array), 0, 64, 1).await.unwrap();
    gateway(&array).flush().await.unwrap();
    (disks, array)
}

fn sector(medium: &Media, sector: u64) -> Vec<u8> {
    medium.peek(Sector(DATA + sector)).to_vec()
}

#[test]
fn a_write_is_acknowledged_before_the_slow_member_has_it_and_a_flush_is_not() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let (_disks, array) = behind(&sim, &media).await;
        let volume = gateway(&array);
        media[1].slow_down(SLOW);
        let began = sim.runtime().now_ns();
        write(&volume, 0, 8, 2).await.unwrap();
        let took = sim.runtime().now_ns() - began;
        assert!(sector(&media[1], 0) != stamped(0, 1, 2), "it waited for the slow member");
        volume.flush().await.unwrap();
        assert!(sector(&media[1], 0) == stamped(0, 1, 2), "a flush left a write behind");
        assert!(sim.runtime().now_ns() - began > 10 * took);
        array.stop().await.unwrap();
    });
}

/// The copy was allocated whether there was memory or not, which aborts the process.
#[test]
fn a_write_without_memory_for_its_copy_waits_for_the_slow_member() {
    let media = media(2, DISK);
    let sim = Sim::new(7);
    sim.block_on(async {
        let (_disks, array) = behind(&sim, &media).await;
        let volume = gateway(&array);
        media[1].slow_down(SLOW);
        let short = break_rule(MemoryIsThere);
        write(&volume, 0, 8, 2).await.unwrap();
        drop(short);
        assert!(sector(&media[1], 0) == stamped(0, 1, 2), "it is acknowledged before its end");
        // One that no member in sync takes fails at its end.
        media.iter().for_each(|medium| medium.fail_writes(DATA..DATA + 8));
        let short = break_rule(MemoryIsThere);
        assert!(write(&volume, 0, 8, 3).await.is_err());
        drop(short);
        media.iter().for_each(Media::heal);
        array.stop().await.unwrap();
    });
}

#[test]
fn the_last_of_writes_to_one_place_is_what_every_member_has() {
    for seed in 0..40 {
        let media = media(2, DISK);
        let sim = Sim::new(seed);
        sim.block_on(async {
            let (_disks, array) = behind(&sim, &media).await;
            let volume = gateway(&array);
            media[1].slow_down(SLOW);
            for generation in 2..8 {
                write(&volume, u64::from(generation % 3), 8, generation).await.unwrap();
            }
            array.stop().await.unwrap();
            for at in 0..16 {
                assert!(sector(&media[0], at) == sector(&media[1], at), "seed {seed}, sector {at}");
            }
        });
    }
}

#[test]
fn what_only_the_slow_member_can_give_is_read_when_it_has_it() {
    let media = media(2, DISK);
    let sim = Sim::new(3);
    sim.block_on(async {
        let (_disks, array) = behind(&sim, &media).await;
        let volume = gateway(&array);
        media[1].slow_down(SLOW);
        write(&volume, 0, 8, 2).await.unwrap();
        media[0].fail_reads(DATA..DATA + 8);
        let got = volume.read(Sector(0), Sectors(8)).await.unwrap();
        assert!(got.as_slice() == stamped(0, 8, 2));
        array.stop().await.unwrap();
    });
}

#[test]
fn writes_behind_are_limited_and_a_dead_slow_member_fails_alone() {
    let media = media(2, DISK);
    let sim = Sim::new(4);
    sim.block_on(async {
        let (_disks, array) = behind(&sim, &media).await;
        let volume = gateway(&array);
        let dies = async {
            sim.runtime().sleep(Duration::from_micros(50)).await;
            media[1].kill();
        };
        let (written, ()) = join(write(&volume, 0, 8, 2), dies).await;
        written.unwrap();
        volume.flush().await.unwrap();
        assert_eq!(array.degraded(), 1);
        assert!(volume.read(Sector(0), Sectors(8)).await.unwrap().as_slice() == stamped(0, 8, 2));
        array.stop().await.unwrap();
    });
}

/// Loses a write that was acknowledged: the fast member dies, and a read notices it, before the slow one has the write, which
/// `fail` keeps it from taking. Then the data is older, and as with a disk that loses its cache, the next flush says so.
fn loses_a_write_behind(seed: u64, fail: impl AsyncFn(&Sim, &Media)) {
    let media = media(2, DISK);
    let sim = Sim::new(seed);
    sim.block_on(async {
        let (_disks, array) = behind(&sim, &media).await;
        let volume = gateway(&array);
        media[1].slow_down(SLOW);
        write(&volume, 0, 8, 2).await.unwrap();
        media[0].kill();
        let fails = async {
            sim.runtime().sleep(Duration::from_micros(500)).await;
            fail(&sim, &media[1]).await;
        };
        let (read, ()) = join(volume.read(Sector(64), Sectors(8)), fails).await;
        drop(read);
        assert_eq!(array.degraded(), 1);
        assert!(volume.read(Sector(0), Sectors(8)).await.unwrap().as_slice() == stamped(0, 8, 1));
        assert!(volume.flush().await.is_err(), "no flush tells of it");
        volume.flush().await.unwrap();
    });
}

#[test]
fn an_acknowledged_write_that_the_slow_member_loses_with_its_cache_fails_the_next_flush() {
    loses_a_write_behind(5, async |sim, slow| {
        slow.cut_off(Break::Restart);
        sim.runtime().sleep(Duration::from_millis(50)).await;
        slow.reconnect();
    });
}

/// The member continues, and its own flush succeeds.
#[test]
fn an_acknowledged_write_that_the_slow_member_cannot_write_fails_the_next_flush() {
    loses_a_write_behind(6, async |_, slow| slow.fail_writes(DATA..DATA + 8));
}
