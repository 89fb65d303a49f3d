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

use std::sync::atomic::AtomicU8;

use ashlar_block::sync::Word;

/// The first state: an atomic's default.
const AWAKE: u8 = 0;
const MAIL: u8 = 1;
const ASLEEP: u8 = 2;

/// See the module text.
#[derive(Default)]
pub(crate) struct Doorbell<A = AtomicU8>(A);

impl<A: Word<u8>> Doorbell<A> {
    /// Sender, after appending to the list: whether it must wake the reactor.
    pub(crate) fn ring(&self) -> bool {
        self.0.swap(MAIL) == ASLEEP
    }

    /// Reactor: whether there is mail; if so it must take the list now.
    pub(crate) fn answer(&self) -> bool {
        self.0.load() == MAIL && self.0.swap(AWAKE) == MAIL
    }

    /// Reactor: whether it may sleep. If so, [`Self::wake_up`] must follow.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.replace(AWAKE, ASLEEP)
    }

    /// Reactor: awake again, for whatever reason.
    pub(crate) fn wake_up(&self) {
        // A failure means that a sender stored Mail: it stays for the next `answer`.
        self.replace(ASLEEP, AWAKE);
    }

    /// Whether the state was `old` and is now `new`.
    fn replace(&self, old: u8, new: u8) -> bool {
        self.0.update(|state| (state == old).then_some(new)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_block::sync::model::explore;
    use ashlar_block::sync::model::loom::sync::atomic::AtomicU8;
    use ashlar_block::sync::model::loom::sync::{Mutex, Notify};

    struct BellState {
        bell: Doorbell<AtomicU8>,
        list: Mutex<Vec<()>>,
        kernel: Notify,
    }

    fn send(shared: &BellState) {
        shared.list.lock().unwrap().push(());
        if shared.bell.ring() {
            shared.kernel.notify();
        }
    }

    /// Sleeps on `kernel` exactly as the real reactor does.
    fn take_two(shared: &BellState) {
        let mut taken = 0;
        while taken < 2 {
            if shared.bell.answer() {
                taken += std::mem::take(&mut *shared.list.lock().unwrap()).len();
            } else if shared.bell.fall_asleep() {
                shared.kernel.wait();
                shared.bell.wake_up();
            }
        }
    }

    /// Every interleaving of two senders and a reactor (with up to three preemptions, enough for every pair of steps to
    /// meet) ends with all mail taken.
    #[test]
    fn no_interleaving_loses_a_wake_up() {
        let shared = || BellState {
            bell: Doorbell::default(),
            list: Mutex::new(Vec::new()),
            kernel: Notify::new(),
        };
        explore(3, shared, &[take_two, send, send], |_| ());
    }
}
