//! Thin pools, read-only: dm-thin's devices as the kernel left them.
//!
//! # Theory
//!
//! A [`ThinPool`] has a metadata device with trees of nodes, and a data device that is cut into blocks of
//! one size. The [superblock](Superblock) leads to a tree of devices, that to a tree of mappings for each
//! of them: from a block of the device to a data block. Snapshots are devices whose trees have nodes in
//! common. A [`Thin`] is a device of the pool as a target: what is mapped is read from the data device,
//! the rest is zeroes, or that of an external origin.
//!
//! Nothing is ever written, so what was read once holds: nodes are kept as long as there is room, and
//! need no lock. Every write fails with [`Status::ReadOnly`](ashlar_block::Status::ReadOnly).
//!
//! Every number from the disk is checked where it is read: a node by its checksum, place and entries, and
//! against what the nodes above it say. So a damaged node makes reads that need it fail, and no others;
//! and no tree, however it was made, is followed without end ([`node::Node::check_place`]).
//!
//! Assumed of the layer below: nobody writes to the pool's devices while it is open.

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
