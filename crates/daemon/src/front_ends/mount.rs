//! The mount, and the reactors that serve it.

use std::fmt::Display;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ashlar_block::LocalFuture;
use ashlar_block::byte_volume::Holes;
use ashlar_block::sync::lock;
use ashlar_client::interface::front_ends::PlaceStatus;
use ashlar_disks as disks;
use ashlar_disks::options::some_parsed;
use ashlar_engine::memory::available_bytes;
use ashlar_engine::{ReceiveError, Receiver, sleep};
use ashlar_export::fuse::dev::KernelDev;
use ashlar_export::fuse::gate::limited_bytes;
use ashlar_export::fuse::mount::{self as fuse_mount, Mount, MountError};
use ashlar_export::fuse::server as fuse;
use ashlar_export::fuse::session::Session;
use ashlar_export::fuse::tree::Owner;
use ashlar_stack::devices::Device;
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::lock::Mutex as AsyncMutex;
use futures_util::stream::FuturesUnordered;

use super::namespace::View;
use super::{FrontEnd, FrontEndOptions, Parts, Place};
use crate::cleanup_helper::{CleanupHelper, CleanupTasks};
use crate::ending::{Ending, Obstacle, PATIENCE};
use crate::error::{Error, FAILURE, Result};
use crate::options::options;

pub(crate) mod users;

/// How often unmounting is retried while the mount is in use.
const RETRY: Duration = Duration::from_millis(200);

type Servers = FuturesUnordered<Receiver<io::Result<()>>>;

options! {
    /// The options of the mount.
    #[allow(rustdoc::broken_intra_doc_links)]
    pub struct MountOptions {
        /// Mount volumes and their attributes on a directory
        #[arg(long, value_name = "DIR", help_heading = "Clients")]
        pub mount: Option<PathBuf>,

        /// Give other users access to the mount, as far as the files' modes allow
        #[arg(long, requires = "mount", help_heading = "Clients")]
        pub allow_other: bool,

        /// What becomes of a hole that a client punches into a volume of the mount, which may be a loop device's discard, where
        /// discarded ranges need not read as zeroes. fast: it is zeroed if all disks below do that without writing; zero: also
        /// if they have a command for it that may write; otherwise both refuse it. discard: it is discarded. Holes are also the write-zeroes
        /// of a loop device, and then ext4 and others rely on the zeroes: discard only if your file system does not [default: fast]
        #[arg(
            long,
            value_name = "WAY",
            requires = "mount",
            help_heading = "Clients",
            hide_short_help = true
        )]
        #[serde(deserialize_with = "some_parsed")]
        pub holes: Option<Holes>,
    }
}

impl FrontEndOptions for MountOptions {
    fn check(&self) -> std::result::Result<(), String> {
        let needs_mount = |option: &str| Err(format!("{option} needs a mount"));
        match &self.mount {
            None if self.allow_other => needs_mount("allow_other"),
            None if self.holes.is_some() => needs_mount("holes"),
            None | Some(_) => Ok(()),
        }
    }

    /// Checks, as far as possible, that the directory can be a mount point.
    fn check_surroundings(&self) -> Result<()> {
        self.mount.as_ref().map_or(Ok(()), |path| fuse_mount::check(path).map_err(cannot_mount))
    }

    fn serves(&self) -> bool {
        self.mount.is_some()
    }

    fn has_writers_here(&self) -> bool {
        self.mount.is_some()
    }

    /// Mounts on the directory, if there is one.
    ///
    /// # Errors
    /// Mounting failed.
    fn bind(&self, _: bool) -> Result<Option<Box<dyn Place>>> {
        let Some(path) = &self.mount else { return Ok(None) };
        let options = fuse_mount::MountOptions { allow_other: self.allow_other };
        let (mount, fd) = fuse_mount::mount(path, options).map_err(cannot_mount)?;
        let holes = self.holes.unwrap_or_default();
        // The sandbox refuses the question later.
        let available = available_bytes().unwrap_or(0);
        Ok(Some(Box::new(WaitingMount { mount, fd, holes, available, helper: None })))
    }
}

