//! The address map of RAID 4, 5 and 6 against the rows that real kernels wrote, and its invariants on small arrays.

use ashlar_block::units::{Sector, Sectors};
use ashlar_md::internals::raid5::{Geometry, GeometryError, Held, ParityLevel};

const CHUNK: Sectors = Sectors(8);
const TABLES: &str = include_str!("tables.txt");

/// The layout words of a level.
fn words(level: ParityLevel) -> &'static [u32] {
    match level {
        ParityLevel::Raid4 => &[0, 5, 77],
        ParityLevel::Raid5 => &[0, 1, 2, 3, 4, 5],
        ParityLevel::Raid6 => &[0, 1, 2, 3, 4, 5, 8, 9, 10, 16, 17, 18, 19, 20],
    }
}

fn word(level: ParityLevel, name: &str) -> u32 {
    let names: &[(&str, u32)] = &[
        ("left-asymmetric", 0),
        ("right-asymmetric", 1),
        ("left-symmetric", 2),
        ("right-symmetric", 3),
        ("parity-first", 4),
        ("parity-last", 5),
        ("ddf-zero-restart", 8),
        ("ddf-N-restart", 9),
        ("ddf-N-continue", 10),
        ("left-asymmetric-6", 16),
        ("right-asymmetric-6", 17),
        ("left-symmetric-6", 18),
        ("right-symmetric-6", 19),
        ("parity-first-6", 20),
    ];
    let found = names.iter().find(|(known, _)| *known == name);
    let (_, word) = found.unwrap_or_else(|| panic!("{level:?} {name}"));
    *word
}

fn geometry(level: ParityLevel, word: u32, disks: usize, rows: u64) -> Geometry {
    Geometry::new(level, word, disks, CHUNK, Sectors(rows * CHUNK.0 + 5)).expect("an array")
}

/// What the table says of a row on one member, as the geometry sees it.
fn shown(geometry: &Geometry, slot: usize, row: u64) -> String {
    let on_member = Sector(row * CHUNK.0);
    match geometry.unmap(slot, on_member) {
        Held::P => "P".into(),
        Held::Q => "Q".into(),
        Held::Data(sector) => {
            let exponent = geometry.row_at(on_member).exponent(slot);
            let letter = exponent.map(|exponent| char::from(b'a' + exponent));
            format!("{}{}", sector.0 / CHUNK.0, letter.map(String::from).unwrap_or_default())
        }
        Held::Nothing => "-".into(),
    }
}

#[test]
fn rows_are_those_that_kernels_wrote() {
    let mut count = 0;
    for line in TABLES.lines().filter(|line| !line.starts_with('#')) {
        let (what, rows) = line.split_once(": ").expect("a line of the table");
        let [level, name, disks] = what.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{what}")
        };
        let level = match level {
            "4" => ParityLevel::Raid4,
            "5" => ParityLevel::Raid5,
            _ => ParityLevel::Raid6,
        };
        let disks: usize = disks.parse().unwrap();
        let geometry = geometry(level, word(level, name), disks, 3 * disks as u64);
        let rows: Vec<Vec<&str>> = rows.split(" | ").map(|row| row.split(' ').collect()).collect();
        // The pattern repeats after the rows of the table.
        let data_disks = geometry.data_disks() as u64;
        for row in 0..3 * disks as u64 {
            let pattern = &rows[row as usize % rows.len()];
            let repeats = row / rows.len() as u64 * rows.len() as u64 * data_disks;
            for (slot, cell) in pattern.iter().enumerate() {
                let digits = cell.trim_end_matches(char::is_alphabetic);
                let wanted = match digits.parse::<u64>() {
                    Ok(number) => format!("{}{}", number + repeats, &cell[digits.len()..]),
                    Err(_) => (*cell).to_owned(),
                };
                assert_eq!(shown(&geometry, slot, row), wanted, "{what}, row {row}, member {slot}");
            }
        }
        count += 1;
    }
    assert_eq!(count, 70);
}

/// Calls `f` with every small array.
fn every_array(f: &mut dyn FnMut(&Geometry)) {
    for level in [ParityLevel::Raid4, ParityLevel::Raid5, ParityLevel::Raid6] {
        for word in words(level) {
            for disks in level.least_members()..=8 {
                f(&geometry(level, *word, disks, 2 * disks as u64 + 1));
            }
        }
    }
}

