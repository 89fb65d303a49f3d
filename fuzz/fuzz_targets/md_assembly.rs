//! See `src/md_assembly.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ashlar_fuzz::md_assembly::run(data);
});
