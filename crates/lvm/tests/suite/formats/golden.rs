//! Texts and labels from LVM are printed back byte for byte, and have the requested contents.

use ashlar_block::Sectors;
use ashlar_lvm::metadata::{
    AreaVolume, LvFlag, PvFlag, RaidLevel, Segment, SegmentKind, VolumeGroup,
};
use ashlar_lvm::ondisk::MdaHeader;
use ashlar_lvm::text::{self, Form};
use ashlar_lvm::{LogicalVolume, Metadata, PhysicalVolume};

use crate::formats::cases::{CASES, case};

const BACKUP: Form = Form::Backup { utc_offset: 0 };

/// Reports the first difference of two texts.
#[track_caller]
fn assert_same(case: &str, found: &[u8], expected: &[u8]) {
    let (found, expected) = (String::from_utf8_lossy(found), String::from_utf8_lossy(expected));
    let lines = found.lines().zip(expected.lines()).enumerate();
    for (number, (found, expected)) in lines {
        assert_eq!(found, expected, "{case}, line {}", number + 1);
    }
    assert_eq!(found, expected, "{case}");
}

#[test]
fn texts_come_back_from_their_tree_as_lvm_wrote_them() {
    for case in CASES {
        let tree = text::parse(case.disk).expect(case.name);
        assert_same(case.name, &text::print(&tree, Form::Disk), case.disk);
        let tree = text::parse(case.backup).expect(case.name);
        assert_same(case.name, &text::print(&tree, BACKUP), case.backup);
    }
}

#[test]
fn texts_come_back_from_their_group_as_lvm_wrote_them() {
    for case in CASES {
        assert_same(case.name, &case.metadata().print(Form::Disk), case.disk);
        let backup = Metadata::parse(case.backup).expect(case.name);
        assert_same(case.name, &backup.print(BACKUP), case.backup);
    }
}

#[test]
fn each_form_can_be_made_of_the_other_one() {
    for case in CASES {
        let (mut disk, mut backup) = (case.metadata(), Metadata::parse(case.backup).expect("read"));
        let (of_disk, of_backup) = (disk.header().clone(), backup.header().clone());
        disk.set_header(of_backup);
        assert_same(case.name, &disk.print(BACKUP), case.backup);
        backup.set_header(of_disk);
        assert_same(case.name, &backup.print(Form::Disk), case.disk);
    }
}

/// The same group, rebuilt from its fields, without the kept parts of the text.
fn rebuilt(old: &VolumeGroup) -> VolumeGroup {
    let mut group = VolumeGroup::new(&*old.name, old.id, old.extent_size);
    group.seqno = old.seqno;
    group.flags = old.flags.clone();
    group.tags = old.tags.clone();
    group.allocation = old.allocation.clone();
    group.metadata_copies = old.metadata_copies;
    for old in &old.pvs {
        let size = old.dev_size.expect("always written");
        let mut pv = PhysicalVolume::new(old.id, size, old.pe_start, old.pe_count);
        pv.device = old.device.clone();
        pv.flags = old.flags.clone();
        pv.tags = old.tags.clone();
        pv.bootloader = old.bootloader;
        group.pvs.push(pv);
    }
    for old in &old.lvs {
        let segments = old.segments.iter().map(|old| {
            let mut segment = Segment::new(old.start, old.count, old.kind.clone());
            segment.tags = old.tags.clone();
            segment
        });
        let mut lv = LogicalVolume::new(&*old.name, old.id, old.is_visible(), segments.collect());
        lv.flags = old.flags.clone();
        lv.tags = old.tags.clone();
        lv.creation = old.creation.clone();
        lv.allocation = old.allocation.clone();
        lv.read_ahead = old.read_ahead;
        group.add_lv(lv);
    }
    group
}

#[test]
fn a_group_made_of_its_fields_is_printed_as_lvm_prints_it() {
    for name in [
        "empty",
        "striped",
        "snapshots",
        "merging",
        "raid",
        "mirror",
        "areas",
        "wrapped",
        "missing",
    ] {
        let case = case(name);
        let old = case.metadata();
        let new = Metadata::new(rebuilt(&old.group), old.header().clone());
        assert_same(name, &new.print(Form::Disk), case.disk);
        let backup = Metadata::parse(case.backup).expect(name);
        let new = Metadata::new(rebuilt(&backup.group), backup.header().clone());
        assert_same(name, &new.print(BACKUP), case.backup);
    }
}

