//! Why an array does not start.

use ashlar_block::{Sectors, Status};
use thiserror::Error;

use crate::ondisk::MdadmUuid;
use crate::ondisk::bad_block_log::BadBlockLogError;
use crate::personality::PersonalityError;

/// Why an array does not start. Nothing was changed.
#[derive(Debug, Error)]
pub enum AssembleError {
    /// There is nothing to assemble.
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
    /// Something of the array that this version does not know how to handle safely.
    #[error("the array {0}; let the kernel finish or remove that first")]
    Unsupported(&'static str),
    /// Members that are equally fresh and say different things.
    #[error("{path} and {freshest} disagree about the array's {what}, and neither is older")]
    Disagree {
        /// One of them.
        path: String,
        /// The other.
        freshest: String,
        /// What about.
        what: &'static str,
    },
    /// One device, or a copy of it, twice.
    #[error("{first} and {second} are the same member (device UUID {uuid}): leave one out")]
    SameMember {
        /// One of them.
        first: String,
        /// The other.
        second: String,
        /// Their UUID.
        uuid: MdadmUuid,
    },
    /// Two devices that both claim a slot.
    #[error("{first} and {second} both claim slot {slot}: leave one out")]
    SameSlot {
        /// One of them.
        first: String,
        /// The other.
        second: String,
        /// The slot.
        slot: u16,
    },
    /// Both ran without the other since they were together.
    #[error(
        "{first} and {second} were each used without the other, so each has changes that the other \
         lacks; {first} went further"
    )]
    SplitBrain {
        /// The one that went further.
        first: String,
        /// The other.
        second: String,
    },
    /// A member whose data no I/O of whole blocks can reach.
    #[error("the data of {path} begins at sector {data_offset}, within a block of {block} sectors")]
    Misaligned {
        /// The member.
        path: String,
        /// Where its data begins.
        data_offset: Sectors,
        /// Its logical block.
        block: Sectors,
    },
    /// Fewer members than the level can do with.
    #[error(
        "not enough members to start the array: {present} of {wanted}, missing slots {missing}"
    )]
    NotEnough {
        /// Members here and usable.
        present: usize,
        /// Members of a complete array.
        wanted: usize,
        /// The slots without one, and why devices at hand were left out.
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
        /// Members that the freshest one knew as working.
        expected: usize,
        /// The slots without one, and why devices at hand were left out.
        missing: String,
    },
    /// A member's list of bad blocks makes no sense.
    #[error("the bad block log of {path} cannot be used: {why}")]
    BadBlocks {
        /// The member.
        path: String,
        /// What is wrong with it.
        why: BadBlockLogError,
    },
    /// A member that cannot be written, for an array that should be.
    #[error("{0} cannot be written")]
    ReadOnlyMember(String),
    /// The numbers make no array, or not one of ours.
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
