//! The open volumes of this worker.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::channel::{Queues, RequestMemory, Server};
use super::taskq::Parameters;
use crate::dataset::Resize;
use crate::ffi::Library;
use crate::ffi::kernel::Zfs;
use crate::protocol::{OpenedVolume, Refusal};
use crate::zvol::{OpenError, SharedMemory, Volume, Window};

/// Open volumes by number, and the threads for their I/O.
pub(super) struct Volumes {
    open: BTreeMap<u32, OpenVolume>,
    next: u32,
    parameters: Parameters,
    queues: Arc<Queues>,
    /// The shared memory of the daemon.
    shared: Option<SharedMemory>,
    /// Windows of channels that are not attached yet, by number.
    windows: BTreeMap<u32, Window>,
}

struct OpenVolume {
    name: String,
    server: Server,
}

impl Volumes {
    /// Without open volumes.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn new(parameters: Parameters) -> Result<Self, Refusal> {
        let queues = Arc::new(start(&parameters)?);
        let (open, windows) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { open, next: 0, parameters, queues, shared: None, windows })
    }

    /// Sets the shared memory that channels attached later read from.
    pub(super) fn share(&mut self, shared: SharedMemory) {
        self.shared = Some(shared);
    }

    /// Keeps a window for the channel that will be attached with it.
    pub(super) fn add_window(&mut self, number: u32, window: Window) {
        self.windows.insert(number, window);
    }

    /// Changes a parameter of the task queues; `false` if `name` is not one. `zvol_request_sync`
    /// takes effect at once, thread numbers for volumes opened later.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn set_parameter(&mut self, name: &str, value: u64) -> Result<bool, Refusal> {
        let mut parameters = self.parameters;
        if !super::parameters::set(&mut parameters, name, value) {
            return Ok(false);
        }
        if name == "zvol_request_sync" {
            self.queues.set_synchronous(parameters.is_synchronous);
        } else {
            self.queues = Arc::new(start(&parameters)?);
        }
        self.parameters = parameters;
        Ok(true)
    }

    /// Opens a volume, and replays its log.
    ///
    /// # Errors
    /// It does not exist, is open already, or its log cannot be replayed.
    pub(super) fn open(
        &mut self,
        library: &Library,
        name: &str,
        read_only: bool,
    ) -> Result<OpenedVolume, Refusal> {
        let volume =
            Volume::open(library, name, read_only).map_err(|error| refused(name, &error))?;
        let opened = opened(self.next, &volume);
        self.next += 1;
        let server = Server::new(volume, Arc::clone(&self.queues));
        self.open.insert(opened.volume, OpenVolume { name: name.to_owned(), server });
        Ok(opened)
    }

    /// Replays a volume's log before an operation that depends on the volume's contents: otherwise
    /// a snapshot would lack that data, and in a resized or rolled-back volume it would be written
    /// later, beyond the end or over the restored data. Other datasets, and missing ones, are left
    /// to the command.
    ///
    /// # Errors
    /// Its log cannot be replayed.
    pub(super) fn settle(&self, library: &Library, name: &str) -> Result<(), Refusal> {
        let replayed = match self.find(name) {
            Some(open) => open.not_replayed().map_or(Ok(()), |error| Err(OpenError::Replay(error))),
            None => Volume::replay_closed(library, name),
        };
        match replayed {
            Ok(()) | Err(OpenError::Refused(Errno::INVAL | Errno::NOENT) | OpenError::Name) => {
                Ok(())
            }
            Err(error) => Err(refused(name, &error)),
        }
    }

    /// Applies a volume's current `readonly` property.
    ///
    /// # Errors
    /// There is no such volume, or it could not be opened again: its I/O fails from then on.
    pub(super) fn reopen(&self, volume: u32) -> Result<OpenedVolume, Refusal> {
        let OpenVolume { name, server } = self.open.get(&volume).ok_or_else(|| not_open(volume))?;
        server.volume().while_suspended(|| ()).map_err(|error| refused(name, &error))?;
        Ok(opened(volume, server.volume()))
    }

    /// Serves requests for a volume from a channel, whose data are in the window with this number, or in the daemon's memory.
    ///
    /// # Errors
    /// There is no such volume or window, or the channel is invalid.
    pub(super) fn attach(
        &mut self,
        volume: u32,
        channel: OwnedFd,
        window: Option<u32>,
    ) -> Result<(), Refusal> {
        let memory = match window {
            None => RequestMemory::OfPeer { shared: self.shared },
            Some(number) => match self.windows.remove(&number) {
                Some(window) => RequestMemory::Window(window),
                None => return Err(Refusal::invalid(format!("there is no window {number}"))),
            },
        };
        let open = self.open.get_mut(&volume).ok_or_else(|| not_open(volume))?;
        open.server.attach(channel, memory).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Refusal::new(format_args!("cannot attach to '{}'", open.name), error, errno)
        })
    }

    /// Overwrites a volume with libzpool's plain writes; returns the duration in nanoseconds.
    ///
    /// # Errors
    /// There is no such volume, or it cannot be written.
    pub(super) fn write_plainly(&self, name: &str, write_bytes: u32) -> Result<u64, Refusal> {
        let volume = self.find(name);
        let volume = volume.ok_or_else(|| Refusal::invalid(format!("'{name}' is not open")))?;
        let took = volume.write_plainly(write_bytes);
        let took = took
            .map_err(|errno| Refusal::new(format_args!("cannot write '{name}'"), errno, errno))?;
        Ok(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Finishes a volume's I/O and closes it.
    ///
    /// # Errors
    /// There is no such volume.
    pub(super) fn close(&mut self, volume: u32) -> Result<(), Refusal> {
        let open = self.open.remove(&volume).ok_or_else(|| not_open(volume))?;
        open.server.close();
        Ok(())
    }

    /// Finishes all I/O and closes all volumes.
    pub(super) fn close_all(&mut self) {
        for (_, open) in std::mem::take(&mut self.open) {
            open.server.close();
        }
    }

    /// Names of open volumes that are `name` or below it.
    pub(super) fn open_below(&self, name: &str) -> Vec<&str> {
        let below = |open: &&str| {
            open.strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
        };
        self.open.values().map(|open| open.name.as_str()).filter(below).collect()
    }

    /// The open volume with this name.
    pub(super) fn find(&self, name: &str) -> Option<&Volume> {
        self.open.values().find(|open| open.name == name).map(|open| open.server.volume())
    }
}

/// Resizes open and closed volumes.
pub(super) struct Resizer<'a> {
    pub(super) zfs: &'a Zfs,
    pub(super) volumes: &'a Volumes,
}

