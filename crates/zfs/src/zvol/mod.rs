//! A volume: the layer that OpenZFS has in its kernel module only (module/zfs/zvol.c), on libzpool.
//!
//! # Theory
//!
//! A volume is an objset with two objects: the data, in blocks of `volblocksize`, and its properties, of which "size" is
//! `volsize`. Reads and writes go through the DMU's buffers ([`io`]). A write is answered when it is in an open transaction
//! group; what a flush promises is kept by the intent log ([`log`]), which after a crash is done again when the volume is
//! opened ([`replay`]). All three formats are those of the kernel's zvol: either opens what the other left.
//!
//! Order of locks: the volume's gate (shared by I/O, exclusive for suspending), then the range, then a transaction. The
//! log's callback for data runs inside a commit and takes ranges only: therefore a commit is never called with a range held.

mod ceiling;
pub(crate) mod freed;
pub(crate) mod io;
pub(crate) mod log;
pub(crate) mod range;
pub(crate) mod replay;
pub(crate) mod turns;

use std::ffi::CString;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use rustix::io::Errno;
use thiserror::Error;

use crate::ffi::dmu::{Api, Objset};
use crate::ffi::zil::Log;
use crate::ffi::{Library, LoadError};
use range::RangeLocks;

pub use crate::ffi::lent::Lent;
pub use crate::ffi::memory::{Peer, Segments};
pub use crate::ffi::replay::ReplayError;

/// What is read ahead at both ends of a volume when it is opened: `zvol_prefetch_bytes`. That is where partition
/// tables and signatures are.
const PREFETCH_BYTES: u64 = 128 << 10;

