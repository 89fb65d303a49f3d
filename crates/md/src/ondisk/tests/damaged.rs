//! Impossible superblocks are refused, each with the defect found.

use ashlar_block::units::Sectors;
use zerocopy::IntoBytes;

use super::{created_spec, image};
use crate::ondisk::create::create;
use crate::ondisk::superblock_0_90::Block090;
use crate::ondisk::superblock_1::Block1;
use crate::ondisk::{Superblock, SuperblockError, Version};

const DEVICE: Sectors = Sectors(204_800);

fn block(case: &str) -> Box<Block1> {
    let made = create(&created_spec(case)).unwrap();
    Box::new(made[0].as_ref().unwrap().superblock.block_1().unwrap().clone())
}

fn raid10() -> Box<Block1> {
    block("1.2 10 n2 64 - internal - 4 204800 204800 204800 204800")
}

/// The refusal of a block after a change, with its checksum corrected.
fn refusal(mut block: Box<Block1>, version: Version, change: impl FnOnce(&mut Block1)) -> String {
    change(&mut block);
    block.seal();
    refused(Superblock::parse(version, block.as_bytes(), DEVICE))
}

fn refused(parsed: Result<Superblock, SuperblockError>) -> String {
    let text = parsed.expect_err("it should be refused").to_string();
    text.split_once(": ").unwrap().1.to_owned()
}

/// Tests of one header field each: its new value, and the refusal.
macro_rules! refusals {
    ($block:expr, $version:expr, $($field:ident = $value:expr => $reason:expr;)+) => {$(
        let reason = refusal($block, $version, |block| block.header.$field = ($value).into());
        assert_eq!(reason, $reason, "{} = {:?}", stringify!($field), $value);
    )+};
}

#[test]
fn what_is_no_superblock_is_told_from_a_damaged_one() {
    let parse = |bytes: &[u8]| refused(Superblock::parse(Version::V1_2, bytes, DEVICE));
    assert_eq!(parse(&[]), "truncated: 0 of 4096 bytes");
    assert_eq!(parse(&[0; 4095]), "truncated: 4095 of 4096 bytes");
    assert_eq!(parse(&[0; 4096]), "no superblock: magic is 0x00000000, not 0xa92b4efc");
    let tiny = Superblock::parse(Version::V1_2, raid10().as_bytes(), Sectors(23));
    assert_eq!(refused(tiny), "the device has 23 sectors, fewer than the 24 needed");
    refusals!(raid10(), Version::V1_2,
        major_version = 2 => "major version is 2, not 1";
        super_offset = 0 => "it says it belongs at sector 0";
    );
    let mut block = raid10();
    block.header.events = 99.into();
    let expected = block.checksum();
    let found = block.header.sb_csum.get();
    assert_eq!(
        parse(block.as_bytes()),
        format!("checksum is {found:#010x}, expected {expected:#010x}")
    );
}

#[test]
fn unknown_features_and_fields_are_refused() {
    refusals!(raid10(), Version::V1_2,
        feature_map = 0x8001 => "unknown feature bits 0x8000";
        pad0 = 0x0300 => "unknown field in use: byte 13 of the superblock is 0x03, not 0";
        logical_block_size = 1000 => "logical block size of 1000 bytes";
        logical_block_size = 256 => "logical block size of 256 bytes";
        max_dev = 1921 => "role table of 1921 entries, more than 1920";
        max_dev = u32::MAX => "role table of 4294967295 entries, more than 1920";
    );
    assert_eq!(
        refusal(raid10(), Version::V1_2, |block| block.header.pad3[27] = 1),
        "unknown field in use: byte 255 of the superblock is 0x01, not 0"
    );
}

