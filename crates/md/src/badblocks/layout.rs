//! The assignment of entries to sectors of the log.
//!
//! A sector of a device is written atomically, several sectors are not: a crash during a write of the
//! log leaves some sectors old and some new. A sorted list, as the kernel writes
//! it, can lose entries that way: an entry pushed from the end of one sector to the start of the next is in
//! neither if only the first was written, and a range that was acknowledged long ago is lost.
//!
//! So **an entry stays in its sector of the log until it is cleared.** Then in any
//! mixture of two images on disk, a range that both list is in the same sector of both, hence
//! in that sector of the mixture. A reader finds it there, because no sector before it ends the list:
//! sectors before the last one in use are always full, padded with a repeated entry if necessary, which a
//! reader merges (the kernel's does). Every entry of a mixture is in one image or the other: at worst,
//! a block that has just been cleared counts as bad.

use thiserror::Error;

use crate::ondisk::bad_block_log::{self, BadBlockLogError, MAX_ENTRY_LEN};

/// Entries in a sector of the log.
pub(super) const SLOTS: usize = 512 / 8;

/// Why a change was refused as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BadBlocksError {
    /// The member has no bad block log. Its superblock has no place for one.
    #[error("the member has no bad block log")]
    NoLog,
    /// The log has no room for the entries that the change needs.
    #[error("the bad block log is full")]
    Full,
    /// The log cannot express such a position, or the range is empty.
    #[error("a bad block log cannot hold this range")]
    Range,
}

/// Units `[start, end)`, at most [`MAX_ENTRY_LEN`] of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) start: u64,
    pub(super) end: u64,
    /// The generation of its newest part.
    pub(super) since: u64,
}

impl Entry {
    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.start < end && start < self.end
    }
}

/// The entries of each sector of a log: ascending, not overlapping, at most [`SLOTS`].
#[derive(Clone, Debug)]
pub(super) struct Layout(Vec<Vec<Entry>>);

impl Layout {
    /// The layout of an existing log, from the first unit and the length of each entry, in order.
    pub(super) fn from_entries(
        sectors: usize,
        entries: impl Iterator<Item = (u64, u64)>,
    ) -> Result<Self, BadBlockLogError> {
        let mut layout = vec![Vec::new(); sectors];
        for (slot, (start, len)) in entries.enumerate() {
            layout[slot / SLOTS].push(Entry { start, end: start + len, since: 0 });
        }
        for sector in &mut layout {
            *sector = tidy(std::mem::take(sector));
            if sector.len() > SLOTS {
                let (needed, available) = (sector.len(), SLOTS);
                return Err(BadBlockLogError::Full { needed, available });
            }
        }
        Ok(Self(layout))
    }

    /// All entries by position. Entries of different sectors may overlap if they did in the log that
    /// was read.
    pub(super) fn ascending(&self) -> Vec<Entry> {
        let mut all = self.0.concat();
        all.sort_by_key(|entry| entry.start);
        all
    }

    /// Lists `[start, end)`; false if all of it is listed already. After an error the caller must
    /// discard the layout.
    pub(super) fn insert(
        &mut self,
        start: u64,
        end: u64,
        since: u64,
    ) -> Result<bool, BadBlocksError> {
        let gaps = self.gaps(start, end);
        for (mut start, end) in gaps.iter().copied() {
            // A long range cannot loop for long: placing fails once the log is full.
            while start < end {
                let part = Entry { start, end: end.min(start + MAX_ENTRY_LEN), since };
                self.place(part)?;
                start = part.end;
            }
        }
        Ok(!gaps.is_empty())
    }

    /// Removes `[start, end)` from the list; false if no part of it was listed. After an error the
    /// caller must discard the layout.
    pub(super) fn remove(&mut self, start: u64, end: u64) -> Result<bool, BadBlocksError> {
        let mut found = false;
        for sector in &mut self.0 {
            if start >= end || !sector.iter().any(|entry| entry.overlaps(start, end)) {
                continue;
            }
            found = true;
            let before = |entry: &Entry| Entry { end: entry.end.min(start), ..*entry };
            let after = |entry: &Entry| Entry { start: entry.start.max(end), ..*entry };
            let parts = sector.iter().flat_map(|entry| [before(entry), after(entry)]);
            *sector = parts.filter(|part| part.start < part.end).collect();
            if sector.len() > SLOTS {
                return Err(BadBlocksError::Full);
            }
        }
        Ok(found)
    }

    /// The bytes of the log.
    pub(super) fn image(&self) -> Vec<u8> {
        let word = |entry: &Entry| bad_block_log::entry(entry.start, entry.end - entry.start);
        let mut words = Vec::with_capacity(self.0.len() * SLOTS);
        if let Some(last) = self.0.iter().rposition(|sector| !sector.is_empty()) {
            let padding = word(&self.0[last][0]);
            for (index, sector) in self.0[..=last].iter().enumerate() {
                words.extend(sector.iter().map(word));
                if index < last {
                    words.resize((index + 1) * SLOTS, padding);
                }
            }
        }
        words.resize(self.0.len() * SLOTS, bad_block_log::END);
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// The parts of `[start, end)` that are not listed.
    fn gaps(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut at = start;
        for entry in self.ascending().iter().filter(|entry| entry.overlaps(start, end)) {
            if at < entry.start {
                gaps.push((at, entry.start));
            }
            at = at.max(entry.end);
        }
        if at < end {
            gaps.push((at, end));
        }
        gaps
    }

    /// Puts an entry into the sector of an adjacent entry, or else into the first sector with room.
    fn place(&mut self, new: Entry) -> Result<(), BadBlocksError> {
        let continues = |sector: &[Entry]| {
            sector.iter().any(|entry| entry.end == new.start || entry.start == new.end)
        };
        let mut order: Vec<usize> = (0..self.0.len()).collect();
        order.sort_by_key(|index| !continues(&self.0[*index]));
        for index in order {
            let mut with = self.0[index].clone();
            with.push(new);
            let with = tidy(with);
            if with.len() <= SLOTS {
                self.0[index] = with;
                return Ok(());
            }
        }
        Err(BadBlocksError::Full)
    }
}

/// The same units in as few entries as possible, ascending. A merged entry gets the newest
/// generation of its parts.
fn tidy(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.sort_by_key(|entry| entry.start);
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for entry in &entries {
        match runs.last_mut() {
            Some((_, end)) if entry.start <= *end => *end = (*end).max(entry.end),
            Some(_) | None => runs.push((entry.start, entry.end)),
        }
    }
    let newest = |start, end| {
        entries.iter().filter(|entry| entry.overlaps(start, end)).map(|entry| entry.since).max()
    };
    let mut tidied = Vec::with_capacity(entries.len());
    for (mut start, run_end) in runs {
        while start < run_end {
            let end = run_end.min(start + MAX_ENTRY_LEN);
            tidied.push(Entry { start, end, since: newest(start, end).unwrap_or_default() });
            start = end;
        }
    }
    tidied
}
