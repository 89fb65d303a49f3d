//! Allocation of extents to new and growing volumes.

use ashlar_block::{Sector, Sectors};
use ashlar_lvm::alloc::{AllocError, Policy, Wish};
use ashlar_lvm::metadata::{Header, PvExtents, PvFlag};
use ashlar_lvm::text::{self, Form};
use ashlar_lvm::{LogicalVolume, Metadata, PhysicalVolume, VolumeGroup};
use ashlar_sim::{Rng, seeds};

use crate::formats::cases::case;
use crate::formats::devices::uuid;

fn group(extents: &[u32]) -> VolumeGroup {
    let mut group = VolumeGroup::new("vg", uuid(0), Sectors(8));
    for (i, count) in (0..).zip(extents) {
        let size = Sectors(2048 + 8 * u64::from(*count));
        group.pvs.push(PhysicalVolume::new(uuid(i), size, Sector(2048), *count));
    }
    group
}

fn places(lv: &LogicalVolume) -> Vec<(usize, u32, u32)> {
    lv.pv_extents().map(|on| (on.pv, on.start, on.count)).collect()
}

fn add(group: &mut VolumeGroup, number: u8, wish: &Wish) -> Result<(), AllocError> {
    let segments = group.allocate(wish, None)?;
    let lv = LogicalVolume::new(format!("lv{number}"), uuid(100 + number), true, segments);
    group.add_lv(lv);
    group.check().expect("possible");
    Ok(())
}

#[test]
fn a_linear_volume_is_in_one_piece_where_one_is_large_enough() {
    let mut group = group(&[10, 30, 20]);
    add(&mut group, 0, &Wish::linear(25)).expect("fits");
    assert_eq!(places(&group.lvs[0]), [(1, 0, 25)]);
    add(&mut group, 1, &Wish::linear(22)).expect("fits");
    // Largest pieces first.
    assert_eq!(places(&group.lvs[1]), [(2, 0, 20), (0, 0, 2)]);
    assert_eq!(group.free_extents(), 13);
    let contiguous = Wish { policy: Policy::Contiguous, ..Wish::linear(9) };
    let error = add(&mut group, 2, &contiguous).expect_err("in two pieces only");
    assert!(error.to_string().contains("placed as \"contiguous\""), "{error}");
    assert_eq!(
        add(&mut group, 2, &Wish::linear(14)),
        Err(AllocError::NoSpace { wanted: 14, free: 13 })
    );
}

#[test]
fn stripes_are_on_different_physical_volumes() {
    let mut group = group(&[10, 30, 20]);
    add(&mut group, 0, &Wish::striped(30, 3, Sectors(8))).expect("fits");
    assert_eq!(places(&group.lvs[0]), [(0, 0, 10), (1, 0, 10), (2, 0, 10)]);
    let error = add(&mut group, 1, &Wish::striped(30, 3, Sectors(8))).expect_err("one is full");
    assert!(matches!(error, AllocError::NotSo { stripes: 3, .. }), "{error}");
    assert!(matches!(
        add(&mut group, 1, &Wish::striped(7, 2, Sectors(8))),
        Err(AllocError::Stripes { .. })
    ));
}

#[test]
fn a_growing_volume_goes_on_where_it_ends() {
    let mut group = group(&[100, 100]);
    add(&mut group, 0, &Wish::linear(10)).expect("fits");
    add(&mut group, 1, &Wish::linear(10)).expect("fits");
    // The second volume is on the emptier disk; the first one can be extended in place.
    assert_eq!(places(&group.lvs[1]), [(1, 0, 10)]);
    let grow = |group: &mut VolumeGroup, index: usize, wish: &Wish| {
        let last = group.lvs[index].segments.last().cloned();
        let more = group.allocate(wish, last.as_ref())?;
        group.lvs[index].extend(more);
        group.check().expect("possible");
        Ok::<_, AllocError>(())
    };
    grow(&mut group, 0, &Wish::linear(5)).expect("fits");
    assert_eq!(places(&group.lvs[0]), [(0, 0, 15)]);
    assert_eq!(group.lvs[0].segments.len(), 1, "merged");
    let contiguous = Wish { policy: Policy::Contiguous, ..Wish::linear(86) };
    assert!(grow(&mut group, 0, &contiguous).is_err());
    grow(&mut group, 0, &Wish::linear(90)).expect("fits");
    assert_eq!(places(&group.lvs[0]), [(0, 0, 100), (1, 10, 5)]);
    let cling = Wish { policy: Policy::Cling, ..Wish::linear(10) };
    grow(&mut group, 1, &cling).expect("same disk");
    assert_eq!(places(&group.lvs[1]), [(1, 0, 10), (1, 15, 10)]);
}

