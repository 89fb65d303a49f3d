//! Simulated disks and the devices on them, by name.
#![allow(dead_code, reason = "each test uses its part")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ashlar_block::{Buffer, Flags, Gateway, Limits, Runtime, Sector, Sectors, Status};
use ashlar_dm::snapshot::Origins;
use ashlar_dm::{Context, Device, Devices, LoadError, Table, text};
use ashlar_sim::{Media, Model, SimDisk, SimRuntime};
use event_listener::EventListener;

/// The devices of one boot.
#[derive(Clone, Default)]
pub(crate) struct Rig {
    names: Arc<Names>,
    origins: Arc<Origins>,
}

#[derive(Default)]
struct Names(Mutex<BTreeMap<String, Gateway>>);

impl Devices for Names {
    fn find(&self, name: &str) -> Option<Gateway> {
        self.0.lock().unwrap().get(name).cloned()
    }
}

impl Rig {
    /// A disk over a medium.
    pub(crate) fn disk(&self, name: &str, media: &Media) -> Gateway {
        self.name(name, SimDisk::over(name, media.clone()).gateway())
    }

    /// A disk with the times of a model and other limits.
    pub(crate) fn disk_with(&self, name: &str, media: &Media, model: Model, limits: Limits) {
        self.name(name, SimDisk::with(name, media.clone(), limits, model).gateway());
    }

    fn name(&self, name: &str, gateway: Gateway) -> Gateway {
        self.names.0.lock().unwrap().insert(name.to_owned(), gateway.clone());
        gateway
    }

    /// Ends when a snapshot fills.
    pub(crate) fn listen(&self) -> EventListener {
        self.origins.listen()
    }

    /// Resolves device names.
    pub(crate) fn names(&self) -> &impl Devices {
        &*self.names
    }

    /// A table from its text.
    pub(crate) async fn table(&self, table: &str) -> Result<Table, LoadError> {
        let lines = text::parse(table).expect("a table's text");
        let (runtime, origins): (Arc<dyn Runtime>, _) =
            (Arc::new(SimRuntime), Arc::clone(&self.origins));
        Table::load(&lines, &Context { devices: &*self.names, runtime, origins }).await
    }

    /// A device with a table of one line.
    pub(crate) async fn try_device(
        &self,
        name: &str,
        table: &str,
    ) -> Result<(Arc<Device>, Gateway), String> {
        let table = self.table(table).await.map_err(|error| error.to_string())?;
        let runtime: Arc<dyn Runtime> = Arc::new(SimRuntime);
        let device = Device::start(name, table, runtime).await.map_err(|s| s.to_string())?;
        let gateway = self.name(name, Gateway::new(device.clone()));
        Ok((device, gateway))
    }

    /// As [`Self::try_device`], which must succeed.
    pub(crate) async fn device(&self, name: &str, table: &str) -> (Arc<Device>, Gateway) {
        self.try_device(name, table).await.expect("a device")
    }

    /// Forgets a device.
    pub(crate) fn remove(&self, name: &str) {
        let removed = self.names.0.lock().unwrap().remove(name);
        drop(removed);
    }

    /// Replaces a device's table.
    pub(crate) async fn reload(&self, device: &Device, table: &str) {
        device.load(self.table(table).await.expect("a table")).await.expect("a loaded table");
        device.resume().await.expect("a resumed device");
    }
}

/// The status of a device of one piece, without the type.
pub(crate) fn status(device: &Device) -> String {
    let line = device.status();
    let words: Vec<&str> = line.trim_end().splitn(4, ' ').collect();
    words.get(3).copied().unwrap_or_default().to_owned()
}

/// The bytes of a range.
pub(crate) async fn read(gateway: &Gateway, at: u64, len: u64) -> Result<Vec<u8>, Status> {
    Ok(gateway.read(Sector(at), Sectors(len)).await?.as_slice().to_vec())
}

/// Fills a range with one byte.
pub(crate) async fn fill(gateway: &Gateway, at: u64, len: u64, byte: u8) -> Result<(), Status> {
    let mut data = Buffer::from_slice(&vec![byte; len as usize * 512]);
    gateway.write(Sector(at), &mut data, Flags::empty()).await
}

/// The byte that fills a range.
pub(crate) async fn filled(gateway: &Gateway, at: u64, len: u64) -> Result<u8, Status> {
    let data = read(gateway, at, len).await?;
    assert!(data.iter().all(|byte| *byte == data[0]), "sectors {at}+{len} are not filled");
    Ok(data[0])
}
