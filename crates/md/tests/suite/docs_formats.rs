//! Compares the tables, examples and drawings of docs/formats/md.md with the code.
//!
//! Tables are found by the heading above them and the title of their first column. After a field is added
//! to a struct, this does not compile until the field is listed; the document must have exactly the listed
//! fields.

use std::mem::{offset_of, size_of};

use ashlar_block::{Sector, Sectors};
use ashlar_md::internals::badblocks::BadBlocks;
use ashlar_md::internals::raid0::Zones;
use ashlar_md::internals::raid10::{FarSets, Geometry, Layout};
use ashlar_md::ondisk::bad_block_log::{self, BadRange};
use ashlar_md::ondisk::bitmap_super::{self, BitmapSuper};
use ashlar_md::ondisk::create::{CreateSpec, NewBitmap, NewMember, create};
use ashlar_md::ondisk::fields::MAX_ROLES;
use ashlar_md::ondisk::superblock_0_90::{Block090, Descriptor, MAX_DISKS, disk, state};
use ashlar_md::ondisk::superblock_1::{BLOCK_SIZE, Block1, HEADER_SIZE, Header1};
use ashlar_md::ondisk::{DeviceFlags, Features, Level, MAGIC, Role, Version, words};
use uuid::Uuid;

const DOCUMENT: &str = include_str!("../../../../docs/formats/md.md");

/// The text below a heading, up to the next one of any level.
fn section(heading: &str) -> &'static str {
    let start = DOCUMENT.find(&format!("# {heading}\n")).unwrap_or_else(|| panic!("no {heading}"));
    let text = &DOCUMENT[start + 2..];
    &text[..text.find("\n#").unwrap_or(text.len())]
}

/// The rows of the table below `heading` whose first column has the title `first`.
fn table(heading: &str, first: &str) -> Vec<Vec<&'static str>> {
    let cells = |line: &'static str| {
        line.trim_matches('|').split('|').map(str::trim).collect::<Vec<&str>>()
    };
    let mut lines =
        section(heading).lines().skip_while(|l| !l.starts_with(&format!("| {first} |")));
    let titles = cells(lines.next().unwrap_or_else(|| panic!("{heading}: no table of {first}")));
    let rows: Vec<_> = lines.skip(1).take_while(|l| l.starts_with('|')).map(cells).collect();
    for row in &rows {
        assert_eq!(row.len(), titles.len(), "{row:?}");
    }
    rows
}

fn number(cell: &str) -> u64 {
    cell.parse().unwrap_or_else(|_| panic!("{cell} is not a number"))
}

fn hex(cell: &str) -> u64 {
    u64::from_str_radix(cell.trim_matches('`'), 16).unwrap_or_else(|_| panic!("{cell} is not hex"))
}

/// Offset, size and name of a field.
type Field = (usize, usize, &'static str);

fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// All fields of a struct. The pattern compiles only if it names every field.
macro_rules! fields {
    ($t:ident { $($field:ident)+ }) => {{
        fn all_are_named(it: &$t) {
            let $t { $($field: _),+ } = it;
        }
        let _: fn(&$t) = all_are_named;
        let fields: Vec<Field> = vec![
            $((offset_of!($t, $field), size_of_field(|it: &$t| &it.$field), stringify!($field))),+
        ];
        (fields, size_of::<$t>())
    }};
}

fn compare_fields(heading: &str, (fields, size): (Vec<Field>, usize)) {
    let rows = table(heading, "offset");
    let documented: Vec<Field> =
        rows.iter().map(|r| (number(r[0]) as usize, number(r[1]) as usize, r[2])).collect();
    assert_eq!(documented, fields, "{heading}");
    let mut end = 0;
    for (offset, len, name) in documented {
        assert_eq!(offset, end, "{heading}: a gap before {name}");
        end += len;
    }
    assert_eq!(end, size, "{heading}: bytes");
}

#[test]
fn every_field_is_documented_with_its_offset_and_size() {
    compare_fields(
        "Header",
        fields!(Header1 {
            magic major_version feature_map pad0 set_uuid set_name ctime level layout size chunksize
            raid_disks bitmap_offset new_level reshape_position delta_disks new_layout new_chunk
            new_offset data_offset data_size super_offset recovery_offset dev_number
            cnt_corrected_read device_uuid devflags bblog_shift bblog_size bblog_offset utime events
            resync_offset sb_csum max_dev logical_block_size pad3
        }),
    );
    compare_fields(
        "Block",
        fields!(Block090 {
            md_magic major_version minor_version patch_version gvalid_words set_uuid0 ctime level size
            nr_disks raid_disks md_minor not_persistent set_uuid1 set_uuid2 set_uuid3
            gstate_creserved utime state active_disks working_disks failed_disks spare_disks sb_csum
            events_lo events_hi cp_events_lo cp_events_hi recovery_cp reshape_position new_level
            delta_disks new_layout new_chunk logical_block_size gstate_sreserved layout chunk_size
            root_pv root_block pstate_reserved disks this_disk
        }),
    );
    compare_fields(
        "Descriptor",
        fields!(Descriptor { number major minor raid_disk state reserved }),
    );
    compare_fields(
        "Bitmap superblock",
        fields!(BitmapSuper {
            magic version uuid events events_cleared sync_size state chunksize daemon_sleep write_behind
            sectors_reserved nodes cluster_name pad
        }),
    );
    assert_eq!(offset_of!(Block1, dev_roles), HEADER_SIZE);
    assert!(section("Role table").contains(&format!("from byte {HEADER_SIZE} on")));
    assert!(section("Superblock 1.x").contains(&format!("more than {BLOCK_SIZE} bytes")));
    let descriptors = MAX_DISKS * size_of::<Descriptor>();
    assert!(
        section("Block").contains(&format!("| {descriptors} | disks | {MAX_DISKS} descriptors |"))
    );
}

/// The meaning of a field in the table below `heading`.
fn meaning(heading: &str, field: &str) -> &'static str {
    let rows = table(heading, "offset");
    rows.iter().find(|row| row[2] == field).unwrap_or_else(|| panic!("no {field}"))[3]
}

