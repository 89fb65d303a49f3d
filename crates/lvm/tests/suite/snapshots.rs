//! The extension of snapshots by policy.

use ashlar_block::Sectors;
use ashlar_dm::snapshot::{Status, Usage};
use ashlar_lvm::VolumeGroup;
use ashlar_lvm::alloc::Wish;
use ashlar_lvm::change::NewVolume;
use ashlar_lvm::command::Command;
use ashlar_lvm::report::Percent;
use ashlar_lvm::snapshots::{AutoExtend, BadAutoExtend, NoFreeExtents, used_percent};

use crate::common::{metadata, with_author};

fn policy(threshold: u32, percent: u32) -> AutoExtend {
    AutoExtend::new(Some(threshold), Some(percent)).unwrap()
}

/// A use of this many thousandths of a snapshot's space.
fn usage(group: &VolumeGroup, snapshot: &str, thousandths: u64) -> Usage {
    let total = group.size(group.lv(snapshot).unwrap());
    Usage { allocated: Sectors(total.0 * thousandths / 1000), total, metadata: Sectors(16) }
}

/// The extents that the policy adds to a snapshot, once.
fn extends(
    group: &mut VolumeGroup,
    snapshot: &str,
    thousandths: u64,
    policy: AutoExtend,
) -> Result<u32, NoFreeExtents> {
    let before = group.lv(snapshot).unwrap().extents();
    let usage = usage(group, snapshot, thousandths);
    if let Some(resize) = group.autoextension(snapshot, usage, policy)? {
        let command = Command::Resize(resize);
        with_author(|author| command.apply(group, &|_| None, author)).unwrap();
        group.check().unwrap();
    }
    Ok(group.lv(snapshot).unwrap().extents() - before)
}

#[test]
fn a_policy_is_what_lvm_accepts() {
    assert!(!AutoExtend::default().is_on());
    assert_eq!(AutoExtend::new(None, None), Ok(AutoExtend::default()));
    assert_eq!(AutoExtend::new(Some(100), Some(20)), Ok(AutoExtend::default()));
    assert!(policy(99, 1).is_on());
    for threshold in [0, 49, 101, u32::MAX] {
        let refused = AutoExtend::new(Some(threshold), None);
        assert_eq!(refused, Err(BadAutoExtend::Threshold(threshold)));
    }
    assert_eq!(AutoExtend::new(Some(70), Some(0)), Err(BadAutoExtend::Percent(0)));
}

#[test]
fn the_used_part_is_that_of_lvs() {
    let valid = |allocated, total, metadata| {
        let (allocated, total) = (Sectors(allocated), Sectors(total));
        used_percent(Status::Valid(Usage { allocated, total, metadata: Sectors(metadata) }))
    };
    assert_eq!(valid(16, 8192, 16), Some(Percent::NONE));
    assert_eq!(valid(48, 8192, 16).map(Percent::show).as_deref(), Some("0.59"));
    assert_eq!(valid(8192, 8192, 16), Some(Percent::ALL));
    assert_eq!(used_percent(Status::Invalid), Some(Percent::ALL));
    assert_eq!(used_percent(Status::Overflow), Some(Percent::ALL));
    assert_eq!(used_percent(Status::MergeFailed), None);
}

#[test]
fn a_snapshot_is_extended_above_the_threshold_and_by_the_percentage() {
    let mut group = metadata("snapshots").group.clone();
    assert_eq!(group.lv("one").map(|lv| lv.extents()), Some(4));
    for (thousandths, policy) in [(1000, AutoExtend::default()), (700, policy(70, 20))] {
        assert_eq!(extends(&mut group, "one", thousandths, policy), Ok(0));
    }
    // A fifth of four extents is one; half of five are three.
    assert_eq!(extends(&mut group, "one", 701, policy(70, 20)), Ok(1));
    assert_eq!(extends(&mut group, "one", 501, policy(50, 50)), Ok(3));
    assert_eq!(extends(&mut group, "other", 900, policy(50, 50)), Ok(0), "it is not a snapshot");
    group.start_merge("one").unwrap();
    assert_eq!(extends(&mut group, "one", 900, policy(50, 50)), Ok(0), "it is being merged");
}

#[test]
fn one_extension_brings_the_use_below_the_threshold() {
    let mut group = metadata("snapshots").group.clone();
    // All of 4 extents in use: 60 percent of 7 are more than that.
    assert_eq!(extends(&mut group, "one", 1000, policy(60, 1)), Ok(3));
    assert_eq!(extends(&mut group, "one", 4000 / 7, policy(60, 1)), Ok(0));
}

#[test]
fn a_snapshot_is_not_extended_beyond_what_its_origin_can_fill() {
    let mut group = metadata("snapshots").group.clone();
    assert!(!group.covers_origin("one"));
    // 9 extents hold 8 MiB, see the changes of groups.
    assert_eq!(extends(&mut group, "one", 900, policy(50, 1000)), Ok(5));
    assert!(group.covers_origin("one") && !group.covers_origin("two"));
    assert!(!group.covers_origin("other") && !group.covers_origin("none"));
    assert_eq!(extends(&mut group, "one", 1000, policy(50, 1000)), Ok(0));
}

#[test]
fn a_snapshot_gets_what_is_left_and_then_the_group_is_full() {
    let mut group = metadata("snapshots").group.clone();
    let rest = u32::try_from(group.free_extents()).unwrap() - 1;
    let wish = Wish::linear(rest);
    let fill = NewVolume { name: Some("fill".into()), wish, tags: Vec::new(), writable: true };
    with_author(|author| group.create(&fill, author)).unwrap();
    assert_eq!(extends(&mut group, "one", 900, policy(50, 100)), Ok(1));
    let full = Err(NoFreeExtents(group.name.clone()));
    assert_eq!(extends(&mut group, "one", 900, policy(50, 100)), full);
    assert_eq!(extends(&mut group, "one", 500, policy(50, 100)), Ok(0));
}
