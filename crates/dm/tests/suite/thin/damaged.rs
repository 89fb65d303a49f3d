//! Damaged metadata: every damage gives an error, and nothing crashes.

use ashlar_block::{Sector, Sectors};
use ashlar_dm::thin::{NodeFault, Options, SuperblockFault, ThinError};
use ashlar_sim::{Media, Rng, Sim, seeds};

use crate::thin::pools::{BLOCK, Shape, assert_same, block, medium, open, read_all, seal};

/// A pool with a tree of mappings of two levels, one of a single leaf, and an empty one.
fn shape() -> Shape {
    let map = (0..400).map(|i| (i * 2, i));
    Shape::new(128, 500).with(1, map).with(2, [(7, 450), (8, 451)]).with(3, [])
}

fn image() -> Vec<u8> {
    let mut image = shape().restore(64);
    image.truncate(64 * BLOCK);
    image
}

fn read(image: &[u8]) -> Result<Shape, ThinError> {
    read_with(image, Options::default())
}

fn read_with(image: &[u8], options: Options) -> Result<Shape, ThinError> {
    let (metadata, data) = (medium(image), Media::new(Sectors(128 * 500)));
    Sim::new(1).block_on(async move {
        let pool = open(&metadata, &data, options).await?;
        let shape = read_all(&pool).await?;
        // Every listed device can be looked up, too.
        for (id, (_, map)) in &shape.devices {
            let volume =
                crate::thin::reads::device(pool.volume(*id, Sectors(128 * 900)).await?).await;
            for block in map.keys().step_by(37).filter(|block| **block < 900) {
                volume.read(Sector(block * 128), Sectors(1)).await.expect("mapped");
            }
        }
        Ok(shape)
    })
}

fn u64_at(image: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(image[at..at + 8].try_into().expect("8 bytes"))
}

