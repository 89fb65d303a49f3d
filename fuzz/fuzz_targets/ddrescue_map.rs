//! See `src/ddrescue_map.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ashlar_fuzz::ddrescue_map::run(data);
});
