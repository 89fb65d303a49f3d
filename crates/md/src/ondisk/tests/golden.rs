//! Every field of every on-disk struct is where the kernel's headers put it.
//!
//! The images of `tests/images/md/by-hand` were made from those headers by another program, with
//! another value in every field.

use std::collections::HashMap;

use ashlar_block::units::{Sector, Sectors};
use uuid::Uuid;
use zerocopy::IntoBytes;

use super::{image, image_text};
use crate::ondisk::bitmap_super::{BitmapSuper, BitmapSuperError};
use crate::ondisk::superblock_0_90::{Block090, Descriptor};
use crate::ondisk::superblock_1::Block1;
use crate::ondisk::{
    BadBlockLogPlace, DeviceFlags, Features, Level, Reshape, Role, Superblock, Timestamp, Version,
};

/// The fields of one block in `fields.txt`: the text of each value.
fn fields(block: &str) -> HashMap<String, String> {
    let text = image_text("by-hand/fields.txt");
    let (_, section) = text.split_once(&format!("block {block}\n")).unwrap();
    let section = section.split("\nblock ").next().unwrap();
    let field = |line: &str| {
        let columns: Vec<&str> = line.split(' ').collect();
        (columns[2].to_owned(), columns.get(3).copied().unwrap_or_default().to_owned())
    };
    section.lines().map(field).collect()
}

/// Checks fields of `block` against the table, by name, and that no entry of the table is left.
macro_rules! check_fields {
    ($table:ident, $block:expr, numbers: $($number:ident)+, bytes: $($bytes:ident)*) => {
        $(
            let wanted = $table.remove(stringify!($number)).expect(stringify!($number));
            assert_eq!(u128::from($block.$number), wanted.parse().unwrap(), stringify!($number));
        )+
        $(
            let wanted = $table.remove(stringify!($bytes)).expect(stringify!($bytes));
            let found: String = $block.$bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(found.trim_end_matches("00"), wanted.trim_end_matches("00"), stringify!($bytes));
        )*
    };
}

#[test]
fn every_field_of_version_1_is_in_its_place() {
    let block = Block1::from_bytes(&image("by-hand/superblock_1.bin")).unwrap();
    let mut table = fields("superblock_1");
    for (number, role) in block.roles().enumerate() {
        let wanted = table.remove(&format!("role_{number}")).unwrap();
        assert_eq!(role.raw(), wanted.parse::<u16>().unwrap());
    }
    check_fields!(table, block.header, numbers:
        magic major_version feature_map pad0 ctime level layout size chunksize raid_disks
        bitmap_offset new_level reshape_position delta_disks new_layout new_chunk new_offset
        data_offset data_size super_offset recovery_offset dev_number cnt_corrected_read devflags
        bblog_shift bblog_size bblog_offset utime events resync_offset sb_csum max_dev
        logical_block_size,
        bytes: set_uuid set_name device_uuid pad3);
    assert!(table.is_empty(), "{table:?}");
    assert!(block.checksum_is_correct());
}

#[test]
fn every_field_of_0_90_is_in_its_place() {
    let block = Block090::from_bytes(&image("by-hand/superblock_0_90.bin")).unwrap();
    let mut table = fields("superblock_0_90");
    let mut check = |label: String, entry: &Descriptor| {
        for (name, value) in [
            ("number", entry.number),
            ("major", entry.major),
            ("minor", entry.minor),
            ("raid_disk", entry.raid_disk),
            ("state", entry.state),
        ] {
            let wanted = table.remove(&format!("{label}_{name}")).unwrap();
            assert_eq!(value.get(), wanted.parse::<u32>().unwrap(), "{label} {name}");
        }
    };
    check("this_disk".to_owned(), &block.this_disk);
    for (number, entry) in block.disks.iter().enumerate() {
        check(format!("disk{number}"), entry);
    }
    for (index, name) in ["reshape_position_lo", "reshape_position_hi"].into_iter().enumerate() {
        let wanted = table.remove(name).unwrap();
        assert_eq!(block.reshape_position[index].get(), wanted.parse::<u32>().unwrap());
    }
    check_fields!(table, block, numbers:
        md_magic major_version minor_version patch_version gvalid_words set_uuid0 ctime level size
        nr_disks raid_disks md_minor not_persistent set_uuid1 set_uuid2 set_uuid3 utime state
        active_disks working_disks failed_disks spare_disks sb_csum events_lo events_hi cp_events_lo
        cp_events_hi recovery_cp new_level delta_disks new_layout new_chunk logical_block_size layout
        chunk_size root_pv root_block,
        bytes:);
    assert!(table.is_empty(), "{table:?}");
    assert_eq!(block.sb_csum.get(), block.checksum());
}

