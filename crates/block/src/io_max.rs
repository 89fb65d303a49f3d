//! Rate limits of a volume, in the words of the file `io.max` of control groups (kernel documentation, `admin-guide/cgroup-v2.rst`).
//!
//! `rbps` and `wbps` are bytes in each second, `riops` and `wiops` requests in each second; `max` stands for no limit. A further word, which
//! `io.max` does not have, sets how uneven the use may be: after a pause a volume may use at once what its limits allow in `burst_ms`
//! milliseconds. One time for all four limits is easier to think about than four amounts, and stays right when a limit changes. QEMU's
//! default bursts are of 100 ms, too.
//!
//! As with `io.max`, a text that names only some words changes only these.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::size::Notation;

/// No limit.
const MAX: u64 = u64::MAX;
/// The length of a burst unless another one is set, in milliseconds.
const DEFAULT_BURST_MS: u32 = 100;
/// The longest burst, in milliseconds: an hour.
const MAX_BURST_MS: u32 = 3_600_000;

/// The words of the limits, in the order of `io.max`, and whether they count bytes.
const WORDS: [(&str, bool); 4] =
    [("rbps", true), ("wbps", true), ("riops", false), ("wiops", false)];
/// The word of the burst.
const BURST: &str = "burst_ms";

/// What limits a volume. Prints as the text of its attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoMax {
    /// In the order of [`WORDS`], [`MAX`] for no limit.
    rates: [u64; 4],
    burst_ms: u32,
}

impl Default for IoMax {
    fn default() -> Self {
        Self { rates: [MAX; 4], burst_ms: DEFAULT_BURST_MS }
    }
}

impl IoMax {
    fn rate(&self, index: usize) -> Option<u64> {
        Some(self.rates[index]).filter(|rate| *rate != MAX)
    }

    /// Bytes read in each second; `None` for no limit.
    pub fn rbps(&self) -> Option<u64> {
        self.rate(0)
    }

    /// Bytes written in each second; `None` for no limit.
    pub fn wbps(&self) -> Option<u64> {
        self.rate(1)
    }

    /// Reads in each second; `None` for no limit.
    pub fn riops(&self) -> Option<u64> {
        self.rate(2)
    }

    /// Changes in each second; `None` for no limit.
    pub fn wiops(&self) -> Option<u64> {
        self.rate(3)
    }

    /// The length of a burst in milliseconds.
    pub fn burst_ms(&self) -> u32 {
        self.burst_ms
    }

    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        self.rates == [MAX; 4]
    }
}

impl fmt::Display for IoMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((word, _), rate) in WORDS.iter().zip(self.rates) {
            match rate {
                MAX => write!(f, "{word}=max ")?,
                rate => write!(f, "{word}={rate} ")?,
            }
        }
        write!(f, "{BURST}={}", self.burst_ms)
    }
}

/// A change of some words of an [`IoMax`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct IoMaxChange {
    rates: [Option<u64>; 4],
    burst_ms: Option<u32>,
}

/// Why a text is not an [`IoMaxChange`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum BadIoMax {
    /// There are no words.
    #[error("nothing is limited: use rbps=, wbps=, riops=, wiops= or burst_ms=")]
    Empty,
    /// A word is unknown, or has no value.
    #[error("`{0}` is not rbps=, wbps=, riops=, wiops= or burst_ms= with a value")]
    Word(String),
    /// The value is not a rate in bytes.
    #[error("`{0}` is not a number of bytes from 1 on, which may have K, M, G or T, or max")]
    Bytes(String),
    /// The value is not a rate in requests.
    #[error("`{0}` is not a number of requests from 1 on, or max")]
    Requests(String),
    /// The value is not the length of a burst.
    #[error("`{0}` is not a number of milliseconds from 1 to {MAX_BURST_MS}")]
    Burst(String),
}

impl IoMaxChange {
    /// `max` with this change.
    pub fn of(&self, max: IoMax) -> IoMax {
        let mut rates = max.rates;
        for (rate, change) in rates.iter_mut().zip(self.rates) {
            *rate = change.unwrap_or(*rate);
        }
        IoMax { rates, burst_ms: self.burst_ms.unwrap_or(max.burst_ms) }
    }
}

