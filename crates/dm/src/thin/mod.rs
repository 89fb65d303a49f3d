//! Thin pools, read-only: dm-thin devices written by the kernel.
//!
//! # Theory
//!
//! A [`ThinPool`] has a metadata device with trees of nodes, and a data device that is divided into
//! blocks of one size. The [superblock](Superblock) points to a tree of devices, which points to a
//! tree of mappings for each device: from a block of the device to a data block. Snapshots are
//! devices whose trees share nodes. A [`Thin`] is a target for a device of the pool: mapped blocks
//! are read from the data device; the others are zeroes, or come from an external origin.
//!
//! Nothing is ever written, so data that was read stays valid: nodes are cached as long as there is
//! room, and need no lock. Every write fails with
//! [`Status::ReadOnly`](ashlar_block::Status::ReadOnly).
//!
//! Every number from the disk is checked when it is read: a node by its checksum, location and
//! entries, and against its parents. So a damaged node only fails reads that need it; and no tree,
//! however malformed, causes an endless walk ([`node::Node::check_place`]).
//!
//! Assumed of the layer below: nothing writes to the pool's devices while it is open.

mod crc32c;
pub mod error;
pub mod node;
pub mod ondisk;
pub mod pool;
mod store;
pub mod superblock;
pub mod target;

pub use error::{NodeFault, SuperblockFault, ThinError};
pub use pool::{Details, Mapping, Options, ThinPool, examine};
pub use superblock::Superblock;
pub use target::Thin;
