//! Help and manual pages.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::bench;

const MEASUREMENTS: [&str; 3] = ["lvm-snapshot", "btrfs-scrub", "zvol"];

#[test]
fn every_measurement_has_help_with_examples_and_refuses_unknown_options() {
    let listed = bench(&["--help"]).ok().out;
    assert!(listed.contains("Examples:"), "{listed}");
    for name in MEASUREMENTS {
        assert!(listed.contains(&format!("\n  {name} ")), "{listed}");
        let long = bench(&[name, "--help"]).ok().out;
        assert!(long.contains(&format!("Usage: ashlar-bench {name}")), "{long}");
        assert!(long.contains("Examples:"), "{long}");
        let run = bench(&[name, "--no-such-option"]);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.err.contains("--no-such-option") && run.out.is_empty(), "{run:?}");
    }
    assert_eq!(bench(&[]).code, Some(2));
    assert_eq!(bench(&["frobnicate"]).code, Some(2));
    let version = format!("ashlar-bench {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(bench(&["--version"]).ok().out, version);
}

#[test]
fn the_manual_pages_of_the_repository_are_up_to_date() {
    let dir = tempfile::tempdir().unwrap();
    bench(&["man", dir.path().to_str().unwrap()]).ok();
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/man");
    let names = |dir: &Path| -> BTreeSet<String> {
        let names = fs::read_dir(dir).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("ashlar-bench")).collect()
    };
    assert_eq!(names(dir.path()), names(&kept), "run: ashlar-bench man docs/man");
    for name in names(&kept) {
        let (new, old) = (fs::read(dir.path().join(&name)), fs::read(kept.join(&name)));
        assert!(new.unwrap() == old.unwrap(), "{name} is old; run: ashlar-bench man docs/man");
    }
}
