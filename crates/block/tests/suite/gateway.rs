//! The gateway: checks, splits, emulations, and devices whose capabilities change.

use crate::common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{discard, end_all, end_one, held, holder, poll, read, result, write};
use ashlar_block::{
    Bio, BlockDevice, Buffer, CopyNumber, Disk, Features, Flags, Gateway, IoFuture, Limits, Op,
    Runtime, Sector, Sectors, Segments, Status, plug,
};
use ashlar_sim::{Media, Model, Oracle, Sim, SimDisk, SimRuntime, Stop, Value, Workload, seeds};

fn cached() -> Limits {
    Limits {
        max_hw_discard: Sectors(1 << 20),
        max_write_zeroes: Sectors(1 << 20),
        features: Features::WRITE_CACHE,
        ..Limits::default()
    }
}

fn with_fua() -> Limits {
    Limits { features: Features::WRITE_CACHE | Features::FUA, ..cached() }
}

#[test]
fn what_does_not_fit_the_device_is_refused() {
    let block = Limits { logical_block_bytes: 4096, ..cached() };
    let (queue, gateway) = holder(block);
    let end = 1 << 30;
    let zeroes = |at, n| Bio::write_zeroes(Sector(at), Sectors(n));
    let mut short = Bio::read(Sector(0), [Buffer::alloc(4096).whole()]);
    short.len = Sectors(16);
    let mut flush_with_data = Bio::flush();
    flush_with_data.segments = read(0, 8).segments;
    let cases = [
        (read(end, 8), Status::Io),
        (write(end - 8, 16), Status::Io),
        (zeroes(u64::MAX - 7, 8), Status::Io),
        (discard(u64::MAX - 7, 16), Status::Io),
        (read(4, 8), Status::Invalid),
        (write(8, 4), Status::Invalid),
        (discard(4, 8), Status::Invalid),
        (zeroes(8, 4), Status::Invalid),
        (read(0, 0), Status::Invalid),
        (discard(0, 0), Status::Invalid),
        (Bio::read(Sector(0), [Buffer::alloc(4097).whole()]), Status::Invalid),
        (short, Status::Invalid),
        (flush_with_data, Status::Invalid),
    ];
    for (bio, status) in cases {
        let text = format!("{bio:?}");
        assert_eq!(result(&mut gateway.submit(bio)), Err(status), "{text}");
    }
    queue.disk().set_read_only(true);
    for bio in [write(0, 8), discard(0, 8), zeroes(0, 8)] {
        assert_eq!(result(&mut gateway.submit(bio)), Err(Status::ReadOnly));
    }
    assert!(poll(&mut gateway.submit(read(0, 8))).is_pending());
    queue.disk().set_read_only(false);
    queue.disk().set_max_discard_bytes(0).unwrap();
    assert_eq!(result(&mut gateway.submit(discard(0, 8))), Err(Status::NotSupported));
    end_all();
}

/// A device with three copies, which notes the copies that reads name.
struct CopyRecorder {
    disk: Disk,
    seen: Mutex<Vec<(u64, u16)>>,
}

impl BlockDevice for CopyRecorder {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn copies(&self, at: Sector, _: Sectors) -> u16 {
        if at.0 < 1000 { 3 } else { 1 }
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        self.seen.lock().unwrap().push((bio.sector.0, bio.copy.0));
        IoFuture::ready(Ok(()))
    }
}

