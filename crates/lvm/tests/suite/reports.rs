//! Reports and displays of a group made by the real LVM (tests/images/lvm-tables), as if it were active or exported. For
//! others `tests/interop/lvm-commands.sh` compares them with LVM's own.

use std::collections::BTreeMap;
use std::sync::Arc;

use ashlar_lvm::Metadata;
use ashlar_lvm::group::{Group, MemberState};
use ashlar_lvm::metadata::VgFlag;
use ashlar_lvm::report::display::{Display, Form, PvDetails, lvscan, pvscan, vgscan};
use ashlar_lvm::report::{
    self, AreaFacts, FieldError, Inventory, Item, LVS, LvRow, LvState, PVS, Prefixes,
    PresentVolume, PvFacts, PvRow, Row, Style, Units, VGS, table,
};

use super::common::metadata;

const LONG: Form = Form::Long { maps: false };

/// The group on `/dev/a` and others, and a physical volume of no group on `/dev/z`.
fn inventory(change: impl FnOnce(&mut Metadata), states: &[(&str, bool, &str)]) -> Inventory {
    let mut metadata = metadata("snapshots");
    change(&mut metadata);
    let areas = vec![AreaFacts { size_bytes: 1 << 20, free_bytes: 1 << 18, is_ignored: false }];
    let (extension, bootloader) = (Some(2), None);
    let facts = PvFacts {
        size_bytes: 130_048 * 512,
        is_used: true,
        extension,
        data_start: 1 << 20,
        bootloader,
        areas,
    };
    let present = |letter, uuid| {
        let (path, numbers) = (format!("/dev/{letter}"), (7, 1));
        PresentVolume { path, uuid, numbers, facts: facts.clone() }
    };
    let pvs = metadata.group.pvs.iter().zip('a'..);
    let mut physical: Vec<PresentVolume> = pvs.map(|(pv, letter)| present(letter, pv.id)).collect();
    let members = (0..physical.len()).map(MemberState::Present).collect();
    let other = "ckAypx-20JM-PTHM-XcK9-oKvV-gIu9-X2BF8w".parse().unwrap();
    physical.push(present('z', other));
    let metadata = Arc::new(metadata);
    let group = Group { metadata, members, outdated: Vec::new(), has_given: false };
    let state = |(name, is_open, status): &(&str, bool, &str)| {
        ((*name).to_owned(), LvState { is_open: *is_open, status: (*status).to_owned() })
    };
    Inventory::new(&physical, [(group, states.iter().map(state).collect::<BTreeMap<_, _>>())])
}

fn names(rows: &[LvRow]) -> Vec<&str> {
    rows.iter().map(|row| row.id().1).collect()
}

/// The texts of a field.
fn texts(name: &str, rows: &[Item]) -> Vec<String> {
    let field = Item::fields().find(|field| field.name == name).unwrap();
    rows.iter().map(|row| field.show(row, &Units::default())).collect()
}

/// The line of a display that begins with a name, without the name.
fn line<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim)
}

#[test]
fn rows_are_in_lvms_order_and_sorted_by_keys() {
    let inventory = inventory(|_| (), &[]);
    let pvs = inventory.pvs();
    assert_eq!(pvs.iter().map(PvRow::device).collect::<Vec<_>>(), ["/dev/a", "/dev/b", "/dev/z"]);
    let rows = inventory.lvs(true);
    let all = ["data", "one", "two", "other", "frozen"];
    assert_eq!(names(&rows), all, "not the volumes that tie snapshots to origins");
    let sorted = |keys: &str| {
        let mut rows: Vec<Item> = rows.iter().cloned().map(Item::from).collect();
        report::sort(&mut rows, &LVS.sort_keys(keys).unwrap());
        texts("lv_name", &rows)
    };
    assert_eq!(sorted(LVS.sorted_by), ["data", "frozen", "one", "other", "two"]);
    assert_eq!(sorted("origin,-lvname"), ["other", "data", "two", "one", "frozen"]);
    let unknown = LVS.sort_keys("lv_size,-x").err();
    assert_eq!(unknown, Some(FieldError::Unknown("-x".into())));
}

#[test]
fn options_name_fields_one_after_another() {
    let names = |options: &[&str]| {
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let fields = PVS.requested(&options)?;
        Ok(fields.iter().map(|field| field.name).collect::<Vec<_>>())
    };
    assert_eq!(names(&[]).unwrap().join(","), PVS.default);
    assert_eq!(names(&["Size,VG_name"]).unwrap(), ["pv_size", "vg_name"]);
    assert_eq!(names(&["pv_size", "+vg_tags,", "-size"]).unwrap(), ["vg_tags"]);
    assert_eq!(names(&["name", "uuid"]).unwrap(), ["pv_uuid"]);
    let all = names(&["all"]).unwrap();
    assert_eq!(all, [names(&["pv_all"]).unwrap(), names(&["vg_all"]).unwrap()].concat());
    assert!(names(&["vg_all"]).unwrap().iter().all(|name| !name.starts_with("pv_s")));
    assert_eq!(names(&[""]), Err(FieldError::NoName));
    assert_eq!(names(&["pv_name,+x"]), Err(FieldError::Unknown("+x".into())));
}

