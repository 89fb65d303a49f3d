//! Byte-addressed volumes against a plain array.

use ashlar_block::byte_volume::UNIT_BYTES;
use ashlar_block::{
    Buffer, ByteVolume, Features, Flags, Limits, Op, Sector, Sectors, Segments, Status,
};
use ashlar_sim::{Media, Model, Rng, Sim, SimDisk, seeds};

const SIZE: u64 = 64 << 10;

fn disk(block: u32, media: Media) -> SimDisk {
    let model = Model::nvme();
    let limits = Limits { logical_block_bytes: block, max_segments: 4, ..model.limits() };
    SimDisk::with("d", media, limits, model)
}

/// Bytes as segments cut at random places.
fn cut(rng: &mut Rng, bytes: &[u8]) -> (Vec<Buffer>, Segments) {
    let mut buffers = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let n = if rng.chance(1, 2) { rest.len() } else { 1 + rng.index(rest.len()) };
        let (part, more) = rest.split_at(n);
        buffers.push(Buffer::from_slice(part));
        rest = more;
    }
    let segments = buffers.iter_mut().map(Buffer::whole).collect();
    (buffers, segments)
}

async fn read(volume: &ByteVolume, rng: &mut Rng, offset: u64, len: u64) -> Vec<u8> {
    let (buffers, segments) = cut(rng, &vec![0xee; len as usize]);
    volume.read(offset, segments).await.unwrap();
    buffers.iter().flat_map(|b| b.as_slice().to_vec()).collect()
}

/// A range of bytes; often short, often near a multiple of the block.
fn range(rng: &mut Rng, within: std::ops::Range<u64>) -> (u64, u64) {
    let size = within.end - within.start;
    let mut edge = |n: u64| {
        let near = (n & !511) + rng.below(3);
        if rng.chance(1, 2) { near.min(size) } else { n }
    };
    let (a, b) = (edge(size / 3), edge(size));
    let offset = rng.below(a.max(1));
    let len = match rng.below(3) {
        0 => rng.below(20),
        1 => rng.below(5000),
        _ => rng.below(b),
    };
    (within.start + offset, len.min(size - offset))
}

#[test]
fn a_volume_behaves_as_an_array_of_bytes() {
    for seed in seeds(40) {
        for block in [512, 4096] {
            let sim = Sim::new(seed);
            let mut rng = sim.rng();
            let disk = disk(block, Media::noisy(Sectors(SIZE / 512), seed));
            let volume = ByteVolume::new(disk.gateway());
            assert_eq!((volume.size_bytes(), volume.block_bytes()), (SIZE, block.into()));
            let mut naive = disk.media().peek_range(Sector(0), Sectors(SIZE / 512));
            sim.block_on(async {
                for step in 0..60u8 {
                    let (offset, len) = range(&mut rng, 0..SIZE);
                    let place = offset as usize..(offset + len) as usize;
                    let fua = if rng.chance(1, 4) { Flags::FUA } else { Flags::empty() };
                    match rng.below(4) {
                        0 => {
                            let data: Vec<u8> = (0..len).map(|i| step ^ i as u8).collect();
                            let (_buffers, segments) = cut(&mut rng, &data);
                            volume.write(offset, segments, fua).await.unwrap();
                            naive[place].copy_from_slice(&data);
                        }
                        1 => {
                            volume.write_zeroes(offset, len, fua).await.unwrap();
                            naive[place].fill(0);
                        }
                        2 => {
                            volume.discard(offset, len, fua).await.unwrap();
                            // Whole blocks may hold anything now, everything else is unchanged.
                            let block = u64::from(block);
                            let inner =
                                offset.next_multiple_of(block)..(offset + len) / block * block;
                            let now = disk.media().peek_range(Sector(0), Sectors(SIZE / 512));
                            if inner.start < inner.end {
                                let inner = inner.start as usize..inner.end as usize;
                                naive[inner.clone()].copy_from_slice(&now[inner]);
                            }
                        }
                        _ => {
                            let got = read(&volume, &mut rng, offset, len).await;
                            assert_eq!(got, naive[place], "seed {seed} block {block}");
                        }
                    }
                    let now = disk.media().peek_range(Sector(0), Sectors(SIZE / 512));
                    assert!(now == naive, "seed {seed} block {block} step {step}");
                }
            });
        }
    }
}

