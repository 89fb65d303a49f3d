//! A device: its table, and the replacement of that table.
//!
//! # States
//!
//! ```text
//!            suspend: the gate is closed, I/O in flight ends, caches are flushed, targets suspend
//!   active ---------------------------------------------------------------------> suspended
//!     ^                                                                               |
//!     +-------------------------------------------------------------------------------+
//!            resume: targets resume, the loaded table becomes the live one, the gate opens
//! ```
//!
//! While the gate is closed, new I/O is held; it then goes to the table that is live. I/O that must
//! not wait (`NOWAIT`) fails with `Again`, read-ahead with `Io`, as in the kernel.
//!
//! The gate owns the live table: I/O that has passed it uses the table without a reference of its own,
//! because the table is replaced only while no I/O is in flight. It is freed when the last reader of its
//! texts is done. Dropping a future does not stop a started write: the runtime completes it, and
//! only its completion returns its pass.
//!
//! The limits of a device are those of its live table. Held I/O, and devices above that have stacked the limits of an earlier
//! table, may exceed them: the gateways of the lower devices split it. Two things stay: a table with
//! another logical block size is refused, and once discards read as zeroes, the device supports none while the live table
//! cannot do that.

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::sync::gate::{ClosedGate, Gate};
use ashlar_block::sync::sharded_arc::{ShardHandle, ShardedArc};
use ashlar_block::sync::uncancellable::Uncancellable;
use ashlar_block::{
    Bio, BioResult, BlockDevice, Disk, Extents, Features, Flags, IoFuture, LocalFuture, Op,
    Runtime, Sector, Sectors, Status,
};
use futures_util::lock::Mutex;
use tracing::{info, warn};

use crate::snapshot::Changes;
use crate::table::{LoadError, Table};
use crate::target::MessageError;

/// How often a retired device checks for readers of its table.
const READERS: Duration = Duration::from_micros(100);

/// State that only changes of the device use.
#[derive(Default)]
struct Admin {
    /// The table to become live with the next resume.
    loaded: Option<Arc<Table>>,
    suspended: bool,
}

/// See the module text.
pub struct Device(ShardedArc<DeviceCore>);

/// What a write holds until its end.
struct DeviceCore {
    disk: Disk,
    /// The live table, which I/O passes.
    gate: Gate<Arc<Table>>,
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
        let device = Self::new(name, table, false, runtime);
        info!(device = name, size = %device.0.disk.capacity(), "started");
        Ok(device)
    }

    /// A device named `name` with the table `table`, which starts with the first [`Self::resume`] and holds I/O until then.
    pub async fn suspended(name: &str, table: Table, runtime: Arc<dyn Runtime>) -> Arc<Self> {
        let device = Self::new(name, table, true, runtime);
        device.0.gate.close().await.keep();
        device
    }

    fn new(name: &str, table: Table, suspended: bool, runtime: Arc<dyn Runtime>) -> Arc<Self> {
        let disk = Disk::new(name, table.capacity(), *table.limits());
        let admin = Mutex::new(Admin { loaded: None, suspended });
        let gate = Gate::new(Arc::new(table));
        Arc::new(Self(ShardedArc::new(Arc::new(DeviceCore { disk, gate, admin, runtime }))))
    }

    /// Loads `table` for the next [`Self::resume`]; replaces an already loaded one.
    ///
    /// # Errors
    /// [`LoadError::BlockSize`].
    pub async fn load(&self, table: Table) -> Result<(), LoadError> {
        let now = self.0.disk.limits().logical_block_bytes;
        let wanted = table.limits().logical_block_bytes;
        if now != wanted {
            let device = self.0.disk.name().to_owned();
            return Err(LoadError::BlockSize { device, now, wanted });
        }
        self.0.admin.lock().await.loaded = Some(Arc::new(table));
        Ok(())
    }

    /// Discards a loaded table that is not live. Returns whether there was one.
    pub async fn clear(&self) -> bool {
        self.0.admin.lock().await.loaded.take().is_some()
    }

    /// Holds new I/O, and waits until none is in flight; with `flush`, acknowledged data is durable
    /// then. A device that is already suspended stays suspended.
    ///
    /// # Errors
    /// The flush failed (not counting targets that had already lost everything), or a target
    /// failed: the device is active, as before.
    pub async fn suspend(&self, flush: bool) -> BioResult {
        self.uncancellable(async move |core| {
            let mut admin = core.admin.lock().await;
            core.quiesce(&mut admin, flush).await?.keep();
            Ok(())
        })
        .await
    }

    /// Makes the loaded table live, if there is one, and releases held I/O. An active device is
    /// suspended for this, with a flush.
    ///
    /// # Errors
    /// A target could not start: the device is suspended, and its tables are unchanged.
    pub async fn resume(&self) -> BioResult {
        self.uncancellable(async move |core| {
            let mut admin = core.admin.lock().await;
            if admin.loaded.is_none() && !admin.suspended {
                return Ok(());
            }
            let mut closed = core.quiesce(&mut admin, true).await?;
            let table = admin.loaded.as_ref().unwrap_or(&closed);
            if let Err(status) = begin(core.disk.name(), table).await {
                closed.keep();
                return Err(status);
            }
            if let Some(table) = admin.loaded.take() {
                core.disk.set_capacity(table.capacity());
                core.take_limits(&table);
                closed.replace(table);
            }
            admin.suspended = false;
            Ok(())
        })
        .await
    }

    /// Ends the device for good: I/O in flight ends, later I/O fails, and the targets are gone when this returns, so that
    /// they write nothing more to the devices below, which may then get other uses. Nothing is flushed.
    ///
    /// # Errors
    /// A target failed: the device is active, as before.
    pub async fn retire(&self) -> BioResult {
        self.uncancellable(async move |core| {
            let mut admin = core.admin.lock().await;
            let mut closed = core.quiesce(&mut admin, false).await?;
            let nothing = Table::failing(&closed);
            let mut old = closed.replace(Arc::new(nothing));
            (admin.loaded, admin.suspended) = (None, false);
            drop(closed);
            // A thread that reads the texts of the table holds it for an instant.
            while let Err(held) = Arc::try_unwrap(old) {
                old = held;
                core.runtime.sleep(READERS).await;
            }
            Ok(())
        })
        .await
    }

    /// Whether new I/O is held until the device is resumed.
    pub async fn is_suspended(&self) -> bool {
        self.0.admin.lock().await.suspended
    }

    /// Number of held I/Os.
    pub fn held(&self) -> usize {
        self.0.gate.held()
    }

    /// The live table, as `dmsetup table` prints it.
    pub fn table(&self) -> String {
        self.0.gate.get().to_string()
    }

    /// The status of the live table's targets, as `dmsetup status` prints it.
    pub fn status(&self) -> String {
        self.0.gate.get().status()
    }

    /// Sends a message to the live table's target at `sector`; returns the reply.
    ///
    /// # Errors
    /// See [`MessageError`].
    pub async fn message(&self, sector: Sector, words: &[&str]) -> Result<String, MessageError> {
        let table = self.0.gate.get();
        match table.target(sector) {
            Some(target) => target.message(words).await,
            None => {
                let (name, size) = (self.0.disk.name(), table.capacity());
                let text = format!("{name} has {size} sectors: sector {sector} is beyond its end");
                Err(MessageError::Invalid(text))
            }
        }
    }

    /// Where it may differ from its origin, if it is a snapshot.
    pub fn changes(&self) -> Option<Changes> {
        self.look(Table::changes)
    }

    fn uncancellable<F>(
        &self,
        work: impl FnOnce(Arc<ShardHandle<DeviceCore>>) -> F,
    ) -> Uncancellable<'_, ()>
    where
        F: Future<Output = BioResult> + 'static,
    {
        Uncancellable::of(&self.0.runtime, work(self.0.handle_clone()))
    }
}

