//! Invalid texts and labels: one clear error each, in bounded time and memory.

use ashlar_block::Sectors;
use ashlar_lvm::Metadata;
use ashlar_lvm::metadata::MetadataError;
use ashlar_lvm::ondisk::layout::{LABEL_ID, SECTOR_SIZE};
use ashlar_lvm::ondisk::{
    LabelError, MdaError, MdaHeader, PvLabel, Range, RawText, crc, find_label,
};
use ashlar_lvm::text::{self, Form, MAX_DEPTH, Problem};
use ashlar_sim::Rng;

use crate::formats::cases::{CASES, case};

fn text_of(name: &str) -> String {
    String::from_utf8(case(name).disk.to_vec()).expect("ASCII")
}

#[track_caller]
fn error_of(text: &str) -> MetadataError {
    Metadata::parse(text.as_bytes()).expect_err("wrong")
}

/// The error for the text with one replacement; `from` must exist.
#[track_caller]
fn changed(name: &str, from: &str, to: &str) -> String {
    let text = text_of(name);
    assert!(text.contains(from), "{name} has no {from}");
    error_of(&text.replacen(from, to, 1)).to_string()
}

#[test]
fn errors_of_texts_have_a_line_and_what_is_wrong_there() {
    for (text, line, expected) in [
        ("a = 1\nb { c", 2, "expected '=' or '{', found the end of the text"),
        ("a = 1\n}", 2, "expected a name, found '}'"),
        ("a {\n\n1 = ]\n}", 3, "expected a value, found ']'"),
        ("a = \"x\ny", 1, "the string that begins here never ends"),
        ("a = [1, 2", 1, "expected a value, found the end of the text"),
        ("a = [1, [2]]", 1, "expected a value, found '['"),
        ("a = 99999999999999999999", 1, "the number 99999999999999999999 is too large"),
        ("a = -", 1, "expected a value, found the number -"),
        ("a = 08", 1, "the number 08 is too large"),
        ("\n\n{", 3, "expected a name, found '{'"),
        ("a = 1.2.3", 1, "expected a number, found the number 1.2.3"),
    ] {
        let error = text::parse(text.as_bytes()).expect_err(text);
        assert_eq!(error.to_string(), format!("line {line}: {expected}"), "{text}");
    }
}

#[test]
fn what_libdevmapper_accepts_is_accepted() {
    let text = "# comment\n a=1 b { c = [ 1 2,,3 ] }\td = 'x\\y' e = \"q\\\"\\\\\\z\" f=bare\ng = 010 \
                h = +7 i = [] \"odd key\" = .5 creation_time = 99999999999999999999";
    let tree = text::parse(text.as_bytes());
    // Two commas are an error.
    assert!(tree.is_err());
    let tree = text::parse(text.replace(",,", ", ").as_bytes()).expect("a tree");
    let ints: Vec<_> = ["a", "g", "h", "creation_time"].iter().map(|key| tree.int(key)).collect();
    assert_eq!(ints, [Some(1), Some(8), Some(7), Some(1_527_120_000)]);
    assert_eq!(
        [tree.str("d"), tree.str("e"), tree.str("f")],
        [Some("x\\y"), Some("q\"\\\\z"), Some("bare")]
    );
    let list = tree.section("b").and_then(|b| b.node("c")).and_then(|c| c.as_list());
    assert_eq!(list.map(<[_]>::len), Some(3));
    let again = text::parse(&text::print(&tree, Form::Disk)).expect("a tree");
    assert_eq!(text::print(&again, Form::Disk), text::print(&tree, Form::Disk));
}

#[test]
fn nesting_and_size_are_bounded() {
    let nested = "a {".repeat(1_000_000);
    let error = text::parse(nested.as_bytes()).expect_err("deep");
    assert_eq!(error.problem, Problem::Nesting(MAX_DEPTH));
    let many = "a=1 ".repeat(text::MAX_ENTRIES + 1);
    assert_eq!(
        text::parse(many.as_bytes()).expect_err("many").problem,
        Problem::Entries(text::MAX_ENTRIES)
    );
    let large = vec![b' '; text::MAX_BYTES + 1];
    assert_eq!(text::parse(&large).expect_err("large").problem, Problem::Size(text::MAX_BYTES));
}