#[test]
fn magic_numbers_and_the_bits_of_small_fields_are_the_codes() {
    for (heading, field, magic) in [
        ("Header", "magic", MAGIC),
        ("Block", "md_magic", MAGIC),
        ("Bitmap superblock", "magic", bitmap_super::MAGIC),
    ] {
        let text = meaning(heading, field).split(',').next().expect("a magic");
        assert_eq!(hex(text), u64::from(magic), "{heading}");
    }
    let raw = |write_mostly, failfast| DeviceFlags { write_mostly, failfast }.merge_into(0);
    assert_eq!((raw(true, false), raw(false, true)), (1 << 0, 1 << 1));
    assert_eq!(meaning("Header", "devflags"), "bit 0 write-mostly, bit 1 failfast");

    let bit = u32::trailing_zeros;
    let [clean, errors, bitmap] = [state::CLEAN, state::ERRORS, state::BITMAP_PRESENT].map(bit);
    let text = format!("bit {clean} clean, {errors} errors, {bitmap} a bitmap is there");
    assert_eq!(meaning("Block", "state"), text);

    let bits = [disk::FAULTY, disk::ACTIVE, disk::SYNC, disk::REMOVED, disk::WRITE_MOSTLY];
    let [faulty, active, sync, removed, mostly] = bits.map(bit);
    let failfast = bit(disk::FAILFAST);
    let text = format!(
        "bit {faulty} faulty, {active} active, {sync} in sync, {removed} removed, {mostly} write-mostly, {failfast} failfast"
    );
    assert_eq!(meaning("Descriptor", "state"), text);

    use bitmap_super::state::{CLEAN, FIRST_USE, HOST_ENDIAN, STALE, WRITE_ERROR};
    let [stale, error, first, clean, host] =
        [STALE, WRITE_ERROR, FIRST_USE, CLEAN, HOST_ENDIAN].map(bit);
    let text = format!(
        "bit {stale} stale, {error} write error, {first} first use, {clean} clean ({first} and {clean} lockless only), {host} host byte order"
    );
    assert_eq!(meaning("Bitmap superblock", "state"), text);
    let text = format!(
        "{} host byte order, {} usual, {} cluster, {} lockless",
        bitmap_super::VERSION_HOST_ENDIAN,
        bitmap_super::VERSION_PORTABLE,
        bitmap_super::VERSION_CLUSTERED,
        bitmap_super::VERSION_LOCKLESS
    );
    assert_eq!(meaning("Bitmap superblock", "version"), text);
}

#[test]
fn places_of_superblocks_are_documented() {
    let rows = table("Where the superblock is", "version");
    assert_eq!(rows.len(), Version::ALL.len());
    for (row, version) in rows.iter().zip(Version::ALL) {
        assert_eq!(row[0], version.to_string());
        assert_eq!(number(row[2]), version.min_device().0, "{version}");
        let most = if version == Version::V0_90 { MAX_DISKS } else { MAX_ROLES };
        assert_eq!(number(row[3]), most as u64, "{version}");
    }
    for row in table("Where the superblock is", "device") {
        for (cell, version) in row[1..].iter().zip(Version::ALL) {
            let place = version.super_offset(Sectors(number(row[0])));
            assert_eq!(*cell, place.map_or("-".into(), |at| at.to_string()), "{version} {row:?}");
        }
    }
}

