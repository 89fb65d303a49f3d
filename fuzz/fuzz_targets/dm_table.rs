//! See `src/dm_table.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ashlar_fuzz::dm_table::run(data);
});
