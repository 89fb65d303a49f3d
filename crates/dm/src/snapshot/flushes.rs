//! Flushes of a device: those of its users, and our own, on which something depends.
//!
//! A disk whose flush fails drops what is in its cache, and says so once, to whoever asked for that flush.
//! The next flush succeeds with nothing left to make durable. So of a flush that may fail it must be known
//! what it took along, before anybody believes another one: users' flushes and ours are never under way at
//! the same time. What users lose by a flush of ours they are told by their next one, which fails.
//!
//! Flushes by devices beside us, of the same disk, are not seen here.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use ashlar_block::{Bio, BioResult, Features, Flags, Gateway, Op, Status};

use super::canary::{Rule, broken};
use crate::gate::{Gate, Pass};

/// See the module text.
#[derive(Default)]
pub(super) struct Flushes {
    /// Passed by users' flushes, closed during ours.
    gate: Gate,
    failed: AtomicU64,
    /// Passed by users' writes; never closed, only looked at.
    writes: Gate,
    /// Something that users wrote may be in the device's cache.
    dirty: AtomicBool,
    /// A flush of ours failed and took something of users along, and none knows.
    owed: AtomicBool,
}

async fn pass(gate: &Gate) -> Pass<'_> {
    match gate.try_enter() {
        Some(pass) => pass,
        None => gate.enter().await,
    }
}

impl Flushes {
    /// How many of users' flushes failed so far.
    pub(super) fn failed(&self) -> u64 {
        self.failed.load(SeqCst)
    }

    /// Submits a write or flush of a user. If it is a flush, or needs one, and that fails, `lost` is called
    /// before anything of ours is flushed.
    pub(super) async fn by_user(
        &self,
        device: &Gateway,
        mut bio: Bio,
        lost: impl Fn(),
    ) -> BioResult {
        if bio.op == Op::Flush {
            return self.flush_by_user(device, bio, &lost).await;
        }
        // What the gateway would do; but here a write that fails is told from a flush that does.
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
        // All that are under way at a time are told: each of them may be about what was lost.
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

    /// Has `flush`, ours, run while no user's is under way, if it still `may`. One at a time.
    ///
    /// # Errors
    /// That of the flush, or [`Status::Io`] if it may not.
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

    /// Before a flush of ours: whether it may take something of users along. What it surely makes durable is
    /// not dirty from now on.
    ///
    /// A write first passes, then makes things dirty. If we look before it passes, it sees what we forgot,
    /// and makes them dirty again. If we look while it is under way, they stay so: a flush may cover it or
    /// not, and its end may be noticed much later than it is in the cache. If we look later, our flush
    /// covers it.
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

    /// Runs with a disk of which the flush that comes next fails.
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
                    // Too early for the write: it is not covered.
                    assert_eq!(flushes.by_us(|| true, async || Ok(())).await, Ok(()));
                }
                SimRuntime.sleep(Duration::from_secs(1)).await;
                // It is in the cache, and its user has not looked yet.
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
