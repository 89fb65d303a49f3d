//! Why an image cannot be a disk.

use rustix::io::Errno;
use thiserror::Error;

use crate::ffi::{CallError, LoadError};
use crate::uri::Access;

/// Why an image cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Ceph's libraries are missing or too old.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The configuration cannot be read.
    #[error("the configuration of the cluster ({access}) cannot be used: {source}")]
    Configuration {
        /// The user and the file.
        access: Access,
        /// The error.
        source: Errno,
    },
    /// The cluster does not answer, or refuses the user.
    #[error("cannot connect to the cluster ({access}): {}", connecting(*source))]
    Connect {
        /// The user and the file.
        access: Access,
        /// The error.
        source: Errno,
    },
    /// There is no such pool.
    #[error("the cluster has no pool `{0}`")]
    NoPool(String),
    /// There is no such image, snapshot or namespace.
    #[error("there is no image {0}")]
    NoImage(String),
    /// A snapshot cannot be written.
    #[error("a snapshot cannot be written")]
    Snapshot,
    /// Another client has the exclusive lock.
    #[error("{0} has the exclusive lock of the image")]
    Locked(String),
    /// The cluster does not answer.
    #[error("the cluster did not open the image within {0} s: its OSDs do not answer")]
    Silent(u64),
    /// The image cannot be a disk.
    #[error("it has objects of {0} bytes")]
    Objects(u64),
    /// Another call failed.
    #[error("{call}: {source}")]
    Call {
        /// The function of librbd or librados.
        call: &'static str,
        /// The error.
        source: Errno,
    },
    /// This machine has no thread for it.
    #[error("no thread: {0}")]
    Thread(std::io::Error),
}

impl OpenError {
    /// The remedy, if there is one.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Load(LoadError { package, .. }) => {
                return Some(format!("install Ceph's client libraries (Debian: {package})"));
            }
            Self::Configuration { .. } => "name the file: ?conf=FILE",
            Self::Connect { source: Errno::TIMEDOUT, .. } => {
                "do the cluster's monitors run, and can this machine reach them? (ceph -s)"
            }
            Self::Connect { source: Errno::NOENT, .. } => {
                "the configuration's `keyring` names the file with the key; ?id=USER names the user"
            }
            Self::Locked(_) => {
                "end that program first; a client that died keeps its lock for half a minute: try again, \
                 or break it with rbd lock ls and rbd lock rm"
            }
            Self::Snapshot => "it can only be read; a clone of it can be written (rbd clone)",
            Self::Silent(_) => "ceph -s shows the state of the cluster",
            Self::Connect { .. }
            | Self::NoPool(_)
            | Self::NoImage(_)
            | Self::Objects(_)
            | Self::Call { .. }
            | Self::Thread(_) => return None,
        };
        Some(hint.to_owned())
    }
}

fn connecting(errno: Errno) -> String {
    match errno {
        Errno::TIMEDOUT => "no monitor answers".to_owned(),
        Errno::NOENT => "there is no key for this user".to_owned(),
        Errno::ACCESS | Errno::PERM => "it refuses the user or the key".to_owned(),
        other => other.to_string(),
    }
}

impl From<CallError> for OpenError {
    fn from(CallError { call, errno }: CallError) -> Self {
        Self::Call { call, source: errno }
    }
}

impl From<CallError> for Errno {
    fn from(error: CallError) -> Self {
        error.errno
    }
}
