//! See `src/zfs_label.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ashlar_fuzz::zfs_label::run(data);
});
