//! Completions and manual pages.

use std::fs;
use std::path::Path;

use super::support::ashlar;

#[test]
fn there_are_completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let run = ashlar(&["completions", shell]).ok();
        assert!(run.out.contains("ashlar") && run.out.contains("assume-clean"), "{shell}");
    }
    assert_eq!(ashlar(&["completions", "dos"]).code, Some(2));
}

#[test]
fn the_manual_pages_of_the_repository_are_up_to_date() {
    let dir = tempfile::tempdir().unwrap();
    ashlar(&["man", dir.path().to_str().unwrap()]).ok();
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man");
    let names = |dir: &Path| {
        let names = fs::read_dir(dir).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        // `ashlar-bench` writes its own.
        let mut names: Vec<_> = names.filter(|name| !name.starts_with("ashlar-bench")).collect();
        names.sort();
        names
    };
    assert_eq!(names(dir.path()), names(&kept), "run: ashlar man docs/man");
    for name in names(&kept) {
        let (new, old) = (fs::read(dir.path().join(&name)), fs::read(kept.join(&name)));
        assert!(new.unwrap() == old.unwrap(), "{name} is old; run: ashlar man docs/man");
    }
}

#[test]
fn manual_pages_go_to_a_directory_that_exists() {
    ashlar(&["man", "/nonexistent/man"]).fails(1, &["/nonexistent/man"]);
}
