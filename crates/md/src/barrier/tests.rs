//! One thread's view of the barrier: the order of waiting, and the effects of dropped waiters.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Wake, Waker};

use futures_util::FutureExt;

use super::*;

/// Polls a future once.
fn now<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
    future.now_or_never()
}

const LEN: Sectors = Sectors(8);

fn unit(n: u64) -> Sector {
    Sector(UNIT.0 * n)
}

fn assert_nothing_is_left(barrier: &Barrier) {
    let counts = barrier.counts();
    assert_eq!(counts, Counts { locks: counts.locks, ..Counts::default() });
    drop(now(pin!(barrier.freeze())).expect("something is left"));
    drop(barrier.try_wait_read(unit(3), LEN).expect("still frozen"));
    drop(barrier.try_wait(unit(3), LEN).expect("still frozen"));
}

#[test]
fn sync_waits_for_writes_of_its_bucket_only() {
    let barrier = Barrier::default();
    let far = barrier.try_wait(unit(1), LEN).unwrap();
    drop(now(pin!(barrier.raise(unit(0), LEN))).expect("no write in this bucket"));
    let near = barrier.try_wait(Sector(8), LEN).unwrap();
    let mut raise = pin!(barrier.raise(unit(0), LEN));
    assert!(now(raise.as_mut()).is_none());
    drop(near);
    let raised = now(raise.as_mut()).expect("the write ended");
    assert!(barrier.try_wait(Sector(100), LEN).is_none());
    let mut write = pin!(barrier.wait(Sector(100), LEN));
    assert!(now(write.as_mut()).is_none(), "a write passed a raised barrier");
    drop(raised);
    drop(now(write.as_mut()).expect("lowered"));
    drop(far);
    assert_nothing_is_left(&barrier);
}

#[test]
fn reads_and_sync_do_not_wait_for_each_other() {
    let barrier = Barrier::default();
    let read = barrier.try_wait_read(unit(0), LEN).unwrap();
    let raised = now(pin!(barrier.raise(unit(0), LEN))).expect("waits for a read");
    drop(barrier.try_wait_read(unit(0), LEN).expect("waits for sync"));
    drop((read, raised));
    assert_nothing_is_left(&barrier);
}

#[test]
fn sync_is_not_starved_by_writes_nor_writes_by_sync() {
    let barrier = Barrier::default();
    let inside = barrier.try_wait(unit(0), LEN).unwrap();
    let mut first = pin!(barrier.raise(unit(0), LEN));
    assert!(now(first.as_mut()).is_none());
    // A write that arrives after the raise does not enter, although another write is inside.
    let mut late = pin!(barrier.wait(unit(0), LEN));
    assert!(now(late.as_mut()).is_none());
    drop(inside);
    let first = now(first.as_mut()).expect("a late write is in its way");
    // A raise that arrives after the write lets it go first.
    let mut second = pin!(barrier.raise(unit(0), LEN));
    assert!(now(second.as_mut()).is_none(), "overtakes a waiting write");
    drop(first);
    assert!(now(second.as_mut()).is_none(), "overtakes a waiting write");
    let late = now(late.as_mut()).expect("lowered");
    assert!(now(second.as_mut()).is_none(), "a write is inside");
    drop(late);
    drop(now(second.as_mut()).expect("all writes have gone"));
    assert_nothing_is_left(&barrier);
}

#[test]
fn several_raises_are_in_a_bucket_together() {
    let barrier = Barrier::default();
    let one = now(pin!(barrier.raise(unit(5), LEN))).unwrap();
    let two = now(pin!(barrier.raise(unit(5 + 1024), LEN))).unwrap();
    let mut write = pin!(barrier.wait(unit(5), LEN));
    drop(one);
    assert!(now(write.as_mut()).is_none(), "one is still raised");
    drop(two);
    drop(now(write.as_mut()).unwrap());
    assert_nothing_is_left(&barrier);
}

