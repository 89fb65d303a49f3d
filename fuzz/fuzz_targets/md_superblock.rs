//! See `src/md_superblock.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ashlar_fuzz::md_superblock::run(data);
});
