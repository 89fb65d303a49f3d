//! The format, its defects and its limits, and maps against a naive reading of them.

use std::fmt::Write;

use ashlar_sim::Rng;

use super::*;

const HEAD: &str = "# Mapfile. Created by GNU ddrescue version 1.27\n0x1000 ? 1\n";

fn parsed(blocks: &str) -> Result<RescueMap, MapError> {
    RescueMap::parse(format!("{HEAD}{blocks}").as_bytes())
}

fn defect(blocks: &str) -> String {
    parsed(blocks).unwrap_err().to_string()
}

#[test]
fn only_finished_blocks_were_read() {
    let text = "# Mapfile. Created by GNU ddrescue version 1.23
# Command line: ddrescue /dev/sdb disk.img disk.map
# current_pos  current_status  current_pass
0x00120000     /               1
#      pos        size  status
0x00000000  0x00117000  +
0x00117000  0x00000200  -
0x00117200  0x00001000  /
0x00118200  0x00007E00  *   # to be trimmed
0x00120000  0x00048000  +
0x00168000  0x00098000  ?\r
";
    let map = RescueMap::parse(text.as_bytes()).unwrap();
    assert_eq!(map.end(), 0x20_0000);
    assert_eq!(map.unread(0x20_0000), [0x11_7000..0x12_0000, 0x16_8000..0x20_0000]);
    assert!(claims_to_be_a_map(text.as_bytes()));
    assert!(claims_to_be_a_map(b"# Rescue Logfile. Created by GNU ddrescue version 1.16\n"));
    assert!(!claims_to_be_a_map(b"# a plan\nddrescue\n") && !claims_to_be_a_map(b""));
}

#[test]
fn what_no_block_describes_was_not_read() {
    let map = parsed("4096 4096 +").unwrap();
    assert_eq!(map.unread(16384), [0..4096, 8192..16384]);
    assert_eq!(map.unread(8192), vec![0..4096; 1]);
    assert_eq!(map.unread(2048), vec![0..2048; 1]);
    assert_eq!(parsed("0 8192 +").unwrap().unread(8192), []);
    assert_eq!(parsed("0 0 -\n0 8192 +").unwrap().unread(8192), []);
    // Neighbours become one area, also those outside.
    assert_eq!(parsed("0 512 -\n512 512 ?").unwrap().unread(4096), vec![0..4096; 1]);
}

#[test]
fn numbers_are_written_as_in_c() {
    for (text, value) in [("0", 0), ("00", 0), ("017", 15), ("19", 19), ("0xfF", 255), ("0X1", 1)] {
        assert_eq!(number(text.as_bytes()), Ok(value), "{text}");
    }
    assert_eq!(number(b"9223372036854775807"), Ok(MAX_NUMBER));
    for text in ["", "0x", "08", "1k", "-1", "+1", "0b1", "1.0", "0x-1"] {
        assert_eq!(number(text.as_bytes()), Err(LineError::Number(text.to_owned())), "{text}");
    }
    for text in ["9223372036854775808", "0x8000000000000000", "99999999999999999999999"] {
        assert_eq!(number(text.as_bytes()), Err(LineError::Overflow(text.to_owned())), "{text}");
    }
}

