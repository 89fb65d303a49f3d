//! The memory that reads with a deadline fill: that of the queue, or the submitters'.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use ashlar_block::queue::{Driver, ReadMemory};
use ashlar_block::request::{Request, RequestId};
use ashlar_block::{
    Bio, BioResult, BlockDevice, Buffer, Disk, Flags, Gateway, IoFuture, Limits, Presence, Queue,
    Sector, Sectors, Segment, Status, plug,
};
use ashlar_sim::Sim;
use futures_util::future::{join, join_all};

use crate::common::{Holder, take};
use crate::deadlines::{LATE, NOTICED, TIMEOUT, filled, now, sleep};

thread_local! {
    /// The reads in place, and their memory.
    static IN_PLACE: RefCell<Vec<(Request, Vec<Segment>)>> = RefCell::default();
    /// How often the driver was asked to release a read's memory, and how often it cannot.
    static ASKED: Cell<u32> = Cell::default();
    static CANNOT: Cell<u32> = Cell::default();
}

/// A driver that reads into the submitters' memory.
struct InPlace;

impl Driver for InPlace {
    fn queue_rq(&self, mut rq: Request) {
        assert!(rq.is_revocable());
        let memory = rq.take_segments();
        IN_PLACE.with_borrow_mut(|reads| reads.push((rq, memory)));
    }

    fn read_memory(&self, _: usize) -> ReadMemory {
        ReadMemory::Submitters
    }

    fn revoke(&self, id: RequestId) -> bool {
        ASKED.set(ASKED.get() + 1);
        let can = ASKED.get() > CANNOT.get();
        IN_PLACE.with_borrow_mut(|reads| {
            let read = reads.iter_mut().find(|(rq, _)| can && rq.id() == id);
            read.map(|(_, memory)| memory.clear()).is_some()
        })
    }
}

/// Runs with two adjacent reads in place, which are one request, and their memory. Returns their results and how long they took.
fn read_in_place(cannot: u32, work: impl AsyncFn()) -> ([BioResult; 2], Duration, [Buffer; 2]) {
    ASKED.set(0);
    CANNOT.set(cannot);
    let sim = Sim::new(1);
    let disk = Disk::new("in place", Sectors(1 << 30), Limits::default());
    let queue = Arc::new(Queue::with_deadline(disk, InPlace, sim.runtime()));
    BlockDevice::disk(&*queue).set_io_timeout_ms(1000).unwrap();
    let gateway = Gateway::new(Arc::clone(&queue) as Arc<dyn BlockDevice>);
    let mut memory = [filled(1), filled(2)];
    sim.block_on(async {
        let start = now();
        let [first, second] = &mut memory;
        let at = [first.as_slice().as_ptr(), second.as_slice().as_ptr()];
        let bios = [Bio::read_into(Sector(0), first), Bio::read_into(Sector(8), second)];
        let reads = bios.map(|bio| gateway.submit(bio));
        plug::flush_current();
        IN_PLACE.with_borrow(|reads| {
            let given = reads[0].1.iter().map(|segment| segment.bytes().as_ptr().cast());
            assert_eq!(given.collect::<Vec<*const u8>>(), at);
        });
        let (results, ()) = join(join_all(reads), work()).await;
        let took = now() - start;
        // Nothing else has it, and the request may end at any time.
        memory.iter_mut().for_each(|buffer| buffer.as_mut_slice()[0] = 9);
        let is_late = results[0] == LATE;
        assert_eq!(BlockDevice::disk(&*queue).presence() == Presence::Silent, is_late);
        IN_PLACE.take().into_iter().for_each(|(rq, _)| rq.complete(Ok(())));
        assert_eq!(BlockDevice::disk(&*queue).presence(), Presence::Answering);
        assert_eq!(BlockDevice::disk(&*queue).stats().totals().in_flight(), 0);
        (results.try_into().unwrap(), took, memory)
    })
}

/// Ends the reads in place with data.
fn end_in_place(byte: u8, result: BioResult) {
    for (rq, memory) in IN_PLACE.take() {
        memory.iter().for_each(|segment| segment.copy_from(&[byte; 4096]));
        drop(memory);
        rq.complete(result);
    }
}

