//! The output of `inspect` is that of btrfs-progs 6.2, byte for byte.

use crate::support;

use crate::support::{Rig, bytes, names};
use ashlar_btrfs::inspect::{self, SizeForm, SuperblockKind};
use ashlar_btrfs::ondisk::superblock::{OFFSETS, Superblock};
use ashlar_btrfs::units::Logical;
use zerocopy::FromBytes;

/// Compares line by line, so that a failure shows the first different line.
fn assert_same(what: &str, found: &[u8], wanted: &[u8]) {
    let lines = |bytes: &[u8]| -> Vec<String> {
        bytes.split(|byte| *byte == b'\n').map(|line| line.escape_ascii().to_string()).collect()
    };
    let (found_lines, wanted_lines) = (lines(found), lines(wanted));
    for (number, (found, wanted)) in found_lines.iter().zip(&wanted_lines).enumerate() {
        assert_eq!(found, wanted, "{what}, line {}", number + 1);
    }
    assert_eq!(found_lines.len(), wanted_lines.len(), "{what}: lines");
    assert_eq!(found, wanted, "{what}");
}

#[test]
fn superblocks_are_told_as_dump_super_does() {
    for name in names() {
        let rig = Rig::golden(&name);
        let wanted = bytes(&name, "super.txt").expect("every image has one");
        // Only the text of `huge` has all three.
        let offsets = if name == "huge" { &OFFSETS[..] } else { &OFFSETS[..1] };
        let mut text = Vec::new();
        for device in 0..rig.media.len() {
            for at in offsets {
                let raw = rig.peek(device, at.0, 4096);
                let (raw, _) = Superblock::ref_from_prefix(&raw).expect("4096 bytes");
                inspect::superblock_heading(&mut text, &format!("{device}.img"), *at)
                    .expect("memory");
                inspect::superblock(&mut text, raw, SuperblockKind::Full).expect("memory");
                text.push(b'\n');
            }
        }
        assert_same(&name, &text, &wanted);
    }
}

#[test]
fn trees_are_told_as_dump_tree_does() {
    let mut compared = 0;
    for name in names() {
        let Some(wanted) = bytes(&name, "tree.txt") else { continue };
        let rig = Rig::golden(&name);
        let fs = rig.open();
        // The first line is the version of btrfs-progs.
        let first = wanted.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
        let mut text = Vec::new();
        let dumped = rig.run(inspect::trees(&fs, &mut text)).expect("sound");
        assert_eq!(dumped.unreadable, 0);
        assert_same(&name, &text, &wanted[first..]);
        compared += 1;
    }
    assert_eq!(compared, 3);
}

#[test]
fn stripe_trees_are_told_as_dump_tree_does() {
    let mut compared = 0;
    for name in names() {
        let Some(wanted) = bytes(&name, "stripes.txt") else { continue };
        let rig = Rig::golden(&name);
        let fs = rig.open();
        // Without the version line, and without the block checksums that 6.19 prints and 6.2 does not.
        let lines = wanted.split_inclusive(|byte| *byte == b'\n').skip(1);
        let is_told = |line: &&[u8]| !line.starts_with(b"checksum ");
        let wanted: Vec<u8> = lines.filter(is_told).flatten().copied().collect();
        let mut text = Vec::new();
        let dumped = rig.run(inspect::tree(&fs, 12, &mut text)).expect("sound");
        assert_eq!(dumped.unreadable, 0);
        assert_same(&name, &text, &wanted);
        compared += 1;
    }
    assert_eq!(compared, 5);
}

