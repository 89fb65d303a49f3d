//! See `src/nbd_handshake.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ashlar_fuzz::nbd_handshake::run(data);
});
