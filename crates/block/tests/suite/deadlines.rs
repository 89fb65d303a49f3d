//! Requests with deadlines: what their submitters get, what memory they keep, and what a device does too late.

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{
    Bio, BioResult, BlockDevice, Buffer, Disk, Flags, Gateway, IoFuture, Limits, Op, Presence,
    Queue, Runtime, Sector, Sectors, Segments, Status, plug,
};
use ashlar_sim::{Media, Model, Sim, SimDisk, SimRuntime};
use futures_util::future::{join, join_all};

use crate::common::{Holder, discard, read, take, write};

pub(crate) const TIMEOUT: Duration = Duration::from_millis(1000);
/// When a deadline must have been noticed: a 32nd late, and the time for completions that have arrived.
pub(crate) const NOTICED: Duration = Duration::from_millis(1000 + 32 + 1);
pub(crate) const LATE: BioResult = Err(Status::Timeout);
const LOST: BioResult = Err(Status::Io);

/// A disk with a deadline, and its medium.
fn disk() -> (SimDisk, Media, Gateway) {
    let media = Media::noisy(Sectors(1 << 16), 1);
    let model = Model::nvme();
    let disk = SimDisk::with_io_timeout("disk", media.clone(), model.limits(), model, TIMEOUT);
    let gateway = disk.gateway();
    (disk, media, gateway)
}

/// Runs on such a disk, with several orders of tasks.
fn on_a_disk(work: impl AsyncFn(&SimDisk, &Media, &Gateway)) {
    for seed in 0..8 {
        let sim = Sim::new(seed);
        let (disk, media, gateway) = disk();
        sim.block_on(work(&disk, &media, &gateway));
    }
}

pub(crate) fn now() -> Duration {
    Duration::from_nanos(SimRuntime.now_ns())
}

pub(crate) async fn sleep(duration: Duration) {
    SimRuntime.sleep(duration).await;
}

pub(crate) fn filled(byte: u8) -> Buffer {
    Buffer::from_slice(&[byte; 4096])
}

#[test]
fn a_silent_device_fails_each_operation_at_its_deadline() {
    on_a_disk(async |disk, media, gateway| {
        media.fall_silent();
        for (bio, factor) in [
            (read(0, 8), 1),
            (write(8, 8), 1),
            (write(16, 8).with_flags(Flags::FUA), 1),
            (discard(24, 8), 10),
            (Bio::write_zeroes(Sector(32), Sectors(8)), 10),
        ] {
            let start = now();
            assert_eq!(gateway.submit(bio).await, LATE);
            let took = now() - start;
            assert!((TIMEOUT * factor..NOTICED * factor).contains(&took), "{took:?}");
            assert_eq!(disk.disk().presence(), Presence::Silent);
        }
    });
}

#[test]
fn requests_at_any_time_are_noticed_within_a_32nd_of_their_deadline() {
    on_a_disk(async |_, media, gateway| {
        media.fall_silent();
        let each = (0..100).map(async |n| {
            sleep(Duration::from_millis(n * 13)).await;
            let start = now();
            assert_eq!(gateway.submit(read(n * 100, 8)).await, LATE);
            assert!((TIMEOUT..NOTICED).contains(&(now() - start)), "{n}: {:?}", now() - start);
        });
        join_all(each).await;
    });
}

#[test]
fn a_shorter_deadline_counts_from_the_next_request_on() {
    on_a_disk(async |disk, media, gateway| {
        media.fall_silent();
        let early = gateway.submit(read(0, 8));
        plug::flush_current();
        disk.disk().set_io_timeout_ms(20).unwrap();
        let start = now();
        assert_eq!(gateway.submit(read(80, 8)).await, LATE);
        assert!(now() - start < Duration::from_millis(22));
        assert_eq!(early.await, LATE);
        assert!((TIMEOUT..NOTICED).contains(&(now() - start)));
    });
}