#[test]
fn labels_and_headers_come_back_as_lvm_wrote_them() {
    for case in CASES {
        for (i, bytes) in case.pvs.iter().enumerate() {
            let (sector, label) = case.label(i);
            assert_eq!(label.encode(sector).expect("fits"), bytes[..512], "{} {i}", case.name);
            assert!(label.is_used(), "{} {i}", case.name);
            assert_eq!(label.metadata_areas.len(), case.headers(i).len());
            for (bytes, place) in case.headers(i).iter().zip(&label.metadata_areas) {
                let header = MdaHeader::parse(bytes, *place).expect("LVM's own header");
                assert_eq!(header.encode(), *bytes, "{} {i}", case.name);
            }
        }
    }
}

#[test]
fn areas_are_where_pvcreate_was_told_to_put_them() {
    let case = case("areas");
    let kib = |ranges: &[ashlar_lvm::ondisk::Range]| {
        ranges.iter().map(|r| (r.offset >> 10, r.size >> 10)).collect::<Vec<_>>()
    };
    let (_, two) = case.label(0);
    assert_eq!(kib(&two.metadata_areas), [(4, 1020), (97_280, 1024)]);
    let (_, boot) = case.label(1);
    let areas = &boot.extension.as_ref().expect("an extension").bootloader_areas;
    assert_eq!(kib(areas), [(1024, 2048)]);
    assert_eq!(kib(&boot.data_areas), [(3072, 0)]);
    assert_eq!(case.label(2).1.metadata_areas, []);
    let (sector, odd) = case.label(3);
    assert_eq!((sector, kib(&odd.metadata_areas)), (3, vec![(4, 508)]));
    let group = case.metadata().group;
    let boot = group.pvs[1].bootloader.expect("in the text, too");
    assert_eq!((boot.start.0, boot.size), (2048, Sectors(4096)));
}

#[test]
fn a_text_that_wraps_around_is_two_parts() {
    let case = case("wrapped");
    let (_, label) = case.label(0);
    let header = MdaHeader::parse(&case.headers(0)[0], label.metadata_areas[0]).expect("read");
    let text = header.current.expect("a text");
    let parts = header.locate(text).expect("fits").parts;
    assert!(parts.iter().all(|part| part.size > 0), "{parts:?}");
    assert_eq!(parts[1].offset, 4096 + 512);
}

fn kind<'a>(group: &'a VolumeGroup, lv: &str) -> &'a SegmentKind {
    &group.lv(lv).unwrap_or_else(|| panic!("no {lv}")).segments[0].kind
}

#[test]
fn linear_and_striped_volumes_are_what_they_were_made() {
    let group = case("linear").metadata().group;
    assert_eq!(group.tags, ["odd+tag_with.all-of/it=here!:&#", "second"]);
    assert_eq!(group.pvs[1].tags, ["pvtag"]);
    let both = group.lv("two_pvs").expect("made");
    assert_eq!((both.extents(), group.size(both)), (120, Sectors(120 << 11)));
    assert_eq!(both.tags, ["a#b"]);
    let mut pvs: Vec<usize> = both.pv_extents().map(|on| on.pv).collect();
    pvs.sort_unstable();
    assert_eq!(pvs, [0, 1]);
    assert_eq!(group.lv("apart").expect("made").read_ahead, Some(-1));
    assert!(group.lv("minor").expect("made").flags.contains(&LvFlag::FixedMinor));
    assert_eq!(group.lv("small").expect("made").segments.len(), 2);

    let group = case("striped").metadata().group;
    let stripes = group.lv("stripes").expect("made");
    let shape = |segment: &Segment| (segment.start, segment.count, segment.area_extents());
    assert_eq!(stripes.segments.iter().map(shape).collect::<Vec<_>>(), [(0, 12, 4), (12, 8, 4)]);
    let SegmentKind::Striped(first) = &stripes.segments[0].kind else { panic!("{stripes:?}") };
    assert_eq!((first.stripe_size, first.areas.len()), (Some(Sectors(128)), 3));
    assert!(first.areas.iter().all(|area| matches!(area.on, AreaVolume::Pv(_))));
}

