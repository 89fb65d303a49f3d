//! See `src/btrfs_image.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ashlar_fuzz::btrfs_image::run(data);
});
