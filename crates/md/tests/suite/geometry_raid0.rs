//! RAID 0 zones, linear arrays and discards against a stack of chunks built by hand: up to five members of every
//! size up to three chunks, both layouts.

use ashlar_block::units::{Sector, Sectors};
use ashlar_md::internals::raid0::{Span, Zones, ZonesError, discard};

const ORIGINAL: u32 = 1;
const ALTERNATE: u32 = 2;

fn span(start: u64, len: u64) -> Span {
    Span { start: Sector(start), len: Sectors(len) }
}

fn zones(members: &[u64], chunk: u64, layout: u32) -> Result<Zones, ZonesError> {
    let members: Vec<Sectors> = members.iter().copied().map(Sectors).collect();
    Zones::new(&members, Sectors(chunk), layout)
}

/// A member and a sector on it.
type Place = (usize, u64);

/// The places of the array sectors, as md(4) describes them: stripe over the members that still have
/// room, until one of them is full.
fn stacked(chunks: &[u64], chunk: u64, layout: u32) -> Vec<Place> {
    let with_room =
        |row: u64| -> Vec<usize> { (0..chunks.len()).filter(|&m| chunks[m] > row).collect() };
    let mut places = Vec::new();
    let (mut in_array, mut in_zone, mut row) = (0, 0, 0);
    while !with_room(row).is_empty() {
        let members = with_room(row);
        if row > 0 && with_room(row - 1) != members {
            in_zone = 0;
        }
        for _ in 0..members.len() {
            let counted = if layout == ORIGINAL { in_array } else { in_zone };
            let member = members[counted % members.len()];
            places.extend((0..chunk).map(|i| (member, row * chunk + i)));
            in_array += 1;
            in_zone += 1;
        }
        row += 1;
    }
    places
}

/// Calls `f` with every list of one to `count` numbers below `below`.
fn every_list(count: usize, below: u64, f: &mut dyn FnMut(&[u64])) {
    let mut lists = vec![vec![]];
    for _ in 0..count {
        lists = lists
            .iter()
            .flat_map(|list: &Vec<u64>| (0..below).map(move |n| [list.as_slice(), &[n]].concat()))
            .collect();
        lists.iter().for_each(|list| f(list));
    }
}

/// Calls `f` with every small array (one of its members not of whole chunks): its zones, and the places
/// of the sectors below its size.
fn every_array(f: &mut dyn FnMut(&Zones, &[Place])) {
    every_list(5, 4, &mut |chunks| {
        if chunks.iter().all(|&c| c == 0) {
            return;
        }
        for (chunk, layout) in [(2, ORIGINAL), (2, ALTERNATE), (3, ORIGINAL), (3, ALTERNATE)] {
            let mut members: Vec<u64> = chunks.iter().map(|c| c * chunk).collect();
            members[0] += chunk - 1;
            let zones = zones(&members, chunk, layout).expect("an array");
            let mut places = stacked(chunks, chunk, layout);
            if chunk.is_power_of_two() {
                assert_eq!(zones.size().0, places.len() as u64);
            } else {
                assert!(zones.size().0 <= places.len() as u64);
                places.truncate(zones.size().0 as usize);
            }
            f(&zones, &places);
        }
    });
}

#[test]
fn every_sector_of_every_small_array_maps_to_where_it_was_stacked() {
    every_array(&mut |zones, places| {
        let chunk = zones.chunk().0;
        for (sector, &(member, at)) in (0..).zip(places) {
            let mapped = zones.map(Sector(sector));
            assert_eq!((mapped.disk, mapped.sector.0), (member, at), "{zones:?} {sector}");
            assert_eq!(mapped.left.0, chunk - sector % chunk);
        }
    });
}

#[test]
fn unmap_is_the_inverse_of_map_and_knows_the_sectors_that_are_not_used() {
    every_array(&mut |zones, places| {
        for disk in 0..6 {
            for at in 0..15 {
                let expected = places.iter().position(|&p| p == (disk, at));
                let found = zones.unmap(disk, Sector(at)).map(|s| s.0 as usize);
                assert_eq!(found, expected, "{zones:?} member {disk} sector {at}");
            }
            assert_eq!(zones.unmap(disk, Sector(u64::MAX)), None);
        }
    });
}

#[test]
fn zones_follow_one_another_and_lose_members() {
    every_array(&mut |zones, _| {
        let mut end = Sector(0);
        for pair in zones.zones().windows(2) {
            assert!(pair[0].members().len() > pair[1].members().len());
        }
        for zone in zones.zones() {
            assert!(zone.span.start == end && !zone.span.is_empty());
            assert!(zone.span.start.is_aligned(zones.chunk()));
            end = zone.span.end();
        }
        assert!(end >= zones.size().as_end());
    });
}

#[test]
fn every_discard_touches_its_range_and_nothing_else_with_one_range_per_member_and_zone() {
    every_array(&mut check_discards);
}

fn check_discards(zones: &Zones, places: &[Place]) {
    let size = places.len() as u64;
    for start in 0..size {
        for len in 0..=size - start {
            let mut wanted: Vec<_> = places[start as usize..][..len as usize].to_vec();
            let mut touched = Vec::with_capacity(wanted.len());
            let mut seen = Vec::new();
            for range in discard::plan(zones, span(start, len)) {
                assert!(!range.span.is_empty());
                let zone = zones.zones().iter().rposition(|z| z.dev_start <= range.span.start);
                assert!(!seen.contains(&(range.disk, zone)), "{zones:?}");
                seen.push((range.disk, zone));
                touched.extend((range.span.start.0..range.span.end().0).map(|s| (range.disk, s)));
            }
            wanted.sort_unstable();
            touched.sort_unstable();
            assert_eq!(touched, wanted, "{zones:?} {start}+{len}");
        }
    }
}

