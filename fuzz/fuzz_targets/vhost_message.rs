//! See `src/vhost_message.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ashlar_fuzz::vhost_message::run(data);
});
