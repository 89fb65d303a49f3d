//! Written superblocks read back unchanged, and an update changes only its fields.

use ashlar_block::units::{Sector, Sectors};
use ashlar_sim::Rng;
use uuid::Uuid;
use zerocopy::IntoBytes;

use super::{created_spec, image};
use crate::ondisk::create::create;
use crate::ondisk::examine::{Examine1, Examine090};
use crate::ondisk::probe::{identify, probe_ranges};
use crate::ondisk::superblock_0_90::{Block090, disk};
use crate::ondisk::superblock_1::Block1;
use crate::ondisk::{
    BadBlockLogPlace, Defect, DeviceFlags, Features, Role, Superblock, Timestamp, Version,
};

const DEVICE: Sectors = Sectors(204_800);
const OLD_DEVICE: Sectors = Sectors(0x20000);

fn raid10() -> Superblock {
    let case = "1.2 10 n2 64 - internal - 4 204800 204800 204800 204800";
    create(&created_spec(case)).unwrap()[1].clone().unwrap().superblock
}

fn old() -> Superblock {
    let mut block = Block090::from_bytes(&image("by-hand/superblock_0_90.bin")).unwrap();
    block.minor_version = 90.into();
    block.seal();
    Superblock::parse(Version::V0_90, block.as_bytes(), OLD_DEVICE).unwrap()
}

fn reread(superblock: &Superblock) -> Superblock {
    let bytes = superblock.encode(4096).unwrap();
    Superblock::parse(superblock.version, &bytes, superblock.device_size()).unwrap()
}

/// Asserts that two superblocks are equal, except for the blocks that they were read from.
fn assert_same(mut left: Superblock, right: &Superblock) {
    left.raw = right.raw.clone();
    assert_eq!(&left, right);
}

#[test]
fn an_unchanged_superblock_is_written_back_byte_for_byte() {
    let bytes = image("by-hand/superblock_1.bin");
    let superblock = Superblock::parse(Version::V1_2, &bytes, Sectors(0x40000)).unwrap();
    // Bytes after the role table are not part of a short write ...
    assert_eq!(superblock.encode(512).unwrap(), bytes[..512]);
    // ... and kept in a long one.
    assert_eq!(superblock.encode(4096).unwrap(), bytes);
    assert_eq!(&bytes[512..520], b"leave me");
    let bytes = image("by-hand/superblock_0_90.bin");
    let superblock = Superblock::parse(Version::V0_90, &bytes, OLD_DEVICE).unwrap();
    assert_eq!(superblock.encode(512).unwrap(), bytes);
}

#[test]
fn every_field_version_1_records_comes_back() {
    let mut superblock = raid10();
    superblock.set_uuid = Uuid::from_u128(1);
    superblock.name = "another:name".to_owned();
    superblock.ctime = Timestamp { seconds: 2, micros: 3 };
    superblock.layout = 0x1_0201;
    superblock.chunk = Sectors(256);
    superblock.raid_disks = 5;
    superblock.size = Sectors(100_096);
    superblock.data_offset = Sector(4096);
    superblock.data_size = Sectors(200_000);
    superblock.dev_number = 3;
    superblock.roles[0] = Role::Faulty;
    superblock.roles[1] = Role::Journal;
    superblock.roles[3] = Role::Active(4);
    superblock.roles[7] = Role::Spare;
    superblock.events = u64::MAX - 1;
    superblock.resync_offset = Sectors::MAX;
    superblock.recovery_offset = Some(Sectors(12345));
    superblock.features = Features::from_bits_retain(0x9c | 0x200);
    superblock.utime = Timestamp { seconds: (1 << 40) - 1, micros: (1 << 24) - 1 };
    superblock.device_uuid = Uuid::from_u128(4);
    superblock.flags = DeviceFlags { write_mostly: true, failfast: true };
    superblock.corrected_reads = 6;
    superblock.bitmap_offset = Some(16);
    superblock.bad_block_log = Some(BadBlockLogPlace { offset: 64, len: Sectors(4), shift: 1 });
    let read = reread(&superblock);
    // The feature bits of other fields are set to match.
    superblock.features = Features::from_bits_retain(0x9b | 0x200);
    assert_same(read, &superblock);
}

