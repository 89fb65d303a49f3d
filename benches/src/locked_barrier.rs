//! The I/O barrier as it would be with one lock: the baseline for [`ashlar_md::internals::barrier`].
//!
//! The kernel's raid1 before 4.11 took one spin lock at each I/O's begin and end; with buckets it still had that lock,
//! until the counts became atomic. Here the lock covers one bucket or many. An I/O that must wait releases the lock and
//! tries again.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ashlar_block::Sector;
use ashlar_md::internals::barrier::UNIT;

/// Rounds of spinning before yielding the processor: the lock holder may need it.
const SPINS: u32 = 64;

/// The counts of a bucket. They are atomic only for the compiler; the lock protects them.
#[derive(Default)]
struct Bucket {
    pending: AtomicU32,
    waiting: AtomicU32,
    raised: AtomicU32,
}

/// See the module text.
pub(crate) struct LockedBarrier {
    locked: AtomicBool,
    frozen: AtomicBool,
    buckets: Box<[Bucket]>,
}

fn get(count: &AtomicU32) -> u32 {
    count.load(Ordering::Relaxed)
}

fn add(count: &AtomicU32, n: i32) {
    count.store(get(count).wrapping_add_signed(n), Ordering::Relaxed);
}

fn pause(round: &mut u32) {
    *round += 1;
    if round.is_multiple_of(SPINS) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

impl LockedBarrier {
    /// With one lock for `buckets` buckets.
    pub(crate) fn new(buckets: usize) -> Self {
        let buckets = std::iter::repeat_with(Bucket::default).take(buckets).collect();
        Self { locked: AtomicBool::new(false), frozen: AtomicBool::new(false), buckets }
    }

    fn bucket(&self, at: Sector) -> &Bucket {
        &self.buckets[(at.0 / UNIT.0) as usize % self.buckets.len()]
    }

    fn with<R>(&self, work: impl FnOnce() -> R) -> R {
        let mut round = 0;
        while self.locked.swap(true, Ordering::Acquire) {
            while self.locked.load(Ordering::Relaxed) {
                pause(&mut round);
            }
        }
        let result = work();
        self.locked.store(false, Ordering::Release);
        result
    }

    /// Runs `work` under the lock until it returns true.
    fn until(&self, mut work: impl FnMut() -> bool) {
        let mut round = 0;
        while !self.with(&mut work) {
            pause(&mut round);
        }
    }

    fn enter_if(&self, bucket: &Bucket, open: impl Fn() -> bool) {
        let entered = self.with(|| {
            let open = open();
            add(if open { &bucket.pending } else { &bucket.waiting }, 1);
            open
        });
        if !entered {
            self.until(|| {
                let open = open();
                if open {
                    add(&bucket.waiting, -1);
                    add(&bucket.pending, 1);
                }
                open
            });
        }
    }

    fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Relaxed)
    }

    /// Begins a read.
    pub(crate) fn wait_read(&self, at: Sector) {
        self.enter_if(self.bucket(at), || !self.is_frozen());
    }

    /// Begins a write.
    pub(crate) fn wait(&self, at: Sector) {
        let bucket = self.bucket(at);
        self.enter_if(bucket, || !self.is_frozen() && get(&bucket.raised) == 0);
    }

    /// Ends a read or write.
    pub(crate) fn allow(&self, at: Sector) {
        self.with(|| add(&self.bucket(at).pending, -1));
    }

    /// Begins sync I/O.
    pub(crate) fn raise(&self, at: Sector) {
        let bucket = self.bucket(at);
        self.until(|| {
            let nobody_waits = get(&bucket.waiting) == 0;
            add(&bucket.raised, i32::from(nobody_waits));
            nobody_waits
        });
        self.until(|| !self.is_frozen() && get(&bucket.pending) == 0);
    }

    /// Ends sync I/O.
    pub(crate) fn lower(&self, at: Sector) {
        self.with(|| add(&self.bucket(at).raised, -1));
    }
}
