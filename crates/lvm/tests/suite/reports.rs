//! Reports and displays of a group made by the real LVM (tests/images/lvm-tables), as if it were active or exported. For
//! others `tests/interop/lvm-commands.sh` compares them with LVM's own.

use std::collections::BTreeMap;
use std::sync::Arc;

use ashlar_lvm::Metadata;
use ashlar_lvm::group::{Group, MemberState};
use ashlar_lvm::metadata::VgFlag;
use ashlar_lvm::report::display::{Display, Form, PvDetails, lvscan, pvscan, vgscan};
use ashlar_lvm::report::{
    self, FieldError, Inventory, LvRow, LvState, Prefixes, PresentVolume, PvFacts, PvRow, Row,
    Selection, Style, Units, table,
};

use super::common::metadata;

const LONG: Form = Form::Long { maps: false };

/// The group on `/dev/a` and others, and a physical volume of no group on `/dev/z`.
fn inventory(change: impl FnOnce(&mut Metadata), states: &[(&str, bool, &str)]) -> Inventory {
    let mut metadata = metadata("snapshots");
    change(&mut metadata);
    let facts = |uuid| PvFacts { uuid, size_bytes: 130_048 * 512, is_used: true, areas: 1 };
    let pvs = metadata.group.pvs.iter().zip('a'..);
    let mut physical: Vec<PresentVolume> = pvs
        .map(|(pv, letter)| PresentVolume { path: format!("/dev/{letter}"), facts: facts(pv.id) })
        .collect();
    let members = (0..physical.len()).map(MemberState::Present).collect();
    physical.push(PresentVolume {
        path: "/dev/z".into(),
        facts: facts("ckAypx-20JM-PTHM-XcK9-oKvV-gIu9-X2BF8w".parse().unwrap()),
    });
    let group = Group { metadata: Arc::new(metadata), members, outdated: Vec::new() };
    let state = |(name, is_open, status): &(&str, bool, &str)| {
        ((*name).to_owned(), LvState { is_open: *is_open, status: (*status).to_owned() })
    };
    Inventory::new(&physical, [(group, states.iter().map(state).collect::<BTreeMap<_, _>>())])
}

fn names(rows: &[LvRow]) -> Vec<&str> {
    rows.iter().map(|row| row.id().1).collect()
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
    let mut rows = inventory.lvs(true);
    let all = ["data", "one", "two", "other", "frozen"];
    assert_eq!(names(&rows), all, "not the volumes that tie snapshots to origins");
    report::sort(&mut rows, &report::sort_keys(LvRow::SORTED_BY).unwrap());
    assert_eq!(names(&rows), ["data", "frozen", "one", "other", "two"]);
    report::sort(&mut rows, &report::sort_keys("origin,-lvname").unwrap());
    assert_eq!(names(&rows), ["other", "data", "two", "one", "frozen"]);
    let unknown = report::sort_keys::<LvRow>("lv_size,-x").err();
    assert_eq!(unknown, Some(FieldError::Unknown("-x".into())));
}

#[test]
fn options_name_fields_one_after_another() {
    let names = |options: &[&str]| {
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let fields = report::requested::<PvRow>(&options)?;
        Ok(fields.iter().map(|field| field.name).collect::<Vec<_>>())
    };
    assert_eq!(names(&[]).unwrap(), PvRow::DEFAULT);
    assert_eq!(names(&["Size,VG_name"]).unwrap(), ["pv_size", "vg_name"]);
    assert_eq!(names(&["pv_size", "+vg_tags,", "-size"]).unwrap(), ["vg_tags"]);
    assert_eq!(names(&["name", "uuid"]).unwrap(), ["pv_uuid"]);
    assert_eq!(names(&["all"]).unwrap().len(), PvRow::fields().count());
    assert!(names(&["vg_all"]).unwrap().iter().all(|name| !name.starts_with("pv_s")));
    assert_eq!(names(&[""]), Err(FieldError::NoName));
    assert_eq!(names(&["pv_name,+x"]), Err(FieldError::Unknown("+x".into())));
}

#[test]
fn tables_have_names_beside_values_and_fields_in_lines() {
    let rows = inventory(|_| (), &[]).pvs();
    let fields = report::requested(&["pv_name,vg_name".to_owned()]).unwrap();
    let style = |prefixes, rows| Style { headings: true, separator: None, prefixes, rows };
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
        let selection = Selection::<LvRow>::parse(text).unwrap();
        names(&rows)
            .into_iter()
            .zip(&rows)
            .filter(|(_, row)| selection.selects(row))
            .map(|(name, _)| name)
            .collect::<Vec<_>>()
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
