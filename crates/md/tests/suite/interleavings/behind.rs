//! Writes that are acknowledged before the write-mostly member has them.

use std::cell::Cell;

use ashlar_block::{Buffer, Features, Flags, Limits, Sector, Sectors};
use ashlar_md::ondisk::DeviceFlags;
use ashlar_md::{FlagChange, MemberFlag};
use ashlar_sim::{Media, Model, Sim, SimDisk};
use futures_util::future::{Either, join_all, select};

use crate::common::{DATA, gateway, make_with, media, stamped, start, write};
use crate::interleavings::world::{
    DISK, RUN, begin, begin_on, check, cut, flushed, mirror, read, sleep_us, with_bitmap,
    with_flags, write_behind,
};

/// Slowdown of the second member during a write-behind.
const SLOW: u64 = 1000;

/// A write-behind is pending, and the user clears write-mostly on the slow member: it was read before it
/// had the write.
#[test]
fn a_member_that_is_read_last_no_longer_is_read_when_it_has_all_writes() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let array = begin(&sim, &write_behind(), &media).await;
        media[1].slow_down(SLOW);
        write(&gateway(&array), 0, 8, 2).await.unwrap();
        media[1].slow_down(1);
        let change = FlagChange { flag: MemberFlag::WriteMostly, on: false };
        array.set_flag(1, change).await.unwrap();
        // Enough reads that both members get some.
        let reads = join_all((0..8).map(|_| read(&array, 0, 8))).await;
        for got in reads {
            assert!(got == stamped(0, 8, 2), "an older generation was read");
        }
        array.stop().await.unwrap();
    });
}

/// A write-behind is pending, and the fast member fails at a read error: the slow one was read without
/// waiting for the write.
#[test]
fn the_slow_member_is_read_when_it_has_all_writes_though_the_fast_one_has_just_failed() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let failfast = DeviceFlags { write_mostly: false, failfast: true };
        let array = begin(&sim, &with_flags(write_behind(), 0, failfast), &media).await;
        media[1].slow_down(SLOW);
        write(&gateway(&array), 0, 8, 2).await.unwrap();
        media[1].slow_down(1);
        media[0].fail_reads(DATA..DATA + 8);
        check(&array, 0, 8, 2, "after the failed read").await;
        assert_eq!(array.degraded(), 1);
        array.stop().await.unwrap();
    });
}

/// A fast member listed blocks that it could not write, and the slow one's result cleared that list: the
/// fast member was read there, and returned an older generation.
#[test]
fn a_write_behind_leaves_listed_what_a_fast_member_could_not_write() {
    let media = media(3, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let last = DeviceFlags { write_mostly: true, failfast: false };
        let mut spec = with_flags(with_bitmap(mirror(3)), 2, last);
        spec.write_behind = 256;
        let array = begin(&sim, &spec, &media).await;
        media[1].fail_writes(DATA + 3..DATA + 4);
        flushed(&array, 0, 8, 2).await;
        assert_eq!(array.degraded(), 0);
        let listed = array.members().member(1).unwrap().bad_blocks().count().0;
        assert_eq!(listed, Sectors(1));
        for got in join_all((0..8).map(|_| read(&array, 0, 8))).await {
            assert!(got == stamped(0, 8, 2), "an older generation was read");
        }
        array.stop().await.unwrap();
    });
}

/// Blocks that the slow member cannot write are listed as well, although the fast ones ended long ago;
/// once it can write them, they are no longer listed.
#[test]
fn a_write_behind_lists_what_the_slow_member_could_not_write_until_it_can() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let array = begin(&sim, &write_behind(), &media).await;
        let listed = || array.members().member(1).unwrap().bad_blocks().count().0;
        media[1].fail_writes(DATA + 3..DATA + 4);
        flushed(&array, 0, 8, 2).await;
        assert_eq!((array.degraded(), listed()), (0, Sectors(1)));
        media[1].heal();
        flushed(&array, 0, 8, 3).await;
        assert_eq!((array.degraded(), listed()), (0, Sectors::ZERO));
        array.stop().await.unwrap();
    });
}