#[test]
fn roles_levels_and_feature_bits_are_documented() {
    let role = |raw: u64| Role::from_raw(u16::try_from(raw).expect("16 bits"));
    let named = |text: &str| match text {
        "journal of a RAID 4, 5 or 6" => Role::Journal,
        "failed" => Role::Faulty,
        "spare, or an unused index" => Role::Spare,
        other => panic!("{other}"),
    };
    let rows = table("Role table", "value");
    assert_eq!(rows.len(), 4);
    for row in &rows[1..] {
        assert_eq!(role(number(row[0])), named(row[1]), "{row:?}");
    }
    assert_eq!(role(number(rows[1][0]) - 1), Role::Active(65532), "a lower number is special, too");

    let rows = table("Levels", "number");
    for raw in -300..300 {
        let row = rows.iter().find(|row| row[0] == raw.to_string());
        assert_eq!(row.map(|row| row[1]), Level::from_raw(raw).name(), "{raw}");
        let support = row.map_or("", |row| row[2]);
        let level = Level::from_raw(raw);
        let is_run = matches!(level, Level::Linear | Level::Raid0 | Level::Raid1 | Level::Raid10);
        let expected = if is_run || level.has_parity() {
            "runs it"
        } else {
            level.name().map_or("", |_| "prints it")
        };
        assert_eq!(support, expected, "{raw}");
    }

    let features = [
        ("BITMAP_OFFSET", Features::BITMAP_OFFSET),
        ("RECOVERY_OFFSET", Features::RECOVERY_OFFSET),
        ("RESHAPE_ACTIVE", Features::RESHAPE_ACTIVE),
        ("BAD_BLOCKS", Features::BAD_BLOCKS),
        ("REPLACEMENT", Features::REPLACEMENT),
        ("RESHAPE_BACKWARDS", Features::RESHAPE_BACKWARDS),
        ("NEW_OFFSET", Features::NEW_OFFSET),
        ("RECOVERY_BITMAP", Features::RECOVERY_BITMAP),
        ("CLUSTERED", Features::CLUSTERED),
        ("JOURNAL", Features::JOURNAL),
        ("PPL", Features::PPL),
        ("MULTIPLE_PPLS", Features::MULTIPLE_PPLS),
        ("RAID0_LAYOUT", Features::RAID0_LAYOUT),
    ];
    let all = features.iter().fold(Features::default(), |all, (_, one)| all | *one);
    assert_eq!(all, Features::all(), "a feature is missing above");
    let rows = table("Feature bits", "bit");
    let documented: Vec<(&str, Features)> =
        rows.iter().map(|row| (row[1], Features::from_bits_retain(1 << number(row[0])))).collect();
    assert_eq!(documented, features);
}

#[test]
fn bad_block_words_mean_what_is_documented() {
    let rows = table("Bad block log", "word");
    assert!(!rows.is_empty());
    for row in rows {
        let shift = u8::try_from(number(row[1])).expect("a shift");
        let mut log = vec![0xff; 512];
        log[..8].copy_from_slice(&hex(row[0]).to_le_bytes());
        let range = BadRange { start: Sector(number(row[2])), len: Sectors(number(row[3])) };
        assert_eq!(bad_block_log::parse(&log, shift), Ok(vec![range]), "{row:?}");
        let image = BadBlocks::from_log(&log, shift).unwrap().take_image().unwrap();
        assert_eq!(image.bytes(), log, "{row:?}");
    }
    let text = section("Bad block log");
    assert!(text.contains(&format!("Up to {} sectors", bad_block_log::MAX_LOG_SECTORS)));
    assert!(text.contains(&format!("1 to {} as the kernel", bad_block_log::MAX_ENTRY_LEN)));
}

fn spec(version: Version, device: u64, chunk: u64, members: u32) -> CreateSpec {
    let member = NewMember {
        device: Sectors(device),
        device_uuid: Uuid::nil(),
        flags: DeviceFlags::default(),
    };
    CreateSpec {
        version,
        level: Level::Raid10,
        layout: None,
        chunk: Some(Sectors(chunk)),
        raid_devices: members,
        members: vec![Some(member); members as usize],
        size: None,
        data_offset: None,
        set_uuid: Uuid::nil(),
        name: String::new(),
        ctime: 0,
        assume_clean: true,
        bitmap: NewBitmap::None,
        write_behind: 0,
        daemon_sleep: 5,
        ppl: false,
        bad_block_log: true,
        numbers: Default::default(),
    }
}

