//! A file system and its devices.

use std::fmt::Write as _;

use ashlar_files::{Name, size};

use crate::volume::FileSystem;

/// Label, UUID and devices of a file system, as `btrfs filesystem show` prints them; `raw` sizes are bytes.
pub fn show(fs: &FileSystem, raw: bool) -> String {
    let size = |bytes: u64| if raw { bytes.to_string() } else { size(bytes as f64) };
    let superblock = fs.superblock();
    let label = match superblock.label() {
        [] => "none ".to_owned(),
        label => format!("'{}' ", Name(label.to_vec())),
    };
    let (fsid, total) = (superblock.fsid(), superblock.num_devices.get());
    let used = size(superblock.bytes_used.get());
    let mut text = format!("Label: {label} uuid: {fsid}\n");
    let mut line = |args: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        text.write_fmt(args).and_then(|()| text.write_char('\n')).ok()
    };
    line(format_args!("\tTotal devices {total} FS bytes used {used}"));
    for device in fs.devices() {
        let item = &device.superblock.dev_item;
        let [all, used] = [&item.total_bytes, &item.bytes_used].map(|it| size(it.get()));
        let (devid, path) = (device.devid.0, &device.name);
        line(format_args!("\tdevid {devid:>4} size {all} used {used} path {path}"));
    }
    if !fs.missing().is_empty() {
        line(format_args!("\t*** Some devices missing"));
    }
    line(format_args!(""));
    text
}