/// As md does: what one member did not return in time is read from another, into the same memory.
#[test]
fn a_late_answer_to_a_read_does_not_change_memory_that_has_new_contents() {
    on_a_disk(async |disk, media, gateway| {
        media.fall_silent();
        let mut parts = [filled(1), filled(2)];
        let segments: Segments = parts.iter_mut().map(Buffer::whole).collect();
        assert_eq!(gateway.submit(Bio::read(Sector(0), segments.clone())).await, LATE);
        segments.iter().for_each(|segment| segment.copy_from(&[7; 4096]));
        drop(segments);
        media.answer();
        sleep(TIMEOUT).await;
        assert_eq!(media.counts().reads, 1);
        assert!(parts.iter().all(|part| part.as_slice() == [7; 4096]));
        assert_eq!(disk.disk().presence(), Presence::Answering);
    });
}

#[test]
fn reads_in_time_return_each_bio_its_data() {
    on_a_disk(async |disk, media, gateway| {
        let mut parts: Vec<_> = (0..12).map(|_| Buffer::alloc(1536)).collect();
        let mut bios = Vec::new();
        for (at, pair) in (0..).zip(parts.chunks_mut(2)) {
            let segments: Segments = pair.iter_mut().map(Buffer::whole).collect();
            bios.push(Bio::read(Sector(at * 6), segments));
        }
        media.fail_reads(13..14);
        let results = join_all(bios.into_iter().map(|bio| gateway.submit(bio))).await;
        for (at, result) in results.iter().enumerate() {
            assert_eq!(*result, if at == 2 { Err(Status::Medium) } else { Ok(()) }, "{at}");
        }
        assert_eq!(media.log()[0].bios, 6, "merged first, then one by one");
        for (at, part) in parts.iter().enumerate().filter(|(at, _)| at / 2 != 2) {
            let expected = media.peek_range(Sector(at as u64 * 3), Sectors(3));
            assert!(part.as_slice() == expected, "{at}");
        }
        assert_eq!(disk.disk().presence(), Presence::Answering);
    });
}

/// The memory of the queue that reads have is bounded, and the reads that wait for it do not wait for a silent device.
#[test]
fn reads_wait_for_memory_but_not_for_a_silent_device() {
    const LEN: u64 = 1024;
    on_a_disk(async |_, media, gateway| {
        let all = || {
            join_all((0..64).map(|n| gateway.submit(read(n * LEN, LEN).with_flags(Flags::NOMERGE))))
        };
        assert!(all().await.iter().all(|result| *result == Ok(())));
        assert_eq!(media.counts().reads, 64);
        media.fall_silent();
        let start = now();
        assert!(all().await.iter().all(|result| *result == LATE));
        assert!((TIMEOUT..NOTICED).contains(&(now() - start)), "{:?}", now() - start);
        media.answer();
        sleep(TIMEOUT).await;
        assert_eq!(media.counts().reads, 64 + 16, "8 MiB");
    });
}

#[test]
fn a_late_write_writes_what_it_was_given() {
    on_a_disk(async |_, media, gateway| {
        media.fall_silent();
        let mut data = filled(1);
        assert_eq!(gateway.write(Sector(8), &mut data, Flags::empty()).await, LATE);
        data.as_mut_slice().fill(2);
        media.answer();
        assert_eq!(gateway.write(Sector(80), &mut data, Flags::empty()).await, Ok(()));
        sleep(TIMEOUT).await;
        assert_eq!((media.peek(Sector(8)), media.peek(Sector(80))), ([1; 512], [2; 512]));
    });
}

#[test]
fn a_late_write_does_not_replace_a_newer_one() {
    on_a_disk(async |disk, media, gateway| {
        media.hang_nth_command(0);
        assert_eq!(gateway.submit(write(8, 8)).await, LATE);
        // The disk answers, but the contents of these sectors are not known.
        let newer = || Bio::write_from(Sector(15), &mut filled(2));
        for bio in [newer(), discard(0, 9), Bio::write_zeroes(Sector(0), Sectors(64))] {
            let start = now();
            assert_eq!((gateway.submit(bio).await, now()), (LATE, start));
        }
        assert_eq!(gateway.submit(write(16, 8)).await, Ok(()));
        assert_eq!(gateway.submit(read(8, 8)).await, Ok(()));
        assert_eq!(disk.disk().presence(), Presence::Silent);
        media.answer();
        sleep(TIMEOUT).await;
        assert_eq!(disk.disk().presence(), Presence::Answering);
        assert_eq!(gateway.submit(newer()).await, Ok(()));
        assert_eq!(media.peek(Sector(15)), [2; 512]);
    });
}

