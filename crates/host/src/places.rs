//! The places where clients find a daemon: its sockets and its mount.
//!
//! A daemon makes them before it reads the first byte of a disk, since this takes rights that it needs for nothing else.
//! Early clients wait: connections queue, and the kernel holds requests to the mount.

use std::path;
use std::sync::Arc;

use ashlar_client::access::Access;
use ashlar_engine::net::BoundSocket;
use ashlar_engine::socket_file::SocketFile;
use ashlar_export::nbd::budget::Budget;

use crate::cleanup_helper::{CleanupHelper, CleanupTasks};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::front_ends::mount::WaitingMount;
use crate::front_ends::nbd;
use crate::metrics;
use crate::options::Listen;

/// See the module text. Dropping them ends the mount, and removes the files of sockets.
pub(crate) struct Places {
    pub(crate) mount: Option<WaitingMount>,
    pub(crate) control: BoundSocket,
    pub(crate) metrics: Option<BoundSocket>,
    pub(crate) nbd: Vec<(Listen, BoundSocket)>,
    /// The memory for requests of NBD clients: how much there is, /proc says.
    pub(crate) budget: Arc<Budget>,
}

impl Places {
    /// Makes them. The mount comes last: so it is visible for the shortest time if another place cannot be made.
    ///
    /// # Errors
    /// One cannot be made; the others are removed again.
    pub(crate) fn make(config: &Config, access: &Access) -> Result<Self> {
        let control = access.bind(config.control.as_deref())?;
        let metrics = config.metrics.as_ref().map(metrics::http::bind).transpose()?;
        let nbd = nbd::bind(config)?;
        let mount = config.mount.as_ref().map(|path| WaitingMount::new(path, config.allow_other));
        let budget = Arc::new(config.nbd_options.budget());
        Ok(Self { mount: mount.transpose()?, control, metrics, nbd, budget })
    }

    /// Starts the process that ends the mount and removes the sockets' files from now on, and starts workers for a daemon in its
    /// sandbox; `None` for a daemon outside without mount and files.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn keep(&mut self, is_confined: bool) -> Result<Option<Arc<CleanupHelper>>> {
        let mount = self.mount.as_ref().and_then(WaitingMount::place).cloned();
        let mut tasks = CleanupTasks { mount, files: Vec::new() };
        for file in self.files() {
            // The cleanup helper is in another directory.
            let path = path::absolute(file.path());
            let failed = |why| Error::new("cannot find", file.path().display(), why);
            tasks.files.push((path.map_err(failed)?, file.identity()));
        }
        if tasks.is_empty() && !is_confined {
            return Ok(None);
        }
        let files = tasks.files.clone();
        let helper = CleanupHelper::start(tasks)?;
        for (file, (path, identity)) in self.files().zip(files) {
            let helper = Arc::clone(&helper);
            file.removed_by(Box::new(move || helper.remove(&path, identity)));
        }
        if let Some(mount) = &mut self.mount {
            mount.cleaned_up_by(&helper);
        }
        Ok(Some(helper))
    }

    fn files(&mut self) -> impl Iterator<Item = &mut SocketFile> {
        let nbd = self.nbd.iter_mut().map(|(_, bound)| bound);
        std::iter::once(&mut self.control).chain(nbd).filter_map(BoundSocket::file_mut)
    }
}
