//! What the core does with the logs: it writes one before rows, and brings them into the state that superblocks promise.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use ashlar_block::bio::Segments;
use ashlar_block::sync::{lock, until};
use ashlar_block::{
    Bio, BioResult, Buffer, Features, Flags, Sector, Sectors, Status, rate_limited,
};
use futures_util::future::join_all;
use smallvec::SmallVec;
use tracing::{info, warn};

use super::{Logged, Ppl, Ring, Update};
use crate::canary::{Rule, broken};
use crate::core::Core;
use crate::level::parts::{Parts, gather};
use crate::membership::rdev::{FailureCause, Rdev};
use crate::membership::slots::{Index, Place};
use crate::membership::superblocks::{Change, Superblocks};
use crate::metadata::{durable, write_empty};
use crate::ondisk::ppl::{Entry, HEADER, Log, MAX_ENTRIES};
use crate::personality::Personality;

impl Core {
    /// The partial parity log, if the array has one.
    #[inline]
    pub(crate) fn ppl(&self) -> Option<&Ppl> {
        self.ppl.as_ref()
    }

    /// Logs an update of rows whose parity is in `slot`, durably; `None` if rows are not logged now. Held until the rows are written.
    ///
    /// # Errors
    /// A member that must stay did not take the log, or was not flushed. Nothing of the rows may be written.
    pub(crate) async fn log(&self, slot: usize, update: Update) -> Result<Option<Logged>, Status> {
        let Some(ppl) = self.ppl().filter(|ppl| ppl.is_on() && !broken(Rule::LogComesFirst)) else {
            return Ok(None);
        };
        let Some(ring) = ppl.rings.get(slot) else { return Ok(None) };
        let mut lead = match ring.updates.join(update).await {
            Ok(lead) => lead,
            Err(result) => return result.map(Some),
        };
        until(&ring.written, || ring.in_flight.load(SeqCst) == 0).await;
        let (mut entries, mut parity) = (0, Sectors::ZERO);
        let batch = lead.take(|update| {
            let of_it =
                update.entries.iter().fold(Sectors::ZERO, |sum, entry| sum + entry.parity());
            (entries, parity) = (entries + update.entries.len(), parity + of_it);
            // The first one always fits.
            entries == update.entries.len() || entries <= MAX_ENTRIES && parity <= ppl.max_parity()
        });
        let updates: SmallVec<[&Update; 8]> = batch.iter().map(|request| &request.what).collect();
        let count = updates.len();
        let result = self.write_log(ppl, slot, ring, &updates).await;
        drop(updates);
        if result.is_ok() {
            ring.in_flight.store(count as u64, SeqCst);
        }
        let results = (0..count).map(|_| result.map(|()| Logged(Arc::clone(ring))));
        lead.end(results.collect::<Vec<_>>()).map(Some)
    }

    async fn write_log(
        &self,
        ppl: &Ppl,
        slot: usize,
        ring: &Ring,
        updates: &[&Update],
    ) -> BioResult {
        if !broken(Rule::LogIsFlushedBeforeReuse) {
            let touched = ring.touched.swap(0, SeqCst);
            if let Err(status) = self.flush_slots(touched).await {
                ring.touched.fetch_or(touched, SeqCst);
                return Err(status);
            }
        }
        let before = ppl.generation.fetch_add(1, SeqCst);
        let log = Log {
            generation: before + 1,
            entries: updates.iter().flat_map(|update| update.entries.iter().copied()).collect(),
        };
        let mut header = Buffer::from_slice(&log.encode(ppl.signature));
        let segments = [header.whole()].into_iter();
        let segments: Segments =
            segments.chain(updates.iter().filter_map(|update| update.parity.clone())).collect();
        let members = self.members.both(slot).filter(|(_, rdev)| rdev.is_written());
        let writes = members.filter_map(|(index, rdev)| {
            let area = rdev.ppl_area()?;
            let (at, is_again) = ppl.place(ring, rdev, log.len());
            let log = durable(area.start + at, segments.clone());
            Some(async move {
                if is_again && !broken(Rule::BasesAreRenewed) {
                    let base = self.base(index, before).encode(ppl.signature);
                    let base = [Buffer::from_slice(&base).into_whole()].into_iter().collect();
                    if let Err(status) = rdev.gateway().submit(durable(area.start, base)).await {
                        return (index, Err(status));
                    }
                }
                (index, rdev.gateway().submit(log).await)
            })
        });
        let mut result = Ok(());
        for (index, written) in join_all(writes).await {
            let Some(rdev) = self.members.get(index) else { continue };
            if let Err(status) = written
                && !self.fail_member(rdev, status).await?
            {
                result = Err(status);
            }
        }
        result?;
        ring.touched.fetch_or(updates.iter().fold(0, |slots, update| slots | update.slots), SeqCst);
        if !ppl.is_on() && !ppl.has_several() {
            // The log is one of members that are to have none.
            self.empty_logs(ppl, false, |rdev| {
                self.members.both(slot).any(|(_, own)| std::ptr::eq(own, rdev))
            })
            .await;
        }
        Ok(())
    }