#[test]
fn tables_have_names_beside_values_and_fields_in_lines() {
    let rows: Vec<Item> = inventory(|_| (), &[]).pvs().into_iter().map(Item::from).collect();
    let fields = PVS.requested(&["pv_name,vg_name".to_owned()]).unwrap();
    let style =
        |prefixes, rows| Style { headings: true, separator: None, aligned: false, prefixes, rows };
    let text = |style| table(&fields, &rows, &Units::default(), &style);
    let text_of_one = text(style(Prefixes::Quoted, false));
    assert!(text_of_one.starts_with("  PV VG\n  LVM2_PV_NAME='/dev/a' LVM2_VG_NAME='vg'\n"));
    assert!(text(style(Prefixes::Bare, false)).ends_with("  LVM2_PV_NAME=/dev/z LVM2_VG_NAME=\n"));
    let lines = "  PV /dev/a /dev/b /dev/z\n  VG vg vg \n";
    assert_eq!(text(style(Prefixes::None, true)), lines);
}

#[test]
fn active_volumes_are_displayed_as_such() {
    let states = [
        ("data", true, "0 24576 snapshot-origin"),
        ("one", false, "0 24576 snapshot 1168/16384 16"),
        ("two", false, "0 24576 snapshot Invalid"),
    ];
    let inventory = inventory(|_| (), &states);
    let forget = |metadata: &mut Metadata| metadata.group.lvs[0].creation = None;
    let unknown = self::inventory(forget, &[]);
    let rows = inventory.lvs(true);
    let text = |index: usize| rows[index].display(LONG, &Units::default());
    assert_eq!(line(&text(0), "LV snapshot status"), Some("source of"));
    assert_eq!(line(&text(0), "one ["), Some("active]"));
    assert_eq!(line(&text(0), "two ["), Some("INACTIVE]"));
    assert_eq!(line(&text(0), "# open"), Some("1"));
    assert_eq!(line(&text(1), "LV snapshot status"), Some("active destination for data"));
    assert_eq!(line(&text(1), "Allocated to snapshot"), Some("7.13%"));
    assert_eq!(line(&text(2), "LV snapshot status"), Some("INACTIVE destination for data"));
    assert_eq!(line(&text(2), "LV Status"), Some("available"));
    assert_eq!(line(&text(2), "Allocated to snapshot"), None);
    assert_eq!(line(&text(3), "LV Status"), Some("NOT available"));
    assert_eq!(
        line(&unknown.lvs(true)[0].display(LONG, &Units::default()), "LV Creation host, time"),
        Some(",")
    );
    let vg = inventory.vgs()[0].display(LONG, &Units::default());
    assert_eq!((line(&vg, "Cur LV"), line(&vg, "Open LV")), (Some("5"), Some("1")));
    let scan = lvscan(&rows);
    assert!(scan.starts_with("  ACTIVE   Original '/dev/vg/data' ["), "{scan}");
    assert!(scan.contains("  inactive Snapshot '/dev/vg/two' ["), "{scan}");
    let used = |text: &str| {
        let selection = LVS.selection(text).unwrap();
        let mut rows: Vec<Item> = rows.iter().cloned().map(Item::from).collect();
        rows.retain(|row| selection.selects(row));
        texts("lv_name", &rows)
    };
    // 7.129 percent.
    assert_eq!(used("data_percent>=7.13"), ["two"]);
    assert_eq!(used("data_percent!=50 && lv_active=active"), ["one", "two"]);
}

#[test]
fn exported_groups_and_free_volumes_are_displayed_as_such() {
    let inventory = inventory(|metadata| metadata.group.flags.insert(VgFlag::Exported), &[]);
    let pvs = inventory.pvs();
    let units = Units::default();
    let text = pvs[0].display(LONG, &units);
    let notice = "  Physical volume \"/dev/a\" of volume group \"vg\" is exported\n";
    assert!(text.starts_with(notice), "{text}");
    assert_eq!(line(&text, "VG Name"), Some("vg (exported)"));
    assert!(pvs[0].display(Form::Colons, &units).contains("  /dev/a:vg:130048:-1:10:8:-1:"));
    let vgs = inventory.vgs();
    assert_eq!(line(&vgs[0].display(LONG, &units), "VG Status"), Some("exported/resizable"));
    assert!(vgs[0].display(Form::Colons, &units).starts_with("  vg:r/w:774:-1:0:"));
    assert_eq!(vgscan(&vgs), "  Found exported volume group \"vg\" using metadata type lvm2\n");

    let free = pvs[2].display(Form::Long { maps: true }, &units);
    let notice = "  \"/dev/z\" is a new physical volume of \"63.50 MiB\"\n";
    assert!(free.starts_with(&format!("{notice}  --- NEW Physical volume ---\n")), "{free}");
    assert!(free.ends_with("\n   \n   \n"), "{free}");
    let colons = "  /dev/z::130048:-1:0:0:-1:0:0:0:0:ckAypx-20JM-PTHM-XcK9-oKvV-gIu9-X2BF8w\n";
    assert!(pvs[2].display(Form::Colons, &units).ends_with(colons));
    let short = "  Device \"/dev/z\" has a capacity of 63.50 MiB\n";
    assert_eq!(pvs[2].display(Form::Short, &units), short);

    let scan = pvscan(&pvs, PvDetails::All);
    assert!(scan.starts_with("  PV /dev/a    is in exported VG vg [63.00 MiB / "), "{scan}");
    let sums = "Total: 3 [189.50 MiB] / in use: 2 [126.00 MiB] / in no VG: 1 [63.50 MiB]";
    let free = "  PV /dev/z                      lvm2 [63.50 MiB]";
    assert!(scan.ends_with(&format!("{free}\n  {sums}\n")), "{scan}");
    assert_eq!(pvscan(&[], PvDetails::All), "  No matching physical volumes found\n");
}

