//! The groups on a set of physical volumes.

use ashlar_block::{Gateway, Sectors};
use ashlar_lvm::format::{Layout, format_pv};
use ashlar_lvm::group::{MemberState, assemble};
use ashlar_lvm::metadata::{PvExtents, PvFlag, Segment};
use ashlar_lvm::text::Form;
use ashlar_lvm::{LogicalVolume, PvOnDisk, Uuid};
use ashlar_sim::{Sim, SimDisk};

use crate::formats::cases::{CASES, case};
use crate::formats::devices::{group_of, read, uuid, write};

fn found_on(disks: &[SimDisk], which: &[usize]) -> ashlar_lvm::group::GroupSurvey {
    let sim = Sim::new(3);
    let pvs: Vec<PvOnDisk> =
        which.iter().map(|i| sim.block_on(read(&disks[*i].gateway()))).collect();
    assemble(&pvs.iter().collect::<Vec<_>>())
}

#[test]
fn what_lvm_made_is_one_complete_group() {
    for case in CASES {
        let disks = case.disks();
        let found = found_on(&disks, &(0..disks.len()).collect::<Vec<_>>());
        assert_eq!(found.groups.len(), 1, "{}", case.name);
        assert!(found.free.is_empty() && found.orphans.is_empty() && found.damaged.is_empty());
        let group = &found.groups[0];
        assert_eq!(*group.metadata, case.metadata());
        assert_eq!(group.is_complete(), case.name != "missing");
    }
}

#[test]
fn missing_volumes_are_named_and_their_users_found() {
    let disks = case("linear").disks();
    let found = found_on(&disks, &[1]);
    let group = &found.groups[0];
    assert_eq!(group.members, [MemberState::Missing, MemberState::Present(0)]);
    assert_eq!(group.missing().collect::<Vec<Uuid>>(), [group.metadata.group.pvs[0].id]);
    assert_eq!(group.needs_missing("two_pvs"), Some(0));
    let disks = case("missing").disks();
    let found = found_on(&disks, &[0]);
    assert_eq!(found.groups[0].needs_missing("right"), Some(1));
}

#[test]
fn a_volume_without_areas_is_an_orphan_alone_and_a_member_with_the_others() {
    let disks = case("areas").disks();
    let found = found_on(&disks, &[2]);
    assert_eq!((found.groups.len(), found.orphans), (0, vec![0]));
    let found = found_on(&disks, &[2, 1]);
    let members = &found.groups[0].members;
    assert_eq!(members[1..3], [MemberState::Present(1), MemberState::Present(0)]);
    assert!(found.orphans.is_empty());
}

/// Three volumes in a group.
fn three() -> (Vec<SimDisk>, Vec<Gateway>, Vec<PvOnDisk>) {
    let disks: Vec<SimDisk> = (0..3).map(|_| SimDisk::new("disk", Sectors(16384))).collect();
    let gateways: Vec<Gateway> = disks.iter().map(SimDisk::gateway).collect();
    let sim = Sim::new(1);
    let pvs = (0..)
        .zip(&gateways)
        .map(|(i, gateway)| {
            sim.block_on(format_pv(gateway, uuid(i), &Layout::default())).expect("made")
        })
        .collect();
    (disks, gateways, pvs)
}

#[test]
fn a_volume_that_was_left_behind_is_stale_and_one_that_was_marked_has_returned() {
    let (disks, gateways, mut pvs) = three();
    let mut metadata = group_of(&pvs);
    Sim::new(1).block_on(write(&gateways, &mut pvs, &mut metadata));
    // The last volume misses a change.
    Sim::new(1).block_on(write(&gateways[..2], &mut pvs[..2], &mut metadata));
    let found = found_on(&disks, &[2, 0, 1]);
    let expected = [MemberState::Present(1), MemberState::Present(2), MemberState::Stale(0)];
    assert_eq!(found.groups[0].members, expected);
    assert_eq!(found.groups[0].metadata.print(Form::Disk), metadata.print(Form::Disk));
    assert!(found.groups[0].is_complete());
    metadata.group.pvs[2].flags.insert(PvFlag::Missing);
    Sim::new(1).block_on(write(&gateways[..2], &mut pvs[..2], &mut metadata));
    let found = found_on(&disks, &[0, 1, 2]);
    assert_eq!(found.groups[0].members[2], MemberState::Returned(2));
    assert!(!found.groups[0].is_complete());
    // Removed from the group while it was missing.
    metadata.group.pvs.truncate(2);
    Sim::new(1).block_on(write(&gateways[..2], &mut pvs[..2], &mut metadata));
    let found = found_on(&disks, &[0, 1, 2]);
    assert_eq!((found.groups.len(), &*found.groups[0].outdated), (1, &[2][..]));
}

#[test]
fn two_groups_of_one_name_are_two_and_copies_of_a_volume_are_not_used() {
    let (disks, gateways, mut pvs) = three();
    for i in 0..2 {
        let mut metadata = group_of(&pvs[i..=i]);
        metadata.group.id = uuid(100 + i as u8);
        Sim::new(1).block_on(write(&gateways[i..=i], &mut pvs[i..=i], &mut metadata));
    }
    let found = found_on(&disks, &[0, 1, 2, 1]);
    assert_eq!(found.groups.len(), 2);
    assert!(found.groups.iter().all(|group| group.metadata.group.name == "vg"));
    assert_eq!((found.free, found.duplicates), (vec![2], vec![3]));
}

#[test]
fn a_renamed_group_is_one_group() {
    let (disks, gateways, mut pvs) = three();
    let mut metadata = group_of(&pvs);
    Sim::new(1).block_on(write(&gateways, &mut pvs, &mut metadata));
    metadata.group.name = "renamed".into();
    let on = PvExtents { pv: 2, start: 0, count: 2 };
    let lv = LogicalVolume::new("lv", uuid(50), true, vec![Segment::linear(0, on)]);
    metadata.group.add_lv(lv);
    Sim::new(1).block_on(write(&gateways[1..], &mut pvs[1..], &mut metadata));
    for order in [[0, 1, 2], [2, 1, 0]] {
        let found = found_on(&disks, &order);
        assert_eq!(found.groups.len(), 1);
        assert_eq!(found.groups[0].metadata.group.name, "renamed");
        assert_eq!(found.groups[0].needs_missing("lv"), None);
    }
}

#[test]
fn a_volume_that_says_it_went_to_another_group_is_not_used_by_the_old_one() {
    let (disks, gateways, mut pvs) = three();
    let mut old = group_of(&pvs[..2]);
    Sim::new(1).block_on(write(&gateways[..2], &mut pvs[..2], &mut old));
    // The second volume was removed while the first was missing, and joined the third.
    let mut new = group_of(&pvs[1..]);
    new.group.id = uuid(77);
    new.group.name = "other".into();
    Sim::new(1).block_on(write(&gateways[1..], &mut pvs[1..], &mut new));
    let found = found_on(&disks, &[0, 1, 2]);
    let of = |id: Uuid| found.groups.iter().find(|group| group.metadata.group.id == id).unwrap();
    // Both have the same volumes on it (none), so nothing is missing in the old group: the next commit removes it from the text.
    assert_eq!(of(old.group.id).members[..], [MemberState::Present(0)]);
    assert!(of(old.group.id).has_given);
    let members = &of(new.group.id).members;
    assert_eq!(members[..], [MemberState::Present(1), MemberState::Present(2)]);
}