#[test]
fn new_arrays_have_the_documented_data_offsets_and_role_tables() {
    let made = |version, device, chunk, members| {
        let made = create(&spec(version, device, chunk, members)).expect("an array");
        made.into_iter().next().flatten().expect("a member").superblock
    };
    let rows = table("The data area", "device, sectors");
    assert!(!rows.is_empty());
    for row in rows {
        let [device, chunk, wanted_1_2, wanted_1_0] = row[..] else { panic!("{row:?}") };
        for (version, wanted) in
            [(Version::V1_2, wanted_1_2), (Version::V1_1, wanted_1_2), (Version::V1_0, wanted_1_0)]
        {
            let sb = made(version, number(device), number(chunk), 4);
            assert_eq!(sb.data_offset.0, number(wanted), "{version} {row:?}");
        }
    }
    let text = "(128 for up to 128 members)";
    assert!(section("Role table").contains(text));
    for (members, roles) in [(2, 128), (128, 128), (129, 384)] {
        let sb = made(Version::V1_2, 1 << 21, 8, members);
        assert_eq!(sb.block_1().expect("1.2").role_count(), roles, "{members}");
    }
}

#[test]
fn raid10_layout_words_have_the_documented_names_and_bits() {
    let rows = table("RAID 10", "name");
    assert!(rows.len() >= 6);
    for row in rows {
        let word = words::layout(Level::Raid10, row[0]).expect("a name of mdadm's");
        assert_eq!(u64::from(word), hex(row[1]), "{row:?}");
        let layout = Layout::from_bits(word).expect("a layout");
        assert_eq!(u64::from(layout.near), number(row[2]), "{row:?}");
        assert_eq!(u64::from(layout.far), number(row[3]), "{row:?}");
        assert_eq!(layout.offset, row[4] == "yes", "{row:?}");
    }
    let bits: Vec<&str> = table("RAID 10", "bits").iter().map(|row| row[0]).collect();
    assert_eq!(bits, ["0 to 7", "8 to 15", "16", "17, 18", "19 to 31"]);
    let (near, far) = (Layout::from_bits(0x1ff), Layout::from_bits(0xff01));
    assert_eq!((near.map(|l| l.near), far.map(|l| l.far)), (Ok(255), Ok(255)));
    assert_eq!(Layout::from_bits(0x1_0201).map(|l| l.offset), Ok(true));
    let modes = [0, 1, 2].map(|mode| Layout::from_bits(mode << 17 | 0x201).map(|l| l.far_sets));
    assert_eq!(modes, [Ok(FarSets::Whole), Ok(FarSets::MembersByFar), Ok(FarSets::Copies)]);
    assert!(Layout::from_bits(1 << 19 | 0x201).is_err());
}

/// Draws the chunks, of one sector each, in these rows of the members; `at` says which one lies where.
fn draw(disks: usize, rows: u64, at: impl Fn(usize, Sector) -> Option<Sector>) -> String {
    let cell = |disk, row| {
        let chunk = at(disk, Sector(row)).map_or("-".to_owned(), |chunk| chunk.0.to_string());
        format!("{chunk:>4}")
    };
    (0..rows).map(|row| (0..disks).map(|disk| cell(disk, row)).collect::<String>() + "\n").collect()
}

/// Draws a RAID 0 whose members have these numbers of chunks.
fn draw_raid0(layout: u32, chunks: &[u64]) -> String {
    let members: Vec<Sectors> = chunks.iter().map(|n| Sectors(*n)).collect();
    let zones = Zones::new(&members, Sectors(1), layout).expect("an array");
    let rows = chunks.iter().copied().max().unwrap_or(0);
    draw(chunks.len(), rows, |disk, sector| zones.unmap(disk, sector))
}

/// Draws the first `rows` rows of every area of a RAID 10.
fn draw_raid10(layout: u32, disks: usize, rows: u64) -> String {
    let rows = rows * u64::from(Layout::from_bits(layout).expect("a layout").far);
    let geometry = Geometry::new(layout, disks, Sectors(1), Sectors(rows)).expect("an array");
    draw(disks, rows, |disk, sector| geometry.unmap(disk, sector))
}

#[test]
fn drawings_are_drawn_by_the_code() {
    let mut drawings = 0;
    for block in DOCUMENT.split("```draw ").skip(1) {
        let (what, rest) = block.split_once('\n').expect("a block");
        let (drawn, _) = rest.split_once("```").expect("an end");
        let expected = match what.split(' ').collect::<Vec<_>>()[..] {
            ["raid0", layout, chunks] => {
                let chunks: Vec<u64> = chunks.split(',').map(number).collect();
                draw_raid0(number(layout) as u32, &chunks)
            }
            [name, disks, rows] => {
                let word = words::layout(Level::Raid10, name).expect("a name of mdadm's");
                draw_raid10(word, number(disks) as usize, number(rows))
            }
            _ => panic!("cannot draw {what}"),
        };
        assert_eq!(drawn, expected, "{what}");
        drawings += 1;
    }
    assert!(drawings >= 9, "{drawings}");
}
