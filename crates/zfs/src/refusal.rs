//! Refusals with ZFS's messages.

use std::fmt::Display;

use rustix::io::Errno;

use crate::protocol::Refusal;

impl Refusal {
    /// The failed action and the reason: "cannot create 'tank': pool already exists".
    pub(crate) fn new(what: impl Display, why: impl Display, errno: Errno) -> Self {
        Self { message: format!("{what}: {why}"), hint: None, errno: errno.raw_os_error() }
    }

    /// An invalid command.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, errno: libc::EINVAL }
    }

    /// Adds a hint.
    #[must_use]
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// For a failed function of a dataset.
    pub(crate) fn of_dataset(what: impl Display, errno: Errno) -> Self {
        let refusal = Self::new(what, dataset_words(errno), errno);
        match hint(errno) {
            Some(hint) => refusal.with_hint(hint),
            None => refusal,
        }
    }

    /// For a failed function of a pool.
    pub(crate) fn of_pool(what: impl Display, errno: Errno) -> Self {
        let refusal = Self::new(what, pool_words(errno), errno);
        match hint(errno) {
            Some(hint) => refusal.with_hint(hint),
            None => refusal,
        }
    }
}

/// ECKSUM of ZFS: wrong checksums.
const CHECKSUM: Errno = Errno::BADE;

fn hint(errno: Errno) -> Option<&'static str> {
    match errno {
        Errno::NOSPC | Errno::DQUOT => Some(
            "free space by destroying snapshots or volumes, or make it sparse, or lower its size",
        ),
        Errno::AGAIN => Some("see the pool's status for the devices that failed"),
        Errno::OPNOTSUPP => Some("enable the feature that it needs: set feature@NAME=enabled"),
        _ => None,
    }
}

/// ZFS's messages common to pools and datasets.
fn common_words(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::PERM | Errno::ACCESS => "permission denied",
        Errno::IO => "I/O error",
        Errno::INTR => "signal received",
        Errno::NOSPC | Errno::DQUOT => "out of space",
        Errno::ROFS => "pool is read-only",
        Errno::AGAIN => "pool I/O is currently suspended",
        Errno::REMOTEIO => "pool is imported on a different host",
        CHECKSUM => "insufficient replicas",
        _ => return None,
    })
}

/// The ZFS_ERR_* of sys/fs/zfs.h that our commands can get.
fn own_words(errno: Errno) -> Option<&'static str> {
    Some(match errno.raw_os_error() {
        1024 => "checkpoint exists",
        1025 => "currently discarding checkpoint",
        1027 => "device removal in progress",
        1028 => "device exceeds supported size",
        1033 => "invalid parent dataset",
        1038 => "pool export in progress",
        1042 => "currently resilvering",
        1043 => "currently sequentially resilvering",
        1044 => "invalid property value",
        _ => return None,
    })
}

/// ZFS's message when a dataset's function fails with this errno.
pub(crate) fn dataset_words(errno: Errno) -> String {
    let own = || match errno {
        Errno::NXIO | Errno::NODEV | Errno::PIPE => Some("I/O error"),
        Errno::NOENT => Some("dataset does not exist"),
        Errno::EXIST => Some("dataset already exists"),
        Errno::BUSY => Some("dataset is busy"),
        Errno::NAMETOOLONG => Some("dataset name is too long"),
        Errno::OPNOTSUPP => Some("pool must be upgraded to set this property or value"),
        Errno::XDEV => Some("operation crosses datasets or pools"),
        Errno::RANGE => Some("invalid property value(s) specified"),
        _ => None,
    };
    let words = common_words(errno).or_else(own).or_else(|| own_words(errno));
    words.map_or_else(|| errno.to_string(), str::to_owned)
}

/// ZFS's message when a pool's function fails with this errno.
pub(crate) fn pool_words(errno: Errno) -> String {
    let own = || match errno {
        Errno::NODEV => Some("no such device in pool"),
        Errno::NOENT => Some("no such pool or dataset"),
        Errno::EXIST => Some("pool already exists"),
        Errno::BUSY => Some("pool is busy"),
        Errno::NXIO => Some("one or more devices is currently unavailable"),
        Errno::NAMETOOLONG => Some("too many devices in one vdev"),
        Errno::OPNOTSUPP => Some("operation not supported on this type of pool"),
        Errno::INVAL => Some("invalid argument for this pool operation"),
        Errno::DOM => Some("block size out of range or does not match"),
        _ => None,
    };
    let words = common_words(errno).or_else(own).or_else(|| own_words(errno));
    words.map_or_else(|| errno.to_string(), str::to_owned)
}

/// ZFS's message for an invalid name: namecheck_err_t of zfs_namecheck.h, from 2.1 to 2.4.
pub(crate) fn name_words(rule: i32, character: char) -> String {
    match rule {
        0 => "leading slash in name".into(),
        1 => "empty component or misplaced '@' or '#' delimiter in name".into(),
        2 => "trailing slash in name".into(),
        3 => format!("invalid character '{}' in name", character.escape_default()),
        4 => "multiple '@' and/or '#' delimiters in name".into(),
        5 => "name must begin with a letter".into(),
        6 | 7 => "name is reserved".into(),
        8 => "name is too long".into(),
        9 => "self reference, '.' is found in name".into(),
        10 => "parent reference, '..' is found in name".into(),
        rule => format!("rule {rule} of names is broken"),
    }
}
