//! Exports what libzpool is to call of this crate from the programs of its tests.

fn main() {
    println!("cargo::rerun-if-changed=exports.txt");
    for name in include_str!("exports.txt").lines() {
        println!("cargo::rustc-link-arg=-Wl,--export-dynamic-symbol={name}");
    }
}
