//! Checks of requests: every command against every rule.

use super::super::info::BlockSize;
use super::*;
use crate::nbd::context::ChangeMaps;

const SIZE: u64 = 1 << 30;
const ALL: u16 = FLAG_HAS_FLAGS
    | FLAG_SEND_FLUSH
    | FLAG_SEND_FUA
    | FLAG_SEND_TRIM
    | FLAG_SEND_WRITE_ZEROES
    | FLAG_SEND_DF
    | FLAG_SEND_CACHE
    | FLAG_SEND_FAST_ZERO;

const COMMANDS: [Command; 8] = [
    Command::Read,
    Command::Write,
    Command::Disc,
    Command::Flush,
    Command::Trim,
    Command::Cache,
    Command::WriteZeroes,
    Command::BlockStatus,
];

const RANGED: [Command; 6] = [
    Command::Read,
    Command::Write,
    Command::Trim,
    Command::Cache,
    Command::WriteZeroes,
    Command::BlockStatus,
];

fn terms() -> Terms {
    Terms { size: SIZE, flags: ALL, structured: true, block_status: true }
}

fn header(command: Command, offset: u64, length: u32) -> Header {
    Header { flags: 0, number: command as u16, cookie: 7, offset, length }
}

/// The error a request gets; 0 for none.
fn errno(header: Header, terms: Terms) -> u32 {
    match judge(&header, &terms) {
        Verdict::Run(_) => 0,
        Verdict::Refuse { error, .. } => error.code(),
        Verdict::Disconnect => u32::MAX,
    }
}

#[test]
fn the_rules_are_in_the_order_of_their_numbers() {
    for (number, rule) in RULES.iter().enumerate() {
        assert_eq!(rule.command as usize, number);
        assert_eq!(COMMANDS[number], rule.command);
    }
}

#[test]
fn headers_survive_the_wire_and_a_wrong_magic_is_no_header() {
    let header =
        Header { flags: 0x0102, number: 0x0304, cookie: 5 << 40, offset: 6 << 41, length: 7 << 20 };
    let mut bytes = header.encode();
    assert_eq!(Header::parse(&bytes), Some(header));
    for at in 0..4 {
        bytes[at] ^= 1;
        assert_eq!(Header::parse(&bytes), None);
        bytes[at] ^= 1;
    }
}

#[test]
fn ranges_end_where_the_export_ends() {
    for command in RANGED {
        let past = if matches!(command, Command::Write | Command::WriteZeroes) { 28 } else { 22 };
        for (offset, length, expected) in [
            (0, 1, 0),
            (SIZE - 1, 1, 0),
            (SIZE - 512, 512, 0),
            (SIZE - 512, 513, past),
            (SIZE, 1, past),
            (u64::MAX, 1, past),
            (u64::MAX, 4096, past),
            (5, 0, 22),
        ] {
            assert_eq!(
                errno(header(command, offset, length), terms()),
                expected,
                "{command:?} {offset} {length}"
            );
        }
    }
}

#[test]
fn payloads_are_bounded_and_effects_are_not() {
    let large = Terms { size: u64::MAX, ..terms() };
    for command in RANGED {
        assert_eq!(errno(header(command, 0, MAX_PAYLOAD), large), 0);
        let above = errno(header(command, 0, MAX_PAYLOAD + 1), large);
        let payload = [(Command::Read, 75), (Command::Write, u32::MAX)];
        let expected =
            payload.iter().find(|(with, _)| *with == command).map_or(0, |(_, errno)| *errno);
        assert_eq!(above, expected, "{command:?}");
    }
    // Simple replies have no specific error for this.
    let simple = Terms { structured: false, ..large };
    assert_eq!(errno(header(Command::Read, 0, MAX_PAYLOAD + 1), simple), 22);
}