#[test]
fn snapshots_are_found_from_both_ends() {
    let group = case("snapshots").metadata().group;
    let of_origin: Vec<_> = group.snapshots_of("origin").map(|found| found.snapshot).collect();
    assert_eq!(of_origin.len(), 2);
    let snap1 = group.snapshot_in("snap1").expect("a snapshot");
    assert_eq!(snap1.snapshot.origin, "origin");
    assert_eq!((snap1.snapshot.chunk_size, snap1.snapshot.merging), (Sectors(8), false));
    // The flags of both are the opposite of what users see.
    let seen = |name: &str| {
        let at = group.lvs.iter().position(|lv| lv.name == name).expect(name);
        (group.lvs[at].is_visible(), group.visible()[at])
    };
    assert_eq!((seen("snap1"), seen(&snap1.lv.name)), ((false, true), (true, false)));
    assert!(group.snapshot_in("origin").is_none() && group.snapshots_of("other").count() == 0);
    assert_eq!(group.users_of("snap2").map(|lv| &*lv.name).collect::<Vec<_>>().len(), 1);
    let group = case("merging").metadata().group;
    assert!(group.snapshot_in("snap1").expect("a snapshot").snapshot.merging);
    let snap1 = group.lvs.iter().position(|lv| lv.name == "snap1").expect("still there");
    assert!(!group.visible()[snap1], "hidden while it is merged");
}

#[test]
fn raid_legs_and_thin_volumes_are_what_they_were_made() {
    let group = case("raid").metadata().group;
    let raid = |name| {
        let SegmentKind::Raid(raid) = kind(&group, name) else { panic!("{name} is not a RAID") };
        raid.clone()
    };
    let r1 = raid("r1");
    assert_eq!((r1.level, r1.images.len(), r1.write_behind), (RaidLevel::Raid1, 2, Some(256)));
    assert_eq!(r1.images[1].meta.as_deref(), Some("r1_rmeta_1"));
    let leg = group.lv("r1_rimage_1").expect("a leg");
    assert!(leg.flags.contains(&LvFlag::WriteMostly) && !leg.is_visible());
    let r10 = raid("r10");
    assert_eq!((r10.images.len(), r10.max_recovery_rate), (4, Some(1000)));
    assert_eq!(raid("r0").images[0].meta, None);
    assert_eq!(raid("r0m").level, RaidLevel::Raid0Meta);
    assert_eq!((raid("r5").images.len(), raid("r6").images.len()), (3, 5));
    assert!(group.lvs.iter().all(|lv| lv.unsupported.is_none()));

    let group = case("thin").metadata().group;
    let SegmentKind::ThinPool(pool) = kind(&group, "pool") else { panic!("no pool") };
    assert_eq!((&*pool.data, pool.chunk_size), ("pool_tdata", Sectors(128)));
    let SegmentKind::Thin(thin) = kind(&group, "thinext") else { panic!("not thin") };
    assert_eq!((&*thin.pool, thin.external_origin.as_deref()), ("pool", Some("external")));
}

#[test]
fn volumes_of_unknown_kinds_are_named_and_their_neighbours_are_not() {
    let group = case("cache").metadata().group;
    let why = |name: &str| group.lv(name).expect(name).unsupported.clone();
    assert_eq!(why("plain"), None);
    assert_eq!(why("slow").as_deref(), Some("it is cached, and dm-cache is not supported"));
    assert!(why("slow2").expect("cached").contains("dm-cache"));
    assert!(why("slow3").expect("cached").contains("dm-writecache"));
    assert_eq!(why("slow_corig"), None);
}

#[test]
fn a_missing_physical_volume_is_marked_in_the_text() {
    let group = case("missing").metadata().group;
    assert!(group.pvs[1].flags.contains(&PvFlag::Missing));
    assert!(group.write_refusal().expect("refused").contains("missing"));
    assert_eq!(case("linear").metadata().group.write_refusal(), None);
}