impl Resize for Resizer<'_> {
    fn resize(&self, name: &str, volsize_bytes: u64) -> Result<(), Errno> {
        match self.volumes.find(name) {
            Some(volume) => volume.resize(volsize_bytes, |objset| {
                self.zfs.resize_owned_volume(objset, volsize_bytes)
            }),
            None => self.zfs.resize_closed_volume(name, volsize_bytes),
        }
    }
}

fn start(parameters: &Parameters) -> Result<Queues, Refusal> {
    Queues::start(parameters).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
        Refusal::new("cannot start the threads of volumes", error, errno)
    })
}

/// The description of the volume with this number, for the daemon.
fn opened(number: u32, volume: &Volume) -> OpenedVolume {
    OpenedVolume {
        volume: number,
        volsize_bytes: volume.volsize_bytes(),
        volblocksize_bytes: volume.volblocksize_bytes(),
        read_only: volume.is_read_only(),
        guid: volume.guid(),
    }
}

fn not_open(volume: u32) -> Refusal {
    Refusal::invalid(format!("volume {volume} is not open"))
}

/// ZFS's message for a volume that cannot be opened.
pub(super) fn refused(name: &str, error: &OpenError) -> Refusal {
    let what = format!("cannot open '{name}'");
    match error {
        OpenError::Refused(Errno::INVAL) => {
            Refusal::new(&what, "operation not applicable to datasets of this type", Errno::INVAL)
                .with_hint("only volumes and their snapshots are opened")
        }
        OpenError::Refused(errno) => Refusal::of_dataset(&what, *errno),
        OpenError::Replay(error) => Refusal::new(&what, error, error.errno())
            .with_hint("nothing of the log is lost: reconnect the disks that cannot be read, or make room in the pool, and open the volume again. \
                Read-only the volume opens as it was before the log. To discard the log, import the pool with the parameter zil_replay_disable=1"),
        OpenError::Library(_) | OpenError::Name => Refusal::new(&what, error, Errno::INVAL),
    }
}