#[test]
fn volumes_that_may_not_be_allocated_are_left_alone() {
    let mut group = group(&[10, 30, 20]);
    group.pvs[1].flags.remove(&PvFlag::Allocatable);
    group.pvs[2].flags.insert(PvFlag::Missing);
    assert_eq!(group.free_extents(), 10);
    assert_eq!(group.free_map().total(), 60);
    add(&mut group, 0, &Wish::linear(10)).expect("fits");
    assert_eq!(places(&group.lvs[0]), [(0, 0, 10)]);
    group.pvs[1].flags.insert(PvFlag::Allocatable);
    group.pvs[2].flags.remove(&PvFlag::Missing);
    let only = Wish { only: vec![2], ..Wish::linear(5) };
    add(&mut group, 1, &only).expect("fits");
    assert_eq!(places(&group.lvs[1]), [(2, 0, 5)]);
}

#[test]
fn free_extents_are_those_that_no_volume_uses() {
    for name in ["linear", "striped", "raid", "thin", "cache"] {
        let group = case(name).metadata().group;
        let map = group.free_map();
        let used: u64 =
            group.lvs.iter().flat_map(|lv| lv.pv_extents()).map(|on| u64::from(on.count)).sum();
        let all: u64 = group.pvs.iter().map(|pv| u64::from(pv.pe_count)).sum();
        assert_eq!(map.total() + used, all, "{name}");
        for (pv, ranges) in (0..group.pvs.len()).map(|pv| (pv, map.ranges(pv))) {
            for range in ranges {
                let overlaps = |on: PvExtents| {
                    on.pv == pv && on.start < range.end && range.start < on.start + on.count
                };
                assert!(!group.lvs.iter().any(|lv| lv.pv_extents().any(overlaps)), "{name}");
            }
        }
    }
}

#[test]
fn random_volumes_come_grow_and_go_without_ever_sharing_an_extent() {
    for seed in seeds(200) {
        let mut rng = Rng::new(seed);
        let sizes: Vec<u32> = (0..1 + rng.below(5)).map(|_| rng.below(200) as u32).collect();
        let mut group = group(&sizes);
        for number in 0..60 {
            let stripes = 1 + rng.below(3) as u32;
            let mut wish = Wish::striped(stripes * (1 + rng.below(40) as u32), stripes, Sectors(8));
            wish.policy = [Policy::Contiguous, Policy::Cling, Policy::Normal][rng.index(3)];
            let free = group.free_map().total();
            let taken = match rng.below(3) {
                0 if !group.lvs.is_empty() => {
                    let name = group.lvs[rng.index(group.lvs.len())].name.clone();
                    group.remove_lv(&name).expect("there");
                    continue;
                }
                1 if !group.lvs.is_empty() => {
                    let at = rng.index(group.lvs.len());
                    let last = group.lvs[at].segments.last().cloned();
                    let more = group.allocate(&wish, last.as_ref());
                    more.map(|more| group.lvs[at].extend(more))
                }
                _ => add(&mut group, number, &wish),
            };
            group.check().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            // Copies of the group share the texts of volumes that did not change.
            let mut other = Metadata::new(group.clone(), Header::default());
            for form in [Form::Disk, Form::Backup { utc_offset: 3600 * i32::from(number % 3) }] {
                for extent_size in [Sectors(8), Sectors(16)] {
                    other.group.extent_size = extent_size;
                    let anew = text::print(&other.to_tree(), form);
                    assert!(other.print(form) == anew, "seed {seed}: {form:?}");
                }
            }
            let expected = if taken.is_ok() { free - u64::from(wish.extents) } else { free };
            assert_eq!(group.free_map().total(), expected, "seed {seed}");
            // The rest can always be allocated in any pieces.
            if let Err(AllocError::NotSo { stripes, policy, .. }) = taken {
                assert!(stripes > 1 || policy != "normal", "seed {seed}");
            }
        }
    }
}
