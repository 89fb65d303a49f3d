//! See `src/fuse_request.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ashlar_fuzz::fuse_request::run(data);
});
