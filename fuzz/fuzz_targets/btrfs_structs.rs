//! See `src/btrfs_structs.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ashlar_fuzz::btrfs_structs::run(data);
});