    /// Flushes the members of slots, as bits, that have a volatile cache.
    async fn flush_slots(&self, slots: u64) -> BioResult {
        let slots = (0..self.members.slots()).filter(|slot| slots >> slot & 1 == 1);
        let members = slots.flat_map(|slot| self.members.both(slot));
        let caches = |rdev: &Rdev| rdev.limits().features.contains(Features::WRITE_CACHE);
        let members = members.filter(|(_, rdev)| !rdev.is_faulty() && caches(rdev));
        let flushes: Parts<'_> =
            members.map(|(index, rdev)| (index, rdev.submit_flush())).collect();
        self.judge_flushes(flushes).await
    }

    /// Waits for flushes of members. A member that cannot be flushed may have lost writes, so it fails.
    ///
    /// # Errors
    /// A member must stay, or a failure could not be recorded.
    pub(crate) async fn judge_flushes(&self, flushes: Parts<'_>) -> BioResult {
        let mut result = Ok(());
        for (index, answer) in gather(flushes).await {
            let Err(status) = answer else { continue };
            let Some(rdev) = self.members.get(index).filter(|rdev| !rdev.is_faulty()) else {
                continue;
            };
            result = self.misses_a_change(index, rdev, status).await.and(result);
        }
        result
    }

    /// Brings the logs into the state that superblocks about to be written promise. The caller has the superblocks locked.
    ///
    /// # Errors
    /// A member that must stay did not take what it needs: the superblocks must not be written.
    pub(in crate::core) async fn prepare_logs(
        &self,
        superblocks: &Superblocks,
        change: Change,
    ) -> BioResult {
        let Some(ppl) = self.ppl() else { return Ok(()) };
        let _changing = ppl.changing.lock().await;
        // Superblocks that still say active leave the logs of the last run as they are: a crash finds them again.
        if change == Change::Members {
            return Ok(());
        }
        self.write_replayed(ppl).await?;
        if change == Change::Clean {
            return Ok(());
        }
        // No write is under way, so each one that follows is logged.
        let begins = superblocks.is_clean() && !self.resync_offset.is_unsynced();
        if ppl.is_on() == begins && ppl.was_emptied.load(SeqCst) {
            return Ok(());
        }
        if !broken(Rule::RingsAreEmptiedFirst) && !self.empty_logs(ppl, begins, |_| true).await {
            return Err(Status::Io);
        }
        for ring in &ppl.rings {
            lock(&ring.next).clear();
            ring.touched.store(0, SeqCst);
        }
        ppl.was_emptied.store(true, SeqCst);
        ppl.on.store(begins, SeqCst);
        Ok(())
    }

    /// Writes the parity that the logs of the last run gave, before anybody reads the data that it was made of: what was being written on a
    /// member is settled once it has been read, also if that member is missing after another crash.
    pub(crate) async fn settle_logs(&self) {
        let Some(ppl) = self.ppl() else { return };
        let _superblocks = self.superblocks().await;
        let _changing = ppl.changing.lock().await;
        if let Err(status) = self.write_replayed(ppl).await {
            // Reads see it nevertheless.
            rate_limited!(warn, array = self.name(), %status, "parity from the partial parity log was not written");
        }
    }