impl FromStr for IoMaxChange {
    type Err = BadIoMax;

    /// Words with values, between spaces or commas. Of a word that is there twice the last value counts.
    fn from_str(text: &str) -> Result<Self, BadIoMax> {
        let mut change = Self::default();
        for part in text.split([' ', ',', '\t', '\n']).filter(|part| !part.is_empty()) {
            let bad_word = || BadIoMax::Word(part.to_owned());
            let (word, value) = part.split_once('=').ok_or_else(bad_word)?;
            if word == BURST {
                let burst_ms = value.parse().ok().filter(|ms| (1..=MAX_BURST_MS).contains(ms));
                let bad = || BadIoMax::Burst(value.to_owned());
                change.burst_ms = Some(burst_ms.ok_or_else(bad)?);
                continue;
            }
            let index = WORDS.iter().position(|(known, _)| *known == word).ok_or_else(bad_word)?;
            change.rates[index] = Some(rate(value, WORDS[index].1)?);
        }
        if change == Self::default() { Err(BadIoMax::Empty) } else { Ok(change) }
    }
}

/// The rate that `value` means, in bytes or in requests.
fn rate(value: &str, is_bytes: bool) -> Result<u64, BadIoMax> {
    if value == "max" {
        return Ok(MAX);
    }
    let number = if is_bytes { Notation::BYTES.parse(value).ok() } else { value.parse().ok() };
    let bad = || match is_bytes {
        true => BadIoMax::Bytes(value.to_owned()),
        false => BadIoMax::Requests(value.to_owned()),
    };
    number.filter(|rate| *rate > 0).ok_or_else(bad)
}

/// The limits of the volumes with a name: `VOLUME:rbps=10M,wiops=500`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeLimit {
    /// The name, in which a star stands for any characters.
    volume: String,
    change: IoMaxChange,
}

/// Why a text is not a [`VolumeLimit`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum BadVolumeLimit {
    /// A part is missing.
    #[error("`{0}` is not VOLUME:LIMITS, as in md0:rbps=10M,wiops=500")]
    Parts(String),
    /// The limits are wrong.
    #[error(transparent)]
    Limits(#[from] BadIoMax),
}

impl VolumeLimit {
    /// The limits `text` of the volumes named `volume`.
    ///
    /// # Errors
    /// The text is not of limits.
    pub fn new(volume: &str, text: &str) -> Result<Self, BadIoMax> {
        Ok(Self { volume: volume.to_owned(), change: text.parse()? })
    }

    /// The name of the volumes, in which a star stands for any characters.
    pub fn volume(&self) -> &str {
        &self.volume
    }

    /// What it changes of the limits of these volumes.
    pub fn change(&self) -> &IoMaxChange {
        &self.change
    }

    /// Whether a volume with this name is meant.
    pub fn is_for(&self, name: &str) -> bool {
        is_like(name, &self.volume)
    }
}

impl FromStr for VolumeLimit {
    type Err = BadVolumeLimit;

    fn from_str(text: &str) -> Result<Self, BadVolumeLimit> {
        // Names of volumes may have colons, limits have none.
        let parts = text.rsplit_once(':').filter(|(volume, _)| !volume.is_empty());
        let (volume, limits) = parts.ok_or_else(|| BadVolumeLimit::Parts(text.to_owned()))?;
        Ok(Self::new(volume, limits)?)
    }
}