#[test]
fn concurrent_writers_of_one_block_do_not_lose_each_others_bytes() {
    for seed in seeds(40) {
        for block in [512u32, 4096] {
            let sim = Sim::new(seed);
            let disk = disk(block, Media::noisy(Sectors(SIZE / 512), seed));
            let volume = std::rc::Rc::new(ByteVolume::new(disk.gateway()));
            // Each task owns a strip of bytes; the borders lie within blocks.
            let border = |task: u64| task * SIZE / 13;
            let tasks: Vec<_> = (0..13)
                .map(|task| {
                    let (volume, mut rng) = (std::rc::Rc::clone(&volume), sim.rng());
                    let strip = border(task)..border(task + 1);
                    let len = (strip.end - strip.start) as usize;
                    let mut mine = disk.media().peek_range(Sector(0), Sectors(SIZE / 512))
                        [strip.start as usize..strip.end as usize]
                        .to_vec();
                    sim.start(async move {
                        for step in 0..25u8 {
                            let (offset, n) = range(&mut rng, strip.clone());
                            let at = (offset - strip.start) as usize;
                            let place = at..at + n as usize;
                            if rng.chance(1, 4) {
                                volume.write_zeroes(offset, n, Flags::empty()).await.unwrap();
                                mine[place].fill(0);
                            } else {
                                let data = vec![step ^ task as u8; n as usize];
                                let (_buffers, segments) = cut(&mut rng, &data);
                                volume.write(offset, segments, Flags::empty()).await.unwrap();
                                mine[place].copy_from_slice(&data);
                            }
                        }
                        let got = read(&volume, &mut rng, strip.start, len as u64).await;
                        assert!(got == mine, "seed {seed} task {task}");
                        (strip, mine)
                    })
                })
                .collect();
            sim.block_on(async {
                for task in tasks {
                    let (strip, mine) = task.await;
                    let got =
                        read(&volume, &mut Rng::new(1), strip.start, strip.end - strip.start).await;
                    assert!(got == mine, "seed {seed} block {block} strip {strip:?}");
                }
            });
        }
    }
}

#[test]
fn writers_of_ranges_across_many_units_do_not_wait_for_each_other_forever() {
    for seed in seeds(10) {
        let sim = Sim::new(seed);
        let disk = disk(4096, Media::new(Sectors(100 * UNIT_BYTES / 512)));
        let volume = std::rc::Rc::new(ByteVolume::new(disk.gateway()));
        let tasks: Vec<_> = (0..20)
            .map(|_| {
                let (volume, mut rng) = (std::rc::Rc::clone(&volume), sim.rng());
                sim.start(async move {
                    for _ in 0..5 {
                        let offset = rng.below(70 * UNIT_BYTES);
                        let len = 1 + rng.below(30 * UNIT_BYTES);
                        if rng.chance(1, 2) {
                            volume.write_zeroes(offset, len, Flags::empty()).await.unwrap();
                        } else {
                            let mut data = Buffer::zeroed(10_000);
                            let data = [data.whole()];
                            volume.write(offset, data, Flags::empty()).await.unwrap();
                        }
                    }
                })
            })
            .collect();
        // A deadlock panics.
        sim.block_on(futures_util::future::join_all(tasks));
    }
}

#[test]
fn unaligned_fua_writes_survive_power_cuts_with_their_neighbours() {
    for seed in seeds(100) {
        let media = Media::new(Sectors(64));
        let sim = Sim::new(seed);
        let volume = ByteVolume::new(disk(4096, media.clone()).gateway());
        sim.block_on(async {
            let mut old = Buffer::from_slice(&[1; 8192]);
            volume.write(0, [old.whole()], Flags::FUA).await.unwrap();
            let mut new = Buffer::from_slice(&[2; 3000]);
            volume.write(3000, [new.whole()], Flags::FUA).await.unwrap();
            volume.write_zeroes(100, 200, Flags::FUA).await.unwrap();
            volume.write_zeroes(8000, 5000, Flags::FUA).await.unwrap();
        });
        sim.power_cut();
        let mut expected = vec![1; 8192];
        expected.resize(16384, 0);
        expected[3000..6000].fill(2);
        expected[100..300].fill(0);
        expected[8000..13000].fill(0);
        assert!(media.peek_range(Sector(0), Sectors(32)) == expected, "seed {seed}");
    }
}

#[test]
fn requests_beyond_the_end_fail_and_empty_ones_succeed() {
    let sim = Sim::new(1);
    let disk = disk(4096, Media::new(Sectors(SIZE / 512)));
    let volume = ByteVolume::new(disk.gateway());
    sim.block_on(async {
        for (offset, len) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 100)] {
            let data = [Buffer::zeroed(len as usize).whole()];
            assert_eq!(volume.read(offset, data.clone()).await, Err(Status::Invalid));
            assert_eq!(volume.write(offset, data, Flags::empty()).await, Err(Status::NoSpace));
            let none = Flags::empty();
            assert_eq!(volume.write_zeroes(offset, len, none).await, Err(Status::NoSpace));
            assert_eq!(volume.discard(offset, len, none).await, Err(Status::Invalid));
        }
        for offset in [0, 1, 511, 4096, SIZE] {
            let none = Flags::empty();
            assert_eq!(volume.read(offset, Segments::new()).await, Ok(()));
            assert_eq!(volume.write(offset, Segments::new(), none).await, Ok(()));
            assert_eq!(volume.write_zeroes(offset, 0, none).await, Ok(()));
            assert_eq!(volume.discard(offset, 0, none).await, Ok(()));
        }
    });
    assert_eq!(disk.media().counts(), ashlar_sim::Counts::default());
}

