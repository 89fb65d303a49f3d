//! Operations in flight: what owns their memory, and who is notified of the completion.
//!
//! Each operation has a slot in its reactor's [`OpTable`] from submission until the kernel's
//! completion. The slot **owns** what the kernel may touch (buffers, iovec arrays, descriptor), so
//! that dropping the future of an operation frees nothing:
//!
//! | state    | the future...         | at the completion                               |
//! |----------|-----------------------|-------------------------------------------------|
//! | Waiting  | exists, maybe polled  | -> Done, wake the task                          |
//! | Done     | has not collected yet | (cannot happen)                                 |
//! | Orphaned | was dropped           | free the slot and what it owns                  |
//! | Callback | never existed         | free the slot, hand its owner the result        |
//!
//! A slot's index is reused, so user data carry a generation too: a late cancel of the previous operation in the slot
//! finds nothing.

mod future;

use std::any::Any;
use std::os::fd::{FromRawFd, OwnedFd};
use std::rc::Rc;
use std::task::Waker;

use ashlar_block::buffer::Segment;
use ashlar_block::request::{Request, RequestId};
use io_uring::cqueue;
use slab::Slab;

pub use future::Op;

use crate::ring::Completion;

/// User data of entries whose completion is ignored (cancels, wake-ups).
pub(crate) const IGNORED: u64 = u64::MAX;

/// Memory that the kernel may touch; the common shapes need no allocation.
pub enum KeptMemory {
    /// No memory.
    Nothing,
    /// A vector; its heap block does not move with it.
    Bytes(Vec<u8>),
    /// A part of a buffer.
    Segment(Segment),
    /// No memory, but the result is a new descriptor, to be closed if no future collects it.
    NewFd,
    /// Anything else, boxed.
    Any(Box<dyn Any>),
}

/// What an [`Op`] returns beside its result.
pub trait Payload: Sized + 'static {
    /// Converts it for storage while in flight.
    fn into_keep(self) -> KeptMemory;
    /// Converts it back. `None` if `keep` is not of this type, which cannot happen: a slot returns what was stored in
    /// it.
    fn from_keep(keep: KeptMemory) -> Option<Self>;
}

impl Payload for () {
    fn into_keep(self) -> KeptMemory {
        KeptMemory::Nothing
    }
    fn from_keep(keep: KeptMemory) -> Option<Self> {
        matches!(keep, KeptMemory::Nothing).then_some(())
    }
}

/// The payload of operations whose result is a new descriptor.
pub(crate) struct NewFd;

impl Payload for NewFd {
    fn into_keep(self) -> KeptMemory {
        KeptMemory::NewFd
    }
    fn from_keep(keep: KeptMemory) -> Option<Self> {
        matches!(keep, KeptMemory::NewFd).then_some(Self)
    }
}

impl Payload for Vec<u8> {
    fn into_keep(self) -> KeptMemory {
        KeptMemory::Bytes(self)
    }
    fn from_keep(keep: KeptMemory) -> Option<Self> {
        if let KeptMemory::Bytes(bytes) = keep { Some(bytes) } else { None }
    }
}

impl Payload for Segment {
    fn into_keep(self) -> KeptMemory {
        KeptMemory::Segment(self)
    }
    fn from_keep(keep: KeptMemory) -> Option<Self> {
        if let KeptMemory::Segment(segment) = keep { Some(segment) } else { None }
    }
}

/// A payload kept in a box, for types without a variant in [`KeptMemory`].
impl<T: 'static> Payload for Box<T> {
    fn into_keep(self) -> KeptMemory {
        KeptMemory::Any(self)
    }
    fn from_keep(keep: KeptMemory) -> Option<Self> {
        if let KeptMemory::Any(any) = keep { any.downcast().ok() } else { None }
    }
}

/// The owner of an operation on a reactor `R`, told of its end by a call instead of a task's wake-up.
pub(crate) trait OperationOwner<R> {
    /// `result` is the kernel's: a count, or minus an errno.
    fn complete(self: Box<Self>, reactor: &Rc<R>, result: i32);

    /// The request that the operation is a part of.
    fn request(&self) -> Option<&Request> {
        None
    }
}

enum State<R> {
    Waiting(Option<Waker>),
    Done(i32),
    Orphaned,
    Callback(Box<dyn OperationOwner<R>>),
}

struct Slot<R> {
    generation: u32,
    state: State<R>,
    keep: KeptMemory,
    /// Keeps the descriptor open, and its number from being reused, until the kernel has looked at the entry.
    _fd: Option<Rc<OwnedFd>>,
    cancellable: bool,
}

