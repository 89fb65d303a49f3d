//! dm-snapshot: `snapshot-origin`, `snapshot` and `snapshot-merge`.
//!
//! # Theory
//!
//! A snapshot shows an origin as it was at a moment. Before a chunk of the origin changes for the first
//! time it is copied to the snapshot's COW device; that it is there is an **exception**. The
//! persistent exception store is the kernel's, so either side goes on with what the other left.
//!
//! | module | what |
//! |---|---|
//! | [`ondisk`] | the bytes of the store |
//! | [`load`] | reading and checking a store, making a new one |
//! | `store` | which chunk is next, which exceptions go to disk when |
//! | `exceptions` | what is known of each chunk, in memory |
//! | `flushes` | whose flushes are when, and who learns that one failed |
//! | `state` | a snapshot: makes exceptions, becomes invalid |
//! | `origin`, `target`, `merge` | the three targets |
//! | `task` | whether the task of a merge runs |
//!
//! The order of durable writes for each operation, and what a crash between any two of them leaves:
//! docs/internals/dm-snapshot.md. The bytes: docs/formats/dm-snapshot.md.
//!
//! Assumed of the layers above: a write that goes to the origin goes through a `snapshot-origin` (or
//! the `snapshot-merge`) over it, and all tables are made with the same [`Origins`]. Unlike the
//! kernel's, the origin's device need not be suspended while a snapshot is taken: changes that are
//! under way are waited for. What the moment is worth to a file system is the caller's business.

pub mod canary;
mod exceptions;
mod flushes;
pub mod load;
mod merge;
pub mod ondisk;
mod origin;
mod state;
mod store;
mod target;
mod task;

pub use load::{StoreError, Summary, examine};
pub(crate) use merge::MergeTarget;
pub(crate) use origin::OriginTarget;
pub use origin::Origins;
pub(crate) use target::SnapshotTarget;
