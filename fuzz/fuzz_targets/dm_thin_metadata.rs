//! See `src/dm_thin_metadata.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ashlar_fuzz::dm_thin_metadata::run(data);
});
