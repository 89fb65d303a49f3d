//! New superblocks are mdadm's, byte for byte.

use ashlar_block::units::Sectors;
use uuid::Uuid;
use zerocopy::IntoBytes;

use super::{image_text, unpack};
use crate::ondisk::create::DeviceNumbers;
use crate::ondisk::create::{CreateError, CreateSpec, NewBitmap, NewMember, create, full_name};
use crate::ondisk::{DeviceFlags, Level, Superblock, Version};

const SET_UUID: Uuid = Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
const DEVICE_UUID: Uuid = Uuid::from_u128(0xa0a1_a2a3_a4a5_a6a7_a8a9_aaab_acad_aeaf);

/// A case in the format of `tests/images/md/create/cases.txt`.
pub(super) fn spec(case: &str) -> CreateSpec {
    let columns: Vec<&str> = case.split_whitespace().collect();
    let [version, level, layout, chunk, size, bitmap, options, raid_devices, members @ ..] =
        &columns[..]
    else {
        panic!("too few columns: {case}");
    };
    let kib = |text: &str| (text != "-").then(|| Sectors(text.parse::<u64>().unwrap() * 2));
    let option = |key: &str| {
        options.split(',').find_map(|option| option.strip_prefix(key)?.strip_prefix('='))
    };
    let flag = |key: &str| options.split(',').any(|option| option == key);
    let offset = |text: &str| {
        let (number, unit) = text.split_at(text.len() - 1);
        let sectors = if unit == "M" { 2048 } else { 2 };
        Sectors(number.parse::<u64>().unwrap() * sectors)
    };
    let failfast = flag("failfast");
    let member = |text: &&str| {
        (*text != "missing").then(|| NewMember {
            device: Sectors(text.trim_end_matches('w').parse().unwrap()),
            device_uuid: DEVICE_UUID,
            flags: DeviceFlags { write_mostly: text.ends_with('w'), failfast },
        })
    };
    CreateSpec {
        version: Version::ALL.into_iter().find(|known| known.to_string() == *version).unwrap(),
        level: Level::from_raw(level.parse().unwrap()),
        layout: match *layout {
            "-" => None,
            "original" => Some(1),
            "alternate" => Some(2),
            "dangerous" => Some(0),
            raid10 => {
                let copies: u32 = raid10[1..].parse().unwrap();
                Some(match &raid10[..1] {
                    "n" => 0x100 + copies,
                    "f" => 1 + (copies << 8),
                    _ => 0x1_0001 + (copies << 8),
                })
            }
        },
        chunk: kib(chunk),
        raid_devices: raid_devices.parse().unwrap(),
        members: members.iter().map(member).collect(),
        size: kib(size),
        data_offset: option("data-offset").map(offset),
        set_uuid: SET_UUID,
        name: full_name(option("homehost"), option("name").unwrap_or("t")),
        ctime: 1_700_000_000,
        assume_clean: flag("assume-clean"),
        bitmap: match *bitmap {
            "auto" => NewBitmap::Auto,
            "none" => NewBitmap::None,
            "internal" => NewBitmap::Internal { chunk: None },
            chunk => NewBitmap::Internal { chunk: Some(chunk.parse().unwrap()) },
        },
        write_behind: option("write-behind").map_or(0, |text| text.parse().unwrap()),
        daemon_sleep: option("delay").map_or(5, |text| text.parse().unwrap()),
        ppl: false,
        bad_block_log: !flag("no-bad-block-log"),
        numbers: DeviceNumbers { array: 0, members: loop_devices(members) },
    }
}

/// The numbers of consecutive loop devices for the members that are not missing.
fn loop_devices(members: &[&str]) -> Vec<(u32, u32)> {
    let mut free = 0..;
    let number = |member: &&str| match *member {
        "missing" => (0, 0),
        _ => (7, free.next().unwrap()),
    };
    members.iter().map(number).collect()
}

#[test]
fn every_case_gives_what_mdadm_wrote_byte_for_byte() {
    let expected = image_text("create/expect.txt");
    let mut compared = 0;
    for record in expected.split("case ").skip(1) {
        let (case, lines) = record.split_once('\n').unwrap();
        let made = create(&spec(case));
        if lines.trim() == "refused" {
            assert!(made.is_err(), "mdadm refuses {case}");
            continue;
        }
        if case.ends_with("- 2 128 128") {
            // mdadm creates an array of size 0.
            assert!(matches!(made, Err(CreateError::NoRoom { number: 0, .. })), "{case}");
            continue;
        }
        let made = made.unwrap_or_else(|error| panic!("{case}: {error}"));
        let mut number = 0;
        for line in lines.lines() {
            let (label, packed) = line.split_once(' ').unwrap();
            let wanted = unpack(packed);
            if label != "bitmap" {
                number = label.parse().unwrap();
            }
            let new = made[number].as_ref().unwrap();
            if label == "bitmap" {
                compare_bitmap(case, new.bitmap.as_ref().unwrap(), &wanted);
                continue;
            }
            let (block, used) = match (new.superblock.block_1(), new.superblock.block_0_90()) {
                (Some(block), _) => (block.as_bytes(), block.used_bytes()),
                (None, Some(block)) => (block.as_bytes(), block.as_bytes().len()),
                (None, None) => unreachable!("no superblock"),
            };
            assert_eq!(wanted.len(), used, "{case}, member {number}: length");
            for (at, (ours, theirs)) in block.iter().zip(&wanted).enumerate() {
                assert_eq!(ours, theirs, "{case}, member {number}: byte {at} of the superblock");
            }
            compared += 1;
        }
    }
    assert!(compared > 200, "only {compared} superblocks were compared");
}

