//! The RAID 10 address map against the oracle: every layout on 2 to 7 members.

use crate::geometry_raid10::oracle::Case;
use ashlar_block::units::{Sector, Sectors};
use ashlar_md::internals::raid10::{Geometry, GeometryError, Layout, LayoutError};

const MAX_DISKS: usize = 7;

/// Every possible case, with its member size and geometry.
fn legal(chunk: u64, rows: u64, rest: u64) -> impl Iterator<Item = (Case, u64, Geometry)> {
    Case::legal(MAX_DISKS).into_iter().map(move |case| {
        let dev = rows * case.far as u64 * chunk + rest;
        let geometry = case.geometry(chunk, dev);
        (case, dev, geometry.expect("a legal layout"))
    })
}

#[test]
fn every_sector_maps_to_the_places_where_the_copies_were_dealt() {
    for (chunk, rows, rest) in [(1, 1, 0), (1, 5, 0), (2, 4, 1), (4, 3, 3), (8, 1, 7)] {
        for (case, dev, geometry) in legal(chunk, rows, rest) {
            let oracle = case.oracle(chunk, dev);
            assert_eq!(geometry.size(), Sectors(oracle.copies.len() as u64), "{case:?}");
            for (sector, places) in (0..).zip(&oracle.copies) {
                let copies = geometry.map(Sector(sector));
                assert_eq!(copies.len(), places.len(), "{case:?}");
                let found: Vec<_> = copies.map(|c| (c.disk, c.sector.0)).collect();
                assert_eq!(&found, places, "{case:?} sector {sector}");
                assert_eq!(geometry.chunk_left(Sector(sector)).0, chunk - sector % chunk);
            }
        }
    }
}

#[test]
fn unmap_is_the_inverse_of_map_and_knows_the_sectors_that_are_not_used() {
    for (chunk, rows, rest) in [(1, 5, 0), (2, 4, 1), (4, 2, 3)] {
        for (case, dev, geometry) in legal(chunk, rows, rest) {
            let oracle = case.oracle(chunk, dev);
            for (disk, owners) in oracle.owner.iter().enumerate() {
                for (sector, owner) in (0..).zip(owners) {
                    let found = geometry.unmap(disk, Sector(sector)).map(|s| s.0);
                    assert_eq!(found, *owner, "{case:?} member {disk} sector {sector}");
                }
                assert_eq!(geometry.unmap(disk, Sector(dev)), None);
                assert_eq!(geometry.unmap(disk, Sector(u64::MAX)), None);
            }
            assert_eq!(geometry.unmap(case.disks, Sector(0)), None);
        }
    }
}

#[test]
fn no_copy_lies_beyond_the_used_part_of_a_member() {
    for (case, dev, geometry) in legal(2, 3, 1) {
        let last =
            (0..geometry.size().0).flat_map(|s| geometry.map(Sector(s))).map(|c| c.sector.0).max();
        assert!(geometry.used_dev_sectors().0 <= dev, "{case:?}");
        assert_eq!(last.map(|s| s + 1), Some(geometry.used_dev_sectors().0), "{case:?}");
    }
}

#[test]
fn an_array_is_readable_as_long_as_each_chunk_has_a_copy_for_every_set_of_members() {
    for (case, dev, geometry) in legal(1, 3, 0) {
        let oracle = case.oracle(1, dev);
        for alive in 0u32..1 << case.disks {
            let present = |disk: usize| alive & 1 << disk != 0;
            let expected =
                oracle.copies.iter().all(|places| places.iter().any(|&(disk, _)| present(disk)));
            assert_eq!(geometry.is_readable_with(present), expected, "{case:?} {alive:b}");
        }
        let shared = oracle.copies.iter().any(|places| {
            (1..places.len()).any(|i| places[..i].iter().any(|p| p.0 == places[i].0))
        });
        if case.mode != 1 {
            assert!(!shared, "{case:?}");
        }
    }
}