#[test]
fn defects_name_the_line() {
    let cases = [
        (
            "0 512 +\n1024 512 +",
            "line 4: the block begins at 0x400, but the one before ends at 0x200: a gap",
        ),
        (
            "0 512 +\n256 512 +",
            "line 4: the block begins at 0x100, but the one before ends at 0x200: they overlap",
        ),
        ("512 512 +\n0 512 +", "line 4: the block begins at 0x0, before the one above it at 0x200"),
        ("# c\n\n0 512 x", "line 5: `x` is not a status; use one of ? * / - +"),
        ("0 512 ++", "line 3: `++` is not a status"),
        ("0 512", "line 3: a block is POSITION SIZE STATUS, but this one has 2 words"),
        ("0 512 + +", "but this one has 4 words"),
        ("0 many +", "line 3: `many` is not a number"),
        ("0 9223372036854775808 +", "line 3: `9223372036854775808` is too large"),
        ("1 9223372036854775807 +", "line 3: `9223372036854775807` is too large"),
        ("0 0123456789012345678901234567 +", "`012345678901234567890123...` is not a number"),
        ("0 \u{1b}[2J +", "`\\x1b[2J` is not a number"),
        ("", "it has no blocks"),
    ];
    for (blocks, expected) in cases {
        let defect = defect(blocks);
        assert!(defect.contains(expected), "{blocks:?}: {defect}");
    }
    let heads = [
        ("# nothing\n\n", "it has no status line"),
        (
            "0 + 1 2\n0 512 +",
            "line 1: the status line is POSITION STATUS [PASS], but this one has 4 words",
        ),
        ("hello\n", "line 1: the status line"),
        ("0 ! 1\n", "line 1: `!` is not a status; use one of ? * / - F G +"),
        ("0 + one\n", "line 1: `one` is not a number"),
    ];
    for (text, expected) in heads {
        let defect = RescueMap::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(defect.contains(expected), "{text:?}: {defect}");
    }
    // Before 1.20 there was no pass.
    assert!(RescueMap::parse(b"0x0 +\n0 512 +\n").is_ok());
}

#[test]
fn a_hostile_map_takes_bounded_memory() {
    assert_eq!(RescueMap::parse(&vec![b' '; MAX_BYTES + 1]), Err(MapError::TooLong));
    let mut text = HEAD.to_owned();
    for n in 0..=MAX_AREAS {
        writeln!(text, "{} 1 -\n{} 1 +", 2 * n, 2 * n + 1).unwrap();
    }
    assert!(matches!(RescueMap::parse(text.as_bytes()), Err(MapError::TooManyAreas { .. })));
    let last = text.trim_end().rfind('\n').and_then(|at| text[..at].rfind('\n')).unwrap();
    assert_eq!(RescueMap::parse(&text.as_bytes()[..last]).unwrap().unread.len(), MAX_AREAS);
}

/// A number in one of the notations.
fn noted(number: u64, rng: &mut Rng) -> String {
    match rng.below(4) {
        0 => number.to_string(),
        1 => format!("{number:#x}"),
        2 => format!("0x{number:012X}"),
        _ => format!("0{number:o}"),
    }
}

/// Random maps mean what their blocks say byte by byte, and mean nothing once a block is shifted.
#[test]
fn maps_agree_with_a_naive_reading() {
    let mut rng = Rng::new(44);
    for _ in 0..2000 {
        let start = rng.below(20);
        let size = 20 + rng.below(200);
        let mut bytes = vec![false; size as usize];
        let mut text = HEAD.to_owned();
        let (mut at, blocks) = (start, 1 + rng.below(12));
        let mut places = Vec::new();
        for _ in 0..blocks {
            let (len, status) = (rng.below(20), ['?', '*', '/', '-', '+'][rng.index(5)]);
            places.push(text.len());
            writeln!(text, "{}\t{} {status}", noted(at, &mut rng), noted(len, &mut rng)).unwrap();
            let inside = at.min(size) as usize..(at + len).min(size) as usize;
            bytes[inside].fill(status == '+');
            at += len;
        }
        let map = RescueMap::parse(text.as_bytes()).unwrap();
        assert_eq!(map.end(), at);
        let unread = map.unread(size);
        for (at, is_read) in (0..).zip(&bytes) {
            assert_eq!(unread.iter().any(|area| area.contains(&at)), !is_read, "{at}: {text}");
        }
        assert!(unread.windows(2).all(|pair| pair[0].end < pair[1].start), "{unread:?}");
        let place = places[rng.index(places.len())];
        if place > HEAD.len() {
            let (before, after) = text.split_at(place);
            let shifted = format!("{before}{} 1 +\n{after}", at + 1);
            assert!(RescueMap::parse(shifted.as_bytes()).is_err(), "{shifted}");
        }
    }
}
