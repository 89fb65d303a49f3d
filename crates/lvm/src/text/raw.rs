//! Lossless conversion of a text's bytes to a `String` and back.
//!
//! LVM's texts are ASCII, except for external strings: device names and command lines may contain
//! any bytes. Each byte that is not UTF-8 becomes a character of a private range of Unicode; so
//! does each byte of a character of that range, which makes the conversion exact for every input.

/// The character for byte 0x80; the others follow.
const FIRST: u32 = 0xf780;
/// The character for byte 0xff.
const LAST: u32 = FIRST + 0x7f;

fn stand_in(byte: u8) -> char {
    // In the range, which has no surrogates.
    char::from_u32(FIRST + u32::from(byte & 0x7f)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn is_stand_in(c: char) -> bool {
    (FIRST..=LAST).contains(&u32::from(c))
}

/// Converts `bytes` to text.
pub fn decode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        if chunk.valid().chars().any(is_stand_in) {
            for c in chunk.valid().chars() {
                if is_stand_in(c) {
                    let mut utf8 = [0; 4];
                    text.extend(c.encode_utf8(&mut utf8).bytes().map(stand_in));
                } else {
                    text.push(c);
                }
            }
        } else {
            text.push_str(chunk.valid());
        }
        text.extend(chunk.invalid().iter().copied().map(stand_in));
    }
    text
}

/// The bytes from which [`decode`] made `text`.
pub fn encode(text: &str) -> Vec<u8> {
    if !text.chars().any(is_stand_in) {
        return text.as_bytes().to_vec();
    }
    let mut bytes = Vec::with_capacity(text.len());
    for c in text.chars() {
        if is_stand_in(c) {
            bytes.push(0x80 | (u32::from(c) - FIRST) as u8);
        } else {
            let mut utf8 = [0; 4];
            bytes.extend_from_slice(c.encode_utf8(&mut utf8).as_bytes());
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_bytes_comes_back() {
        for pair in 0..=u16::MAX {
            let bytes = [b'a', (pair >> 8) as u8, pair as u8, b'z'];
            assert_eq!(encode(&decode(&bytes)), bytes);
        }
    }

    #[test]
    fn a_character_of_the_private_range_comes_back_as_itself() {
        let text = "x\u{f780}y\u{f7ff}\u{e4}".as_bytes();
        assert_eq!(encode(&decode(text)), text);
        assert_eq!(decode("gr\u{fc}n".as_bytes()), "gr\u{fc}n");
    }
}