#[test]
fn a_read_names_a_copy_that_exists_and_every_piece_of_it_names_the_same() {
    let limits = Limits { max_hw_sectors: Sectors(8), ..cached() };
    let disk = Disk::new("copied", Sectors(2000), limits);
    let device = Arc::new(CopyRecorder { disk, seen: Mutex::default() });
    let gateway = Gateway::new(Arc::<CopyRecorder>::clone(&device));
    let named = |at, copy| read(at, 20).with_copy(CopyNumber(copy));
    let submit = |bio| result(&mut gateway.submit(bio));
    assert_eq!(submit(named(0, 2)), Ok(()));
    assert_eq!(submit(read(40, 8)), Ok(()));
    // The only copy is the device: no number goes further down.
    assert_eq!(submit(named(1000, 1)), Ok(()));
    let pieces = [(0, 2), (8, 2), (16, 2), (40, 0), (1000, 0), (1008, 0), (1016, 0)];
    assert_eq!(*device.seen.lock().unwrap(), pieces);
    for bio in [named(0, 4), named(1000, 2), write(0, 8).with_copy(CopyNumber(1))] {
        assert_eq!(submit(bio), Err(Status::Invalid));
    }
    let copies = |at, len| gateway.copies(Sector(at), Sectors(len));
    assert_eq!([copies(0, 8), copies(1000, 8)], [3, 1]);
    // Ranges that the device does not have.
    assert_eq!([copies(0, 0), copies(0, 2001), copies(u64::MAX, 8)], [1; 3]);
    assert_eq!(gateway.alternates(Sector(0), Sectors(8)).count(), 3);
    assert_eq!(gateway.alternates(Sector(1000), Sectors(8)).count(), 0);
    // A queue has one copy, so reads of it and plain reads still merge.
    let (_, queue) = holder(cached());
    let mut ios = [queue.submit(read(0, 8).with_copy(CopyNumber(1))), queue.submit(read(8, 8))];
    plug::flush_current();
    assert_eq!(held(), [(Op::Read, 0, 16, 2)]);
    end_all();
    assert!(ios.iter_mut().all(|io| result(io) == Ok(())));
}

/// Submits `bio`, lets the driver end everything, and returns what the driver got, in order.
fn passed_on(limits: Limits, bio: Bio) -> Vec<(Op, Flags, u64, u64)> {
    let (queue, gateway) = holder(limits);
    queue.disk().set_nomerges(2).unwrap();
    let mut io = gateway.submit(bio);
    let mut seen = Vec::new();
    loop {
        if let std::task::Poll::Ready(result) = poll(&mut io) {
            assert_eq!(result, Ok(()));
            return seen;
        }
        plug::flush_current();
        for rq in common::take() {
            seen.push((rq.op(), rq.flags(), rq.sector().0, rq.len().0));
            rq.complete(Ok(()));
        }
    }
}

#[test]
fn flushes_and_fua_become_what_the_device_knows() {
    let none = Flags::empty();
    let (fua, pre) = (Flags::FUA, Flags::PREFLUSH);
    let flush = (Op::Flush, none, 0, 0);
    let plain = (Op::Write, none, 0, 8);
    let forced = (Op::Write, fua, 0, 8);
    let w = |flags| write(0, 8).with_flags(flags);
    assert_eq!(passed_on(cached(), w(none)), [plain]);
    assert_eq!(passed_on(cached(), w(fua)), [plain, flush]);
    assert_eq!(passed_on(cached(), w(pre)), [flush, plain]);
    assert_eq!(passed_on(cached(), w(fua | pre)), [flush, plain, flush]);
    assert_eq!(passed_on(with_fua(), w(fua)), [forced]);
    assert_eq!(passed_on(with_fua(), w(fua | pre)), [flush, forced]);
    let through = Limits { features: Features::empty(), ..cached() };
    assert_eq!(passed_on(through, w(fua | pre)), [plain]);
    assert_eq!(passed_on(through, Bio::flush()), []);
    assert_eq!(passed_on(cached(), Bio::flush()), [flush]);
    // Only writes have an FUA form: a flush follows other operations.
    let zeroes = Bio::write_zeroes(Sector(0), Sectors(8)).with_flags(fua);
    assert_eq!(passed_on(with_fua(), zeroes), [(Op::WriteZeroes, none, 0, 8), flush]);
    assert_eq!(
        passed_on(with_fua(), discard(0, 8).with_flags(fua)),
        [(Op::Discard, none, 0, 8), flush]
    );
}

#[test]
fn one_flush_is_enough_for_a_flush_with_flags_and_none_for_a_read() {
    let flags = Flags::FUA | Flags::PREFLUSH;
    let flush = Bio::flush().with_flags(flags);
    assert_eq!(passed_on(cached(), flush), [(Op::Flush, Flags::empty(), 0, 0)]);
    for limits in [cached(), with_fua()] {
        let got = passed_on(limits, read(0, 8).with_flags(Flags::FUA));
        assert_eq!(got, [(Op::Read, Flags::empty(), 0, 8)]);
    }
}

#[test]
fn every_piece_of_a_split_fua_write_is_durable() {
    let small = |limits| Limits { max_hw_sectors: Sectors(8), ..limits };
    let bio = || write(0, 20).with_flags(Flags::FUA);
    let pieces =
        |flags| [(Op::Write, flags, 0, 8), (Op::Write, flags, 8, 8), (Op::Write, flags, 16, 4)];
    assert_eq!(passed_on(small(with_fua()), bio()), pieces(Flags::FUA));
    let mut emulated = pieces(Flags::empty()).to_vec();
    emulated.push((Op::Flush, Flags::empty(), 0, 0));
    assert_eq!(passed_on(small(cached()), bio()), emulated);
}

