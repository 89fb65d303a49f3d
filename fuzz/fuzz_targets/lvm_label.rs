//! See `src/lvm_label.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ashlar_fuzz::lvm_label::run(data);
});