#[test]
fn a_finished_rebuild_and_a_removed_bitmap_leave_no_bits_behind() {
    let mut superblock = raid10();
    superblock.recovery_offset = Some(Sectors(999));
    let mut superblock = reread(&superblock);
    assert!(superblock.features.contains(Features::RECOVERY_OFFSET));
    superblock.recovery_offset = None;
    superblock.bitmap_offset = None;
    superblock.bad_block_log = None;
    let read = reread(&superblock);
    assert_eq!(read.features, Features::default());
    assert_eq!(read.block_1().unwrap().header.recovery_offset.get(), 0);
    assert_eq!((read.recovery_offset, read.bitmap_offset, read.bad_block_log), (None, None, None));
}

#[test]
fn the_role_table_grows_but_never_shrinks() {
    let mut superblock = raid10();
    assert_eq!(superblock.roles.len(), 128);
    superblock.roles.push(Role::Active(2));
    assert_eq!(superblock.encode(512).unwrap().len(), 1024);
    assert_eq!(reread(&superblock).roles.len(), 129);
    superblock.roles.truncate(2);
    let read = reread(&superblock);
    assert_eq!(read.roles.len(), 128);
    assert!(read.roles[2..].iter().all(|role| *role == Role::Spare));
    superblock.roles.resize(1921, Role::Spare);
    let error = superblock.encode(512).unwrap_err();
    assert_eq!(error.defect, Defect::RoleTable { found: 1921 });
}

#[test]
fn what_would_be_refused_when_read_is_not_written() {
    let error = |change: &dyn Fn(&mut Superblock)| {
        let mut superblock = raid10();
        change(&mut superblock);
        superblock.encode(512).unwrap_err().to_string()
    };
    let at = "md superblock version 1.2 at sector 8: ";
    assert_eq!(error(&|sb| sb.raid_disks = 0), format!("{at}0 raid devices, not 1 to 1920"));
    assert_eq!(
        error(&|sb| sb.features = Features::from_bits_retain(0x2000)),
        format!("{at}unknown feature bits 0x2000")
    );
    assert!(error(&|sb| sb.chunk = Sectors(1 << 32)).contains("cannot be recorded"));
    assert!(error(&|sb| sb.name = "x".repeat(32)).contains("cannot be recorded"));
    assert!(error(&|sb| sb.version = Version::V1_1).contains("cannot be recorded"));
    assert!(error(&|sb| sb.super_offset = Sector(0)).contains("cannot be recorded"));
    assert!(error(&|sb| sb.logical_block_size = 512).contains("cannot be recorded"));
}

#[test]
fn a_0_90_array_records_clean_and_dirty() {
    let mut superblock = old();
    superblock.events += 1;
    superblock.resync_offset = Sectors::MAX;
    superblock.utime = Timestamp::from_seconds(2_000_000_000);
    let mut clean = reread(&superblock);
    assert_same(superblock, &clean);
    assert!(clean.is_clean());

    clean.events += 1;
    clean.resync_offset = Sectors(0);
    let mut dirty = reread(&clean);
    assert_same(clean, &dirty);
    assert!(!dirty.is_clean());

    dirty.resync_offset = Sectors(123_456);
    assert_eq!(reread(&dirty).resync_offset, Sectors(123_456));
    // Only 32 bits fit: a smaller position is recorded.
    dirty.resync_offset = Sectors(1 << 33);
    assert_eq!(reread(&dirty).resync_offset, Sectors(0xffff_fffe));
    // A change of only the event count keeps the position valid.
    dirty.resync_offset = Sectors(77);
    let mut later = reread(&dirty);
    later.events += 5;
    assert_eq!(reread(&later).resync_offset, Sectors(77));
}

