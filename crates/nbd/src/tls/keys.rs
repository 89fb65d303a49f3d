//! Files of keys that both sides have, as `psktool` writes them: lines of `USER:KEY`, the key in hexadecimal digits.

use std::collections::BTreeMap;

/// The longest key, bytes: a limit of OpenSSL (`PSK_MAX_PSK_LEN`).
const MAX_KEY: usize = 256;
/// The longest name of a user, bytes (`PSK_MAX_IDENTITY_LEN` of its oldest release).
const MAX_USER: usize = 128;

/// The keys of a file, by user.
pub(super) type Keys = BTreeMap<String, Vec<u8>>;

/// The keys of a file with this text. Empty lines and those that begin with `#` mean nothing.
///
/// # Errors
/// The message for the user, which quotes no key.
pub(super) fn parse(text: &str) -> Result<Keys, String> {
    let mut keys = Keys::new();
    for (number, line) in text.lines().enumerate() {
        let (number, line) = (number + 1, line.trim());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (user, key) =
            line.rsplit_once(':').ok_or_else(|| format!("line {number} is not USER:KEY"))?;
        if user.is_empty() || user.len() > MAX_USER || user.contains('\0') {
            return Err(format!("line {number}: a name of 1 to {MAX_USER} bytes is needed"));
        }
        let key = bytes(key).filter(|key| (1..=MAX_KEY).contains(&key.len())).ok_or_else(|| {
            format!("line {number}: the key is not 1 to {MAX_KEY} bytes in hexadecimal digits")
        })?;
        if keys.insert(user.to_owned(), key).is_some() {
            return Err(format!("line {number}: the user `{}` has two keys", user.escape_debug()));
        }
    }
    if keys.is_empty() { Err("it has no keys".to_owned()) } else { Ok(keys) }
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    let digit = |digit: &u8| char::from(*digit).to_digit(16);
    let digits: Option<Vec<u32>> = digits.as_bytes().iter().map(digit).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks_exact(2).map(|pair| (16 * pair[0] + pair[1]) as u8).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_users_and_keys() {
        let keys =
            parse("# made by psktool\nalice:00ff7A\n\n host:1 : 01\n".replace(" : ", ":").as_str());
        let expected = [("alice", vec![0, 255, 0x7a]), ("host:1", vec![1])];
        assert_eq!(keys, Ok(expected.map(|(user, key)| (user.to_owned(), key)).into()));
    }

    #[test]
    fn other_lines_are_refused_without_a_word_of_their_keys() {
        let long = format!("a:{}", "00".repeat(MAX_KEY + 1));
        for text in ["", "# none\n", "alice", ":00", "a:0", "a:0g", "a:", "a:00\na:01", &long] {
            let why = parse(text).unwrap_err();
            assert!(!why.contains("0g"), "{why}");
        }
    }
}