#[test]
fn a_truncated_text_is_an_error_wherever_it_ends() {
    for case in CASES {
        let whole = case.metadata();
        for len in 0..case.disk.len() {
            match Metadata::parse(&case.disk[..len]) {
                // Only the comment after the last number is missing, or digits of that number.
                Ok(short) => assert_eq!(short.group, whole.group, "{} {len}", case.name),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    }
}

#[test]
fn changed_bytes_never_panic() {
    let mut rng = Rng::new(5);
    for round in 0..20_000 {
        let case = &CASES[rng.index(CASES.len())];
        let mut text = case.disk.to_vec();
        for _ in 0..1 + rng.below(4) {
            let at = rng.index(text.len());
            text[at] = *b"\"[]{}=,#0129-. \n\\a\xff\0".get(rng.index(20)).unwrap_or(&b'+');
        }
        if let Ok(metadata) = Metadata::parse(&text) {
            let again = Metadata::parse(&metadata.print(Form::Disk)).expect("printed");
            assert_eq!(again.group.seqno, metadata.group.seqno, "{round}");
        }
    }
}

#[test]
fn impossible_groups_are_refused_with_the_reason() {
    for (name, from, to, expected) in [
        (
            "linear",
            "extent_size = 2048",
            "extent_size = 0",
            "must be a power of two, or a multiple",
        ),
        (
            "linear",
            "extent_size = 2048",
            "extent_size = 2047",
            "must be a power of two, or a multiple",
        ),
        (
            "linear",
            "extent_size = 2048",
            "extent_size = \"big\"",
            "\"extent_size\" must be a number",
        ),
        ("linear", "seqno = ", "seqyes = ", "vg: \"seqno\" is missing"),
        ("linear", "vg {", "v/g {", "is not a valid name"),
        ("linear", "small {", "two_pvs {", "two with the name \"two_pvs\""),
        ("linear", "pv1 {", "pv0 {", "two with the name \"pv0\""),
        ("linear", "\"pv0\", 0\n", "\"pv7\", 0\n", "there is no volume \"pv7\""),
        ("linear", "extent_count = 95", "extent_count = 4000000000", "extents"),
        ("linear", "start_extent = 7", "start_extent = 8", "should begin at extent 7"),
        ("linear", "start_extent = 7", "start_extent = 6", "should begin at extent 7"),
        ("linear", "segment_count = 2", "segment_count = 3", "the number of segments that follow"),
        ("linear", "pe_count = 95", "pe_count = 9", "are used, which has 9"),
        ("linear", "pe_start = 2048", "pe_start = 9223372036854775000", "more extents than"),
        ("linear", "contents = \"Text", "contents = \"Tex", "this is not LVM2 metadata"),
        ("linear", "version = 1", "version = 2", "this is not LVM2 metadata"),
        ("striped", "stripe_count = 3", "stripe_count = 4000000000", "as many pairs"),
        ("striped", "extent_count = 12", "extent_count = 13", "a multiple of the stripe count"),
        ("striped", "stripe_size = 128", "stripe_size = 127", "a power of two"),
        ("snapshots", "origin = \"origin\"", "origin = \"gone\"", "there is no volume \"gone\""),
        ("snapshots", "chunk_size = 8", "chunk_size = 0", "a power of two"),
        ("snapshots", "cow_store = \"snap1\"", "cow_store = \"snapshot0\"", "is a part of itself"),
        ("raid", "device_count = 2", "device_count = 3", "as many volumes as the RAID has legs"),
        ("thin", "pool = \"pool_tdata\"", "pool = \"pool\"", "is a part of itself"),
        ("thin", "device_id = 1", "device_id = 16777216", "a number of 24 bits"),
        ("thin", "chunk_size = 128", "chunk_size = 64", "from 128 to 2097152"),
    ] {
        let error = changed(name, from, to);
        assert!(error.contains(expected), "{name}, {from} to {to}: {error}");
    }
}

#[test]
fn extents_that_are_used_twice_name_both_users() {
    // The second segment of this volume is after other volumes.
    let error = changed("snapshots", "\"pv0\", 16", "\"pv0\", 15");
    assert!(error.contains("extent 15 of physical volume"), "{error}");
    assert!(error.contains("is used by both origin and other"), "{error}");
}

#[test]
fn uuids_are_distinct() {
    let text = text_of("linear");
    let metadata = case("linear").metadata();
    let ids: Vec<String> = metadata.group.lvs.iter().map(|lv| lv.id.to_string()).collect();
    let error = error_of(&text.replacen(&ids[0], &ids[1], 1)).to_string();
    assert!(error.contains("two with the UUID"), "{error}");
    let error = error_of(&text.replacen(&ids[0], "none", 1)).to_string();
    assert!(error.contains("must be an LVM UUID"), "{error}");
}

#[test]
fn a_hundred_layers_of_volumes_are_too_many_and_do_not_overflow() {
    let mut text = text_of("empty");
    let mut lvs = String::from("logical_volumes {\n");
    for i in 0..100_000 {
        let on = if i == 0 { "\"pv0\"".into() } else { format!("\"lv{}\"", i - 1) };
        let id = format!("{i:0>32}");
        lvs += &format!(
            "lv{i} {{ id = \"{id}\" status = [] segment_count = 1 segment1 {{ start_extent = 0 \
             extent_count = 1 type = \"striped\" stripe_count = 1 stripes = [{on}, 0] }} }}\n"
        );
    }
    lvs += "}\n";
    let at = text.find("}\n# Generated").expect("the end of the group");
    text.insert_str(at, &lvs);
    let error = error_of(&text).to_string();
    assert!(error.contains("stands on too many layers"), "{error}");
}

#[test]
fn unknown_flags_types_and_fields_spoil_only_their_volume() {
    for (from, to, expected) in [
        (
            "status = [\"READ\", \"WRITE\", \"VISIBLE\"]",
            "status = [\"READ\", \"VISIBLE\", \"FUTURE\"]",
            "FUTURE",
        ),
        ("type = \"striped\"", "type = \"striped+FUTURE\"", "FUTURE"),
        ("type = \"striped\"", "type = \"holographic\"", "holographic"),
    ] {
        let text = text_of("linear").replacen(from, to, 1);
        let metadata = Metadata::parse(text.as_bytes()).expect("readable");
        assert_eq!(metadata.print(Form::Disk), text.as_bytes());
        let marked: Vec<_> =
            metadata.group.lvs.iter().filter_map(|lv| lv.unsupported.as_deref()).collect();
        assert_eq!(marked.len(), 1, "{marked:?}");
        assert!(marked[0].contains(expected), "{marked:?}");
    }
    let text =
        text_of("linear").replace("stripe_count = 1\n", "stripe_count = 1\nnew = [1, \"x\"]\n");
    let metadata = Metadata::parse(text.as_bytes()).expect("readable");
    assert_eq!(metadata.print(Form::Disk), text.as_bytes());
    let status = "status = [\"RESIZEABLE\", \"READ\", \"WRITE\", \"SECRET\"]";
    let text =
        text_of("linear").replacen("status = [\"RESIZEABLE\", \"READ\", \"WRITE\"]", status, 1);
    let group = Metadata::parse(text.as_bytes()).expect("readable").group;
    assert!(group.write_refusal().expect("refused").contains("SECRET"));
}

#[test]
fn labels_with_wrong_fields_are_refused() {
    let (number, label) = case("linear").label(0);
    let good = label.encode(number).expect("fits");
    let sealed = |at: usize, bytes: &[u8]| {
        let mut sector = good;
        sector[at..at + bytes.len()].copy_from_slice(bytes);
        let sum = crc::crc(&sector[20..]);
        sector[16..20].copy_from_slice(&sum.to_le_bytes());
        PvLabel::parse(&sector, number).expect_err("wrong")
    };
    let mut flipped = good;
    flipped[300] ^= 4;
    let error = PvLabel::parse(&flipped, number).expect_err("wrong");
    assert!(matches!(error, LabelError::Checksum { .. }));
    assert!(matches!(sealed(8, &[2]), LabelError::Misplaced { says: 2, .. }));
    assert!(matches!(sealed(24, b"LVM9"), LabelError::Kind { .. }));
    assert!(matches!(sealed(20, &u32::MAX.to_le_bytes()), LabelError::Layout { .. }));
    assert!(matches!(sealed(20, &490_u32.to_le_bytes()), LabelError::Layout { .. }));
    assert!(matches!(sealed(32, b"_"), LabelError::Uuid { .. }));
    // Lists without an end.
    assert!(matches!(sealed(72, &[1; SECTOR_SIZE - 72]), LabelError::Layout { .. }));
}

#[test]
fn a_good_label_behind_a_damaged_one_counts() {
    let (number, label) = case("linear").label(0);
    let mut sectors = [0; 4 * SECTOR_SIZE];
    sectors[..8].copy_from_slice(&LABEL_ID);
    assert!(find_label(&sectors).is_err());
    let place = usize::from(number) * SECTOR_SIZE;
    sectors[place..][..SECTOR_SIZE].copy_from_slice(&label.encode(number).expect("fits"));
    let found = find_label(&sectors).expect("good").expect("found");
    assert_eq!((found.sector, found.label), (number, label));
    assert_eq!(find_label(&[0; 100]), Ok(None));
}

#[test]
fn places_of_texts_that_cannot_be_are_refused_and_never_overflow() {
    let area = Range { offset: 4096, size: 32 << 10 };
    let interesting = [0, 1, 511, 512, 513, 32 << 10, (32 << 10) - 1, 1 << 63, u64::MAX];
    for offset in interesting {
        for size in interesting {
            let text = RawText { offset, size, checksum: 0 };
            let header = MdaHeader { current: Some(text), ..MdaHeader::empty(area) };
            if let Ok(placement) = header.locate(text) {
                let total: u64 = placement.parts.iter().map(|part| part.size).sum();
                assert_eq!(total, size);
                let inside = |part: &Range| {
                    part.offset >= 4096 + 512 && part.offset + part.size <= 4096 + (32 << 10)
                };
                assert!(placement.parts.iter().all(inside), "{placement:?}");
            } else {
                let refused = matches!(header.locate(text), Err(MdaError::TextOutside { .. }));
                assert!(refused, "{text:?}");
            }
            if let Ok(placement) = header.place(&[b'x'; 1000]) {
                let end = placement.parts[0].offset + placement.parts[0].size + placement.padding;
                assert!(end <= 4096 + (32 << 10) || placement.parts[1].size > 0);
            }
        }
    }
    // Found by fuzzing: after a text with such a large offset, the sum of two positions overflowed.
    let far = RawText { offset: (1 << 56) - 1, size: 13_273, checksum: 0x082c_3dfc };
    for size in [0xff00_0000_000f_f000, u64::MAX - 4096, (1 << 63) - 4096] {
        let area = Range { offset: 4096, size };
        let header = MdaHeader { current: Some(far), ..MdaHeader::empty(area) };
        let refused = MdaHeader::parse(&header.encode(), area);
        assert_eq!(refused, Err(MdaError::Outside { offset: 4096, size }));
    }
    let area_end = (1 << 63) - 1;
    let largest = Range { offset: 4096, size: area_end - 4096 };
    for offset in [512, (1 << 56) - 1, largest.size - 1] {
        let current = Some(RawText { offset, ..far });
        let header = MdaHeader { current, ..MdaHeader::empty(largest) };
        let header = MdaHeader::parse(&header.encode(), largest).expect("possible");
        let placement = header.place(&[b'x'; 1000]).expect("room");
        assert!(placement.parts.iter().all(|part| part.offset + part.size <= area_end));
    }
    let small = Range { offset: 4096, size: 512 };
    let error = MdaHeader::parse(&MdaHeader::empty(small).encode(), small);
    assert!(matches!(error, Err(MdaError::Outside { .. })));
    let moved = MdaHeader::parse(&MdaHeader::empty(area).encode(), Range { offset: 0, ..area });
    assert_eq!(moved, Err(MdaError::Misplaced(4096)));
    assert_eq!(Sectors::from_bytes_floor(area.size), Sectors(64));
}
