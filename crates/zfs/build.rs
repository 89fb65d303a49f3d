//! Exports the functions of this crate that libzpool calls, from its test programs.

fn main() {
    println!("cargo::rerun-if-changed=exports.txt");
    for name in include_str!("exports.txt").lines() {
        println!("cargo::rustc-link-arg=-Wl,--export-dynamic-symbol={name}");
    }
}
