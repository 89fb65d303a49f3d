//! The state of the daemon behind its control socket, and the disks that its clients name.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ashlar_client::access::Caller;
use ashlar_client::interface::{control_error, refused, refused_by};
use ashlar_client::passed_files::PassedFiles;
use ashlar_control::varlink::Reply;
use ashlar_disks::{self as disks, Access, Identity, Opener};
use ashlar_stack::arrays::Volume;
use ashlar_stack::assemble::{Disk, Stack};
use ashlar_stack::incremental::{Turn, Turns};
use ashlar_view::attributes::Attributes;
use serde_json::json;

use crate::claimed::Identities;
use crate::clients::Clients;
use crate::confinement::Confinement;
use crate::ending::Ending;
use crate::machine::Machine;
use crate::scrubs::Scrubs;
use crate::speeds::Speeds;
use crate::stopping::Farewells;

/// The state behind the control socket.
pub(crate) struct Service {
    /// When it began to serve.
    pub(crate) begun: Instant,
    /// The machine that it runs on.
    pub(crate) machine: Box<dyn Machine>,
    pub(crate) stack: Arc<Stack>,
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) clients: Arc<Clients>,
    /// How disks are opened.
    pub(crate) opener: Opener,
    /// The sandbox that the daemon is in.
    pub(crate) confinement: Confinement,
    /// Each change of the stack takes a turn.
    pub(crate) turns: Arc<Turns>,
    /// Attributes to set once they exist, with their values.
    pub(crate) deferred: RefCell<Vec<(String, String)>>,
    /// The files and devices behind the disks' paths.
    pub(crate) identities: Identities,
    /// The daemon's end, which `Stop` begins. Once it has begun no array is started any more.
    pub(crate) ending: Ending,
    /// The speed of merges.
    pub(crate) speeds: RefCell<Speeds>,
    /// Scrubs of file systems on volumes.
    pub(crate) scrubs: Scrubs,
    /// The callers that the end waits for.
    pub(crate) farewells: Farewells,
}

impl Service {
    /// Whether the disk that was opened by `path` is `wanted`, if that is known.
    pub(crate) fn is_opened_by(&self, path: &str, wanted: Option<&Identity>) -> bool {
        wanted.is_some() && self.identities.borrow().get(path) == wanted
    }

    /// The file or device at a path that a client gave, if there is one.
    pub(crate) async fn identity(&self, path: &Path) -> Result<Option<Identity>, Reply> {
        self.machine.identity(path).await.map_err(refused_by)
    }

    /// As [`Self::identity`], for a disk that the daemon may have: if its file system does not respond, only its names count.
    pub(crate) async fn seen(&self, path: &Path) -> Option<Identity> {
        self.machine.identity(path).await.unwrap_or_else(|error| {
            tracing::warn!("{error}");
            None
        })
    }

    /// The right to change the stack. Once the daemon is about to end this fails, so that no array is left running.
    pub(crate) async fn turn(&self) -> Result<Turn, Reply> {
        self.turns.take().await.map_err(|why| refused(why, None))
    }

    /// The running array with this name.
    pub(crate) fn volume(&self, name: &str) -> Result<Volume, Reply> {
        let volume = self.stack.arrays.find(name);
        volume.ok_or_else(|| match self.stack.arrays.find_waiting(name) {
            Some(array) => refused(
                format_args!("{} is inactive: it waits for members", array.name.path()),
                Some("ashlar md incremental hands them in, or starts it with --run --scan"),
            ),
            None => control_error("NotFound", json!({ "path": name })),
        })
    }

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
            return self.opener.adopt(descriptor, path).await.map_err(refused_by);
        }
        match passed.caller {
            Caller::Member { user } if disks::is_no_file(path) => {
                let what = if disks::is_ram(path) { "take memory for" } else { "connect to" };
                let why = format!("user {user} may not have this daemon {what} {shown}");
                return Err(refused(why, Some("only root and the daemon's user may")));
            }
            Caller::Owner if !self.confinement.is_on() || disks::is_ram(path) => {
                let opened = self.machine.open(path, &self.opener).await;
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
        let access = if self.opener.access == Access::Write { "write" } else { "read" };
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
