//! Shared by the tests of the block contract: a driver that holds its requests.
#![allow(dead_code, unreachable_pub)]

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use ashlar_block::{
    Bio, BioResult, Buffer, Disk, Driver, Gateway, IoFuture, Limits, Op, Queue, Request, Sector,
    Sectors, Segment,
};

thread_local! {
    static HELD: RefCell<Vec<Request>> = const { RefCell::new(Vec::new()) };
}

/// Keeps requests until the test ends them.
pub struct Holder;

impl Driver for Holder {
    fn queue_rq(&self, rq: Request) {
        HELD.with_borrow_mut(|held| held.push(rq));
    }
}

/// A queue with a driver that holds requests. One for each test (thread).
pub fn holder(limits: Limits) -> (Arc<Queue<Holder>>, Gateway) {
    let disk = Disk::new("held", Sectors(1 << 30), limits);
    let queue = Arc::new(Queue::new(disk, Holder));
    let gateway = Gateway::new(Arc::<Queue<Holder>>::clone(&queue));
    (queue, gateway)
}

/// The requests that the driver holds: operation, first sector, length, bios.
pub fn held() -> Vec<(Op, u64, u64, usize)> {
    HELD.with_borrow(|held| {
        held.iter().map(|r| (r.op(), r.sector().0, r.len().0, r.nr_bios())).collect()
    })
}

/// The memory of the requests that the driver holds, one list for each.
pub fn memory() -> Vec<Vec<(usize, usize)>> {
    let place = |segment: &Segment| (segment.as_ptr() as usize, segment.len());
    HELD.with_borrow(|held| held.iter().map(|rq| rq.segments().map(place).collect()).collect())
}

/// Takes the requests out of the driver.
pub fn take() -> Vec<Request> {
    HELD.take()
}

/// Ends the oldest request.
pub fn end_one(result: BioResult) {
    let rq = HELD.with_borrow_mut(|held| held.remove(0));
    rq.complete(result);
}

/// Ends all requests, including those that follow.
pub fn end_all() {
    loop {
        let all = take();
        if all.is_empty() && !ashlar_block::plug::flush_current() {
            break;
        }
        for rq in all {
            rq.complete(Ok(()));
        }
    }
}

/// Polls once.
pub fn poll<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Poll<T> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// The result of an I/O that has ended.
pub fn result(future: &mut IoFuture<'_>) -> BioResult {
    match poll(future) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("the I/O has not ended"),
    }
}

/// A read of `len` sectors whose data is not used.
pub fn read(sector: u64, len: u64) -> Bio {
    Bio::read(Sector(sector), [Buffer::alloc(len as usize * 512).whole()])
}

/// A write of `len` sectors of zeroes.
pub fn write(sector: u64, len: u64) -> Bio {
    Bio::write(Sector(sector), [Buffer::zeroed(len as usize * 512).whole()])
}

/// A discard.
pub fn discard(sector: u64, len: u64) -> Bio {
    Bio::discard(Sector(sector), Sectors(len))
}
