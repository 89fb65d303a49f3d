//! See `src/dm_raid.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ashlar_fuzz::dm_raid::run(data);
});
