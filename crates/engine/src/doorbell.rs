//! The handshake between a reactor about to sleep and the threads that send it mail.
//!
//! One byte beside the locked list of messages says whether the reactor must be woken, and lets it
//! look for mail without the lock:
//!
//! | state  | meaning                           | a sender               | the reactor               |
//! |--------|-----------------------------------|------------------------|---------------------------|
//! | Awake  | no mail, reactor runs             | -> Mail                | -> Asleep before it waits |
//! | Mail   | mail since the last look          | stays                  | -> Awake, takes the list  |
//! | Asleep | no mail, reactor is in the kernel | -> Mail, and wakes it  | -> Awake after the wait   |
//!
//! No wake-up is lost. A sender appends to the list first and swaps the state to Mail after. If the
//! reactor's step Awake -> Asleep comes before that swap, the swap finds Asleep and wakes it; if it
//! comes after, the step finds Mail and fails, and the reactor does not sleep. When the reactor's
//! step Mail -> Awake overwrites a second sender's Mail, that sender had appended before its swap,
//! hence before the reactor takes the list. The tests check this with loom.

use std::sync::atomic::{AtomicU8, Ordering};

const AWAKE: u8 = 0;
const MAIL: u8 = 1;
const ASLEEP: u8 = 2;

/// The operations of an atomic byte that the handshake needs; loom's stand in for std's in tests.
pub(crate) trait AtomicByte {
    fn new(value: u8) -> Self;
    fn load(&self, order: Ordering) -> u8;
    fn swap(&self, value: u8, order: Ordering) -> u8;
    /// `compare_exchange`; returns whether it succeeded.
    fn replace(&self, old: u8, new: u8, order: Ordering) -> bool;
}

impl AtomicByte for AtomicU8 {
    fn new(value: u8) -> Self {
        Self::new(value)
    }
    fn load(&self, order: Ordering) -> u8 {
        self.load(order)
    }
    fn swap(&self, value: u8, order: Ordering) -> u8 {
        self.swap(value, order)
    }
    fn replace(&self, old: u8, new: u8, order: Ordering) -> bool {
        self.compare_exchange(old, new, order, Ordering::Acquire).is_ok()
    }
}

/// See the module text.
pub(crate) struct Doorbell<A = AtomicU8>(A);

impl<A: AtomicByte> Doorbell<A> {
    pub(crate) fn new() -> Self {
        Self(A::new(AWAKE))
    }

    /// Sender, after appending to the list: whether it must wake the reactor.
    pub(crate) fn ring(&self) -> bool {
        self.0.swap(MAIL, Ordering::AcqRel) == ASLEEP
    }

    /// Reactor: whether there is mail; if so it must take the list now.
    pub(crate) fn answer(&self) -> bool {
        self.0.load(Ordering::Relaxed) == MAIL && self.0.swap(AWAKE, Ordering::AcqRel) == MAIL
    }

    /// Reactor: whether it may sleep. If so, [`Self::wake_up`] must follow.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.0.replace(AWAKE, ASLEEP, Ordering::AcqRel)
    }

    /// Reactor: awake again, for whatever reason.
    pub(crate) fn wake_up(&self) {
        // A failure means that a sender stored Mail: it stays for the next `answer`.
        self.0.replace(ASLEEP, AWAKE, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::{Arc, Mutex, Notify};

    impl AtomicByte for loom::sync::atomic::AtomicU8 {
        fn new(value: u8) -> Self {
            Self::new(value)
        }
        fn load(&self, order: Ordering) -> u8 {
            self.load(order)
        }
        fn swap(&self, value: u8, order: Ordering) -> u8 {
            self.swap(value, order)
        }
        fn replace(&self, old: u8, new: u8, order: Ordering) -> bool {
            self.compare_exchange(old, new, order, Ordering::Acquire).is_ok()
        }
    }

    /// Two senders and a reactor that sleeps on `kernel` exactly as the real one does: every interleaving (with up to
    /// three preemptions) ends with all mail taken (loom reports a lost wake-up as a deadlock).
    #[test]
    fn no_interleaving_loses_a_wake_up() {
        struct Shared {
            bell: Doorbell<loom::sync::atomic::AtomicU8>,
            list: Mutex<Vec<u8>>,
            kernel: Notify,
        }
        let mut model = loom::model::Builder::new();
        // Enough for every pair of steps to meet; without a bound the run takes minutes.
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = Arc::new(Shared {
                bell: Doorbell::new(),
                list: Mutex::new(Vec::new()),
                kernel: Notify::new(),
            });
            let senders: Vec<_> = (0..2)
                .map(|id| {
                    let shared = Arc::clone(&shared);
                    loom::thread::spawn(move || {
                        shared.list.lock().unwrap().push(id);
                        if shared.bell.ring() {
                            shared.kernel.notify();
                        }
                    })
                })
                .collect();
            let mut taken = 0;
            while taken < 2 {
                if shared.bell.answer() {
                    taken += std::mem::take(&mut *shared.list.lock().unwrap()).len();
                } else if shared.bell.fall_asleep() {
                    shared.kernel.wait();
                    shared.bell.wake_up();
                }
            }
            for sender in senders {
                sender.join().unwrap();
            }
        });
    }
}
