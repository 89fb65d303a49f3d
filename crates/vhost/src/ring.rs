//! A split ring, as its device uses it (virtio 1.2, 2.7): descriptors, the ring of available heads, the ring of used ones.
//!
//! `virtio-queue` has one too. It looks the region up for each access, nine times a request, and stores the used index for each request. Here
//! the three parts are found once for each table of memory, and requests that have ended together are one store of the index: the
//! processor of a driver that polls fetches its cache line each time.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use virtio_bindings::virtio_ring::{VRING_AVAIL_F_NO_INTERRUPT, VRING_USED_F_NO_NOTIFY};
use virtio_queue::desc::split::Descriptor;

use crate::fault::{Fault, MAX_DESCRIPTORS};
use crate::memory::{Area, GuestMap};

pub(crate) const DESCRIPTOR_BYTES: usize = size_of::<Descriptor>();
/// Flags and index of the available ring and of the used ring.
const HEAD_BYTES: usize = 4;
const INDEX_AT: usize = 2;
/// A head of the available ring.
const HEAD_ENTRY_BYTES: usize = 2;
/// A head of the used ring, and the bytes written.
const USED_ENTRY_BYTES: usize = 8;
/// The index at which the other side wants a signal, behind the entries.
const EVENT_BYTES: usize = 2;

/// Where a ring is, in the front end's process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Addresses {
    pub(crate) descriptors: u64,
    pub(crate) used: u64,
    pub(crate) available: u64,
}

fn access(error: impl ToString) -> Fault {
    Fault::Access(error.to_string())
}

/// A split ring in a guest's memory.
pub(crate) struct Split {
    descriptors: Area,
    available: Area,
    used: Area,
    /// A power of two.
    size: u16,
    has_event_idx: bool,
}

impl Split {
    /// The ring of `size` descriptors at these addresses.
    ///
    /// # Errors
    /// A part of it is not in one region, or not aligned.
    pub(crate) fn new(
        map: &GuestMap,
        addresses: Addresses,
        size: u16,
        has_event_idx: bool,
    ) -> Result<Self, Fault> {
        if !size.is_power_of_two() || size > MAX_DESCRIPTORS {
            return Err(Fault::Ring);
        }
        let count = usize::from(size);
        let part = |user: u64, len: usize, alignment: usize| {
            let area = map.area(user, len).filter(|area| area.is_aligned(alignment));
            area.ok_or(Fault::Ring)
        };
        let ring_bytes = |entry| HEAD_BYTES + entry * count + EVENT_BYTES;
        Ok(Self {
            descriptors: part(addresses.descriptors, DESCRIPTOR_BYTES * count, DESCRIPTOR_BYTES)?,
            available: part(addresses.available, ring_bytes(HEAD_ENTRY_BYTES), 2)?,
            used: part(addresses.used, ring_bytes(USED_ENTRY_BYTES), 4)?,
            size,
            has_event_idx,
        })
    }

    pub(crate) fn size(&self) -> u16 {
        self.size
    }

    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }

    /// A descriptor of the table, which has `number`.
    pub(crate) fn descriptor(&self, number: u16) -> Result<Descriptor, Fault> {
        let at = DESCRIPTOR_BYTES * usize::from(number);
        // A descriptor's table is aligned to its descriptors.
        let address: u64 = self.descriptors.load(at, Relaxed).map_err(access)?;
        let rest: u64 = self.descriptors.load(at + 8, Relaxed).map_err(access)?;
        let (address, rest) = (u64::from_le(address), u64::from_le(rest));
        Ok(Descriptor::new(address, rest as u32, (rest >> 32) as u16, (rest >> 48) as u16))
    }

    /// The index of the available ring. What precedes it can be read.
    pub(crate) fn available_index(&self) -> Result<u16, Fault> {
        Ok(u16::from_le(self.available.load(INDEX_AT, Acquire).map_err(access)?))
    }

    /// The head that was made available with this index.
    pub(crate) fn available(&self, index: u16) -> Result<u16, Fault> {
        let at = HEAD_BYTES + HEAD_ENTRY_BYTES * self.slot(index);
        Ok(u16::from_le(self.available.load(at, Relaxed).map_err(access)?))
    }

    /// The index of the used ring.
    pub(crate) fn used_index(&self) -> Result<u16, Fault> {
        Ok(u16::from_le(self.used.load(INDEX_AT, Acquire).map_err(access)?))
    }

    /// Writes the entry with this index, which the driver does not look at yet.
    pub(crate) fn put_used(&self, index: u16, head: u16, written: u32) -> Result<(), Fault> {
        let at = HEAD_BYTES + USED_ENTRY_BYTES * self.slot(index);
        self.used.store(at, u32::from(head).to_le(), Relaxed).map_err(access)?;
        self.used.store(at + 4, written.to_le(), Relaxed).map_err(access)
    }

    /// Lets the driver look at all entries before this index.
    pub(crate) fn set_used_index(&self, index: u16) -> Result<(), Fault> {
        self.used.store(INDEX_AT, index.to_le(), Release).map_err(access)
    }

    /// Whether the driver wants a signal when the used index becomes `to` after `from`.
    pub(crate) fn wants_signal(&self, from: u16, to: u16) -> Result<bool, Fault> {
        // The index is stored before the driver's wish is read.
        fence(SeqCst);
        if self.has_event_idx {
            let at = HEAD_BYTES + HEAD_ENTRY_BYTES * usize::from(self.size);
            let event = u16::from_le(self.available.load(at, Relaxed).map_err(access)?);
            return Ok(to.wrapping_sub(event).wrapping_sub(1) < to.wrapping_sub(from));
        }
        let flags = u16::from_le(self.available.load(0, Relaxed).map_err(access)?);
        Ok(u32::from(flags) & VRING_AVAIL_F_NO_INTERRUPT == 0)
    }

    /// Asks the driver for a signal when it makes more than `taken` available; whether it has done so already.
    pub(crate) fn ask_signal(&self, taken: u16) -> Result<bool, Fault> {
        if self.has_event_idx {
            let at = HEAD_BYTES + USED_ENTRY_BYTES * usize::from(self.size);
            self.used.store(at, taken.to_le(), Relaxed).map_err(access)?;
        } else {
            self.used.store(0, 0u16, Relaxed).map_err(access)?;
        }
        // The wish is stored before the index is read.
        fence(SeqCst);
        Ok(self.available_index()? != taken)
    }

    /// Asks the driver for no signals. With event indexes it sends none anyway after the one that was asked for.
    pub(crate) fn refuse_signals(&self) -> Result<(), Fault> {
        if self.has_event_idx {
            return Ok(());
        }
        self.used.store(0, (VRING_USED_F_NO_NOTIFY as u16).to_le(), Relaxed).map_err(access)
    }
}
