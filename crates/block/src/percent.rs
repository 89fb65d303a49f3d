//! Percent-encoding, as in URIs (RFC 3986, section 2.1).

/// Decodes `%41`. `None` for a `%` without two hexadecimal digits, and if the result is not UTF-8.
pub fn decode(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_two_digits_of_utf8_are_decoded() {
        for (text, expected) in [
            ("", Some("")),
            ("a%2fb%20c", Some("a/b c")),
            ("%C3%a9", Some("\u{e9}")),
            ("%", None),
            ("%4", None),
            ("%+4", None),
            ("%ff", None),
            ("%\u{e9}", None),
        ] {
            assert_eq!(decode(text).as_deref(), expected, "{text}");
        }
    }
}
