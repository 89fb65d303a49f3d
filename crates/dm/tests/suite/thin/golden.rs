//! Pools made by the kernel: `tests/images/dm-thin` has them, with the output of `thin_dump`.

use std::path::Path;

use ashlar_block::Sectors;
use ashlar_dm::thin::Options;
use ashlar_sim::{Media, Sim};

use crate::thin::pools::{BLOCK, Shape, assert_same, medium, open, read_all};

fn file(name: &str) -> Vec<u8> {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images/dm-thin");
    std::fs::read(images.join(name)).expect("an image")
}

/// The metadata device; the file ends with the last block in use.
fn metadata(name: &str) -> Media {
    let mut image = file(&format!("{name}.metadata"));
    image.resize(1024 * BLOCK, 0);
    medium(&image)
}

fn check(name: &str) {
    let wanted = Shape::parse(&String::from_utf8(file(&format!("{name}.xml"))).expect("text"));
    assert!(wanted.devices.len() >= 6, "{name}");
    let (metadata, data) = (metadata(name), Media::new(Sectors(20 << 11)));
    let found = Sim::new(1).block_on(async move {
        let pool = open(&metadata, &data, Options::default()).await.expect("a pool");
        assert_eq!(pool.superblock().version, 2);
        read_all(&pool).await.expect("its contents")
    });
    assert_same(&found, &wanted);
}

#[test]
fn a_pool_with_snapshots_and_discards_is_read_as_thin_dump_reads_it() {
    check("small");
}

#[test]
fn a_pool_whose_data_blocks_are_no_power_of_two_is_read_as_thin_dump_reads_it() {
    check("odd");
}