#[test]
fn a_read_only_export_refuses_what_writes() {
    let read_only = Terms { flags: ALL | FLAG_READ_ONLY, ..terms() };
    for command in RANGED {
        let writes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
        assert_eq!(
            errno(header(command, 0, 512), read_only),
            if writes { 1 } else { 0 },
            "{command:?}"
        );
    }
}

#[test]
fn what_was_not_offered_is_invalid() {
    let bare = Terms { flags: FLAG_HAS_FLAGS, block_status: false, ..terms() };
    for command in COMMANDS {
        let length = if RANGED.contains(&command) { 512 } else { 0 };
        let always = matches!(command, Command::Read | Command::Write | Command::Disc);
        assert_eq!(
            errno(header(command, 0, length), bare),
            if always { 0 } else { 22 },
            "{command:?}"
        );
    }
}

#[test]
fn every_flag_bit_is_valid_exactly_where_the_protocol_says() {
    for command in COMMANDS.into_iter().filter(|command| *command != Command::Disc) {
        for bit in 0..16 {
            let length = if RANGED.contains(&command) { 512 } else { 0 };
            let header = Header { flags: 1 << bit, ..header(command, 0, length) };
            let valid = match bit {
                0 => true,
                1 | 4 => command == Command::WriteZeroes,
                2 => command == Command::Read,
                3 => command == Command::BlockStatus,
                _ => false,
            };
            assert_eq!(errno(header, terms()), if valid { 0 } else { 22 }, "{command:?} bit {bit}");
            let without = Terms { flags: ALL & !FLAG_SEND_FUA, ..terms() };
            assert_eq!(errno(header, without), if valid && bit != 0 { 0 } else { 22 });
        }
    }
}

#[test]
fn flush_takes_no_range() {
    for (offset, length) in [(0, 512), (512, 0)] {
        assert_eq!(errno(header(Command::Flush, offset, length), terms()), 22);
    }
    assert_eq!(errno(header(Command::Flush, 0, 0), terms()), 0);
}

#[test]
fn unknown_commands_are_invalid_and_carry_no_payload() {
    for number in [8, 9, 255, u16::MAX] {
        let header = Header { number, ..header(Command::Read, 0, 4096) };
        let Verdict::Refuse { error, skip, .. } = judge(&header, &terms()) else { panic!() };
        assert_eq!((error, skip), (Errno::Inval, 0));
    }
}

#[test]
fn the_payload_of_a_refused_write_is_skipped() {
    let read_only = Terms { flags: ALL | FLAG_READ_ONLY, ..terms() };
    for (offset, terms) in [(SIZE, terms()), (0, read_only)] {
        let Verdict::Refuse { skip, .. } = judge(&header(Command::Write, offset, 12_345), &terms)
        else {
            panic!()
        };
        assert_eq!(skip, 12_345);
        let Verdict::Refuse { skip, .. } = judge(&header(Command::Read, SIZE, 12_345), &terms)
        else {
            panic!()
        };
        assert_eq!(skip, 0);
    }
}

#[test]
fn disc_is_understood_however_it_is_filled_in() {
    let header = Header { flags: 0xffff, ..header(Command::Disc, 5, 5) };
    assert!(matches!(
        judge(&header, &terms()),
        Verdict::Run(Request { command: Command::Disc, .. })
    ));
}

#[test]
fn terms_take_the_flags_the_client_was_told() {
    let block_size = BlockSize::with_preferred(4096);
    let info = ExportInfo {
        name: "a".into(),
        description: String::new(),
        size: 5,
        flags: ALL & !FLAG_SEND_DF,
        block_size,
        changes: ChangeMaps::default(),
    };
    assert_eq!(Terms::new(&info, true, false).flags, ALL);
    assert_eq!(Terms::new(&info, false, false).flags, ALL & !FLAG_SEND_DF);
}

#[test]
fn the_document_shows_the_command_table() {
    let document = include_str!("../../../../docs/formats/nbd.md");
    let table = command_table();
    assert!(document.contains(&table), "docs/formats/nbd.md should contain:\n{table}");
}