fn set_u64(image: &mut [u8], at: usize, value: u64) {
    image[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn set_u32(image: &mut [u8], at: usize, value: u32) {
    image[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// The node blocks that the reader visits, according to their headers.
fn nodes(image: &[u8]) -> Vec<usize> {
    let in_tree = |number: &usize| {
        let mut broken = image.to_vec();
        broken[number * BLOCK] ^= 1;
        read(&broken).is_err()
    };
    (1..image.len() / BLOCK).filter(in_tree).collect()
}

fn mappings(shape: &Shape) -> usize {
    shape.devices.values().map(|(_, map)| map.len()).sum()
}

#[test]
fn every_bit_of_the_superblock_and_of_the_head_of_every_node_is_guarded() {
    let image = image();
    let nodes = nodes(&image);
    assert!(nodes.len() >= 7, "{nodes:?}");
    for number in nodes.into_iter().chain([0]) {
        let bits = if number == 0 { 370 * 8 } else { 60 * 8 };
        for bit in 0..bits {
            let mut broken = image.clone();
            broken[number * BLOCK + bit / 8] ^= 1 << (bit % 8);
            let error = read(&broken).err();
            let error = error.unwrap_or_else(|| panic!("bit {bit} of block {number}"));
            let text = error.to_string();
            let named = text.contains("thin_check") && text.contains("thin_repair");
            assert!(named || text.contains("magic"), "bit {bit} of block {number}: {text}");
        }
    }
}

#[test]
fn fields_with_any_bit_changed_and_a_right_checksum_are_an_error_or_another_pool_that_ends() {
    let image = image();
    let mut errors = 0;
    for number in nodes(&image).into_iter().chain([0]) {
        let bits = if number == 0 { 364 * 8 } else { 32 * 8 };
        for bit in 32..bits {
            let mut changed = image.clone();
            changed[number * BLOCK + bit / 8] ^= 1 << (bit % 8);
            seal(&mut changed, number);
            match read(&changed) {
                Err(_) => errors += 1,
                // Fewer entries, or other values: undetectable.
                Ok(found) => assert!(mappings(&found) <= 63 * 252, "{bit} of {number}"),
            }
        }
    }
    assert!(errors > 1000, "{errors}");
}

#[test]
fn wherever_a_node_is_made_to_lead_reading_ends() {
    let image = image();
    let nodes = nodes(&image);
    let is_internal = |number: &&usize| image[**number * BLOCK + 4] == 1;
    let mut tried = 0;
    for number in nodes.iter().filter(is_internal) {
        let at = number * BLOCK;
        let max = u32::from_le_bytes(image[at + 20..at + 24].try_into().expect("4 bytes")) as usize;
        for entry in 0..image[at + 16] as usize {
            let value = at + 32 + 8 * max + 8 * entry;
            let was = u64_at(&image, value);
            for child in (0..70).filter(|child| *child != was) {
                let mut changed = image.clone();
                set_u64(&mut changed, value, child);
                seal(&mut changed, *number);
                // The leaf of another device is accepted, if its keys are possible there.
                if let Ok(found) = read(&changed) {
                    let text = format!("entry {entry} of block {number} to {child}");
                    assert!(mappings(&found) < mappings(&shape()), "{text}");
                }
                tried += 1;
            }
        }
    }
    assert!(tried >= 138, "{tried}");
}

#[test]
fn a_chain_of_nodes_that_never_comes_to_a_leaf_is_cut_off() {
    let mut image = Shape::new(128, 500).with(1, [(0, 0)]).restore(64);
    // Blocks 40 to 60: nodes with one key, each the child of the previous one.
    for number in 40..61_usize {
        let at = number * BLOCK;
        for (field, value) in [(4, 1), (16, 1), (20, 252), (24, 8)] {
            set_u32(&mut image, at + field, value);
        }
        set_u64(&mut image, at + 8, number as u64);
        set_u64(&mut image, at + 32 + 8 * 252, number as u64 + 1);
        seal(&mut image, number);
    }
    set_u64(&mut image, 320, 40);
    seal(&mut image, 0);
    let error = read(&image).err().expect("too deep");
    let depth = |fault: &NodeFault| matches!(fault, NodeFault::Depth(16));
    assert!(matches!(&error, ThinError::Node { fault, .. } if depth(fault)), "{error}");
}

/// The fault of a superblock with a changed field.
fn superblock_with(change: impl Fn(&mut [u8])) -> SuperblockFault {
    let mut image = image();
    change(&mut image);
    seal(&mut image, 0);
    match read(&image).err().expect("a fault") {
        ThinError::Superblock { device, fault } => {
            assert_eq!(device, "metadata");
            fault
        }
        other @ (ThinError::Read { .. }
        | ThinError::TooSmall { .. }
        | ThinError::Node { .. }
        | ThinError::NoDevice { .. }) => panic!("{other}"),
    }
}

#[test]
fn what_is_wrong_with_a_superblock_is_named() {
    use SuperblockFault as Fault;
    assert_eq!(superblock_with(|i| set_u64(i, 32, 5)), Fault::Magic { found: 5 });
    assert_eq!(superblock_with(|i| set_u64(i, 8, 3)), Fault::Block { found: 3 });
    assert_eq!(superblock_with(|i| set_u32(i, 40, 3)), Fault::Version { found: 3 });
    assert_eq!(superblock_with(|i| set_u32(i, 360, 6)), Fault::Features { found: 6 });
    assert_eq!(superblock_with(|i| set_u32(i, 4, 1)), Fault::NeedsCheck);
    assert_eq!(superblock_with(|i| set_u32(i, 340, 16)), Fault::MetadataBlock { found: 16 });
    for found in [0, 64, 127, 129, 1 << 22, u32::MAX] {
        assert_eq!(superblock_with(|i| set_u32(i, 336, found)), Fault::DataBlock { found });
    }
    for found in [(1 << 40) + 1, u64::MAX] {
        let what = superblock_with(|i| set_u64(i, 64, found));
        assert_eq!(what, Fault::Size { what: "data", found });
        let what = superblock_with(|i| set_u64(i, 192, found));
        assert_eq!(what, Fault::Size { what: "metadata", found });
    }
    for (at, what) in [(320, "the tree of devices"), (328, "the tree of details")] {
        for found in [0, 64, u64::MAX] {
            let fault = superblock_with(|i| set_u64(i, at, found));
            assert_eq!(fault, Fault::Root { what, found, blocks: 64 });
        }
    }
    let fault = superblock_with(|i| set_u64(i, 56, 64));
    assert_eq!(fault, Fault::Root { what: "the metadata snapshot", found: 64, blocks: 64 });
    assert_eq!(superblock_with(|i| i[..BLOCK].fill(0)), Fault::Magic { found: 0 });
}

#[test]
fn a_device_that_never_was_a_pool_is_said_to_be_so() {
    let error = read(&vec![0; 64 * BLOCK]).err().expect("no pool").to_string();
    assert!(error.contains("all zeroes"), "{error}");
    let error = read(&[0; 512]).err().expect("no pool").to_string();
    assert!(error.starts_with("metadata has 1 sectors"), "{error}");
}

#[test]
fn a_pool_that_needs_a_check_is_read_only_if_asked_to() {
    let mut image = image();
    set_u32(&mut image, 4, 1);
    seal(&mut image, 0);
    let error = read(&image).err().expect("refused").to_string();
    assert!(error.contains("thin_check") && error.contains("thin_repair"), "{error}");
    let unchecked = Options { unchecked: true, ..Options::default() };
    assert_same(&read_with(&image, unchecked).expect("a pool"), &shape());
}

#[test]
fn another_size_of_data_blocks_than_expected_is_refused() {
    let expected = |sectors| Options { data_block: Some(Sectors(sectors)), ..Options::default() };
    assert!(read_with(&image(), expected(128)).is_ok());
    let error = read_with(&image(), expected(256)).err().expect("another pool").to_string();
    assert!(error.contains("have 128 sectors, 256 were expected"), "{error}");
}

/// The fault if block `number` is changed by `change`.
fn node_with(image: &[u8], number: usize, change: impl Fn(&mut [u8])) -> NodeFault {
    let mut image = image.to_vec();
    change(&mut image[number * BLOCK..][..BLOCK]);
    seal(&mut image, number);
    match read(&image).err().expect("a fault") {
        ThinError::Node { device, block, fault } => {
            assert_eq!((device.as_str(), block), ("metadata", number as u64));
            fault
        }
        other @ (ThinError::Read { .. }
        | ThinError::TooSmall { .. }
        | ThinError::Superblock { .. }
        | ThinError::NoDevice { .. }) => panic!("{other}"),
    }
}

#[test]
fn what_is_wrong_with_a_node_is_named() {
    let image = image();
    let nodes = nodes(&image);
    let leaf = |number: &&usize| {
        let header = &block(&image, **number)[..32];
        // The fullest leaf of mappings.
        header[4] == 2 && header[24] == 8 && header[16] > 100
    };
    let number = *nodes.iter().find(leaf).expect("a leaf of mappings");
    let with = |change: &dyn Fn(&mut [u8])| node_with(&image, number, change);
    let max = u64::from(block(&image, number)[20]) as usize;
    let value = 32 + 8 * max;
    assert_eq!(with(&|n| set_u64(n, 8, 1)), NodeFault::Block { found: 1 });
    for found in [0, 3, 4] {
        assert_eq!(with(&|n| set_u32(n, 4, found)), NodeFault::Flags { found });
    }
    for found in [0, 4, 24, u32::MAX] {
        assert_eq!(with(&|n| set_u32(n, 24, found)), NodeFault::ValueSize { found, wanted: 8 });
    }
    let entries = u32::from(block(&image, number)[16]);
    for max in [entries - 1, 255, u32::MAX] {
        assert_eq!(with(&|n| set_u32(n, 20, max)), NodeFault::Entries { entries, max });
    }
    assert_eq!(with(&|n| set_u32(n, 16, 0)), NodeFault::Empty);
    let same_key_twice = |n: &mut [u8]| n.copy_within(32..40, 40);
    assert_eq!(with(&same_key_twice), NodeFault::Order { index: 1 });
    let found = 500;
    let fault = NodeFault::DataBlock { index: 0, found };
    assert_eq!(with(&|n| set_u64(n, value, found << 24 | 7)), fault);
    // The last key of the first leaf, or the first key of the last leaf, becomes a key of the other leaf.
    let last = 32 + 8 * (entries as usize - 1);
    assert_eq!(
        with(&|n| if u64_at(n, 32) == 0 { set_u64(n, last, 799) } else { set_u64(n, 32, 0) }),
        NodeFault::Keys
    );
}

#[test]
fn random_changes_of_several_nodes_with_right_checksums_end() {
    let image = image();
    let used = nodes(&image);
    for seed in seeds(400) {
        let mut rng = Rng::new(seed);
        let mut changed = image.clone();
        for _ in 0..1 + rng.below(6) {
            let number = if rng.chance(1, 8) { 0 } else { used[rng.index(used.len())] };
            // Often in the header, which matters most.
            let within = if rng.chance(1, 2) { 32 } else { BLOCK };
            let at = number * BLOCK + rng.index(within);
            changed[at] = rng.below(256) as u8;
            seal(&mut changed, number);
        }
        match read(&changed) {
            Ok(found) => assert!(mappings(&found) <= 63 * 252, "seed {seed}"),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