#[test]
fn a_missed_deadline_is_a_loss_that_every_opener_is_told_of() {
    on_a_disk(async |_, media, gateway| {
        let other = gateway.clone();
        for bio in [read(0, 8), write(0, 8), write(0, 8).with_flags(Flags::FUA), Bio::flush()] {
            media.hang_nth_command(0);
            let op = bio.op;
            assert_eq!(gateway.submit(bio).await, LATE, "{op:?}");
            media.answer();
            sleep(TIMEOUT).await;
            // An opener whose own flush failed has been told.
            let told = if op == Op::Flush { Ok(()) } else { LOST };
            assert_eq!((gateway.flush().await, other.flush().await), (told, LOST), "{op:?}");
            assert_eq!((gateway.flush().await, other.flush().await), (Ok(()), Ok(())), "{op:?}");
        }
    });
}

/// The device fails the first flush, and drops what was written since, long after the deadline of that flush.
#[test]
fn a_flush_does_not_succeed_while_a_late_one_may_lose_the_cache() {
    on_a_disk(async |_, media, gateway| {
        media.hang_nth_command(0);
        let start = now();
        assert_eq!(gateway.flush().await, LATE);
        assert_eq!(gateway.submit(Bio::write_from(Sector(8), &mut filled(1))).await, Ok(()));
        assert_eq!(gateway.flush().await, LATE);
        assert!(now() - start < NOTICED + Duration::from_millis(10));
        media.fail_nth_flush(0);
        media.answer();
        sleep(TIMEOUT).await;
        assert_ne!(media.peek(Sector(8)), [1; 512], "not lost");
        assert_eq!((gateway.flush().await, gateway.flush().await), (LOST, Ok(())));
    });
}

/// Another thread's command in the kernel's words; here another task's.
#[test]
fn a_flush_waits_for_a_silent_durable_write_until_its_deadline() {
    on_a_disk(async |_, media, gateway| {
        media.hang_nth_command(0);
        let start = now();
        let durable = gateway.submit(write(0, 8).with_flags(Flags::FUA));
        plug::flush_current();
        assert_eq!(join(durable, gateway.flush()).await, (LATE, LOST));
        assert!((TIMEOUT..NOTICED).contains(&(now() - start)));
    });
}

#[test]
fn a_silent_device_gets_no_more_than_nr_requests() {
    on_a_disk(async |disk, media, gateway| {
        disk.disk().set_nr_requests(6).unwrap();
        media.fall_silent();
        let start = now();
        let ios: Vec<_> = (0..40).map(|n| gateway.submit(read(n * 100, 8))).collect();
        assert!(join_all(ios).await.iter().all(|result| *result == LATE));
        assert!(now() - start < NOTICED, "those that waited do not wait once more");
        let after = now();
        assert_eq!((gateway.submit(read(0, 8)).await, now()), (LATE, after));
        media.answer();
        sleep(TIMEOUT).await;
        assert_eq!((media.counts().reads, gateway.submit(read(0, 8)).await), (6, Ok(())));
    });
}

/// The device answers writes: overdue reads alone are not all that is in flight.
#[test]
fn a_read_does_not_wait_for_memory_that_overdue_reads_have() {
    on_a_disk(async |_, media, gateway| {
        let mut silent = Vec::new();
        for n in 0..16 {
            media.hang_nth_command(0);
            silent.push(gateway.submit(read(n * 2048, 1024)));
            plug::flush_current();
        }
        assert!(join_all(silent).await.iter().all(|result| *result == LATE));
        media.hang_nth_command(0);
        let write = gateway.submit(write(0, 8));
        plug::flush_current();
        let start = now();
        assert_eq!((gateway.submit(read(0, 8)).await, now()), (LATE, start));
        assert_eq!(write.await, LATE);
        media.answer();
        sleep(TIMEOUT).await;
        assert_eq!(gateway.submit(read(0, 8)).await, Ok(()));
    });
}

