//! Exports: volumes under names.

use std::sync::{Arc, PoisonError, RwLock};

use ashlar_block::bio::Flags;
use ashlar_block::byte_volume::{ByteVolume, OpenVolume};
use ashlar_block::limits::Features;
use thiserror::Error;

use super::clients::{Client, Clients, Origin};
use super::context::{ChangeMaps, MetaContext};
use super::info::{BlockSize, ExportInfo};
use super::throttle::Throttle;
use ashlar_nbd::wire::{
    FLAG_CAN_MULTI_CONN, FLAG_HAS_FLAGS, FLAG_READ_ONLY, FLAG_ROTATIONAL, FLAG_SEND_CACHE,
    FLAG_SEND_FAST_ZERO, FLAG_SEND_FLUSH, FLAG_SEND_FUA, FLAG_SEND_TRIM, FLAG_SEND_WRITE_ZEROES,
    string,
};

/// The smallest preferred I/O size reported to clients, bytes.
const PREFERRED_BYTES: u32 = 4096;

/// Why an export was not added.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ExportError {
    /// Not a valid string of the protocol.
    #[error("an export's name and description are at most 4096 bytes without NUL")]
    BadString,
    /// The name is taken.
    #[error("an export named {0:?} exists")]
    Exists(String),
}

/// An exported volume.
pub struct Export {
    name: String,
    description: String,
    volume: Arc<ByteVolume>,
    read_only: bool,
    changes: ChangeMaps,
    /// Those of its [`Exports`].
    clients: Arc<Clients>,
}

impl Export {
    /// `volume` under `name`. All servers of the same volume must share this [`ByteVolume`]: it has the locks that
    /// serialize writes of parts of a block.
    ///
    /// # Errors
    /// The name is not a valid string of the protocol.
    pub fn new(
        name: impl Into<String>,
        volume: impl Into<Arc<ByteVolume>>,
    ) -> Result<Self, ExportError> {
        let (name, volume) = (name.into(), volume.into());
        string(name.as_bytes()).ok_or(ExportError::BadString)?;
        let clients = Arc::default();
        let (description, changes) = Default::default();
        Ok(Self { name, description, volume, read_only: false, changes, clients })
    }

    /// Sets the text that clients show to people.
    ///
    /// # Errors
    /// It is not a valid string of the protocol.
    pub fn described(mut self, description: impl Into<String>) -> Result<Self, ExportError> {
        self.description = description.into();
        string(self.description.as_bytes()).ok_or(ExportError::BadString)?;
        Ok(self)
    }

    /// Refuses write commands.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Offers metadata contexts of the changes of snapshots.
    #[must_use]
    pub fn with_changes(mut self, changes: ChangeMaps) -> Self {
        self.changes = changes;
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The volume.
    pub fn volume(&self) -> &ByteVolume {
        &self.volume
    }

    /// The export for one connection, from `origin`; `None` if its volume is withdrawn.
    pub(crate) fn open(&self, origin: Origin) -> Option<OpenExport> {
        let volume = self.volume.open()?;
        let client = self.clients.enter(&volume, origin);
        let (name, contexts) = (self.name.clone(), Vec::new());
        Some(OpenExport { name, _client: client, volume, contexts })
    }

    /// What the handshake reports to a client that connects now.
    pub fn info(&self) -> ExportInfo {
        let disk = self.volume.gateway().disk();
        let limits = disk.limits();
        // Nothing is cached above the volume: a flush on one connection covers writes acknowledged on any.
        let mut flags = FLAG_HAS_FLAGS
            | FLAG_SEND_FLUSH
            | FLAG_SEND_FUA
            | FLAG_SEND_CACHE
            | FLAG_CAN_MULTI_CONN;
        if limits.features.contains(Features::ROTATIONAL) {
            flags |= FLAG_ROTATIONAL;
        }
        if self.read_only || disk.is_read_only() {
            flags |= FLAG_READ_ONLY;
        } else {
            flags |= FLAG_SEND_WRITE_ZEROES;
            if disk.takes_zeroes(Flags::FAST) {
                flags |= FLAG_SEND_FAST_ZERO;
            }
            if !limits.max_hw_discard.is_zero() {
                flags |= FLAG_SEND_TRIM;
            }
        }
        ExportInfo {
            name: self.name.clone(),
            description: self.description.clone(),
            size: self.volume.size_bytes(),
            flags,
            block_size: BlockSize::with_preferred(limits.physical_block_bytes.max(PREFERRED_BYTES)),
            changes: self.changes.clone(),
        }
    }
}

/// An export that a connection uses.
pub(crate) struct OpenExport {
    name: String,
    /// Before the volume: while it is counted, the volume is open.
    _client: Client,
    /// This connection's opener: its next flush fails if the volume lost writes.
    volume: OpenVolume,
    contexts: Vec<MetaContext>,
}

impl OpenExport {
    /// Sets the contexts that the client has selected, in the order of their identifiers, from 1 on.
    pub(crate) fn select(&mut self, contexts: Vec<MetaContext>) {
        self.contexts = contexts;
    }

    /// The contexts that the client has selected.
    pub(crate) fn contexts(&self) -> &[MetaContext] {
        &self.contexts
    }

    /// The name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The volume.
    pub(crate) fn volume(&self) -> &ByteVolume {
        &self.volume
    }
}

/// The exports of a server, shared by all its connections and changed while it runs. A client chooses from the list as it
/// was when the connection began, among those that are left.
#[derive(Default)]
pub struct Exports {
    list: RwLock<Vec<Arc<Export>>>,
    /// The connections that use an export, also one that was removed.
    clients: Arc<Clients>,
    /// The log messages that clients of all servers cause.
    pub(crate) throttle: Throttle,
}

impl Exports {
    /// No exports.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an export.
    ///
    /// # Errors
    /// The name is taken.
    pub fn add(&self, mut export: Export) -> Result<(), ExportError> {
        export.clients = Arc::clone(&self.clients);
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        if list.iter().any(|other| other.name == export.name) {
            return Err(ExportError::Exists(export.name));
        }
        list.push(Arc::new(export));
        Ok(())
    }

    /// Hides an export from new connections and returns it; existing connections keep using it.
    pub fn remove(&self, name: &str) -> Option<Arc<Export>> {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        let index = list.iter().position(|export| export.name == name)?;
        Some(list.remove(index))
    }

    /// How many connections use an export now, of all servers.
    pub fn clients(&self) -> usize {
        self.clients.count()
    }

    /// The connections that use `volume` now, of all servers, by who is at their other end.
    pub fn clients_of(&self, volume: &ByteVolume) -> Vec<(Origin, usize)> {
        self.clients.of(volume)
    }

    /// The current exports.
    pub fn list(&self) -> Vec<Arc<Export>> {
        self.list.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
