//! Blocks of one member: written, read back, listed as bad.

use ashlar_block::{Bio, BioResult, Buffer, Sector, Sectors, Segment, Status, rate_limited};

use super::Core;
use crate::canary::{Rule, broken};
use crate::membership::rdev::{Rdev, State};
use crate::membership::slots::Index;

/// A run of a member's data area.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) index: Index,
    pub(crate) rdev: &'a Rdev,
    /// Where the run begins in the member's data area.
    pub(crate) at: Sector,
}

/// Part of a run: its offset and its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) into: Sectors,
    pub(crate) len: Sectors,
}

impl Part {
    pub(crate) fn end(self) -> Sectors {
        self.into + self.len
    }
}

impl Core {
    /// Counts a read error of a member. A member with too many recent errors fails if others have its
    /// data; a failfast member, or one whose device is offline, fails at the first error.
    pub(crate) async fn note_error(&self, index: Index, why: Status) -> BioResult {
        let Some(rdev) = self.members.get(index) else { return Ok(()) };
        rdev.count_read_error();
        rdev.read_errors().record(self.runtime.now_ns());
        let too_many = rdev.read_errors().exceeded(self.members.max_read_errors());
        let at_once = rdev.state().contains(State::FAILFAST) || why.is_gone();
        if (too_many || at_once) && self.may_correct() {
            self.fail_member(rdev, why).await?;
        }
        Ok(())
    }

    /// Writes part of a run of one member. A member that does not take it fails.
    ///
    /// # Errors
    /// The member lacks the data but must stay.
    pub(crate) async fn put(&self, target: Source<'_>, part: Part, data: &Segment) -> BioResult {
        let Source { rdev, at, .. } = target;
        let at = at + part.into;
        let result = rdev.submit(Bio::write(at, [slice(data, part)])).await;
        match result {
            Ok(()) => {
                self.blocks_are_good(rdev, at, part.len);
                Ok(())
            }
            Err(status) if rdev.is_faulty() || self.fail_member(rdev, status).await? => Ok(()),
            Err(status) => Err(status),
        }
    }

    /// Writes data over blocks that a member could not return, and reads them back. No other write of them is under way. A
    /// member that does not take or return them fails, unless it must stay.
    ///
    /// # Errors
    /// The member lacks the data but must stay, or its failure could not be recorded.
    pub(crate) async fn overwrite(
        &self,
        source: Source<'_>,
        part: Part,
        data: &Segment,
    ) -> BioResult {
        self.put(source, part, data).await?;
        self.verify(source, part).await
    }

    /// Reads data back that was written over a read error. A member that cannot return it fails, unless
    /// it must stay. Without memory for it the write counts, but not as a correction.
    pub(crate) async fn verify(&self, source: Source<'_>, part: Part) -> BioResult {
        let at = source.at + part.into;
        let Some(mut check) = Buffer::try_alloc(part.len.bytes() as usize) else {
            let member = source.rdev.path();
            rate_limited!(warn, array = self.name(), member, sector = %at, "no memory to read back what was written over a read error");
            return Ok(());
        };
        match source.rdev.submit(Bio::read_into(at, &mut check)).await {
            Ok(()) => {
                source.rdev.count_corrected(part.len);
                let member = source.rdev.path();
                rate_limited!(warn, array = self.name(), member, sector = %at, "read error corrected");
                Ok(())
            }
            Err(status) => self.fail_member(source.rdev, status).await.map(|_| ()),
        }
    }

    /// Lists part of a run as bad, if its member has a log. It is acknowledged with the next
    /// superblocks.
    pub(crate) fn note_bad(&self, target: Source<'_>, part: Part) -> bool {
        let at = target.at + part.into + target.rdev.data_offset();
        let noted = target.rdev.bad_blocks().set(at, part.len).is_ok();
        if noted {
            self.lifecycle.must_record();
        }
        noted && !target.rdev.state().contains(State::FAULTY)
    }

    /// Clears the bad blocks in a part of a member's data area that was written.
    pub(crate) fn blocks_are_good(&self, rdev: &Rdev, at: Sector, len: Sectors) {
        let at = at + rdev.data_offset();
        if rdev.bad_blocks().check(at, len).is_some()
            && let Err(error) = rdev.bad_blocks().clear(at, len)
        {
            // They stay listed, which only keeps reads off this member.
            rate_limited!(warn, array = self.name(), member = rdev.path(), %error, "bad blocks stay listed");
        }
    }

    /// Whether a member that did not take a write may stay, by listing what it lacks.
    pub(crate) fn may_list(rdev: &Rdev, status: Status) -> bool {
        // Listing its bad blocks does not save a member that lost others with its cache.
        let able = rdev.bad_blocks().has_log() && !rdev.is_faulty() && !rdev.has_lost_writes();
        status.is_of_medium() && able && !rdev.state().contains(State::FAILFAST)
    }

    /// Retries, block by block, a write that failed at `at` of a member's data area, and lists the blocks that cannot be written.
    ///
    /// # Errors
    /// The member must fail.
    pub(crate) async fn write_block_by_block(
        &self,
        rdev: &Rdev,
        bio: &Bio,
        at: Sector,
        status: Status,
    ) -> BioResult {
        rate_limited!(warn, array = self.name(), member = rdev.path(), sector = %at, %status, "write error");
        rdev.set(State::WRITE_ERROR);
        let block = rdev.bad_blocks().unit().max(self.disk.limits().logical_block());
        let mut from = bio.sector;
        let mut listed = false;
        while from < bio.end() {
            let on_member = at + (from - bio.sector);
            let len = Sectors::min(block - Sectors(on_member.0 % block.0), bio.end() - from);
            let part = bio.slice_to(from, len, on_member);
            if rdev.submit_from(&self.disk, from, part).await.is_err() {
                let on_device = on_member + rdev.data_offset();
                rdev.bad_blocks().set(on_device, len).map_err(|_| status)?;
                listed = true;
            }
            from += len;
        }
        if listed && !broken(Rule::BadBlocksAreRecorded) {
            // The write is acknowledged only when the log and the superblock are on disk.
            self.lifecycle.must_record();
        }
        Ok(())
    }
}

/// The bytes of a part of a run.
pub(crate) fn slice(data: &Segment, part: Part) -> Segment {
    let from = part.into.bytes() as usize;
    data.slice(from..from + part.len.bytes() as usize)
}
