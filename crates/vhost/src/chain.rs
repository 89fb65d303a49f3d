//! A chain of descriptors, as the memory that it names.
//!
//! `virtio-queue` walks chains, too, but a chain that breaks the rules just ends there, and one that an earlier process has taken from
//! its ring cannot be walked again. So the ring is the library's, and the walk is here, over the library's descriptors.

use ashlar_block::Segments;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress};

use crate::fault::{Fault, MAX_DESCRIPTORS};
use crate::memory::{GuestMap, View};
use crate::ring::{DESCRIPTOR_BYTES, Split};

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

/// A table of descriptors.
#[derive(Clone, Copy)]
enum Table<'a> {
    Ring(&'a Split),
    /// An indirect table: its address, and how many there are.
    Indirect(&'a GuestMap, u64, u16),
}

impl Table<'_> {
    fn size(self) -> u16 {
        match self {
            Self::Ring(split) => split.size(),
            Self::Indirect(_, _, size) => size,
        }
    }

    fn descriptor(self, index: u16) -> Result<Descriptor, Fault> {
        match self {
            Self::Ring(split) => split.descriptor(index),
            Self::Indirect(map, address, _) => {
                let at = address.checked_add(DESCRIPTOR_BYTES as u64 * u64::from(index));
                let at = GuestAddress(at.ok_or(Fault::Table)?);
                map.memory().read_obj(at).map_err(|_| Fault::Table)
            }
        }
    }
}

/// The chain that begins with descriptor `head` of a ring. Its descriptors may refer to indirect tables if `has_indirect`.
///
/// # Errors
/// What the guest did wrong.
pub(crate) fn walk(
    map: &GuestMap,
    view: &View,
    split: &Split,
    has_indirect: bool,
    head: u16,
) -> Result<Chain, Fault> {
    if head >= split.size() {
        return Err(Fault::Head(head, split.size()));
    }
    let mut chain = Chain::default();
    let (mut table, mut index) = (Table::Ring(split), head);
    for _ in 0..=MAX_DESCRIPTORS {
        if index >= table.size() {
            return Err(Fault::Next(index, table.size()));
        }
        let descriptor = table.descriptor(index)?;
        if descriptor.refers_to_indirect_table() {
            if matches!(table, Table::Indirect(..)) {
                return Err(Fault::Nested);
            }
            if !has_indirect {
                return Err(Fault::Indirect);
            }
            if descriptor.has_next() {
                return Err(Fault::IndirectNext);
            }
            let bytes = descriptor.len();
            let entries = u16::try_from(bytes / DESCRIPTOR_BYTES as u32).unwrap_or(0);
            if !bytes.is_multiple_of(DESCRIPTOR_BYTES as u32) || entries == 0 {
                return Err(Fault::IndirectLength(bytes));
            }
            (table, index) = (Table::Indirect(map, descriptor.addr().0, entries), 0);
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
