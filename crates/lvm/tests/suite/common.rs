//! Groups made by the real LVM (tests/images/lvm-tables), and an author of changes.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use ashlar_lvm::change::Author;
use ashlar_lvm::metadata::Creation;
use ashlar_lvm::{Metadata, Uuid};

/// A file beside the groups' texts.
pub(crate) fn golden(file: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images/lvm-tables");
    fs::read_to_string(root.join(file)).expect(file)
}

/// A group.
pub(crate) fn metadata(name: &str) -> Metadata {
    Metadata::parse(golden(&format!("{name}.text")).as_bytes()).expect(name)
}

/// `dmsetup table` for a group, sorted.
pub(crate) fn lvm_tables(name: &str) -> Vec<String> {
    let text = golden(&format!("{name}.tables"));
    let mut lines: Vec<String> = text.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.sort();
    lines
}

/// Gives each new volume a UUID of its own.
pub(crate) fn with_author<T>(work: impl FnOnce(&mut Author<'_>) -> T) -> T {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    let mut new_uuid = || {
        let number = COUNT.fetch_add(1, Relaxed);
        Uuid::from_random(std::array::from_fn(|at| 1 + (number >> (4 * (at % 8)) & 15) as u8))
    };
    let creation = Creation { time: 1_795_282_190, host: "host".into() };
    work(&mut Author { creation, new_uuid: &mut new_uuid })
}