/// The failure to mount, with advice.
fn cannot_mount(error: MountError) -> Error {
    let hint = if let MountError::MountPoint { path, source } = &error
        && source.kind() == io::ErrorKind::NotFound
    {
        format!("make the directory first: mkdir -p {}", path.display())
    } else {
        "--nbd ADDRESS serves the volumes without a mount".into()
    };
    Error::plain("cannot mount", error).hint(hint)
}

/// A mount whose requests wait. Dropping it ends it.
struct WaitingMount {
    mount: Mount,
    fd: OwnedFd,
    /// What happens when clients punch holes.
    holes: Holes,
    /// The memory that was available at the start, bytes.
    available: u64,
    helper: Option<Arc<CleanupHelper>>,
}

impl Place for WaitingMount {
    fn leave_to(&self, tasks: &mut CleanupTasks) {
        tasks.mount = self.mount.place().cloned();
    }

    fn cleaned_up_by(&mut self, helper: &Arc<CleanupHelper>) {
        self.helper = Some(Arc::clone(helper));
        let helper = Arc::clone(helper);
        self.mount.ended_by(Box::new(move |lazy| helper.end_mount(lazy)));
    }

    /// Serves it from every reactor.
    fn start(self: Box<Self>, daemon: &Parts<'_>) -> Result<Box<dyn FrontEnd>> {
        let Self { mount, fd, holes, available, helper } = *self;
        let view = View { attributes: Arc::clone(daemon.attributes) };
        let owner = Owner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            since: ashlar_engine::wall_clock(),
        };
        let session = Arc::new(Session::new(view, owner, holes));
        let path = mount.path().to_owned();
        let servers = FuturesUnordered::new();
        let handles = daemon.engine.handles();
        let limited_bytes = limited_bytes(available, handles.len());
        for handle in handles {
            let fd: io::Result<OwnedFd> = fd.try_clone();
            let fd = fd.map_err(|error| Error::new("cannot mount", path.display(), error))?;
            let session = Arc::clone(&session);
            servers.push(handle.spawn_on(move || async move {
                let dev = Rc::new(KernelDev::new(fd)?);
                fuse::serve(dev, session, disks::runtime(), limited_bytes).await
            }));
        }
        let (mount, servers, users) = (mount.into(), servers.into(), Users { path, helper }.into());
        Ok(Box::new(ServedMount { mount, servers, session, fd, users }))
    }
}

/// What uses the mount.
struct Users {
    path: PathBuf,
    helper: Option<Arc<CleanupHelper>>,
}

impl Users {
    /// As far as they can be seen.
    fn visible(&self) -> Vec<String> {
        self.helper.as_ref().map(|helper| helper.users()).unwrap_or_default()
    }

    /// What the end waits for.
    fn obstacle(&self) -> String {
        let mut users = self.visible();
        if users.is_empty() {
            users.push("a process that cannot be seen".to_owned());
        }
        format!("{} is in use by {}", self.path.display(), users.join(", "))
    }
}

/// See the module text.
struct ServedMount {
    mount: Mutex<Mount>,
    servers: AsyncMutex<Servers>,
    session: Arc<Session<View>>,
    /// For notifications.
    fd: OwnedFd,
    users: Arc<Users>,
}

impl ServedMount {
    fn mount(&self) -> MutexGuard<'_, Mount> {
        lock(&self.mount)
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
            let users = Arc::clone(&self.users);
            ending.wait_for(Obstacle::Clients(Arc::new(move || users.obstacle())));
            // Both are multiples of the same unit.
            if waited == PATIENCE {
                let users = self.users.visible().join(", ");
                tracing::error!(%error, users, "still serving; send a second signal to force it");
            }
            waited += RETRY;
            if let Either::Right(_) = select(pin!(sleep(RETRY)), ending.forced()).await {
                let path = self.users.path.display();
                tracing::error!(%path, "forced shutdown while in use");
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

    fn place(&self, places: &mut PlaceStatus) {
        places.mount = Some(self.users.path.display().to_string());
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