#[test]
fn every_field_of_a_bitmap_superblock_is_in_its_place() {
    let bytes = image("by-hand/bitmap.bin");
    let mut sb = BitmapSuper::parse(&bytes).unwrap();
    let mut table = fields("bitmap");
    check_fields!(table, sb, numbers:
        magic version events events_cleared sync_size state chunksize daemon_sleep write_behind
        sectors_reserved nodes,
        bytes: uuid cluster_name pad);
    assert!(table.is_empty(), "{table:?}");

    sb.set_events(0x1112_1314_1516_1718);
    let mut wanted = bytes.clone();
    wanted[24..32].copy_from_slice(&0x1112_1314_1516_1718_u64.to_le_bytes());
    assert_eq!(sb.as_bytes(), wanted);
}

#[test]
fn version_1_means_what_its_fields_say() {
    let device = Sectors(0x40000);
    let bytes = image("by-hand/superblock_1.bin");
    let superblock = Superblock::parse(Version::V1_2, &bytes, device).unwrap();
    let roles = [
        Role::Active(3),
        Role::Faulty,
        Role::Active(0),
        Role::Spare,
        Role::Active(8),
        Role::Active(6),
        Role::Journal,
        Role::Active(1),
        Role::Active(2),
        Role::Active(4),
        Role::Active(5),
    ];
    assert_eq!(superblock.version, Version::V1_2);
    assert_eq!(superblock.set_uuid, Uuid::from_u128(0x1011_1213_1415_1617_1819_1a1b_1c1d_1e1f));
    assert_eq!(superblock.name, "host.example:every-field");
    assert_eq!(superblock.ctime, Timestamp { seconds: 1_234_567_890, micros: 0x12_3456 });
    assert_eq!(superblock.level, Level::Raid10);
    assert_eq!(superblock.layout, 0x1_0203);
    assert_eq!(superblock.chunk, Sectors(0x40));
    assert_eq!(superblock.raid_disks, 7);
    assert_eq!(superblock.size, Sectors(0x12340));
    assert_eq!(superblock.data_offset, Sector(0x1000));
    assert_eq!(superblock.data_size, Sectors(0x23456));
    assert_eq!(superblock.super_offset, Sector(8));
    assert_eq!(superblock.dev_number, 5);
    assert_eq!(superblock.roles, roles);
    assert_eq!(superblock.role(), Role::Active(6));
    assert_eq!(superblock.events, 0x0102_0304_0506_0708);
    assert_eq!(superblock.resync_offset, Sectors(0x4567));
    assert!(!superblock.is_clean());
    assert_eq!(superblock.recovery_offset, Some(Sectors(0x3456)));
    assert_eq!(superblock.features, Features::from_bits_retain(0x4f));
    assert_eq!(superblock.utime, Timestamp { seconds: 1_345_678_901, micros: 0x65_4321 });
    assert_eq!(superblock.device_uuid, Uuid::from_u128(0xd0d1_d2d3_d4d5_d6d7_d8d9_dadb_dcdd_dedf));
    assert_eq!(superblock.flags, DeviceFlags { write_mostly: false, failfast: true });
    assert_eq!(superblock.corrected_reads, 77);
    assert_eq!(superblock.bitmap_offset, Some(0x18));
    assert_eq!(superblock.bitmap_start(), Some(Sector(0x20)));
    let log = BadBlockLogPlace { offset: 0x30, len: Sectors(6), shift: 3 };
    assert_eq!(superblock.bad_block_log, Some(log));
    assert_eq!(superblock.bad_block_log_start(), Some(Sector(0x38)));
    let reshape = Reshape {
        position: Sector(0x1122_3344_5566_7788),
        delta_disks: -2,
        new_level: Level::Faulty,
        new_layout: 0x302,
        new_chunk: Sectors(0x80),
        new_offset: -0x99,
    };
    assert_eq!(superblock.reshape, Some(reshape));
    assert_eq!(superblock.logical_block_size, 2048);
    assert_eq!(superblock.device_size(), device);
}

