//! Rules that a test can break on purpose, to see that the simulation notices.
//!
//! Each rule is one of docs/internals/crash-model.md. The code that keeps a rule asks [`broken`](ashlar_block::canary).
//! crates/md/tests/suite/simulation/canaries.rs breaks one rule after the other, and the simulation has to find it.

pub(crate) use ashlar_block::canary::broken;

/// A rule that the code follows unless a test breaks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Superblocks say active before the first write.
    ActiveIsRecorded,
    /// Bad blocks are in the log before the write that found them is acknowledged.
    BadBlocksAreRecorded,
    /// The base of a member's logs gets a new number before logs begin again behind it.
    BasesAreRenewed,
    /// Blocks listed as bad are not read.
    BadBlocksAreNotRead,
    /// A raised barrier waits for the writes that are under way.
    BarrierWaitsForWrites,
    /// A write-behind is marked before it is acknowledged.
    BehindIsMarked,
    /// A resync's bound is recorded when it is reached, not before.
    BoundIsReached,
    /// The members are flushed before superblocks say clean.
    CleanIsFlushed,
    /// Corrections raise the barrier.
    CorrectionsRaise,
    /// The body of a discard is rounded inwards.
    DiscardsRoundInwards,
    /// A member that did not take a write fails, even if another has the data.
    FailedWritesFailMembers,
    /// A member's failure is in the superblocks before the write that found it is acknowledged.
    FailuresAreRecorded,
    /// A flush goes to all members.
    FlushReachesAll,
    /// A lockless bitmap makes only entirely discarded chunks unwritten.
    ForgetsWholeChunks,
    /// The last copy of any data never fails.
    LastCopyStays,
    /// A row is logged before it is written.
    LogComesFirst,
    /// The rows of a log are flushed before the next log is written.
    LogIsFlushedBeforeReuse,
    /// Logs of the last run are emptied before a row is written.
    RingsAreEmptiedFirst,
    /// Marks are durable before data is sent.
    MarksComeFirst,
    /// Marks are written with FUA.
    MarksAreDurable,
    /// Data is flushed before marks are cleared.
    MarksGoAfterFlush,
    /// Members under rebuild are written too.
    RebuildingIsWritten,
    /// A member under rebuild is not read beyond the rebuilt part.
    RebuildingIsNotRead,
    /// Of an array under reshape a sector is read by the map of its side of the position.
    PositionChoosesGeometry,
    /// A write locks its row against reads that recover a block of the row.
    RowsAreHeld,
    /// Members are flushed before superblocks say how far they are rebuilt.
    RebuiltIsFlushed,
    /// Superblocks are written with FUA.
    SuperblocksAreDurable,
    /// Where copies may differ, the first copy is read.
    UnsyncedReadsFirst,
}