#[test]
fn a_failed_part_ends_the_emulation_with_its_status() {
    let (_, gateway) = holder(cached());
    let mut io = gateway.submit(write(0, 8).with_flags(Flags::FUA | Flags::PREFLUSH));
    assert!(poll(&mut io).is_pending());
    assert_eq!(held()[0].0, Op::Flush);
    end_one(Err(Status::Timeout));
    assert_eq!(result(&mut io), Err(Status::Timeout));
    assert_eq!(held(), []);
    let mut io = gateway.submit(write(0, 8).with_flags(Flags::FUA));
    assert!(poll(&mut io).is_pending());
    plug::flush_current();
    end_one(Err(Status::Medium));
    assert_eq!(result(&mut io), Err(Status::Medium));
    assert_eq!(held(), []);
}

#[test]
fn an_error_of_a_piece_stops_further_pieces_and_is_the_bios() {
    let (queue, gateway) = holder(Limits { max_hw_sectors: Sectors(8), ..cached() });
    queue.disk().set_nomerges(2).unwrap();
    let mut io = gateway.submit(write(0, 8 * 300));
    assert!(poll(&mut io).is_pending());
    plug::flush_current();
    let first = held().len();
    end_one(Ok(()));
    end_one(Err(Status::NoSpace));
    end_one(Err(Status::Io));
    assert!(poll(&mut io).is_pending());
    let mut ended = 3;
    while !held().is_empty() {
        end_one(Ok(()));
        ended += 1;
        plug::flush_current();
    }
    assert_eq!(result(&mut io), Err(Status::NoSpace));
    // Only the successful piece was followed by another; there are 300 pieces.
    assert_eq!(ended, first + 1);
}

/// Runs a large bio in pieces, and calls `change` after the first of them.
fn with_a_change(bio: Bio, change: impl Fn(&dyn BlockDevice)) -> Vec<(u64, u64)> {
    let limits = Limits { max_hw_discard: Sectors(64), max_hw_sectors: Sectors(64), ..cached() };
    let (queue, gateway) = holder(limits);
    queue.disk().set_nomerges(2).unwrap();
    let (start, end) = (bio.sector.0, bio.end().0);
    let mut io = gateway.submit(bio);
    let mut pieces = Vec::new();
    let mut rounds = 0;
    while poll(&mut io).is_pending() {
        plug::flush_current();
        for rq in common::take() {
            pieces.push((rq.sector().0, rq.len().0));
            rq.complete(Ok(()));
        }
        rounds += 1;
        if rounds == 1 {
            change(&*queue);
        }
        assert!(rounds < 10_000, "never ends");
    }
    let mut at = start;
    for &(sector, len) in &pieces {
        assert_eq!(sector, at, "{pieces:?}");
        assert!(len > 0 && len <= 64);
        at += len;
    }
    assert_eq!(at, end);
    pieces
}

#[test]
fn limits_changed_while_a_split_is_under_way_hold_from_then_on() {
    let pieces = with_a_change(discard(0, 64 * 400), |device| {
        device.disk().set_max_discard_bytes(4096).unwrap();
    });
    assert!(pieces[0].1 == 64 && pieces.last().unwrap().1 == 8);
    let pieces = with_a_change(read(0, 64 * 400), |device| {
        device.disk().set_max_sectors_kb(4).unwrap();
    });
    assert!(pieces[0].1 == 64 && pieces.last().unwrap().1 == 8);
}

#[test]
fn discards_turned_off_while_one_is_split_do_not_hang_it() {
    let pieces = with_a_change(discard(0, 64 * 400), |device| {
        device.disk().set_max_discard_bytes(0).unwrap();
    });
    assert_eq!(pieces.len(), 400);
}

