//! Why an array does not start.

use ashlar_block::{Sector, Sectors, Status};
use thiserror::Error;

use crate::ondisk::MdadmUuid;
use crate::ondisk::bad_block_log::BadBlockLogError;
use crate::personality::PersonalityError;

fn because(why: &str) -> String {
    if why.is_empty() { String::new() } else { format!(" ({why})") }
}

/// Why an array does not start. Nothing was changed.
#[derive(Debug, Error)]
pub enum AssembleError {
    /// No member devices were given.
    #[error("no member devices given")]
    NoMembers,
    /// Devices of several arrays.
    #[error("{path} belongs to another array ({found}, not {wanted})")]
    OtherArray {
        /// The device.
        path: String,
        /// Its array.
        found: MdadmUuid,
        /// The array being assembled.
        wanted: MdadmUuid,
    },
    /// A state of the array that this version cannot handle safely.
    #[error("the array {0}; let the kernel finish or remove that first")]
    Unsupported(&'static str),
    /// Equally fresh members that contradict each other.
    #[error("{path} and {freshest} disagree about the array's {what}, and neither is older")]
    Disagree {
        /// One of them.
        path: String,
        /// The other.
        freshest: String,
        /// What they disagree about.
        what: &'static str,
    },
    /// The same device, or a copy of it, twice.
    #[error("{first} and {second} are the same member (device UUID {uuid}): leave one out")]
    SameMember {
        /// One of them.
        first: String,
        /// The other.
        second: String,
        /// Their UUID.
        uuid: MdadmUuid,
    },
    /// Two devices that claim the same slot.
    #[error("{first} and {second} both claim slot {slot}: leave one out")]
    SameSlot {
        /// One of them.
        first: String,
        /// The other.
        second: String,
        /// The slot.
        slot: u16,
    },
    /// Each device was used without the other since they were last together.
    #[error(
        "{first} and {second} were each used without the other, so each has changes that the other \
         lacks; {first} went further"
    )]
    SplitBrain {
        /// The device with more updates.
        first: String,
        /// The other.
        second: String,
    },
    /// A member whose data begins within a logical block.
    #[error("the data of {path} begins at sector {data_offset}, within a block of {block} sectors")]
    Misaligned {
        /// The member.
        path: String,
        /// Where its data begins.
        data_offset: Sectors,
        /// Its logical block.
        block: Sectors,
    },
    /// Fewer members than the level needs.
    #[error(
        "not enough members to start the array: {present} of {wanted}, missing slots {missing}"
    )]
    NotEnough {
        /// Members here and usable.
        present: usize,
        /// Members of a complete array.
        wanted: usize,
        /// The slots without one, and why present devices were left out.
        missing: String,
    },
    /// Fewer members than last time.
    #[error(
        "only {present} of the {expected} members that worked last time are usable; missing slots \
         {missing}"
    )]
    NeedsRun {
        /// Members here and usable.
        present: usize,
        /// Members that the freshest one recorded as working.
        expected: usize,
        /// The slots without one, and why present devices were left out.
        missing: String,
    },
    /// An array with a feature that ashlar reads and does not write yet.
    #[error("an array with {0} can be read, but not yet written")]
    OnlyRead(&'static str),
    /// A reshape that cannot be read.
    #[error("the array is being reshaped, and cannot be read: {0}")]
    Reshape(&'static str),
    /// What a reshape was moving in place when it stopped is not on the members.
    #[error(
        "the array was being reshaped in place, and the data being moved at sector {at} of the array is only in mdadm's backup file{}",
        because(.why)
    )]
    CriticalSection {
        /// The position of the reshape.
        at: Sector,
        /// Why backups are not used; empty if there are no backups.
        why: String,
    },
    /// Parity may be wrong, and a member is missing that would have to be recovered from it.
    #[error(
        "the array was not stopped cleanly and lacks members: data recovered for them may be wrong where writes were in flight; missing slots {missing}"
    )]
    DirtyDegraded {
        /// The slots without a member, and why present devices were left out.
        missing: String,
    },
    /// A member's bad block log is invalid.
    #[error("the bad block log of {path} cannot be used: {why}")]
    BadBlocks {
        /// The member.
        path: String,
        /// What is wrong with it.
        why: BadBlockLogError,
    },
    /// A member is read-only, but the array should be writable.
    #[error("{0} cannot be written")]
    ReadOnlyMember(String),
    /// Another host is writing the array.
    #[error("another host is writing {0}: stop the array there first")]
    UsedElsewhere(String),
    /// The parameters cannot form an array, or form one that is not supported.
    #[error(transparent)]
    Personality(#[from] PersonalityError),
    /// A member cannot be read.
    #[error("cannot read {path}: {status}")]
    Read {
        /// The member.
        path: String,
        /// Why.
        status: Status,
    },
}
