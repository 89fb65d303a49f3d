//! The mount, and the reactors that serve it.

use std::fmt::Display;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ashlar_block::LocalFuture;
use ashlar_block::byte_volume::Holes;
use ashlar_engine::{Engine, ReceiveError, Receiver, sleep};
use ashlar_export::fuse::dev::KernelDev;
use ashlar_export::fuse::mount::{Mount, MountOptions, MountPlace, mount};
use ashlar_export::fuse::server as fuse;
use ashlar_export::fuse::session::Session;
use ashlar_export::fuse::tree::Owner;
use ashlar_stack::attributes::Attributes;
use ashlar_stack::devices::Device;
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::lock::Mutex as AsyncMutex;
use futures_util::stream::FuturesUnordered;

use super::FrontEnd;
use super::namespace::View;
use crate::cleanup_helper::CleanupHelper;
use crate::disks;
use crate::ending::{Ending, Obstacle, PATIENCE};
use crate::error::{Error, FAILURE, Result};
use crate::mount_point::cannot_mount;

/// How often unmounting is retried while the mount is in use.
const RETRY: Duration = Duration::from_millis(200);

type Servers = FuturesUnordered<Receiver<io::Result<()>>>;

/// See the module text.
pub(crate) struct ServedMount {
    path: PathBuf,
    mount: Mutex<Mount>,
    servers: AsyncMutex<Servers>,
    session: Arc<Session<View>>,
    /// For notifications.
    fd: OwnedFd,
}

/// A mount whose requests wait until [`ServedMount::start`]. Dropping it ends it.
pub(crate) struct WaitingMount {
    mount: Mount,
    fd: OwnedFd,
}

impl WaitingMount {
    /// Mounts on `path`.
    ///
    /// # Errors
    /// Mounting failed.
    pub(crate) fn new(path: &Path, allow_other: bool) -> Result<Self> {
        let (mount, fd) = mount(path, MountOptions { allow_other }).map_err(cannot_mount)?;
        Ok(Self { mount, fd })
    }

    /// What is needed to end it.
    pub(crate) fn place(&self) -> Option<&MountPlace> {
        self.mount.place()
    }

    /// From now on the cleanup helper ends it.
    pub(crate) fn cleaned_up_by(&mut self, helper: &Arc<CleanupHelper>) {
        let helper = Arc::clone(helper);
        self.mount.ended_by(Box::new(move |lazy| helper.end_mount(lazy)));
    }
}

impl ServedMount {
    /// Serves a mount from every reactor of `engine`; `holes` says what happens when clients punch holes.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(crate) fn start(
        engine: &Engine,
        WaitingMount { mount, fd }: WaitingMount,
        holes: Holes,
        attributes: &Arc<Attributes>,
    ) -> Result<Self> {
        let view = View { attributes: Arc::clone(attributes) };
        let owner = Owner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            since: ashlar_engine::wall_clock(),
        };
        let session = Arc::new(Session::new(view, owner, holes));
        let path = mount.path().to_owned();
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
        Ok(Self { path, mount: mount.into(), servers: servers.into(), session, fd })
    }

    /// The mount point.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn mount(&self) -> MutexGuard<'_, Mount> {
        self.mount.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is unmounted, or a server fails.
    async fn used(&self, ending: &Ending) {
        match self.servers.lock().await.next().await {
            Some(ended) => told(ended, ending),
            None => std::future::pending().await,
        }
    }

    /// Unmounts it once it has no users, or detaches it when the shutdown is forced. Ends once nothing is left to serve.
    async fn end(&self, ending: &Ending) {
        if !self.once(|| self.mount().unmount(), ending).await {
            if let Err(error) = self.mount().detach() {
                tracing::error!(%error, "the mount remains");
            }
            return;
        }
        // The server of a reactor that has panicked never ends. Without users there is nothing left to serve.
        let all_ended = pin!(async {
            let mut servers = self.servers.lock().await;
            while let Some(ended) = servers.next().await {
                told(ended, ending);
            }
        });
        // Other mount namespaces may have copies of the mount, so that it does not end yet.
        let unused = pin!(async {
            sleep(RETRY).await;
            if !self.mount().is_connected() {
                // The servers are about to notice.
                return std::future::pending().await;
            }
            let retired =
                || self.session.retire().then_some(()).ok_or("a copy of the mount is in use");
            if self.once(retired, ending).await {
                tracing::warn!("other mount namespaces keep the mount, which fails from now on");
            }
        });
        select(all_ended, select(unused, ending.panicked())).await;
    }

    /// Waits until `attempt` succeeds; `false` if the shutdown was forced before.
    async fn once<E: Display>(
        &self,
        attempt: impl Fn() -> std::result::Result<(), E>,
        ending: &Ending,
    ) -> bool {
        let mut waited = Duration::ZERO;
        while let Err(error) = attempt() {
            ending.wait_for(Obstacle::Mount(self.path.clone()));
            // Both are multiples of the same unit.
            if waited == PATIENCE {
                let users = ending.users().join(", ");
                tracing::error!(%error, users, "still serving; send a second signal to force it");
            }
            waited += RETRY;
            if let Either::Right(_) = select(pin!(sleep(RETRY)), ending.forced()).await {
                tracing::error!(path = %self.path.display(), "forced shutdown while in use");
                ending.fail(FAILURE);
                return false;
            }
        }
        ending.wait_for(Obstacle::Nothing);
        true
    }
}

impl FrontEnd for ServedMount {
    /// Its tree is a view of the attributes, which have the volume already.
    fn offer(&self, _: &Device) -> std::result::Result<(), String> {
        Ok(())
    }

    fn withdraw(&self, _: &str) {}

    fn resized(&self, device: &Device) {
        fuse::tell_size(&self.fd, &self.session, &device.bytes);
    }

    fn ended<'a>(&'a self, ending: &'a Ending) -> LocalFuture<'a, ()> {
        Box::pin(self.used(ending))
    }

    fn drain<'a>(&'a self, ending: &'a Ending) -> LocalFuture<'a, ()> {
        Box::pin(self.end(ending))
    }
}

/// Handles the end of a server.
fn told(ended: std::result::Result<io::Result<()>, ReceiveError>, ending: &Ending) {
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::error!(%error, "serving the mount failed");
            ending.fail(FAILURE);
        }
        Err(ReceiveError) => {
            tracing::error!("a server of the mount has panicked: stopping");
            ending.panic();
        }
    }
}