/// The same if no member can return all of a read, because both have bad blocks: the data around the
/// fast member's bad block came from the slow one.
#[test]
fn the_slow_member_gives_what_lies_beside_bad_blocks_when_it_has_all_writes() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let array = begin(&sim, &write_behind(), &media).await;
        media[0].fail_writes(DATA..DATA + 1);
        flushed(&array, 0, 1, 1).await;
        media[1].fail_writes(DATA + 12..DATA + 13);
        flushed(&array, 12, 1, 1).await;
        assert_eq!(array.degraded(), 0);
        media[1].slow_down(SLOW);
        write(&gateway(&array), 4, 4, 2).await.unwrap();
        media[1].slow_down(1);
        let got = read(&array, 0, 16).await;
        assert!(got[4 * 512..8 * 512] == stamped(4, 4, 2), "an older generation was read");
        array.stop().await.unwrap();
    });
}

/// Members without a volatile cache: an acknowledged write is durable without a flush. So neither flushes
/// nor FUA reached the array, and both were acknowledged with the write-behind pending.
#[test]
fn what_is_to_be_durable_does_not_go_behind_where_no_member_has_a_cache() {
    let model = Model::nvme();
    let limits = Limits { features: Features::empty(), ..model.limits() };
    let on = |media: &[Media]| -> Vec<SimDisk> {
        let with = |(i, medium): (usize, &Media)| {
            SimDisk::with(format!("d{i}"), medium.clone(), limits, model)
        };
        media.iter().enumerate().map(with).collect()
    };
    for fua in [false, true] {
        let media = media(2, DISK);
        let sim = Sim::new(1);
        let left = sim.block_on(async {
            make_with(&write_behind(), &on(&media)).await;
            let array = begin_on(&sim, &on(&media)).await;
            media[1].slow_down(SLOW);
            if fua {
                let mut data = Buffer::from_slice(&stamped(0, 8, 2));
                gateway(&array).write(Sector(0), &mut data, Flags::FUA).await.unwrap();
            } else {
                flushed(&array, 0, 8, 2).await;
            }
            cut(&media)
        });
        drop(sim);
        let sim = Sim::new(1);
        sim.block_on(async {
            // The fast member is lost in the power cut.
            let array = start(&sim, &on(&left)[1..], &RUN).await.unwrap();
            check(&array, 0, 8, 2, &format!("FUA {fua}")).await;
            array.stop().await.unwrap();
        });
    }
}

/// Continuous writers: a flush waited until no write behind was pending at all, which never happened.
#[test]
fn a_flush_ends_while_others_go_on_writing_behind() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let array = begin(&sim, &write_behind(), &media).await;
        media[1].slow_down(20);
        let written = Cell::new(0);
        let writers = join_all((0..4).map(|place| {
            let (array, written) = (&array, &written);
            async move {
                for n in 0..500 {
                    let generation = 2 + (n % 200) as u8;
                    write(&gateway(array), place * 8, 8, generation).await.unwrap();
                    written.set(written.get() + 1);
                }
            }
        }));
        let flush = async {
            while written.get() < 20 {
                sleep_us(10).await;
            }
            gateway(&array).flush().await.unwrap();
            written.get()
        };
        match select(Box::pin(flush), Box::pin(writers)).await {
            Either::Left((at, writers)) => {
                assert!(at < 1000, "{at} writes overtook a flush");
                writers.await;
            }
            Either::Right(_) => panic!("a flush waited for all that came after it"),
        }
        array.stop().await.unwrap();
        let sector = |medium: &Media, at| medium.peek_range(Sector(DATA + at), Sectors(32));
        assert!(sector(&media[0], 0) == sector(&media[1], 0));
    });
}