#[test]
fn a_0_90_array_records_a_failed_member_as_the_kernel_does() {
    let mut superblock = old();
    superblock.roles[3] = Role::Faulty;
    superblock.events += 1;
    let read = reread(&superblock);
    assert_eq!(read.roles[3], Role::Faulty);
    assert_same(superblock.clone(), &read);
    let (before, after) = (superblock.block_0_90().unwrap(), read.block_0_90().unwrap());
    let entry = &after.disks[3];
    assert_eq!(entry.state.get(), disk::FAULTY | disk::REMOVED);
    assert_eq!((entry.number.get(), entry.raid_disk.get()), (3, 3));
    assert_eq!((entry.major.get(), entry.minor.get()), (0, 0));
    for number in (0..27).filter(|number| *number != 3) {
        assert_eq!(before.disks[number], after.disks[number], "descriptor {number}");
    }
    let roles =
        |wanted: fn(&Role) -> bool| read.roles.iter().filter(|role| wanted(role)).count() as u32;
    assert_eq!(after.active_disks.get(), roles(|role| matches!(role, Role::Active(_))));
    assert_eq!(after.failed_disks.get(), roles(|role| *role == Role::Faulty));
    assert_eq!(after.spare_disks.get(), roles(|role| *role == Role::Spare));
    assert_eq!(after.working_disks.get(), after.active_disks.get() + after.spare_disks.get());
    assert_eq!(after.nr_disks.get(), 26);
}

/// The rebuild of a member ended, and power failed before its own superblock said so.
#[test]
fn a_0_90_array_records_that_a_member_is_a_spare_as_the_kernel_does() {
    let mut superblock = old();
    let number = superblock.roles.iter().rposition(|role| matches!(role, Role::Active(_))).unwrap();
    superblock.roles[number] = Role::Spare;
    let read = reread(&superblock);
    assert_same(superblock.clone(), &read);
    let (before, after) = (superblock.block_0_90().unwrap(), read.block_0_90().unwrap());
    let (was, entry) = (&before.disks[number], &after.disks[number]);
    let flags = disk::WRITE_MOSTLY | disk::FAILFAST;
    assert_eq!(entry.state.get(), was.state.get() & flags);
    assert_eq!([entry.number, entry.raid_disk].map(|n| n.get()), [number as u32; 2]);
    assert_eq!((entry.major, entry.minor), (was.major, was.minor));
    let all = [after.active_disks, after.spare_disks].map(|n| n.get()).iter().sum::<u32>();
    assert_eq!(after.working_disks.get(), all);
    superblock = read;
    superblock.roles[number] = Role::Active(0);
    let defect = superblock.encode(512).unwrap_err().defect;
    assert!(matches!(defect, Defect::NotRecordable { .. }), "{defect}");
}

#[test]
fn a_0_90_array_records_nothing_else() {
    let refused = |change: &dyn Fn(&mut Superblock)| {
        let mut superblock = old();
        change(&mut superblock);
        let defect = superblock.encode(512).unwrap_err().defect;
        assert!(matches!(defect, Defect::NotRecordable { .. }), "{defect}");
    };
    refused(&|sb| sb.raid_disks = 3);
    refused(&|sb| sb.name = "x".to_owned());
    refused(&|sb| sb.recovery_offset = Some(Sectors(1)));
    refused(&|sb| sb.roles[4] = Role::Active(4));
    refused(&|sb| sb.roles.truncate(3));
    refused(&|sb| sb.utime = Timestamp::from_seconds(1 << 32));
}

