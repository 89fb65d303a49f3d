//! Discards and write-zeroes: whole rows become zeroes on all members, of which parity is zero, too.
//!
//! A member that only discards may return anything afterwards, and parity would not fit. So both are a write-zeroes on the members, which may
//! free the space; the rest of a write-zeroes, in rows of which other data stay, is written as data, and the rest of a discard is left.

use std::ops::Range;

use ashlar_block::{Bio, BioResult, Flags, Sector, Sectors, Status};
use smallvec::SmallVec;

use super::Parity;
use crate::canary::{Rule, broken};
use crate::core::Write;
use crate::core::ppl::{Logged, Ppl, Update};
use crate::level::parts::Parts;
use crate::metadata::zeroes;
use crate::ondisk::ppl::Entry;

/// Rows that are held and zeroed at a time: other I/O waits for them. A log has room for those of one slot.
const STEP: u64 = 256;

impl Parity {
    /// A discard of any length.
    pub(super) async fn discard(&self, bio: &Bio) -> BioResult {
        let rows = self.geometry.whole_rows(bio.sector..bio.end());
        if rows.is_empty() {
            return Ok(());
        }
        let write = self.begin(bio).await?;
        self.zero_rows(rows, &write, bio.flags).await?;
        Self::end(write).await
    }

    /// A write-zeroes of any length.
    pub(super) async fn write_zeroes(&self, bio: &Bio) -> BioResult {
        if bio.is_refusable() {
            return Err(Status::NotSupported);
        }
        let write = self.begin(bio).await?;
        let rows = self.geometry.whole_rows(bio.sector..bio.end());
        let row = self.geometry.row_len().0;
        let (start, end) = match rows.is_empty() {
            true => (bio.end(), bio.end()),
            false => (Sector(rows.start * row), Sector(rows.end * row)),
        };
        for edge in [bio.sector..start, end..bio.end()] {
            if edge.start < edge.end {
                let zeroes = zeroes(edge.end - edge.start)?;
                let edge = Bio::write(edge.start, zeroes).with_flags(bio.flags & Flags::FUA);
                self.write_rows(&edge, &write).await?;
            }
        }
        self.zero_rows(rows, &write, bio.flags).await?;
        Self::end(write).await
    }

    /// Zeroes whole rows.
    async fn zero_rows(&self, rows: Range<u64>, write: &Write<'_>, flags: Flags) -> BioResult {
        let mut from = rows.start;
        while from < rows.end {
            let to = rows.end.min(from + STEP);
            // In the order of their entries, as every holder of several takes them.
            let mut entries: SmallVec<[usize; 8]> = (from..to).map(super::rows::place).collect();
            entries.sort_unstable();
            entries.dedup();
            let mut held = Vec::with_capacity(entries.len());
            for entry in entries {
                held.push(self.rows.at(entry).alone().await);
            }
            let all = self.zero_step(from..to, flags).await;
            if all != Ok(true) {
                write.failed();
            }
            all?;
            from = to;
        }
        Ok(())
    }

    /// Logs whole rows, if rows are logged: their parity comes from all their data.
    async fn log_rows(&self, rows: Range<u64>) -> Result<Vec<Logged>, Status> {
        let mut logged = Vec::new();
        if !self.core.ppl().is_some_and(Ppl::is_on) {
            return Ok(logged);
        }
        let geometry = &self.geometry;
        // Ascending, as everyone who waits for several rings.
        for slot in 0..geometry.disks() {
            let own = rows.clone().filter(|row| geometry.row(*row).p == slot);
            let entries: SmallVec<[Entry; 1]> = own
                .map(|row| {
                    let first = Sector(row * geometry.row_len().0);
                    Entry::whole(first, geometry.chunk(), geometry.data_disks(), slot)
                })
                .collect();
            if !entries.is_empty() {
                let update = Update { entries, parity: None, slots: u64::MAX };
                logged.extend(self.core.log(slot, update).await?);
            }
        }
        Ok(logged)
    }

    /// Zeroes rows that are held; whether every slot has a member that took it.
    async fn zero_step(&self, rows: Range<u64>, flags: Flags) -> Result<bool, Status> {
        let chunk = self.geometry.chunk().0;
        let (at, len) = (Sector(rows.start * chunk), Sectors((rows.end - rows.start) * chunk));
        let first = Sector(rows.start * self.geometry.row_len().0);
        // Until all members have zeroes, or their failures are recorded.
        let _logged = self.log_rows(rows).await?;
        let mut parts = Parts::default();
        let mut everywhere = true;
        for slot in 0..self.geometry.disks() {
            let before = parts.len();
            let bio =
                Bio::write_zeroes(first, len).with_flags(flags & (Flags::FUA | Flags::NOUNMAP));
            for (index, rdev) in self.core.members.both(slot) {
                if let Some(io) = rdev.write(&self.core.disk, &bio, at) {
                    parts.push(index, io);
                }
            }
            everywhere &= parts.len() > before;
        }
        parts.end().await;
        let mut error = None;
        let answers: SmallVec<[_; 8]> = parts.results().collect();
        for (index, result) in answers {
            let Some(rdev) = self.core.members.get(index) else { continue };
            let Err(status) = result else {
                if !rdev.bad_blocks().is_empty() {
                    self.core.blocks_are_good(rdev, at, len);
                }
                continue;
            };
            if broken(Rule::FailedWritesFailMembers) {
                continue;
            }
            everywhere = false;
            error = self.core.misses_a_change(index, rdev, status).await.err().or(error);
        }
        match error {
            Some(status) => Err(status),
            None => self.core.recorded().await.map(|()| everywhere),
        }
    }
}
