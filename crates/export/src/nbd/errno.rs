//! Error values of the protocol, and their mapping from I/O statuses.

use ashlar_block::status::Status;

/// The errors that a reply can carry ("Error values" of the protocol document).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Errno {
    /// Write to a read-only export.
    Perm = 1,
    /// The I/O failed.
    Io = 5,
    /// Out of memory.
    NoMem = 12,
    /// An invalid request.
    Inval = 22,
    /// No space, or a write past the end of the export.
    NoSpc = 28,
    /// A read too long for one reply.
    Overflow = 75,
    /// A fast zero request that would not be fast.
    NotSup = 95,
    /// The server is shutting down.
    Shutdown = 108,
}

impl Errno {
    /// The number on the wire.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The error sent to the client for an I/O that ended with `status`.
    ///
    /// `fast_zero` says that the request was a `WRITE_ZEROES` with `FAST_ZERO`: the only one for which the protocol
    /// wants `ENOTSUP`. `ESHUTDOWN` is never returned: it makes a client disconnect, and a lost device is no reason for
    /// that.
    pub const fn from_status(status: Status, fast_zero: bool) -> Self {
        match status {
            Status::NotSupported if fast_zero => Self::NotSup,
            Status::NotSupported | Status::Invalid => Self::Inval,
            Status::NoSpace => Self::NoSpc,
            Status::ReadOnly => Self::Perm,
            Status::Resource => Self::NoMem,
            Status::Timeout
            | Status::Transport
            | Status::Target
            | Status::Medium
            | Status::Protection
            | Status::Again
            | Status::Io
            | Status::Offline
            | Status::Conflict => Self::Io,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fast_zero_is_told_enotsup() {
        assert_eq!(Errno::from_status(Status::NotSupported, true), Errno::NotSup);
        assert_eq!(Errno::from_status(Status::NotSupported, false), Errno::Inval);
        assert_eq!(Errno::from_status(Status::Medium, true), Errno::Io);
    }

    #[test]
    fn errors_a_user_can_act_on_keep_their_meaning() {
        assert_eq!(Errno::from_status(Status::NoSpace, false).code(), 28);
        assert_eq!(Errno::from_status(Status::ReadOnly, false).code(), 1);
        assert_eq!(Errno::from_status(Status::Offline, false).code(), 5);
    }
}