#[test]
fn pieces_are_whole_blocks_whatever_the_limits() {
    let mut segments = Segments::new();
    let buffers: Vec<_> = (0..32).map(|_| Buffer::zeroed(512)).collect();
    for mut buffer in buffers {
        segments.push(buffer.whole());
    }
    let zeroes = Bio::write_zeroes(Sector(0), Sectors(64));
    for max in 1..=20 {
        let limits = Limits {
            logical_block_bytes: 4096,
            max_segments: 3,
            max_hw_sectors: Sectors(max),
            max_hw_discard: Sectors(max),
            discard_granularity_bytes: 512,
            max_write_zeroes: Sectors(max),
            ..cached()
        };
        for bio in [Bio::write(Sector(8), segments.clone()), discard(8, 64), zeroes.clone()] {
            let (op, end) = (bio.op, bio.end().0);
            let mut at = bio.sector.0;
            for (got, _, sector, len) in passed_on(limits, bio) {
                assert!(got == op && sector == at && len % 8 == 0 && len > 0, "{op:?} {max}");
                at += len;
            }
            assert_eq!(at, end);
        }
    }
}

#[test]
fn a_discard_limit_is_a_multiple_of_the_block() {
    let limits = Limits { logical_block_bytes: 4096, discard_granularity_bytes: 512, ..cached() };
    let (queue, _) = holder(limits);
    assert!(queue.disk().set_max_discard_bytes(512).is_err());
    assert!(queue.disk().set_max_discard_bytes(4096).is_ok());
}

#[test]
fn zeroes_are_written_where_the_device_cannot() {
    let limits = Limits { max_write_zeroes: Sectors::ZERO, ..with_fua() };
    let zeroes = |flags| Bio::write_zeroes(Sector(16), Sectors(5000)).with_flags(flags);
    let writes: Vec<_> =
        passed_on(limits, zeroes(Flags::empty())).iter().map(|w| (w.0, w.2, w.3)).collect();
    assert_eq!(writes, [(Op::Write, 16, 2048), (Op::Write, 2064, 2048), (Op::Write, 4112, 904)]);
    for flags in [Flags::FAST, Flags::NOFALLBACK] {
        let (_, gateway) = holder(limits);
        let refused = gateway.submit(zeroes(flags));
        assert_eq!(result(&mut { refused }), Err(Status::NotSupported));
    }
}

/// A device that refuses write-zeroes from a sector on, as long as it may, and notes the others.
struct Picky {
    disk: Disk,
    from: Sector,
    seen: Mutex<Vec<(Flags, u64, u64)>>,
}

impl BlockDevice for Picky {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        assert_eq!(bio.op, Op::WriteZeroes);
        if bio.sector >= self.from && bio.is_refusable() {
            return IoFuture::failed(Status::NotSupported);
        }
        self.seen.lock().unwrap().push((bio.flags, bio.sector.0, bio.len.0));
        IoFuture::ready(Ok(()))
    }
}

#[test]
fn a_write_zeroes_is_refused_by_its_first_piece_or_done() {
    let fast = Features::FAST_ZERO;
    let (f, none) = (Flags::FAST, Flags::empty());
    for (features, from, flags, expected, seen) in [
        (fast, 4000, f, Ok(()), vec![(f, 0, 1000), (none, 1000, 1000), (none, 2000, 500)]),
        (fast, 1000, f, Ok(()), vec![(f, 0, 1000), (none, 1000, 1000), (none, 2000, 500)]),
        (fast, 0, f, Err(Status::NotSupported), vec![]),
        // Its limits say that it is slow.
        (Features::empty(), 4000, f, Err(Status::NotSupported), vec![]),
        (Features::empty(), 0, Flags::NOFALLBACK, Err(Status::NotSupported), vec![]),
        (fast, 0, none, Ok(()), vec![(none, 0, 1000), (none, 1000, 1000), (none, 2000, 500)]),
    ] {
        let limits = Limits { max_write_zeroes: Sectors(1000), features, ..Limits::default() };
        let disk = Disk::new("picky", Sectors(4096), limits);
        let device = Arc::new(Picky { disk, from: Sector(from), seen: Mutex::default() });
        let gateway = Gateway::new(Arc::clone(&device) as Arc<dyn BlockDevice>);
        let zeroes = Bio::write_zeroes(Sector(0), Sectors(2500)).with_flags(flags);
        assert_eq!(result(&mut gateway.submit(zeroes)), expected, "{flags:?} from {from}");
        assert_eq!(*device.seen.lock().unwrap(), seen, "{flags:?} from {from}");
    }
}

