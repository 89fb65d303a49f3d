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
use ashlar_engine::net::MAX_FILES;
use ashlar_stack::assemble::Disk;
use serde_json::json;

use crate::access::Caller;
use crate::disks::{self, Access, Identity};
use crate::interface::{control_error, refused, refused_by};
use crate::service::Service;

/// The most descriptors in a call.
pub(crate) const MAX_PASSED: usize = MAX_FILES;

/// The descriptors of a call, by the paths that they were opened by, and for whom the call is.
#[derive(Debug)]
pub(crate) struct PassedFiles {
    caller: Caller,
    disks: RefCell<HashMap<String, OwnedFd>>,
}

impl PassedFiles {
    /// The descriptors that came with a call that says what they are.
    ///
    /// # Errors
    /// The reply to a call that says something else.
    pub(crate) fn new(
        paths: &[String],
        descriptors: Vec<OwnedFd>,
        caller: Caller,
    ) -> Result<Self, Reply> {
        // A path that stands for a RAM disk or a connection is not the name of a file: the daemon would open that later.
        let is_file = |path: &String| !disks::is_no_file(Path::new(path));
        if paths.len() != descriptors.len() || !paths.iter().all(is_file) {
            return Err(Reply::invalid_parameter("passed"));
        }
        let disks = RefCell::new(paths.iter().cloned().zip(descriptors).collect());
        Ok(Self { caller, disks })
    }

    /// What the daemon opens by itself: a disk that its owner has named before.
    pub(crate) fn by_daemon() -> Self {
        Self { caller: Caller::Owner, disks: RefCell::default() }
    }

    /// The identity of the disk that was opened by `path`.
    pub(crate) fn identity(&self, path: &str) -> Option<Identity> {
        self.disks.borrow().get(path).and_then(disks::identity_of)
    }

    fn take(&self, path: &str) -> Option<OwnedFd> {
        self.disks.borrow_mut().remove(path)
    }
}

impl Service {
    /// Opens a disk that the daemon does not have, or takes the one that was passed.
    ///
    /// # Errors
    /// It cannot be opened, or the caller has to pass it.
    pub(crate) async fn open_or_take(
        &self,
        path: &Path,
        passed: &PassedFiles,
    ) -> Result<Disk, Reply> {
        let shown = path.display();
        if let Some(descriptor) = passed.take(&shown.to_string()) {
            let seen = self.machine.identity(path).await.map_err(refused_by)?;
            if seen.is_some() && seen != disks::identity_of(&descriptor) {
                let why = format!("cannot use {shown}: the daemon sees another file there");
                return Err(refused(why, None));
            }
            return disks::adopt(descriptor, path, self.access, self.direct).map_err(refused_by);
        }
        match passed.caller {
            Caller::Member { user } if disks::is_no_file(path) => {
                let what = if disks::is_ram(path) { "take memory for" } else { "connect to" };
                let why = format!("user {user} may not have this daemon {what} {shown}");
                return Err(refused(why, Some("only root and the daemon's user may")));
            }
            Caller::Owner if !self.confinement.is_on() || disks::is_ram(path) => {
                let opened = self.machine.open(path, self.access, self.direct).await;
                return opened.map_err(refused_by);
            }
            Caller::Owner if disks::is_on_network(path) => {
                let why = format!(
                    "cannot open {shown}: the daemon is in its sandbox, and connects to nothing"
                );
                return Err(refused(why, Some("serve it from the start, or with --no-sandbox")));
            }
            Caller::Owner | Caller::Member { .. } => {}
        }
        let access = if self.access == Access::Write { "write" } else { "read" };
        Err(control_error("NotOpened", json!({ "path": shown.to_string(), "access": access })))
    }

    /// Whether the disk held as `path` is what a user calls `disk`, which is `wanted` as far as the daemon sees it. If the daemon has that
    /// file or device, it alone is meant: the path of another one may be the word of the client that passed it.
    pub(crate) fn is_called(&self, path: &str, disk: &str, wanted: Option<&Identity>) -> bool {
        let known = self.identities.borrow();
        if wanted.is_some() && known.values().any(|held| Some(held) == wanted) {
            return known.get(path) == wanted;
        }
        path == disk || self.stack.devices.name(path).as_deref() == Some(disk)
    }

    /// Refuses a new disk by the path of one that is in use: the daemon would forget that one. (One that has failed may be replaced.)
    ///
    /// # Errors
    /// It has such a disk.
    pub(crate) fn refuse_namesake(&self, path: &str) -> Result<(), Reply> {
        let is_file = !disks::is_no_file(Path::new(path));
        let all = self.stack.devices.all();
        if is_file && all.iter().any(|held| held.path == path && !held.role.is_free()) {
            let why = format!("{path} is in use: by that path the daemon has another disk");
            return Err(refused(why, None));
        }
        Ok(())
    }
}