/// Whether a name is like a pattern, in which a star stands for any characters.
fn is_like(name: &str, pattern: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once('*') else { return name == pattern };
    let Some(name) = name.strip_prefix(begin) else { return false };
    let (middle, end) = rest.rsplit_once('*').map_or((None, rest), |(m, end)| (Some(m), end));
    let Some(mut name) = name.strip_suffix(end) else { return false };
    // The first place of each part leaves the most for the parts behind it.
    for part in middle.into_iter().flat_map(|middle| middle.split('*')) {
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(text: &str) -> Result<IoMaxChange, BadIoMax> {
        text.parse()
    }

    #[test]
    fn a_text_changes_the_words_that_it_names_and_prints_as_it_reads() {
        let mut max = IoMax::default();
        assert_eq!(max.to_string(), "rbps=max wbps=max riops=max wiops=max burst_ms=100");
        assert!(max.is_none());
        for (text, printed) in [
            ("rbps=1M", "rbps=1048576 wbps=max riops=max wiops=max burst_ms=100"),
            ("wiops=5,burst_ms=20", "rbps=1048576 wbps=max riops=max wiops=5 burst_ms=20"),
            ("rbps=max wbps=1k\n", "rbps=max wbps=1024 riops=max wiops=5 burst_ms=20"),
            ("riops=1 riops=2", "rbps=max wbps=1024 riops=2 wiops=5 burst_ms=20"),
            ("wbps=2T", "rbps=max wbps=2199023255552 riops=2 wiops=5 burst_ms=20"),
        ] {
            max = change(text).unwrap().of(max);
            assert_eq!(max.to_string(), printed, "{text}");
            assert_eq!(change(printed).unwrap().of(IoMax::default()), max);
        }
        let rates = [max.rbps(), max.wbps(), max.riops(), max.wiops()];
        assert_eq!((rates, max.burst_ms()), ([None, Some(2 << 40), Some(2), Some(5)], 20));
        let none = change("wbps=max,riops=max,wiops=max").unwrap().of(max);
        assert!(none.is_none() && !max.is_none());
    }

    #[test]
    fn what_limits_nothing_or_is_no_rate_is_refused() {
        assert_eq!(change(" ,"), Err(BadIoMax::Empty));
        for text in ["rbps", "bps=1", "8:16", "=5", "RBPS=1"] {
            assert_eq!(change(text), Err(BadIoMax::Word(text.to_owned())), "{text}");
        }
        for value in ["", "0", "-1", "1.5M", "1KB", "18446744073709551616", "Max"] {
            let text = value.to_owned();
            assert_eq!(change(&format!("wbps={value}")), Err(BadIoMax::Bytes(text)), "{value}");
        }
        for value in ["", "0", "1K", "1.5"] {
            let text = value.to_owned();
            assert_eq!(change(&format!("riops={value}")), Err(BadIoMax::Requests(text)));
        }
        for value in ["0", "max", "3600001", ""] {
            let text = value.to_owned();
            assert_eq!(change(&format!("burst_ms={value}")), Err(BadIoMax::Burst(text)));
        }
    }

    #[test]
    fn a_limit_is_for_the_volumes_that_its_name_is_like() {
        let limit: VolumeLimit = "zvol/tank/a:b:rbps=1".parse().unwrap();
        assert!(limit.is_for("zvol/tank/a:b") && !limit.is_for("zvol/tank/a"));
        assert_eq!(Ok(limit.change().to_owned()), change("rbps=1"));
        for text in ["md0", ":rbps=1", ""] {
            let parts = Err(BadVolumeLimit::Parts(text.to_owned()));
            assert_eq!(text.parse::<VolumeLimit>(), parts);
        }
        let word = Err(BadVolumeLimit::Limits(BadIoMax::Word("x".to_owned())));
        assert_eq!("md0:x".parse::<VolumeLimit>(), word);
        for (pattern, like, unlike) in [
            ("*", &["", "md0"][..], &[][..]),
            ("md*", &["md", "md0"], &["amd0", "m"]),
            ("*/data", &["vg/data", "/data"], &["vg/data2", "data"]),
            ("vg/*-*", &["vg/a-b", "vg/-"], &["vg/ab", "vg-a/b"]),
            ("a*a", &["aa", "aba"], &["a"]),
            ("a*b*b*c", &["abbc", "axbybzc"], &["abc", "abb"]),
        ] {
            for name in like {
                assert!(is_like(name, pattern), "{name} {pattern}");
            }
            for name in unlike {
                assert!(!is_like(name, pattern), "{name} {pattern}");
            }
        }
    }
}
