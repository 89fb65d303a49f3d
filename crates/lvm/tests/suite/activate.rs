//! The planned devices for groups made by the real LVM equal LVM's own devices:
//! `tests/images/lvm-tables` has both, and the recipe.

use std::collections::BTreeMap;

use ashlar_lvm::activate::{DeviceSource, Options, Plan, Refusal, dm_name, plan};
use ashlar_lvm::{Metadata, VolumeGroup};

use super::common::{golden, lvm_tables, metadata};

fn group(name: &str) -> VolumeGroup {
    metadata(name).group
}

fn plan_all(group: &VolumeGroup) -> Plan {
    plan(group, Options::default(), &|index| Some(format!("PV{index}")))
}

/// The lines of `dmsetup table`, without trailing blanks.
fn tables(plan: &Plan) -> Vec<String> {
    let mut out = Vec::new();
    for device in &plan.devices {
        match &device.made_of {
            DeviceSource::Table(lines) => {
                for line in lines {
                    let text = format!("{}: {line}", device.name);
                    out.push(text.trim_end().to_owned());
                }
            }
            DeviceSource::Raid(_) | DeviceSource::ThinPool { .. } | DeviceSource::Thin { .. } => {}
        }
    }
    out.sort();
    out
}

/// Every device comes after the devices it is made of.
fn assert_ordered(plan: &Plan) {
    let mut seen: Vec<&str> = Vec::new();
    for device in &plan.devices {
        for part in device.made_of.parts() {
            let is_device = plan.devices.iter().any(|other| other.name == part);
            assert!(!is_device || seen.contains(&part), "{} before {part}", device.name);
        }
        seen.push(&device.name);
    }
}

#[test]
fn linear_and_striped_volumes_get_the_tables_that_lvm_loads() {
    let plan = plan_all(&group("linear"));
    assert_eq!(tables(&plan), lvm_tables("linear"));
    assert!(plan.refused.is_empty());
    assert!(plan.devices.iter().all(|device| device.volume.is_some()));
}

#[test]
fn snapshots_and_their_origins_get_the_tables_that_lvm_loads() {
    let plan = plan_all(&group("snapshots"));
    assert_eq!(tables(&plan), lvm_tables("snapshots"));
    assert_ordered(&plan);
    let read_only: BTreeMap<&str, bool> =
        plan.devices.iter().map(|device| (&*device.name, device.read_only)).collect();
    assert!(read_only["vg-frozen"] && !read_only["vg-frozen-cow"] && !read_only["vg-one"]);
    let volumes: Vec<&str> = plan.devices.iter().filter_map(|d| d.volume.as_deref()).collect();
    assert_eq!(volumes.len(), 5, "{volumes:?}");
}

#[test]
fn thin_volumes_name_their_pool_and_the_pool_its_parts() {
    let plan = plan_all(&group("thin"));
    assert_ordered(&plan);
    let made_of = |name: &str| {
        let device = plan.devices.iter().find(|device| device.name == name);
        device.unwrap_or_else(|| panic!("no {name}")).made_of.clone()
    };
    let chunk = ashlar_block::Sectors(128);
    let (metadata, data) = ("vg-pool_tmeta".to_owned(), "vg-pool_tdata".to_owned());
    assert_eq!(made_of("vg-pool-tpool"), DeviceSource::ThinPool { metadata, data, chunk });
    for (name, device_id) in [("vg-thin", 1), ("vg-copy", 2)] {
        let pool = "vg-pool-tpool".to_owned();
        assert_eq!(made_of(name), DeviceSource::Thin { pool, device_id, external_origin: None });
    }
    // The plain volume and the parts are as in LVM; the pool itself is not a device.
    let lvm = lvm_tables("thin");
    for line in tables(&plan) {
        assert!(lvm.contains(&line), "{line}");
    }
    assert!(plan.devices.iter().all(|device| device.name != "vg-pool"));
}

