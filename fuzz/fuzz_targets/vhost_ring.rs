//! See `src/vhost_ring.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ashlar_fuzz::vhost_ring::run(data);
});
