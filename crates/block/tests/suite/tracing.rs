//! Trace events in blkparse's notation.

use std::sync::{Arc, Mutex};

use crate::common::{discard, poll, read, result, write};
use ashlar_block::disk::DeviceNumber;
use ashlar_block::trace::{self, Detail, Event, Reader};
use ashlar_block::{
    Bio, BlockDevice, Disk, Driver, Features, Flags, Gateway, IoFuture, Limits, Op,
};
use ashlar_block::{Queue, Request, Sectors, Status, plug};

/// Records the events of one device.
struct Scribe {
    disk: &'static str,
    lines: Mutex<Vec<String>>,
}

impl Reader for Scribe {
    fn event(&self, event: &Event<'_>) {
        if event.disk.name() == self.disk {
            let op = match event.op {
                Op::Read => "R",
                Op::Write => "W",
                Op::Flush => "F",
                Op::Discard => "D",
                Op::WriteZeroes => "Z",
            };
            let (action, sector, len) = (event.action.letter(), event.sector, event.len);
            let detail = match event.detail {
                Detail::None => String::new(),
                Detail::From { device, sector } => format!(" <- ({device}) {sector}"),
                Detail::Requests(count) => format!(" {count}"),
                Detail::Rest(sector) => format!(" / {sector}"),
                Detail::Failed(status) => format!(" [{}]", status.errno()),
            };
            self.lines.lock().unwrap().push(format!("{action} {op} {sector}+{len}{detail}"));
        }
    }
}

/// Ends all requests at once, successfully except for one bad sector.
struct Instant {
    bad: Option<u64>,
}

impl Driver for Instant {
    fn queue_rq(&self, rq: Request) {
        let fails = self.bad.is_some_and(|bad| (rq.sector().0..rq.end().0).contains(&bad));
        rq.complete(if fails { Err(Status::Medium) } else { Ok(()) });
    }
}

/// The events while `f` uses a device with these limits.
fn events(name: &'static str, limits: Limits, f: impl FnOnce(&Gateway, &Disk)) -> Vec<String> {
    let scribe = Arc::new(Scribe { disk: name, lines: Mutex::default() });
    let driver = Instant { bad: (name == "retry").then_some(13) };
    let queue = Arc::new(Queue::new(Disk::new(name, Sectors(1 << 20), limits), driver));
    let gateway = Gateway::new(Arc::<Queue<Instant>>::clone(&queue));
    let watch = trace::watch(Arc::<Scribe>::clone(&scribe));
    f(&gateway, queue.disk());
    drop(watch);
    // No reader sees these events.
    drop(gateway.submit(write(0, 8)));
    plug::flush_current();
    scribe.lines.lock().unwrap().clone()
}

fn large() -> Limits {
    Limits { max_hw_discard: Sectors(64), features: Features::WRITE_CACHE, ..Limits::default() }
}

#[test]
fn sixty_four_reads_become_one_request() {
    let lines = events("merged", large(), |gateway, _| {
        let mut ios: Vec<_> = (0..64).map(|i| gateway.submit(read(i * 8, 8))).collect();
        plug::flush_current();
        assert!(ios.iter_mut().all(|io| result(io) == Ok(())));
    });
    let mut expected = vec!["Q R 0+8".to_string(), "G R 0+8".into(), "P R 0+0".into()];
    for i in 1..64 {
        expected.extend([format!("Q R {}+8", i * 8), format!("M R {}+8", i * 8)]);
    }
    let end = ["U R 0+0 1", "I R 0+512", "D R 0+512", "C R 0+512"];
    expected.extend(end.map(str::to_owned));
    assert_eq!(lines, expected);
}

#[test]
fn front_merges_and_nomerges_show() {
    let lines = events("front", large(), |gateway, disk| {
        let mut ios = vec![gateway.submit(write(8, 8)), gateway.submit(write(0, 8))];
        plug::flush_current();
        disk.set_nomerges(2).unwrap();
        ios.extend([gateway.submit(write(16, 8)), gateway.submit(write(24, 8))]);
        plug::flush_current();
        assert!(ios.iter_mut().all(|io| result(io) == Ok(())));
    });
    let expected = "Q W 8+8,G W 8+8,P R 0+0,Q W 0+8,F W 0+8,U R 0+0 1,I W 0+16,D W 0+16,C W 0+16,\
                    Q W 16+8,G W 16+8,P R 0+0,Q W 24+8,G W 24+8,\
                    U R 0+0 2,I W 16+8,I W 24+8,D W 16+8,C W 16+8,D W 24+8,C W 24+8";
    assert_eq!(lines.join(","), expected);
}

