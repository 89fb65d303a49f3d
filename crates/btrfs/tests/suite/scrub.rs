//! Scrub of golden images: counters as in the kernel; damage of every kind, found and repaired.

mod common;
mod control;
mod crash;
mod damage;
mod stripes;
mod supers;
mod trees;
mod walk;

use crate::support::{Rig, names};
use ashlar_btrfs::scrub::{Counters, DeviceReport, State};
use common::{read_only, scrub};

/// The output of `btrfs scrub -R`, by device.
fn counted(text: &str) -> Vec<(u64, Counters)> {
    let mut all: Vec<(u64, Counters)> = Vec::new();
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once("(id ") {
            let (id, _) = rest.split_once(')').expect("(id N)");
            all.push((id.parse().expect("a number"), Counters::default()));
        }
        let Some((name, value)) = line.trim().split_once(": ") else { continue };
        let (Ok(value), Some((_, counters))) = (value.trim().parse(), all.last_mut()) else {
            continue;
        };
        match name {
            "data_extents_scrubbed" => counters.data_extents_scrubbed = value,
            "tree_extents_scrubbed" => counters.tree_extents_scrubbed = value,
            "data_bytes_scrubbed" => counters.data_bytes_scrubbed = value,
            "tree_bytes_scrubbed" => counters.tree_bytes_scrubbed = value,
            "read_errors" => counters.read_errors = value,
            "csum_errors" => counters.csum_errors = value,
            "verify_errors" => counters.verify_errors = value,
            "no_csum" => counters.no_csum = value,
            "csum_discards" => counters.csum_discards = value,
            "super_errors" => counters.super_errors = value,
            "malloc_errors" => counters.malloc_errors = value,
            "uncorrectable_errors" => counters.uncorrectable_errors = value,
            "unverified_errors" => counters.unverified_errors = value,
            "corrected_errors" => counters.corrected_errors = value,
            "last_physical" => counters.last_physical = value,
            _ => panic!("unknown counter {name}"),
        }
    }
    all
}

/// The kernel's output for an image.
fn told(image: &str) -> &'static str {
    let all = if image.starts_with("stripe-") {
        include_str!("scrub-stripes.txt")
    } else {
        include_str!("scrub.txt")
    };
    let (_, rest) = all
        .split_once(&format!("image {image}\n"))
        .unwrap_or_else(|| panic!("run tests/scrub/counters.sh: there is no {image}"));
    rest.split("\nimage ").next().expect("there is one")
}

/// The kernel's counters for an image.
fn kernel(image: &str) -> Vec<(u64, Counters)> {
    counted(told(image))
}

/// Every counter of every device of every image equals that of the kernel's scrub.
#[test]
fn a_sound_file_system_counts_as_in_the_kernel() {
    for name in names() {
        let rig = Rig::golden(&name);
        let fs = rig.open();
        let (reports, problems) = scrub(&rig, &fs, read_only());
        assert_eq!(problems, [], "{name}");
        assert_counters(&reports, &kernel(&name), &name);
    }
}

/// Asserts that all devices were scrubbed, with the same counters as in the kernel.
fn assert_counters(reports: &[DeviceReport], wanted: &[(u64, Counters)], name: &str) {
    assert_eq!(reports.len(), wanted.len(), "{name}");
    for (report, (devid, counters)) in reports.iter().zip(wanted) {
        assert_eq!(report.devid.0, *devid, "{name}");
        assert_eq!(report.counters, *counters, "{name}, device {devid}");
        assert_eq!(report.state, State::Finished, "{name}, device {devid}");
    }
}
