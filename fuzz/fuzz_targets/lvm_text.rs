//! See `src/lvm_text.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ashlar_fuzz::lvm_text::run(data);
});
