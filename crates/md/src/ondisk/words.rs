//! Levels, layouts, versions and UUIDs in the words of mdadm's options.

use uuid::Uuid;

use super::text::parity_layout_name;
use super::{Level, Version};

/// A level that can be created, by number or name.
///
/// # Errors
/// The message for the user.
pub fn level(text: &str) -> Result<Level, String> {
    match text {
        "linear" | "-1" => Ok(Level::Linear),
        "0" | "raid0" | "stripe" => Ok(Level::Raid0),
        "1" | "raid1" | "mirror" => Ok(Level::Raid1),
        "4" | "raid4" => Ok(Level::Raid4),
        "5" | "raid5" => Ok(Level::Raid5),
        "6" | "raid6" => Ok(Level::Raid6),
        "10" | "raid10" => Ok(Level::Raid10),
        _ => Err(format!(
            "`{text}` is not one of linear, 0, raid0, stripe, 1, raid1, mirror, 4, raid4, 5, raid5, 6, raid6, 10, raid10"
        )),
    }
}

/// A superblock version that can be created.
///
/// # Errors
/// The message for the user.
pub fn version(text: &str) -> Result<Version, String> {
    match text {
        "1" | "1.2" | "default" => Ok(Version::V1_2),
        "1.1" => Ok(Version::V1_1),
        "1.0" => Ok(Version::V1_0),
        "0" | "0.90" => Ok(Version::V0_90),
        _ => Err(format!("`{text}` is not one of 1.2, 1.1, 1.0, 0.90")),
    }
}

/// A layout, which depends on the level: `n2`, `f3`, `o2` for RAID10; `original`, `alternate` (or 1,
/// 2) for RAID0; `left-symmetric` (or `ls`) and the like for RAID5 and RAID6.
///
/// # Errors
/// The message for the user.
pub fn layout(level: Level, text: &str) -> Result<u32, String> {
    let raid10 = || {
        let (kind, copies) = text.split_at_checked(1)?;
        let copies: u32 = copies.parse().ok().filter(|n| (1..=255).contains(n))?;
        match kind {
            "n" => Some(0x100 | copies),
            "f" => Some(copies << 8 | 1),
            "o" => Some(0x1_0000 | copies << 8 | 1),
            _ => None,
        }
    };
    let (found, possible) = match level {
        Level::Raid10 => (raid10(), "n2, f2, o2 or the like"),
        Level::Raid0 => (
            match text {
                "original" | "1" => Some(super::create::RAID0_ORIGINAL),
                "alternate" | "2" => Some(super::create::RAID0_ALTERNATE),
                _ => None,
            },
            "original or alternate",
        ),
        Level::Raid5 | Level::Raid6 => {
            let is_6 = level == Level::Raid6;
            let name = match text {
                "la" => "left-asymmetric",
                "ra" => "right-asymmetric",
                "ls" => "left-symmetric",
                "rs" => "right-symmetric",
                // On RAID5 they add nothing.
                "ddf-zero-restart" if !is_6 => "right-asymmetric",
                "ddf-N-restart" if !is_6 => "left-asymmetric",
                "ddf-N-continue" if !is_6 => "left-symmetric",
                other => other,
            };
            let named = |word: &u32| parity_layout_name(is_6, *word) == Some(name);
            ((0..32).find(named), "left-symmetric, right-asymmetric, parity-last or the like")
        }
        Level::Raid1
        | Level::Linear
        | Level::Raid4
        | Level::Multipath
        | Level::Faulty
        | Level::Other(_) => return Err(format!("{level} has no layouts")),
    };
    found.ok_or_else(|| format!("`{text}` is not a layout of {level}: {possible}"))
}

/// A UUID in mdadm's form (`01234567:89abcdef:...`) or the usual one.
///
/// # Errors
/// The message for the user.
pub fn uuid(text: &str) -> Result<Uuid, String> {
    let digits: String = text.chars().filter(|c| !matches!(c, ':' | '-' | '.' | ' ')).collect();
    Uuid::try_parse(&digits).map_err(|_| format!("`{text}` is not a UUID: 32 hex digits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_mdadms_words() {
        assert_eq!(layout(Level::Raid10, "n2"), Ok(0x102));
        assert_eq!(layout(Level::Raid10, "f3"), Ok(0x301));
        assert_eq!(layout(Level::Raid10, "o2"), Ok(0x1_0201));
        assert_eq!(layout(Level::Raid0, "original"), Ok(1));
        assert_eq!(layout(Level::Raid0, "alternate"), Ok(2));
        assert_eq!(layout(Level::Raid5, "ls"), Ok(2));
        assert_eq!(layout(Level::Raid5, "parity-last"), Ok(5));
        assert_eq!(layout(Level::Raid5, "ddf-zero-restart"), Ok(1));
        assert_eq!(layout(Level::Raid6, "ddf-zero-restart"), Ok(8));
        assert_eq!(layout(Level::Raid6, "left-symmetric-6"), Ok(18));
        for (level, bad) in [
            (Level::Raid5, "left-symmetric-6"),
            (Level::Raid4, "left-symmetric"),
            (Level::Raid6, "n2"),
            (Level::Raid10, "n0"),
            (Level::Raid10, "x2"),
            (Level::Raid10, ""),
            (Level::Raid10, "\u{e9}2"),
            (Level::Raid10, "n256"),
            (Level::Raid0, "n2"),
            (Level::Raid1, "n2"),
        ] {
            assert!(layout(level, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn uuids_are_read_in_both_forms() {
        let expected = Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        assert_eq!(uuid("01234567:89abcdef:01234567:89abcdef"), Ok(expected));
        assert_eq!(uuid(&expected.hyphenated().to_string()), Ok(expected));
        assert!(uuid("0123").is_err());
    }
}