#[test]
fn one_tree_and_one_block_are_parts_of_the_whole_text() {
    let rig = Rig::golden("single-4k");
    let fs = rig.open();
    let mut whole = Vec::new();
    rig.run(inspect::trees(&fs, &mut whole)).expect("sound");
    let whole = String::from_utf8_lossy(&whole).into_owned();
    for id in [2, 4, 5, 7, 9, 10, 256, 257] {
        let mut text = Vec::new();
        rig.run(inspect::tree(&fs, id, &mut text)).expect("sound");
        let text = String::from_utf8_lossy(&text).into_owned();
        let (body, _) = text.split_once("total bytes ").expect("the end of it");
        assert!(whole.contains(body) && body.contains("\n\titem 0 "), "tree {id}");
    }
    for id in [1, 3] {
        let mut text = Vec::new();
        rig.run(inspect::tree(&fs, id, &mut text)).expect("sound");
        assert!(whole.contains(&*String::from_utf8_lossy(&text)), "tree {id}");
    }
    let root = rig.run(fs.need_root(5)).expect("sound");
    let (mut one, mut below) = (Vec::new(), Vec::new());
    rig.run(inspect::block(&fs, root.at, false, &mut one)).expect("sound");
    rig.run(inspect::block(&fs, root.at, true, &mut below)).expect("sound");
    assert!(below.starts_with(&one) && below.len() > one.len());
    assert!(whole.contains(&*String::from_utf8_lossy(&below)));
    let nothing = rig.run(inspect::tree(&fs, 99, &mut Vec::new()));
    assert_eq!(nothing.expect_err("no such tree").to_string(), "there is no tree 99");
    rig.run(inspect::block(&fs, Logical(0), false, &mut Vec::new())).expect_err("no such block");
}

#[test]
fn a_damaged_block_is_left_out_and_counted() {
    let rig = Rig::golden("single-4k");
    let fs = rig.open();
    let root = rig.run(fs.need_root(5)).expect("sound");
    let leaf = rig.run(support::blocks(&fs, root))[2];
    rig.damage(&fs, leaf, 4096, ashlar_btrfs::units::MirrorNum(1));
    let fs = rig.open();
    let mut text = Vec::new();
    let dumped = rig.run(inspect::trees(&fs, &mut text)).expect("the rest is sound");
    assert!(dumped.unreadable >= 1, "{dumped:?}");
    let wanted = bytes("single-4k", "tree.txt").expect("there is one");
    let count = |text: &[u8], what: &str| String::from_utf8_lossy(text).matches(what).count();
    let missing = count(&wanted, "\nleaf ") - count(&text, "\nleaf ");
    assert_eq!(missing as u64, dumped.unreadable * 2, "two lines for each leaf");
}

#[test]
fn usage_is_told_as_filesystem_usage_does() {
    for name in names() {
        let wanted = bytes(&name, "usage.txt").expect("every image has one");
        let rig = Rig::golden(&name);
        let fs = rig.open();
        let mut text = Vec::new();
        rig.run(inspect::usage(&fs, SizeForm::Bytes, &mut text)).expect("sound");
        assert_same(&name, &text, &wanted);
    }
}

#[test]
fn chunks_are_told_with_each_of_their_stripes() {
    for name in names() {
        let rig = Rig::golden(&name);
        let fs = rig.open();
        let mut text = Vec::new();
        inspect::chunks(&fs, &mut text).expect("memory");
        let text = String::from_utf8(text).expect("ASCII");
        let stripes: usize = fs.chunks().iter().map(|chunk| chunk.stripes.len()).sum();
        assert_eq!(text.lines().count(), fs.chunks().len() + stripes, "{name}");
        let allocated: u64 = text
            .lines()
            .filter_map(|line| line.split_once(" devid ")?.1.split_once(" length "))
            .map(|(_, rest)| rest.split(' ').next().expect("a number").parse::<u64>().expect("one"))
            .sum();
        let usage = support::text_of(&name, "usage.txt");
        let line = usage.lines().find(|line| line.contains("Device allocated:")).expect("a line");
        let wanted: u64 = line.rsplit(['\t', ' ']).next().expect("it").parse().expect("a number");
        assert_eq!(allocated, wanted, "{name}");
    }
}
