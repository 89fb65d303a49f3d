//! See `src/partition_table.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ashlar_fuzz::partition_table::run(data);
});