#[test]
fn a_device_that_refuses_fast_zeroes_and_did_none_has_none() {
    let limits = Limits {
        max_write_zeroes: Sectors(1000),
        features: Features::FAST_ZERO,
        ..Limits::default()
    };
    let takes = |first: &[u64], flags| {
        let disk = Disk::new("picky", Sectors(4096), limits);
        let device = Arc::new(Picky { disk, from: Sector(2000), seen: Mutex::default() });
        let gateway = Gateway::new(Arc::clone(&device) as Arc<dyn BlockDevice>);
        for at in first {
            let zeroes = Bio::write_zeroes(Sector(*at), Sectors(8)).with_flags(flags);
            assert_eq!(result(&mut gateway.submit(zeroes)).is_ok(), *at < 2000);
        }
        let takes = gateway.disk().takes_zeroes(Flags::FAST);
        assert!(gateway.disk().takes_zeroes(Flags::NOFALLBACK));
        gateway.disk().set_limits(limits).unwrap();
        assert!(gateway.disk().takes_zeroes(Flags::FAST));
        takes
    };
    assert!(takes(&[], Flags::FAST));
    assert!(!takes(&[2000], Flags::FAST));
    assert!(takes(&[0, 2000, 2000], Flags::FAST));
    // This says nothing of those that need not keep the range allocated, or may be slow.
    assert!(takes(&[2000], Flags::FAST | Flags::NOUNMAP));
    assert!(takes(&[2000], Flags::NOFALLBACK));
}

#[test]
fn zeroes_are_written_when_the_device_finds_out_late_that_it_cannot() {
    for max in [1 << 20, 100] {
        for (flags, expected) in [
            (Flags::empty(), Ok(())),
            (Flags::FUA, Ok(())),
            (Flags::FAST, Err(Status::NotSupported)),
            (Flags::NOFALLBACK, Err(Status::NotSupported)),
        ] {
            let sim = Sim::new(1);
            let mut limits = Limits { max_write_zeroes: Sectors(max), ..with_fua() };
            limits.features |= Features::FAST_ZERO;
            let media = Media::noisy(Sectors(1 << 16), 1);
            let disk = SimDisk::with("d", media.clone(), limits, Model::nvme());
            media.drop_support(Op::WriteZeroes);
            let before = media.snapshot();
            let bio = Bio::write_zeroes(Sector(3), Sectors(1000)).with_flags(flags);
            assert_eq!(sim.block_on(disk.gateway().submit(bio)), expected);
            let zeroed = 3..1003;
            match expected {
                Ok(()) => assert_eq!(media.diff(&before), std::slice::from_ref(&zeroed)),
                Err(_) => assert_eq!(media.diff(&before), []),
            }
            assert!(
                expected.is_err()
                    || media.peek_range(Sector(3), Sectors(1000)).iter().all(|b| *b == 0)
            );
            sim.power_cut();
            if flags == Flags::FUA {
                assert!(media.peek_range(Sector(3), Sectors(1000)).iter().all(|b| *b == 0));
            }
        }
    }
}

/// Random limits of all kinds that a disk may have. (The simulated disk panics on a request that does
/// not fit them.)
fn limits_of(seed: u64) -> Limits {
    let mut rng = ashlar_sim::Rng::new(seed);
    let block = [512, 512, 4096][rng.index(3)];
    let sectors = u64::from(block) / 512;
    let features =
        [Features::empty(), Features::WRITE_CACHE, Features::WRITE_CACHE | Features::FUA];
    let mut pick = |list: [u64; 4]| Sectors(list[rng.index(4)] * sectors);
    Limits {
        logical_block_bytes: block,
        physical_block_bytes: 4096,
        max_hw_sectors: pick([8, 16, 33, 2560]),
        chunk_sectors: pick([0, 0, 16, 24]),
        max_hw_discard: pick([0, 8, 21, 1 << 20]),
        max_write_zeroes: pick([0, 8, 21, 1 << 20]),
        discard_granularity_bytes: block * [0, 1, 2, 8][rng.index(4)],
        discard_alignment_bytes: 0,
        max_discard_segments: [1, 1, 3, 256][rng.index(4)],
        max_segments: [1, 2, 5, 128][rng.index(4)],
        features: features[rng.index(3)],
        ..Limits::default()
    }
}

