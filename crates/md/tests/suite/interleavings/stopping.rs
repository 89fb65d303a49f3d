//! Changes of an array that is being stopped.

use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::task::{Context, Poll, Waker};

use ashlar_block::{Bio, BlockDevice, Buffer, IoFuture, Sector, Sectors, Status};
use ashlar_md::ondisk::Level;
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::{AddOptions, Array, FlagChange, GrowOptions, ManageError, MemberFlag};
use ashlar_sim::{Media, Sim, SimDisk};
use futures_util::future::{join, join3};
use uuid::Uuid;

use crate::common::{DATA, Shape, all_clean, disks, gateway, make_with, media, spec, start, write};
use crate::interleavings::world::{
    DISK, INTERNAL, RUN, begin, begin_on, cut, flushed, lose, mirror, sleep_us,
};

/// A change requested just before the stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    Add,
    Fail,
    Remove,
    Replace,
    AddBitmap,
    RemoveBitmap,
    WriteMostly,
    Shrink,
}

const WISHES: [Wish; 8] = [
    Wish::Add,
    Wish::Fail,
    Wish::Remove,
    Wish::Replace,
    Wish::AddBitmap,
    Wish::RemoveBitmap,
    Wish::WriteMostly,
    Wish::Shrink,
];

const FAILFAST: FlagChange = FlagChange { flag: MemberFlag::Failfast, on: true };
const WRITE_MOSTLY: FlagChange = FlagChange { flag: MemberFlag::WriteMostly, on: true };

/// Makes the change, unless it is too late.
async fn grant(wish: Wish, array: &Array, new: &SimDisk) -> Result<(), ManageError> {
    match wish {
        Wish::Add => {
            let options = AddOptions {
                device_uuid: Uuid::from_u128(9),
                write_mostly: None,
                failfast: None,
                spare_only: false,
            };
            array.add(new.gateway(), "d3", options).await.map(|_| ())
        }
        Wish::Fail => array.fail(0).await,
        Wish::Remove => array.remove(2).await,
        Wish::Replace => array.replace(0, Some(2)).await,
        Wish::AddBitmap => array.set_bitmap(INTERNAL).await,
        Wish::RemoveBitmap => array.set_bitmap(NewBitmap::None).await,
        Wish::WriteMostly => array.set_flag(1, WRITE_MOSTLY).await,
        Wish::Shrink => {
            let options = GrowOptions { force: true, assume_clean: false };
            array.grow_size(Some(Sectors(1024)), options).await.map(|_| ())
        }
    }
}

/// A refusal must be due to the stop; any other reason would be an error of the test.
fn check_refusal(result: Result<(), ManageError>) {
    assert!(matches!(result, Ok(()) | Err(ManageError::Stopped(_))), "{result:?}");
}

/// A change waits for the superblocks' lock, and the array is stopped. The change was made after the stop
/// had ended: superblocks were written to devices that were no longer in use.
#[test]
fn nothing_is_changed_when_a_stop_has_ended() {
    let mut changed = Vec::new();
    for wish in WISHES {
        for seed in 0..60 {
            let media: Vec<Media> = media(4, DISK);
            let sim = Sim::new(seed);
            let after = sim.block_on(async {
                let disks = disks(&media);
                let mut spec = mirror(2);
                let mut spare = mirror(3).members.pop().flatten().expect("a member");
                spare.device_uuid = Uuid::from_u128(102);
                spec.members.push(Some(spare));
                if wish == Wish::RemoveBitmap {
                    spec.bitmap = INTERNAL;
                }
                make_with(&spec, &disks[..3]).await;
                let array = begin_on(&sim, &disks[..3]).await;
                // Until no background task of the array runs any more.
                sleep_us(10_000_000).await;
                media[1].slow_down(20);
                // Two updates: a change that waits for the first then waits for the second, and the
                // stop comes between.
                let updates = async {
                    let (first, second) =
                        join(array.set_flag(0, FAILFAST), array.set_flag(1, FAILFAST)).await;
                    check_refusal(first);
                    check_refusal(second);
                };
                let wait = async {
                    sleep_us(5).await;
                    check_refusal(grant(wish, &array, &disks[3]).await);
                };
                let stop = async {
                    sleep_us(seed * 25).await;
                    array.stop().await.unwrap();
                    media.iter().map(Media::snapshot).collect::<Vec<_>>()
                };
                let ((), stopped, ()) = join3(updates, stop, wait).await;
                sleep_us(10_000_000).await;
                assert!(all_clean(&disks[..3]).await, "{wish:?}, seed {seed}: not clean");
                stopped
            });
            let mut pairs = media.iter().zip(&after);
            if pairs.any(|(medium, stopped)| !medium.diff(stopped).is_empty()) {
                changed.push((wish, seed));
            }
        }
    }
    assert!(changed.is_empty(), "made after the stop: {changed:?}");
}