#[test]
fn version_0_90_means_what_its_fields_say() {
    let device = Sectors(0x20000);
    let bytes = image("by-hand/superblock_0_90.bin");
    let superblock = Superblock::parse(Version::V0_90, &bytes, device).unwrap();
    assert_eq!(superblock.version, Version::V0_90);
    assert_eq!(superblock.set_uuid, Uuid::from_u128(0x1011_1213_2021_2223_3031_3233_4041_4243));
    assert_eq!(superblock.bitmap_uuid()[..8], [0x13, 0x12, 0x11, 0x10, 0x23, 0x22, 0x21, 0x20]);
    assert_eq!(superblock.name, "");
    assert_eq!(superblock.ctime, Timestamp::from_seconds(1_234_567_890));
    assert_eq!(superblock.level, Level::Raid10);
    assert_eq!(superblock.layout, 0x1_0302);
    assert_eq!(superblock.chunk, Sectors(64));
    assert_eq!(superblock.raid_disks, 6);
    assert_eq!(superblock.size, Sectors(100_000));
    assert_eq!(superblock.data_offset, Sector(0));
    assert_eq!(superblock.data_size, Sectors(0x20000 - 128));
    assert_eq!(superblock.super_offset, Sector(0x20000 - 128));
    assert_eq!(superblock.dev_number, 4);
    assert_eq!(superblock.roles.len(), 27);
    let first = [
        Role::Active(0),
        Role::Active(1),
        Role::Faulty,
        Role::Active(3),
        Role::Spare,
        Role::Spare,
        Role::Faulty,
        Role::Spare,
        Role::Active(2),
    ];
    assert_eq!(superblock.roles[..9], first);
    assert_eq!(superblock.role(), Role::Spare);
    assert_eq!(superblock.events, 0x56_0000_0055);
    assert_eq!(superblock.resync_offset, Sectors(0x57));
    assert_eq!(superblock.recovery_offset, None);
    assert_eq!(superblock.features, Features::BITMAP_OFFSET);
    assert_eq!(superblock.bitmap_start(), Some(Sector(0x20000 - 120)));
    assert_eq!(superblock.utime, Timestamp::from_seconds(1_345_678_901));
    assert_eq!(superblock.device_uuid, Uuid::nil());
    assert_eq!(superblock.flags, DeviceFlags { write_mostly: false, failfast: true });
    let reshape = Reshape {
        position: Sector(0x59_0000_0058),
        delta_disks: -1,
        new_level: Level::Raid5,
        new_layout: 0x5a,
        new_chunk: Sectors(0x5b000 / 512),
        new_offset: 0,
    };
    assert_eq!(superblock.reshape, Some(reshape));
    assert_eq!(superblock.logical_block_size, 1024);
    assert_eq!(superblock.bad_block_log, None);
}

#[test]
fn a_bitmap_superblock_the_kernel_refuses_is_refused() {
    let good = image("by-hand/bitmap.bin");
    let with = |at: usize, value: u32| {
        let mut bytes = good.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        BitmapSuper::parse(&bytes).unwrap_err()
    };
    assert_eq!(
        BitmapSuper::parse(&good[..255]).unwrap_err(),
        BitmapSuperError::Truncated { found: 255 }
    );
    assert_eq!(with(0, 5), BitmapSuperError::Magic { found: 5 });
    assert_eq!(with(4, 2), BitmapSuperError::Version { found: 2 });
    assert_eq!(with(4, 7), BitmapSuperError::Version { found: 7 });
    assert_eq!(with(52, 256), BitmapSuperError::ChunkSize { found: 256 });
    assert_eq!(with(52, 0), BitmapSuperError::ChunkSize { found: 0 });
    assert_eq!(with(52, 1000), BitmapSuperError::ChunkSize { found: 1000 });
    assert_eq!(with(56, 0), BitmapSuperError::DaemonSleep { found: 0 });
    assert_eq!(with(60, 16384), BitmapSuperError::WriteBehind { found: 16384 });
    let found = 0xff00_0000 << 32 | 0x2345_6789;
    assert_eq!(with(44, 0xff00_0000), BitmapSuperError::SyncSize { found });
}

#[test]
fn a_bitmap_has_a_bit_for_every_chunk_begun() {
    let bits = |sectors, chunk| BitmapSuper::new([0; 16], Sectors(sectors), chunk, 5, 0).bits();
    assert_eq!(bits(0, 4096), 0);
    assert_eq!(bits(1, 4096), 1);
    assert_eq!(bits(8, 4096), 1);
    assert_eq!(bits(9, 4096), 2);
    assert_eq!(bits(9, 0), 0);
    assert_eq!(bits(u64::MAX, 512), u64::MAX);
    let sb = BitmapSuper::new([0; 16], Sectors(8 * 8 * 3840), 4096, 5, 0);
    assert_eq!(sb.total_bytes(4096), 4096);
    let sb = BitmapSuper::new([0; 16], Sectors(8 * 8 * 3840 + 1), 4096, 5, 0);
    assert_eq!(sb.total_bytes(4096), 8192);
    assert_eq!(sb.total_bytes(512), 4608);
}