#[test]
fn a_read_in_place_ends_with_the_driver() {
    let (results, took, memory) = read_in_place(0, async || {
        sleep(TIMEOUT / 2).await;
        end_in_place(7, Ok(()));
    });
    assert_eq!((results, took), ([Ok(()); 2], TIMEOUT / 2));
    assert!(memory.iter().all(|buffer| buffer.as_slice()[1..] == [7; 4095]));
    // Each bio is tried again by itself, in its own memory.
    let (results, _, memory) = read_in_place(0, async || {
        end_in_place(6, Err(Status::Medium));
        sleep(TIMEOUT / 2).await;
        assert_eq!(IN_PLACE.with_borrow(Vec::len), 2);
        end_in_place(7, Ok(()));
    });
    assert_eq!(results, [Ok(()); 2]);
    assert!(memory.iter().all(|buffer| buffer.as_slice()[1..] == [7; 4095]));
}

#[test]
fn a_read_in_place_ends_at_its_deadline_when_the_driver_lets_go_of_its_memory() {
    let (results, took, memory) = read_in_place(0, async || ());
    assert_eq!(results, [LATE; 2]);
    assert!((TIMEOUT..NOTICED).contains(&took), "{took:?}");
    assert_eq!([1, 2], [0, 1].map(|place| memory[place].as_slice()[1]));
    // One that cannot at once is asked again soon.
    let (results, took, _) = read_in_place(5, async || ());
    assert_eq!(results, [LATE; 2]);
    assert!((TIMEOUT..NOTICED + Duration::from_millis(60)).contains(&took), "{took:?}");
    assert_eq!(ASKED.get(), 6);
}

#[test]
fn a_read_in_place_whose_memory_is_in_use_at_the_deadline_ends_with_the_driver() {
    let (results, took, memory) = read_in_place(u32::MAX, async || {
        sleep(TIMEOUT * 2).await;
        end_in_place(7, Ok(()));
    });
    assert_eq!((results, took), ([Ok(()); 2], TIMEOUT * 2));
    assert!(memory.iter().all(|buffer| buffer.as_slice()[1..] == [7; 4095]));
}

/// Passes all on.
struct Layer(Gateway);

impl BlockDevice for Layer {
    fn disk(&self) -> &Disk {
        self.0.disk()
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        self.0.submit(bio)
    }
}

/// Reads `len` bytes into memory that the submitter abandons if the read fails. Returns whether the driver reads into it.
async fn read_given(gateway: &Gateway, len: usize, is_late: bool) -> bool {
    let mut buffer = Buffer::from_slice(&vec![1; len]);
    let at = buffer.as_slice().as_ptr();
    let bio = Bio::read_into(Sector(0), &mut buffer).with_flags(Flags::GIVEN);
    let io = gateway.submit(bio);
    plug::flush_current();
    let rq = take().pop().unwrap();
    let target = rq.segments().next().unwrap().clone();
    let is_own = target.bytes().as_ptr().cast() == at;
    let end = || {
        target.copy_from(&vec![7; len]);
        drop(target);
        rq.complete(Ok(()));
    };
    if is_late {
        assert_eq!(io.await, LATE);
        // The buffer continues with other memory, if the driver keeps the old one.
        buffer.as_mut_slice()[0] = 9;
        assert_eq!(buffer.as_slice().as_ptr() == at, !is_own);
        end();
        assert_eq!(buffer.as_slice()[..2], [9, 1]);
    } else {
        end();
        assert_eq!(io.await, Ok(()));
        assert!(buffer.as_slice().iter().all(|byte| *byte == 7));
        assert_eq!(buffer.as_slice().as_ptr(), at);
    }
    is_own
}

#[test]
fn memory_that_was_given_is_read_into_and_left_behind_at_the_deadline() {
    let sim = Sim::new(1);
    let disk = Disk::new("held", Sectors(1 << 30), Limits::default());
    let queue = Arc::new(Queue::with_deadline(disk, Holder, sim.runtime()));
    BlockDevice::disk(&*queue).set_io_timeout_ms(1000).unwrap();
    let gateway = Gateway::new(queue);
    let layer = Gateway::new(Arc::new(Layer(gateway.clone())));
    sim.block_on(async {
        for is_late in [false, true] {
            assert!(read_given(&gateway, 64 << 10, is_late).await);
            // A copy of little is cheaper.
            assert!(!read_given(&gateway, 4096, is_late).await);
            // Direct I/O would refuse it.
            assert!(!read_given(&gateway, (64 << 10) + 512, is_late).await);
            // A layer may read again into the same memory.
            assert!(!read_given(&layer, 64 << 10, is_late).await);
        }
    });
    assert_eq!(gateway.disk().stats().totals().in_flight(), 0);
}
