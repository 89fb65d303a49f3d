//! See `src/nbd_client.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ashlar_fuzz::nbd_client::run(data);
});
