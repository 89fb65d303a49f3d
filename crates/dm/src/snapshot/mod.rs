//! dm-snapshot: `snapshot-origin`, `snapshot` and `snapshot-merge`.
//!
//! # Theory
//!
//! A snapshot shows an origin as it was at a moment. Before a chunk of the origin changes for the
//! first time, it is copied to the snapshot's COW device; the record of the copy is an
//! **exception**. The persistent exception store has the kernel's format, so each side can use the
//! other's stores.
//!
//! | module | what |
//! |---|---|
//! | [`ondisk`] | the bytes of the store |
//! | [`load`] | reads and checks a store, creates a new one |
//! | `store` | allocates chunks, and orders the writes of exceptions |
//! | `exceptions`, `runs` | the state of each chunk, in memory; a compact map of chunks |
//! | `state` | a snapshot: makes exceptions, becomes invalid |
//! | `status` | what is said of it: the space that it uses, or that it is invalid |
//! | `merge_state` | how far its merge is |
//! | `origin` | the snapshots of each device: what a write to the device waits for |
//! | `changes` | where a snapshot differs from its origin |
//! | `origin_target`, `target`, `merge` | the three targets |
//!
//! docs/internals/dm-snapshot.md describes the order of durable writes for each operation, and the
//! state after a crash between any two of them. docs/formats/dm-snapshot.md describes the format.
//!
//! Assumed of the layers above: every write to the origin goes through a `snapshot-origin` (or the
//! `snapshot-merge`) on it, and all tables are made with the same [`Origins`]. Unlike the kernel,
//! this code does not need the origin's device suspended while a snapshot is taken: it waits for
//! changes in flight. Whether the moment suits a file system is the caller's responsibility.

pub mod canary;
mod changes;
mod exceptions;
pub mod load;
mod merge;
mod merge_state;
pub mod ondisk;
mod origin;
mod origin_target;
mod runs;
mod state;
mod status;
mod store;
mod target;

pub use changes::Changes;
pub use load::{StoreError, Summary, examine};
pub(crate) use merge::MergeTarget;
pub use origin::Origins;
pub(crate) use origin_target::OriginTarget;
pub use status::{NoSnapshotStatus, Status, StatusLine, Usage};
pub(crate) use target::SnapshotTarget;
