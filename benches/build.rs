//! Exports the symbols of `ashlar-bench` and `ashlar-benches` that libzpool calls: crates/zfs/src/ffi/files.rs.

fn main() {
    println!("cargo::rerun-if-changed=../crates/zfs/exports.txt");
    for name in include_str!("../crates/zfs/exports.txt").lines() {
        for bin in ["ashlar-bench", "ashlar-benches"] {
            println!("cargo::rustc-link-arg-bin={bin}=-Wl,--export-dynamic-symbol={name}");
        }
    }
}
