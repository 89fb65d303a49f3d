//! The write-intent bitmap: the parts of an array whose copies may differ.
//!
//! # Theory
//!
//! The array is divided into **chunks**, each of which is **marked** or not. The marks are on every member
//! after a superblock ([`image`]), in the kernel's formats: classic (a bit for each chunk) or lockless
//! (a byte, one of the states of [`lockless`]). After a crash, only marked chunks are synced; when a
//! member is re-added, only chunks that were marked in its absence. So the invariant is
//!
//! > **At any moment, on every member's medium, every chunk is marked whose copies may differ.**
//!
//! Copies may differ from the moment a write is sent to the members until it is durable on all of them; and
//! if some member did not take it, until a sync. The resulting order:
//!
//! | first                                          | then                                       | by |
//! |------------------------------------------------|--------------------------------------------|----|
//! | mark durable on all members                    | data sent to any                           | [`Bitmap::begin`] returns only then |
//! | writes in the chunk ended, on all members      | the members' data flushed                  | a chunk is held only with no write in it |
//! | data flushed on *all* members                  | mark cleared on any                        | [`Store::flush_data`] |
//! | `events_cleared` durable                       | mark cleared on any                        | [`Bitmap::clean`] |
//! | marks durable                                  | superblock that declares them valid        | [`Bitmap::write_super`] |
//! | bitmap's superblock with an event count        | the members' superblocks with that count   | the caller |
//!
//! The third line is stricter than the kernel, which flushes each member before that member's marks
//! change, so that a power cut may leave one member with data that another lacks and no mark on the
//! former.
//!
//! A mark in memory does not prove durability: another member may lack it. So loaded marks
//! count as durable only after [`Bitmap::write_super`] wrote them to all members, and no
//! write may begin before.
//!
//! # The fast path
//!
//! A write into a chunk whose mark is durable does one atomic addition at its start and one at its end
//! ([`counters`] argues why the daemon cannot clear the mark meanwhile). All other operations take a short
//! lock, never held across an await, around the image.
//!
//! # Batches
//!
//! Changes of the image go to the members in numbered **transactions**, one at a time, each with all
//! blocks that changed since the previous commit started. A task that needs a durable change waits for its
//! transaction; if no commit runs, the first task starts one and writes for all.
//! So concurrent writes that mark chunks share at most two commits: the first one's, and one
//! for tasks that arrived while it ran. A failed or dropped commit leaves its blocks
//! to the next one; success of a commit therefore covers all earlier ones.
//!
//! # Discards
//!
//! A classic bitmap treats a discard as a write. A lockless one makes the chunks that lie entirely in it
//! **unwritten**: their copies may differ, and are never
//! synced, even to a new member. This happens only after the discard has ended, only if the chunk was not written
//! meanwhile, and only for whole chunks: a partly discarded chunk has data in
//! the other part. (Linux 6.18 rounds the end of a discard up.)
//!
//! # Assumed of the layer below
//!
//! See [`Store`]. Blocks are written completely or not at all, in any order.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use ashlar_block::sync::lock;
use ashlar_block::{BioResult, LocalFuture, Runtime, Sector, Sectors};
use event_listener::{Event, listener};
use futures_util::future::select;

use crate::ondisk::Version;
use crate::ondisk::bitmap_super::{self, BitmapSuper, BitmapSuperError};

mod clean;
mod commit;
mod counters;
mod image;
mod load;
mod lockless;
mod resize;
mod superblock;
mod sync;
mod transactions;
mod write;

pub use image::Kind;
pub use load::{ArrayFacts, BitmapError, Contents};
pub use lockless::{Action, State};
pub use sync::{Purpose, Step};
pub use write::Intent;

use counters::Counters;
use transactions::Transactions;

/// Where the marks are stored: the members of an array.
pub trait Store {
    /// Writes `bytes` at `offset` bytes from the start of the bitmap's superblock, both multiples of
    /// the block, on every member that takes part. Ends when they are durable (preflush is not needed)
    /// on all that are still members. A member that could not take them has failed; a caller that
    /// then writes data must first record the failure in the others' superblocks.
    ///
    /// A dropped future must not leave a write that may reach a medium after one that was
    /// begun later.
    ///
    /// # Errors
    /// Some member lacks the bytes and is still a member.
    fn write<'a>(&'a self, offset: u64, bytes: &'a [u8]) -> LocalFuture<'a, BioResult>;

    /// Makes all data durable that was written to the members, on all members that take writes,
    /// including those being rebuilt and replacements.
    ///
    /// # Errors
    /// Some slot has no in-sync member, or an in-sync member's flush failed, even if the member then
    /// failed. Marks must stay then.
    fn flush_data(&self) -> LocalFuture<'_, BioResult>;
}

/// What a bitmap covers, and its room on the members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Sectors to be covered: the used size of each member, or for RAID 10 the array's size.
    pub size: Sectors,
    /// Sectors available on every member from the bitmap's superblock on.
    pub area: Sectors,
    /// Block size of writes in bytes: the largest logical block of the members.
    pub block: u32,
}

/// A write-intent bitmap in use. See the module text.
pub struct Bitmap {
    kind: Kind,
    place: Place,
    stale: bool,
    counters: Counters,
    /// The marks of the image are durable on all members, except marks that wait for a commit.
    settled: AtomicBool,
    transactions: Mutex<Transactions>,
    commit_ended: Event,
    /// [`Self::daemon_sleep`] has changed.
    sleep_changed: Event,
    /// Serialises daemon passes and laying out of the marks.
    alone: async_lock::Mutex<()>,
}