fn compare_bitmap(case: &str, ours: &crate::ondisk::bitmap_super::BitmapSuper, wanted: &[u8]) {
    assert_eq!(ours.as_bytes(), &wanted[..256], "{case}: bitmap superblock");
    let len = (ours.total_bytes(4096) as usize).min(wanted.len());
    assert!(wanted[256..len].iter().all(|byte| *byte == 0xff), "{case}: bits are set");
}

#[test]
fn what_is_created_can_be_read_back() {
    for record in image_text("create/expect.txt").split("case ").skip(1) {
        let (case, _) = record.split_once('\n').unwrap();
        let Ok(made) = create(&spec(case)) else { continue };
        for new in made.into_iter().flatten() {
            let bytes = new.superblock.encode(4096).unwrap();
            let (version, device) = (new.superblock.version, new.superblock.device_size());
            assert_eq!(Superblock::parse(version, &bytes, device).unwrap(), new.superblock);
        }
    }
}

#[test]
fn flags_of_members_are_in_superblocks_of_0_90() {
    let made = create(&spec("0.90 1 - - - none assume-clean 3 204800 204800w missing")).unwrap();
    let flags = |number: usize| made[number].as_ref().unwrap().superblock.flags;
    assert!(flags(1).write_mostly && !flags(0).write_mostly);
    // Members without device numbers are files; they still count.
    let mut files = spec("0.90 1 - - - none - 1 204800 204800");
    files.numbers = DeviceNumbers::default();
    let mut block =
        create(&files).unwrap()[0].as_ref().unwrap().superblock.block_0_90().unwrap().clone();
    let before = block.clone();
    block.fail_member(5);
    assert_eq!((block.spare_disks, block.active_disks), (before.spare_disks, before.active_disks));
}

#[test]
fn a_name_gets_the_host_before_it_if_that_fits() {
    assert_eq!(full_name(Some("box"), "0"), "box:0");
    assert_eq!(full_name(Some("box"), "other:0"), "other:0");
    assert_eq!(full_name(None, "0"), "0");
    let long = "0123456789012345678901234567";
    assert_eq!(full_name(Some("box"), &long[..27]), format!("box:{}", &long[..27]));
    assert_eq!(full_name(Some("box"), long), long);
    assert_eq!(
        full_name(None, "0123456789012345678901234567890123"),
        "0123456789012345678901234567890"
    );
}

#[test]
fn what_makes_no_sense_is_refused_with_its_reason() {
    let refusals = [
        (
            "0.90 0 - - - auto - 2 204800 204800",
            "version 0.90 superblocks: raid0 cannot say its layout",
        ),
        (
            "0.90 1 - - - none - 2 10737418240 10737418240",
            "version 0.90 superblocks: less than 4 TiB of each member, or a smaller size is given",
        ),
        (
            "0.90 1 - - - none data-offset=1M 2 204800 204800",
            "raid1 has no data offset in version 0.90",
        ),
        ("1.2 -4 - - - auto - 2 204800 204800", "new arrays of multipath are not supported"),
        ("1.2 1 - - - auto - 3 204800 204800", "2 members given for 3 devices"),
        ("1.2 0 - - - auto - 2 204800 missing", "too many members are missing for raid0"),
        ("1.2 1 - - - auto - 2 missing missing", "too many members are missing for raid1"),
        ("1.2 0 - - - auto - 1 204800 204800", "raid0 cannot use spares"),
        ("1.2 1 - 64 - auto - 2 204800 204800", "raid1 has no chunk size"),
        ("1.2 1 n2 - - auto - 2 204800 204800", "raid1 has no layout"),
        ("1.2 0 - - - internal - 2 204800 204800", "raid0 has no bitmap"),
        (
            "1.0 1 - - - auto data-offset=1M 2 204800 204800",
            "raid1 has no data offset in version 1.0",
        ),
        (
            "1.2 10 n2 512 100 none - 2 204800 204800",
            "size is below the chunk size of 1024 sectors",
        ),
        ("1.2 1 - - - none - 2 204800 100", "member 1 with 100 sectors has no room for data"),
        (
            "1.2 1 - - 100000 none - 2 204800 102400",
            "member 1 has room for 100352 sectors of data, not 200000",
        ),
        (
            "1.2 1 - - - 1000000 - 2 204800 204800",
            "bitmap chunk of 1000000 bytes is not a power of two from 4096 up to 2 GiB",
        ),
        (
            "1.2 1 - - - auto - 2 6597069766656 6597069766656",
            "the array is too large for a bitmap: its bits stand for at most 2 GiB each",
        ),
        (
            "1.2 10 n3 - - none - 2 204800 204800",
            "md superblock version 1.2 at sector 8: raid10 layout 0x103 makes 3 copies on 2 devices",
        ),
        (
            "1.2 10 n2 12 - none - 2 204800 204800",
            "md superblock version 1.2 at sector 8: raid10 with a chunk of 12288 bytes, not a power of two",
        ),
    ];
    for (case, reason) in refusals {
        let error = create(&spec(case)).expect_err(case);
        assert_eq!(error.to_string(), reason, "{case}");
    }
    let many = format!("0.90 1 - - - none - 2{}", " 20480".repeat(28));
    let error = create(&spec(&many)).unwrap_err();
    assert!(error.to_string().contains("at most 27 members"), "{error}");
    let mut named = spec("1.2 1 - - - auto - 2 204800 204800");
    named.name = "x".repeat(32);
    assert!(create(&named).is_err());
}
