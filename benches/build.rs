//! Exports the symbols of `ashlar-bench` that libzpool calls: crates/zfs/src/ffi/files.rs.

fn main() {
    println!("cargo::rerun-if-changed=../crates/zfs/exports.txt");
    for name in include_str!("../crates/zfs/exports.txt").lines() {
        println!("cargo::rustc-link-arg-bin=ashlar-bench=-Wl,--export-dynamic-symbol={name}");
    }
}