    /// Writes the parity that the logs of the last run gave, durably.
    async fn write_replayed(&self, ppl: &Ppl) -> BioResult {
        let Some(replayed) = ppl.replayed() else { return Ok(()) };
        for new in replayed.iter() {
            let segment = Buffer::from_slice(&new.data).into_whole();
            for (_, rdev) in self.members.both(new.slot).filter(|(_, rdev)| rdev.is_written()) {
                let bio = Bio::write(new.at, [segment.clone()]).with_flags(Flags::FUA);
                match rdev.submit(bio).await {
                    Ok(()) => self.blocks_are_good(rdev, new.at, new.len()),
                    Err(status) if self.try_fail(rdev, FailureCause::Device(status)) => {}
                    Err(status) => return Err(status),
                }
            }
        }
        let (blocks, array) = (replayed.len(), self.name());
        info!(
            array,
            blocks,
            "the parity of rows that were being written was completed from the partial parity log"
        );
        ppl.settled.store(true, SeqCst);
        *lock(&ppl.replayed) = Vec::new().into();
        Ok(())
    }

    /// Whether the superblocks still say that the last run did not end cleanly, although the array is synced: they must say so before
    /// the logs of that run are overwritten.
    pub(in crate::core) fn is_to_be_cleaned(&self, superblocks: &Superblocks) -> bool {
        let has_old_logs = self.ppl().is_some_and(|ppl| !ppl.was_emptied.load(SeqCst));
        has_old_logs && !superblocks.is_clean() && !self.resync_offset.is_unsynced()
    }

    /// Ends the logging of rows, as their parity may be wrong now: a later start must not take them for right. Returns once the members have
    /// no log.
    pub(crate) async fn end_logs(&self) {
        let Some(ppl) = self.ppl() else { return };
        let _changing = ppl.changing.lock().await;
        if ppl.on.swap(false, SeqCst) || !ppl.was_emptied.swap(true, SeqCst) {
            warn!(array = self.name(), "rows are not logged until the array is synced");
            self.empty_logs(ppl, false, |_| true).await;
        }
    }

    /// Empties the logs of members; if `valid`, they then have a base, else no log that anybody finds. A member that does not take it
    /// fails; whether none had to stay.
    async fn empty_logs(&self, ppl: &Ppl, valid: bool, of: impl Fn(&Rdev) -> bool) -> bool {
        let members = self.members.iter().filter(|(_, rdev)| !rdev.is_faulty() && of(rdev));
        let writes = members.map(|(index, rdev)| async move {
            let Some(area) = rdev.ppl_area() else { return true };
            let log = valid.then(|| self.base(index, 0));
            let area = if valid { area } else { area.start..area.start + HEADER };
            match write_empty(rdev.gateway(), area, log.as_ref(), ppl.signature).await {
                Ok(()) => true,
                Err(status) => {
                    let member = rdev.path();
                    rate_limited!(error, member, %status, "the partial parity log was not emptied");
                    self.try_fail(rdev, FailureCause::Device(status))
                }
            }
        });
        join_all(writes).await.into_iter().all(|emptied| emptied)
    }

    /// The base of a member's logs. Linux takes an array whose logs have no entry for one that was never synced. So it has an entry
    /// for some row, whose parity comes from all its data: to apply it changes nothing.
    fn base(&self, index: Index, generation: u64) -> Log {
        let mut log = Log { generation, ..Log::default() };
        let (Personality::Parity(geometry), Place::Slot(slot)) =
            (self.personality(), self.members.place(index))
        else {
            return log;
        };
        let rows = geometry.size().0 / geometry.row_len().0;
        let mut rows = 0..rows.min(geometry.disks() as u64);
        if let Some(row) = rows.find(|row| geometry.row(*row).p == slot) {
            let first = Sector(row * geometry.row_len().0);
            log.entries.push(Entry::whole(first, HEADER, geometry.data_disks(), slot));
        }
        log
    }
}