#[test]
fn a_volume_on_a_missing_disk_is_refused_and_its_neighbours_are_not() {
    let group = group("linear");
    let first_only = |index| (index == 0).then(|| "PV0".to_owned());
    let plan_without = plan(&group, Options::default(), &first_only);
    let refused: Vec<&str> = plan_without.refused.iter().map(|(name, _)| &**name).collect();
    assert_eq!(refused, ["str-ipes", "both"]);
    let missing = Refusal::Missing(group.pvs[1].id);
    assert!(plan_without.refused.iter().all(|(_, why)| *why == missing));
    let names: Vec<&str> = plan_without.devices.iter().map(|device| &*device.name).collect();
    assert_eq!(names, ["vg-first", "vg-second"]);
}

#[test]
fn a_partial_volume_has_errors_where_its_disk_is_missing() {
    let partial = Options { partial: true, ..Options::default() };
    let first_only = |index| (index == 0).then(|| "PV0".to_owned());
    let plan = plan(&group("linear"), partial, &first_only);
    assert!(plan.refused.is_empty());
    assert_ordered(&plan);
    let tables = tables(&plan);
    for line in [
        "vg-both: 0 112640 error",
        "vg-both: 112640 63488 linear PV0 67584",
        "vg-str--ipes: 0 32768 striped 2 128 PV0 51200 vg-str--ipes-missing_0_1 0",
        "vg-str--ipes-missing_0_1: 0 16384 error",
    ] {
        assert!(tables.iter().any(|have| have == line), "{line}: {tables:#?}");
    }
}

#[test]
fn without_any_disk_nothing_is_planned_and_everything_refused() {
    let plan = plan(&group("snapshots"), Options::default(), &|_| None);
    assert!(plan.devices.is_empty(), "{:?}", plan.devices);
    assert_eq!(plan.refused.len(), 5);
}

#[test]
fn a_merge_goes_on_only_where_it_may_be_written() {
    // The text after `lvconvert --merge` while the origin is in use.
    let text = golden("snapshots.text").replace("cow_store = \"one\"", "merging_store = \"one\"");
    let group = Metadata::parse(text.as_bytes()).expect("a merging snapshot").group;
    let all = |index| Some(format!("PV{index}"));
    let writable = tables(&plan(&group, Options::default(), &all));
    let origin = |tables: &[String]| {
        tables.iter().find(|line| line.starts_with("vg-data: ")).cloned().unwrap_or_default()
    };
    let behind = "vg-data-real vg-one-cow P 8";
    assert_eq!(origin(&writable), format!("vg-data: 0 16384 snapshot-merge {behind}"));
    let read_only = Options { read_only: true, ..Options::default() };
    let read_only = plan(&group, read_only, &all);
    assert_eq!(origin(&tables(&read_only)), format!("vg-data: 0 16384 snapshot {behind}"));
    assert!(read_only.devices.iter().all(|device| device.read_only));
    // The other snapshot exists before anything can be merged.
    let writable = plan(&group, Options::default(), &all);
    let place = |name| writable.devices.iter().position(|device| device.name == name);
    assert!(place("vg-two") < place("vg-data"));
    // The store is no longer a visible volume; the other snapshot is.
    assert!(read_only.devices.iter().all(|device| device.name != "vg-one"));
    assert!(read_only.devices.iter().any(|device| device.name == "vg-two"));
}

#[test]
fn an_origin_can_only_be_read_while_a_snapshot_lacks_its_disk() {
    let text = golden("snapshots.text");
    let text = text.replacen("\"pv0\", 12", "\"pv1\", 12", 1);
    let group = Metadata::parse(text.as_bytes()).expect("a store on the second disk").group;
    let first_only = |index| (index == 0).then(|| "PV0".to_owned());
    let plan = plan(&group, Options::default(), &first_only);
    let read_only = |name: &str| plan.devices.iter().find(|d| d.name == name).unwrap().read_only;
    assert!(read_only("vg-data") && !read_only("vg-one") && !read_only("vg-other"));
    let [(volume, text)] = &plan.notes[..] else { panic!("{:?}", plan.notes) };
    assert!(volume == "data" && text.contains("its snapshot two"), "{text}");
}

#[test]
fn dashes_in_names_are_doubled() {
    assert_eq!(dm_name("a-b", "c--d", None), "a--b-c----d");
    assert_eq!(dm_name("vg", "lv", Some("real")), "vg-lv-real");
}