#[test]
fn random_superblocks_survive_being_written_and_read() {
    let mut random = Rng::new(11);
    let mut superblock = raid10();
    for round in 0..2000 {
        superblock.events = random.next_u64();
        superblock.resync_offset = Sectors(random.next_u64());
        superblock.utime = Timestamp::from_raw(random.next_u64());
        superblock.corrected_reads = random.next_u64() as u32;
        superblock.size = Sectors(128 + random.below(202_000));
        superblock.recovery_offset = (round % 3 == 0).then(|| Sectors(random.next_u64()));
        superblock.bitmap_offset = (round % 2 == 0).then(|| 2 + random.below(2000) as i32);
        superblock.flags = DeviceFlags { write_mostly: round % 5 == 0, failfast: round % 7 == 0 };
        let number = random.index(superblock.roles.len());
        superblock.roles[number] = match random.below(5) {
            0 => Role::Spare,
            1 => Role::Faulty,
            2 => Role::Journal,
            _ => Role::Active(random.below(4) as u16),
        };
        superblock.dev_number = random.below(140) as u32;
        superblock.features = superblock
            .features
            .set_to(Features::RECOVERY_OFFSET, superblock.recovery_offset.is_some())
            .set_to(Features::BITMAP_OFFSET, superblock.bitmap_offset.is_some());
        let read = reread(&superblock);
        assert_same(superblock, &read);
        superblock = read;
    }
}

#[test]
fn random_damage_never_panics() {
    let images = [
        (image("by-hand/superblock_1.bin"), Sectors(0x40000)),
        (image("by-hand/superblock_0_90.bin"), OLD_DEVICE),
        (raid10().encode(4096).unwrap(), DEVICE),
    ];
    let mut random = Rng::new(13);
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..6000 {
        let (image, device) = &images[round % images.len()];
        let mut bytes = image.clone();
        for _ in 0..1 + random.below(4) {
            // Damage mostly the bytes with fields.
            let reach = if random.below(4) == 0 { 4096 } else { 300 };
            let at = random.index(reach);
            let value = random.next_u64();
            match random.below(3) {
                0 => bytes[at] ^= 1 << (value % 8),
                1 => bytes[at] = value as u8,
                _ => bytes[at & !3..][..4].copy_from_slice(&((value >> 40) as u32).to_le_bytes()),
            }
        }
        if round % 2 == 0 {
            reseal(&mut bytes);
        }
        let device = if random.below(3) == 0 {
            Sectors(random.next_u64() >> random.below(64))
        } else {
            *device
        };
        for (version, parsed) in parse_everywhere(&bytes, device) {
            match parsed {
                Ok(superblock) => {
                    accepted += 1;
                    let again = superblock.encode(512).unwrap();
                    assert_eq!(again, bytes[..again.len()], "{version}");
                }
                Err(_) => refused += 1,
            }
        }
        print_everything(&bytes, device);
    }
    assert!(accepted > 100 && refused > 100, "{accepted} accepted, {refused} refused");
}

fn reseal(bytes: &mut [u8]) {
    if bytes[4] == 1 {
        let mut block = Block1::from_bytes(bytes).unwrap();
        block.seal();
        bytes.copy_from_slice(block.as_bytes());
    } else {
        let mut block = Block090::from_bytes(bytes).unwrap();
        block.seal();
        bytes.copy_from_slice(block.as_bytes());
    }
}

fn parse_everywhere(
    bytes: &[u8],
    device: Sectors,
) -> impl Iterator<Item = (Version, Result<Superblock, crate::ondisk::SuperblockError>)> {
    let read: Vec<(u64, &[u8])> =
        probe_ranges(device).into_iter().map(|(offset, _)| (offset, bytes)).collect();
    identify(device, &read);
    Version::ALL
        .into_iter()
        .map(move |version| (version, Superblock::parse(version, bytes, device)))
}

fn print_everything(bytes: &[u8], device: Sectors) {
    let block = Block1::from_bytes(bytes).unwrap();
    let bitmap = crate::ondisk::bitmap_super::BitmapSuper::from_bytes(bytes).unwrap();
    let text = Examine1 { block: &block, bitmap: Some(&bitmap), device, homehost: Some("x") };
    assert!(text.to_string().len() > 100);
    assert!(bitmap.describe(Version::V1_2, Some(1)).to_string().len() > 100);
    let block = Block090::from_bytes(bytes).unwrap();
    assert!(
        Examine090 { block: &block, device_name: &|_, _| None, homehost: None }.to_string().len()
            > 100
    );
}