#[test]
fn a_split_shows_its_pieces() {
    let lines = events("split", large(), |gateway, disk| {
        disk.set_nomerges(2).unwrap();
        let mut io = gateway.submit(discard(0, 150));
        assert!(poll(&mut io).is_pending());
        plug::flush_current();
        assert_eq!(result(&mut io), Ok(()));
    });
    let expected = "Q D 0+150,X D 0+64 / 64,G D 0+64,P R 0+0,X D 64+64 / 128,G D 64+64,G D 128+22,\
                    U R 0+0 3,I D 0+64,I D 64+64,I D 128+22,\
                    D D 0+64,C D 0+64,D D 64+64,C D 64+64,D D 128+22,C D 128+22";
    assert_eq!(lines.join(","), expected);
}

#[test]
fn flushes_are_not_plugged_and_fua_is_queued_once() {
    let lines = events("flush", large(), |gateway, _| {
        let mut io = gateway.submit(write(0, 8).with_flags(Flags::FUA));
        assert!(poll(&mut io).is_pending());
        plug::flush_current();
        assert_eq!(result(&mut io), Ok(()));
    });
    let expected = "Q W 0+8,G W 0+8,P R 0+0,U R 0+0 1,I W 0+8,D W 0+8,C W 0+8,\
                    G F 0+0,D F 0+0,C F 0+0";
    assert_eq!(lines.join(","), expected);
}

#[test]
fn a_failed_merge_shows_its_retries() {
    let lines = events("retry", large(), |gateway, _| {
        let mut ios = [gateway.submit(read(0, 8)), gateway.submit(read(8, 8))];
        plug::flush_current();
        assert_eq!(result(&mut ios[0]), Ok(()));
        assert_eq!(result(&mut ios[1]), Err(Status::Medium));
    });
    let expected = "Q R 0+8,G R 0+8,P R 0+0,Q R 8+8,M R 8+8,U R 0+0 1,I R 0+16,D R 0+16,\
                    R R 0+16 [61],I R 0+8,I R 8+8,D R 0+8,C R 0+8,D R 8+8,C R 8+8 [61]";
    assert_eq!(lines.join(","), expected);
}

/// A device over another one, with its sectors shifted by 100.
struct ShiftedDevice {
    disk: Disk,
    lower: Gateway,
}

impl BlockDevice for ShiftedDevice {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn submit_bio(&self, mut bio: Bio) -> IoFuture<'_> {
        let from = bio.sector;
        bio.sector += Sectors(100);
        trace::remap(self.lower.disk(), &bio, &self.disk, from);
        self.lower.submit(bio)
    }
}

/// The events of the device `seen`, of a layer called `upper` over a driver called `lower`, during two
/// reads and a failing discard.
fn layered(upper: &'static str, lower: &'static str, seen: &'static str) -> Vec<String> {
    let scribe = Arc::new(Scribe { disk: seen, lines: Mutex::default() });
    let lower = Disk::new(lower, Sectors(1 << 20), Limits::default());
    let lower = Gateway::new(Arc::new(Queue::new(lower, Instant { bad: None })));
    let disk = Disk::new(upper, Sectors(1 << 19), large());
    disk.set_number(DeviceNumber::dm(5));
    let gateway = Gateway::new(Arc::new(ShiftedDevice { disk, lower }));
    let watch = trace::watch(Arc::<Scribe>::clone(&scribe));
    let mut ios = [gateway.submit(read(0, 8)), gateway.submit(read(8, 8))];
    let mut discard = gateway.submit(discard(16, 8));
    plug::flush_current();
    assert!(ios.iter_mut().all(|io| result(io) == Ok(())));
    assert_eq!(result(&mut discard), Err(Status::NotSupported));
    drop(watch);
    scribe.lines.lock().unwrap().clone()
}

#[test]
fn a_layer_shows_what_came_to_it_and_how_it_ended() {
    let lines = layered("layer 1", "driver 1", "layer 1");
    assert_eq!(lines.join(","), "Q R 0+8,Q R 8+8,Q D 16+8,C R 0+8,C R 8+8,C D 16+8 [95]");
}

#[test]
fn a_lower_device_shows_where_its_bios_come_from() {
    let lines = layered("layer 2", "driver 2", "driver 2");
    let expected = "A R 100+8 <- (252:5) 0,Q R 100+8,G R 100+8,P R 0+0,\
                    A R 108+8 <- (252:5) 8,Q R 108+8,M R 108+8,\
                    A D 116+8 <- (252:5) 16,U R 0+0 1,I R 100+16,D R 100+16,C R 100+16";
    assert_eq!(lines.join(","), expected);
}
