//! The real zdb's report on a pool.

use std::path::Path;
use std::process::{Command, Output};

/// The script's exit status if there is no zdb.
const NOT_FOUND: i32 = 127;

/// zdb's output for the pools in a folder; `None` if zdb is missing and not required.
pub(crate) fn zdb(folder: &Path, args: &[&str]) -> Option<Output> {
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/oracle/zdb"))
        .env_remove("LD_LIBRARY_PATH")
        .args(["-e", "-p"])
        .arg(folder)
        .args(args)
        .output()
        .unwrap();
    if output.status.code() == Some(NOT_FOUND) {
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(std::env::var_os("CI").is_none(), "zdb: {told}");
        println!("not checked with zdb: {told}");
        return None;
    }
    Some(output)
}

/// Checks that zdb reads every block of an exported pool, and finds no errors and no leaked space.
pub(crate) fn assert_clean(pool: &str, folder: &Path) {
    let Some(output) = zdb(folder, &["-bcc", pool]) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "zdb: {text}\n{told}");
    assert!(text.contains("No leaks"), "zdb: {text}\n{told}");
}
