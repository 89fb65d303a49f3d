//! Rules that a test can break on purpose, to check that the simulation notices.
//!
//! Each rule is from docs/internals/dm-snapshot.md. The code that keeps a rule calls
//! [`broken`](ashlar_block::canary). crates/dm/tests/suite/snapshot/canaries.rs breaks one rule after
//! the other, and the simulation must detect it.

pub(crate) use ashlar_block::canary::broken;

/// A rule that the code keeps unless a test breaks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Every snapshot of an origin gets its exceptions before the origin changes.
    AllSnapshots,
    /// An exception is on disk, durably, before the origin changes.
    CommitComesFirst,
    /// Copied data is durable before the exception that points to it.
    CommitFlushes,
    /// Exceptions are written with FUA.
    CommitIsDurable,
    /// An exception is written only after its data was copied.
    DataComesFirst,
    /// A discard of a whole chunk makes its copy zeroes.
    DiscardsZero,
    /// Only a write of a whole chunk makes the copy unnecessary.
    FullChunksOnly,
    /// The invalidity of a snapshot is on disk before the origin changes.
    InvalidIsRecorded,
    /// Copies and merged data that a failed flush may have dropped are not trusted, even if the next flush succeeds.
    LossesAreKnown,
    /// Merged data is durable in the origin before its exceptions are forgotten.
    MergeFlushes,
    /// Chunks that are being merged are not written, and writes in flight to them are waited for.
    MergeHoldsWrites,
    /// The other snapshots get their exceptions before the merge changes the origin.
    MergeIsAWrite,
    /// The next area is zeroed before one is full.
    NextAreaIsEmpty,
    /// The origin does not change while a snapshot reads it.
    ReadsAreTracked,
}
