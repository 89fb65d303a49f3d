//! What a queue may say, and how it lies.

/// The most descriptors of a ring, and of a chain: QEMU's limit.
pub(crate) const MAX_DESCRIPTORS: u16 = 1024;

/// What a guest's ring says that no driver may say. It ends the connection.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("a part of the ring is not in the guest's memory, or not aligned")]
    Ring,
    #[error("reading or writing the ring: {0}")]
    Access(String),
    #[error("the index of the available ring is more than the ring's size ahead")]
    Available,
    #[error("descriptor {0} is made available in a ring of {1}")]
    Head(u16, u16),
    #[error("descriptor {0} is made available again while it is in use")]
    Busy(u16),
    #[error("a descriptor's next is {0}, in a table of {1}")]
    Next(u16, u16),
    #[error("a chain has a loop, or more than {0} descriptors")]
    Endless(u16),
    #[error("a chain is longer than 4 GiB")]
    Long,
    #[error("a table of descriptors is not in the guest's memory")]
    Table,
    #[error("a buffer of {1} bytes at {0:#x} is not in the guest's memory")]
    Outside(u64, u32),
    #[error("a buffer has no bytes")]
    Empty,
    #[error("a buffer to read follows one to write")]
    Order,
    #[error("an indirect table, which was not negotiated")]
    Indirect,
    #[error("an indirect table in an indirect table")]
    Nested,
    #[error("an indirect table that a chain continues behind")]
    IndirectNext,
    #[error("an indirect table of {0} bytes")]
    IndirectLength(u32),
    #[error(
        "a request of {0} bytes to read and {1} bytes to write has no room for its header and status"
    )]
    Short(u64, u64),
    #[error("the inflight region belongs to another device or to a ring of another size")]
    Inflight,
    #[error("the ring's event descriptor: {0}")]
    Kick(String),
}