impl DeviceCore {
    /// Closes the gate and tells the targets. The caller decides whether the gate stays closed.
    async fn quiesce(
        &self,
        admin: &mut Admin,
        flush: bool,
    ) -> Result<ClosedGate<'_, Arc<Table>>, Status> {
        let table = self.gate.close().await;
        if admin.suspended {
            return Ok(table);
        }
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
                        warn!(device = self.disk.name(), kind, %status, "a target does not resume");
                    }
                }
            }
            return Err(status);
        }
        admin.suspended = true;
        Ok(table)
    }

    /// Changes the device's limits to those of a table that becomes live.
    fn take_limits(&self, table: &Table) {
        let limits = table.limits().keep_promises(self.disk.limits());
        if let Err(error) = self.disk.set_limits(limits) {
            // `load` has refused such a table.
            warn!(device = self.disk.name(), %error, "cannot change the limits of a device");
        }
    }

    async fn submit(&self, bio: Bio) -> BioResult {
        let table = match self.gate.try_enter() {
            Some(table) => table,
            None if bio.flags.contains(Flags::NOWAIT) => return Err(Status::Again),
            None if bio.flags.contains(Flags::RAHEAD) => return Err(Status::Io),
            None => self.gate.enter().await,
        };
        if bio.op == Op::Discard && self.lacks_discards(&table) {
            return Err(Status::NotSupported);
        }
        table.submit(&self.disk, bio).await
    }

    /// Whether the live table lacks discard features that held discards, or devices above, were promised.
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
                warn!(device, kind, %status, "a target does not suspend again");
            }
        }
        return Err(status);
    }
    for target in table.targets() {
        target.resumed().await;
    }
    Ok(())
}

impl Device {
    /// Looks at the live table.
    fn look<T>(&self, look: impl Fn(&Table) -> T) -> T {
        match self.0.gate.try_enter() {
            Some(table) => look(&table),
            None => look(&self.0.gate.get()),
        }
    }
}

impl BlockDevice for Device {
    fn disk(&self) -> &Disk {
        &self.0.disk
    }

    fn copies(&self, at: Sector, len: Sectors) -> u16 {
        self.look(|table| table.copies(at, len))
    }

    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        Box::pin(async move {
            let table = match self.0.gate.try_enter() {
                Some(table) => table,
                None => self.0.gate.enter().await,
            };
            table.extents(at, len).await
        })
    }

    fn holds_changes(&self) -> bool {
        self.look(Table::holds_changes)
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        match bio.op {
            // A read borrows the device, a write holds it.
            Op::Read => IoFuture::boxed(self.0.submit(bio)),
            Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes => {
                self.uncancellable(|core| async move { core.submit(bio).await }).into()
            }
        }
    }
}
