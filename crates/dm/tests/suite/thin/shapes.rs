//! Many shapes of pools, made by `thin_restore`, are read back correctly.

use ashlar_block::{Sector, Sectors};
use ashlar_dm::thin::{Options, ThinPool, examine};
use ashlar_sim::{Media, Sim, SimDisk};

use crate::thin::pools::{Shape, assert_same, medium, open, read_all};

fn check(shape: &Shape, blocks: usize) {
    let metadata = medium(&shape.restore(blocks));
    let data = Media::new(Sectors(shape.data_block * shape.data_blocks));
    let sim = Sim::new(1);
    let found = sim.block_on(async move {
        let pool = open(&metadata, &data, Options::default()).await.expect("a pool");
        read_all(&pool).await.expect("its contents")
    });
    assert_same(&found, shape);
}

#[test]
fn pools_of_few_mappings_are_read_as_they_were() {
    check(&Shape::new(128, 100), 64);
    check(&Shape::new(128, 100).with(0, []), 64);
    check(&Shape::new(2_097_152, 3).with(1, [(0, 2)]), 64);
    check(&Shape::new(384, 1 << 20).with((1 << 24) - 1, [(1 << 50, (1 << 20) - 1), (7, 0)]), 256);
}

#[test]
fn nodes_are_read_on_both_sides_of_being_full() {
    for entries in [83, 84, 85, 125, 126, 127, 251, 252, 253, 254, 503, 504, 505, 756] {
        let map = (0..entries).map(|i| (i * 3, 1000 - i));
        check(&Shape::new(128, 1001).with(5, map), 64);
    }
}

#[test]
fn trees_of_three_levels_are_read() {
    // No two mappings are consecutive in both, so each needs a separate entry.
    let map = (0..100_000).map(|i| (i * 2, (i * 7919) % 100_003));
    check(&Shape::new(128, 100_003).with(1, map).with(2, (0..70_000).map(|i| (i, i))), 4096);
}

#[test]
fn trees_of_devices_are_read_as_deep_as_those_of_mappings() {
    let shape = (0..700).fold(Shape::new(128, 5000), |shape, i| {
        shape.with(i * 23_000, (0..u64::from(i % 4)).map(|j| (j * 10, u64::from(i) * 5 + j)))
    });
    check(&shape, 4096);
}

#[test]
fn whatever_order_blocks_are_asked_for_in_with_however_little_memory_the_answers_are_right() {
    const SIZE: u64 = 3000;
    let shape = Shape::new(128, SIZE).with(1, (0..SIZE).map(|i| (i * 5, (i * 7) % SIZE)));
    let metadata = medium(&shape.restore(256));
    let data = Media::new(Sectors(128 * SIZE));
    for block in 0..SIZE {
        data.poke(Sector(block * 128), &block.to_le_bytes());
    }
    for nodes in [0, 1, 3, 1000] {
        let (sim, metadata, data) = (Sim::new(3), metadata.clone(), data.clone());
        let mut rng = sim.rng();
        sim.block_on(async move {
            let options = Options { nodes, ..Options::default() };
            let pool = open(&metadata, &data, options).await.expect("a pool");
            let volume = pool.volume(1, Sectors(128 * 5 * SIZE)).await.expect("a volume");
            let volume = crate::thin::reads::device(volume).await;
            for _ in 0..500 {
                let block = rng.below(SIZE * 5);
                let read = volume.read(Sector(block * 128), Sectors(1)).await.expect("a read");
                let wanted = if block % 5 == 0 { (block / 5 * 7) % SIZE } else { 0 };
                assert_eq!(read.as_slice()[..8], wanted.to_le_bytes(), "block {block}");
            }
        });
    }
}

#[test]
fn a_superblock_says_what_it_was_made_with() {
    let shape = Shape::new(384, 1000).with(1, [(0, 1), (2, 2)]).with(9, [(5, 7)]);
    let metadata = medium(&shape.restore(100));
    let sim = Sim::new(1);
    sim.block_on(async move {
        let metadata = SimDisk::over("metadata", metadata).gateway();
        let superblock = examine(&metadata).await.expect("a superblock");
        assert_eq!((superblock.data_block, superblock.data_blocks), (Sectors(384), 1000));
        assert_eq!((superblock.metadata_blocks, superblock.data_used), (100, 3));
        assert_eq!((superblock.transaction_id, superblock.time), (77, 9));
        assert!(!superblock.needs_check && superblock.metadata_snapshot.is_none());
        let data = SimDisk::new("data", Sectors(384 * 999));
        let refused = ThinPool::open("p", metadata, data.gateway(), Options::default()).await;
        let refused = refused.err().expect("too small").to_string();
        assert!(refused.starts_with("data has 383616 sectors, but the thin pool"), "{refused}");
    });
}
