//! LVM texts from a hostile disk: never a panic, never an unbounded loop or allocation; printed trees and groups are
//! parsed to the same again.
//!
//! Input: a text.

use ashlar_lvm::Metadata;
use ashlar_lvm::alloc::Wish;
use ashlar_lvm::text::{Form, parse, print};

/// Checks one input against the module text; returns whether part of it was accepted.
pub fn run(data: &[u8]) -> bool {
    if let Ok(tree) = parse(data) {
        for form in [Form::Disk, Form::Backup { utc_offset: 3600 }] {
            let text = print(&tree, form);
            let again = parse(&text).expect("just printed");
            assert_eq!(print(&again, form), text);
        }
    }
    match Metadata::parse(data) {
        Ok(metadata) => {
            let text = metadata.print(Form::Disk);
            let again = Metadata::parse(&text).expect("just printed");
            assert_eq!(again.print(Form::Disk), text);
            let group = &metadata.group;
            let free = group.free_map();
            for lv in &group.lvs {
                assert!(group.size(lv) >= group.extent_size || lv.segments.is_empty());
            }
            let wish = Wish::linear(u32::try_from(free.total().min(1000)).unwrap_or(0).max(1));
            if let Ok(segments) = group.allocate(&wish, None) {
                assert!(!segments.is_empty());
            }
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}
