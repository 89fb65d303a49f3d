//! A chain of descriptors, as the memory that it names.
//!
//! `virtio-queue` walks chains, too, but a chain that breaks the rules just ends there, and one that an earlier process has taken from
//! its ring cannot be walked again. So the ring is the library's, and the walk is here, over the library's descriptors.

use ashlar_block::Segments;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress};

use crate::memory::{GuestMap, View};

/// The most descriptors of a ring, and of a chain: QEMU's limit.
pub(crate) const MAX_DESCRIPTORS: u16 = 1024;
const DESCRIPTOR_BYTES: u32 = size_of::<Descriptor>() as u32;

/// What a guest's ring says that no driver may say. It ends the connection.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("a part of the ring is not in the guest's memory, or not aligned")]
    Ring,
    #[error("reading or writing the ring: {0}")]
    Access(String),
    #[error("the index of the available ring is more than the ring's size ahead")]
    Available,
    #[error("descriptor {0} is made available in a ring of {1}")]
    Head(u16, u16),
    #[error("descriptor {0} is made available again while it is in use")]
    Busy(u16),
    #[error("a descriptor's next is {0}, in a table of {1}")]
    Next(u16, u16),
    #[error("a chain has a loop, or more than {0} descriptors")]
    Endless(u16),
    #[error("a chain is longer than 4 GiB")]
    Long,
    #[error("a table of descriptors is not in the guest's memory")]
    Table,
    #[error("a buffer of {1} bytes at {0:#x} is not in the guest's memory")]
    Outside(u64, u32),
    #[error("a buffer has no bytes")]
    Empty,
    #[error("a buffer to read follows one to write")]
    Order,
    #[error("an indirect table, which was not negotiated")]
    Indirect,
    #[error("an indirect table in an indirect table")]
    Nested,
    #[error("an indirect table that a chain continues behind")]
    IndirectNext,
    #[error("an indirect table of {0} bytes")]
    IndirectLength(u32),
    #[error(
        "a request of {0} bytes to read and {1} bytes to write has no room for its header and status"
    )]
    Short(u64, u64),
    #[error("the inflight region belongs to another device or to a ring of another size")]
    Inflight,
    #[error("the ring's event descriptor: {0}")]
    Kick(String),
}

/// The buffers of a chain.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// What the device reads.
    pub(crate) readable: Segments,
    /// What the device writes.
    pub(crate) writable: Segments,
    /// Bytes that the device may write.
    pub(crate) writable_bytes: u32,
    /// Bytes that the device may read.
    pub(crate) readable_bytes: u32,
}

/// The table of a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    /// Its address in the guest.
    pub(crate) address: u64,
    /// Its descriptors.
    pub(crate) size: u16,
    /// Whether its descriptors may refer to indirect tables.
    pub(crate) has_indirect: bool,
}

/// The chain that begins with descriptor `head`.
///
/// # Errors
/// What the guest did wrong.
pub(crate) fn walk(map: &GuestMap, view: &View, table: Table, head: u16) -> Result<Chain, Fault> {
    if head >= table.size {
        return Err(Fault::Head(head, table.size));
    }
    let mut chain = Chain::default();
    let (mut address, mut size, mut index, mut is_indirect) =
        (table.address, table.size, head, false);
    for _ in 0..=MAX_DESCRIPTORS {
        if index >= size {
            return Err(Fault::Next(index, size));
        }
        let at = address.checked_add(u64::from(u32::from(index) * DESCRIPTOR_BYTES));
        let at = GuestAddress(at.ok_or(Fault::Table)?);
        let descriptor: Descriptor = map.memory().read_obj(at).map_err(|_| Fault::Table)?;
        if descriptor.refers_to_indirect_table() {
            if is_indirect {
                return Err(Fault::Nested);
            }
            if !table.has_indirect {
                return Err(Fault::Indirect);
            }
            if descriptor.has_next() {
                return Err(Fault::IndirectNext);
            }
            let bytes = descriptor.len();
            let entries = u16::try_from(bytes / DESCRIPTOR_BYTES).unwrap_or(0);
            if !bytes.is_multiple_of(DESCRIPTOR_BYTES) || entries == 0 {
                return Err(Fault::IndirectLength(bytes));
            }
            (address, size, index, is_indirect) = (descriptor.addr().0, entries, 0, true);
            continue;
        }
        chain.add(descriptor, view)?;
        if !descriptor.has_next() {
            return Ok(chain);
        }
        index = descriptor.next();
    }
    Err(Fault::Endless(MAX_DESCRIPTORS))
}

impl Chain {
    fn add(&mut self, descriptor: Descriptor, view: &View) -> Result<(), Fault> {
        let (address, len) = (descriptor.addr().0, descriptor.len());
        if len == 0 {
            return Err(Fault::Empty);
        }
        let (list, bytes) = if descriptor.is_write_only() {
            (&mut self.writable, &mut self.writable_bytes)
        } else if self.writable.is_empty() {
            (&mut self.readable, &mut self.readable_bytes)
        } else {
            return Err(Fault::Order);
        };
        *bytes = bytes.checked_add(len).ok_or(Fault::Long)?;
        view.segments(address, len, list).ok_or(Fault::Outside(address, len))
    }
}
