//! A member of an array.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use ashlar_block::stats::{SHARDS, thread_shard};
use ashlar_block::{Bio, Gateway, IoFuture, Limits, Sector, Sectors};

/// What one thread knows of a member, for read balancing; on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Load {
    pending: AtomicU32,
    next_sector: AtomicU64,
}

/// A member device: where its data lies, and how it does.
///
/// `faulty` is set once and stays: a member that failed has missed writes. Whoever leaves the member
/// out because of it must also see that this is being recorded (see `array`), so it is read and set
/// in the same order as that.
pub struct Rdev {
    gateway: Gateway,
    path: String,
    data_offset: Sectors,
    data_size: Sectors,
    write_mostly: bool,
    in_sync: AtomicBool,
    faulty: AtomicBool,
    read_errors: AtomicU64,
    corrected: AtomicU64,
    loads: Box<[Load]>,
}

/// A read in flight on a member, for balancing.
pub struct Reading<'a>(&'a Load);

impl Rdev {
    /// A member reached through `gateway`, whose data area begins at `data_offset`.
    pub fn new(
        gateway: Gateway,
        path: String,
        data_offset: Sectors,
        data_size: Sectors,
        write_mostly: bool,
        in_sync: bool,
    ) -> Self {
        Self {
            gateway,
            path,
            data_offset,
            data_size,
            write_mostly,
            in_sync: AtomicBool::new(in_sync),
            faulty: AtomicBool::new(false),
            read_errors: AtomicU64::new(0),
            corrected: AtomicU64::new(0),
            loads: std::iter::repeat_with(Load::default).take(SHARDS).collect(),
        }
    }

    /// The device, addressed from its own first sector: for superblocks.
    pub fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    /// Where the user has the device: a path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Where the data area begins on the device.
    pub fn data_offset(&self) -> Sectors {
        self.data_offset
    }

    /// The size of the data area.
    pub fn data_size(&self) -> Sectors {
        self.data_size
    }

    /// The device's limits.
    pub fn limits(&self) -> &Limits {
        self.gateway.disk().limits()
    }

    /// Whether the member has all data and takes part in I/O.
    pub fn is_in_sync(&self) -> bool {
        self.in_sync.load(Relaxed) && !self.is_faulty()
    }

    /// Whether the member failed.
    pub fn is_faulty(&self) -> bool {
        self.faulty.load(SeqCst)
    }

    /// Marks the member failed; true if it was not before.
    pub fn set_faulty(&self) -> bool {
        !self.faulty.swap(true, SeqCst)
    }

    /// Whether it is read only if no other member can be.
    pub fn is_write_mostly(&self) -> bool {
        self.write_mostly
    }

    /// Read errors seen, and those of them that were put right by rewriting.
    pub fn errors(&self) -> (u64, u64) {
        (self.read_errors.load(Relaxed), self.corrected.load(Relaxed))
    }

    /// Counts a read error.
    pub fn count_read_error(&self) {
        self.read_errors.fetch_add(1, Relaxed);
    }

    /// Counts sectors that were rewritten.
    pub fn count_corrected(&self, sectors: Sectors) {
        self.corrected.fetch_add(sectors.0, Relaxed);
    }

    /// Submits a bio whose sectors count from the start of the data area.
    ///
    /// This is the one place where the data offset is added.
    pub fn submit(&self, mut bio: Bio) -> IoFuture<'_> {
        bio.sector += self.data_offset;
        self.gateway.submit(bio)
    }

    /// Flushes the member's cache.
    pub fn submit_flush(&self) -> IoFuture<'_> {
        self.gateway.submit(Bio::flush())
    }

    /// How good this member is for a read at `sector`, by what the current thread has in flight
    /// there: lower is better. A member that the thread read up to `sector` last is preferred while
    /// it has at most that many I/Os more to do than the others: its disk reads on, and its queue
    /// merges, which is worth more than an even spread.
    pub fn read_cost(&self, sector: Sector) -> u32 {
        const SEQUENTIAL_BONUS: u32 = 64;
        let load = &self.loads[thread_shard()];
        let pending = load.pending.load(Relaxed).saturating_add(SEQUENTIAL_BONUS);
        let sequential = load.next_sector.load(Relaxed) == sector.0;
        let cost = if sequential { pending - SEQUENTIAL_BONUS } else { pending };
        if self.write_mostly { cost | 1 << 30 } else { cost }
    }

    /// Notes that the current thread reads `[sector, sector + len)`, until the guard is dropped.
    pub fn reading(&self, sector: Sector, len: Sectors) -> Reading<'_> {
        let load = &self.loads[thread_shard()];
        load.pending.fetch_add(1, Relaxed);
        load.next_sector.store((sector + len).0, Relaxed);
        Reading(load)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Relaxed);
    }
}
