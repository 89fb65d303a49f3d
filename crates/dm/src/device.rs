//! A device: its table, and the replacement of that table.
//!
//! # States
//!
//! ```text
//!            suspend: the gate is closed, I/O in flight ends, caches are flushed, targets are told
//!   active ---------------------------------------------------------------------> suspended
//!     ^                                                                               |
//!     +-------------------------------------------------------------------------------+
//!            resume: targets are told, the loaded table becomes the live one, the gate opens
//! ```
//!
//! While the gate is closed, new I/O is held; it then goes to the table that is live. I/O that must
//! not wait (`NOWAIT`) fails with `Again`, read-ahead with `Io`, as in the kernel.
//!
//! A table is replaced only while it has no I/O in flight, and is freed when the last reader of its
//! texts is done. Dropping a future does not stop a started write: the runtime completes it, and
//! only its completion returns its pass.
//!
//! The limits of a device are those of its first table, and stay. If a later table has lower
//! limits, the gateways of the lower devices split accordingly, with two exceptions: a table with
//! another logical block size is refused, and discards are not supported while the live table
//! cannot do what the limits promise.

use std::ops::Deref;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use ashlar_block::sync::finish::Finish;
use ashlar_block::{
    Bio, BioResult, BlockDevice, Disk, Features, Flags, IoFuture, Op, Runtime, Sector, Sectors,
    Status,
};
use futures_util::lock::Mutex;
use tracing::{info, warn};

use crate::gate::Gate;
use crate::table::{LoadError, Table};
use crate::target::MessageError;

/// State that only changes of the device use.
#[derive(Default)]
struct Admin {
    /// The table to become live with the next resume.
    loaded: Option<Arc<Table>>,
    suspended: bool,
}

/// See the module text.
pub struct Device {
    me: Weak<Self>,
    disk: Disk,
    gate: Gate,
    live: ArcSwap<Table>,
    admin: Mutex<Admin>,
    runtime: Arc<dyn Runtime>,
}

impl Device {
    /// Starts a device named `name` with the table `table`.
    ///
    /// # Errors
    /// A target could not start.
    pub async fn start(
        name: &str,
        table: Table,
        runtime: Arc<dyn Runtime>,
    ) -> Result<Arc<Self>, Status> {
        begin(name, &table).await?;
        let disk = Disk::new(name, table.capacity(), *table.limits());
        info!(device = name, size = %table.capacity(), "started");
        Ok(Arc::new_cyclic(|me| Self {
            me: me.clone(),
            disk,
            gate: Gate::default(),
            live: ArcSwap::from_pointee(table),
            admin: Mutex::default(),
            runtime,
        }))
    }

    /// Loads `table` for the next [`Self::resume`]; replaces an already loaded one.
    ///
    /// # Errors
    /// [`LoadError::BlockSize`].
    pub async fn load(&self, table: Table) -> Result<(), LoadError> {
        let now = self.disk.limits().logical_block_bytes;
        let wanted = table.limits().logical_block_bytes;
        if now != wanted {
            let device = self.disk.name().to_owned();
            return Err(LoadError::BlockSize { device, now, wanted });
        }
        self.admin.lock().await.loaded = Some(Arc::new(table));
        Ok(())
    }

    /// Discards a loaded table that is not live. Returns whether there was one.
    pub async fn clear(&self) -> bool {
        self.admin.lock().await.loaded.take().is_some()
    }

    /// Holds new I/O, and waits until none is in flight; with `flush`, acknowledged data is durable
    /// then. A device that is already suspended stays suspended.
    ///
    /// # Errors
    /// The flush failed (not counting targets that had already lost everything), or a target
    /// failed: the device is active, as before.
    pub async fn suspend(&self, flush: bool) -> BioResult {
        self.finish(async move |device| {
            let mut admin = device.admin.lock().await;
            device.quiesce(&mut admin, flush).await
        })
        .await
    }

    async fn quiesce(&self, admin: &mut Admin, flush: bool) -> BioResult {
        if admin.suspended {
            return Ok(());
        }
        let closed = self.gate.close().await;
        let table = self.live.load_full();
        if flush {
            table.settle(&self.disk).await?;
        }
        for (index, target) in table.targets().enumerate() {
            let Err(status) = target.suspended().await else { continue };
            for target in table.targets().take(index) {
                match target.resuming().await {
                    Ok(()) => target.resumed().await,
                    Err(status) => {
                        let kind = target.type_name();
                        warn!(device = self.disk.name(), kind, %status, "a target does not go on");
                    }
                }
            }
            return Err(status);
        }
        closed.keep();
        admin.suspended = true;
        Ok(())
    }

