//! The mount, and the reactors that serve it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ashlar_engine::{Cancelled, Engine, Receiver, sleep};
use ashlar_export::fuse::dev::KernelDev;
use ashlar_export::fuse::mount::{Mount, MountError, MountOptions, mount};
use ashlar_export::fuse::server as fuse;
use ashlar_export::fuse::session::Session;
use ashlar_export::fuse::tree::Owner;
use ashlar_stack::attributes::Attributes;
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;

use crate::disks;
use crate::ending::{Ending, Obstacle, PATIENCE};
use crate::error::{Error, FAILURE, Result};
use crate::namespace::View;
use crate::users;

/// How often unmounting is retried while the mount is in use.
const RETRY: Duration = Duration::from_millis(200);

/// See the module text.
pub(crate) struct ServedMount {
    mount: Mount,
    servers: FuturesUnordered<Receiver<io::Result<()>>>,
}

/// Checks in advance, as far as possible, that `path` can be a mount point.
///
/// # Errors
/// It cannot.
pub(crate) fn check(path: &Path) -> Result<()> {
    ashlar_export::fuse::mount::check(path).map_err(cannot_mount)
}

fn cannot_mount(error: MountError) -> Error {
    Error::plain("cannot mount", error).hint("--nbd ADDRESS serves the volumes without a mount")
}

impl ServedMount {
    /// Mounts on `path` and serves from every reactor of `engine`.
    ///
    /// # Errors
    /// Mounting failed.
    pub(crate) fn start(
        engine: &Engine,
        path: &Path,
        allow_other: bool,
        attributes: &Arc<Attributes>,
    ) -> Result<Self> {
        let view = View { attributes: Arc::clone(attributes) };
        let owner = Owner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            since: ashlar_engine::wall_clock(),
        };
        let session = Arc::new(Session::new(view, owner));
        let (mount, fd) = mount(path, MountOptions { allow_other }).map_err(cannot_mount)?;
        let servers = FuturesUnordered::new();
        for handle in engine.handles() {
            let fd: io::Result<OwnedFd> = fd.try_clone();
            let fd = fd.map_err(|error| Error::new("cannot mount", path.display(), error))?;
            let session = Arc::clone(&session);
            servers.push(handle.spawn_on(move || async move {
                let dev = Rc::new(KernelDev::new(fd)?);
                fuse::serve(dev, session, disks::runtime()).await
            }));
        }
        Ok(Self { mount, servers })
    }

    /// The mount point.
    pub(crate) fn path(&self) -> &Path {
        self.mount.path()
    }

    /// Waits until it is unmounted, a server fails, or the end is requested.
    pub(crate) async fn used_until(&mut self, ending: &Ending) {
        if let Either::Left((Some(ended), _)) = select(self.servers.next(), ending.wanted()).await {
            told(ended, ending);
        }
    }

    /// Unmounts it once it has no users, or detaches it when the end is forced.
    pub(crate) async fn end(mut self, ending: &Ending) {
        let path = self.path().to_owned();
        let mut waited = Duration::ZERO;
        while let Err(error) = self.mount.unmount() {
            ending.wait_for(Obstacle::Mount(path.clone()));
            // Both are multiples of the same unit.
            if waited == PATIENCE {
                let users = users::users(&path).join(", ");
                tracing::error!(%error, users, "still serving; a second signal ends this by force");
            }
            waited += RETRY;
            if let Either::Right(_) = select(pin!(sleep(RETRY)), ending.forced()).await {
                tracing::error!(path = %path.display(), "ended by force while in use");
                ending.fail(FAILURE);
                if let Err(error) = self.mount.detach() {
                    tracing::error!(%error, "the mount is left behind");
                }
                return;
            }
        }
        ending.wait_for(Obstacle::Nothing);
        // The server of a reactor that has panicked never ends. Without users there is nothing left to serve.
        let all_ended = pin!(async {
            while let Some(ended) = self.servers.next().await {
                told(ended, ending);
            }
        });
        select(all_ended, select(ending.forced(), ending.panicked())).await;
    }
}

/// Handles the end of a server.
fn told(ended: std::result::Result<io::Result<()>, Cancelled>, ending: &Ending) {
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::error!(%error, "serving the mount failed");
            ending.fail(FAILURE);
        }
        Err(Cancelled) => {
            tracing::error!("a server of the mount has panicked: stopping");
            ending.panic();
        }
    }
}
