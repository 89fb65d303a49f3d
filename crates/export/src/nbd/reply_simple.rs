//! The simple reply: 16 bytes, followed by the data of a `READ`.

use super::errno::Errno;
use ashlar_nbd::wire::SIMPLE_REPLY_MAGIC;

/// Bytes of a simple reply without data.
pub const LEN: usize = 16;

/// The reply to the request `cookie`; `None` is success. The data of a successful `READ` follow it.
pub fn header(cookie: u64, error: Option<Errno>) -> [u8; LEN] {
    let mut header = [0; LEN];
    header[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    header[4..8].copy_from_slice(&error.map_or(0, Errno::code).to_be_bytes());
    header[8..].copy_from_slice(&cookie.to_be_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magic_error_and_cookie_are_in_their_places() {
        let bytes = header(0x0102_0304_0506_0708, Some(Errno::NoSpc));
        assert_eq!(bytes, [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(header(0, None)[4..8], [0; 4]);
    }
}
