//! Tests of the on-disk formats, against golden images made by real mdadm and by hand.

mod bad_blocks;
mod created;
mod damaged;
mod examined;
mod golden;
mod ppl;
mod probing;
mod round_trip;
mod words;

use created::spec as created_spec;

use std::path::PathBuf;

/// A file below `tests/images/md` of the repository.
fn image_path(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join("../../tests/images/md").join(name)
}

fn image(name: &str) -> Vec<u8> {
    let path = image_path(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn image_text(name: &str) -> String {
    String::from_utf8(image(name)).expect("expectations are text")
}

/// Bytes from hex, where `XX*COUNT` is a run of equal bytes.
fn unpack(packed: &str) -> Vec<u8> {
    let byte = |hex: &str| u8::from_str_radix(hex, 16).expect("two hex digits");
    let mut bytes = Vec::new();
    for part in packed.split_whitespace() {
        if let Some((hex, count)) = part.split_once('*') {
            bytes.resize(bytes.len() + count.parse::<usize>().expect("a count"), byte(hex));
        } else {
            bytes.extend((0..part.len()).step_by(2).map(|at| byte(&part[at..at + 2])));
        }
    }
    bytes
}