    /// Makes the loaded table live, if there is one, and releases held I/O. An active device is
    /// suspended for this, with a flush.
    ///
    /// # Errors
    /// A target could not start: the device is suspended, and its tables are unchanged.
    pub async fn resume(&self) -> BioResult {
        self.finish(async move |device| {
            let mut admin = device.admin.lock().await;
            match admin.loaded.clone() {
                Some(table) => {
                    device.quiesce(&mut admin, true).await?;
                    begin(device.disk.name(), &table).await?;
                    device.disk.set_capacity(table.capacity());
                    device.live.store(table);
                    admin.loaded = None;
                }
                None if admin.suspended => {
                    begin(device.disk.name(), &device.live.load_full()).await?;
                }
                None => return Ok(()),
            }
            admin.suspended = false;
            device.gate.open();
            Ok(())
        })
        .await
    }

    /// Whether new I/O is held until the device is resumed.
    pub async fn is_suspended(&self) -> bool {
        self.admin.lock().await.suspended
    }

    /// Number of held I/Os.
    pub fn held(&self) -> usize {
        self.gate.held()
    }

    /// The live table, as `dmsetup table` prints it.
    pub fn table(&self) -> String {
        self.live.load_full().to_string()
    }

    /// The loaded table that is not live, as `dmsetup table --inactive` prints it.
    pub async fn loaded_table(&self) -> Option<String> {
        self.admin.lock().await.loaded.as_ref().map(ToString::to_string)
    }

    /// The status of the live table's targets, as `dmsetup status` prints it.
    pub fn status(&self) -> String {
        self.live.load_full().status()
    }

    /// Sends a message to the live table's target at `sector`; returns the reply.
    ///
    /// # Errors
    /// See [`MessageError`].
    pub async fn message(&self, sector: Sector, words: &[&str]) -> Result<String, MessageError> {
        let table = self.live.load_full();
        match table.target(sector) {
            Some(target) => target.message(words).await,
            None => {
                let (name, size) = (self.disk.name(), table.capacity());
                let text = format!("{name} has {size} sectors: none is {sector}");
                Err(MessageError::Invalid(text))
            }
        }
    }

    fn finish<F>(&self, work: impl FnOnce(Arc<Self>) -> F + 'static) -> Finish<'_, ()>
    where
        F: Future<Output = BioResult> + 'static,
    {
        Finish::new(&self.runtime, &self.me, work)
    }

    /// Whether the live table lacks discard features that our limits promise.
    fn lacks_discards(&self, table: &Table) -> bool {
        let promised = self.disk.limits().features - table.limits().features;
        table.limits().max_hw_discard.is_zero() || promised.contains(Features::DISCARD_ZEROES)
    }
}

/// Starts all targets, or none of them.
async fn begin(device: &str, table: &Table) -> BioResult {
    for (index, target) in table.targets().enumerate() {
        let Err(status) = target.resuming().await else { continue };
        for target in table.targets().take(index) {
            if let Err(status) = target.suspended().await {
                let kind = target.type_name();
                warn!(device, kind, %status, "a target does not end what it began");
            }
        }
        return Err(status);
    }
    for target in table.targets() {
        target.resumed().await;
    }
    Ok(())
}

/// Passes a bio through the device: a read borrows the device, a write holds it.
async fn pass_on(device: impl Deref<Target = Device>, bio: Bio) -> BioResult {
    let _pass = match device.gate.try_enter() {
        Some(pass) => pass,
        None if bio.flags.contains(Flags::NOWAIT) => return Err(Status::Again),
        None if bio.flags.contains(Flags::RAHEAD) => return Err(Status::Io),
        None => device.gate.enter().await,
    };
    let table = device.live.load();
    if bio.op == Op::Discard && device.lacks_discards(&table) {
        return Err(Status::NotSupported);
    }
    table.submit(&device.disk, bio).await
}

impl BlockDevice for Device {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn copies(&self, at: Sector, len: Sectors) -> u16 {
        self.live.load().copies(at, len)
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        match bio.op {
            Op::Read => IoFuture::boxed(pass_on(self, bio)),
            Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes => {
                self.finish(|device| pass_on(device, bio)).into()
            }
        }
    }
}
