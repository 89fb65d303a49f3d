//! See `src/nbd_transmission.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ashlar_fuzz::nbd_transmission::run(data);
});
