//! `ashlar lvm` shows groups on disks: reports, displays and scans.

use super::lvm::{group, on, values};

#[test]
fn reports_take_lvms_options() {
    let images = group(2);
    on(&images, "lvcreate", &["-n", "a", "-L", "4M", "vg"]).ok();
    let run =
        on(&images, "lvs", &["--noheadings", "--separator", ":", "--units", "k", "--nosuffix"]);
    assert_eq!(run.ok().out, "  a:vg:-wi-------:4096.00::::::::\n");
    let run = on(&images, "pvs", &["-o", "pv_name,pv_free", "d1"]).ok();
    assert_eq!(run.out, "  PV PFree\n  d1 39.00m\n");
    let help = on(&images, "lvs", &["-o", "help"]).ok();
    assert!(help.out.contains("lv_size") && help.out.contains("  origin"), "{help:?}");
    let titles = ["  Logical Volume Segment Fields\n", "    seg_all ", "    pv_mda_free "];
    assert!(titles.iter().all(|title| help.out.contains(title)), "{help:?}");
    let said = ["  lv_size ", "Unrecognised field: lv_nonsense"];
    on(&images, "lvs", &["-o", "lv_nonsense"]).fails(5, &said);
    on(&images, "lvs", &["-O", "-nonsense"]).fails(5, &["Unrecognised field: -nonsense"]);
    on(&images, "vgs", &["--units", "x"]).code.filter(|code| *code == 3).unwrap();
    let uuid = values(&images, "vgs", "vg_uuid", &[]).remove(0);
    assert_eq!(values(&images, "vgs", "vg_name", &[&uuid]), ["vg"]);
    assert_eq!(values(&images, "lvs", "lv_full_name", &["vg/a"]), ["vg/a"]);
}

#[test]
fn rows_are_selected_sorted_and_displayed() {
    let images = group(2);
    for (name, extents) in [("a", "4"), ("b", "40"), ("c", "8")] {
        on(&images, "lvcreate", &["-n", name, "-l", extents, "vg"]).ok();
    }
    assert_eq!(values(&images, "lvs", "lv_name", &["-O", "-size"]), ["b", "c", "a"]);
    let selected = values(&images, "lvs", "lv_name", &["-S", "size<10m && name=~\"[bc]\""]);
    assert_eq!(selected, ["c"]);
    let said = ["at 'lv_size=x'", "lv_size", "hint: --select help"];
    on(&images, "lvs", &["-S", "lv_size=x"]).fails(5, &said);
    let help = on(&images, "lvs", &["-S", "help"]).ok();
    assert!(help.out.contains("lv_size") && help.out.contains("=~"), "{help:?}");

    let run = on(&images, "pvdisplay", &["-S", "pv_name=d0", "-m"]).ok();
    assert!(
        run.out.contains("  Physical extent 0 to 3:\n    Logical volume\t/dev/vg/a\n"),
        "{run:?}"
    );
    assert_eq!(run.out.matches("PV Name").count(), 1, "{run:?}");
    let run = on(&images, "vgdisplay", &["-s", "vg"]).ok();
    assert_eq!(run.out, "  \"vg\" 78.00 MiB [52.00 MiB used / 26.00 MiB free]\n");
    let run = on(&images, "lvdisplay", &["vg/a"]).ok();
    assert!(run.out.contains("  LV Path                /dev/vg/a\n"), "{run:?}");
    let run = on(&images, "lvdisplay", &["-C", "-o", "name", "--noheadings", "vg/a"]).ok();
    assert_eq!(run.out, "  a\n");
    on(&images, "lvdisplay", &["-o", "name"]).fails(3, &["Incompatible options selected"]);
    assert_eq!(on(&images, "lvdisplay", &["-c", "-m"]).code, Some(3));
    let run = on(&images, "lvscan", &[]).ok();
    assert!(run.out.ends_with("  inactive          '/dev/vg/c' [8.00 MiB] inherit\n"), "{run:?}");
    let run = on(&images, "pvscan", &["-n"]).ok();
    assert_eq!(run.out, "  No matching physical volumes found\n");
}

#[test]
fn segments_have_rows_of_their_own() {
    let images = group(2);
    on(&images, "lvcreate", &["-n", "a", "-l", "4", "vg", "d0"]).ok();
    on(&images, "lvcreate", &["-n", "b", "-l", "2", "vg", "d0"]).ok();
    on(&images, "lvextend", &["-l", "+3", "vg/a", "d0"]).ok();
    let fields = "lv_name,seg_start_pe,seg_le_ranges";
    assert_eq!(values(&images, "lvs", fields, &[]), ["a 0 d0:0-3", "a 4 d0:6-8", "b 0 d0:4-5"]);
    let run = on(&images, "lvs", &["--segments", "--noheadings", "--separator", ":"]).ok();
    let row = |size| format!("  a:vg:-wi-------:1:linear:{size}.00m\n");
    assert!(run.out.starts_with(&(row(4) + &row(3))), "{run:?}");
    let fields = "pv_name,pvseg_start,pvseg_size,lv_name";
    let runs = values(&images, "pvs", fields, &["--segments", "d0"]);
    assert_eq!(runs, ["d0 0 4 a", "d0 4 2 b", "d0 6 3 a", "d0 9 30 "]);
    assert_eq!(values(&images, "vgs", "lv_name", &[]), ["a", "b"]);
    assert_eq!(values(&images, "vgs", "pv_name", &[]), ["d0", "d1"]);
    let said = ["Can't report LV and PV fields at the same time in report type \"lv\"."];
    on(&images, "lvs", &["-o", "lv_name,pv_name"]).fails(5, &said);
    on(&images, "lvs", &["-S", "pv_name=d0"]).fails(5, &said);
    on(&images, "lvdisplay", &["--segments"]).fails(3, &["Incompatible options selected"]);
    let said = ["Failed to find"];
    on(&images, "pvs", &["--segments", "d9"]).fails(5, &said);
}
