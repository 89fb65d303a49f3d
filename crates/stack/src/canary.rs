//! Rules that a test can break on purpose, to see that the simulation of the daemon notices.
//!
//! The rules are those of docs/internals/simulated-daemon.md; this crate and `host`, the control plane, keep them. The code that
//! keeps a rule asks [`broken`](ashlar_block::canary). crates/daemon/src/simulation/canaries.rs breaks one rule after the other, and
//! the simulation has to find it.

pub use ashlar_block::canary::broken;

/// A rule that the code follows unless a test breaks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// A call is answered once its change has been made.
    AnswersComeLast,
    /// A claim that was not kept leaves the device as it was.
    ClaimsAreTakenBack,
    /// A disk that was detached from a waiting array is closed.
    DetachedDisksAreClosed,
    /// No change begins once the daemon is about to end.
    EndComesLast,
    /// Clients find what a reply tells of.
    FrontEndsAreTold,
    /// A change of a group is in its description before it is answered.
    GroupsAreWritten,
    /// The daemon knows which file or device it has opened by a path.
    IdentitiesAreKept,
    /// The registry keeps the claim of a disk that became a member.
    MembersKeepTheirClaim,
    /// A disk with other contents becomes a member only with `force`.
    OtherContentsAreKept,
    /// The registry refuses a second use of a device.
    OneUse,
    /// The label of a physical volume says that it is used before a description names it.
    PhysicalVolumesAreMarked,
    /// After each change the registry says which array has each disk.
    RegistryIsSettled,
    /// An array that has started waits no more.
    StartedArraysWaitNoMore,
    /// An array that a client has open is not stopped.
    UsedArraysRun,
}
