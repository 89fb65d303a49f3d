//! The texts of the attributes `bad_blocks` and `unacknowledged_bad_blocks` of a member, as in the
//! kernel's admin-guide/md: one range a line, first sector and number of sectors.

use ashlar_block::{Sector, Sectors};
use thiserror::Error;

use super::BadBlocks;

/// A change that a user writes to one of the attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// `START LEN`: these sectors are bad.
    Set {
        /// First sector, counted from the start of the device.
        start: Sector,
        /// Its length, not zero.
        len: Sectors,
    },
    /// `-START LEN`: these sectors are good.
    Clear {
        /// First sector, counted from the start of the device.
        start: Sector,
        /// Its length, not zero.
        len: Sectors,
    },
}

/// A text that is not a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("not START LEN or -START LEN, in sectors")]
pub struct InvalidChange;

impl Change {
    /// Parses the written text, with or without a trailing newline.
    ///
    /// # Errors
    /// It is not two numbers with one blank between them, or the range is empty or ends beyond the
    /// number space.
    pub fn parse(text: &str) -> Result<Self, InvalidChange> {
        let text = text.strip_suffix('\n').unwrap_or(text);
        let (is_clear, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (start, len) = text.split_once(' ').ok_or(InvalidChange)?;
        let (start, len) = (Sector(number(start)?), Sectors(number(len)?));
        if len.is_zero() || start.checked_add(len).is_none() {
            return Err(InvalidChange);
        }
        Ok(if is_clear { Self::Clear { start, len } } else { Self::Set { start, len } })
    }
}

/// Digits only: the standard parser would accept a sign.
fn number(text: &str) -> Result<u64, InvalidChange> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(InvalidChange);
    }
    text.parse().map_err(|_| InvalidChange)
}

impl BadBlocks {
    /// The text of `bad_blocks`: all listed ranges, acknowledged or not, as in the kernel, but not
    /// truncated to a page.
    pub fn text(&self) -> String {
        self.lines(|_| true)
    }

    /// The text of `unacknowledged_bad_blocks`: the ranges that are not on disk yet.
    pub fn unacknowledged_text(&self) -> String {
        self.lines(|acknowledged| !acknowledged)
    }

    fn lines(&self, wanted: impl Fn(bool) -> bool) -> String {
        let ranges = self.ranges().into_iter().filter(|(_, acknowledged)| wanted(*acknowledged));
        ranges.map(|(range, _)| format!("{} {}\n", range.start, range.len)).collect()
    }
}