#[test]
fn a_freeze_waits_for_all_and_keeps_all_out() {
    let barrier = Barrier::default();
    let read = barrier.try_wait_read(unit(1), LEN).unwrap();
    let write = barrier.try_wait(unit(2), LEN).unwrap();
    let raised = now(pin!(barrier.raise(unit(3), LEN))).unwrap();
    let mut freeze = pin!(barrier.freeze());
    for holder in [Box::new(read) as Box<dyn Send + Sync>, Box::new(write), Box::new(raised)] {
        assert!(now(freeze.as_mut()).is_none());
        assert!(barrier.try_wait_read(unit(9), LEN).is_none(), "begins in a frozen array");
        assert!(barrier.try_wait(unit(9), LEN).is_none(), "begins in a frozen array");
        drop(holder);
    }
    let frozen = now(freeze.as_mut()).expect("all have ended");
    let mut read = pin!(barrier.wait_read(unit(1), LEN));
    let mut write = pin!(barrier.wait(unit(1), LEN));
    let mut raise = pin!(barrier.raise(unit(2), LEN));
    let mut other = pin!(barrier.freeze());
    assert!(now(read.as_mut()).is_none() && now(write.as_mut()).is_none());
    assert!(now(raise.as_mut()).is_none() && now(other.as_mut()).is_none());
    drop(frozen);
    drop(now(other.as_mut()).expect("the first is over"));
    drop(now(read.as_mut()).unwrap());
    drop(now(write.as_mut()).unwrap());
    drop(now(raise.as_mut()).unwrap());
    assert_nothing_is_left(&barrier);
}

#[test]
fn what_waits_or_excludes_others_is_counted_and_nothing_else() {
    let barrier = Barrier::default();
    let totals = |waits, raises, freezes| BarrierTotals { waits, raises, freezes };
    drop(now(pin!(barrier.wait(unit(0), UNIT)).as_mut()).unwrap());
    drop(now(pin!(barrier.wait(unit(0), Sectors(3 * UNIT.0))).as_mut()).unwrap());
    assert_eq!(barrier.totals(), totals(0, 0, 0));
    let raise = now(pin!(barrier.raise(unit(1), UNIT)).as_mut()).unwrap();
    assert!(now(pin!(barrier.wait(unit(0), Sectors(3 * UNIT.0))).as_mut()).is_none());
    assert_eq!(barrier.totals(), totals(1, 1, 0));
    drop(raise);
    drop(now(pin!(barrier.freeze()).as_mut()).unwrap());
    assert_eq!(barrier.totals(), totals(1, 1, 1));
}

#[test]
fn who_gives_up_leaves_nothing_behind() {
    let barrier = Barrier::default();
    let raised = now(pin!(barrier.raise(unit(1), LEN))).unwrap();
    // Passes the first bucket, waits at the second, and is dropped there.
    assert!(now(pin!(barrier.wait(unit(0), Sectors(UNIT.0 * 3)))).is_none());
    drop(raised);
    let write = barrier.try_wait(unit(1), LEN).unwrap();
    // A dropped raise.
    assert!(now(pin!(barrier.raise(unit(0), Sectors(UNIT.0 * 3)))).is_none());
    drop(barrier.try_wait(unit(0), LEN).expect("a raise is left"));
    drop(barrier.try_wait(unit(1), LEN).expect("a raise is left"));
    // A dropped freeze.
    assert!(now(pin!(barrier.freeze())).is_none());
    drop(barrier.try_wait_read(unit(1), LEN).expect("a freeze is left"));
    drop(write);
    assert_nothing_is_left(&barrier);
}

#[test]
fn a_waiting_write_that_gives_up_lets_the_raise_go() {
    let barrier = Barrier::default();
    let first = now(pin!(barrier.raise(unit(0), LEN))).unwrap();
    let mut write = Box::pin(barrier.wait(unit(0), LEN));
    assert!(now(write.as_mut()).is_none());
    let mut second = pin!(barrier.raise(unit(0), LEN));
    assert!(now(second.as_mut()).is_none());
    drop(write);
    drop(now(second.as_mut()).expect("waits for a write that is gone"));
    drop(first);
    assert_nothing_is_left(&barrier);
}

#[test]
fn a_discard_of_everything_passes_each_bucket_once() {
    let barrier = Barrier::default();
    let all = now(pin!(barrier.wait(Sector(0), Sectors(UNIT.0 * 5000)))).unwrap();
    assert_eq!(barrier.counts().writes, 1024);
    let mut raise = pin!(barrier.raise(unit(777), LEN));
    assert!(now(raise.as_mut()).is_none());
    drop(all);
    drop(now(raise.as_mut()).unwrap());
    assert_nothing_is_left(&barrier);
}

#[test]
fn discards_that_wrap_round_the_buckets_do_not_wait_for_one_another() {
    let barrier = Barrier::default();
    let five = now(pin!(barrier.raise(unit(5), LEN))).unwrap();
    // Buckets 7 to 1023 and 0 to 5: it waits in 5, and must not be in 7 yet.
    let mut wraps = pin!(barrier.wait(unit(7), Sectors(UNIT.0 * 1023)));
    assert!(now(wraps.as_mut()).is_none());
    drop(
        now(pin!(barrier.raise(unit(7), LEN))).expect("a discard that waits holds a bucket above"),
    );
    drop(five);
    drop(now(wraps.as_mut()).unwrap());
    assert_nothing_is_left(&barrier);
}

