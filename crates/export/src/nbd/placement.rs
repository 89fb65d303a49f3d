//! Which thread serves a connection: the one with the fewest connections in transmission, of all listeners together.
//!
//! A connection stays where it was placed, so its I/O never changes threads. Its number is a rough measure of load, but one that needs
//! no measurement, and that is right for clients that open several connections to one export and use them alike.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ashlar_engine::Handle;

/// The threads that serve, and the connections that each has in transmission.
pub struct Placement {
    threads: Vec<Handle>,
    counts: Mutex<Counts>,
}

struct Counts {
    /// By thread.
    connections: Vec<usize>,
    /// The first thread that is considered next, so that equal ones take turns.
    next: usize,
}

impl Placement {
    /// Places connections on these threads.
    ///
    /// # Panics
    /// `threads` is empty.
    pub fn on(threads: &[Handle]) -> Arc<Self> {
        assert!(!threads.is_empty(), "connections need a thread");
        let counts = Mutex::new(Counts { connections: vec![0; threads.len()], next: 0 });
        Arc::new(Self { threads: threads.to_vec(), counts })
    }

    /// Places all connections on the current thread.
    ///
    /// # Panics
    /// On a thread without a reactor.
    pub fn here() -> Arc<Self> {
        Self::on(&[Handle::current()])
    }

    /// The connections in transmission on each thread, in the order in which the threads were given.
    pub fn connections(&self) -> Vec<usize> {
        self.counts().connections.clone()
    }

    /// Places one more connection.
    pub(crate) fn place(self: &Arc<Self>) -> Place {
        let mut counts = self.counts();
        let number = self.threads.len();
        let turns = (0..number).map(|turn| (counts.next + turn) % number);
        // The first of those that have the fewest.
        let thread = turns.min_by_key(|thread| counts.connections[*thread]).unwrap_or_default();
        counts.connections[thread] += 1;
        counts.next = (thread + 1) % number;
        drop(counts);
        Place { placement: Arc::clone(self), thread }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // No code panics while it holds the lock.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's place on a thread, until it is dropped.
pub(crate) struct Place {
    placement: Arc<Placement>,
    thread: usize,
}

impl Place {
    /// The thread.
    pub(crate) fn thread(&self) -> Handle {
        self.placement.threads[self.thread].clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.placement.counts().connections[self.thread] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use ashlar_engine::Engine;

    use super::*;

    #[test]
    fn a_connection_goes_where_the_fewest_are_and_equal_threads_take_turns() {
        let engine = Engine::start(3).unwrap();
        let placement = Placement::on(engine.handles());
        let mut places: Vec<Place> = (0..7).map(|_| placement.place()).collect();
        assert_eq!(placement.connections(), [3, 2, 2]);
        // Those of one thread end: it gets the next ones.
        places.retain(|place| place.thread != 1);
        assert_eq!(placement.connections(), [3, 0, 2]);
        let more: Vec<usize> = (0..4)
            .map(|_| {
                places.push(placement.place());
                places[places.len() - 1].thread
            })
            .collect();
        assert_eq!(more, [1, 1, 2, 1]);
        places.clear();
        // Clients that come and go do not all meet on one thread.
        let each: Vec<usize> = (0..6).map(|_| placement.place().thread).collect();
        assert_eq!(each, [2, 0, 1, 2, 0, 1]);
        assert_eq!(placement.connections(), [0, 0, 0]);
    }
}
