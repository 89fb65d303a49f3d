//! Words and numbers in mdadm's manner.

use uuid::Uuid;

use crate::ondisk::text::{
    CTime, bitmap_chunk, c_string, decimal_size, human_size, parity_layout_name, quoted,
    raid0_layout_name, raid10_layout,
};
use crate::ondisk::{Level, MdadmUuid, Role, Timestamp};

#[test]
fn times_are_those_of_ctime() {
    for (seconds, text) in [
        (0, "Thu Jan  1 00:00:00 1970"),
        (951_782_399, "Mon Feb 28 23:59:59 2000"),
        (951_782_400, "Tue Feb 29 00:00:00 2000"),
        (951_868_800, "Wed Mar  1 00:00:00 2000"),
        (1_700_000_000, "Tue Nov 14 22:13:20 2023"),
        (1_735_689_599, "Tue Dec 31 23:59:59 2024"),
        (4_107_542_400, "Mon Mar  1 00:00:00 2100"),
        (253_402_300_799, "Fri Dec 31 23:59:59 9999"),
        // Cut to 24 characters, as mdadm cuts it.
        (253_402_300_800, "Sat Jan  1 00:00:00 1000"),
    ] {
        assert_eq!(CTime(seconds).to_string(), text);
    }
    assert_eq!(CTime((1 << 40) - 1).to_string().len(), 24);
}

#[test]
fn sizes_change_their_unit_at_2_gib_and_2_tib() {
    for (bytes, text) in [
        (5_119_999, ""),
        (5_120_000, " (4.88 MiB 5.12 MB)"),
        (103_809_024, " (99.00 MiB 103.81 MB)"),
        ((1 << 31) - 1, " (2048.00 MiB 2147.48 MB)"),
        (1 << 31, " (2.00 GiB 2.15 GB)"),
        ((1 << 41) - 512, " (2048.00 GiB 2199.02 GB)"),
        (1 << 41, " (2.00 TiB 2.20 TB)"),
        (u64::MAX, ""),
    ] {
        assert_eq!(human_size(bytes), text, "{bytes}");
        let (_, decimal) = text.split_once("iB ").unwrap_or_default();
        assert_eq!(decimal_size(bytes), decimal.replace([' ', ')'], ""));
    }
    for (bytes, text) in
        [(0, "0 B"), (512, "512 B"), (65536, "64 KB"), (64 << 20, "64 MB"), (u32::MAX, "3 GB")]
    {
        assert_eq!(bitmap_chunk(bytes), text);
    }
}

#[test]
fn layouts_have_mdadms_names() {
    assert_eq!(raid10_layout(0x102), " near=2");
    assert_eq!(raid10_layout(0x201), " far=2");
    assert_eq!(raid10_layout(0x1_0201), " offset=2");
    assert_eq!(raid10_layout(0x202), " near=2, far=2");
    assert_eq!(raid10_layout(0x101), "NO REDUNDANCY");
    assert_eq!(raid0_layout_name(1), Some("original"));
    assert_eq!(raid0_layout_name(2), Some("alternate"));
    assert_eq!(raid0_layout_name(3), None);
    assert_eq!(parity_layout_name(false, 2), Some("left-symmetric"));
    assert_eq!(parity_layout_name(false, 8), None);
    assert_eq!(parity_layout_name(true, 8), Some("ddf-zero-restart"));
}

#[test]
fn every_level_and_role_survives_its_raw_form() {
    for raw in -200..200 {
        assert_eq!(Level::from_raw(raw).raw(), raw);
    }
    for raw in 0..=u16::MAX {
        assert_eq!(Role::from_raw(raw).raw(), raw);
    }
}

#[test]
fn a_timestamp_is_40_bits_of_seconds_and_24_of_microseconds() {
    let time = Timestamp::from_raw(0x0012_3456_789a_bcde);
    assert_eq!(time, Timestamp { seconds: 0x56_789a_bcde, micros: 0x1234 });
    assert_eq!(time.raw(), 0x0012_3456_789a_bcde);
}

#[test]
fn uuids_print_in_four_groups() {
    let uuid = Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
    assert_eq!(MdadmUuid(uuid).to_string(), "00112233:44556677:8899aabb:ccddeeff");
}

#[test]
fn names_with_spaces_or_quotes_are_quoted() {
    for (name, text) in [
        ("host:data", "host:data"),
        ("a b", "\"a b\""),
        ("it's", "\"it's\""),
        ("a \"b\"", "'a \"b\"'"),
        ("\"'", "'\"'\"'\""),
    ] {
        assert_eq!(quoted(name), text);
    }
}

#[test]
fn strings_end_at_a_zero_or_at_the_end() {
    assert_eq!(c_string(b"ab\0cd"), "ab");
    assert_eq!(c_string(b"abcd"), "abcd");
    assert_eq!(c_string(b"a\xff"), "a\u{fffd}");
}
