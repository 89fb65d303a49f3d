//! The list against a set of sectors, and its log against torn writes.

use std::collections::{BTreeMap, BTreeSet};

use ashlar_sim::Rng;

use super::*;
use crate::ondisk::bad_block_log::{END, entry, parse};

fn place(sectors: u64, shift: u8) -> BadBlockLogPlace {
    BadBlockLogPlace { offset: 8, len: Sectors(sectors), shift }
}

fn empty(sectors: u64, shift: u8) -> BadBlocks {
    BadBlocks::empty(&place(sectors, shift)).unwrap()
}

fn set(list: &BadBlocks, start: u64, len: u64) -> Result<(), BadBlocksError> {
    list.set(Sector(start), Sectors(len))
}

fn clear(list: &BadBlocks, start: u64, len: u64) -> Result<(), BadBlocksError> {
    list.clear(Sector(start), Sectors(len))
}

/// Writes the whole list to disk.
fn write(list: &BadBlocks) -> Vec<u8> {
    let image = list.take_image().unwrap();
    let bytes = image.bytes().to_vec();
    list.acknowledge(image);
    assert!(!list.changed());
    bytes
}

fn log(words: &[u64], sectors: usize) -> Vec<u8> {
    let mut words = words.to_vec();
    words.resize(sectors * layout::SLOTS, END);
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// The sectors that the bytes of a log list.
fn on_disk(bytes: &[u8], shift: u8) -> BTreeSet<u64> {
    let ranges = parse(bytes, shift).unwrap();
    ranges.iter().flat_map(|range| range.start.0..range.start.0 + range.len.0).collect()
}

fn listed(list: &BadBlocks) -> BTreeSet<u64> {
    let ranges = list.ranges().into_iter();
    ranges.flat_map(|(range, _)| range.start.0..range.start.0 + range.len.0).collect()
}

/// What the list should be: each bad sector, and whether it is on disk.
#[derive(Clone, Default)]
struct NaiveList {
    shift: u8,
    sectors: BTreeMap<u64, bool>,
}

impl NaiveList {
    fn set(&mut self, start: u64, len: u64) {
        let unit = 1 << self.shift;
        for sector in start / unit * unit..(start + len).next_multiple_of(unit) {
            self.sectors.entry(sector).or_insert(false);
        }
    }

    fn clear(&mut self, start: u64, len: u64) {
        let unit = 1u64 << self.shift;
        for first in (start.next_multiple_of(unit)..).step_by(unit as usize) {
            if first + unit > start + len {
                break;
            }
            self.sectors.retain(|sector, _| !(first..first + unit).contains(sector));
        }
    }

    fn acknowledge(&mut self) {
        self.sectors.values_mut().for_each(|acknowledged| *acknowledged = true);
    }

    /// Compares with `check`, which may report an acknowledged range as unacknowledged.
    fn assert_agrees(&self, list: &BadBlocks, space: u64) {
        assert_eq!(list.is_empty(), self.sectors.is_empty());
        for start in 0..space {
            for end in start + 1..=space {
                let first = self.sectors.range(start..end).next().map(|(sector, _)| *sector);
                let found = list.check(Sector(start), Sectors(end - start));
                assert_eq!(found.map(|bad| bad.start.0), first, "in {start}..{end}");
                let Some(bad) = found else { continue };
                assert!(!bad.len.is_zero() && bad.start + bad.len <= Sector(end));
                let covered = bad.start.0..(bad.start + bad.len).0;
                assert!(covered.clone().all(|sector| self.sectors.contains_key(&sector)));
                let all = self.sectors.range(start..end).all(|(_, acknowledged)| *acknowledged);
                assert!(all || !bad.acknowledged, "{start}..{end} is not on disk");
            }
        }
    }
}

#[test]
fn every_sequence_of_three_changes_lists_what_a_set_of_sectors_would() {
    const SPACE: u64 = 7;
    let ranges: Vec<(u64, u64)> =
        (0..SPACE).flat_map(|start| (1..=SPACE - start).map(move |len| (start, len))).collect();
    let kinds = ranges.len() * 2;
    for shift in [0, 1, 2] {
        for sequence in 0..kinds.pow(3) {
            let list = empty(1, shift);
            let mut naive = NaiveList { shift, ..NaiveList::default() };
            for step in 0..3 {
                let change = sequence / kinds.pow(step) % kinds;
                let (start, len) = ranges[change / 2];
                if change.is_multiple_of(2) {
                    set(&list, start, len).unwrap();
                    naive.set(start, len);
                } else {
                    clear(&list, start, len).unwrap();
                    naive.clear(start, len);
                }
                // Writes the list before the second change or before the third.
                if (sequence + step as usize).is_multiple_of(2) {
                    write(&list);
                    naive.acknowledge();
                }
            }
            naive.assert_agrees(&list, SPACE + 1);
            let bytes = write(&list);
            naive.acknowledge();
            let read = BadBlocks::from_log(&bytes, shift).unwrap();
            assert_eq!(listed(&read), listed(&list));
            assert_eq!(read.text(), list.text());
            assert!(read.unacknowledged_text().is_empty() && !read.changed());
            naive.assert_agrees(&read, SPACE + 1);
        }
    }
}

#[test]
fn whatever_a_torn_write_of_the_log_leaves_lists_what_was_and_still_is_bad() {
    const SECTORS: usize = 4;
    // Scattered single units fill the log, so that entries in all its sectors change.
    const SPACE: usize = 3000;
    let mut random = Rng::new(11);
    for round in 0..12 {
        let shift = round % 3;
        let list = empty(SECTORS as u64, shift);
        let mut naive = NaiveList { shift, ..NaiveList::default() };
        let (mut old, mut old_sectors) = (write(&list), BTreeSet::new());
        let mut refused = 0;
        for _ in 0..60 {
            // Sectors that were bad at all times since the old image.
            let mut kept: BTreeSet<u64> = old_sectors.clone();
            // In some rounds the list grows, in others it shrinks.
            let (sets, clears) = [(80, 3), (20, 20), (5, 40)][random.index(3)];
            for _ in 0..random.below(sets + 1) {
                let (start, len) = (random.below(SPACE as u64), 1 + random.below(3));
                if set(&list, start, len).is_ok() {
                    naive.set(start, len);
                } else {
                    refused += 1;
                }
            }
            for _ in 0..random.below(clears + 1) {
                let (start, len) = (random.below(SPACE as u64), random.below(20));
                if clear(&list, start, len).is_ok() {
                    naive.clear(start, len);
                    kept.retain(|sector| naive.sectors.contains_key(sector));
                }
            }
            let new = write(&list);
            let new_sectors = listed(&list);
            assert_eq!(new_sectors, naive.sectors.keys().copied().collect());
            assert_eq!(on_disk(&new, shift), new_sectors);
            for mixture in 0..1 << SECTORS {
                let mixed: Vec<u8> = (0..SECTORS * 512)
                    .map(|at| if mixture >> (at / 512) & 1 == 0 { old[at] } else { new[at] })
                    .collect();
                let left = on_disk(&mixed, shift);
                assert!(left.is_superset(&kept), "{:?} forgotten", &kept - &left);
                assert!(left.is_subset(&(&old_sectors | &new_sectors)));
                assert!(BadBlocks::from_log(&mixed, shift).is_ok());
            }
            (old, old_sectors) = (new, new_sectors);
        }
        assert!(shift > 0 || refused > 0, "the log was never full");
    }
}

#[test]
fn a_new_member_starts_with_an_empty_list() {
    // If the type were `Clone`, this call would be ambiguous and the test would not compile.
    trait CloneProbe<Why> {
        fn holds() {}
    }
    impl<T> CloneProbe<()> for T {}
    impl<T: Clone> CloneProbe<u8> for T {}
    <BadBlocks as CloneProbe<_>>::holds();

    let old_member = empty(8, 0);
    set(&old_member, 4096, 8).unwrap();
    write(&old_member);
    let new_member = empty(8, 0);
    assert_eq!(new_member.check(Sector(0), Sectors(u64::MAX)), None);
    let image = new_member.take_image().unwrap();
    assert!(image.is_empty() && image.bytes() == [0xff; 4096]);
    assert!(!new_member.changed());
}

#[test]
fn a_member_that_returns_lists_what_its_log_does_and_nothing_else() {
    let list = empty(1, 3);
    set(&list, 64, 8).unwrap();
    set(&list, 128, 8).unwrap();
    for other in [empty(2, 3), empty(1, 4), BadBlocks::none()] {
        assert!(!list.is_like(&other) && !other.is_like(&list));
    }
    let next = BadBlocks::from_log(&log(&[entry(8, 1), entry(32, 2)], 1), 3).unwrap();
    assert!(list.is_like(&next) && list.changed());
    list.renew(next);
    assert_eq!(listed(&list), (64..72).chain(256..272).collect());
    assert!(!list.changed() && list.count() == (Sectors(24), Sectors::ZERO));
    list.renew(empty(1, 3));
    assert!(list.is_empty() && !list.changed() && list.check(Sector(64), Sectors(8)).is_none());
    let none = BadBlocks::none();
    assert!(none.is_like(&BadBlocks::none()));
    none.renew(BadBlocks::none());
    assert!(none.is_empty() && !none.has_log());
}

#[test]
fn without_a_log_nothing_is_bad_and_nothing_can_be_recorded() {
    let list = BadBlocks::none();
    assert_eq!(set(&list, 8, 8), Err(BadBlocksError::NoLog));
    assert_eq!(clear(&list, 8, 8), Ok(()));
    assert_eq!(list.check(Sector(0), Sectors(u64::MAX)), None);
    assert!(list.is_empty() && !list.has_log() && !list.changed());
    assert!(list.take_image().is_none());
    assert_eq!((list.text(), list.unacknowledged_text()), Default::default());
}

#[test]
fn what_is_set_while_an_image_is_written_stays_unacknowledged() {
    let list = empty(1, 0);
    set(&list, 10, 1).unwrap();
    let image = list.take_image().unwrap();
    set(&list, 20, 1).unwrap();
    // Good, then bad again: the image has its old entry.
    clear(&list, 10, 1).unwrap();
    set(&list, 10, 1).unwrap();
    list.acknowledge(image);
    assert!(list.changed());
    assert_eq!(list.unacknowledged_text(), "10 1\n20 1\n");
    write(&list);
    assert_eq!(list.unacknowledged_text(), "");
    assert_eq!(list.text(), "10 1\n20 1\n");
}

#[test]
fn an_image_whose_write_failed_acknowledges_nothing() {
    let list = empty(1, 0);
    set(&list, 10, 1).unwrap();
    drop(list.take_image());
    assert!(list.changed());
    assert_eq!(list.count(), (Sectors(1), Sectors(1)));
    assert!(!list.check(Sector(0), Sectors(20)).unwrap().acknowledged);
    write(&list);
    assert_eq!(list.count(), (Sectors(1), Sectors(0)));
    assert!(list.check(Sector(0), Sectors(20)).unwrap().acknowledged);
}

#[test]
fn setting_what_is_listed_and_clearing_what_is_not_needs_no_write() {
    let list = empty(1, 3);
    set(&list, 16, 8).unwrap();
    write(&list);
    set(&list, 17, 3).unwrap();
    clear(&list, 32, 100).unwrap();
    clear(&list, 17, 7).unwrap();
    assert!(!list.changed());
    assert!(list.check(Sector(16), Sectors(1)).unwrap().acknowledged);
}

#[test]
fn a_range_that_is_partly_on_disk_is_not_acknowledged() {
    let list = empty(1, 0);
    set(&list, 10, 2).unwrap();
    write(&list);
    set(&list, 20, 2).unwrap();
    let bad = |start, len, acknowledged| {
        Some(BadPart { start: Sector(start), len: Sectors(len), acknowledged })
    };
    assert_eq!(list.check(Sector(0), Sectors(20)), bad(10, 2, true));
    assert_eq!(list.check(Sector(11), Sectors(10)), bad(11, 1, false));
    assert_eq!(list.check(Sector(12), Sectors(100)), bad(20, 2, false));
    assert_eq!(list.check(Sector(12), Sectors(8)), None);
    assert_eq!(list.check(Sector(22), Sectors(u64::MAX)), None);
}

#[test]
fn neighbours_share_an_entry_of_at_most_512_units() {
    let list = empty(1, 0);
    for start in (0..150).rev().map(|index| index * 8) {
        set(&list, start, 8).unwrap();
    }
    assert_eq!(list.text(), "0 512\n512 512\n1024 176\n");
    assert_eq!(write(&list), log(&[entry(0, 512), entry(512, 512), entry(1024, 176)], 1));
    let wide = empty(1, 3);
    set(&wide, 0, 4097).unwrap();
    assert_eq!(wide.text(), "0 4096\n4096 8\n");
}

#[test]
fn a_full_log_takes_what_fits_into_its_entries_and_nothing_else() {
    let list = empty(1, 0);
    (0..64).for_each(|index| set(&list, index * 10, 2).unwrap());
    let before = write(&list);
    assert_eq!(set(&list, 1005, 1), Err(BadBlocksError::Full));
    assert_eq!(set(&list, 5, 100_000), Err(BadBlocksError::Full));
    assert_eq!(set(&list, 0, 1 << 53), Err(BadBlocksError::Full));
    assert!(!list.changed());
    assert_eq!(write(&list), before);
    assert_eq!(set(&list, 3, 1), Err(BadBlocksError::Full));
    set(&list, 2, 8).unwrap();
    assert!(list.changed());
    set(&list, 1005, 1).unwrap();
}

#[test]
fn a_full_log_keeps_what_it_would_have_to_split() {
    let list = empty(1, 0);
    (0..64).for_each(|index| set(&list, index * 10, 3).unwrap());
    write(&list);
    assert_eq!(clear(&list, 11, 1), Err(BadBlocksError::Full));
    assert!(!list.changed());
    assert!(list.check(Sector(11), Sectors(1)).is_some());
    clear(&list, 20, 3).unwrap();
    clear(&list, 11, 1).unwrap();
    assert_eq!(list.check(Sector(11), Sectors(1)), None);
    assert!(list.check(Sector(10), Sectors(1)).is_some());
}

#[test]
fn the_largest_log_holds_512_entries() {
    let list = empty(8, 0);
    (0..512).for_each(|index| set(&list, index * 2, 1).unwrap());
    assert_eq!(set(&list, 5000, 1), Err(BadBlocksError::Full));
    let bytes = write(&list);
    assert_eq!(parse(&bytes, 0).unwrap().len(), 512);
    assert_eq!(BadBlocks::from_log(&bytes, 0).unwrap().text(), list.text());
    clear(&list, 0, 5000).unwrap();
    assert!(list.is_empty() && list.changed());
    assert!(list.take_image().unwrap().is_empty());
    assert_eq!(write(&list), [0xff; 4096]);
}

#[test]
fn a_range_grows_in_the_sector_of_the_log_that_it_is_in() {
    let list = empty(2, 0);
    (0..65).for_each(|index| set(&list, index * 10, 1).unwrap());
    clear(&list, 0, 11).unwrap();
    set(&list, 641, 1).unwrap();
    let words = parse(&write(&list), 0).unwrap();
    assert_eq!(words.last(), Some(&BadRange { start: Sector(640), len: Sectors(2) }));
    // Both sectors are in use, so the two slots free in the first are padded.
    assert_eq!(words.len(), 65);
    assert_eq!(listed(&list).len(), 64);
}

#[test]
fn logs_that_no_kernel_writes_are_read_all_the_same() {
    // Overlapping, longer than 512 units, adjacent, twice the same.
    let words = [entry(100, 1023), entry(50, 60), entry(2000, 8), entry(2008, 8), entry(2000, 8)];
    for shift in [0, 2] {
        let bytes = log(&words, 2);
        let list = BadBlocks::from_log(&bytes, shift).unwrap();
        assert_eq!(listed(&list), on_disk(&bytes, shift));
        assert_eq!(on_disk(&write(&list), shift), on_disk(&bytes, shift));
    }
    // In different sectors of the log.
    let mut words: Vec<u64> = (0..64).map(|index| entry(index * 10, 5)).collect();
    words.extend([entry(0, 7), entry(3, 30)]);
    let bytes = log(&words, 2);
    let list = BadBlocks::from_log(&bytes, 0).unwrap();
    assert_eq!(listed(&list), on_disk(&bytes, 0));
    clear(&list, 4, 2).unwrap();
    assert_eq!(list.check(Sector(4), Sectors(2)), None);
    assert_eq!(on_disk(&write(&list), 0), listed(&list));
}

#[test]
fn logs_that_cannot_be_understood_are_refused() {
    assert!(BadBlocks::from_log(&[0xff; 100], 0).is_err());
    assert!(BadBlocks::from_log(&log(&[entry(7, 0)], 1), 0).is_err());
    let long: Vec<u64> = (0..64).map(|index| entry(index * 2000, 1023)).collect();
    let full = BadBlockLogError::Full { needed: 128, available: 64 };
    assert_eq!(BadBlocks::from_log(&log(&long, 1), 0).unwrap_err(), full);
    for sectors in [0, 9, 1 << 60] {
        assert!(BadBlocks::empty(&place(sectors, 0)).is_err());
    }
    assert!(BadBlocks::empty(&place(8, 22)).is_err());
}

#[test]
fn positions_that_a_log_cannot_hold_are_refused() {
    let list = empty(1, 0);
    set(&list, (1 << 54) - 1, 1).unwrap();
    for (start, len) in [(1 << 54, 1), ((1 << 54) - 1, 2), (u64::MAX, 1), (u64::MAX, 2), (0, 0)] {
        assert_eq!(set(&list, start, len), Err(BadBlocksError::Range), "{start} {len}");
    }
    write(&list);
    let list = empty(1, 21);
    let last = (u64::MAX >> 21) << 21;
    assert_eq!(set(&list, last, 1), Err(BadBlocksError::Range));
    set(&list, last - 1, 1).unwrap();
    assert!(list.check(Sector(last - 1), Sectors(u64::MAX)).is_some());
    clear(&list, 0, u64::MAX).unwrap();
    assert!(list.is_empty());
}

#[test]
fn a_user_writes_a_range_or_a_range_with_a_minus() {
    let set = |start, len| Ok(Change::Set { start: Sector(start), len: Sectors(len) });
    let clear = |start, len| Ok(Change::Clear { start: Sector(start), len: Sectors(len) });
    assert_eq!(Change::parse("4096 8\n"), set(4096, 8));
    assert_eq!(Change::parse("0 1"), set(0, 1));
    assert_eq!(Change::parse("-4096 8"), clear(4096, 8));
    let wrong = "|8|8 | 8| 8 8|8  8|8 8 8|8 8\n\n|8 0|8 -8|8 +8|+8 8|--8 8|- 8 8|8,8|0x8 8|\n|\
        18446744073709551615 1|18446744073709551616 1";
    for text in wrong.split('|') {
        assert_eq!(Change::parse(text), Err(InvalidChange), "{text:?}");
    }
}
