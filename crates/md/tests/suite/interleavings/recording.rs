//! Superblock writes in flight while another change must be recorded.

use ashlar_block::{Sector, Sectors};
use ashlar_md::ondisk::DeviceFlags;
use ashlar_md::probe;
use ashlar_sim::{Media, Sim};
use futures_util::future::{join, select};

use crate::common::{DATA, disks, gateway, media, start, write};
use crate::interleavings::world::{
    CHUNK, DISK, LEN, RUN, RW, begin, check, cut, flushed, lose, mirror, read, sleep_us,
    with_bitmap, with_flags, write_superblocks,
};

/// Writes the superblocks of a RAID1, slowly on its second member; `fault` hits the first one after
/// `after` microseconds, and a write to `sector` follows. Returns the media after a power cut that comes
/// when that write was acknowledged and flushed.
fn fault_while_recording(
    after: u64,
    bitmap: bool,
    sector: u64,
    fault: fn(&Media, u64),
) -> Vec<Media> {
    let media = media(2, DISK);
    let sim = Sim::new(after);
    sim.block_on(async {
        let spec = if bitmap { with_bitmap(mirror(2)) } else { mirror(2) };
        let array = begin(&sim, &spec, &media).await;
        let sb = probe(&disks(&media)[0].gateway()).await.unwrap().unwrap();
        let marks = sb.bitmap_start().map_or(0, |at| at.0);
        // All of a new bitmap is marked.
        while array.bitmap().is_some_and(|bitmap| bitmap.marked_chunks() > 0) {
            sleep_us(100_000).await;
        }
        flushed(&array, 0, 8, 1).await;
        media[1].slow_down(50);
        let fails = async {
            sleep_us(after).await;
            media[1].slow_down(1);
            fault(&media[0], marks);
            flushed(&array, sector, 8, 2).await;
            cut(&media)
        };
        join(write_superblocks(&array, 1), fails).await.1
    })
}

/// Checks that the last acknowledged write is read.
fn check_after(left: &[Media], sector: u64, after: u64) {
    let sim = Sim::new(1);
    sim.block_on(async {
        let array = start(&sim, &disks(left), &RUN).await.unwrap();
        let what = format!("fault after {after} us");
        check(&array, sector, 8, 2, &what).await;
        array.sync_ended().await;
        check(&array, sector, 8, 2, &what).await;
        array.stop().await.unwrap();
    });
}

/// A member fails, because it did not take the marks of a write, while superblocks are being written for
/// another reason. When those were done, everything counted as recorded; the write was acknowledged, and
/// after a crash the member that lacked it counted as up to date.
#[test]
fn a_member_that_fails_while_superblocks_are_written_is_recorded_before_the_write_is_acknowledged()
{
    let sector = LEN + CHUNK;
    for after in (0..4000).step_by(50) {
        let left = fault_while_recording(after, true, sector, |member, marks| {
            member.fail_writes(marks..marks + 8);
        });
        check_after(&left, sector, after);
    }
}

/// The same with blocks that could not be written: they were listed as bad only in memory, and after a
/// crash the old data was read from them.
#[test]
fn bad_blocks_found_while_superblocks_are_written_are_listed_before_the_write_is_acknowledged() {
    for after in (0..4000).step_by(50) {
        let left = fault_while_recording(after, false, 0, |member, _| {
            member.fail_writes(DATA..DATA + 8);
        });
        check_after(&left, 0, after);
    }
}

/// A block that could not be written is listed as bad; later it is written successfully, and superblocks
/// are written before that write is durable. The log dropped the block, and a power cut brought back the
/// data from before the first write, which the member never got and which was acknowledged with a flush.
#[test]
fn a_bad_block_is_forgotten_only_when_its_new_data_is_durable() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    let left = sim.block_on(async {
        let array = begin(&sim, &mirror(2), &media).await;
        media[0].fail_writes(DATA..DATA + 8);
        flushed(&array, 0, 8, 2).await;
        media[0].heal();
        write(&gateway(&array), 0, 8, 3).await.unwrap();
        write_superblocks(&array, 1).await;
        cut(&media)
    });
    drop(sim);
    left.iter().for_each(lose);
    let sim = Sim::new(1);
    sim.block_on(async {
        let array = start(&sim, &disks(&left), &RUN).await.unwrap();
        for when in ["after the cut", "after the resync"] {
            let got = read(&array, 0, 8).await;
            let generations: Vec<u8> = got.chunks(512).map(|sector| sector[8]).collect();
            assert!(generations.iter().all(|g| [2, 3].contains(g)), "{when}: {generations:?}");
            array.sync_ended().await;
        }
        array.stop().await.unwrap();
    });
}

/// A read fails a failfast member, and its future is dropped while the superblocks are being written. The
/// rest of that update was never written, and its writes in flight arrived after the superblocks of the
/// next update: a good member looked stale, and the array did not start.
#[test]
fn a_read_that_is_dropped_does_not_cut_a_superblock_update_in_two() {
    for after in (100..10_000).step_by(250) {
        let media = media(3, DISK);
        let sim = Sim::new(after);
        let left = sim.block_on(async {
            let failfast = DeviceFlags { write_mostly: false, failfast: true };
            let array = begin(&sim, &with_flags(mirror(3), 0, failfast), &media).await;
            sleep_us(1_000_000).await;
            media[0].fail_reads(DATA..DATA + 8);
            media[1].slow_down(300);
            let volume = gateway(&array);
            let reads = Box::pin(volume.read(Sector(0), Sectors(8)));
            let leaves = Box::pin(sleep_us(after));
            drop(select(reads, leaves).await);
            media[1].slow_down(1);
            flushed(&array, 0, 8, 2).await;
            write_superblocks(&array, 1).await;
            // Late writes arrive before the cut.
            sleep_us(50_000).await;
            cut(&media)
        });
        drop(sim);
        let sim = Sim::new(1);
        sim.block_on(async {
            let array = start(&sim, &disks(&left), &RW).await;
            let array = array.unwrap_or_else(|error| panic!("dropped after {after} us: {error}"));
            check(&array, 0, 8, 2, &format!("dropped after {after} us")).await;
            array.stop().await.unwrap();
        });
    }
}
