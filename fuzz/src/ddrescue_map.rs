//! Maps of GNU ddrescue: never a panic. What was not read of a disk, whatever its size, is a list of areas in order, within it, none
//! empty, with something between any two; and a map written from that list means the same.
//!
//! Input: the text of a map.

use std::fmt::Write;
use std::ops::Range;

use ashlar_stack::ddrescue::RescueMap;

/// Checks one input; panics if something does not hold. Returns whether it is a map.
pub fn run(data: &[u8]) -> bool {
    let Ok(map) = RescueMap::parse(data) else { return false };
    assert!(map.end() <= i64::MAX as u64, "a position that ddrescue does not have");
    for size in [0, 512, 0x10_0000, map.end() / 2, map.end(), map.end().saturating_add(4096)] {
        let unread = map.unread(size);
        let is_inside = |area: &Range<u64>| area.start < area.end && area.end <= size;
        assert!(unread.iter().all(is_inside), "{unread:?} of {size}");
        assert!(unread.windows(2).all(|pair| pair[0].end < pair[1].start), "{unread:?}");
        if size > map.end() {
            assert_eq!(unread.last().map(|area| area.end), Some(size), "its end was not read");
        }
        if size > 0 && size <= i64::MAX as u64 {
            let again = RescueMap::parse(written(&unread, size).as_bytes()).expect("it is a map");
            assert_eq!(again.unread(size), unread);
            assert_eq!(again.end(), size);
        }
    }
    true
}

/// A map of a disk of `size` bytes that lacks `unread`.
fn written(unread: &[Range<u64>], size: u64) -> String {
    let (mut text, mut end) = ("0 +\n".to_owned(), 0);
    for area in unread {
        let (read, len) = (area.start - end, area.end - area.start);
        writeln!(text, "{end:#x} {read} +\n{:#x} {len} -", area.start).expect("a string takes it");
        end = area.end;
    }
    writeln!(text, "{end:#x} {} +", size - end).expect("a string takes it");
    text
}