#[test]
fn random_bios_are_right_on_disks_of_any_limits_while_settings_change() {
    for seed in seeds(20) {
        let sim = Sim::new(seed);
        let limits = limits_of(seed);
        let block = limits.logical_block().0;
        let media = Media::noisy(Sectors(512 * block), seed);
        let disk = SimDisk::with("d", media.clone(), limits, Model::nvme());
        let oracle = Oracle::new(seed, Value::Anything);
        // A margin at both ends that no I/O may touch.
        let span = 16 * block..496 * block;
        let workload =
            Workload { align: block, max_len: 64 * block, ..Workload::over(span.clone()) };
        let before = media.snapshot();
        let gateway = disk.gateway();
        let (mut rng, queue) = (sim.rng(), disk.device());
        sim.spawn(async move {
            loop {
                SimRuntime.sleep(Duration::from_micros(rng.below(300))).await;
                let settings = queue.disk();
                settings.set_nomerges(rng.below(3)).unwrap();
                settings.set_nr_requests(4 + rng.below(20)).unwrap();
                // May be out of range: then nothing changes.
                settings.set_max_sectors_kb(4 * block * rng.below(8)).unwrap_or(());
                settings.set_max_discard_bytes(block * 512 * rng.below(40)).unwrap_or(());
            }
        });
        let errors = sim.block_on(async {
            let errors = workload.run(&gateway, &oracle, &mut sim.rng()).await?;
            workload.verify(&gateway, &oracle).await?;
            Ok::<_, ashlar_sim::Violation>(errors)
        });
        assert_eq!(errors, Ok(0), "seed {seed}");
        for part in media.diff(&before) {
            assert!(span.start <= part.start && part.end <= span.end, "seed {seed}: {part:?}");
        }
    }
}

#[test]
fn flushes_and_fua_hold_through_power_cuts_on_disks_of_any_limits() {
    for seed in seeds(20) {
        let limits = limits_of(seed);
        let block = limits.logical_block().0;
        let media = Media::new(Sectors(256 * block));
        let oracle = Oracle::new(seed, Value::Zeroes);
        let workload =
            Workload { align: block, max_len: 40 * block, ..Workload::over(0..256 * block) };
        for life in 0..3 {
            let sim = Sim::new(seed * 10 + life);
            let gateway = SimDisk::with("d", media.clone(), limits, Model::nvme()).gateway();
            let mut rng = sim.rng();
            let stop = Stop::AfterSteps(rng.below(2000));
            if let Some(done) = sim.block_on_until(workload.run(&gateway, &oracle, &mut rng), stop)
            {
                assert_eq!(done, Ok(0), "seed {seed}");
            }
            sim.power_cut();
            oracle.power_cut();
            let raw = media.peek_range(Sector(0), Sectors(256 * block));
            let checked = oracle.check_contents(0..256 * block, &raw);
            assert_eq!(checked, Ok(()), "seed {seed}");
        }
    }
}

#[test]
fn the_counters_add_up() {
    let sim = Sim::new(1);
    let disk = SimDisk::new("d", Sectors(1 << 16));
    let gateway: Gateway = disk.gateway();
    let bios = [read(0, 8), read(8, 8), write(100, 16), discard(200, 8), Bio::flush()];
    let ios: Vec<_> = bios.into_iter().map(|bio| gateway.submit(bio)).collect();
    assert_eq!(disk.disk().stats().totals().in_flight(), 5);
    sim.block_on(futures_util::future::join_all(ios));
    let totals = disk.disk().stats().totals();
    assert_eq!((totals.read.ios, totals.read.merges, totals.read.sectors), (1, 1, 16));
    assert_eq!((totals.write.ios, totals.write.sectors), (1, 16));
    assert_eq!((totals.discard.ios, totals.flush.ios, totals.in_flight()), (1, 1, 0));
    assert!(totals.io_ticks_ns > 0 && totals.read.ticks_ns > 0);
}

#[test]
fn errors_of_the_device_are_counted_and_refusals_are_not() {
    let (queue, gateway) = holder(Limits::default());
    let errors = || queue.disk().stats().errors();
    let statuses = [Status::Medium, Status::Timeout, Status::NotSupported, Status::Again];
    for (status, counted) in statuses.into_iter().zip([1, 2, 2, 2]) {
        let mut io = gateway.submit(read(0, 8));
        assert!(poll(&mut io).is_pending());
        plug::flush_current();
        end_one(Err(status));
        assert_eq!((result(&mut io), errors()), (Err(status), counted));
    }
    // An I/O that ends while it is submitted.
    for (result, counted) in [(Err(Status::Io), 3), (Err(Status::ReadOnly), 3), (Ok(()), 3)] {
        IoFuture::ready(result).account(queue.disk().stats().start(Op::Write, Sectors(8)));
        assert_eq!((errors(), queue.disk().stats().is_idle()), (counted, true));
    }
}