#[test]
fn map_and_unmap_are_inverse_and_each_row_is_full() {
    every_array(&mut |geometry| {
        let (mut data, mut parity) = (0, 0);
        for slot in 0..geometry.disks() {
            for at in 0..geometry.used_dev_sectors().0 + CHUNK.0 {
                let row = geometry.row_at(Sector(at));
                match geometry.unmap(slot, Sector(at)) {
                    Held::Data(sector) => {
                        let place = geometry.map(sector);
                        assert_eq!((place.disk, place.sector), (slot, Sector(at)));
                        assert_eq!(geometry.chunk_left(sector), geometry.chunk_left(Sector(at)));
                        let index = row.index(slot).unwrap();
                        assert_eq!(row.data(index), slot);
                        data += 1;
                    }
                    Held::P | Held::Q => parity += 1,
                    Held::Nothing => assert!(at >= geometry.used_dev_sectors().0),
                }
            }
        }
        assert_eq!(data, geometry.size().0, "{geometry:?}");
        let parities = geometry.level().parities() as u64;
        assert_eq!(parity, geometry.used_dev_sectors().0 * parities);
    });
}

#[test]
fn exponents_differ_within_a_row() {
    every_array(&mut |geometry| {
        for number in 0..geometry.used_dev_sectors().0 / CHUNK.0 {
            let row = geometry.row_at(Sector(number * CHUNK.0));
            let data = (0..geometry.data_disks()).map(|index| row.data(index));
            let mut exponents: Vec<_> = data.filter_map(|slot| row.exponent(slot)).collect();
            let count = exponents.len();
            assert_eq!(count, row.q.map_or(0, |_| geometry.data_disks()));
            exponents.sort_unstable();
            exponents.dedup();
            assert_eq!(exponents.len(), count, "{geometry:?}, row {number}");
        }
    });
}

#[test]
fn rows_contain_each_sector_of_a_range_and_its_parity() {
    every_array(&mut |geometry| {
        let size = geometry.size().0;
        for from in (0..size).step_by(3) {
            for to in (from + 1..=size.min(from + 40)).step_by(5) {
                let rows = geometry.rows(Sector(from)..Sector(to));
                for sector in from..to {
                    assert!(rows.contains(&geometry.map(Sector(sector)).sector));
                }
                assert!(rows.end <= geometry.used_dev_sectors().as_end());
                assert!((rows.start.0 | rows.end.0).is_multiple_of(CHUNK.0));
            }
        }
    });
}

#[test]
fn the_largest_arrays_have_a_map_and_larger_ones_are_refused() {
    let new = |level, word, disks| Geometry::new(level, word, disks, CHUNK, Sectors(800));
    for (level, word, most) in [
        (ParityLevel::Raid4, 0, 1920),
        (ParityLevel::Raid5, 2, 1920),
        (ParityLevel::Raid6, 2, 257),
        (ParityLevel::Raid6, 18, 257),
        (ParityLevel::Raid6, 8, 255),
        (ParityLevel::Raid6, 10, 255),
    ] {
        let geometry = new(level, word, most).expect("an array");
        for number in 0..100 {
            let row = geometry.row_at(Sector(number * CHUNK.0));
            let data = (0..geometry.data_disks()).map(|index| row.data(index));
            let mut slots: Vec<usize> = data.chain([row.p]).chain(row.q).collect();
            slots.sort_unstable();
            assert!(slots.into_iter().eq(0..most));
            let exponents = (0..most).filter_map(|slot| row.exponent(slot));
            assert!(exponents.max().is_none_or(|exponent| exponent < 255));
        }
        for disks in [0, 1, level.least_members() - 1, most + 1] {
            let refused = new(level, word, disks).unwrap_err();
            assert!(matches!(refused, GeometryError::MemberCount { .. }), "{refused}");
        }
    }
}

#[test]
fn impossible_parameters_are_refused() {
    let new =
        |level, word, chunk, size| Geometry::new(level, word, 4, Sectors(chunk), Sectors(size));
    for word in [6, 7, 8, 16, u32::MAX] {
        assert!(new(ParityLevel::Raid5, word, 8, 80).is_err(), "{word}");
    }
    for word in [6, 7, 11, 12, 13, 14, 15, 21, 22, 23, 24, u32::MAX] {
        assert!(new(ParityLevel::Raid6, word, 8, 80).is_err(), "{word}");
    }
    for chunk in [0, 1, 2, 4, 7, 12, 24] {
        assert_eq!(
            new(ParityLevel::Raid5, 2, chunk, 80),
            Err(GeometryError::Chunk(Sectors(chunk)))
        );
    }
    assert_eq!(new(ParityLevel::Raid5, 2, 128, 127), Err(GeometryError::Empty(Sectors(127))));
    let size = u64::MAX / 2;
    assert!(matches!(new(ParityLevel::Raid5, 2, 8, size), Err(GeometryError::TooLarge { .. })));
}