#[test]
fn aligned_requests_go_straight_through_and_others_read_only_the_edges() {
    let sim = Sim::new(1);
    let disk = disk(4096, Media::new(Sectors(SIZE / 512)));
    let (volume, media) = (ByteVolume::new(disk.gateway()), disk.media());
    let ops = || {
        let log = media.log();
        media.clear_log();
        log.into_iter().map(|c| (c.op, c.ranges[0].clone())).collect::<Vec<_>>()
    };
    sim.block_on(async {
        let mut data = Buffer::zeroed(32768);
        volume.write(4096, [data.segment(0..8192)], Flags::empty()).await.unwrap();
        assert_eq!(ops(), [(Op::Write, 8..24)]);
        volume.read(4096, [data.segment(0..8192)]).await.unwrap();
        assert_eq!(ops(), [(Op::Read, 8..24)]);
        volume.write(4000, [data.segment(0..20000)], Flags::empty()).await.unwrap();
        assert_eq!(ops(), [(Op::Read, 0..8), (Op::Read, 40..48), (Op::Write, 0..48)]);
        volume.write(4096, [data.segment(0..20000)], Flags::empty()).await.unwrap();
        assert_eq!(ops(), [(Op::Read, 40..48), (Op::Write, 8..48)]);
        volume.write_zeroes(4096, 8192, Flags::empty()).await.unwrap();
        assert_eq!(ops(), [(Op::WriteZeroes, 8..24)]);
        volume.discard(100, 9000, Flags::empty()).await.unwrap();
        assert_eq!(ops(), [(Op::Discard, 8..16)]);
    });
}

#[test]
fn an_error_under_a_partial_write_leaves_the_block_alone() {
    let sim = Sim::new(1);
    let media = Media::noisy(Sectors(64), 1);
    let disk = disk(4096, media.clone());
    let volume = ByteVolume::new(disk.gateway());
    media.fail_reads(3..4);
    let before = media.snapshot();
    let mut data = Buffer::zeroed(100);
    let segments = [data.whole()];
    let result = sim.block_on(async { volume.write(10, segments, Flags::empty()).await });
    assert_eq!(result, Err(Status::Medium));
    assert_eq!(media.diff(&before), []);
}

#[test]
fn fua_reaches_a_device_without_a_cache_as_nothing() {
    let sim = Sim::new(1);
    let limits = Limits { features: Features::empty(), ..Model::nvme().limits() };
    let disk = SimDisk::with("d", Media::new(Sectors(64)), limits, Model::nvme());
    let volume = ByteVolume::new(disk.gateway());
    sim.block_on(async { volume.write_zeroes(1, 9000, Flags::FUA).await.unwrap() });
    assert_eq!(disk.media().counts().flushes, 0);
}

#[test]
fn a_volume_is_withdrawn_only_while_no_client_has_it_open() {
    let volume = ByteVolume::new(disk(512, Media::new(Sectors(8))).gateway());
    let first = volume.open().unwrap();
    let second = volume.open().unwrap();
    drop(first);
    assert!(!volume.withdraw(), "the second has it open");
    assert!(volume.open().is_some(), "a refused withdrawal changes nothing");
    drop(second);
    assert!(volume.withdraw() && volume.withdraw());
    assert!(volume.open().is_none());
    volume.offer();
    volume.offer();
    let third = volume.open().unwrap();
    volume.offer();
    assert!(!volume.withdraw());
    drop(third);
    assert!(volume.withdraw());
}

#[test]
fn a_claimed_volume_is_open_to_one_client_alone() {
    let volume = ByteVolume::new(disk(512, Media::new(Sectors(8))).gateway());
    let opened = volume.open().unwrap();
    assert!(volume.claim().is_none(), "a client has it open");
    drop(opened);
    let claimed = volume.claim().unwrap();
    assert!(volume.is_open() && volume.open().is_none() && volume.claim().is_none());
    assert!(!volume.withdraw());
    volume.offer();
    assert!(volume.open().is_none(), "a claimed volume is not withdrawn");
    drop(claimed);
    assert!(!volume.is_open() && volume.open().is_some());
    assert!(volume.withdraw() && volume.claim().is_none());
}

/// A thread that opens the volume and one that withdraws it cannot both succeed.
#[test]
fn opening_and_withdrawing_exclude_each_other() {
    for _ in 0..200 {
        let volume = ByteVolume::new(disk(512, Media::new(Sectors(8))).gateway());
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let opener = scope.spawn(|| {
                start.wait();
                volume.open()
            });
            start.wait();
            let withdrawn = volume.withdraw();
            let opened = opener.join().unwrap();
            assert_ne!(withdrawn, opened.is_some());
        });
    }
}
