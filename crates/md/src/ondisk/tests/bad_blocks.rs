//! The bad block log.

use ashlar_block::units::{Sector, Sectors};

use super::Random;
use crate::ondisk::bad_block_log::{
    BadBlockLogError, BadRange, MAX_ENTRIES, encode, is_empty, parse,
};

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
    assert_eq!(encode(&ends_there, 0, 8), Ok(log(&words)));
    let across = encode(&[range(last, 2)], 0, 8);
    assert!(matches!(across, Err(BadBlockLogError::Overflow { index: 0, .. })));
}

#[test]
fn long_ranges_are_cut_and_odd_ones_widened_to_the_unit() {
    let bytes = encode(&[range(100, 1200)], 0, 8).unwrap();
    assert_eq!(parse(&bytes, 0), Ok(vec![range(100, 512), range(612, 512), range(1124, 176)]));
    let bytes = encode(&[range(9, 1), range(15, 2)], 3, 1).unwrap();
    assert_eq!(bytes.len(), 512);
    assert_eq!(parse(&bytes, 3), Ok(vec![range(8, 8), range(8, 16)]));
}

#[test]
fn a_log_that_is_too_small_is_an_error_and_not_cut() {
    let ranges: Vec<BadRange> = (0..65).map(|i| range(i * 10, 1)).collect();
    assert!(encode(&ranges[..64], 0, 1).is_ok());
    assert_eq!(encode(&ranges, 0, 1), Err(BadBlockLogError::Full { needed: 65, available: 64 }));
    assert!(encode(&[range(u64::MAX, 1)], 0, 8).is_err());
    assert!(encode(&[range(1 << 54, 1)], 0, 8).is_err());
    assert!(encode(&[range(1 << 54, 1)], 1, 8).is_ok());
    assert!(encode(&[], 0, 0).is_err());
    assert!(encode(&[], 0, 9).is_err());
    assert!(encode(&[], 22, 8).is_err());
}

#[test]
fn what_is_encoded_covers_the_same_sectors_when_read() {
    let mut random = Random(7);
    for _ in 0..300 {
        let shift = random.below(5) as u8;
        let mut start = 0;
        let ranges: Vec<BadRange> = (0..random.below(40))
            .map(|_| {
                start += random.below(5000) as u64;
                let len = 1 + random.below(1500) as u64;
                let range = range(start >> shift << shift, len.next_multiple_of(1 << shift));
                start += len + 32;
                range
            })
            .collect();
        let read = parse(&encode(&ranges, shift, 8).unwrap(), shift).unwrap();
        assert!(read.len() <= MAX_ENTRIES);
        assert_eq!(sectors(&read), sectors(&ranges));
    }
}

fn sectors(ranges: &[BadRange]) -> Vec<u64> {
    let mut all: Vec<u64> =
        ranges.iter().flat_map(|range| range.start.0..range.start.0 + range.len.0).collect();
    all.sort_unstable();
    all.dedup();
    all
}
