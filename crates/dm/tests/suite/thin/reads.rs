//! The results of reads of a thin device; other operations do nothing.

use std::sync::Arc;

use ashlar_block::{Bio, BioResult, Buffer, Flags, Gateway, Op, Sector, Sectors, Status};
use ashlar_dm::thin::{Options, Thin};
use ashlar_dm::{Device, Table, Target};
use ashlar_sim::{Media, Sim, SimDisk, SimRuntime, seeds};

use crate::thin::pools::{Shape, medium, open};

/// The volume as a separate device.
pub(crate) async fn device(volume: Thin) -> Gateway {
    let len = volume.len();
    let table = Table::of(vec![(len, Box::new(volume) as Box<dyn Target>)]).expect("a table");
    let runtime = Arc::new(SimRuntime);
    Gateway::new(Device::start("thin", table, runtime).await.expect("a device"))
}

/// The sectors of the device, one by one according to the mappings.
fn oracle(shape: &Shape, id: u32, len: u64, data: &Media, origin: Option<&Media>) -> Vec<u8> {
    let (_, map) = &shape.devices[&id];
    let sector = |at: u64| match (map.get(&(at / shape.data_block)), origin) {
        (Some((block, _)), _) => {
            data.peek(Sector(block * shape.data_block + at % shape.data_block))
        }
        (None, Some(origin)) if at < origin.capacity().0 => origin.peek(Sector(at)),
        (None, Some(_) | None) => [0; 512],
    };
    (0..len).map(sector).collect::<Vec<[u8; 512]>>().into_flattened()
}

#[test]
fn random_reads_of_random_pools_give_what_the_mappings_say() {
    for seed in seeds(12) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let data_block = 128 * (1 + rng.below(3));
        let (mut at, mut shape) = (0, Shape::new(data_block, 60));
        let mut map = Vec::new();
        while at < 40 {
            // Runs of several blocks, contiguous in the pool or not, and holes.
            let (run, first) = (1 + rng.below(5), rng.below(55));
            map.extend((0..run).map(|i| (at + i, first + i)));
            at += run + rng.below(3);
        }
        shape = shape.with(4, map);
        let metadata = medium(&shape.restore(64));
        let data = Media::noisy(Sectors(data_block * 60), seed);
        let origin = rng.chance(1, 2).then(|| Media::noisy(Sectors(data_block * 13 + 8), seed + 1));
        let len = data_block * 38 + 72;
        let wanted = oracle(&shape, 4, len, &data, origin.as_ref());
        sim.block_on(async move {
            let pool = open(&metadata, &data, Options::default()).await.expect("a pool");
            let mut volume = pool.volume(4, Sectors(len)).await.expect("a volume");
            if let Some(origin) = &origin {
                volume = volume.with_origin("o", SimDisk::over("origin", origin.clone()).gateway());
            }
            let volume = device(volume).await;
            for _ in 0..80 {
                let sector = rng.below(len);
                let sectors = 1 + rng.below((len - sector).min(20 * data_block));
                let read = volume.read(Sector(sector), Sectors(sectors)).await.expect("a read");
                let range = sector as usize * 512..(sector + sectors) as usize * 512;
                assert!(read.as_slice() == &wanted[range], "seed {seed}: {sectors} from {sector}");
            }
            assert_eq!(metadata.counts().writes + data.counts().writes, 0);
        });
    }
}

fn one_volume() -> (Media, Media) {
    let shape = Shape::new(128, 10).with(1, (0..4).map(|i| (i, i + 3)));
    (medium(&shape.restore(64)), Media::noisy(Sectors(1280), 3))
}

