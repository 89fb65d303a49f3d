//! See `src/dm_exception_store.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ashlar_fuzz::dm_exception_store::run(data);
});
