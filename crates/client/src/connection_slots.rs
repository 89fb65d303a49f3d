//! The places for connections of a server: a bounded number, which idle clients cannot keep from others.
//!
//! A connection rests while its server waits for the client: for a call, for the rest of a request, until it takes an answer.
//! If all places are taken, a newcomer gets the place of the connection that has rested longest. So only calls in
//! progress keep clients out, and some places are reserved for owners: a daemon can always be stopped.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;

use ashlar_engine::net::Socket;
use rustix::net::Shutdown;

/// Who a client is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rank {
    /// A client that is admitted.
    Guest,
    /// Root, or the user of the daemon.
    Owner,
}

/// See the module text.
pub struct ConnectionSlots {
    most: usize,
    /// How many of them guests never take.
    reserved: usize,
    table: RefCell<Table>,
}

#[derive(Default)]
struct Table {
    /// The last number of a slot or a rest.
    last: u64,
    taken: BTreeMap<u64, Taken>,
}

struct Taken {
    socket: Rc<Socket>,
    rank: Rank,
    /// Later rests have higher numbers; `None` while there is work for the client.
    rests_since: Option<u64>,
}

impl Table {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn count(&self, rank: Rank) -> usize {
        self.taken.values().filter(|taken| taken.rank == rank).count()
    }
}

impl ConnectionSlots {
    /// `most` places, `reserved` of which only owners get.
    pub fn new(most: usize, reserved: usize) -> Rc<Self> {
        Rc::new(Self { most, reserved, table: RefCell::default() })
    }

    /// Gives a connection a place, in which it rests. Shuts down the connection that loses its place.
    ///
    /// # Errors
    /// There is no place: the connection.
    pub fn take(self: &Rc<Self>, socket: Socket, rank: Rank) -> Result<ConnectionSlot, Socket> {
        let mut table = self.table.borrow_mut();
        let (guests, owners) = (table.count(Rank::Guest), table.count(Rank::Owner));
        let most = match rank {
            Rank::Owner => self.most,
            Rank::Guest => self.most - self.reserved.saturating_sub(owners),
        };
        if guests + owners >= most {
            // A guest may get the place of an owner, if owners have more than what is reserved for them.
            let may_lose = |of| rank == Rank::Owner || of == Rank::Guest || owners > self.reserved;
            let losers = table.taken.iter().filter(|(_, taken)| may_lose(taken.rank));
            let resting = losers.filter_map(|(at, taken)| Some((taken.rests_since?, *at)));
            let Some((_, at)) = resting.min() else { return Err(socket) };
            if let Some(loser) = table.taken.remove(&at)
                && let Err(error) = rustix::net::shutdown(&loser.socket, Shutdown::Both)
            {
                tracing::debug!(%error, "shutting down a connection that rests");
            }
        }
        let (number, rests_since) = (table.number(), Some(table.number()));
        let socket = Rc::new(socket);
        table.taken.insert(number, Taken { socket: Rc::clone(&socket), rank, rests_since });
        Ok(ConnectionSlot { slots: Rc::clone(self), number, socket })
    }
}

/// A connection's place, until it is dropped.
pub struct ConnectionSlot {
    slots: Rc<ConnectionSlots>,
    number: u64,
    socket: Rc<Socket>,
}

impl ConnectionSlot {
    /// Begins work for the client: the connection keeps its place until it rests again. False if it has lost it.
    #[must_use]
    pub fn work(&self) -> bool {
        match self.slots.table.borrow_mut().taken.get_mut(&self.number) {
            Some(taken) => {
                taken.rests_since = None;
                true
            }
            None => false,
        }
    }

    /// Rests from now on: the server waits for the client.
    pub fn rest(&self) {
        let mut table = self.slots.table.borrow_mut();
        let since = table.number();
        if let Some(taken) = table.taken.get_mut(&self.number) {
            taken.rests_since = Some(since);
        }
    }
}

impl Deref for ConnectionSlot {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        &self.socket
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.table.borrow_mut().taken.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use ashlar_engine::Reactor;

    fn socket() -> Socket {
        Socket::from_fd(UnixStream::pair().unwrap().0.into())
    }

    #[test]
    fn work_keeps_its_place_and_what_rests_longest_loses_it() {
        Reactor::new(Default::default()).unwrap().block_on(async {
            let slots = ConnectionSlots::new(3, 1);
            let take = |rank| slots.take(socket(), rank).ok();
            let first = take(Rank::Guest).unwrap();
            let second = take(Rank::Guest).unwrap();
            assert!(first.work());
            first.rest();
            // One place is the owner's: the guest that rests longest loses its own.
            let third = take(Rank::Guest).unwrap();
            assert!(!second.work() && first.work() && third.work());
            assert!(take(Rank::Guest).is_none());
            let owner = take(Rank::Owner).unwrap();
            assert!(owner.work());
            assert!(take(Rank::Guest).is_none() && take(Rank::Owner).is_none());
            // An owner's place among the reserved ones is not a guest's.
            owner.rest();
            assert!(take(Rank::Guest).is_none());
            let other = take(Rank::Owner).unwrap();
            assert!(!owner.work() && other.work());
            drop(other);
            assert!(take(Rank::Guest).is_none());
            drop(third);
            let (others, more) = (take(Rank::Owner).unwrap(), take(Rank::Owner).unwrap());
            // They have one more than is reserved.
            let guest = take(Rank::Guest).unwrap();
            assert!(!others.work() && more.work() && guest.work() && first.work());
            drop((first, more, guest));
            let table = slots.table.borrow();
            assert!(table.taken.is_empty());
        });
    }

    #[test]
    fn a_connection_that_loses_its_place_ends() {
        Reactor::new(Default::default()).unwrap().block_on(async {
            let slots = ConnectionSlots::new(1, 0);
            let slot = slots.take(socket(), Rank::Guest).ok().unwrap();
            let next = slots.take(socket(), Rank::Guest).ok().unwrap();
            assert_eq!(slot.recv(vec![0]).await.0.unwrap(), 0);
            drop(slot);
            assert!(next.work());
        });
    }
}
