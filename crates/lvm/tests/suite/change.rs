//! Volumes are created, extended and removed, in groups made by the real LVM (tests/images/lvm-tables).

use ashlar_block::Sectors;
use ashlar_lvm::alloc::Wish;
use ashlar_lvm::change::{ChangeError, NewVolume};
use ashlar_lvm::text::Form;
use ashlar_lvm::{Metadata, VolumeGroup};

use super::common::{metadata, with_author};

fn volume(name: &str, extents: u32) -> NewVolume {
    let wish = Wish::linear(extents);
    NewVolume { name: Some(name.into()), wish, tags: Vec::new(), writable: true }
}

fn create(group: &mut VolumeGroup, name: &str, extents: u32) -> Result<String, ChangeError> {
    with_author(|author| group.create(&volume(name, extents), author))
}

fn snapshot(
    group: &mut VolumeGroup,
    origin: &str,
    name: &str,
    extents: u32,
) -> Result<String, ChangeError> {
    with_author(|author| group.create_snapshot(origin, Sectors(8), &volume(name, extents), author))
}

/// Checks that a changed group is consistent, and is unchanged after printing and parsing.
fn assert_sound(of: &Metadata, group: &VolumeGroup) {
    group.check().expect("a possible group");
    let mut changed = of.clone();
    changed.group = group.clone();
    let text = changed.print(Form::Disk);
    let again = Metadata::parse(&text).expect("a text that can be read");
    assert_eq!(again.print(Form::Disk), text);
    assert_eq!(again.group.lvs.len(), group.lvs.len());
}

#[test]
fn a_new_volume_takes_free_extents_and_leaves_all_others() {
    let before = metadata("snapshots");
    let mut group = before.group.clone();
    let free = group.free_extents();
    assert_eq!(create(&mut group, "new", 10), Ok("new".into()));
    assert_eq!(group.free_extents(), free - 10);
    assert_eq!(group.lv("new").map(|lv| lv.extents()), Some(10));
    assert_sound(&before, &group);
    let all = u32::try_from(group.free_extents()).unwrap();
    assert_eq!(create(&mut group, "rest", all), Ok("rest".into()));
    assert!(matches!(create(&mut group, "more", 1), Err(ChangeError::Alloc(_))));
    assert_sound(&before, &group);
}

#[test]
fn a_snapshot_is_written_as_lvm_writes_it() {
    let before = metadata("snapshots");
    let mut group = before.group.clone();
    // Remove a volume made by LVM and create it again: the text is the same except for UUIDs and times.
    assert_eq!(group.remove("two"), Ok(vec!["two".into()]));
    assert!(group.snapshots().count() == 2 && group.lv("snapshot1").is_none());
    let new = NewVolume { wish: Wish::linear(4), ..volume("two", 4) };
    let made = with_author(|author| group.create_snapshot("data", Sectors(64), &new, author));
    assert_eq!(made, Ok("two".into()));
    assert_sound(&before, &group);
    let section = |group: &VolumeGroup, name: &str| {
        let mut one = before.clone();
        one.group = group.clone();
        let text = String::from_utf8(one.print(Form::Disk)).unwrap();
        let from = text.find(&format!("{name} {{")).expect(name);
        let lines = text[from..].lines().take_while(|line| !line.is_empty());
        let own = |line: &&str| !line.contains("id = ") && !line.contains("creation_");
        lines.filter(own).collect::<Vec<_>>().join("\n")
    };
    for name in ["two", "snapshot1"] {
        assert_eq!(section(&group, name), section(&before.group, name));
    }
}

#[test]
fn a_snapshot_gets_no_more_room_than_its_origin_can_fill() {
    let before = metadata("snapshots");
    let mut group = before.group.clone();
    // 8 MiB in chunks of 4 KiB: 2,048 chunks, 8 areas of exceptions, a header and one more area.
    assert_eq!(snapshot(&mut group, "data", "large", 50), Ok("large".into()));
    assert_eq!(group.lv("large").map(|lv| lv.extents()), Some(9));
    let why = group.grow("large", &Wish::linear(5)).unwrap_err();
    assert!(why.to_string().contains("room for all of its origin"), "{why}");
    assert_eq!(group.grow("one", &Wish::linear(50)), Ok(5));
    assert_sound(&before, &group);
}

#[test]
fn an_origin_goes_with_its_snapshots_and_they_without_it() {
    let before = metadata("snapshots");
    let mut group = before.group.clone();
    let free = group.free_extents();
    assert_eq!(group.remove("data"), Ok(vec!["one".into(), "two".into(), "data".into()]));
    assert_eq!(group.free_extents(), free + 16);
    assert_sound(&before, &group);
    assert_eq!(group.remove("frozen"), Ok(vec!["frozen".into()]));
    assert_eq!(group.lvs.len(), 1);
    assert_eq!(group.grow("other", &Wish::linear(3)), Ok(3));
    assert_sound(&before, &group);
}

