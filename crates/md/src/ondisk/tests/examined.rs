//! Superblocks written by a real kernel print as `mdadm --examine` printed them.

use ashlar_block::units::{Sector, Sectors};

use super::{image, image_path, image_text};
use crate::badblocks::BadBlocks;
use crate::ondisk::bad_block_log;
use crate::ondisk::bitmap_super::BitmapSuper;
use crate::ondisk::brief::{Brief, export};
use crate::ondisk::examine::{Examine1, Examine090, examine};
use crate::ondisk::probe::{identify, probe_ranges};
use crate::ondisk::superblock_0_90::Block090;
use crate::ondisk::superblock_1::Block1;
use crate::ondisk::{Level, Role, Superblock};

/// A member of an array that a real kernel ran: see `tests/images/md/recipe.sh`.
struct GoldenMember {
    name: String,
    device: Sectors,
    block: Vec<u8>,
    bitmap: Option<BitmapSuper>,
    examined: String,
}

impl GoldenMember {
    fn load(name: &str) -> Self {
        let bitmap = format!("{name}/bitmap.bin");
        let bitmap = image_path(&bitmap).exists().then(|| image(&bitmap));
        Self {
            name: name.to_owned(),
            device: Sectors(image_text(&format!("{name}/device.txt")).trim().parse().unwrap()),
            block: image(&format!("{name}/superblock.bin")),
            bitmap: bitmap.map(|bytes| BitmapSuper::parse(&bytes).unwrap()),
            examined: image_text(&format!("{name}/expect.txt")),
        }
    }

    /// The superblock, found by probing a device: all other ranges read as zeros.
    fn superblock(&self) -> Superblock {
        let ranges = probe_ranges(self.device);
        let found = ranges
            .iter()
            .find_map(|(offset, _)| identify(self.device, &[(*offset, &self.block)]).preferred);
        let parsed = found.unwrap_or_else(|| panic!("{}: no superblock", self.name));
        *parsed.unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }
}

fn all() -> Vec<GoldenMember> {
    let entries = std::fs::read_dir(image_path("")).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("device.txt").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() >= 20, "only {} golden members", names.len());
    names.iter().map(|name| GoldenMember::load(name)).collect()
}

#[test]
fn the_lines_for_scripts_are_those_of_mdadm() {
    for golden in all() {
        let expected = image_text(&format!("{}/expect-lines.txt", golden.name));
        let parts: Vec<&str> = expected.split("--\n").collect();
        let sb = golden.superblock();
        let arrays = Brief::all([(&sb, "member")]);
        let lines =
            |verbose| -> String { arrays.iter().map(|array| array.lines(verbose)).collect() };
        assert_eq!([lines(false), lines(true), export(&sb)], parts[..], "{}", golden.name);
    }
}

#[test]
fn members_of_one_array_share_a_line_and_arrays_met_last_come_first() {
    let load = |name: &str| GoldenMember::load(name).superblock();
    let (clean, spare) = (load("raid1-clean"), load("raid1-spare"));
    let mut second = spare.clone();
    second.device_uuid = clean.device_uuid;
    let all = Brief::all([(&clean, "a"), (&spare, "b"), (&second, "c")]);
    let texts: Vec<String> = all.iter().map(|array| array.lines(true)).collect();
    assert_eq!(texts.len(), 2);
    assert!(texts[0].ends_with("   spares=2   devices=b,c\n"), "{texts:?}");
    assert!(texts[1].ends_with("name=golden:0\n   devices=a\n"), "{texts:?}");
}

#[test]
fn every_member_prints_as_mdadm_prints_it() {
    for golden in all() {
        let text = match Block1::from_bytes(&golden.block) {
            Some(block) if block.header.major_version.get() == 1 => Examine1 {
                block: &block,
                bitmap: golden.bitmap.as_ref(),
                device: golden.device,
                homehost: None,
            }
            .to_string(),
            _ => {
                let block = Block090::from_bytes(&golden.block).unwrap();
                let loop_device = |major, minor| (major == 7).then(|| format!("/dev/loop{minor}"));
                Examine090 { block: &block, device_name: &loop_device, homehost: None }.to_string()
            }
        };
        // mdadm marks the arrays of the host it runs on; the guest has another name.
        for (line, (ours, theirs)) in text.lines().zip(golden.examined.lines()).enumerate() {
            assert_eq!(ours, theirs, "{}, line {}", golden.name, line + 1);
        }
        assert_eq!(text, golden.examined, "{}", golden.name);
    }
}