#[test]
fn layouts_in_which_chunks_would_share_a_place_are_refused_and_no_others() {
    let mut refused = (0, 0);
    for case in Case::all(MAX_DISKS) {
        let result = case.geometry(2, 64);
        if case.offset_runs_over() {
            assert!(matches!(result, Err(GeometryError::OffsetRunsOver { .. })), "{case:?}");
            refused.0 += 1;
        } else if case.far_sets_collide() {
            assert!(matches!(result, Err(GeometryError::FarSetsCollide { .. })), "{case:?}");
            refused.1 += 1;
        } else {
            assert!(result.is_ok(), "{case:?}: {result:?}");
        }
    }
    assert!(refused.0 > 0 && refused.1 > 0, "{refused:?}");
}

#[test]
fn zero_far_copies_is_refused() {
    // Upstream divided by the far copies.
    let zero = |bits| {
        let error = GeometryError::Layout(LayoutError::ZeroCopies(bits));
        assert_eq!(Geometry::new(bits, 4, Sectors(8), Sectors(1024)).err(), Some(error));
    };
    zero(0x0002);
    zero(0x0200);
    zero(0x0000);
    zero(0x1_0002);
    zero(0x2_0002);
}

#[test]
fn layout_bits_above_18_are_refused() {
    for bit in 19..32 {
        let bits = 0x102 | 1 << bit;
        assert_eq!(Layout::from_bits(bits), Err(LayoutError::UnknownBits(bits)));
    }
    assert_eq!(Layout::from_bits(0x6_0102), Err(LayoutError::FarSetMode(0x6_0102)));
}

#[test]
fn numbers_that_make_no_array_are_refused_with_a_reason() {
    let n2 = |disks, chunk, dev| Geometry::new(0x102, disks, Sectors(chunk), Sectors(dev)).err();
    assert_eq!(n2(0, 8, 64), Some(GeometryError::MemberCount(0)));
    assert_eq!(n2(1, 8, 64), Some(GeometryError::MemberCount(1)));
    assert_eq!(n2(1921, 8, 64), Some(GeometryError::MemberCount(1921)));
    assert_eq!(n2(4, 0, 64), Some(GeometryError::Chunk(Sectors(0))));
    assert_eq!(n2(4, 24, 64), Some(GeometryError::Chunk(Sectors(24))));
    assert_eq!(n2(4, 8, 7), Some(GeometryError::Empty(Sectors(7))));
    assert!(matches!(n2(4, 8, u64::MAX), Some(GeometryError::TooLarge { .. })));
    assert!(matches!(n2(4, 1 << 63, u64::MAX / 4), Some(GeometryError::Empty(_))));

    let copies = |bits, disks| Geometry::new(bits, disks, Sectors(8), Sectors(64)).err();
    let expected = |copies, disks| Some(GeometryError::Copies { copies, disks });
    assert_eq!(copies(0x101, 4), expected(1, 4));
    assert_eq!(copies(0x103, 2), expected(3, 2));
    assert_eq!(copies(0x202, 3), expected(4, 3));
    assert_eq!(copies(0xffff, 1920), expected(65025, 1920));
}

#[test]
fn any_layout_word_and_any_numbers_give_an_answer() {
    let edges = [0, 1, 2, 3, 4, 7, 255, 1920, 1921];
    let sizes = [0, 1, 2, 8, 1 << 31, (1 << 53) - 1, 1 << 62, u64::MAX];
    for near in [0, 1, 2, 3, 255] {
        for far in [0, 1, 2, 3, 255] {
            for mode in 0..8 {
                let bits = near | far << 8 | mode << 16;
                for disks in edges {
                    for chunk in sizes {
                        for dev in sizes {
                            check_the_ends(bits, disks, chunk, dev);
                        }
                    }
                }
            }
        }
    }
}

/// If the array is possible: its first and last sector are in their places on the members.
fn check_the_ends(bits: u32, disks: usize, chunk: u64, dev: u64) {
    let Ok(geometry) = Geometry::new(bits, disks, Sectors(chunk), Sectors(dev)) else {
        return;
    };
    for sector in [0, geometry.size().0 - 1] {
        for copy in geometry.map(Sector(sector)) {
            assert!(copy.disk < disks && copy.sector.0 < dev);
            assert_eq!(geometry.unmap(copy.disk, copy.sector), Some(Sector(sector)));
        }
    }
}
