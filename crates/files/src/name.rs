//! Names, which are bytes.

use std::fmt;

/// Maximum path length in bytes: deeper directories are not entered.
pub const PATH_BYTES_MAX: usize = 64 << 10;

/// A name or path: arbitrary bytes. Displayed as text; control characters, bytes that are not UTF-8
/// and backslashes are shown as `\xNN`, which [`Name::from_shown`] reads back.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub Vec<u8>);

impl Name {
    /// The name that is displayed as `text`.
    pub fn from_shown(text: &[u8]) -> Self {
        let mut name = Vec::with_capacity(text.len());
        let mut rest = text;
        while let Some((&first, more)) = rest.split_first() {
            let (byte, behind) =
                escaped_byte(rest).map_or((first, more), |byte| (byte, &rest[4..]));
            name.push(byte);
            rest = behind;
        }
        Self(name)
    }
}

/// The byte of an escape at the start of `text`.
fn escaped_byte(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"\\x")?.get(..2)?;
    let digits =
        std::str::from_utf8(digits).ok().filter(|it| it.bytes().all(|b| b.is_ascii_hexdigit()))?;
    u8::from_str_radix(digits, 16).ok()
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let escaped = |f: &mut fmt::Formatter<'_>, bytes: &[u8]| {
            bytes.iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))
        };
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c == '\\' || c.is_control() {
                    escaped(f, c.encode_utf8(&mut [0; 4]).as_bytes())?;
                } else {
                    fmt::Write::write_char(f, c)?;
                }
            }
            escaped(f, chunk.invalid())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whether `name` is valid for a directory entry.
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.iter().any(|b| matches!(b, 0 | b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_shown_as_text_and_taken_as_it_is_shown() {
        let names: [(&[u8], &str); 6] = [
            (b"plain name", "plain name"),
            ("h\u{e4}user/\u{5bb6}".as_bytes(), "h\u{e4}user/\u{5bb6}"),
            (b"a\x1b[31m\n", r"a\x1b[31m\x0a"),
            (b"\xff\xc3", r"\xff\xc3"),
            ("\u{9b}".as_bytes(), r"\xc2\x9b"),
            (br"back\x41", r"back\x5cx41"),
        ];
        for (bytes, shown) in names {
            let name = Name(bytes.to_vec());
            assert_eq!(name.to_string(), shown);
            assert_eq!(Name::from_shown(shown.as_bytes()), name);
        }
        assert_eq!(Name::from_shown(br"\x4").0, br"\x4");
        assert_eq!(Name::from_shown(br"\x+4").0, br"\x+4");
    }
}
