//! Disks that clients pass to a daemon that cannot open them: in its sandbox it can open none, and outside it opens none for a
//! [member](Caller::Member) of the control group, who could otherwise have any file of root's overwritten.
//!
//! ```text
//! client                                        daemon
//! a call that names a disk ------------------->
//!                          <------------------- NotOpened, with the path and the access it needs
//! opens and locks the disk, with its own rights
//! the call again, the path in `passed`, the
//! descriptor beside it (SCM_RIGHTS) ---------->  checks the descriptor, takes the lock, and uses it
//! ```
//!
//! A client passes only a disk that its user named in this call: a compromised daemon gets no other file. The lock and the claim
//! belong to the open file, so the disk always has them.
//!
//! The client alone vouches for the path of a passed disk. The path must name a file; if the daemon can see it, the passed one;
//! and the daemon must not use another disk by that path. The daemon makes no RAM disk and no connection for a member.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;

use ashlar_control::varlink::Reply;

use crate::access::Caller;
use crate::disk_path::{self, Identity};

/// The descriptors of a call, by the paths that they were opened by, and for whom the call is.
#[derive(Debug)]
pub struct PassedFiles {
    /// For whom the call is.
    pub caller: Caller,
    disks: RefCell<HashMap<String, OwnedFd>>,
}

impl PassedFiles {
    /// The descriptors that came with a call that says what they are.
    ///
    /// # Errors
    /// The reply to a call that says something else.
    pub fn new(paths: &[String], descriptors: Vec<OwnedFd>, caller: Caller) -> Result<Self, Reply> {
        // A path that stands for a RAM disk or a connection is not the name of a file: the daemon would open that later.
        let is_file = |path: &String| !disk_path::is_no_file(Path::new(path));
        if paths.len() != descriptors.len() || !paths.iter().all(is_file) {
            return Err(Reply::invalid_parameter("passed"));
        }
        let disks = RefCell::new(paths.iter().cloned().zip(descriptors).collect());
        Ok(Self { caller, disks })
    }

    /// What the daemon opens by itself: a disk that its owner has named before.
    pub fn by_daemon() -> Self {
        Self { caller: Caller::Owner, disks: RefCell::default() }
    }

    /// The identity of the disk that was opened by `path`.
    pub fn identity(&self, path: &str) -> Option<Identity> {
        self.disks.borrow().get(path).and_then(disk_path::identity_of)
    }

    /// The disk that was opened by `path`.
    pub fn take(&self, path: &str) -> Option<OwnedFd> {
        self.disks.borrow_mut().remove(path)
    }
}
