//! Names on disks that would control the terminal, or look like lines of output.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::support::{Images, MIB};

#[test]
fn a_partition_label_does_not_command_the_terminal() {
    let images = Images::new(1, 16 * MIB);
    let label = "--change-name=1:a\u{1b}[31mb\u{9b}c\nd\u{e9}";
    let made = Command::new("sgdisk")
        .args(["--clear", "--new=1:0:0", label])
        .arg(images.path("d0"))
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let run = images.run(&["scan"], &["d0"]).ok();
    assert!(run.out.contains("partlabel=a\\u{1b}[31mb\\u{9b}c\\nd\u{e9}"), "{run:?}");
    assert!(!run.out.contains(['\u{1b}', '\u{9b}']), "{run:?}");
    // JSON has its own escapes, and programs get the label unchanged.
    let run = images.run(&["scan", "--json"], &["d0"]).ok();
    assert!(!run.out.contains(['\u{1b}', '\u{9b}']), "{run:?}");
    let json: Value = serde_json::from_str(&run.out).unwrap_or_else(|why| panic!("{why}: {run:?}"));
    let partition = &json["blockdevices"][0]["children"][0];
    assert_eq!(partition["partlabel"], "a\u{1b}[31mb\u{9b}c\nd\u{e9}", "{json}");
}

#[test]
fn an_array_name_does_not_command_the_terminal() {
    let images = Images::array(1, 16 * MIB, &["--level=1", "--force", "--name=abcdefgh"]);
    let path = images.path("d0");
    let mut bytes = fs::read(&path).unwrap();
    let at = 4096 + bytes[4096..4352].windows(8).position(|at| at == b"abcdefgh").unwrap();
    // Bytes four apart have the same weight in the superblock's checksum: what one loses, the other gains.
    for (index, byte) in [(1, 0x1b), (2, b'\n')] {
        let lost = bytes[at + index] - byte;
        bytes[at + index] = byte;
        bytes[at + index + 4] += lost;
    }
    fs::write(&path, bytes).unwrap();
    for command in [&["md", "examine", "d0"][..], &["scan", "d0"]] {
        let run = images.run(command, &[]).ok();
        assert!(!run.out.contains('\u{1b}') && !run.err.contains('\u{1b}'), "{run:?}");
        assert!(run.out.contains(r"a\u{1b}\nd"), "{run:?}");
    }
}
