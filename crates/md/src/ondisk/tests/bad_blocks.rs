//! The bad block log.

use ashlar_block::units::{Sector, Sectors};

use crate::badblocks::{BadBlocks, BadBlocksError};
use crate::ondisk::bad_block_log::{BadBlockLogError, BadRange, is_empty, parse};

fn log(words: &[u64]) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(4096, 0xff);
    bytes
}

fn range(start: u64, len: u64) -> BadRange {
    BadRange { start: Sector(start), len: Sectors(len) }
}

#[test]
fn an_entry_is_54_bits_of_position_and_10_bits_of_length() {
    let bytes = log(&[0x1234 << 10 | 8, 5 << 10 | 1023]);
    assert_eq!(parse(&bytes, 0), Ok(vec![range(0x1234, 8), range(5, 1023)]));
    assert_eq!(parse(&bytes, 3), Ok(vec![range(0x1234 << 3, 64), range(40, 1023 << 3)]));
    assert!(!is_empty(&bytes));
}

#[test]
fn all_ones_end_the_list() {
    assert_eq!(parse(&log(&[7 << 10 | 1, u64::MAX, 9 << 10 | 1]), 0), Ok(vec![range(7, 1)]));
    assert_eq!(parse(&log(&[]), 0), Ok(vec![]));
    assert!(is_empty(&log(&[])));
    assert!(is_empty(&[]));
}

#[test]
fn impossible_logs_are_refused() {
    assert_eq!(parse(&[0; 511], 0), Err(BadBlockLogError::Size { found: 511, max: 4096 }));
    assert_eq!(parse(&[0; 4608], 0), Err(BadBlockLogError::Size { found: 4608, max: 4096 }));
    assert_eq!(parse(&log(&[]), 22), Err(BadBlockLogError::Shift { found: 22 }));
    assert_eq!(
        parse(&log(&[1 << 10]), 0),
        Err(BadBlockLogError::Empty { index: 0, word: 1 << 10 })
    );
    let far = u64::MAX << 10 | 1;
    let overflow = BadBlockLogError::Overflow { index: 1, word: far, shift: 11 };
    assert_eq!(parse(&log(&[1 << 10 | 1, far]), 11), Err(overflow));
    assert!(parse(&log(&[far]), 9).is_ok());
}

/// Found by fuzzing: two overlapping entries at the end of the number space became one range, whose
/// second part was written as the units 510 to 769 of the device.
#[test]
fn an_entry_that_ends_where_no_position_is_is_refused() {
    let last = (1 << 54) - 1;
    let (first, second) = (u64::MAX << 10 | 511, (last - 1) << 10 | 1022);
    for (index, words) in
        [(0, &[first, second][..]), (1, &[last << 10 | 1, (last - 510) << 10 | 512])]
    {
        let word = words[index];
        let overflow = BadBlockLogError::Overflow { index, word, shift: 0 };
        assert_eq!(parse(&log(words), 0), Err(overflow));
    }
    let ends_there = [range(last - 511, 512), range(last, 1)];
    let words = ends_there.map(|range| range.start.0 << 10 | range.len.0);
    assert_eq!(parse(&log(&words), 0), Ok(ends_there.to_vec()));
    let list = BadBlocks::from_log(&log(&words), 0).unwrap();
    assert_eq!(parse(list.take_image().unwrap().bytes(), 0), Ok(vec![ends_there[0]]));
    assert_eq!(list.set(Sector(last), Sectors(2)), Err(BadBlocksError::Range));
}