/// All operations of one reactor. Their owners know it as `R`; the table does not.
pub(crate) struct OpTable<R> {
    slots: Slab<Slot<R>>,
    submitted: u32,
}

// A derived impl would require `R: Default`.
impl<R> Default for OpTable<R> {
    fn default() -> Self {
        Self { slots: Slab::new(), submitted: 0 }
    }
}

/// What a completion leads to, done after the borrow of the table has ended.
pub(crate) enum Outcome<R> {
    Wake(Option<Waker>),
    Call(Box<dyn OperationOwner<R>>, i32),
    /// The end of an orphan.
    Discard(KeptMemory, i32),
    Nothing,
}

/// Frees the memory and the result of an operation when no future collects them.
pub(crate) fn discard(keep: KeptMemory, result: i32) {
    match keep {
        KeptMemory::NewFd if result >= 0 => {
            // SAFETY: the kernel made this descriptor for the operation; no other code knows it.
            drop(unsafe { OwnedFd::from_raw_fd(result) });
        }
        KeptMemory::NewFd | KeptMemory::Nothing => {}
        KeptMemory::Bytes(_) | KeptMemory::Segment(_) | KeptMemory::Any(_) => drop(keep),
    }
}

fn user_data(index: usize, generation: u32) -> u64 {
    // Slab indices stay below u32::MAX: that many slots would take hundreds of GiB.
    (u64::from(generation) << 32) | index as u64
}

impl<R> OpTable<R> {
    fn insert(
        &mut self,
        state: State<R>,
        keep: KeptMemory,
        fd: Option<Rc<OwnedFd>>,
        cancellable: bool,
    ) -> u64 {
        // The high half is never u32::MAX, so no operation's key equals IGNORED.
        self.submitted = (self.submitted + 1) % u32::MAX;
        let generation = self.submitted;
        let index = self.slots.insert(Slot { generation, state, keep, _fd: fd, cancellable });
        user_data(index, generation)
    }

    fn get(&mut self, key: u64) -> Option<&mut Slot<R>> {
        let (index, generation) = (key as u32 as usize, (key >> 32) as u32);
        self.slots.get_mut(index).filter(|slot| slot.generation == generation)
    }

    fn take(&mut self, key: u64) -> Option<Slot<R>> {
        self.get(key)?;
        self.slots.try_remove(key as u32 as usize)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Keys of the operations that may be cancelled when the reactor ends.
    pub(crate) fn cancellable(&self) -> Vec<u64> {
        let wanted = self.slots.iter().filter(|(_, slot)| slot.cancellable);
        wanted.map(|(index, slot)| user_data(index, slot.generation)).collect()
    }

    /// The key of the operation of a request.
    fn of_request(&self, id: RequestId) -> Option<u64> {
        let ours = |slot: &Slot<R>| match &slot.state {
            State::Callback(owner) => owner.request().map(Request::id) == Some(id),
            State::Waiting(_) | State::Done(_) | State::Orphaned => false,
        };
        let (index, slot) = self.slots.iter().find(|(_, slot)| ours(slot))?;
        Some(user_data(index, slot.generation))
    }

    /// Whether all operations are of requests that were not answered within their deadlines.
    pub(crate) fn are_overdue(&self) -> bool {
        self.slots.iter().all(|(_, slot)| match &slot.state {
            State::Callback(owner) => owner.request().is_some_and(Request::is_overdue),
            State::Waiting(_) | State::Done(_) | State::Orphaned => false,
        })
    }

    /// Records a completion.
    pub(crate) fn complete(&mut self, completion: Completion) -> Outcome<R> {
        let Completion { user_data: key, result, flags } = completion;
        if key == IGNORED {
            return Outcome::Nothing;
        }
        if cqueue::more(flags) {
            // No multishot operation is ever submitted; if one appears anyway, its memory stays.
            tracing::error!(key, "unexpected multishot completion");
            return Outcome::Nothing;
        }
        match self.get(key).map(|slot| &mut slot.state) {
            Some(state @ State::Waiting(_)) => {
                match std::mem::replace(state, State::Done(result)) {
                    State::Waiting(waker) => Outcome::Wake(waker),
                    State::Done(_) | State::Orphaned | State::Callback(_) => Outcome::Nothing,
                }
            }
            Some(State::Orphaned | State::Callback(_)) => match self.take(key) {
                Some(Slot { state: State::Callback(owner), .. }) => Outcome::Call(owner, result),
                Some(slot) => Outcome::Discard(slot.keep, result),
                None => Outcome::Nothing,
            },
            Some(State::Done(_)) | None => {
                tracing::error!(key, result, "completion of no operation");
                Outcome::Nothing
            }
        }
    }
}