#[test]
fn what_waits_for_a_silent_device_is_issued_once_it_answers() {
    on_a_disk(async |disk, media, gateway| {
        disk.disk().set_nr_requests(4).unwrap();
        media.fall_silent();
        let first = join_all((0..4).map(|n| gateway.submit(read(n * 100, 8))));
        let others = async {
            sleep(TIMEOUT / 2).await;
            let others = join_all((4..8).map(|n| gateway.submit(read(n * 100, 8))));
            let answer = async {
                sleep(TIMEOUT / 4).await;
                media.answer();
            };
            join(others, answer).await.0
        };
        let (first, others) = join(first, others).await;
        assert!(first.iter().chain(&others).all(|result| *result == Ok(())));
    });
}

#[test]
fn a_device_is_gone_until_it_completes_a_request() {
    on_a_disk(async |disk, media, gateway| {
        let presence = || disk.disk().presence();
        media.vanish();
        assert_eq!(presence(), Presence::Answering);
        assert_eq!(gateway.submit(read(0, 8)).await, Err(Status::Offline));
        assert_eq!(presence(), Presence::Gone);
        media.heal();
        assert_eq!(gateway.submit(read(0, 8)).await, Ok(()));
        assert_eq!(presence(), Presence::Answering);
    });
}

#[test]
fn a_device_that_cancels_what_is_late_goes_on_at_once() {
    on_a_disk(async |disk, media, gateway| {
        media.set_cancels(true);
        media.hang_nth_command(0);
        assert_eq!(gateway.submit(Bio::write_from(Sector(8), &mut filled(1))).await, LATE);
        assert_eq!(disk.disk().presence(), Presence::Answering);
        assert_eq!(gateway.submit(Bio::write_from(Sector(8), &mut filled(2))).await, Ok(()));
        media.answer();
        sleep(TIMEOUT).await;
        assert_eq!(media.peek(Sector(8)), [2; 512]);
    });
}

/// The timer sleeps up to a whole deadline longer than the last request.
#[test]
fn a_timer_does_not_keep_its_queue() {
    let sim = Sim::new(1);
    let disk = Disk::new("held", Sectors(1 << 30), Limits::default());
    let queue = Arc::new(Queue::with_deadline(disk, Holder, sim.runtime()));
    let weak = Arc::downgrade(&queue);
    let gateway = Gateway::new(queue);
    let io = gateway.submit(read(0, 8));
    plug::flush_current();
    take().into_iter().for_each(|rq| rq.complete(Ok(())));
    assert_eq!(sim.block_on(io), Ok(()));
    drop(gateway);
    assert!(weak.upgrade().is_none());
    sim.run_for(Duration::from_secs(60));
}

/// What the driver does with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    InTime(BioResult),
    /// In the last moment: the deadline has passed, but is not noticed yet.
    Just(BioResult),
    Late(BioResult),
    Never,
}

/// Every combination of what can happen to three requests of two bios each.
#[test]
fn each_bio_ends_once_whether_the_driver_or_the_deadline_is_first() {
    const BAD: BioResult = Err(Status::Medium);
    const GONE: BioResult = Err(Status::Offline);
    let fates = [
        Fate::InTime(Ok(())),
        Fate::InTime(BAD),
        Fate::Just(Ok(())),
        Fate::Just(GONE),
        Fate::Late(Ok(())),
        Fate::Late(BAD),
        Fate::Never,
    ];
    for number in 0..fates.len().pow(3) * 2 {
        let of = |place: u32| fates[number / 2 / fates.len().pow(place) % fates.len()];
        each_ends_once([of(0), of(1), of(2)], if number % 2 == 0 { Op::Read } else { Op::Write });
    }
}