/// Why a volume cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// libzpool is not what it seems.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// A name with a zero byte in it.
    #[error("the name of a volume has no zero bytes")]
    Name,
    /// ENOENT: there is none. EBUSY: it is open already. EINVAL: it is no volume. EACCES: its key is not loaded.
    #[error("{0}")]
    Refused(#[from] Errno),
    /// What was flushed before a crash could not all be written again. The log stays as it is.
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

/// An open volume, or snapshot of one.
pub struct Volume {
    api: Arc<Api>,
    name: CString,
    asked_read_only: bool,
    /// Closed (`None`) or open. I/O shares it; suspending and closing wait for the I/O.
    gate: RwLock<Option<Live>>,
    locks: Arc<RangeLocks>,
    volsize_bytes: AtomicU64,
}

/// What an open volume has of libzpool. The log goes before the objset.
struct Live {
    /// `None`: it cannot be written.
    log: Option<Log>,
    objset: Objset,
    /// Its log could not be replayed, and it was opened nevertheless: to be read.
    not_replayed: Option<ReplayError>,
}

impl Live {
    /// Closes the log, and writes everything out.
    fn end(self) {
        let Self { log, objset, not_replayed: _ } = self;
        if let Some(log) = log {
            drop(log);
            objset.wait_synced();
        }
    }
}

impl Volume {
    /// Opens a volume for I/O. What its log has is done again first, if the pool can be written; where that fails, the volume can
    /// still be opened with `read_only`: it is then as it was before what could not be replayed.
    ///
    /// It cannot be written if `read_only` says so, or its `readonly`, or if it is a snapshot or the pool is imported read-only.
    /// The process has called `kernel_init()`, and imported the pool.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(library: &Library, name: &str, read_only: bool) -> Result<Self, OpenError> {
        let volume = Self {
            api: Arc::new(Api::load(library)?),
            name: CString::new(name).map_err(|_| OpenError::Name)?,
            asked_read_only: read_only,
            gate: RwLock::new(None),
            locks: Arc::default(),
            volsize_bytes: AtomicU64::new(0),
        };
        volume.resume()?;
        Ok(volume)
    }

    /// Does again what the log of a volume says that is not open: before something is done to it that counts on what it has. A
    /// kernel has no such volumes, it replays all of them soon after the import.
    ///
    /// # Errors
    /// [`OpenError`]; EINVAL if it is no volume.
    pub(crate) fn replay_closed(library: &Library, name: &str) -> Result<(), OpenError> {
        let api = Arc::new(Api::load(library)?);
        let name = CString::new(name).map_err(|_| OpenError::Name)?;
        let objset = Objset::own(&api, &name, false)?;
        Ok(replay::replay(&objset)?)
    }

    /// Lets go of the objset, with everything written, so that it can be rolled back or received into. I/O waits until
    /// the end of the I/O that runs, and then fails with ENXIO until [`Volume::resume`].
    pub fn suspend(&self) {
        let mut gate = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(live) = gate.take() {
            live.end();
        }
    }

    /// Opens the objset again after [`Volume::suspend`].
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn resume(&self) -> Result<(), OpenError> {
        let mut gate = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        if gate.is_none() {
            *gate = Some(self.start()?);
        }
        Ok(())
    }

    /// Does something while the objset is let go of, as after [`Volume::suspend`]. I/O waits until it is open again.
    ///
    /// # Errors
    /// As [`Volume::open`]: it was done, but the volume is closed.
    pub(crate) fn while_suspended<T>(&self, act: impl FnOnce() -> T) -> Result<T, OpenError> {
        let mut gate = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let Some(live) = gate.take() else { return Ok(act()) };
        live.end();
        let result = act();
        *gate = Some(self.start()?);
        Ok(result)
    }

    /// Changes its size with `change`. I/O waits meanwhile; what is beyond the end fails with EIO afterwards.
    ///
    /// # Errors
    /// ENXIO: it is closed. EROFS: it cannot be written. Those of `change`.
    pub(crate) fn resize(
        &self,
        volsize_bytes: u64,
        change: impl FnOnce(&Objset) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let gate = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let live = gate.as_ref().ok_or(Errno::NXIO)?;
        if live.log.is_none() {
            return Err(Errno::ROFS);
        }
        change(&live.objset)?;
        self.volsize_bytes.store(volsize_bytes, Ordering::Release);
        Ok(())
    }

    fn start(&self) -> Result<Live, OpenError> {
        let is_snapshot = self.name.as_bytes().contains(&b'@');
        let objset = Objset::own(&self.api, &self.name, self.asked_read_only || is_snapshot)?;
        let can_write = objset.is_pool_writable() && !objset.is_snapshot();
        let mut not_replayed = None;
        if can_write {
            match replay::replay(&objset) {
                Ok(()) => {}
                Err(error) if self.asked_read_only => {
                    tracing::warn!(volume = self.name(), %error);
                    replay::warn_of_pending(&objset, self.name());
                    not_replayed = Some(error);
                }
                Err(error) => return Err(OpenError::Replay(error)),
            }
        } else if !is_snapshot {
            replay::warn_of_pending(&objset, self.name());
        }
        let volsize_bytes = objset.volsize_bytes()?;
        let is_written =
            can_write && !self.asked_read_only && !objset.is_set_read_only(&self.name)?;
        let log = is_written.then(|| Log::open(&objset, &self.locks)).transpose()?;
        self.volsize_bytes.store(volsize_bytes, Ordering::Release);
        objset.prefetch(0, PREFETCH_BYTES.min(volsize_bytes));
        objset.prefetch(
            volsize_bytes.saturating_sub(PREFETCH_BYTES),
            PREFETCH_BYTES.min(volsize_bytes),
        );
        Ok(Live { log, objset, not_replayed })
    }

    /// Ends the I/O: waits for what runs, closes the log, writes everything out. Later I/O fails with ENXIO.
    pub fn close(&self) {
        self.suspend();
    }

    /// Its size.
    pub fn volsize_bytes(&self) -> u64 {
        self.volsize_bytes.load(Ordering::Acquire)
    }

    /// Its block size; 0 if it is closed.
    pub fn volblocksize_bytes(&self) -> u32 {
        self.live().as_ref().map_or(0, |live| live.objset.block_bytes())
    }

    /// It cannot be written.
    pub fn is_read_only(&self) -> bool {
        self.live().as_ref().is_none_or(|live| live.log.is_none())
    }

    /// Why its log is not replayed, though its pool can be written.
    pub(crate) fn not_replayed(&self) -> Option<ReplayError> {
        self.live().as_ref().and_then(|live| live.not_replayed)
    }

    /// Its full name.
    pub fn name(&self) -> &str {
        self.name.to_str().unwrap_or_default()
    }

    fn live(&self) -> RwLockReadGuard<'_, Option<Live>> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Volume {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Volume")
            .field("name", &self.name)
            .field("volsize_bytes", &self.volsize_bytes())
            .finish_non_exhaustive()
    }
}