#[test]
fn impossible_geometries_are_refused() {
    refusals!(raid10(), Version::V1_2,
        level = 7 => "unknown RAID level 7";
        level = -100_i32 as u32 => "unknown RAID level -100";
        raid_disks = 0 => "0 raid devices, not 1 to 1920";
        raid_disks = 1921 => "1921 raid devices, not 1 to 1920";
        chunksize = 0 => "raid10 without a chunk size";
        chunksize = 4 => "raid10 with a chunk of 2048 bytes, not a multiple of 4096";
        chunksize = 24 => "raid10 with a chunk of 12288 bytes, not a power of two";
        chunksize = 1 << 31 => "chunk of 2147483648 sectors, but only 202752 sectors of data on this member";
        layout = 0 => "raid10 layout 0x0 has no near copies";
        layout = 0x002 => "raid10 layout 0x2 has no far copies";
        layout = 0x200 => "raid10 layout 0x200 has no near copies";
        layout = 0x101 => "raid10 layout 0x101 makes 1 copies on 4 devices";
        layout = 0x302 => "raid10 layout 0x302 makes 6 copies on 4 devices";
        layout = 0xffff => "raid10 layout 0xffff makes 65025 copies on 4 devices";
        layout = 0x6_0102 => "raid10 with unknown layout 0x60102";
        layout = 0x8_0102 => "raid10 with unknown layout 0x80102";
        feature_map = 0x1001 => "raid10 with the RAID0 layout feature";
    );
    let reason = refusal(raid10(), Version::V1_2, |block| {
        block.header.raid_disks = 3.into();
        block.header.dev_number = 3.into();
    });
    assert_eq!(reason, "its own role is 3, but the array has 3 slots");
    let raid0 = || block("1.2 0 - 12 - auto - 2 204800 102400");
    refusals!(raid0(), Version::V1_2,
        layout = 3 => "raid0 with unknown layout 0x3";
        chunksize = 0 => "raid0 without a chunk size";
        chunksize = 12 => "raid0 with a chunk of 6144 bytes, not a multiple of 4096";
    );
    let raid5 = |layout: u32| {
        refusal(raid10(), Version::V1_2, |block| {
            block.header.level = 5.into();
            block.header.layout = layout.into();
        })
    };
    assert_eq!(raid5(6), "raid5 with unknown layout 0x6");
}

#[test]
fn every_layout_of_near_far_and_offset_that_fits_is_accepted() {
    for near in 1..=4_u32 {
        for far in 1..=4_u32 {
            for flags in [0, 0x1_0000, 0x2_0000, 0x3_0000, 0x4_0000, 0x5_0000] {
                let mut block = raid10();
                block.header.layout = (near | far << 8 | flags).into();
                block.seal();
                let parsed = Superblock::parse(Version::V1_2, block.as_bytes(), DEVICE);
                assert_eq!(parsed.is_ok(), (2..=4).contains(&(near * far)), "{near} {far} {flags}");
            }
        }
    }
}

#[test]
fn sizes_and_offsets_beyond_the_device_are_refused() {
    refusals!(raid10(), Version::V1_2,
        size = 0 => "used size of the members is 0";
        size = 202_753 => "202753 sectors of the member in use, but its data area has 202752";
        data_size = 9 => "data size of 9 sectors, fewer than 10";
        data_size = 202_753 => "data at sector 2048, 202753 sectors long, ends behind sector 204800";
        data_offset = 8 => "data begins at sector 8, inside the superblock, which ends at 9";
        data_offset = 2049 => "data at sector 2049, 202752 sectors long, ends behind sector 204800";
        data_offset = u64::MAX => "data at sector 18446744073709551615, 202752 sectors long, ends behind sector 204800";
    );
    let at_end = || block("1.0 1 - - - none - 2 204800 204800");
    refusals!(at_end(), Version::V1_0,
        data_size = 204_785 => "data at sector 0, 204785 sectors long, ends behind sector 204784";
        data_size = 204_780 => "bad block log -8 sectors from the superblock is inside the data";
    );
}

#[test]
fn bitmaps_and_bad_block_logs_in_impossible_places_are_refused() {
    refusals!(raid10(), Version::V1_2,
        bitmap_offset = 0 => "bitmap 0 sectors from the superblock is inside the superblock";
        bitmap_offset = -9_i32 as u32 => "bitmap -9 sectors from the superblock is off the device";
        bitmap_offset = i32::MAX as u32 => "bitmap 2147483647 sectors from the superblock is off the device";
        bitmap_offset = 2040 => "bitmap 2040 sectors from the superblock is inside the data";
        bblog_size = 9 => "bad block log of 9 sectors, not 1 to 8";
        bblog_size = u16::MAX => "bad block log of 65535 sectors, not 1 to 8";
        bblog_shift = 22 => "bad block log shift is 22, more than 21";
        bblog_shift = 255 => "bad block log shift is 255, more than 21";
        bblog_offset = 2033 => "bad block log 2033 sectors from the superblock is inside the data";
        bblog_offset = -4_i32 as u32 => "bad block log -4 sectors from the superblock is inside the superblock";
    );
    let reason = refusal(raid10(), Version::V1_2, |block| {
        block.header.feature_map = 9.into();
        block.header.bblog_size = 0.into();
    });
    assert_eq!(reason, "bad block log of 0 sectors, not 1 to 8");
    let reason = refusal(raid10(), Version::V1_2, |block| {
        block.header.feature_map = 9.into();
        block.header.bblog_offset = 0.into();
    });
    assert_eq!(reason, "bad block log 0 sectors from the superblock is inside the superblock");
}

