//! How far a member is: the time in which its device answers a small read.
//!
//! A mirror of a local disk and one over a network serves reads in the time of the local one if it reads there. The number
//! of I/Os in flight does not show the difference while few are, and the mean time of a member's reads depends on
//! their lengths. So each member is *probed* with the same small read, about once a second while the array is read; the
//! least of the last [`PROBES`] counts, so that a probe which waited behind long I/O is no reason to avoid a member. A
//! probe that has not ended counts with its time so far: a device that stops responding is avoided after a moment.
//!
//! A member that takes [`FAR`] times as long as the nearest, and [`LEAST_NS`] more, is *far*, and its reads cost that many times
//! as much; once it takes less than half of that, it is near again.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// How many probes are remembered.
const PROBES: usize = 4;
/// The ratio to the nearest member's time from which a member is far.
const FAR: u64 = 4;
/// The difference from the nearest member's time below which no member is far: local disks and memory differ by less.
const LEAST_NS: u64 = 100_000;
/// The greatest weight.
const MAX_WEIGHT: u64 = 1 << 12;

/// The latency of a member's device, and what follows from it.
#[derive(Debug)]
pub(crate) struct Latency {
    /// Nanoseconds that the last probes took; zero for none.
    probes_ns: [AtomicU64; PROBES],
    next: AtomicUsize,
    /// When the probe under way began, by the runtime's clock; [`u64::MAX`] for none.
    began_ns: AtomicU64,
    weight: AtomicU32,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            probes_ns: Default::default(),
            next: AtomicUsize::new(0),
            began_ns: AtomicU64::new(u64::MAX),
            weight: AtomicU32::new(1),
        }
    }
}

impl Latency {
    /// Begins a probe at `now_ns`; false if one is under way.
    pub(crate) fn begin(&self, now_ns: u64) -> bool {
        self.began_ns.compare_exchange(u64::MAX, now_ns, Relaxed, Relaxed).is_ok()
    }

    /// Ends the probe at `now_ns`.
    pub(crate) fn end(&self, now_ns: u64) {
        let began_ns = self.began_ns.swap(u64::MAX, Relaxed);
        let place = self.next.fetch_add(1, Relaxed) % PROBES;
        self.probes_ns[place].store(now_ns.saturating_sub(began_ns).max(1), Relaxed);
    }

    /// Forgets the probe under way, which has no result.
    pub(crate) fn give_up(&self) {
        self.began_ns.store(u64::MAX, Relaxed);
    }

    /// The least nanoseconds of the probes that have ended; `None` if none has.
    pub(crate) fn least_ns(&self) -> Option<u64> {
        self.probes_ns.iter().map(|probe| probe.load(Relaxed)).filter(|ns| *ns > 0).min()
    }

    /// Nanoseconds in which the device answers at `now_ns`; `None` if it was never probed.
    pub(crate) fn get_ns(&self, now_ns: u64) -> Option<u64> {
        let waited = now_ns.saturating_sub(self.began_ns.load(Relaxed));
        self.least_ns().map(|ns| ns.max(waited))
    }

    /// The factor of a read's cost: 1 for a near member.
    #[inline]
    pub(crate) fn weight(&self) -> u32 {
        self.weight.load(Relaxed)
    }

    /// Sets the weight of a member that takes `own_ns`, where the nearest one takes `nearest_ns`. Returns whether the member has
    /// become far (true) or near (false).
    pub(crate) fn weigh(&self, own_ns: u64, nearest_ns: u64) -> Option<bool> {
        let ratio = own_ns / nearest_ns.max(1);
        let was_far = self.weight() > 1;
        let (least_ratio, least_ns) =
            if was_far { (FAR / 2, LEAST_NS / 2) } else { (FAR, LEAST_NS) };
        let is_far = ratio >= least_ratio && own_ns - nearest_ns.min(own_ns) >= least_ns;
        let weight = if is_far { ratio.min(MAX_WEIGHT) as u32 } else { 1 };
        self.weight.store(weight, Relaxed);
        (is_far != was_far).then_some(is_far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    fn probed(latency: &Latency, took_ns: &[u64]) {
        for ns in took_ns {
            assert!(latency.begin(0));
            assert!(!latency.begin(0), "one at a time");
            latency.end(*ns);
        }
    }

    #[test]
    fn the_least_of_the_last_probes_counts_and_a_silent_device_is_slow_at_once() {
        let latency = Latency::default();
        assert_eq!(latency.get_ns(0), None);
        probed(&latency, &[100 * US, 90 * US, 5_000 * US]);
        assert_eq!(latency.get_ns(0), Some(90 * US));
        probed(&latency, &[5_000 * US; 3]);
        assert_eq!(latency.get_ns(0), Some(5_000 * US), "four in a row are no chance");
        probed(&latency, &[100 * US]);
        assert!(latency.begin(10 * US));
        assert_eq!(latency.get_ns(20 * US), Some(100 * US));
        assert_eq!(latency.get_ns(2_000_010 * US), Some(2_000_000 * US));
        latency.give_up();
        assert_eq!(latency.get_ns(2_000_010 * US), Some(100 * US));
    }

    #[test]
    fn a_member_becomes_far_and_near_with_a_margin() {
        let latency = Latency::default();
        assert_eq!(latency.weigh(399 * US, 100 * US), None);
        assert_eq!((latency.weigh(400 * US, 100 * US), latency.weight()), (Some(true), 4));
        assert_eq!((latency.weigh(250 * US, 100 * US), latency.weight()), (None, 2));
        assert_eq!((latency.weigh(199 * US, 100 * US), latency.weight()), (Some(false), 1));
        assert_eq!(latency.weigh(90 * US, 9 * US), None, "that is a local disk");
        assert_eq!((latency.weigh(u64::MAX, 1), latency.weight()), (Some(true), 4096));
        assert_eq!(latency.weigh(50 * US, 50 * US), Some(false), "it is the nearest");
    }
}
