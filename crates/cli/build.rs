//! Exports the symbols of this program that libzpool calls: crates/zfs/src/ffi/files.rs.

fn main() {
    println!("cargo::rerun-if-changed=../zfs/exports.txt");
    for name in include_str!("../zfs/exports.txt").lines() {
        println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol={name}");
    }
}