#[test]
fn every_bitmap_prints_as_mdadm_prints_it() {
    let mut seen = 0;
    for golden in all() {
        let Some(sb) = &golden.bitmap else { continue };
        let expected = image_text(&format!("{}/expect-bitmap.txt", golden.name));
        // The number of dirty bits is not in the superblock; take it from the expected text.
        let dirty = expected.lines().last().unwrap().split([',', ' ']).nth_back(2).unwrap();
        let text =
            sb.describe(golden.superblock().version, Some(dirty.parse().unwrap())).to_string();
        assert_eq!(text, expected, "{}", golden.name);
        assert_eq!(golden.superblock().bitmap_uuid(), sb.uuid, "{}", golden.name);
        seen += 1;
    }
    assert!(seen >= 3, "only {seen} bitmaps");
}

#[test]
fn every_member_is_found_accepted_and_written_back_unchanged() {
    for golden in all() {
        let superblock = golden.superblock();
        let bytes = superblock.encode(512).unwrap();
        assert_eq!(bytes, golden.block[..bytes.len()], "{}", golden.name);
        let whole = superblock.encode(4096).unwrap();
        assert_eq!(whole, golden.block, "{}", golden.name);
        let damaged = Examine1 {
            block: &Block1::from_bytes(&golden.block).unwrap(),
            bitmap: None,
            device: golden.device,
            homehost: Some("golden"),
        };
        // Printing the wrong kind of block is useless but harmless.
        assert!(!damaged.to_string().is_empty());
        assert!(examine(&superblock, golden.bitmap.as_ref(), None).contains("Magic : a92b4efc"));
    }
}

#[test]
fn the_bad_blocks_are_those_the_kernel_was_told() {
    let superblock = GoldenMember::load("raid1-bad-blocks").superblock();
    let place = superblock.bad_block_log.unwrap();
    let log = image("raid1-bad-blocks/bad-blocks.bin");
    let ranges = bad_block_log::parse(&log, place.shift).unwrap();
    let text: String = ranges
        .iter()
        .map(|range| format!("{:20} for {} sectors\n", range.start.0, range.len.0))
        .collect();
    let expected = image_text("raid1-bad-blocks/expect-bad-blocks.txt");
    assert_eq!(text, expected.split_once('\n').unwrap().1);
    let list = BadBlocks::from_log(&log, place.shift).unwrap();
    let mut written =
        bad_block_log::parse(list.take_image().unwrap().bytes(), place.shift).unwrap();
    written.sort_by_key(|range| ranges.iter().position(|other| other == range));
    assert_eq!(written, ranges);
    assert_eq!(superblock.bad_block_log_start(), Some(Sector(superblock.super_offset.0 - 8)));
}

#[test]
fn a_member_being_rebuilt_says_how_far() {
    let superblock = GoldenMember::load("raid1-rebuilding").superblock();
    assert_eq!(superblock.role(), Role::Active(1));
    assert!(superblock.recovery_offset.unwrap() < superblock.size);
    assert!(superblock.recovery_offset.unwrap().0 > 0);
    assert_eq!(superblock.level, Level::Raid1);
    assert!(superblock.is_clean());
}

#[test]
fn a_local_array_is_marked() {
    let golden = GoldenMember::load("raid1-clean");
    let block = Block1::from_bytes(&golden.block).unwrap();
    let device = golden.device;
    let name = |homehost| {
        let text = Examine1 { block: &block, bitmap: None, device, homehost }.to_string();
        text.lines().find(|line| line.contains("Name")).unwrap().to_owned()
    };
    assert_eq!(name(Some("golden")), "           Name : golden:0  (local to host golden)");
    assert_eq!(name(Some("gold")), "           Name : golden:0");
    assert_eq!(name(None), "           Name : golden:0");
}

#[test]
fn a_wrong_checksum_is_printed_with_the_right_one() {
    let golden = GoldenMember::load("raid1-clean");
    let mut block = Block1::from_bytes(&golden.block).unwrap();
    let right = block.header.sb_csum.get();
    block.header.sb_csum = 0x1234.into();
    let text =
        Examine1 { block: &block, bitmap: None, device: golden.device, homehost: None }.to_string();
    assert!(text.contains(&format!("       Checksum : 1234 - expected {right:x}\n")), "{text}");
}
