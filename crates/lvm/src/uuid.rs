//! LVM's identifiers: 32 characters from a special alphabet.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The allowed characters. The last two only come from LVM1.
const ALPHABET: &[u8; 64] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ!#";
/// LVM2 uses only this many of them for new identifiers.
const NEW: usize = 62;
/// Characters between the dashes.
const GROUPS: [usize; 7] = [6, 4, 4, 4, 4, 4, 6];

/// Identity of a physical volume, a volume group or a logical volume.
///
/// Shown as LVM shows it: `hjkSqo-eWCY-0ifu-cEX9-RxlR-5ckb-nR0wkB`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid([u8; 32]);

/// Why a text is not an identifier.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("not an LVM UUID, 32 letters and digits with six dashes")]
pub struct InvalidUuid;

impl Uuid {
    /// The identifier in its on-disk form, without dashes; `None` if it has other characters.
    pub fn from_raw(raw: [u8; 32]) -> Option<Self> {
        raw.iter().all(|byte| ALPHABET.contains(byte)).then_some(Self(raw))
    }

    /// A new identifier from 32 random bytes.
    pub fn from_random(random: [u8; 32]) -> Self {
        Self(random.map(|byte| ALPHABET[usize::from(byte) % NEW]))
    }

    /// The on-disk form, without dashes.
    pub fn raw(&self) -> [u8; 32] {
        self.0
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = &self.0[..];
        for (i, len) in GROUPS.into_iter().enumerate() {
            let (group, more) = rest.split_at(len);
            rest = more;
            let dash = if i == 0 { "" } else { "-" };
            write!(f, "{dash}{}", group.escape_ascii())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uuid {
    type Err = InvalidUuid;

    /// With dashes, at any position, or without.
    fn from_str(text: &str) -> Result<Self, InvalidUuid> {
        let mut raw = [0; 32];
        let mut len = 0;
        for byte in text.bytes().filter(|byte| *byte != b'-') {
            *raw.get_mut(len).ok_or(InvalidUuid)? = byte;
            len += 1;
        }
        if len == raw.len() { Self::from_raw(raw).ok_or(InvalidUuid) } else { Err(InvalidUuid) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_and_shown_with_dashes() {
        let text = "hjkSqo-eWCY-0ifu-cEX9-RxlR-5ckb-nR0wk#";
        let uuid: Uuid = text.parse().expect("valid");
        assert_eq!(uuid.to_string(), text);
        assert_eq!(uuid.raw(), *b"hjkSqoeWCY0ifucEX9RxlR5ckbnR0wk#");
        let undashed = text.replace('-', "");
        assert_eq!(undashed.parse(), Ok(uuid));
        assert_eq!(text[1..].parse::<Uuid>(), Err(InvalidUuid));
        assert_eq!(format!("{text}0").parse::<Uuid>(), Err(InvalidUuid));
        assert_eq!(text.replace('h', "_").parse::<Uuid>(), Err(InvalidUuid));
    }

    #[test]
    fn new_ones_have_letters_and_digits_only() {
        for byte in 0..=u8::MAX {
            let text = Uuid::from_random([byte; 32]).to_string();
            assert!(
                text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'),
                "{text}"
            );
        }
    }
}