#[test]
fn a_discard_beyond_the_end_is_cut_off() {
    let zones = zones(&[8, 16], 4, ALTERNATE).expect("two zones");
    let touched = |s| discard::plan(&zones, s).map(|r| r.span.len.0).sum::<u64>();
    assert_eq!(touched(span(20, u64::MAX)), 4);
    assert_eq!(touched(span(24, 1)), 0);
    assert_eq!(touched(span(u64::MAX, u64::MAX)), 0);
}

#[test]
fn original_layout_multi_zone_discard_uses_the_shifted_disk() {
    // Upstream e836007089ba: discards treated every array as one with the alternate layout.
    //
    // Members of 1, 3 and 3 chunks. Zone 0 is row 0; chunk 3 is the first of zone 1, and in the
    // original layout lies on the second of its two members, because 3 is odd.
    let chunk = 8;
    let members = [chunk, 3 * chunk, 3 * chunk];
    let discarded = |layout, start, len| -> Vec<(usize, u64, u64)> {
        let zones = zones(&members, chunk, layout).expect("two zones");
        discard::plan(&zones, span(start, len))
            .map(|r| (r.disk, r.span.start.0 + 100 * r.disk as u64, r.span.len.0))
            .collect()
    };
    let chunk_3 = 3 * chunk;
    assert_eq!(discarded(ORIGINAL, chunk_3, chunk), [(2, 200 + chunk, chunk)]);
    assert_eq!(discarded(ALTERNATE, chunk_3, chunk), [(1, 100 + chunk, chunk)]);

    // From the second half of chunk 3 to the first half of chunk 6, so over both rows.
    let mut ranges = discarded(ORIGINAL, chunk_3 + 4, 3 * chunk);
    ranges.sort_unstable();
    assert_eq!(ranges, [(1, 100 + chunk, chunk + 4), (2, 200 + chunk + 4, 2 * chunk - 4)]);
}

#[test]
fn an_unknown_layout_is_refused_only_where_it_matters() {
    let unknown = |members: &[u64], layout| zones(members, 8, layout).err();
    assert_eq!(unknown(&[8, 16, 16], 0), Some(ZonesError::UnknownLayout(0)));
    assert_eq!(unknown(&[8, 16, 16], 3), Some(ZonesError::UnknownLayout(3)));
    let text = ZonesError::UnknownLayout(0).to_string();
    assert!(text.contains("cannot assemble") && text.contains('1') && text.contains('2'));
    // One zone, or a second zone with one member: both layouts are the same.
    assert_eq!(unknown(&[16, 16, 16], 0), None);
    assert_eq!(unknown(&[8, 16], 0), None);
    assert_eq!(unknown(&[8, 8, 16], u32::MAX), None);
}

#[test]
fn numbers_that_make_no_array_are_refused_with_a_reason() {
    assert_eq!(zones(&[8], 0, 0).err(), Some(ZonesError::NoChunk));
    assert_eq!(zones(&[], 8, 0).err(), Some(ZonesError::MemberCount(0)));
    assert_eq!(zones(&[8; 1921], 8, 0).err(), Some(ZonesError::MemberCount(1921)));
    assert_eq!(zones(&[7, 0], 8, 0).err(), Some(ZonesError::Empty));
    assert_eq!(zones(&[u64::MAX, 8], 1, 0).err(), Some(ZonesError::TooLarge));
    assert!(zones(&[8; 1920], 8, 0).is_ok());
    assert!(zones(&[u64::MAX], 1, 0).is_ok());
}

#[test]
fn linear_arrays_have_the_sizes_that_kernels_give_them() {
    // Data areas of three members with metadata 0.90, 1.0 and 1.2, as Linux 6.1 and mdadm 4.2 make them.
    let tables = [
        ([6016, 8064, 10240], [(0, 24320), (128, 24320), (512, 23552)]),
        ([6120, 8168, 10368], [(0, 24656), (128, 24448), (512, 23552)]),
        ([4096, 6147, 8346], [(0, 18589), (128, 18560), (512, 18432)]),
    ];
    for (members, sizes) in tables {
        let members = members.map(Sectors);
        for (rounding, size) in sizes {
            let zones = Zones::concatenated(&members, Sectors(rounding)).unwrap();
            assert_eq!(zones.size(), Sectors(size), "{members:?} {rounding}");
        }
    }
}

#[test]
fn a_linear_array_is_one_member_after_the_other() {
    every_list(4, 7, &mut |sizes| {
        for rounding in [0, 2, 3] {
            let members: Vec<Sectors> = sizes.iter().copied().map(Sectors).collect();
            let used = |size: &u64| if rounding == 0 { *size } else { size - size % rounding };
            let places: Vec<Place> = sizes
                .iter()
                .enumerate()
                .flat_map(|(m, s)| (0..used(s)).map(move |at| (m, at)))
                .collect();
            let made = Zones::concatenated(&members, Sectors(rounding));
            if places.is_empty() {
                assert_eq!(made.unwrap_err(), ZonesError::Empty);
                continue;
            }
            let zones = made.unwrap();
            assert_eq!((zones.size().0, zones.disks()), (places.len() as u64, sizes.len()));
            for (sector, (member, at)) in (0..).zip(&places) {
                let mapped = zones.map(Sector(sector));
                assert_eq!((mapped.disk, mapped.sector.0), (*member, *at));
                assert_eq!(mapped.left.0, used(&sizes[*member]) - at);
                assert_eq!(zones.unmap(*member, Sector(*at)), Some(Sector(sector)));
            }
            for (member, size) in sizes.iter().enumerate() {
                assert_eq!(zones.unmap(member, Sector(used(size))), None);
            }
            check_discards(&zones, &places);
        }
    });
}
