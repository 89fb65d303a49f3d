//! Where `unsafe` is allowed, and the attributes by which the compiler enforces it.

use super::lex::lines_with_word;
use super::{Finding, Tree};

/// The only places with unsafe code: a whole crate's sources, a file, or a folder.
const PLACES: &[&str] = &[
    // The allocator that counts.
    "benches/src/allocations.rs",
    // Calls of a driver that takes addresses.
    "benches/src/bin/vhost-load.rs",
    // The tests' filter of system calls.
    "crates/cli/tests/cli/refused.rs",
    "crates/engine/",
    "crates/block/src/buffer.rs",
    "crates/block/src/buffer/",
    // The value that I/O uses without a lock.
    "crates/block/src/sync/gate.rs",
    "crates/rbd/src/ffi/",
    "crates/zfs/src/ffi.rs",
    "crates/zfs/src/ffi/",
    // The tests' own calls of libzpool, which create and inspect pools independently of the code under test.
    "crates/zfs/tests/suite/pool/",
    // Commands that name memory, and the mapped descriptions of requests.
    "crates/ublk/src/control.rs",
    "crates/ublk/src/queue.rs",
    // The mapped memory of guests, and the tests' calls of a driver that takes addresses.
    "crates/vhost/src/memory.rs",
    "crates/vhost/tests/suite/driver.rs",
    "crates/cli/tests/cli/vhost_user.rs",
];

fn allowed(path: &str) -> bool {
    PLACES.iter().any(|place| path == *place || (place.ends_with('/') && path.starts_with(place)))
}

/// `unsafe` occurs only in the listed places.
pub(crate) fn allowed_places(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.rust().filter(|file| !allowed(&file.path)) {
        for line in lines_with_word(&file.code, "unsafe") {
            found.push(Finding::error(
                &file.path,
                line,
                "unsafe code outside of the places that may have it",
            ));
        }
        for line in lines_with_word(&file.code, "unsafe_code") {
            let text = file.code.lines().nth(line - 1).unwrap_or_default();
            if !text.contains("forbid(") && !text.contains("deny(") {
                let opens_a_place =
                    PLACES.iter().any(|place| place.starts_with(parent(&file.path)));
                if !opens_a_place {
                    found.push(Finding::error(
                        &file.path,
                        line,
                        "switches the lint against unsafe code off",
                    ));
                }
            }
        }
    }
    found
}

fn parent(path: &str) -> &str {
    path.rfind('/').map_or("", |slash| &path[..=slash])
}

/// A crate without such a place forbids unsafe code; one with a place denies it elsewhere. The engine allows it
/// everywhere.
pub(crate) fn crate_attributes(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.rust() {
        let Some((package, "lib.rs" | "main.rs")) = file.path.split_once("/src/") else {
            continue;
        };
        let folder = format!("{package}/");
        if PLACES.contains(&folder.as_str()) {
            continue;
        }
        let has_place =
            tree.rust().any(|other| other.path.starts_with(&folder) && allowed(&other.path));
        let wanted = if has_place { "#![deny(unsafe_code)]" } else { "#![forbid(unsafe_code)]" };
        if !file.code.contains(wanted) && !file.code.contains("#![forbid(unsafe_code)]") {
            found.push(Finding::error(&file.path, 0, format!("misses {wanted}")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    #[test]
    fn unsafe_code_in_the_wrong_place_is_found() {
        let check = |path, text| findings(allowed_places, &[(path, text)]).len();
        assert_eq!(check("crates/md/src/a.rs", "fn f() { unsafe { g() } }"), 1);
        assert_eq!(check("crates/block/src/bio.rs", "unsafe impl Send for A {}"), 1);
        assert_eq!(check("crates/block/src/buffer.rs", "unsafe impl Send for A {}"), 0);
        assert_eq!(check("crates/engine/src/uring/ring.rs", "unsafe { g() }"), 0);
        assert_eq!(check("crates/ublk/src/queue.rs", "unsafe { g() }"), 0);
        assert_eq!(check("crates/export/src/nbd.rs", "unsafe { g() }"), 1);
        assert_eq!(check("crates/md/src/a.rs", "// unsafe\nlet unsafe_word = \"unsafe\";"), 0);
    }

    #[test]
    fn switching_the_lint_off_is_found() {
        let check = |path, text| findings(allowed_places, &[(path, text)]).len();
        assert_eq!(check("crates/md/src/lib.rs", "#![allow(unsafe_code)]"), 1);
        assert_eq!(check("crates/block/src/lib.rs", "#[allow(unsafe_code)]\npub mod buffer;"), 0);
    }

    #[test]
    fn a_crate_that_does_not_forbid_unsafe_code_is_found() {
        let check = |files: &[(&str, &str)]| findings(crate_attributes, files);
        assert_eq!(
            check(&[("crates/md/src/lib.rs", "//! md")]),
            [(0, "misses #![forbid(unsafe_code)]".to_owned())]
        );
        assert_eq!(check(&[("crates/md/src/lib.rs", "// #![forbid(unsafe_code)]")]).len(), 1);
        assert_eq!(check(&[("crates/md/src/lib.rs", "#![deny(unsafe_code)]")]).len(), 1);
        assert_eq!(check(&[("crates/md/src/lib.rs", "#![forbid(unsafe_code)]")]).len(), 0);
        assert_eq!(check(&[("crates/engine/src/lib.rs", "//! engine")]).len(), 0);
        let buffer = ("crates/block/src/buffer.rs", "");
        assert_eq!(check(&[("crates/block/src/lib.rs", "#![deny(unsafe_code)]"), buffer]).len(), 0);
        assert_eq!(check(&[("crates/block/src/lib.rs", ""), buffer]).len(), 1);
    }
}
