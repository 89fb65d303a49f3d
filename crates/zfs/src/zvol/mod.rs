//! A volume: the layer that OpenZFS only has in its kernel module (module/zfs/zvol.c), on top of libzpool.
//!
//! # Theory
//!
//! A volume is an objset with two objects: the data, in blocks of `volblocksize`, and its
//! properties; the property "size" is `volsize`. Reads and writes use the DMU's buffers ([`io`]). A
//! write is acknowledged when it is in an open transaction group; the intent log ([`log`]) makes
//! flushed data durable, and after a crash it is replayed when the volume is opened ([`replay`]).
//! All three formats are those of the kernel's zvol: each can open what the other wrote.
//!
//! Lock order: the volume's gate (shared for I/O, exclusive for suspending), then the range, then a
//! transaction. The log's callback for data runs inside a commit and locks only ranges: therefore a
//! commit must not be called with a range locked.

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

pub use crate::ffi::memory::{Peer, Segments};
pub use crate::ffi::replay::ReplayError;
pub use crate::ffi::shared_memory::{SharedMemory, Window};

/// Bytes read ahead at both ends of a volume when it is opened: `zvol_prefetch_bytes`. Partition
/// tables and signatures are there.
const PREFETCH_BYTES: u64 = 128 << 10;

/// Why a volume cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The library does not match its release.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// A name with a zero byte in it.
    #[error("the name of a volume has no zero bytes")]
    Name,
    /// ENOENT: it does not exist. EBUSY: it is already open. EINVAL: it is not a volume. EACCES:
    /// its key is not loaded.
    #[error("{0}")]
    Refused(#[from] Errno),
    /// Data flushed before a crash could not be replayed completely. The log is unchanged.
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

/// An open volume, or snapshot of one.
pub struct Volume {
    api: Arc<Api>,
    name: CString,
    asked_read_only: bool,
    /// Closed (`None`) or open. I/O shares it; suspending and closing wait for the I/O.
    gate: RwLock<Option<LiveVolume>>,
    locks: Arc<RangeLocks>,
    volsize_bytes: AtomicU64,
}

/// The libzpool state of an open volume. The log is dropped before the objset.
struct LiveVolume {
    /// `None`: not writable.
    log: Option<Log>,
    objset: Objset,
    /// The log could not be replayed, and the volume was opened read-only.
    not_replayed: Option<ReplayError>,
}

impl LiveVolume {
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
    /// Opens a volume for I/O. Its log is replayed first, if the pool is writable; if the replay
    /// fails, the volume can still be opened with `read_only`: without the data that could not be
    /// replayed.
    ///
    /// It is read-only with `read_only` or the property `readonly`, for a snapshot, and if the pool
    /// is imported read-only. The process must have called `kernel_init()`, and imported the pool.
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

    /// Replays the log of a volume that is not open, before an operation that depends on its
    /// contents. A kernel has no volumes with pending logs: it replays all of them soon after the
    /// import.
    ///
    /// # Errors
    /// [`OpenError`]; EINVAL if it is not a volume.
    pub(crate) fn replay_closed(library: &Library, name: &str) -> Result<(), OpenError> {
        let api = Arc::new(Api::load(library)?);
        let name = CString::new(name).map_err(|_| OpenError::Name)?;
        let objset = Objset::own(&api, &name, false)?;
        Ok(replay::replay(&objset)?)
    }

    /// Releases the objset, with everything written, so that it can be rolled back or received
    /// into. Waits for the I/O in flight; later I/O fails with ENXIO until [`Volume::resume`].
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

    /// Runs `act` while the objset is released, as after [`Volume::suspend`]. I/O waits until it is open again.
    ///
    /// # Errors
    /// As [`Volume::open`]: `act` was run, but the volume is closed.
    pub(crate) fn while_suspended<T>(&self, act: impl FnOnce() -> T) -> Result<T, OpenError> {
        let mut gate = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let Some(live) = gate.take() else { return Ok(act()) };
        live.end();
        let result = act();
        *gate = Some(self.start()?);
        Ok(result)
    }

    /// Changes its size with `change`. I/O waits meanwhile; I/O beyond the new end fails with EIO.
    ///
    /// # Errors
    /// ENXIO: it is closed. EROFS: it is not writable. Errors of `change`.
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

    fn start(&self) -> Result<LiveVolume, OpenError> {
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
        Ok(LiveVolume { log, objset, not_replayed })
    }

    /// Ends the I/O: waits for I/O in flight, closes the log, writes everything out. Later I/O
    /// fails with ENXIO.
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

    /// What distinguishes its dataset from all others of its pool; 0 if it is closed.
    pub fn guid(&self) -> u64 {
        self.live().as_ref().map_or(0, |live| live.objset.fsid_guid())
    }

    /// Whether it is not writable.
    pub fn is_read_only(&self) -> bool {
        self.live().as_ref().is_none_or(|live| live.log.is_none())
    }

    /// Why its log was not replayed, although its pool is writable.
    pub(crate) fn not_replayed(&self) -> Option<ReplayError> {
        self.live().as_ref().and_then(|live| live.not_replayed)
    }

    /// Its full name.
    pub fn name(&self) -> &str {
        self.name.to_str().unwrap_or_default()
    }

    fn live(&self) -> RwLockReadGuard<'_, Option<LiveVolume>> {
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
