//! The result of an I/O: the kernel's `blk_status_t`, with its errno.

use thiserror::Error;

/// Why a bio failed. One variant for each `BLK_STS_*` that a block device of ashlar can return; the
/// text is the one that the kernel logs (`block/blk-core.c`, table of status names).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
pub enum Status {
    /// The device does not support this operation.
    #[error("operation not supported")]
    NotSupported,
    /// The device did not answer in time.
    #[error("timeout")]
    Timeout,
    /// No room left (thin devices, sparse files).
    #[error("critical space allocation error")]
    NoSpace,
    /// The path to the device failed; another may work.
    #[error("recoverable transport error")]
    Transport,
    /// The device refused the command.
    #[error("critical target error")]
    Target,
    /// Unreadable or unwritable medium.
    #[error("critical medium error")]
    Medium,
    /// Data does not match its checksum.
    #[error("protection error")]
    Protection,
    /// Out of memory or another resource of the host.
    #[error("kernel resource error")]
    Resource,
    /// The bio would have to wait, but has NOWAIT.
    #[error("nonblocking retry error")]
    Again,
    /// Any other I/O error.
    #[error("I/O error")]
    Io,
    /// The device is offline.
    #[error("device offline")]
    Offline,
    /// The bio itself is invalid: range, alignment, flags.
    #[error("invalid request")]
    Invalid,
    /// Another host uses the device.
    #[error("reservation conflict error")]
    Conflict,
    /// A write to a read-only device.
    #[error("read-only device")]
    ReadOnly,
}

/// The result of a bio.
pub type BioResult = Result<(), Status>;

// Linux errno values, the same on all supported architectures (asm-generic/errno*.h).
const TABLE: [(Status, i32); 14] = [
    (Status::NotSupported, 95),
    (Status::Timeout, 110),
    (Status::NoSpace, 28),
    (Status::Transport, 67),
    (Status::Target, 121),
    (Status::Medium, 61),
    (Status::Protection, 84),
    (Status::Resource, 12),
    (Status::Again, 11),
    (Status::Io, 5),
    (Status::Offline, 19),
    (Status::Conflict, 52),
    (Status::Invalid, 22),
    (Status::ReadOnly, 30),
];

impl Status {
    /// The errno that a system call would return for this status (positive).
    pub fn errno(self) -> i32 {
        // The table has every variant: a test enumerates it.
        TABLE.iter().find(|(s, _)| *s == self).map_or(5, |(_, e)| *e)
    }

    /// The status for an errno (positive) that a driver got; unknown ones are `Io`, as in the
    /// kernel's `errno_to_blk_status`.
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            6 => Self::Offline,       // ENXIO
            1 => Self::ReadOnly,      // EPERM: what a write to a sealed or immutable file gets
            25 => Self::NotSupported, // ENOTTY: the ioctl is unknown to the device
            122 => Self::NoSpace,     // EDQUOT
            _ => TABLE.iter().find(|(_, e)| *e == errno).map_or(Self::Io, |(s, _)| *s),
        }
    }

    /// Whether the error may concern only some of the blocks of an I/O: then each part is worth its own try. `Io` counts,
    /// because files report nothing more exact.
    pub const fn is_of_medium(self) -> bool {
        matches!(self, Self::Io | Self::Medium | Self::Protection)
    }

    /// Whether the device may be offline, and its cache lost: it did not answer, or cannot be reached.
    pub const fn is_gone(self) -> bool {
        matches!(self, Self::Timeout | Self::Transport | Self::Offline)
    }

    /// Whether the same I/O may succeed later, without a repair: the device may be online again, or there is room again.
    pub const fn may_pass(self) -> bool {
        self.is_gone() || matches!(self, Self::NoSpace | Self::Resource | Self::Again)
    }

    /// Whether another path or copy may succeed where this one failed (all errors except those of the
    /// request itself), like the kernel's `blk_path_error`.
    pub const fn is_retryable_elsewhere(self) -> bool {
        !matches!(self, Self::NotSupported | Self::Invalid | Self::ReadOnly | Self::Again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_round_trips_for_every_status() {
        for (status, errno) in TABLE {
            assert_eq!(status.errno(), errno);
            assert_eq!(Status::from_errno(errno), status);
        }
        assert_eq!(Status::from_errno(9999), Status::Io);
    }
}