fn each_ends_once(fates: [Fate; 3], op: Op) {
    let what = || format!("{op:?} {fates:?}");
    let sim = Sim::new(1);
    let disk = Disk::new("held", Sectors(1 << 30), Limits::default());
    let queue = Arc::new(Queue::with_deadline(disk, Holder, sim.runtime()));
    BlockDevice::disk(&*queue).set_io_timeout_ms(1000).unwrap();
    let gateway = Gateway::new(Arc::clone(&queue) as Arc<dyn BlockDevice>);
    let mut buffers: Vec<_> = (0..6).map(|n| filled(100 + n)).collect();
    let bio = |n: usize, buffer: &mut Buffer| {
        let at = Sector(n as u64 / 2 * 1000 + n as u64 % 2 * 8);
        if op == Op::Read { Bio::read_into(at, buffer) } else { Bio::write_from(at, buffer) }
    };
    let ios: Vec<IoFuture<'_>> =
        buffers.iter_mut().enumerate().map(|(n, buffer)| gateway.submit(bio(n, buffer))).collect();
    plug::flush_current();
    let mut requests: Vec<_> = take().into_iter().map(Some).collect();
    assert_eq!(requests.iter().flatten().map(|rq| rq.nr_bios()).collect::<Vec<_>>(), [2, 2, 2]);
    let mut end = |due: fn(Fate) -> Option<BioResult>| {
        for (fate, held) in fates.iter().zip(&mut requests) {
            let Some(result) = due(*fate) else { continue };
            let rq = held.take().expect("it ends once");
            if op == Op::Read {
                rq.segments().for_each(|segment| segment.copy_from(&vec![7; segment.len()]));
            }
            rq.complete(result);
        }
        // What was tried again bio by bio: the second fails again.
        for rq in take() {
            let second = rq.sector().0 % 1000 == 8;
            if op == Op::Read {
                rq.segments().for_each(|segment| segment.copy_from(&vec![7; segment.len()]));
            }
            rq.complete(if second { BAD_AGAIN } else { Ok(()) });
        }
    };
    sim.run_for(Duration::from_millis(500));
    end(|fate| if let Fate::InTime(result) = fate { Some(result) } else { None });
    sim.run_for(Duration::from_micros(500_500));
    end(|fate| if let Fate::Just(result) = fate { Some(result) } else { None });
    let results = sim.block_on(join_all(ios));
    for (n, result) in results.iter().enumerate() {
        let expected = match fates[n / 2] {
            Fate::InTime(BAD_AGAIN) if n % 2 == 0 => Ok(()),
            Fate::InTime(result) | Fate::Just(result) => result,
            Fate::Late(_) | Fate::Never => LATE,
        };
        assert_eq!(*result, expected, "{n}: {}", what());
    }
    // The submitter has its memory, whatever the driver does with it.
    for (n, buffer) in buffers.iter_mut().enumerate() {
        let read = op == Op::Read && results[n] == Ok(());
        let byte = if read { 7 } else { 100 + n as u8 };
        assert!(buffer.as_slice() == [byte; 4096], "{n}: {}", what());
        buffer.as_mut_slice().fill(50);
    }
    let late = fates.iter().filter(|fate| matches!(fate, Fate::Late(_) | Fate::Never)).count();
    let silent = |late| if late > 0 { Presence::Silent } else { Presence::Answering };
    // Gone, until the next request is answered, counts as answering.
    let is_silent = || BlockDevice::disk(&*queue).presence() == Presence::Silent;
    let presence = || if is_silent() { Presence::Silent } else { Presence::Answering };
    assert_eq!(presence(), silent(late), "{}", what());
    for held in requests.iter().flatten().filter(|_| op == Op::Write) {
        let mut byte = [0];
        held.segments().for_each(|segment| segment.copy_to(&mut byte));
        assert!(byte[0] > 100, "{}", what());
    }
    let mut end_late = |due: fn(Fate) -> Option<BioResult>| {
        for (fate, held) in fates.iter().zip(&mut requests) {
            if let (Some(result), Some(_)) = (due(*fate), &held) {
                held.take().expect("held").complete(result);
            }
        }
    };
    end_late(|fate| if let Fate::Late(result) = fate { Some(result) } else { None });
    assert!(take().is_empty(), "tried again for nobody: {}", what());
    let never = fates.iter().filter(|fate| **fate == Fate::Never).count();
    assert_eq!(presence(), silent(never), "{}", what());
    assert!(buffers.iter().all(|buffer| buffer.as_slice() == [50; 4096]), "{}", what());
    end_late(|_| Some(Ok(())));
    assert_eq!(presence(), Presence::Answering);
    assert_eq!(BlockDevice::disk(&*queue).stats().totals().in_flight(), 0);
}

const BAD_AGAIN: BioResult = Err(Status::Medium);