#[test]
fn a_0_90_superblock_that_cannot_be_is_refused() {
    let device = Sectors(0x20000);
    let good = || Block090::from_bytes(&image("by-hand/superblock_0_90.bin")).unwrap();
    let reason = |change: &dyn Fn(&mut Block090)| {
        let mut block = good();
        change(&mut block);
        block.seal();
        refused(Superblock::parse(Version::V0_90, block.as_bytes(), device))
    };
    assert_eq!(
        reason(&|b| b.md_magic = 0.into()),
        "no superblock: magic is 0x00000000, not 0xa92b4efc"
    );
    assert_eq!(reason(&|b| b.major_version = 1.into()), "major version is 1, not 0");
    assert_eq!(reason(&|b| b.minor_version = 92.into()), "minor version is 92, neither 90 nor 91");
    assert_eq!(reason(&|b| b.not_persistent = 1.into()), "not_persistent is 1, not 0");
    assert_eq!(reason(&|b| b.raid_disks = 28.into()), "28 raid devices, not 1 to 27");
    assert_eq!(reason(&|b| b.raid_disks = 0.into()), "0 raid devices, not 1 to 27");
    assert_eq!(reason(&|b| b.chunk_size = 0.into()), "raid10 without a chunk size");
    assert_eq!(
        reason(&|b| b.chunk_size = 1000.into()),
        "raid10 with a chunk of 1000 bytes, not a multiple of 4096"
    );
    assert_eq!(
        reason(&|b| b.size = u32::MAX.into()),
        "8589934590 sectors of the member in use, but its data area has 130944"
    );
    assert_eq!(reason(&|b| b.layout = 0x100.into()), "raid10 layout 0x100 has no near copies");
    let own = reason(&|b| {
        b.disks[4].state = 6.into();
        b.disks[4].raid_disk = 7.into();
    });
    assert_eq!(own, "its own role is 7, but the array has 7 slots");
    let mut block = good();
    block.sb_csum = (block.sb_csum.get() ^ 1).into();
    let error = refused(Superblock::parse(Version::V0_90, block.as_bytes(), device));
    assert!(error.starts_with("checksum is 0x"), "{error}");
    let tiny = Superblock::parse(Version::V0_90, good().as_bytes(), Sectors(127));
    assert_eq!(refused(tiny), "the device has 127 sectors, fewer than the 128 needed");
}

#[test]
fn a_superblock_of_a_big_endian_machine_is_read_and_not_written() {
    let (bytes, device) = (image("by-hand/superblock_0_90.bin"), Sectors(0x20000));
    let mut foreign = bytes.clone();
    // There the high word of the counts of events and of a reshape's position is first.
    for at in [156, 164, 176] {
        let (low, high) = foreign[at..at + 8].split_at_mut(4);
        low.swap_with_slice(high);
    }
    foreign.as_chunks_mut::<4>().0.iter_mut().for_each(|word| word.reverse());
    let native = Superblock::parse(Version::V0_90, &bytes, device).unwrap();
    let read = Superblock::parse(Version::V0_90, &foreign, device).unwrap();
    let mut expected = native;
    expected.is_big_endian = true;
    assert_eq!(read, expected);
    let written = read.encode(512).unwrap_err().to_string();
    assert!(written.contains("superblocks of big-endian machines can be read"), "{written}");
}

#[test]
fn a_0_90_checksum_that_agrees_only_in_16_bits_is_accepted() {
    let mut block = Block090::from_bytes(&image("by-hand/superblock_0_90.bin")).unwrap();
    let sum = block.checksum();
    block.sb_csum = ((sum & 0xffff) + (sum >> 16)).into();
    assert_ne!(block.sb_csum.get(), sum);
    let parsed = Superblock::parse(Version::V0_90, block.as_bytes(), Sectors(0x20000));
    assert!(parsed.is_ok());
}
