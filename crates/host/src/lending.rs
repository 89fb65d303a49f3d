//! Disks that clients lend to a daemon in its sandbox, which can open none.
//!
//! ```text
//! client                                        daemon
//! a call that names a disk ------------------->
//!                          <------------------- NotOpened, with the path and the access it needs
//! opens and locks the disk, with its own rights
//! the call again, the path in `lent`, the
//! descriptor beside it (SCM_RIGHTS) ---------->  checks the descriptor, takes the lock, and uses it
//! ```
//!
//! A client lends only a disk that its user named in this call: a daemon that has been taken over gets no other file. The lock
//! and the claim belong to the open file, so the disk is never without them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;

use ashlar_engine::net::MAX_FILES;
use ashlar_stack::assemble::Disk;
use serde_json::json;

use crate::disks::{self, Access, Identity};
use crate::interface::{control_error, refused, refused_by};
use crate::service::Service;
use crate::varlink::Reply;

/// The most descriptors in a call.
pub(crate) const MAX_LENT: usize = MAX_FILES;

/// The descriptors of a call, by the paths that they were opened by.
#[derive(Debug, Default)]
pub(crate) struct Lent(RefCell<HashMap<String, OwnedFd>>);

impl Lent {
    /// The descriptors that came with a call that says what they are.
    ///
    /// # Errors
    /// The reply to a call that says something else.
    pub(crate) fn new(paths: &[String], descriptors: Vec<OwnedFd>) -> Result<Self, Reply> {
        if paths.len() != descriptors.len() {
            return Err(Reply::invalid_parameter("lent"));
        }
        Ok(Self(RefCell::new(paths.iter().cloned().zip(descriptors).collect())))
    }

    /// The identity of the disk that was opened by `path`.
    pub(crate) fn identity(&self, path: &str) -> Option<Identity> {
        self.0.borrow().get(path).and_then(disks::identity_of)
    }

    fn take(&self, path: &str) -> Option<OwnedFd> {
        self.0.borrow_mut().remove(path)
    }
}

impl Service {
    /// Opens a disk that the daemon does not have, or takes the one that was lent.
    ///
    /// # Errors
    /// It cannot be opened, or the caller has to lend it.
    pub(crate) async fn open_or_take(&self, path: &Path, lent: &Lent) -> Result<Disk, Reply> {
        let shown = path.display();
        if let Some(descriptor) = lent.take(&shown.to_string()) {
            return disks::adopt(descriptor, path, self.access, self.direct).map_err(refused_by);
        }
        if !self.confinement.is_on() || disks::is_ram(path) {
            let opened = disks::open_in_task(path, self.access, self.direct).await;
            return opened.map_err(refused_by);
        }
        if disks::is_on_network(path) {
            let why = format!(
                "cannot open {shown}: the daemon is in its sandbox, and connects to nothing"
            );
            return Err(refused(why, Some("serve it from the start, or with --no-sandbox")));
        }
        let access = if self.access == Access::Write { "write" } else { "read" };
        Err(control_error("NotOpened", json!({ "path": shown.to_string(), "access": access })))
    }
}
