//! Flushes of a device: those of its users, and internal ones that other operations depend on.
//!
//! A disk whose flush fails drops its cache, and reports that once, to the submitter of that flush.
//! The next flush succeeds with nothing left to make durable. So when a flush fails, it must be
//! known what it dropped before another flush is trusted: users' flushes and internal ones are
//! never in flight at the same time. If an internal flush loses users' data, the users' next flush
//! fails.
//!
//! Flushes of the same disk by other devices are not seen here.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use ashlar_block::{Bio, BioResult, Features, Flags, Gateway, Op, Status};

use super::canary::{Rule, broken};
use crate::gate::{Gate, Pass};

/// See the module text.
#[derive(Default)]
pub(super) struct Flushes {
    /// Users' flushes pass it; closed during internal ones.
    gate: Gate,
    failed: AtomicU64,
    /// Users' writes pass it; never closed, only checked.
    writes: Gate,
    /// Users' data may be in the device's cache.
    dirty: AtomicBool,
    /// An internal flush failed and dropped users' data; no user knows yet.
    owed: AtomicBool,
}

async fn pass(gate: &Gate) -> Pass<'_> {
    match gate.try_enter() {
        Some(pass) => pass,
        None => gate.enter().await,
    }
}

impl Flushes {
    /// Number of users' flushes that failed so far.
    pub(super) fn failed(&self) -> u64 {
        self.failed.load(SeqCst)
    }

    /// Submits a user's write or flush. If it is or needs a flush, and that fails, `lost` is called
    /// before any internal flush.
    pub(super) async fn by_user(
        &self,
        device: &Gateway,
        mut bio: Bio,
        lost: impl Fn(),
    ) -> BioResult {
        if bio.op == Op::Flush {
            return self.flush_by_user(device, bio, &lost).await;
        }
        // As the gateway would do; but here, a failed write is distinguished from a failed flush.
        if bio.flags.contains(Flags::PREFLUSH) {
            bio.flags -= Flags::PREFLUSH;
            self.flush_by_user(device, Bio::flush(), &lost).await?;
        }
        let takes_fua =
            bio.op == Op::Write && device.disk().limits().features.contains(Features::FUA);
        let flush_after = bio.flags.contains(Flags::FUA) && !takes_fua;
        if flush_after {
            bio.flags -= Flags::FUA;
        }
        self.write_by_user(device, bio).await?;
        if flush_after { self.flush_by_user(device, Bio::flush(), &lost).await } else { Ok(()) }
    }

    async fn write_by_user(&self, device: &Gateway, bio: Bio) -> BioResult {
        // In this order, see `by_us`.
        let _under_way = pass(&self.writes).await;
        if !self.dirty.load(SeqCst) {
            self.dirty.store(true, SeqCst);
        }
        device.submit(bio).await
    }

    async fn flush_by_user(&self, device: &Gateway, bio: Bio, lost: &impl Fn()) -> BioResult {
        let _pass = pass(&self.gate).await;
        // All flushes in flight at that time fail: each may concern the lost data.
        let owed = self.owed.load(SeqCst);
        let result = device.submit(bio).await;
        if result.is_err() {
            self.failed.fetch_add(1, SeqCst);
            lost();
        }
        if owed {
            self.owed.store(false, SeqCst);
            return result.and(Err(Status::Io));
        }
        result
    }

    /// Runs the internal `flush` while no user's flush is in flight, if it still `may`. Only one
    /// caller at a time.
    ///
    /// # Errors
    /// The error of the flush, or [`Status::Io`] if it may not run.
    pub(super) async fn by_us(
        &self,
        may: impl FnOnce() -> bool,
        flush: impl AsyncFnOnce() -> BioResult,
    ) -> BioResult {
        if broken(Rule::FlushesAreApart) {
            return flush().await;
        }
        let _closed = self.gate.close().await;
        if !may() {
            return Err(Status::Io);
        }
        let dirty = self.forget_dirt();
        let result = flush().await;
        if result.is_err() && (dirty || self.dirty.load(SeqCst)) {
            self.owed.store(true, SeqCst);
        }
        result
    }