#[test]
fn whatever_would_change_a_volume_is_refused_as_read_only_and_a_flush_succeeds() {
    let (metadata, data) = one_volume();
    let sim = Sim::new(1);
    sim.block_on(async move {
        let pool = open(&metadata, &data, Options::default()).await.expect("a pool");
        let volume = pool.volume(1, Sectors(1000)).await.expect("a volume");
        for op in Op::ALL {
            let mut buffer = Buffer::zeroed(4096);
            let (bio, wanted): (Bio, BioResult) = match op {
                Op::Read => (Bio::read_into(Sector(8), &mut buffer), Ok(())),
                Op::Write => (Bio::write_from(Sector(8), &mut buffer), Err(Status::ReadOnly)),
                Op::Flush => (Bio::flush(), Ok(())),
                Op::Discard => (Bio::discard(Sector(0), Sectors(128)), Err(Status::ReadOnly)),
                Op::WriteZeroes => {
                    (Bio::write_zeroes(Sector(0), Sectors(8)), Err(Status::ReadOnly))
                }
            };
            assert_eq!(volume.submit(bio).await, wanted, "{op:?}");
        }
        let gateway = device(volume).await;
        let limits = gateway.disk().limits();
        assert_eq!((limits.max_hw_discard, limits.max_write_zeroes), (Sectors(0), Sectors(0)));
        let mut buffer = Buffer::zeroed(4096);
        let written = gateway.write(Sector(0), &mut buffer, Flags::FUA).await;
        assert_eq!(written, Err(Status::ReadOnly));
        assert_eq!(data.counts().writes + metadata.counts().writes, 0);
    });
}

#[test]
fn a_read_whose_mapping_is_known_costs_one_read_of_the_data_however_many_blocks_it_spans() {
    let (metadata, data) = one_volume();
    let sim = Sim::new(1);
    sim.block_on(async move {
        let pool = open(&metadata, &data, Options::default()).await.expect("a pool");
        let volume = device(pool.volume(1, Sectors(512)).await.expect("a volume")).await;
        volume.read(Sector(0), Sectors(8)).await.expect("the first read");
        let (of_metadata, of_data) = (metadata.counts().reads, data.counts().reads);
        volume.read(Sector(100), Sectors(400)).await.expect("a read");
        assert_eq!(metadata.counts().reads, of_metadata);
        assert_eq!(data.counts().reads, of_data + 1);
    });
}

#[test]
fn a_table_shows_a_volume_as_the_kernel_does() {
    let (metadata, data) = one_volume();
    let sim = Sim::new(1);
    sim.block_on(async move {
        let pool = open(&metadata, &data, Options::default()).await.expect("a pool");
        let volume = pool.volume(1, Sectors(512)).await.expect("a volume");
        assert_eq!((volume.type_name(), volume.arguments()), ("thin", "pool 1".to_owned()));
        let origin = SimDisk::new("o", Sectors(8)).gateway();
        assert_eq!(volume.with_origin("vg-o", origin).arguments(), "pool 1 vg-o");
        let refused = pool.volume(2, Sectors(8)).await.err().expect("no device");
        assert_eq!(refused.to_string(), "the thin pool on metadata has no device 2");
    });
}

#[test]
fn metadata_that_cannot_be_read_makes_reads_fail_that_need_it_with_its_status() {
    let (metadata, data) = one_volume();
    let sim = Sim::new(1);
    sim.block_on(async move {
        let options = Options { nodes: 1, ..Options::default() };
        let pool = open(&metadata, &data, options).await.expect("a pool");
        let volume = device(pool.volume(1, Sectors(512)).await.expect("a volume")).await;
        volume.read(Sector(0), Sectors(8)).await.expect("healthy");
        metadata.fail_reads(0..64 * 8);
        // With room for one node, that node is cached, and the volume has no other.
        volume.read(Sector(0), Sectors(8)).await.expect("known");
        let refused = pool.volume(1, Sectors(512)).await.err().expect("unknown").to_string();
        assert!(refused.starts_with("cannot read block "), "{refused}");
        metadata.heal();
        data.fail_reads(3 * 128..4 * 128);
        assert_eq!(volume.read(Sector(0), Sectors(8)).await.err(), Some(Status::Medium));
        volume.read(Sector(128), Sectors(8)).await.expect("other data");
    });
}