#[test]
fn a_merge_hides_the_snapshot_and_ends_with_its_removal() {
    let before = metadata("snapshots");
    let mut group = before.group.clone();
    assert_eq!(group.start_merge("one"), Ok("data".into()));
    assert_sound(&before, &group);
    let mut text = before.clone();
    text.group = group.clone();
    let text = String::from_utf8(text.print(Form::Disk)).unwrap();
    assert!(text.contains("merging_store = \"one\""), "{text}");
    for (name, why) in [("one", "already"), ("two", "one at a time"), ("other", "not a snapshot")] {
        let refused = group.start_merge(name).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    assert!(group.remove("one").is_err() && group.remove("data").is_err());
    assert!(snapshot(&mut group, "data", "three", 4).is_err());
    assert_eq!(group.finish_merge("data"), Ok("one".into()));
    assert_eq!(group.snapshots_of("data").count(), 1);
    assert_sound(&before, &group);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let before = metadata("snapshots").group;
    let mut group = before.clone();
    let errors = [
        create(&mut group, "-x", 1),
        create(&mut group, "a b", 1),
        create(&mut group, "snapshot9", 1),
        create(&mut group, "x_rimage_0", 1),
        create(&mut group, "data", 1),
        create(&mut group, "none", 0),
        create(&mut group, "huge", u32::MAX),
        snapshot(&mut group, "one", "of-snapshot", 4),
        snapshot(&mut group, "nothing", "x", 4),
        snapshot(&mut group, "data", "tiny", 0),
        group.remove("nothing").map(|_| String::new()),
        group.remove("snapshot0").map(|_| String::new()),
        group.grow("data", &Wish::linear(1)).map(|_| String::new()),
        group.grow("snapshot0", &Wish::linear(1)).map(|_| String::new()),
    ];
    for error in errors {
        assert!(error.is_err(), "{error:?}");
    }
    assert_eq!(group, before);
    let mut thin = metadata("thin").group;
    assert!(thin.remove("thin").is_err() && thin.remove("pool").is_err());
    assert!(snapshot(&mut thin, "thin", "x", 4).is_err());
}

#[test]
fn a_volume_is_reduced_at_whole_rows_and_never_below_one() {
    let before = metadata("snapshots");
    let mut group = before.group.clone();
    let free = group.free_extents();
    assert_eq!(create(&mut group, "plain", 5), Ok("plain".into()));
    assert_eq!(group.shrink("plain", 2), Ok(()));
    assert_eq!(group.lv("plain").map(|lv| lv.extents()), Some(2));
    assert_eq!(group.free_extents(), free - 2);
    assert_sound(&before, &group);
    let new = NewVolume { wish: Wish::striped(6, 2, Sectors(128)), ..volume("rows", 6) };
    assert_eq!(with_author(|author| group.create(&new, author)), Ok("rows".into()));
    assert!(group.shrink("rows", 3).unwrap_err().to_string().contains("row of stripes"));
    assert_eq!(group.shrink("rows", 4), Ok(()));
    assert_sound(&before, &group);
    let unchanged = group.clone();
    for (name, extents) in [("data", 1), ("one", 1), ("snapshot0", 1), ("nothing", 1), ("rows", 0)]
    {
        assert!(group.shrink(name, extents).is_err(), "{name}");
    }
    assert_eq!(group, unchanged);
}

#[test]
fn a_renamed_volume_keeps_its_ties_to_snapshots() {
    let before = metadata("snapshots");
    let mut group = before.group.clone();
    assert_eq!(group.rename("data", "renamed"), Ok(()));
    assert_eq!(group.rename("one", "un"), Ok(()));
    assert_eq!(group.snapshots_of("renamed").count(), before.group.snapshots_of("data").count());
    assert_eq!(group.snapshot_in("un").map(|found| &*found.snapshot.origin), Some("renamed"));
    assert_sound(&before, &group);
    assert_eq!(group.rename_group("a-group"), Ok(()));
    assert_sound(&before, &group);
    let unchanged = group.clone();
    for (from, to) in [("un", "renamed"), ("un", "-x"), ("un", "x_tdata"), ("snapshot0", "x")] {
        assert!(group.rename(from, to).is_err(), "{from} {to}");
    }
    assert!(group.rename_group("..").is_err());
    assert_eq!(group.start_merge("un"), Ok("renamed".into()));
    assert!(group.rename("renamed", "x").is_err());
    group.finish_merge("renamed").unwrap();
    assert_eq!(group.rename("renamed", "x"), Ok(()));
    assert_ne!(group, unchanged);
}
