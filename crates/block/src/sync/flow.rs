//! I/Os that begin and end on many threads, counted so that a thread can tell whether one is in flight.
//!
//! Each shard of threads has two words, which only grow. An I/O adds to its shard's first word when it begins and to its
//! shard's second one when it ends, by then perhaps another shard's. The question adds zero to the first words. All threads
//! agree on the order of additions to one word: if the I/O's addition is the earlier one, the question sees it in the result of
//! its own; if it is the later one, the I/O sees what the asking thread did before.
//!
//! The second words need no such order, so a thread that has a shard alone changes it by a load and a store.

use std::sync::atomic::AtomicU64;

use super::{Word, count};

/// The I/Os of one shard of threads.
#[derive(Debug, Default)]
pub struct Flow<W = AtomicU64> {
    begun: W,
    ended: W,
}

impl<W: Word> Flow<W> {
    /// Counts an I/O as begun.
    #[inline]
    pub fn begin(&self) {
        self.begun.add(1);
    }

    /// Counts an I/O as ended. `alone`: no other thread ends I/Os in this shard.
    #[inline]
    pub fn end(&self, alone: bool) {
        count(&self.ended, 1, alone);
    }

    /// I/Os that began.
    pub fn begun(&self) -> u64 {
        self.begun.load()
    }
}

/// The I/Os of all shards that ended, and those in flight.
///
/// The order matters: an I/O that is counted as ended is counted as begun too, and one that is in flight all the
/// time is not hidden by others that begin and end between the loads.
pub fn counts<'a, W: Word + 'a>(flows: impl Iterator<Item = &'a Flow<W>> + Clone) -> (u64, u64) {
    let ended = flows.clone().map(|flow| flow.ended.load()).sum();
    (ended, flows.map(|flow| flow.begun.load()).sum::<u64>() - ended)
}

/// Whether no I/O is in flight: what the I/Os did happened before. An I/O that begins meanwhile and is not seen here
/// sees what the caller did before.
pub fn is_idle<'a, W: Word + 'a>(flows: impl Iterator<Item = &'a Flow<W>> + Clone) -> bool {
    let ended = flows.clone().map(|flow| flow.ended.load()).sum::<u64>();
    // With an addition, because a load may return an old value.
    flows.map(|flow| flow.begun.add(0)).sum::<u64>() == ended
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::sync::model::explore;
    use crate::sync::model::loom::cell::UnsafeCell;
    use crate::sync::model::loom::sync::atomic::{AtomicBool, AtomicU64 as LoomU64};

    /// The first flow is shared; one thread has the second alone.
    type Flows = [Flow<LoomU64>; 2];

    #[test]
    fn an_io_in_flight_is_not_hidden_by_others_that_begin_and_end() {
        fn others(flows: &Flows) {
            flows[0].begin();
            flows[0].end(false);
        }
        fn others_alone(flows: &Flows) {
            for _ in 0..2 {
                flows[1].begin();
                flows[1].end(true);
            }
        }
        fn count(flows: &Flows) {
            let (ended, in_flight) = counts(flows.iter());
            assert!(ended <= 3 && (1..=4).contains(&in_flight), "{ended} {in_flight}");
            assert!(!is_idle(flows.iter()));
        }
        let one_in_flight = || {
            let flows = Flows::default();
            flows[0].begin();
            flows
        };
        explore(3, one_in_flight, &[count, others, others_alone], |flows| {
            assert_eq!(counts(flows.iter()), (3, 1));
        });
    }

    #[test]
    fn an_io_has_ended_before_idle_or_sees_that_the_device_stopped() {
        struct Device {
            flows: Flows,
            stopped: AtomicBool,
            members: UnsafeCell<()>,
        }
        fn io(device: &Device, begins: usize, ends: usize) {
            device.flows[begins].begin();
            if !device.stopped.load(Relaxed) {
                device.members.with(|_| ());
            }
            device.flows[ends].end(ends == 1);
        }
        fn shared(device: &Device) {
            io(device, 0, 0);
        }
        fn alone(device: &Device) {
            for _ in 0..2 {
                io(device, 1, 1);
            }
        }
        /// Its thread has given its shard back, and the next one has it.
        fn strays(device: &Device) {
            io(device, 1, 0);
        }
        fn stop(device: &Device) {
            device.stopped.store(true, Relaxed);
            if is_idle(device.flows.iter()) {
                device.members.with_mut(|_| ());
            }
        }
        let device = || Device {
            flows: Flows::default(),
            stopped: AtomicBool::new(false),
            members: UnsafeCell::new(()),
        };
        let idle = |device: &Device| assert!(is_idle(device.flows.iter()));
        explore(3, device, &[stop, shared, shared], idle);
        explore(3, device, &[stop, shared, alone], idle);
        explore(3, device, &[stop, strays, alone], idle);
    }
}