/// A discard that is in bucket 0 waits in bucket 1; a raise that is up in 2 waits in 3. Both must
/// give way to the freeze, which waits for the buckets that they hold.
#[test]
fn who_waits_with_buckets_in_hand_gives_way_to_a_freeze() {
    let barrier = Barrier::default();
    let two_units = Sectors(UNIT.0 * 2);
    let one = now(pin!(barrier.raise(unit(1), LEN))).unwrap();
    let three = now(pin!(barrier.raise(unit(3), LEN))).unwrap();
    let mut discard = pin!(barrier.wait(unit(0), two_units));
    let mut in_three = pin!(barrier.wait(unit(3), LEN));
    let mut raise = pin!(barrier.raise(unit(2), two_units));
    assert!(now(discard.as_mut()).is_none() && now(in_three.as_mut()).is_none());
    assert!(now(raise.as_mut()).is_none(), "a write waits in bucket 3");
    let mut freeze = pin!(barrier.freeze());
    assert!(now(freeze.as_mut()).is_none());
    assert!(now(discard.as_mut()).is_none() && now(raise.as_mut()).is_none());
    drop((one, three));
    assert!(now(in_three.as_mut()).is_none());
    drop(now(freeze.as_mut()).expect("waits for who waits for it"));
    drop(now(in_three.as_mut()).unwrap());
    drop(now(discard.as_mut()).unwrap());
    drop(now(raise.as_mut()).unwrap());
    assert_nothing_is_left(&barrier);
}

/// A raise that is up in bucket 0 waits in bucket 1 for a write to enter. Only the freeze can wake
/// it: the write will not enter.
#[test]
fn a_freeze_wakes_who_waits_with_buckets_in_hand() {
    #[derive(Default)]
    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Relaxed);
        }
    }
    let barrier = Barrier::default();
    let one = now(pin!(barrier.raise(unit(1), LEN))).unwrap();
    let mut write = pin!(barrier.wait(unit(1), LEN));
    assert!(now(write.as_mut()).is_none());
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut raise = pin!(barrier.raise(unit(0), Sectors(UNIT.0 * 2)));
    assert!(raise.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(one);
    assert!(!woken.0.load(Relaxed), "the write goes first");
    let mut freeze = pin!(barrier.freeze());
    assert!(now(freeze.as_mut()).is_none());
    assert!(now(write.as_mut()).is_none());
    assert!(woken.0.load(Relaxed), "nothing wakes it any more");
    assert!(now(raise.as_mut()).is_none());
    drop(now(freeze.as_mut()).expect("it gave way"));
    drop(now(write.as_mut()).unwrap());
    drop(now(raise.as_mut()).unwrap());
    assert_nothing_is_left(&barrier);
}

#[test]
fn regular_io_takes_no_lock_while_nothing_is_in_its_way() {
    let barrier = Barrier::default();
    // Sync I/O elsewhere does not count.
    let raised = now(pin!(barrier.raise(unit(7), LEN))).unwrap();
    let before = barrier.lock_acquisitions();
    for n in 0..5000 {
        drop(now(pin!(barrier.wait_read(unit(n), LEN))).unwrap());
        if n % 1024 != 7 {
            drop(now(pin!(barrier.wait(unit(n), LEN))).unwrap());
        }
    }
    assert_eq!(barrier.lock_acquisitions(), before);
    assert!(now(pin!(barrier.wait(unit(7), LEN))).is_none());
    assert!(barrier.lock_acquisitions() > before);
    drop(raised);
}

#[test]
fn the_buckets_of_any_units_are_theirs_each_once_ascending() {
    for buckets in [1, 2, 4, 8, 1024] {
        let n = buckets as u64;
        for first in [0, 1, 5, n - 1, n, 3 * n - 1] {
            for len in [1, 2, 3, n - 1, n, n + 1, 5 * n].into_iter().filter(|len| *len > 0) {
                let span = Span::of(first, first + len - 1, buckets);
                let got: Vec<usize> = (0..).map_while(|i| span.nth(i, buckets)).collect();
                let want: std::collections::BTreeSet<usize> =
                    (first..first + len).map(|unit| (unit % n) as usize).collect();
                assert_eq!(got, want.into_iter().collect::<Vec<_>>(), "{first} + {len}");
                assert_eq!(span.single(), (got.len() == 1).then(|| got[0]));
            }
        }
    }
}
