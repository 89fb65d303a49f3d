//! Who is a member: slots, superblocks, and the decision that a member has failed.

pub(crate) mod latency;
pub(crate) mod rdev;
pub(crate) mod read_errors;
pub(crate) mod slots;
pub(crate) mod superblocks;