impl Bitmap {
    /// Classic or lockless.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Sectors that one mark covers, a power of two.
    pub fn chunk(&self) -> Sectors {
        self.counters.chunk()
    }

    /// Array sectors covered.
    pub fn size(&self) -> Sectors {
        self.place.size
    }

    /// Number of chunks.
    pub fn chunks(&self) -> u32 {
        self.counters.len()
    }

    /// Whether it was out of date when loaded, so that all chunks are marked.
    pub fn was_stale(&self) -> bool {
        self.stale
    }

    /// The time between two passes of the daemon ([`Self::clean`]).
    pub fn daemon_sleep(&self) -> Duration {
        Duration::from_secs(self.superblock().daemon_sleep.get().into())
    }

    /// Changes [`Self::daemon_sleep`]: at once for the daemon, and on the members with the next superblock.
    ///
    /// # Errors
    /// A superblock cannot have so many seconds.
    pub fn set_daemon_sleep(&self, seconds: u32) -> Result<(), BitmapSuperError> {
        let mut transactions = self.transactions();
        let next = BitmapSuper { daemon_sleep: seconds.into(), ..transactions.next.clone() };
        next.check()?;
        transactions.next = next;
        drop(transactions);
        self.sleep_changed.notify(usize::MAX);
        Ok(())
    }

    /// Waits for [`Self::daemon_sleep`], or until it has changed.
    pub(crate) async fn sleep(&self, runtime: &dyn Runtime) {
        listener!(self.sleep_changed => changed);
        select(runtime.sleep(self.daemon_sleep()), changed).await;
    }

    /// The superblock to be written next.
    pub fn superblock(&self) -> BitmapSuper {
        self.transactions().next.clone()
    }

    /// Whether a member last updated at this event count lacks only what is marked.
    pub fn covers(&self, member_events: u64) -> bool {
        member_events >= self.superblock().events_cleared.get()
    }

    /// The whole bitmap as it should be on a member, in whole blocks.
    pub fn encode(&self) -> Vec<u8> {
        let transactions = self.transactions();
        let mut bytes = transactions.image.bytes().to_vec();
        bytes[..bitmap_super::SIZE]
            .copy_from_slice(zerocopy::IntoBytes::as_bytes(&transactions.next));
        bytes
    }

    /// Number of marked chunks.
    pub fn marked_chunks(&self) -> u64 {
        self.transactions().image.marked().count() as u64
    }

    /// Number of chunks that need a sync or have one under way.
    pub fn needed_chunks(&self) -> u64 {
        self.counters.iter().filter(|counter| counter.is_needed()).count() as u64
    }

    /// Whether a chunk that the range touches needs a sync.
    pub fn may_differ(&self, range: &Range<Sector>) -> bool {
        let chunks = self.counters.span(range.start, range.end - range.start);
        // What it does not cover is not known.
        chunks.map_or(true, |mut chunks| chunks.any(|chunk| self.counters.get(chunk).is_needed()))
    }

    /// The marked parts of the array, ascending, adjacent ones joined.
    pub fn marked_runs(&self) -> Vec<(Sector, Sectors)> {
        let marked: Vec<u32> = self.transactions().image.marked().collect();
        self.runs(marked)
    }

    /// The ranges of chunks that need a sync, ascending, adjacent ones joined.
    pub fn needed_runs(&self) -> Vec<(Sector, Sectors)> {
        self.runs((0..self.chunks()).filter(|chunk| self.counters.get(*chunk).is_needed()))
    }

    /// Chunks as runs, adjacent ones joined.
    fn runs(&self, chunks: impl IntoIterator<Item = u32>) -> Vec<(Sector, Sectors)> {
        let mut runs: Vec<(Sector, Sectors)> = Vec::new();
        for chunk in chunks {
            let (start, end) = (self.counters.start_of(chunk), self.counters.end_of(chunk));
            match runs.last_mut() {
                Some((first, len)) if *first + *len == start => *len = end - *first,
                Some(_) | None => runs.push((start, end - start)),
            }
        }
        runs
    }

    /// The line of `/proc/mdstat`: pages of 2,048 counters, and how many the kernel would have
    /// allocated; all pages of a lockless bitmap.
    pub fn mdstat(&self) -> String {
        let (used, all) = match self.kind {
            Kind::Classic => {
                let transactions = self.transactions();
                let mut pages: Vec<u32> =
                    transactions.image.marked().map(|chunk| chunk / 2048).collect();
                pages.dedup();
                (pages.len(), self.chunks().div_ceil(2048) as usize)
            }
            Kind::Lockless => {
                let pages = (self.kind.start() + self.chunks() as usize).div_ceil(4096);
                (pages, pages)
            }
        };
        let (chunk, unit) = match self.chunk().bytes() {
            bytes @ 0..1024 => (bytes, "B"),
            bytes => (bytes >> 10, "KB"),
        };
        format!("bitmap: {used}/{all} pages [{}KB], {chunk}{unit} chunk", used * 4)
    }

    /// As `mdadm --examine-bitmap` prints it, without the line naming the file.
    pub fn examine(&self, array: Version) -> String {
        let marked = self.marked_chunks();
        self.superblock().describe(array, Some(marked)).to_string()
    }

    /// Number of chunks in each state, as `md/llbitmap/bits` prints it.
    pub fn states(&self) -> String {
        let mut text = String::new();
        let names = ["unwritten", "clean", "dirty", "need sync", "syncing"];
        for (name, count) in names.iter().zip(self.transactions().image.count()) {
            writeln!(text, "{name} {count}").expect("a string takes all");
        }
        text
    }

    fn transactions(&self) -> MutexGuard<'_, Transactions> {
        lock(&self.transactions)
    }

    fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }
}
