//! What becomes of writes that have arrived together, at a disk that is busy and at one that is not.

use std::cell::RefCell;
use std::future::pending;
use std::sync::Arc;

use ashlar_block::byte_volume::ByteVolume;
use ashlar_block::{Disk, Driver, Gateway, Limits, Queue, Request, Sectors};
use futures_util::future::join;

use super::super::export::{Export, Exports};
use super::super::testing::{Client, ReceivedReply, alone, pipe, run, turn};
use super::super::transmission::Command;
use super::{End, serve};

thread_local! {
    static HELD: RefCell<Vec<Request>> = const { RefCell::new(Vec::new()) };
}

/// Keeps requests until the test ends them.
struct Holder;

impl Driver for Holder {
    fn queue_rq(&self, rq: Request) {
        HELD.with_borrow_mut(|held| held.push(rq));
    }
}

/// The number of bios of each request that the driver holds.
fn held() -> Vec<usize> {
    HELD.with_borrow(|held| held.iter().map(Request::nr_bios).collect())
}

async fn until_held(bios: usize) {
    while held().iter().sum::<usize>() < bios {
        turn().await;
    }
}

/// Sends writes of these lengths, one behind the other, all at once; before, if the disk is to be busy, another one, which it
/// keeps. Returns the number of bios of each request that they become.
fn requests(is_busy: bool, lens: &[u32]) -> Vec<usize> {
    let limits =
        Limits { max_hw_sectors: Sectors(1 << 20), max_segments: 1024, ..Limits::default() };
    let disk = Disk::new("held", Sectors(1 << 20), limits);
    disk.set_max_sectors_kb(1 << 19).unwrap();
    let exports = Exports::new();
    let volume = ByteVolume::new(Gateway::new(Arc::new(Queue::new(disk, Holder))));
    exports.add(Export::new("md0", volume).unwrap()).unwrap();
    let (server, end) = pipe(8 << 20, 8 << 20);
    let client = async {
        let client = Client::connect(end, "md0", true).await;
        let write = |cookie, offset, len: u32| {
            let mut message = Client::request(Command::Write, 0, cookie, offset, len);
            message.resize(message.len() + len as usize, 7);
            message
        };
        let before = usize::from(is_busy);
        if is_busy {
            client.send(&write(0, 100 << 20, 4096)).await;
            until_held(before).await;
        }
        let (mut at, mut all) = (0, Vec::new());
        for (cookie, len) in (1..).zip(lens) {
            all.extend(write(cookie, at, *len));
            at += u64::from(*len);
        }
        client.send(&all).await;
        until_held(before + lens.len()).await;
        let got = held().split_off(before);
        HELD.take().into_iter().for_each(|rq| rq.complete(Ok(())));
        for _ in 0..before + lens.len() {
            let reply = client.reply(|_| 0).await.map(|(_, reply)| reply);
            assert_eq!(reply, Some(ReceivedReply::Done));
        }
        client.pipe.close();
        got
    };
    let served = async {
        let result = serve(&server, &exports, &alone(), pending(), pending()).await;
        server.close();
        result
    };
    let (end, got) = run(join(served, client));
    assert_eq!(end.unwrap(), End::Closed);
    got
}

#[test]
fn writes_that_have_arrived_merge_while_the_disk_is_busy() {
    assert_eq!(requests(true, &[64 << 10; 8]), [8]);
    assert_eq!(requests(true, &[4096, 32 << 10, 100 << 10, 512]), [4]);
}

#[test]
fn a_disk_without_work_does_not_wait_for_more() {
    assert_eq!(requests(false, &[64 << 10; 8]), [1, 7]);
}

#[test]
fn a_write_that_merges_with_nothing_waits_for_nothing() {
    assert_eq!(requests(true, &[64 << 10, 64 << 10, 128 << 10, 64 << 10]), [2, 1, 1]);
}

#[test]
fn what_is_gathered_is_bounded() {
    assert_eq!(requests(true, &[64 << 10; 40]), [16, 16, 8]);
}