    /// Before an internal flush: whether it may affect users' data. Clears the dirty flag if no
    /// write is in flight, because the flush then covers all writes.
    ///
    /// A write first passes, then sets the dirty flag. If we clear the flag before the write
    /// passes, it sees the cleared flag, and sets it again. If we clear it while the write is in
    /// flight, the flag is set again: the flush may or may not cover that write, and its completion
    /// may be noticed long after its data is in the cache. If we clear it later, our flush covers
    /// the write.
    fn forget_dirt(&self) -> bool {
        let dirty = self.dirty.swap(false, SeqCst);
        if self.writes.is_empty() {
            return dirty;
        }
        self.dirty.store(true, SeqCst);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use ashlar_block::{Buffer, Runtime, Sector, Sectors};
    use ashlar_sim::{Media, Sim, SimDisk, SimRuntime};
    use futures_util::FutureExt;
    use futures_util::future::join;

    use super::*;

    fn write() -> Bio {
        Bio::write_from(Sector(8), &mut Buffer::from_slice(&[7; 4096]))
    }

    /// Runs with a disk whose next flush fails.
    fn on_a_disk(work: impl AsyncFnOnce(&Flushes, &Media, &Gateway)) {
        let media = Media::new(Sectors(800));
        let disk = SimDisk::over("disk", media.clone()).gateway();
        Sim::new(1).block_on(work(&Flushes::default(), &media, &disk));
    }

    async fn user_flushes(flushes: &Flushes, disk: &Gateway) -> BioResult {
        flushes.by_user(disk, Bio::flush(), || ()).await
    }

    async fn we_flush(flushes: &Flushes, disk: &Gateway) -> BioResult {
        flushes.by_us(|| true, async || disk.submit(Bio::flush()).await).await
    }

    #[test]
    fn a_write_that_ended_unseen_is_known_to_be_lost() {
        for again in [false, true] {
            on_a_disk(async |flushes, media, disk| {
                let mut written = pin!(flushes.by_user(disk, write(), || ()));
                assert_eq!(written.as_mut().now_or_never(), None);
                if again {
                    // Too early to cover the write.
                    assert_eq!(flushes.by_us(|| true, async || Ok(())).await, Ok(()));
                }
                SimRuntime.sleep(Duration::from_secs(1)).await;
                // It is in the cache, and its user has not polled yet.
                assert_eq!(media.peek(Sector(8)), [7; 512]);
                media.fail_nth_flush(0);
                assert_eq!(we_flush(flushes, disk).await, Err(Status::Io));
                assert_eq!(written.await, Ok(()));
                assert_eq!(user_flushes(flushes, disk).await, Err(Status::Io));
                assert_eq!(user_flushes(flushes, disk).await, Ok(()));
            });
        }
    }

    #[test]
    fn what_was_flushed_before_is_not_said_to_be_lost() {
        on_a_disk(async |flushes, media, disk| {
            assert_eq!(flushes.by_user(disk, write(), || ()).await, Ok(()));
            assert_eq!(we_flush(flushes, disk).await, Ok(()));
            media.fail_nth_flush(0);
            assert_eq!(we_flush(flushes, disk).await, Err(Status::Io));
            assert_eq!(user_flushes(flushes, disk).await, Ok(()));
        });
    }

    #[test]
    fn all_who_flush_at_a_time_are_told_what_was_lost() {
        on_a_disk(async |flushes, media, disk| {
            assert_eq!(flushes.by_user(disk, write(), || ()).await, Ok(()));
            media.fail_nth_flush(0);
            assert_eq!(we_flush(flushes, disk).await, Err(Status::Io));
            let both = join(user_flushes(flushes, disk), user_flushes(flushes, disk)).await;
            assert_eq!(both, (Err(Status::Io), Err(Status::Io)));
            assert_eq!(user_flushes(flushes, disk).await, Ok(()));
        });
    }
}