#[test]
fn rows_are_what_the_fields_are_properties_of() {
    let inventory = inventory(|_| (), &[]);
    let fields = |names: &str| VGS.requested(&[names.to_owned()]).unwrap();
    let groups = || inventory.vgs().into_iter().map(Item::from).collect::<Vec<_>>();
    assert_eq!(VGS.rows(groups(), &fields("vg_name,vg_size")).unwrap().len(), 1);
    let volumes = VGS.rows(groups(), &fields("vg_name,lv_name")).unwrap();
    assert_eq!(texts("lv_name", &volumes), ["data", "one", "two", "other", "frozen"]);
    let segments = VGS.rows(groups(), &fields("segtype")).unwrap();
    assert_eq!(texts("seg_start_pe", &segments).len(), segments.len());
    assert_eq!(
        texts("pv_name", &VGS.rows(groups(), &fields("pv_name")).unwrap()),
        ["/dev/a", "/dev/b"]
    );
    let mixed = VGS.rows(groups(), &fields("pv_name,lv_name")).err();
    assert_eq!(mixed, Some(FieldError::Mixed("vg")));

    let pvs = || inventory.pvs().into_iter().map(Item::from).collect::<Vec<_>>();
    let pieces = PVS.rows(pvs(), &PVS.requested(&["+lv_name".into()]).unwrap()).unwrap();
    let ends = |row: &Item| {
        let number = |name| texts(name, std::slice::from_ref(row))[0].parse::<u32>().unwrap();
        (number("pvseg_start"), number("pvseg_start") + number("pvseg_size"))
    };
    // The runs of a physical volume follow each other up to its end.
    let mut at = ("", 0);
    let names = texts("pv_name", &pieces);
    for (row, name) in pieces.iter().zip(&names) {
        let start = if at.0 == name { at.1 } else { 0 };
        assert_eq!(ends(row).0, start, "{name}");
        at = (name, ends(row).1);
    }
    assert_eq!(texts("segtype", &pieces).last().unwrap(), "free");
}

#[test]
fn the_fields_of_active_volumes_are_known() {
    let states = [
        ("data", true, "0 24576 snapshot-origin"),
        ("one", false, "0 24576 snapshot 1168/16384 16"),
        ("two", false, "0 24576 snapshot Invalid"),
    ];
    let rows = inventory(|_| (), &states).lvs(true);
    let rows: Vec<Item> = rows.into_iter().take(4).map(Item::from).collect();
    for (name, wanted) in [
        ("lv_active_locally", ["active locally", "active locally", "active locally", ""]),
        (
            "lv_live_table",
            ["live table present", "live table present", "live table present", "unknown"],
        ),
        ("lv_suspended", ["", "", "", "unknown"]),
        ("lv_device_open", ["open", "", "", "unknown"]),
        ("lv_snapshot_invalid", ["unknown", "", "snapshot invalid", "unknown"]),
        ("lv_merge_failed", ["unknown", "", "", "unknown"]),
        ("snap_percent", ["", "7.13", "100.00", ""]),
        ("copy_percent", ["", "", "", ""]),
        ("lv_kernel_major", ["-1", "-1", "-1", "-1"]),
    ] {
        assert_eq!(texts(name, &rows), wanted, "{name}");
    }
}

#[test]
fn every_field_has_a_name_of_its_own_and_is_in_the_list() {
    let help = report::help(false);
    let names: Vec<&str> = Item::fields().map(|field| field.name).collect();
    for name in &names {
        assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
        assert!(help.contains(&format!("\n    {name} ")), "{name}");
    }
    for title in ["Logical Volume Fields", "Physical Volume Segment Fields", "lv_all", "seg_all"] {
        assert!(help.contains(title), "{title}");
    }
    assert!(report::help(true).contains("[number]"));
}