/// Writes that arrive after the stop are counted before they notice it, on any thread. A stop that checked
/// at such a moment considered the array busy, and left it active.
#[test]
fn writes_that_come_too_late_do_not_spoil_a_stop() {
    const WRITES: usize = 1000;
    let media: Vec<Media> = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(begin(&sim, &mirror(2), &media));
    // A long run (`make soak`) tries more often.
    let rounds = if std::env::var_os("ASHLAR_SEEDS").is_some() { 1000 } else { 100 };
    for round in 0..rounds {
        let array = sim.block_on(async {
            let array = start(&sim, &disks(&media), &RUN).await.unwrap();
            write(&gateway(&array), 0, 1, 2).await.unwrap();
            array
        });
        let ready = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut data = Buffer::alloc(512);
                let mut bio = || Bio::write(Sector(0), [data.whole()]);
                // They have already passed the check whether the array is stopped.
                let mut late: Vec<IoFuture<'_>> =
                    std::iter::repeat_with(|| array.submit_bio(bio())).take(WRITES).collect();
                ready.store(true, Release);
                while !array.is_stopped() {
                    std::hint::spin_loop();
                }
                let mut context = Context::from_waker(Waker::noop());
                for late in &mut late {
                    let refused = Pin::new(late).poll(&mut context);
                    assert_eq!(refused, Poll::Ready(Err(Status::Offline)));
                }
            });
            while !ready.load(Acquire) {
                std::hint::spin_loop();
            }
            assert_eq!(sim.block_on(array.stop()), Ok(()), "round {round}");
        });
    }
}

/// Bitmap marks were being cleared when the array was stopped, and still after the stop had ended and the
/// array was assembled again: a mark of the new array was overwritten, and after a power cut its copies
/// stayed different.
#[test]
fn the_bitmap_is_not_written_any_more_when_a_stop_has_ended() {
    // The bitmap's second block has no event count that would show that it is old.
    let size = Sectors(1 << 16);
    let mut spec = spec(&Shape::new(Level::Raid1, None, 0, 2), &[size; 2]);
    spec.bitmap = NewBitmap::Internal { chunk: Some(4096) };
    spec.daemon_sleep = 1;
    let at = 60_000;
    for seed in 0..8 {
        let media: Vec<Media> = media(2, size);
        let sim = Sim::new(seed);
        let left = sim.block_on(async {
            let array = begin(&sim, &spec, &media).await;
            let marked = || array.bitmap().is_some_and(|bitmap| bitmap.marked_chunks() > 0);
            while marked() {
                sleep_us(100_000).await;
            }
            flushed(&array, at - 1000, 8, 1).await;
            sleep_us(500_000).await;
            media.iter().for_each(|medium| medium.slow_down(200));
            while marked() {
                sleep_us(10).await;
            }
            media.iter().for_each(|medium| medium.slow_down(1));
            sleep_us(seed * 600).await;
            array.stop().await.unwrap();
            let again = start(&sim, &disks(&media), &RUN).await.unwrap();
            write(&gateway(&again), at, 8, 2).await.unwrap();
            // Late writes arrive before the cut.
            sleep_us(100_000).await;
            cut(&media)
        });
        drop(sim);
        lose(&left[1]);
        let sim = Sim::new(1);
        sim.block_on(async {
            let array = start(&sim, &disks(&left), &RUN).await.unwrap();
            array.sync_ended().await;
            let copies = left.iter().map(|medium| medium.peek(Sector(DATA + at)));
            let copies: Vec<_> = copies.collect();
            assert!(copies[0] == copies[1], "seed {seed}: copies differ");
            array.stop().await.unwrap();
        });
    }
}
